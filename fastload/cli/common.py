"""What the verbs share: common options, progress on stderr, output on stdout."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastload.cli.streams import print_err, print_out
from fastload.errors import UsageError
from fastload.units import format_seconds, format_size

if TYPE_CHECKING:
    from fastload.packing.report import Progress

PLAIN_LINE_EVERY_S = 60.0
"""Where stderr is no terminal, a line of progress comes this often."""


JSON_HELP = "print one JSON object on stdout and nothing else there"


class Parser(argparse.ArgumentParser):
    """A parser that prints as the rest of the command does."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if message:
            (print_out if file is sys.stdout else print_err)(message, end="")


def add_common(parser: argparse.ArgumentParser, json_help: str = JSON_HELP) -> None:
    """Add `--json` and `--quiet`."""
    parser.add_argument("--json", action="store_true", help=json_help)
    parser.add_argument("--quiet", action="store_true", help="no progress and no messages but errors")


def add_verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    help_text: str,
    description: str,
    epilog: str,
    *,
    json_help: str = JSON_HELP,
) -> argparse.ArgumentParser:
    """A verb's parser, with its description and examples as they are written."""
    parser = verbs.add_parser(
        name,
        help=help_text,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_common(parser, json_help)
    parser.set_defaults(parser=parser)
    return parser


def given(path: str, argument: str) -> str:
    """A path argument that is not empty, which would mean the current folder. Raises `UsageError` naming it."""
    if not path:
        raise UsageError(f"{argument}: the path is empty, as an unset variable leaves it; give a path")
    return path


def existing(path: str, argument: str) -> Path:
    """A path argument that has to exist. Raises `UsageError` naming it."""
    found = Path(given(path, argument))
    if not found.exists():
        raise UsageError(f"{path}: there is no such file or folder")
    return found


def say(text: str, options: argparse.Namespace) -> None:
    """A message for people, on stderr; none with `--quiet`."""
    if not options.quiet:
        print_err(text)


def show(text: str, options: argparse.Namespace) -> None:
    """The result for people, on stdout; none with `--json`."""
    if not options.json:
        print_out(text)


def print_json(values: Mapping[str, Any]) -> None:
    """The result for programs: one object on stdout."""
    print_out(json.dumps(values))


class PlainProgress:
    """A line of progress a minute: for logs, where a bar that redraws itself is noise."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        """Print the line when a minute has gone since the last."""
        now = time.monotonic()
        if now - self._last < PLAIN_LINE_EVERY_S:
            return
        self._last = now
        rate = progress.done_bytes / (now - self._started)
        left = (progress.total_bytes - progress.done_bytes) / rate if rate else 0.0
        print_err(
            f"{progress.stage}: {progress.samples:,} of {progress.total_samples:,} samples,"
            f" {format_size(progress.done_bytes)} of {format_size(progress.total_bytes)},"
            f" {format_size(rate)}/s, {format_seconds(left)} left"
        )


class BarProgress:
    """A bar with rate and time left, on a terminal."""

    def __init__(self) -> None:
        from tqdm import tqdm

        tqdm.monitor_interval = 0  # no thread of its own for a bar that is updated often
        self._new = tqdm
        self._bar: Any = None
        self._stage = ""

    def __call__(self, progress: Progress) -> None:
        """Move the bar on; a new stage gets a new one."""
        if self._bar is None or self._stage != progress.stage:
            self.close()
            self._stage = progress.stage
            self._bar = self._new(
                total=progress.total_bytes, desc=progress.stage, unit="B", unit_scale=True, file=sys.stderr,
                leave=False, dynamic_ncols=True,
            )  # fmt: skip
        self._bar.update(progress.done_bytes - self._bar.n)

    def close(self) -> None:
        """Clear the bar."""
        if self._bar is not None:
            self._bar.close()


@contextlib.contextmanager
def progress_of(options: argparse.Namespace) -> Iterator[BarProgress | PlainProgress | None]:
    """The progress callback that fits the options and the terminal."""
    if options.quiet:
        yield None
    elif sys.stderr.isatty():
        with contextlib.closing(BarProgress()) as bar:
            yield bar
    else:
        yield PlainProgress()
