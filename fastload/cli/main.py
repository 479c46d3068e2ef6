"""The `fastload` command: its verbs, and how errors become messages and exit codes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from fastload._version import __version__
from fastload.cli import info, ls, pack, repair, unpack, verify
from fastload.cli.common import Parser, print_json
from fastload.cli.streams import OutputError, open_streams, print_err
from fastload.errors import FastloadError, SourceError, UsageError
from fastload.units import printable

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130
_EPILOG = """\
exit codes: 0 done, 1 failure found or work failed, 2 wrong usage, 130 after Ctrl-C

examples:
  fastload pack semantickitti /data/SemanticKITTI skitti
  fastload info skitti
  fastload ls skitti --split val
  fastload verify skitti
  fastload repair skitti
  fastload unpack skitti /data/again --split val
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command."""
    parser = Parser(
        prog="fastload",
        description="Pack LiDAR scans into shards that PyTorch reads at memory speed.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fastload {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", title="verbs")
    for module in (pack, info, ls, verify, repair, unpack):
        module.add_parser(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Gives its exit code."""
    options = argparse.Namespace(verb=None)
    with open_streams():
        try:
            return _run(_parse(arguments, options))
        except KeyboardInterrupt:
            again = getattr(options, "again", "run the same command again to start over")
            print_err(f"{_command(options)}: interrupted; {again}")
            return INTERRUPTED
        except OutputError as error:
            if not isinstance(error.__cause__, BrokenPipeError):  # as `| head` does: its reader has read enough
                print_err(f"{_command(options)}: standard output takes no more: {error}")
            return FAILED


def _parse(arguments: Sequence[str] | None, options: argparse.Namespace) -> argparse.Namespace:
    """The options; the words of a verb that takes several may stand before, between and behind its options."""
    _, rest = build_parser().parse_known_args(arguments, options)
    if rest and hasattr(options, "words") and not any(word.startswith("-") for word in rest):
        options.words += rest
    elif rest:
        options.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return options


def _run(options: argparse.Namespace) -> int:
    try:
        code: int = options.run(options)
    except UsageError as error:
        return _fail(options, error, WRONG_USAGE)
    except (FastloadError, OSError, MemoryError) as error:
        return _fail(options, error, FAILED)
    return code


def _command(options: argparse.Namespace) -> str:
    return f"fastload {options.verb}" if options.verb else "fastload"


def _fail(options: argparse.Namespace, error: Exception, code: int) -> int:
    text = _text(error)
    print_err(f"{_command(options)}: {text}")
    if options.json:
        print_json(_error_json(options.verb, error, text))
    return code


def _error_json(verb: str, error: Exception, text: str) -> dict[str, Any]:
    problems = error.problems if isinstance(error, SourceError) else ()
    return {
        "schema": f"fastload.{verb}/1",
        "fastload_version": __version__,
        "error": {"type": type(error).__name__, "message": printable(text)},
        "problems": [problem.to_json() for problem in problems],
    }


def _text(error: Exception) -> str:
    if isinstance(error, SourceError) and error.problems:
        return f"{error}\nNothing was published; mend these, or leave the bad samples out with --skip-bad."
    if isinstance(error, MemoryError):
        return "out of memory; close other programs, or raise the limit (ulimit -v, the container's memory)"
    if isinstance(error, OSError) and not isinstance(error, FastloadError):
        return f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")
    return str(error)
