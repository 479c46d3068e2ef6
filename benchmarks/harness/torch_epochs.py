"""Epochs of torch's own DataLoader, for the peers that it loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class TorchEpochs:
    """A DataLoader whose workers live through all epochs, as a training run's would."""

    def __init__(
        self, dataset: Dataset[Any], collate: Callable[[list[Any]], Any], batch_size: int, workers: int
    ) -> None:
        self._order = torch.Generator()
        self._loader = DataLoader(
            dataset,
            batch_size=batch_size,
            shuffle=True,
            num_workers=workers,
            collate_fn=collate,
            generator=self._order,
            persistent_workers=workers > 0,
        )

    def epoch(self, seed: int) -> Iterator[Any]:
        """All samples once, in batches, shuffled by the seed."""
        self._order.manual_seed(seed)
        return iter(self._loader)


def shuffled(count: int, seed: int) -> list[int]:
    """The numbers below `count`, shuffled by the seed."""
    return [int(number) for number in np.random.default_rng(seed).permutation(count)]
