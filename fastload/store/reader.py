"""Reading samples: plain descriptors and `preadv` at recorded offsets, straight into fresh arrays.

A shard's size is checked when it is first opened; a record's header and checksums when it is first read; its
prefix, which holds the header's checksum, at every read. So a file that is missing, cut, damaged or
exchanged, also while it is in use, is an error that names it.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
import weakref
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload.errors import CorruptError
from fastload.store.advice import advise, advise_sample
from fastload.store.descriptors import TABLE
from fastload.store.files import OpenFile, explain_read_error
from fastload.store.index import Place, open_index, places
from fastload.store.manifest import Manifest, read_manifest
from fastload.store.names import Names, open_names
from fastload.store.npy import RowFile
from fastload.store.record import (
    PREFIX_BYTES,
    DamageError,
    Header,
    check_field,
    parse_header,
    parse_prefix,
    plain_bytes,
)

_MAX_GAP_BYTES = 4096
"""Fields this near to each other are read in one call, the bytes between into a scratch buffer."""
_MAX_BUFFERS = 512
"""Buffers a `preadv` call; the kernel takes 1,024."""
_NO_FILE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR)
Segment = tuple[int, Any]
"""A file offset relative to the record, and the writable buffer for the bytes there."""


class CheckedOnce:
    """One bit a sample: whether its checksums were verified in this process.

    A bit lost between two threads only means that a record is verified twice.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._bits = bytearray()  # made when the first sample was read, so that `samples` is no hostile number

    def __contains__(self, number: int) -> bool:
        return bool(self._bits) and bool(self._bits[number >> 3] >> (number & 7) & 1)

    def add(self, number: int) -> None:
        """Remember that the sample's checksums were verified."""
        if not self._bits:
            self._bits = bytearray(-(-self._samples // 8))
        self._bits[number >> 3] |= 1 << (number & 7)


class Store:
    """One packed dataset, opened for reading. Shared by all datasets of a process that read it.

    Attributes:
        root: the dataset's folder, links resolved.
        manifest: what `dataset.json` says.
        index: the index rows of all samples.
        names: the samples' names.

    Raises:
        CorruptError: index or names are missing or not as the manifest says.
    """

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self.root = root
        self.manifest = manifest
        self._key = (os.fspath(root), manifest.fingerprint)
        data, starts = manifest.names
        # All at once: after a pack to the same folder these would be the new one's files.
        self.index: RowFile = open_index(root, manifest.schema, manifest.numbers, manifest.index)
        self.names: Names = open_names(root, manifest.numbers, data, starts)
        self._paths = [os.path.join(root, shard.file) for shard in manifest.shards]
        weakref.finalize(self, _drop_files, self._key)

    def places(self, number: int) -> list[Place]:
        """Where each field that a sample has lies in its record.

        Raises:
            CorruptError: an index row that cannot be right.
        """
        return self._row(number)[1]

    def _row(self, number: int) -> tuple[np.void, list[Place]]:
        """A sample's index row and its fields' places, once they can be right."""
        row: np.void = self.index[number]
        found = list(places(self.manifest.schema, row))
        end = found[-1].offset + found[-1].nbytes if found else PREFIX_BYTES + int(row["header_bytes"])
        shard = int(row["shard"])
        room = self.manifest.shards[shard].bytes - int(row["offset"]) if shard < len(self.manifest.shards) else -1
        if end != int(row["record_bytes"]) or end > room:
            raise CorruptError(
                f"{self.root / self.manifest.index.file}: row {number} ({self.names[number]}) is damaged: shard"
                f" {shard}, offset {int(row['offset'])}, {int(row['record_bytes'])} bytes, fields that end at {end};"
                f" {advise(self.root / self.manifest.index.file)}",
                shard=self.manifest.index.file,
                sample=self.names[number],
            )
        return row, found

    def read(
        self, number: int, fields: Collection[str] | None = None, *, check: bool = True
    ) -> dict[str, NDArray[np.generic]]:
        """Fresh arrays of a sample's fields, in the schema's order; those that it lacks are absent.

        Args:
            number: the sample's number in the whole dataset.
            fields: names of the fields to read; all by default.
            check: verify header and checksums; where False only the prefix is looked at.

        Raises:
            CorruptError: shard missing, cut or exchanged, record damaged.
        """
        row, all_places = self._row(number)
        wanted = [place for place in all_places if fields is None or place.name in fields]
        arrays = {place.name: np.empty(place.shape, place.dtype) for place in wanted}
        head_bytes = PREFIX_BYTES + int(row["header_bytes"])
        beside = check or (bool(wanted) and wanted[0].offset - head_bytes <= _MAX_GAP_BYTES)
        head = bytearray(head_bytes if beside else PREFIX_BYTES)
        segments: list[Segment] = [(0, head), *((place.offset, arrays[place.name]) for place in wanted)]
        with self._shard_of(number, row) as fd:
            gaps = _read_segments(fd, int(row["offset"]), segments)
            header = self._check_head(number, row, head, check)
            if header is not None:
                _check_fields(header, all_places, arrays, gaps)
        return arrays

    def read_header(self, number: int) -> Header:
        """What a sample's record says of itself: source files, fields, checksums. Raises `CorruptError`."""
        row, _ = self._row(number)
        head = bytearray(PREFIX_BYTES + int(row["header_bytes"]))
        with self._shard_of(number, row) as fd:
            _read_segments(fd, int(row["offset"]), [(0, head)])
            header = self._check_head(number, row, head, True)
        if header is None:
            raise AssertionError("a whole head was asked for")
        return header

    @contextlib.contextmanager
    def _shard_of(self, number: int, row: np.void) -> Iterator[int]:
        """The open descriptor of a sample's shard; damage and read errors inside become the user's errors."""
        shard = int(row["shard"])
        file = self.open_shard(shard)
        try:
            yield file.fd
        except DamageError as error:
            # The file may be replaced by a sound one: the next read opens what is there then.
            TABLE.drop(lambda key: key == (*self._key, shard))
            raise self._corrupt(self.manifest.shards[shard].file, self.names[number], error) from error
        except OSError as error:
            path = self.root / self.manifest.shards[shard].file
            raise explain_read_error(error, path, f"sample {self.names[number]}") from error

    def close(self) -> None:
        """Let go of the open shard files; they are opened again when they are needed."""
        _drop_files(self._key)

    def open_shard(self, number: int) -> OpenFile:
        """The open file of shard `number`, its size checked. Raises `CorruptError` naming it."""
        shard = self.manifest.shards[number]
        path = self._paths[number]

        def check_size(file: OpenFile) -> None:
            size = file.size
            if size != shard.bytes:
                found = "cut short" if size < shard.bytes else "exchanged or rewritten"
                raise CorruptError(
                    f"{path}: {size:,} bytes; expected {shard.bytes:,} as dataset.json says: the shard was {found};"
                    f" {advise(Path(path))}",
                    shard=shard.file,
                )

        try:
            return TABLE.get((*self._key, number), path, check_size)
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            raise CorruptError(f"{path}: the shard is missing; {advise(Path(path))}", shard=shard.file) from error

    def _check_head(self, number: int, row: np.void, head: bytearray, whole: bool) -> Header | None:
        """Hold prefix (and, when `whole`, header and name) against the index row."""
        prefix = parse_prefix(head)
        for column, found, wanted in (
            ("number", prefix.number, number),
            ("header bytes", prefix.header_bytes, int(row["header_bytes"])),
            ("record bytes", prefix.record_bytes, int(row["record_bytes"])),
            ("header checksum", prefix.header_xxh3, int(row["header_xxh3"])),
        ):
            if found != wanted:
                raise DamageError(f"a record with {column} {found}", f"{wanted} by the index", kind="prefix")
        if not whole:
            return None
        header = parse_header(prefix, memoryview(head)[PREFIX_BYTES:])
        if header.name != self.names[number]:
            raise DamageError(f"the record of {header.name!r}", f"{self.names[number]!r} by names.bin", kind="header")
        return header

    def _corrupt(self, shard: str, sample: str, error: DamageError) -> CorruptError:
        field = f", field {error.field}" if error.field else ""
        return CorruptError(
            f"{self.root / shard}: sample {sample}{field}: {error.found}; expected {error.expected}; the file is"
            f" damaged or exchanged; {advise_sample(self.root)} (fastload verify lists them)",
            shard=shard,
            sample=sample,
            field=error.field,
        )


_STORES: weakref.WeakValueDictionary[tuple[str, str], Store] = weakref.WeakValueDictionary()
_STORES_LOCK = threading.Lock()


def open_store(root: Path) -> Store:
    """The store at `root`, one for all who read this dataset in this process, also through links.

    Raises:
        DatasetNotFoundError, VersionError, CorruptError: as `read_manifest`.
    """
    manifest = read_manifest(root)
    resolved = Path(os.path.realpath(root))
    key = (os.fspath(resolved), manifest.fingerprint)
    with _STORES_LOCK:
        store = _STORES.get(key)
        if store is None:
            store = _STORES[key] = Store(resolved, manifest)
    return store


def _after_fork() -> None:
    # Another thread of the parent may have held it at the moment of the fork.
    global _STORES_LOCK
    _STORES_LOCK = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _drop_files(store_key: tuple[str, str]) -> None:
    TABLE.drop(lambda key: isinstance(key, tuple) and key[:2] == store_key)


def _read_segments(fd: int, start: int, segments: Sequence[Segment]) -> list[tuple[int, bytearray]]:
    """Fill the segments' buffers from the file, those that lie together in one call.

    Gives the small gaps between them that were read on the way: (offset in the record, bytes).
    """
    gaps: list[tuple[int, bytearray]] = []
    run: list[Any] = []
    run_start = end = 0
    for offset, buffer in segments:
        gap = offset - end
        if run and (gap > _MAX_GAP_BYTES or len(run) >= _MAX_BUFFERS):
            _read_run(fd, start + run_start, run)
            run = []
        if not run:
            run_start = offset
        elif gap:
            gaps.append((end, bytearray(gap)))
            run.append(gaps[-1][1])
        view = plain_bytes(buffer) if isinstance(buffer, np.ndarray) else memoryview(buffer)
        if view.nbytes:
            run.append(view)
        end = offset + view.nbytes
    if run:
        _read_run(fd, start + run_start, run)
    return gaps


def _read_run(fd: int, offset: int, buffers: list[Any]) -> None:
    views = [memoryview(buffer) for buffer in buffers]
    while views:
        count = os.preadv(fd, views, offset)
        if count == 0:
            left = sum(view.nbytes for view in views)
            raise DamageError(f"nothing at byte {offset:,} and behind it", f"{left:,} bytes more", kind="size")
        offset += count
        while views and count >= views[0].nbytes:
            count -= views.pop(0).nbytes
        if count:
            views[0] = views[0][count:]


def _check_fields(
    header: Header,
    all_places: Sequence[Place],
    arrays: dict[str, NDArray[np.generic]],
    gaps: Sequence[tuple[int, bytearray]],
) -> None:
    """Hold what was read against the header: same fields at the same places, checksums, zeros between."""
    if [item.name for item in header.fields] != [place.name for place in all_places]:
        found = ", ".join(item.name for item in header.fields)
        raise DamageError(f"the fields {found}", ", ".join(place.name for place in all_places), kind="header")
    body = all_places[0].offset if all_places else 0
    for item, place in zip(header.fields, all_places, strict=True):
        if (item.offset + body, item.nbytes, item.shape, item.dtype) != (
            place.offset, place.nbytes, place.shape, place.dtype
        ):  # fmt: skip
            found = f"{item.dtype} {item.shape} at {item.offset + body}"
            wanted = f"{place.dtype} {place.shape} at {place.offset} by the index"
            raise DamageError(found, wanted, kind="header", field=item.name)
        if place.name in arrays:
            check_field(item, plain_bytes(arrays[place.name]))
    _check_gaps(all_places, gaps)


def _check_gaps(all_places: Sequence[Place], gaps: Sequence[tuple[int, bytearray]]) -> None:
    """The bytes between two fields that lie together are zero; a gap that holds an unread field is not looked at."""
    before = {place.offset: earlier.offset + earlier.nbytes for earlier, place in itertools.pairwise(all_places)}
    names = {place.offset: place.name for place in all_places}
    for start, gap in gaps:
        stop = start + len(gap)
        if before.get(stop) == start and any(gap):
            raise DamageError("padding before the field that is not zero", "zeros", kind="checksum", field=names[stop])
