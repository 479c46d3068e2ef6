"""Packing's reference: the source files copied by `cp` and brought to the disk."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from benchmarks.harness.contender import Amount, Job
from benchmarks.harness.delivery import Content, content_of
from benchmarks.peers.loose_files import open_one_by_one


def open_job(*, source: str, target: str, samples: int, nbytes: int) -> Job:
    """The job of copying the scans to a folder that is removed before each run."""
    return _Copy(source, target, Amount(samples, nbytes))


class _Copy(Job):
    def __init__(self, source: str, target: str, amount: Amount) -> None:
        self._source = source
        self._target = target
        self._amount = amount

    def prepare(self) -> None:
        remove(self._target)

    def run(self) -> Amount:
        # No reflink: a file system that shares blocks would copy nothing.
        subprocess.run(["cp", "-r", "--reflink=never", self._source, self._target], check=True)
        subprocess.run(["sync", "-f", self._target], check=True)
        return self._amount

    def finish(self) -> None:
        remove(self._target)

    def content(self) -> Content:
        scans = [str(scan) for scan in sorted(Path(self._target).glob("sequences/*/velodyne/*.bin"))]
        return content_of(open_one_by_one(scans=scans).epoch(0))


def remove(folder: str) -> None:
    """Remove a folder of an earlier run, for good: what is left to write would count in the next."""
    if Path(folder).exists():
        shutil.rmtree(folder)
    subprocess.run(["sync", "-f", str(Path(folder).parent)], check=True)
