"""Options that several scenarios have, and the kinds of their values."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path


def whole(least: int) -> Callable[[str], int]:
    """A kind of option: a whole number, `least` or more."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"found {text!r}; expected a whole number, {least} or more")
        return value

    return parse


def positive_seconds(text: str) -> float:
    """A kind of option: seconds, more than 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"found {text!r}; expected seconds, more than 0")
    return value


def worker_counts(text: str) -> tuple[int, ...]:
    """A kind of option: different whole numbers with commas between them."""
    counts = tuple(whole(0)(part) for part in text.split(","))
    if len(set(counts)) < len(counts):
        raise argparse.ArgumentTypeError(f"found {text!r}; expected each number of workers once")
    return counts


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """The options of every scenario."""
    add = parser.add_argument
    add("work", type=Path, metavar="WORK", help="folder for the data; what it has from an earlier run is used again")
    add("--rounds", type=whole(1), default=9, metavar="N", help="timed rounds, after one to warm up (default: 9)")
    add("--seed", type=whole(0), default=0, metavar="K", help="for the order of contenders and samples (default: 0)")
    add("--only", nargs="+", default=[], metavar="NAME",
        help="these contenders, or families of them (loose-files); ratios need the reference among them")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write all that was measured to this file")
    add("--timeout", type=positive_seconds, default=600.0, metavar="S",
        help="seconds that a contender may take to open, or for a round (default: 600)")  # fmt: skip
    add("--check-every-round", action="store_true",
        help="digest what is delivered in timed rounds too; the figures then include that")  # fmt: skip


def add_scan_options(parser: argparse.ArgumentParser, *, points: int = 120_000) -> None:
    """The options of scenarios that read scans."""
    add = parser.add_argument
    add("--scans", type=whole(1), default=200, metavar="N", help="scans (default: 200)")
    add("--points", type=whole(1), default=points, metavar="P",
        help=f"points that a simulated scan has on average (default: {points})")  # fmt: skip
    add("--source", type=Path, metavar="FOLDER",
        help="SemanticKITTI, to take the scans from, evenly spread; by default they are simulated")  # fmt: skip


def add_loader_options(parser: argparse.ArgumentParser) -> None:
    """The options of scenarios that load batches."""
    add = parser.add_argument
    add("--batch-size", type=whole(1), default=8, metavar="B", help="scans a batch (default: 8)")
    add("--workers", type=worker_counts, default=(0, 2), metavar="W,...",
        help="worker processes, a contender for each number (default: 0,2)")  # fmt: skip
