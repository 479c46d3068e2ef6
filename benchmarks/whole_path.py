"""Time the whole path on simulated scans: packing against copying, reading against loose files.

    python benchmarks/whole_path.py WORK_FOLDER [--scans 200] [--points 120000] [--rounds 7]

Rounds are interleaved: each does every job once, so that what else the machine does falls on all of them.
Prints best and median of the rounds, and each job's ratio to its reference. Files are warm.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import fastload

Job = Callable[[], object]


def copy_tree(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-r", "--reflink=never", str(source), str(target)], check=True)
    subprocess.run(["sync", "-f", str(target)], check=True)


def pack_tree(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "fastload", "pack", str(source), str(target), "--quiet"], check=True)


def read_packed(dataset: fastload.PackedDataset, order: list[int]) -> None:
    for index in order:
        dataset[index]


def read_loose(files: list[Path], order: list[int]) -> None:
    """What a loader over the source files does: read, take the two halves of each label apart."""
    for index in order:
        np.fromfile(files[index], "<f4").reshape(-1, 4)
        label = np.fromfile(files[index].parents[1] / "labels" / f"{files[index].stem}.label", "<u4")
        (label & 0xFFFF).astype(np.uint16), (label >> 16).astype(np.uint16)


def interleave(jobs: dict[str, Job], rounds: int) -> dict[str, list[float]]:
    """Seconds of each job in each round; a round before them warms caches and is left out."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(rounds + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def table(seconds: dict[str, list[float]], nbytes: int, reference: str) -> str:
    lines = []
    base = statistics.median(seconds[reference])
    for name, times in seconds.items():
        best, median = min(times), statistics.median(times)
        lines.append(
            f"{name:<28} median {nbytes / median / 1e9:6.2f} GB/s  best {nbytes / best / 1e9:6.2f}"
            f"  {base / median:5.2f} x {reference}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--scans", type=int, default=200)
    parser.add_argument("--points", type=int, default=120_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    work: Path = options.work
    source, packed = work / "source", work / "packed"
    if not source.exists():
        simulator = Path(__file__).parents[1] / "tools/simulate_scans.py"
        amounts = ["--scans", str(options.scans), "--points", str(options.points), "--sequences", "2"]
        subprocess.run([sys.executable, str(simulator), str(source), *amounts], check=True)
    packing: dict[str, Job] = {
        "cp + sync": lambda: copy_tree(source, work / "copy"),
        "fastload pack": lambda: pack_tree(source, packed),
    }
    written = interleave(packing, options.rounds)
    dataset = fastload.PackedDataset(packed)
    files = [source / f"{name}.bin" for name in dataset.names]
    order = np.random.default_rng(0).permutation(len(files)).tolist()
    reading: dict[str, Job] = {
        "loose files": lambda: read_loose(files, order),
        "PackedDataset": lambda: read_packed(dataset, order),
    }
    read = interleave(reading, options.rounds)
    nbytes = fastload.info(packed).source_bytes
    print(f"{len(files)} scans, {nbytes / 1e6:.0f} MB, {options.rounds} rounds")
    print(table(written, nbytes, "cp + sync"))
    print(table(read, nbytes, "loose files"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
