"""The memcpy limit: distinct files' bytes, held in memory, copied into a hot buffer that is used again and again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.contender import Amount, Job

Bytes = NDArray[np.uint8]
MAX_RESIDENT_BYTES = 1 << 30
"""More than any cache holds, and less than a machine that trains has free."""
LEAST_SECONDS = 0.2
"""A single pass over little data would measure how long threads take to start."""


def open_limit(*, files: Sequence[str], buffer_bytes: int, threads: int) -> Job:
    """The job of copying the files' bytes, each thread into a buffer of its own."""
    return _Copy(_load(files), buffer_bytes, threads)


def _load(files: Sequence[str]) -> list[Bytes]:
    arrays: list[Bytes] = []
    size = 0
    for file in files:
        if size >= MAX_RESIDENT_BYTES:
            break
        arrays.append(np.fromfile(Path(file), np.uint8))
        size += arrays[-1].nbytes
    return arrays


class _Copy(Job):
    def __init__(self, arrays: list[Bytes], buffer_bytes: int, threads: int) -> None:
        self._parts = [arrays[first::threads] for first in range(threads)]
        size = max(buffer_bytes, *(array.nbytes for array in arrays), 1)
        self._buffers = [np.ones(size, np.uint8) for _ in range(threads)]  # written, so that its pages are there
        self._pool = ThreadPoolExecutor(threads)
        self._threads = threads

    def run(self) -> Amount:
        end = time.perf_counter() + LEAST_SECONDS
        copied = list(self._pool.map(_copy_until, self._parts, self._buffers, [end] * self._threads))
        return Amount(samples=0, nbytes=sum(copied))

    def finish(self) -> None:
        self._pool.shutdown()


def _copy_until(arrays: Sequence[Bytes], buffer: Bytes, end: float) -> int:
    """Copy whole passes until the time has come; `np.copyto` lets other threads run. Gives the bytes."""
    copied = 0
    while arrays:
        copied += sum(_copy_once(arrays, buffer))
        if time.perf_counter() >= end:
            break
    return copied


def _copy_once(arrays: Sequence[Bytes], buffer: Bytes) -> Iterator[int]:
    at = 0
    for array in arrays:
        if at + array.nbytes > buffer.nbytes:
            at = 0
        np.copyto(buffer[at : at + array.nbytes], array)
        at += array.nbytes
        yield array.nbytes
