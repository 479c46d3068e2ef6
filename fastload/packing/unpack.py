"""`fastload.unpack`: the source files of a packed dataset, byte for byte."""

from __future__ import annotations

import fnmatch
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fastload.errors import CorruptError, UsageError
from fastload.formats.registry import get_format
from fastload.packing.execute import ProgressCallback, ProgressCounter
from fastload.packing.report import UnpackReport
from fastload.store import fs
from fastload.store.attachments import read_attachments
from fastload.store.reader import Store, open_store


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
        lossy_ok: go on where the dataset says that something was changed when it was packed.
        progress: called with a `Progress` after each sample.

    Raises:
        DatasetNotFoundError, VersionError, CorruptError: the dataset cannot be read.
        UsageError: unknown split, no sample of such a name, `out` in use.
        ResourceError: the disk is full.
    """
    started = time.monotonic()
    root, out = Path(root), Path(out)
    store = open_store(root)
    if store.manifest.lossy and not lossy_ok:
        changed = "; ".join(store.manifest.lossy)
        raise UsageError(f"{root}: the source files do not come back as they were: {changed}; give lossy_ok to go on")
    numbers = _select(store, split, names)
    _check_output(out, overwrite=overwrite)
    fs.make_folder(out)
    base = Path(os.path.realpath(out))
    written = _Written()
    counter = ProgressCounter("unpack", len(numbers), store.manifest.source_bytes, progress)
    for number in numbers:
        before = written.bytes
        _unpack_sample(store, number, base, written)
        counter.add(written.bytes - before)
    attachments = 0
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


def _select(store: Store, split: str | None, names: Sequence[str] | None) -> Sequence[int]:
    manifest = store.manifest
    if split is not None and split not in manifest.splits:
        known = ", ".join(manifest.splits)
        raise UsageError(f"split {split!r}: {store.root} has the splits {known}; choose one of them")
    ranges = manifest.splits[split] if split is not None else ((0, manifest.samples),)
    if names is None:
        return [number for start, stop in ranges for number in range(start, stop)]
    numbers = list(_matching(store, ranges, names))
    if not numbers:
        first = store.names[0] if manifest.samples else ""
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
        raise UsageError(f"{out}: not empty; choose another folder, or give overwrite (--overwrite)")


def _unpack_sample(store: Store, number: int, base: Path, written: _Written) -> None:
    header = store.read_header(number)
    arrays = store.read(number)
    for file in header.files:
        parts = {part: arrays[field] for field, part in file.parts.items()}
        data = get_format(file.format).encode(parts)
        if len(data) != file.nbytes:
            raise CorruptError(
                f"{store.root}: sample {header.name}: {file.path} comes back as {len(data):,} bytes; expected"
                f" {file.nbytes:,}; the dataset is damaged, see fastload verify",
                sample=header.name,
            )
        _write(base, file.path, data, written)


def _write(base: Path, path: str, data: bytes | memoryview, written: _Written) -> None:
    target = safe_target(base, path)
    fs.make_folder(target.parent)
    if not Path(os.path.realpath(target.parent)).is_relative_to(base):
        raise CorruptError(f"{target}: a link leads out of {base}; remove it, or unpack into an empty folder")
    written.bytes += fs.write_atomic(target, [data], sync=False)
    written.files += 1


def safe_target(base: Path, path: str) -> Path:
    """Where `path` lies below `base`. Raises `CorruptError` for a path that would leave it."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise CorruptError(f"the dataset names a file {path!r} outside the folder it is unpacked into; not written")
    return base.joinpath(*parts)
