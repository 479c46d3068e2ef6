"""The `fastload` command: its verbs, and how errors become messages and exit codes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from fastload._version import __version__
from fastload.cli import info, pack, unpack, verify
from fastload.errors import FastloadError, SourceError, UsageError
from fastload.units import printable

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130
_EPILOG = """\
exit codes: 0 done, 1 failure found or work failed, 2 wrong usage, 130 after Ctrl-C

examples:
  fastload pack semantickitti /data/SemanticKITTI skitti
  fastload info skitti
  fastload verify skitti
  fastload unpack skitti /data/again --split val
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command."""
    parser = argparse.ArgumentParser(
        prog="fastload",
        description="Pack LiDAR scans and images into shards that PyTorch reads at memory speed.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fastload {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", title="verbs")
    for module in (pack, info, verify, unpack):
        module.add_parser(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Gives its exit code."""
    options = build_parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        _say(f"fastload {options.verb}: interrupted; run the same command again to start over")
        return INTERRUPTED
    except UsageError as error:
        return _fail(options, error, WRONG_USAGE)
    except (FastloadError, OSError, MemoryError) as error:
        return _fail(options, error, FAILED)
    return code


def _fail(options: argparse.Namespace, error: Exception, code: int) -> int:
    text = _text(error)
    if options.json:
        print(json.dumps(_error_json(options.verb, error, text)))
    _say(f"fastload {options.verb}: {text}")
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


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)
