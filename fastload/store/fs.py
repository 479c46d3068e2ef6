"""The one place that changes files: write, sync, rename, remove, make folders.

A file of a dataset appears under its name only when its bytes are on the disk: it is written beside under
a temporary name, synced, renamed, and the folder synced. (Leaving out the sync before the rename lost
data in most simulated power cuts on ext4.)
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

import xxhash

from fastload.errors import LockedError, ResourceError
from fastload.oserrors import raise_if_exhausted
from fastload.units import format_size

TEMP_PREFIX = ".tmp-"
"""Begins the name of every file that is still being written."""
MAX_NAME_BYTES = 255
_FULL = (errno.ENOSPC, errno.EDQUOT)
_COPY_BYTES = 4 << 20
_AMPLE_BYTES = 1 << 30
"""With so much space free, it is not the disk that was full."""
_CANNOT_SYNC_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
"""What network and FUSE file systems answer when asked to sync a folder."""


def temporary(path: Path) -> Path:
    """The name under which `path` is written before it is published, never too long for a file system."""
    name = TEMP_PREFIX + path.name
    if len(os.fsencode(name)) > MAX_NAME_BYTES:
        name = TEMP_PREFIX + xxhash.xxh3_128_hexdigest(os.fsencode(path.name))
    return path.with_name(name)


def make_folder(path: Path) -> None:
    """Make the folder and its parents. Raises `ResourceError` where the disk is full."""
    with explain_errors(path):
        path.mkdir(parents=True, exist_ok=True)


def publish(path: Path, temp: Path | None = None) -> None:
    """Give the finished temporary file of `path` its name: sync, rename, sync the folder."""
    temp = temp or temporary(path)
    with explain_errors(path):
        sync_file(temp)
        temp.replace(path)
        sync_folder(path.parent)


def set_aside(path: Path) -> Path | None:
    """Give what lies at `path` a second name that ends in `.damaged`. So a file can be replaced without being deleted.

    A folder is moved there. Gives that name; None where nothing lies at `path`.
    """
    if not path.is_symlink() and not path.exists():
        return None
    for number in itertools.count(1):
        aside = path.with_name(f"{path.name}.damaged" if number == 1 else f"{path.name}.damaged-{number}")
        if aside.is_symlink() or aside.exists():
            continue
        with explain_errors(path):
            try:
                os.link(path, aside, follow_symlinks=False)
            except FileExistsError:
                continue
            except OSError:
                if path.is_symlink() or not path.is_file():
                    path.rename(aside)
                else:  # a file system without links: a copy, so that at no instant nothing lies at `path`
                    _copy(path, aside)
            return aside
    raise AssertionError("the numbers never end")


def _copy(path: Path, to: Path) -> None:
    with path.open("rb") as source:
        write_atomic(to, iter(lambda: source.read(_COPY_BYTES), b""))


def write_atomic(
    path: Path, chunks: Iterable[bytes | memoryview], *, sync: bool = True, keep_temporary: bool = False
) -> int:
    """Write and publish a file; its old content stays until the new one is whole. Gives its size in bytes.

    With `sync=False` the name is still given only to a whole file, but a power cut may lose it: for the many
    small files of an unpacked dataset, which can be written again. With `keep_temporary` a failed write
    leaves the temporary file, cut as it is.
    """
    temp = temporary(path)
    with explain_errors(path), removed_on_failure(temp, keep=keep_temporary):
        size = _write_new(temp, chunks)
        if sync:
            publish(path)
        else:
            temp.replace(path)
    return size


def write_shared(path: Path, data: bytes) -> None:
    """Write a file that other processes may write at the same time: the last wins, whole.

    Not synced, as `write_atomic(sync=False)`. The temporary file's name is its own, and that of the file is no part
    of it: programs that look for files by a part of their names shall not find what a killed process left.
    """
    temp = path.with_name(TEMP_PREFIX + secrets.token_hex(16))
    with explain_errors(path), removed_on_failure(temp):
        _write_new(temp, [data])
        temp.replace(path)


def replace_keeping(path: Path, chunks: Iterable[bytes | memoryview], temp: Path) -> Path | None:
    """Write and publish a file; its old content keeps another name, which is given: see `set_aside`.

    Args:
        path: the file.
        chunks: its bytes.
        temp: the temporary file to write, in the same folder.
    """
    with explain_errors(path), removed_on_failure(temp):
        _write_new(temp, chunks)
        aside = set_aside(path)
        publish(path, temp)
    return aside


@contextlib.contextmanager
def removed_on_failure(temp: Path, *, keep: bool = False) -> Iterator[None]:
    """Remove the temporary file when what is done with it fails; `keep`: leave it."""
    try:
        yield
    except BaseException:
        if not keep:
            discard(temp)
        raise


def _write_new(temp: Path, chunks: Iterable[bytes | memoryview]) -> int:
    with os.fdopen(_open_new(temp), "wb") as file:
        return sum(file.write(chunk) for chunk in chunks)


def _open_new(path: Path) -> int:
    """A descriptor to write a file anew; never through a link that somebody left under its name."""
    if path.is_symlink():
        remove(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(path, flags, 0o666)


def sync_file(path: Path) -> None:
    """Wait until the file's bytes are on the disk."""
    with explain_errors(path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def sync_folder(path: Path) -> None:
    """Wait until the folder's names are on the disk, where the file system can tell."""
    with explain_errors(path):
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


def discard(path: Path) -> None:
    """Remove a file that another error has made useless; one that cannot be removed does not hide that error."""
    with contextlib.suppress(OSError):
        remove(path)


def remove_folder_if_empty(path: Path) -> None:
    """Remove the folder unless something is in it."""
    with contextlib.suppress(OSError):
        path.rmdir()


def free_bytes(path: Path) -> int | None:
    """Bytes that an ordinary user can still write where `path` is, or will be; None where unknown."""
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            disk = os.statvfs(folder)
            return disk.f_bavail * disk.f_frsize if disk.f_blocks else None  # ramfs and others say nothing
    return None


@contextlib.contextmanager
def lock_folder(path: Path) -> Iterator[None]:
    """Keep others from writing to the folder meanwhile.

    The lock is on the open folder itself: it leaves no file, and goes with the process that holds it. Where
    the file system has no such locks (some network ones), nothing is locked.

    Raises:
        LockedError: somebody else holds it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise _locked(path) from error
        if not _is_at(fd, path):  # removed, and perhaps made anew, by the one who held it until now
            raise _locked(path)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)  # a forked child may hold the same open folder
        os.close(fd)


def _locked(path: Path) -> LockedError:
    return LockedError(
        f"{path}: another fastload is writing to this folder; wait until it has finished, or end it, then run the"
        " command again"
    )


def _is_at(fd: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)


@contextlib.contextmanager
def explain_errors(path: Path, needed_bytes: int | None = None) -> Iterator[None]:
    """Make every error of the system name `path`; a full disk becomes a `ResourceError` with the free space."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise ResourceError(full_disk_message(path, needed_bytes, error.strerror)) from error
        raise_if_exhausted(error, path)
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def full_disk_message(path: Path, needed_bytes: int | None, cause: str | None) -> str:
    """What to tell the user when `path` could not be written for want of space."""
    free = free_bytes(path)
    needed = f"{format_size(needed_bytes)} needed, " if needed_bytes is not None else ""
    left = "unknown" if free is None else format_size(free)
    limit = ""
    if free is not None and free > (needed_bytes or _AMPLE_BYTES):
        limit = "; a quota, or a limit on the size of files (ulimit -f), may be in the way"
    return (
        f"{path}: no space to write it ({cause or 'disk full'}; {needed}{left} free on its disk){limit};"
        " free some space or choose another folder, then run the same command again"
    )
