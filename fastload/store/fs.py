"""The one place that changes files: write, sync, rename, remove, make folders.

A file of a dataset appears under its name only when its bytes are on the disk: it is written beside under
a temporary name, synced, renamed, and the folder synced. (Leaving out the sync before the rename lost
data in most simulated power cuts on ext4.)
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from fastload.errors import ResourceError
from fastload.units import format_size

TEMP_PREFIX = ".tmp-"
"""Begins the name of every file that is still being written."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CANNOT_SYNC_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
"""What network and FUSE file systems answer when asked to sync a folder."""


def temporary(path: Path) -> Path:
    """The name under which `path` is written before it is published."""
    return path.with_name(TEMP_PREFIX + path.name)


def make_folder(path: Path) -> None:
    """Make the folder and its parents. Raises `ResourceError` where the disk is full."""
    with explain_full_disk(path):
        path.mkdir(parents=True, exist_ok=True)


def publish(path: Path) -> None:
    """Give the finished temporary file of `path` its name: sync, rename, sync the folder."""
    with explain_full_disk(path):
        sync_file(temporary(path))
        temporary(path).replace(path)
        sync_folder(path.parent)


def write_atomic(path: Path, chunks: Iterable[bytes | memoryview], *, sync: bool = True) -> int:
    """Write and publish a file; its old content stays until the new one is whole. Gives its size in bytes.

    With `sync=False` the name is still given only to a whole file, but a power cut may lose it: for the many
    small files of an unpacked dataset, which can be written again.
    """
    temp = temporary(path)
    size = 0
    with explain_full_disk(path):
        try:
            with temp.open("wb") as file:
                for chunk in chunks:
                    size += file.write(chunk)
        except BaseException:
            remove(temp)
            raise
    if sync:
        publish(path)
    else:
        temp.replace(path)
    return size


def sync_file(path: Path) -> None:
    """Wait until the file's bytes are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(path: Path) -> None:
    """Wait until the folder's names are on the disk, where the file system can tell."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC_FOLDERS:
            raise
    finally:
        os.close(fd)


def remove(path: Path) -> None:
    """Remove the file where it exists."""
    path.unlink(missing_ok=True)


def remove_folder_if_empty(path: Path) -> None:
    """Remove the folder unless something is in it."""
    with contextlib.suppress(OSError):
        path.rmdir()


def free_bytes(path: Path) -> int | None:
    """Bytes that an ordinary user can still write where `path` is, or will be; None where unknown."""
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            disk = os.statvfs(folder)
            return disk.f_bavail * disk.f_frsize
    return None


@contextlib.contextmanager
def explain_full_disk(path: Path, needed_bytes: int | None = None) -> Iterator[None]:
    """Turn "no space left" and "over quota" into a `ResourceError` that names path, need and free space."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise ResourceError(full_disk_message(path, needed_bytes, error.strerror)) from error


def full_disk_message(path: Path, needed_bytes: int | None, cause: str | None) -> str:
    """What to tell the user when `path` could not be written for want of space."""
    free = free_bytes(path)
    needed = f"{format_size(needed_bytes)} needed, " if needed_bytes is not None else ""
    left = "unknown" if free is None else format_size(free)
    return (
        f"{path}: no space to write it ({cause or 'disk full'}; {needed}{left} free on its disk);"
        " free some space or choose another folder, then run the same command again"
    )
