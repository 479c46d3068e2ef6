"""`fastload.PackedDataset` through torch's DataLoader; also one by one, without a loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.harness.torch_epochs import TorchEpochs, shuffled
from fastload import PackedDataset

FIELDS = ("points", "semantic", "instance")


def open_loader(*, root: str, batch_size: int, workers: int) -> TorchEpochs:
    """Shuffled batches of the dataset's scans."""
    dataset = PackedDataset(root, fields=FIELDS)
    return TorchEpochs(dataset, dataset.collate, batch_size, workers)


class OneByOne:
    """Single scans, shuffled, read by the process itself."""

    def __init__(self, dataset: PackedDataset) -> None:
        self._dataset = dataset

    def epoch(self, seed: int) -> Iterator[dict[str, Any]]:
        """All scans once."""
        return (self._dataset[index] for index in shuffled(len(self._dataset), seed))


def open_one_by_one(*, root: str) -> OneByOne:
    """Single scans."""
    return OneByOne(PackedDataset(root, fields=FIELDS))
