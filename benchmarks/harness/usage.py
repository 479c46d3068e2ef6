"""What a process and all its descendants use: CPU time and memory."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Memory:
    """Memory of a process tree, in bytes; None where the system does not say.

    Attributes:
        pss: proportional: pages that several processes share count in part in each, once in all.
        private: what would be given back if the tree ended.
    """

    pss: int | None
    private: int | None


def tree_cpu_s() -> float:
    """CPU seconds of this process and its descendants, ended ones that were waited for included."""
    waited = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    total = sum(usage.ru_utime + usage.ru_stime for usage in waited)
    for process in _descendants():
        try:
            total += sum(process.cpu_times()[:4])  # user and system, its own and those of its ended children
        except psutil.Error:  # it ended meanwhile
            continue
    return total


def tree_memory() -> Memory:
    """Memory of this process and its descendants."""
    pss = private = 0
    for process in (psutil.Process(), *_descendants()):
        try:
            info = process.memory_full_info()
        except psutil.AccessDenied:
            return Memory(None, None)
        except psutil.Error:
            continue
        pss += info.pss
        private += info.uss
    return Memory(pss, private)


def _descendants() -> Iterator[psutil.Process]:
    yield from psutil.Process().children(recursive=True)
