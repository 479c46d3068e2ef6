"""The command line of a scenario: options, errors as messages, exit codes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.contender import Contender
from benchmarks.harness.errors import BenchmarkError, UsageError
from benchmarks.harness.guard import ProcessGuard
from benchmarks.harness.machine import machine_facts
from benchmarks.harness.options import add_run_options
from benchmarks.harness.pagecache import cached_fraction
from benchmarks.harness.report import Report
from benchmarks.harness.results import analyse
from benchmarks.harness.runner import Settings, run
from benchmarks.harness.scenario import Command, Workplace
from benchmarks.harness.table import format_report
from fastload.cli.common import Parser
from fastload.cli.streams import OutputError, open_streams, print_err, print_out
from fastload.errors import FastloadError

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130
_EXIT_CODES = """\
exit codes: 0 done, 1 something that is installed failed or delivered wrong data (the others are measured all the
same), 2 wrong usage, 130 after Ctrl-C"""


def main(command: Command, arguments: Sequence[str] | None = None) -> int:
    """Run a scenario's command line. Gives its exit code."""
    with open_streams():
        options = _parse(command, arguments)
        try:
            return _run(command, options)
        except KeyboardInterrupt:
            print_err(f"{command.name}: interrupted; all that it started was ended")
            return INTERRUPTED
        except OutputError as error:
            if not isinstance(error.__cause__, BrokenPipeError):
                print_err(f"{command.name}: standard output takes no more: {error}")
            return FAILED
        except UsageError as error:
            print_err(f"{command.name}: {error}")
            return WRONG_USAGE
        except (BenchmarkError, FastloadError) as error:
            print_err(f"{command.name}: {error}")
            return FAILED
        except OSError as error:
            print_err(f"{command.name}: {error.filename or 'a file'}: {error.strerror or error}")
            return FAILED


def _parse(command: Command, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog=f"{command.name}.py",
        description=command.description,
        epilog=f"{_EXIT_CODES}\n\nexamples:\n{command.examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_options(parser)
    command.add_options(parser)
    return parser.parse_args(arguments)


def _run(command: Command, options: argparse.Namespace) -> int:
    _check_json(options.json)
    settings = Settings(options.rounds, options.seed, options.timeout, options.check_every_round)
    with ProcessGuard() as guard:
        place = Workplace(Path(options.work).absolute(), guard, print_err)
        scenario = command.build(options, place)
        contenders = _choose(scenario.contenders, options.only)
        outcome = run([*contenders, *scenario.limits], scenario.reference, settings, guard, print_err)
    code = FAILED if any(track.failed for track in outcome.tracks) else DONE
    report = Report(
        name=command.name,
        scenario=scenario,
        settings=settings,
        outcome=outcome,
        results=analyse(outcome),
        machine=machine_facts(place.folder),
        cached=cached_fraction(scenario.files),
        exit_code=code,
    )
    if options.json is not None:
        report.write(options.json)
    print_out(format_report(report))
    return code


def _check_json(path: Path | None) -> None:
    """See that the file can be written before hours are spent on what goes into it."""
    if path is None:
        return
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--json {path}: there is no folder {path.absolute().parent}; make it first")
    if path.is_dir():
        raise UsageError(f"--json {path}: is a folder; expected the name of a file")


def _choose(contenders: Sequence[Contender], only: Sequence[str]) -> tuple[Contender, ...]:
    """The contenders that `--only` names, by their own names or their families'."""
    for name in only:
        if not any(_is_called(contender, name) for contender in contenders):
            names = ", ".join(contender.name for contender in contenders) or "none"
            raise UsageError(f"--only {name}: no contender is called that; there are {names}")
    return tuple(each for each in contenders if not only or any(_is_called(each, name) for name in only))


def _is_called(contender: Contender, name: str) -> bool:
    return name in (contender.name, contender.name.partition(":")[0])
