"""What this machine allows: copying memory, reading the disk, decoding JPEGs. No contender, only the limits."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness.command import main as run_command
from benchmarks.harness.data import origin_of, prepare_scans
from benchmarks.harness.errors import UsageError
from benchmarks.harness.limits import decode_limit, disk_limit, memcpy_limits
from benchmarks.harness.options import add_scan_options
from benchmarks.harness.scenario import Command, Scenario, Workplace

BATCH_SIZE = 8
EXAMPLES = """\
  python benchmarks/machine_limits.py /tmp/scans
      with simulated scans, and made-up JPEGs where a decoder is installed
  python benchmarks/machine_limits.py /data/work --source /data/SemanticKITTI --images /data/imagenet/val/n01440764
      with files of your own
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_scan_options(parser)
    parser.add_argument(
        "--images", type=Path, metavar="FOLDER", help="JPEGs (*.jpg, *.jpeg, *.JPEG) to decode; by default made up"
    )


def build(options: argparse.Namespace, place: Workplace) -> Scenario:
    images = find_images(options.images)
    data = prepare_scans(place, origin_of(options))
    return Scenario(
        title="what this machine allows",
        contenders=(),
        limits=(*memcpy_limits(data, BATCH_SIZE), disk_limit(data.shards), decode_limit(images)),
        reference=None,
        data=data.to_json(),
        data_line=data.describe(),
        files=(*data.scans, *data.labels, *data.shards),
        settings={"images": None if options.images is None else str(options.images)},
    )


def find_images(folder: Path | None) -> tuple[Path, ...]:
    """The JPEGs right in a folder. Raises `UsageError` when there are none."""
    if folder is None:
        return ()
    found = sorted(path for path in folder.glob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not found:
        raise UsageError(f"--images {folder}: no JPEGs there; expected a folder with *.jpg or *.jpeg files")
    return tuple(found)


MACHINE_LIMITS = Command("machine_limits", __doc__, EXAMPLES, add_options, build)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(MACHINE_LIMITS, arguments)


if __name__ == "__main__":
    sys.exit(main())
