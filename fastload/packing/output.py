"""The folder that a dataset is packed into: what may be written over, and what is left alone.

A folder is fastload's to write to when it is new or empty, when it holds a dataset (to be replaced on request),
or when a pack was begun there and not finished. The last is told by the temporary file of the manifest: it is
the first thing written, and goes only by becoming the manifest.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from fastload.errors import ResourceError, UsageError
from fastload.store import fs
from fastload.store.index import INDEX_FILE
from fastload.store.manifest import MANIFEST_FILE, is_manifest
from fastload.store.names import NAMES_FILE, STARTS_FILE
from fastload.store.shard import SHARDS_FOLDER, is_shard_name
from fastload.units import format_size

_FILES = (INDEX_FILE, NAMES_FILE, STARTS_FILE)


def check_output(out: Path, *, overwrite: bool) -> None:
    """Refuse a folder that is not fastload's to write to, or whose dataset is not to be replaced.

    Raises:
        UsageError: naming what is there.
    """
    with fs.explain_errors(out):
        _check_output(out, overwrite=overwrite)


def _check_output(out: Path, *, overwrite: bool) -> None:
    if out.is_symlink() and not out.exists():
        raise UsageError(f"{out}: a link to something that is not there; remove it, or choose another folder")
    if not out.exists():
        return
    if not out.is_dir():
        raise UsageError(f"{out}: a file is there; choose another folder for the dataset")
    if (out / MANIFEST_FILE).exists():
        if not is_manifest(out):
            raise UsageError(
                f"{out}: its {MANIFEST_FILE} is not fastload's, or is damaged; choose another folder, or empty this one"
            )
        if not overwrite:
            raise UsageError(
                f"{out}: a packed dataset is there already; add overwrite=True (--overwrite) to replace it"
            )
        return
    if _is_unfinished(out):
        return
    first = next(iter(sorted(path.name for path in out.iterdir())), None)
    if first is not None:
        raise UsageError(
            f"{out}: not empty ({first!r} is there), and no pack was begun in it; choose a new or empty folder"
        )


@contextlib.contextmanager
def claim_output(out: Path) -> Iterator[None]:
    """Hold the folder, made where it is missing, for one pack; others are refused meanwhile.

    Raises:
        LockedError: another pack is writing to it.
    """
    made = not out.exists()
    fs.make_folder(out)
    with fs.lock_folder(out):
        try:
            yield
        finally:
            if made:
                fs.remove_folder_if_empty(out)


def check_space(out: Path, needed_bytes: int) -> None:
    """Refuse a pack that cannot fit, before anything is written or removed.

    What a dataset that is there already takes counts as free, since it will be removed first; not so files
    with several names, which stay. Only what surely cannot fit is refused: headers are left out of account.

    Raises:
        ResourceError: with the bytes needed and free.
    """
    free = fs.free_bytes(out)
    if free is None:
        return
    old = [path.stat() for path in _our_files(out)]
    room = free + sum(status.st_size for status in old if status.st_nlink == 1)
    if room < needed_bytes:
        raise ResourceError(
            f"{out}: no space to write it ({format_size(needed_bytes)} needed, {format_size(room)} free on its disk);"
            " free some space or choose another folder, then run the same command again"
        )


def clear_output(out: Path) -> None:
    """Remove what a pack wrote, and nothing else; of a dataset the manifest goes first, so that it ends at once.

    The mark of an unfinished pack stays: see `begin` and `abandon`.
    """
    fs.remove(out / MANIFEST_FILE)
    fs.sync_folder(out)
    for path in _our_files(out):
        fs.remove(path)
    fs.remove_folder_if_empty(out / SHARDS_FOLDER)


def begin(out: Path) -> None:
    """Mark the folder as one in which a pack has begun, and clear what an earlier one left."""
    mark = fs.temporary(out / MANIFEST_FILE)
    _check_writable(out)
    with fs.explain_errors(mark):
        mark.touch()
        fs.sync_folder(out)
    clear_output(out)
    fs.make_folder(out / SHARDS_FOLDER)


def _check_writable(out: Path) -> None:
    """See that all of an old dataset can be removed before any of it is. Raises `PermissionError`."""
    for folder in (out, out / SHARDS_FOLDER):
        if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(folder))


def abandon(out: Path) -> None:
    """Remove all that the pack wrote, its mark last."""
    clear_output(out)
    fs.remove(fs.temporary(out / MANIFEST_FILE))


def _is_unfinished(out: Path) -> bool:
    return fs.temporary(out / MANIFEST_FILE).exists()


def _our_files(out: Path) -> list[Path]:
    """The files of a dataset or of an unfinished pack, but for manifest and mark."""
    named = [path for file in _FILES for path in (out / file, fs.temporary(out / file))]
    shards = out / SHARDS_FOLDER
    if shards.is_dir():
        named += [path for path in shards.iterdir() if is_shard_name(path.name.removeprefix(fs.TEMP_PREFIX))]
    return [path for path in named if path.is_file()]
