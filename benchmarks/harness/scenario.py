"""What a scenario file gives: what is run on which data, and against what it is held."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.contender import Contender, Limit
from benchmarks.harness.guard import ProcessGuard


@dataclass(frozen=True)
class Scenario:
    """A benchmark that is ready to run.

    Attributes:
        title: what is measured, in a line.
        contenders: who is measured, in the order of the table.
        limits: what they are held against.
        reference: name of the contender that the others are held against, in speed and in what they deliver.
        data: facts about the data, plain JSON values.
        data_line: the same in a line for people.
        files: the files that are read: their file system and what of them is cached is reported.
        hot: whether they have to be in the page cache.
        settings: what else the scenario was asked for, plain JSON values.
        noun: what a sample is called in the table.
    """

    title: str
    contenders: tuple[Contender, ...]
    limits: tuple[Limit, ...]
    reference: str | None
    data: Mapping[str, Any]
    data_line: str
    files: tuple[Path, ...]
    hot: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    noun: str = "samples"


@dataclass(frozen=True)
class Workplace:
    """Where and by what means a scenario prepares its data.

    Attributes:
        folder: the work folder, absolute; it may not be there yet.
        guard: starts processes that must not outlive the benchmark.
        say: takes messages about progress.
    """

    folder: Path
    guard: ProcessGuard
    say: Callable[[str], None]


@dataclass(frozen=True)
class Command:
    """The command line of a scenario file.

    Attributes:
        name: the file's name without its ending.
        description: what it measures; the head of its `--help`.
        examples: command lines, the end of its `--help`.
        add_options: adds the scenario's own options to the parser.
        build: makes the scenario of the options.
    """

    name: str
    description: str
    examples: str
    add_options: Callable[[argparse.ArgumentParser], None]
    build: Callable[[argparse.Namespace, Workplace], Scenario]
