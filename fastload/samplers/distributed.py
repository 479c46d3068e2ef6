"""The order of a training on several ranks: torch's DistributedSampler, computed and resumable."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray

from fastload.errors import UsageError
from fastload.samplers.agreement import Agreement
from fastload.samplers.arguments import World, length_of, require_flag, require_seed
from fastload.samplers.permutation import Permutation
from fastload.samplers.state import Deal, ResumableOrder, Take


class DistributedSampler(ResumableOrder, torch.utils.data.DistributedSampler[int]):
    """Strided parts of one global order, which (seed, epoch) fix whatever the number of ranks.

    Takes torch's arguments and stands wherever torch's sampler is asked for. No list of the samples is made.
    Only the padding at the end repeats samples: those at the beginning of the epoch, as often as needed.

    In a process group, when `num_replicas` comes from it, the first pass compares seed, length, epoch, position,
    shuffle and drop_last of all ranks and raises a table of them on each where they differ. Without a group, or
    with `num_replicas` given, a difference cannot be seen: give every rank the same arguments.

    Args:
        dataset: anything with len().
        num_replicas: ranks that share the samples; None: from the process group, else 1.
        rank: this process's number; None: from the process group, else 0.
        shuffle: a new order each epoch; otherwise 0, 1, 2, ...
        seed: of the orders, equal on all ranks. None: rank 0's `torch.initial_seed()`, shared through the process
            group at the first pass; without a group this process's own.
        drop_last: cut the order's end so that it divides evenly, instead of padding it.

    Attributes:
        num_samples: samples of this rank in a whole epoch.
        total_size: samples of all ranks in a whole epoch, padding included.

    Raises:
        TypeError: an argument of a wrong type.
        UsageError: a wrong value.
    """

    num_samples: int
    total_size: int

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int | None = 0,
        drop_last: bool = False,
    ) -> None:
        world = World.of(num_replicas, rank)
        self._length = length_of(dataset)
        super().__init__(
            dataset,
            num_replicas=world.num_replicas,
            rank=world.rank,
            shuffle=require_flag("shuffle", shuffle),
            seed=seed if seed is None else require_seed(seed),  # type: ignore[arg-type]
            drop_last=require_flag("drop_last", drop_last),
        )
        self._own_seed: int | None = self.seed
        self._agreement = Agreement.begin() if world.grouped else None
        self._warn_of_nothing()

    def _warn_of_nothing(self) -> None:
        if self._length and not self.num_samples:
            warnings.warn(
                f"DistributedSampler: {self._length} samples for {self.num_replicas} ranks with drop_last=True leave "
                "nothing: every pass is empty. Use drop_last=False, or fewer ranks",
                UserWarning,
                stacklevel=3,
            )

    def _deal(self) -> Deal:
        return Deal(self.rank, self.num_replicas, self.drop_last)

    def _count(self) -> int:
        length = length_of(self.dataset)
        if length != self._length:
            raise UsageError(
                f"DistributedSampler: the dataset had {self._length} samples when the sampler was made, and has "
                f"{length} now; make a new sampler for it"
            )
        return length

    def _order_of(self, length: int, seed: int, epoch: int) -> Take:
        return Permutation(length, seed, epoch).take if self.shuffle else _as_they_are

    def _is_shuffled(self) -> bool:
        return self.shuffle

    def _find_seed(self) -> int | None:
        if self._own_seed is None and self._agreement is None:
            return torch.initial_seed()
        return self._own_seed

    def _settle_seed(self) -> int:
        if self._agreement is None:
            return torch.initial_seed() if self._own_seed is None else self._own_seed
        self._own_seed = self._agreement.settle_seed(self._own_seed)
        return self._own_seed

    def _adopt_seed(self, seed: int) -> None:
        if self.seed is not None and seed != self.seed:
            raise UsageError(
                f"state: seed is {seed}, but this DistributedSampler's is {self.seed}: the orders differ; make it with "
                f"seed={seed} on every rank"
            )
        self._own_seed = seed

    def _source(self) -> Any:
        return self.dataset


def _as_they_are(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    return positions
