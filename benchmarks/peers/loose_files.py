"""Loose KITTI files through torch's DataLoader, as a good user writes it; also one by one, without a loader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from benchmarks.harness.data import label_of
from benchmarks.harness.torch_epochs import TorchEpochs, shuffled

Sample = dict[str, NDArray[Any]]


def read_scan(scan: Path) -> tuple[NDArray[np.float32], NDArray[np.uint32]]:
    """(N, 4) points of a scan, and its (N,) labels as they are stored."""
    return np.fromfile(scan, np.float32).reshape(-1, 4), np.fromfile(label_of(scan), np.uint32)


def split_labels(labels: NDArray[np.uint32]) -> Sample:
    """Class and instance, in the dtype that a packed dataset has them in."""
    return {"semantic": (labels & 0xFFFF).astype(np.uint16), "instance": (labels >> 16).astype(np.uint16)}


class LooseScans(Dataset[Sample]):
    """Scans and their labels, read from their files; labels as int32 at once, as uint16 would be converted later."""

    def __init__(self, scans: Sequence[str]) -> None:
        self._scans = [Path(scan) for scan in scans]

    def __len__(self) -> int:
        return len(self._scans)

    def __getitem__(self, index: int) -> Sample:
        points, labels = read_scan(self._scans[index])
        return {
            "points": points,
            "semantic": (labels & 0xFFFF).view(np.int32),
            "instance": (labels >> 16).view(np.int32),
        }


def join_scans(samples: list[Sample]) -> dict[str, torch.Tensor]:
    """Points and labels joined, and where each scan ends."""
    batch = {name: torch.cat([torch.from_numpy(sample[name]) for sample in samples]) for name in samples[0]}
    batch["offset"] = torch.tensor([len(sample["points"]) for sample in samples]).cumsum(0)
    return batch


def open_loader(*, scans: Sequence[str], batch_size: int, workers: int) -> TorchEpochs:
    """Shuffled batches of the scans."""
    return TorchEpochs(LooseScans(scans), join_scans, batch_size, workers)


class OneByOne:
    """Single scans, shuffled, read by the process itself."""

    def __init__(self, scans: Sequence[str]) -> None:
        self._scans = [Path(scan) for scan in scans]

    def epoch(self, seed: int) -> Iterator[Sample]:
        """All scans once."""
        for index in shuffled(len(self._scans), seed):
            points, labels = read_scan(self._scans[index])
            yield {"points": points, **split_labels(labels)}


def open_one_by_one(*, scans: Sequence[str]) -> OneByOne:
    """Single scans."""
    return OneByOne(scans)
