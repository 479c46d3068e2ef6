"""Packing scans, the whole command, against copying their files: both synced to the disk, sources warm."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness.command import main as run_command
from benchmarks.harness.contender import Contender
from benchmarks.harness.data import ScanData, origin_of, prepare_scans
from benchmarks.harness.limits import memcpy_limits
from benchmarks.harness.options import add_scan_options
from benchmarks.harness.scenario import Command, Scenario, Workplace

EXAMPLES = """\
  python benchmarks/packing.py /tmp/scans
      200 simulated scans of 120,000 points
  python benchmarks/packing.py /dev/shm/scans --rounds 15
      without a disk: what the work itself costs
"""


def build(options: argparse.Namespace, place: Workplace) -> Scenario:
    data = prepare_scans(place, origin_of(options))
    contenders = (_writer("cp+sync", "copy_tree", data), _writer("fastload-pack", "fastload_pack", data))
    return Scenario(
        title="packing scans against copying their files, both synced to the disk, sources warm",
        contenders=contenders,
        limits=memcpy_limits(data, 1, threads=(1,)),
        reference=contenders[0].name,
        data=data.to_json(),
        data_line=data.describe(),
        files=(*data.scans, *data.labels),
        hot=True,
        noun="scans",
    )


def _writer(name: str, peer: str, data: ScanData) -> Contender:
    options = {
        "source": str(data.source),
        "target": str(data.source.with_name(f"written-by-{name}")),
        "samples": len(data.scans),
        "nbytes": data.source_bytes,
    }
    return Contender(name, f"benchmarks.peers.{peer}:open_job", options)


PACKING = Command("packing", __doc__, EXAMPLES, add_scan_options, build)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(PACKING, arguments)


if __name__ == "__main__":
    sys.exit(main())
