"""Write simulated LiDAR scans of made-up streets in the SemanticKITTI layout.

A rotating 64-beam LiDAR drives along streets with houses, fences, trees, poles, people, parked and moving
cars. Points have intensities, classes and instance numbers; sequences have poses and a calibration. The same
arguments give the same bytes, with any number of workers.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for those who load this file from elsewhere

from scan_simulator.write import POINTS_MAX, POINTS_MIN, SimulationError, simulate

__all__ = ["SimulationError", "main", "simulate"]

_EXAMPLES = """\
examples:
  simulate_scans.py /tmp/streets
      20 scans of about 30,000 points, sequence 00
  simulate_scans.py /tmp/streets --scans 200 --points 130000 --sequences 2
      100 scans each in sequences 00 (training) and 08 (validation), as dense as KITTI's
  simulate_scans.py /tmp/streets --scans 110 --sequences 11 --seed 7 --overwrite
      10 scans in each labelled sequence, other streets, in place of an earlier run's
"""


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=_EXAMPLES, formatter_class=raw)
    add = parser.add_argument
    add("out", type=Path, metavar="OUT", help="folder to write OUT/sequences/NN/... to; made if missing")
    add(
        "--scans",
        type=int,
        default=20,
        metavar="N",
        help="scans in all, spread evenly over the sequences, ten a second of driving (default: 20)",
    )
    add(
        "--points",
        type=int,
        default=30_000,
        metavar="P",
        help=f"points a scan has on average, {POINTS_MIN} to {POINTS_MAX} (default: 30000)",
    )
    add(
        "--sequences",
        type=int,
        default=1,
        metavar="S",
        help="sequences, 1 to 22; numbered 00, 08, 01, 02, ... so that two train and validate (default: 1)",
    )
    add("--seed", type=int, default=0, metavar="K", help="another number gives other streets (default: 0)")
    add("--workers", type=int, metavar="W", help="processes (default: the cores this process may use)")
    add("--overwrite", action="store_true", help="replace the files of an earlier run, and no others")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; its exit status: 0, or 1 if a file cannot be written (argparse exits with 2)."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    start = time.perf_counter()
    try:
        folders = simulate(**vars(asked))
    except SimulationError as error:
        parser.error(str(error))
    except OSError as error:
        print(f"{parser.prog}: error: {error}; what is in {asked.out} may be incomplete", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted; what is in {asked.out} is incomplete", file=sys.stderr)
        return 130
    print(_report(asked, folders, time.perf_counter() - start))
    return 0


def _report(asked: argparse.Namespace, folders: list[Path], seconds: float) -> str:
    """One line: what was written, where, and how fast."""
    names = ", ".join(folder.name for folder in folders)
    rate = 60 * asked.scans / seconds
    written = f"{asked.scans} scans of about {asked.points} points"
    return f"{asked.out}: {written} in sequences {names}; {seconds:.1f} s, {rate:.0f} scans a minute"


if __name__ == "__main__":
    sys.exit(main())
