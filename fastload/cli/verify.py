"""`fastload verify`."""

from __future__ import annotations

import argparse

from fastload.cli.common import add_verb, existing, print_json, progress_of, show
from fastload.cli.streams import print_err
from fastload.errors import MAX_PROBLEMS_IN_MESSAGE
from fastload.units import count_of, format_seconds, format_size

_EPILOG = """\
examples:
  fastload verify skitti             # every checksum
  fastload verify skitti --quick     # sizes, headers and index only
"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "verify",
        "check a dataset for damage",
        "Check a packed dataset. Exit code 1: something is wrong.",
        _EPILOG,
    )
    parser.add_argument("out", metavar="OUT", help="folder of the packed dataset")
    parser.add_argument("--quick", action="store_true", help="sizes, headers and index only; no data is read")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check, and print each problem."""
    existing(options.out, "OUT")
    from fastload.packing.verify import verify

    with progress_of(options) as progress:
        report = verify(options.out, quick=options.quick, progress=progress)
    if options.json:
        print_json(report.to_json())
        return 0 if report.ok else 1
    for problem in report.problems[:MAX_PROBLEMS_IN_MESSAGE]:
        print_err(str(problem))
    if len(report.problems) > MAX_PROBLEMS_IN_MESSAGE:
        print_err(f"... and {len(report.problems) - MAX_PROBLEMS_IN_MESSAGE:,} more; --json lists all")
    if not options.quiet:
        good = "sizes, headers and index ok (--quick: no checksum of the data was read)" if report.quick else "ok"
        verdict = good if report.ok else count_of(len(report.problems), "problem")
        show(
            f"{verdict}: {count_of(report.samples, 'sample')} in {count_of(report.shards, 'shard')},"
            f" {format_size(report.bytes)} read in {format_seconds(report.seconds)}: {report.root}",
            options,
        )
    return 0 if report.ok else 1
