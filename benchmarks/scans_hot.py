"""Scans that are hot in the page cache, shuffled, delivered as batches of concatenated tensors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness.command import main as run_command
from benchmarks.harness.contender import Contender
from benchmarks.harness.data import ScanData, origin_of, prepare_scans
from benchmarks.harness.delivery import Delivery
from benchmarks.harness.limits import memcpy_limits
from benchmarks.harness.options import add_loader_options, add_scan_options
from benchmarks.harness.scenario import Command, Scenario, Workplace

BATCHES = Delivery(("points", "semantic", "instance"), "offset")
EXAMPLES = """\
  python benchmarks/scans_hot.py /tmp/scans
      200 simulated scans of 120,000 points, 0 and 2 workers
  python benchmarks/scans_hot.py /tmp/scans --only loose-files packed-dataset:0 --rounds 15 --json hot.json
      some of the contenders, more rounds
  python benchmarks/scans_hot.py /tmp/kitti --source /data/SemanticKITTI --scans 400 --workers 0,1,2,4
      scans of SemanticKITTI
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_scan_options(parser)
    add_loader_options(parser)


def contenders_of(data: ScanData, batch_size: int, workers: Sequence[int]) -> tuple[Contender, ...]:
    """Who loads these scans, with each number of workers."""
    scans, root = [str(scan) for scan in data.scans], str(data.packed)
    peers: dict[str, dict[str, Any]] = {"loose-files": {"scans": scans}, "packed-dataset": {"root": root}}
    return tuple(
        Contender(
            f"{name}:{count}",
            f"benchmarks.peers.{name.replace('-', '_')}:open_loader",
            {**where, "batch_size": batch_size, "workers": count},
            BATCHES,
        )
        for name, where in peers.items()
        for count in workers
    )


def build(options: argparse.Namespace, place: Workplace) -> Scenario:
    data = prepare_scans(place, origin_of(options))
    contenders = contenders_of(data, options.batch_size, options.workers)
    return Scenario(
        title=f"scans hot in the page cache, shuffled, batches of {options.batch_size} as concatenated tensors",
        contenders=contenders,
        limits=memcpy_limits(data, options.batch_size),
        reference=contenders[0].name,
        data=data.to_json(),
        data_line=data.describe(),
        files=(*data.scans, *data.labels, *data.shards),
        hot=True,
        settings={"batch_size": options.batch_size, "workers": list(options.workers)},
        noun="scans",
    )


SCANS_HOT = Command("scans_hot", __doc__, EXAMPLES, add_options, build)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(SCANS_HOT, arguments)


if __name__ == "__main__":
    sys.exit(main())
