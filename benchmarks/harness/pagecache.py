"""What of a file is in the page cache, and how to get it out of there."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

_CACHESTAT = 451
"""Its number on all architectures; Linux 6.5 and newer have it."""


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Stat(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


def cached_bytes(path: Path) -> int | None:
    """Bytes of the file's pages that are in the page cache; None where the kernel does not tell."""
    whole, found = _Range(0, 0), _Stat()  # a length of 0 means up to the end
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.syscall(_CACHESTAT, fd, ctypes.byref(whole), ctypes.byref(found), 0)
    finally:
        os.close(fd)
    return None if failed else int(found.cached) * os.sysconf("SC_PAGE_SIZE")


def cached_fraction(paths: Iterable[Path]) -> float | None:
    """The part of the files' pages that is in the page cache, 0 to 1; None where the kernel does not tell."""
    page = os.sysconf("SC_PAGE_SIZE")
    cached = total = 0
    for path in paths:
        found = cached_bytes(path)
        if found is None:
            return None
        cached += found
        total += -(-path.stat().st_size // page) * page
    return cached / total if total else 1.0


def drop_from_cache(path: Path) -> None:
    """Ask the kernel to forget the file's pages; those not yet written are written first, or they would stay."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
