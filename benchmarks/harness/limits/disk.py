"""The disk limit: files read from start to end, past the page cache where the file system allows it."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.harness.contender import Amount, Job
from benchmarks.harness.errors import Unavailable
from benchmarks.harness.pagecache import cached_fraction, drop_from_cache

BLOCK_BYTES = 4 << 20
MAX_BYTES = 2 << 30
"""Enough to measure a disk; all of a large dataset would take a round minutes."""
COLD_FRACTION = 0.01
"""Up to this part of the pages in the cache a file counts as cold: the kernel keeps one that is in use."""


def open_limit(*, files: Sequence[str], queue_depth: int = 4, direct: bool | None = None) -> Job:
    """The job of reading the files in blocks of 4 MiB, so many at a time.

    Args:
        files: paths.
        queue_depth: how many blocks are asked for at a time.
        direct: whether to read with `O_DIRECT`; None: where the file system allows it. Otherwise the files are put
            out of the page cache before each run.
    """
    paths = [Path(file) for file in files]
    if direct is None:
        direct = bool(paths) and _allows_direct(paths[0])
    blocks = _blocks(paths)
    if not blocks:
        raise Unavailable("there is nothing to read")
    return _Read(blocks, queue_depth, direct)


def _blocks(paths: Sequence[Path]) -> list[tuple[Path, int]]:
    every = [(path, offset) for path in paths for offset in range(0, path.stat().st_size, BLOCK_BYTES)]
    return every[: MAX_BYTES // BLOCK_BYTES]


def _allows_direct(path: Path) -> bool:
    """Whether a read with `O_DIRECT` works: some file systems refuse at opening, some at reading."""
    with mmap.mmap(-1, BLOCK_BYTES) as buffer:
        try:
            _read_block(path, 0, buffer, os.O_DIRECT)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return False
            raise
    return True


def _read_block(path: Path, offset: int, buffer: mmap.mmap, flags: int) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        return os.preadv(fd, [buffer], offset)
    finally:
        os.close(fd)


class _Read(Job):
    def __init__(self, blocks: Sequence[tuple[Path, int]], queue_depth: int, direct: bool) -> None:
        self._blocks = blocks
        self._files = sorted({path for path, _ in blocks})
        self._flags = os.O_DIRECT if direct else 0
        self._pool = ThreadPoolExecutor(queue_depth)
        self._queue_depth = queue_depth
        self._own = threading.local()
        self._cached: float | None = None
        for path in self._files:
            _sync(path)

    def prepare(self) -> None:
        """Put the files out of the page cache, if they would be read through it."""
        if self._flags:
            return
        for path in self._files:
            drop_from_cache(path)
        self._cached = cached_fraction(self._files)

    def run(self) -> Amount:
        sizes = list(self._pool.map(self._read, self._blocks))
        return Amount(samples=0, nbytes=sum(sizes))

    def notes(self) -> Mapping[str, str]:
        how = "O_DIRECT" if self._flags else "buffered after POSIX_FADV_DONTNEED"
        return {"how": f"{how}, blocks of 4 MiB, queue depth {self._queue_depth}", "cold": self._describe_cold()}

    def finish(self) -> None:
        self._pool.shutdown()

    def _describe_cold(self) -> str:
        if self._flags:
            return "yes: the page cache plays no part"
        if self._cached is None:
            return "unknown: the kernel has no cachestat(2)"
        if self._cached <= COLD_FRACTION:
            return "yes: confirmed by cachestat(2)"
        return f"no: {self._cached:.0%} of the pages stayed in the page cache"

    def _read(self, block: tuple[Path, int]) -> int:
        if not hasattr(self._own, "buffer"):
            self._own.buffer = mmap.mmap(-1, BLOCK_BYTES)  # begins at a page, as O_DIRECT needs it
        return _read_block(*block, self._own.buffer, self._flags)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)
