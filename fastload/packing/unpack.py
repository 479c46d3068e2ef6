"""`fastload.unpack`: the source files of a packed dataset, byte for byte."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from fastload.errors import CorruptError, DatasetError, FastloadError, FormatError, UsageError
from fastload.formats.registry import FORMATS
from fastload.packing.execute import ProgressCallback, ProgressCounter
from fastload.packing.report import UnpackReport
from fastload.store import fs
from fastload.store.attachments import read_attachments
from fastload.store.reader import Store, open_store
from fastload.store.record import Header, StoredFile
from fastload.units import count_of, local_name


@dataclass
class _Written:
    files: int = 0
    bytes: int = 0


def unpack(
    root: str | Path,
    out: str | Path,
    *,
    split: str | None = None,
    names: Sequence[str] | None = None,
    overwrite: bool = False,
    lossy_ok: bool = False,
    progress: ProgressCallback | None = None,
) -> UnpackReport:
    """Write the source files of a packed dataset, identical to what was packed.

    Attachments (calib.txt, poses.txt, ...) are written too, unless `names` picks single samples.

    Args:
        root: the dataset's folder.
        out: the folder to write to; made where it is missing, refused when something is in it.
        split: only the samples of this split.
        names: only the samples whose name matches one of these patterns (`*` and `?` as in a shell).
        overwrite: write into a folder that is not empty, over files of the same names.
        lossy_ok: go on where the dataset says that something was changed when it was packed, or left out by a repair.
        progress: called with a `Progress` after each sample.

    Raises:
        DatasetNotFoundError, VersionError, CorruptError: the dataset cannot be read.
        UsageError: unknown split, no sample of such a name, `out` in use.
        ResourceError: the disk is full.

    Where it stops in the middle, what was written stays, and the error says so.
    """
    started = time.monotonic()
    root, out = Path(root), Path(out)
    store = open_store(root)
    if store.manifest.lossy and not lossy_ok:
        changed = "; ".join(store.manifest.lossy)
        raise UsageError(
            f"{root}: the source files do not come back as they were: {changed};"
            " give lossy_ok=True (--lossy-ok) to take them as they are stored"
        )
    numbers = _select(store, split, names)
    _check_output(out, overwrite=overwrite)
    fs.make_folder(out)
    base = Path(os.path.realpath(out))
    written = _Written()
    counter = ProgressCounter("unpack", len(numbers), store.manifest.source_bytes, progress)
    attachments = 0
    with _say_what_stays(out, written):
        for number in numbers:
            before = written.bytes
            _unpack_sample(store, number, base, written)
            counter.add(written.bytes - before)
        if names is None:
            for path, data in read_attachments(store):
                _write(base, path, data.data, written)
                attachments += 1
    return UnpackReport(
        root=os.fspath(root),
        out=os.fspath(out),
        samples=len(numbers),
        attachments=attachments,
        files=written.files,
        bytes=written.bytes,
        seconds=time.monotonic() - started,
    )


@contextlib.contextmanager
def _say_what_stays(out: Path, written: _Written) -> Iterator[None]:
    """Make an error in the middle say that what was written stays, and what that means for the next run."""
    try:
        yield
    except (FastloadError, OSError) as error:
        if not any(out.iterdir()):
            raise
        files = count_of(written.files, "file")
        stays = (
            f"what was written so far ({files}) stays in {out}: give overwrite=True (--overwrite) to let the next run"
            " write over it"
        )
        if isinstance(error, FastloadError):
            error.args = (f"{error}; {stays}", *error.args[1:])
            raise
        raise OSError(error.errno, f"{error.strerror or error}; {stays}", error.filename) from error


def _select(store: Store, split: str | None, names: Sequence[str] | None) -> Sequence[int]:
    manifest = store.manifest
    if split is not None and split not in manifest.splits:
        known = ", ".join(manifest.splits)
        raise UsageError(f"split {split!r}: {store.root} has the splits {known}; choose one of them")
    ranges = manifest.splits[split] if split is not None else manifest.kept
    if names is None:
        return [number for start, stop in ranges for number in range(start, min(stop, len(store.index)))]
    numbers = list(_matching(store, ranges, names))
    if not numbers:
        first = store.names[ranges[0][0]] if ranges else ""
        raise UsageError(f"no sample matches {', '.join(map(repr, names))}; names look like {first!r}")
    return numbers


def _matching(store: Store, ranges: Sequence[tuple[int, int]], patterns: Sequence[str]) -> Iterator[int]:
    for start, stop in ranges:
        for number in range(start, stop):
            if any(fnmatch.fnmatchcase(store.names[number], pattern) for pattern in patterns):
                yield number


def _check_output(out: Path, *, overwrite: bool) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out}: a file is there; choose another folder")
    if not overwrite and out.is_dir() and any(out.iterdir()):
        raise UsageError(f"{out}: not empty; choose another folder, or give overwrite=True (--overwrite)")


def _unpack_sample(store: Store, number: int, base: Path, written: _Written) -> None:
    header = store.read_header(number)
    arrays = store.read(number)
    for file in header.files:
        safe_target(base, local_name(file.path))
        data = _encode(store, header, file, arrays)
        if len(data) != file.nbytes:
            raise CorruptError(
                f"{store.root}: sample {header.name}: {file.path} comes back as {len(data):,} bytes; expected"
                f" {file.nbytes:,}; the dataset is damaged, see fastload verify",
                sample=header.name,
            )
        _write(base, file.path, data, written)


def _encode(store: Store, header: Header, file: StoredFile, arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """A source file's bytes, made of a sample's arrays."""
    file_format = FORMATS.get(file.format)
    where = f"{store.root}: sample {header.name}: {file.path}"
    if file_format is None:
        raise DatasetError(
            f"{where} has the format {file.format!r}, which this fastload does not know; install the version, or the"
            " package with the layout, that packed it"
        )
    parts = {part: arrays[field] for field, part in file.parts.items()}
    if sorted(parts) != sorted(file_format.parts):
        raise CorruptError(
            f"{where} is said to be made of {', '.join(parts)}; its format {file.format} takes"
            f" {', '.join(file_format.parts)}; the dataset is damaged, see fastload verify",
            sample=header.name,
        )
    try:
        return file_format.encode(parts)
    except FormatError as error:
        raise CorruptError(f"{where} cannot be made of its arrays ({error})", sample=header.name) from error


def _write(base: Path, path: str, data: bytes | memoryview, written: _Written) -> None:
    target = safe_target(base, local_name(path))
    _refuse_links(base, target.parent)
    fs.make_folder(target.parent)
    written.bytes += fs.write_atomic(target, [data], sync=False)
    written.files += 1


def _refuse_links(base: Path, folder: Path) -> None:
    """See that no link between `base` and `folder` leads out of `base`, before anything is made there."""
    for step in (folder, *folder.parents):
        if step == base:
            return
        if step.is_symlink() and not Path(os.path.realpath(step)).is_relative_to(base):
            raise CorruptError(f"{step}: a link that leads out of {base}; remove it, or unpack into an empty folder")


def is_safe_path(path: str) -> bool:
    """Whether a path from a dataset stays inside the folder that it is unpacked into."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path


def safe_target(base: Path, path: str) -> Path:
    """Where `path` lies below `base`. Raises `CorruptError` for a path that would leave it."""
    parts = PurePosixPath(path).parts
    if not is_safe_path(path):
        raise CorruptError(f"the dataset names a file {path!r} outside the folder it is unpacked into; not written")
    return base.joinpath(*parts)
