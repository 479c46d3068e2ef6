"""The order of `shuffle=True` in one process: computed and resumable."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import torch
import torch.utils.data

from fastload.errors import UsageError
from fastload.samplers.arguments import length_of, require_seed
from fastload.samplers.permutation import Permutation
from fastload.samplers.state import Deal, ResumableOrder, Take
from fastload.units import brief


class ShuffleSampler(ResumableOrder, torch.utils.data.RandomSampler):
    """A new order of all samples each epoch: that of `DistributedSampler` on one rank, whose states it shares.

    Nothing is ever drawn from a generator: only the seed that it was given last is read, when a pass begins. Two
    passes of one epoch are equal, unlike those of torch's sampler: `set_epoch` or fastload.DataLoader moves on.

    Args:
        data_source: anything with len().
        seed: of the orders. None: that of `generator`, else `torch.initial_seed()`, or, once a state was loaded,
            the state's.
        generator: gives its seed, where `seed` is None.

    Raises:
        TypeError: an argument of a wrong type.
        UsageError: a wrong value.
    """

    generator: torch.Generator | None

    def __init__(self, data_source: Sized, seed: int | None = None, generator: torch.Generator | None = None) -> None:
        # torch's __init__ is not called: it refuses a dataset of 0 samples, whose passes are empty here.
        length_of(data_source)
        if not (generator is None or isinstance(generator, torch.Generator)):
            raise TypeError(f"generator={brief(generator)}: a torch.Generator is expected")
        self.data_source = data_source
        self.replacement = False
        self._num_samples: int | None = None
        self.generator = generator
        self.seed = None if seed is None else require_seed(seed)
        self._loaded_seed: int | None = None

    def _deal(self) -> Deal:
        return Deal(rank=0, num_replicas=1, drop_last=False)

    def _count(self) -> int:
        return length_of(self.data_source)

    def _order_of(self, length: int, seed: int, epoch: int) -> Take:
        return Permutation(length, seed, epoch).take

    def _is_shuffled(self) -> bool:
        return True

    def _given_seed(self) -> int | None:
        if self.seed is None and self.generator is not None:
            return self.generator.initial_seed()
        return self.seed

    def _find_seed(self) -> int:
        for seed in (self._given_seed(), self._loaded_seed):
            if seed is not None:
                return seed
        return torch.initial_seed()

    def _settle_seed(self) -> int:
        return self._find_seed()

    def _adopt_seed(self, seed: int) -> None:
        given = self._given_seed()
        if given is not None and seed != given:
            argument = f"seed={seed}" if self.seed is not None else f"a generator after manual_seed({seed})"
            raise UsageError(
                f"state: seed is {seed}, but this ShuffleSampler's is {given}: the orders differ; make it with "
                f"{argument}, or with neither seed nor generator"
            )
        self._loaded_seed = seed

    def _source(self) -> Any:
        return self.data_source
