"""Single scans that are hot in the page cache, shuffled, read by number in one process: no loader, no batches."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness.command import main as run_command
from benchmarks.harness.contender import Contender
from benchmarks.harness.data import origin_of, prepare_scans
from benchmarks.harness.delivery import Delivery
from benchmarks.harness.limits import memcpy_limits
from benchmarks.harness.options import add_scan_options
from benchmarks.harness.scenario import Command, Scenario, Workplace

SINGLE = Delivery(("points", "semantic", "instance"), "single")
EXAMPLES = """\
  python benchmarks/scans_single.py /tmp/scans
      200 simulated scans of 120,000 points
  python benchmarks/scans_single.py /tmp/small --scans 2000 --points 5000
      many small ones: what a read costs beside the bytes
"""


def build(options: argparse.Namespace, place: Workplace) -> Scenario:
    data = prepare_scans(place, origin_of(options))
    scans = [str(scan) for scan in data.scans]
    contenders = (
        Contender("loose-files", "benchmarks.peers.loose_files:open_one_by_one", {"scans": scans}, SINGLE),
        Contender(
            "packed-dataset", "benchmarks.peers.packed_dataset:open_one_by_one", {"root": str(data.packed)}, SINGLE
        ),
    )
    return Scenario(
        title="single scans hot in the page cache, shuffled, read by number in one process",
        contenders=contenders,
        limits=memcpy_limits(data, 1, threads=(1,)),
        reference=contenders[0].name,
        data=data.to_json(),
        data_line=data.describe(),
        files=(*data.scans, *data.labels, *data.shards),
        hot=True,
        noun="scans",
    )


SCANS_SINGLE = Command("scans_single", __doc__, EXAMPLES, add_scan_options, build)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(SCANS_SINGLE, arguments)


if __name__ == "__main__":
    sys.exit(main())
