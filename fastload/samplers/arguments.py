"""Arguments that samplers share, checked: an error names the argument that is wrong, and its value."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch.distributed

from fastload.errors import UsageError
from fastload.units import brief


@dataclass(frozen=True)
class World:
    """This process among those that share an order.

    Attributes:
        num_replicas: how many processes share the order.
        rank: this one's number among them.
        grouped: whether the number of processes came from torch's process group.
    """

    num_replicas: int
    rank: int
    grouped: bool

    @classmethod
    def of(cls, num_replicas: object, rank: object) -> World:
        """From the arguments; what is None from the process group; without one, rank 0 of 1.

        Raises:
            TypeError: an argument that is not an integer.
            UsageError: a number of ranks below 1, a rank outside it, or one that only the caller can know.
        """
        replicas = None if num_replicas is None else require_integer("num_replicas", num_replicas)
        if replicas is not None and replicas < 1:
            raise UsageError(f"num_replicas={replicas}: the number of ranks that share the samples is at least 1")
        number = None if rank is None else require_integer("rank", rank)
        if number is not None and number < 0:
            raise UsageError(f"rank={number}: ranks are counted from 0")
        in_group = has_group()
        total = replicas or (torch.distributed.get_world_size() if in_group else 1)
        if number is None:
            number = _rank_in_group(total, in_group)
        if number >= total:
            raise UsageError(f"rank={number}: {_where_from(replicas, total, in_group)}, so ranks are 0 to {total - 1}")
        return cls(total, number, grouped=replicas is None and in_group)


def has_group() -> bool:
    """Whether torch's default process group is there."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def require_integer(name: str, value: object) -> int:
    """`value` as a Python int, from any integer type but bool. Raises `TypeError` that names the argument."""
    if isinstance(value, bool):
        raise TypeError(f"{name}={value}: an integer is expected, not a bool")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name}={brief(value)}: an integer is expected, not {type(value).__name__}") from None


def require_seed(value: object) -> int:
    """A seed: any integer that torch takes for one."""
    seed = require_integer("seed", value)
    if not -(1 << 63) <= seed < 1 << 64:
        raise UsageError(f"seed={brief(seed)}: a seed is at least -2**63 and below 2**64")
    return seed


def require_epoch(value: object) -> int:
    """The number of an epoch, counted from 0."""
    epoch = require_integer("epoch", value)
    if not 0 <= epoch < 1 << 63:
        raise UsageError(f"epoch={brief(epoch)}: epochs are counted from 0, and are below 2**63")
    return epoch


def require_flag(name: str, value: Any) -> bool:
    """A yes or no; numpy's and 0 or 1 are taken too. Raises `TypeError` that names the argument."""
    if isinstance(value, str) or value not in (True, False):
        raise TypeError(f"{name}={brief(value)}: True or False is expected, not {type(value).__name__}")
    return bool(value)


def length_of(dataset: Any) -> int:
    """How many samples `dataset` has. Raises `TypeError` for one that cannot say."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise TypeError(
            f"dataset={brief(dataset)}: its samples cannot be counted ({error}); an order is made for a dataset with "
            "len(), not for an iterable one"
        ) from None


def _rank_in_group(total: int, in_group: bool) -> int:
    if in_group:
        return torch.distributed.get_rank()
    if total > 1:
        raise UsageError(
            f"rank=None with num_replicas={total}: there is no process group that says which rank this process is; "
            "give rank=, or call torch.distributed.init_process_group first"
        )
    return 0


def _where_from(replicas: int | None, total: int, in_group: bool) -> str:
    if replicas is not None:
        return f"num_replicas is {total}"
    if in_group:
        return f"the process group has {total}"
    return "num_replicas is not given and there is no process group"
