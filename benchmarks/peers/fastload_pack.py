"""`fastload pack`, the whole command: start of Python, checksums, fsync."""

from __future__ import annotations

import subprocess

from benchmarks.harness.contender import Amount, Job
from benchmarks.harness.data import PACK
from benchmarks.harness.delivery import Content, content_of
from benchmarks.peers.copy_tree import remove
from benchmarks.peers.packed_dataset import FIELDS, open_one_by_one


def open_job(*, source: str, target: str, samples: int, nbytes: int) -> Job:
    """The job of packing the scans to a folder that is removed before each run."""
    return _Pack(source, target, Amount(samples, nbytes))


class _Pack(Job):
    def __init__(self, source: str, target: str, amount: Amount) -> None:
        self._source = source
        self._target = target
        self._amount = amount

    def prepare(self) -> None:
        remove(self._target)

    def run(self) -> Amount:
        subprocess.run([*PACK, self._source, self._target, "--quiet"], check=True)
        return self._amount

    def finish(self) -> None:
        remove(self._target)

    def content(self) -> Content:
        samples = open_one_by_one(root=self._target).epoch(0)
        return content_of({name: sample[name] for name in FIELDS} for sample in samples)
