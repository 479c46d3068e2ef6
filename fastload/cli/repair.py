"""`fastload repair`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastload.cli.common import add_verb, existing, print_json, progress_of, say, show
from fastload.cli.streams import print_err
from fastload.errors import MAX_PROBLEMS_IN_MESSAGE
from fastload.units import count_of, printable

if TYPE_CHECKING:
    from fastload.packing.report import RepairReport
    from fastload.schema import Problem

_EPILOG = """\
examples:
  fastload repair skitti --dry-run         # what would be done
  fastload repair skitti                   # rebuild manifest, index, names and damaged pages
  fastload repair skitti --drop-damaged    # leave out the samples that are damaged or lost
"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "repair",
        "rebuild a dataset from its shards",
        "Rebuild manifest, index and names of a packed dataset from its shards alone, and shards whose pages are\n"
        "damaged from their records. Nothing is deleted: what is replaced stays there as NAME.damaged.\n"
        "Exit code 1: something damaged remains.",
        _EPILOG,
    )
    parser.add_argument("out", metavar="OUT", help="folder of the packed dataset")
    parser.add_argument("--drop-damaged", action="store_true", help="leave out what is damaged or lost, and list it")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done; write nothing")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Repair, and print what was done, what was left out and what is still damaged."""
    existing(options.out, "OUT")
    from fastload.packing.repair import repair

    with progress_of(options) as progress:
        report = repair(options.out, drop_damaged=options.drop_damaged, dry_run=options.dry_run, progress=progress)
    if options.json:
        print_json(report.to_json())
        return 0 if report.ok else 1
    for note in report.notes:
        say(f"note: {printable(note)}", options)
    _list("left out: " if not report.dry_run else "would be left out: ", report.dropped)
    _list("", report.problems)
    if not options.quiet:
        show(describe(report), options)
    return 0 if report.ok else 1


def _list(head: str, problems: Sequence[Problem]) -> None:
    for problem in problems[:MAX_PROBLEMS_IN_MESSAGE]:
        print_err(f"{head}{problem}")
    if len(problems) > MAX_PROBLEMS_IN_MESSAGE:
        print_err(f"{head}... and {len(problems) - MAX_PROBLEMS_IN_MESSAGE:,} more; --json lists all")


def describe(report: RepairReport) -> str:
    """The outcome for people."""
    if not report.samples:
        return "\n".join(
            [
                "nothing was written: something is lost down to its name; --drop-damaged leaves it out",
                f"{count_of(len(report.problems), 'problem')} left: {report.root}",
            ]
        )
    tense = "would be " if report.dry_run else ""
    lines = [f"{tense}rebuilt: {', '.join(report.rebuilt)}" if report.rebuilt else "nothing to rebuild"]
    if report.set_aside:
        lines.append(f"the old ones are kept as: {', '.join(report.set_aside)}")
    if report.dropped:
        lines.append(f"{tense}left out as damaged or lost, as listed above: {_count(report.dropped)}")
    count = f"{count_of(report.samples, 'sample')} in {count_of(report.shards, 'shard')}"
    verdict = "ok" if report.ok else f"{count_of(len(report.problems), 'problem')} left"
    if report.dry_run:
        verdict = "nothing was written; it would hold" if report.rebuilt else verdict
    return "\n".join([*lines, f"{verdict}: {count}: {report.root}"])


def _count(dropped: Sequence[Problem]) -> str:
    """How many samples were left out, and how much else."""
    samples = len({problem.index for problem in dropped if problem.index is not None})
    others = sum(problem.index is None for problem in dropped)
    parts = [count_of(samples, "sample")] if samples else []
    return " and ".join([*parts, *([count_of(others, "other thing")] if others else [])])
