"""What a shard's file still holds: each record sound, damaged or lost, whatever state the file is in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fastload.oserrors import raise_if_exhausted
from fastload.schema import Schema
from fastload.store import pages
from fastload.store.files import OpenFile
from fastload.store.identity import Identity
from fastload.store.index import make_row
from fastload.store.record import (
    ATTACHMENT_BIT,
    INFO_KEY,
    PREFIX_BYTES,
    DamageError,
    Header,
    Prefix,
    parse_prefix,
)
from fastload.store.salvage import find_records
from fastload.store.scan import check_contents, digest_file, digest_records, read_head
from fastload.units import count_of


class Sample(NamedTuple):
    """A sample whose header can be read: index row (its `shard` not set), name, split, size of its source files."""

    row: tuple[int, ...]
    name: bytes
    split: str
    source_bytes: int


class Damaged(NamedTuple):
    """A damaged record: the name where it can be read, and what is wrong."""

    name: str | None
    errors: tuple[DamageError, ...]


@dataclass
class Examined:
    """What a shard holds.

    Attributes:
        file: its path relative to the dataset's folder.
        nbytes: its size.
        xxh3_128: digest of the whole file as it is.
        pages_damage: what is wrong with LMDB's pages, None where they can be walked.
        identity: what it says of itself; None where that is damaged.
        places: where each record lies that can be read, by key.
        samples: the samples whose headers can be read, by number.
        attachments: sizes of the attachments whose headers can be read, by key.
        heads: the header checksum of each record whose prefix can be read, by key.
        damage: the damaged records, by key.
    """

    file: str
    nbytes: int
    xxh3_128: str
    pages_damage: DamageError | None = None
    identity: Identity | None = None
    places: dict[int, pages.Entry] = field(default_factory=dict)
    samples: dict[int, Sample] = field(default_factory=dict)
    attachments: dict[int, int] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)
    damage: dict[int, Damaged] = field(default_factory=dict)

    @property
    def records_xxh3(self) -> str:
        """Digest of what is in it, as `digest_records` gives it."""
        return digest_records((key, head) for key, head in self.heads.items() if key != INFO_KEY)

    def is_sound(self, key: int) -> bool:
        """Whether the record with this key is there, undamaged."""
        return key in self.places and key not in self.damage


def examine_shard(root: Path, file: str, schema: Schema, tell: Callable[[int], None] | None = None) -> Examined:
    """Read a shard from its first to its last record.

    Args:
        root: the dataset's folder.
        file: the shard's path relative to it.
        schema: the fields of the dataset's samples.
        tell: called with the size of each sample's record.

    Raises:
        FileNotFoundError: there is none.
        CorruptError: something else than a regular file.
        OSError: it cannot be opened.
    """
    return _Examiner(OpenFile(root / file), file, schema, tell).run()


def read_identity(root: Path, file: str) -> Identity | None:
    """What a shard says of itself; None where that cannot be read. Raises as `examine_shard`."""
    opened = OpenFile(root / file)
    return next(filter(None, _identities(opened.fd)), None)


def _identities(fd: int) -> Iterator[Identity | None]:
    try:
        for entry in pages.walk(fd):
            if int.from_bytes(entry.key, "big") == INFO_KEY:
                yield _identity(read_head(fd, entry)[1])
    except (DamageError, OSError) as error:
        _as_damage(error)
    for _, prefix, header in find_records(fd):
        if prefix.number == INFO_KEY:
            yield _identity(header)


class _Examiner:
    """Reads one shard: through its pages and, where those mislead, by the records' own marks."""

    def __init__(self, opened: OpenFile, file: str, schema: Schema, tell: Callable[[int], None] | None) -> None:
        self._file = opened  # open as long as it is read
        self._fd = opened.fd
        self._schema = schema
        self._tell = tell
        self._shard = Examined(file, opened.size, _digest(opened.fd))

    def run(self) -> Examined:
        shard = self._shard
        try:
            for entry in pages.walk(self._fd):
                self._read(entry)
        except (DamageError, OSError) as error:
            shard.pages_damage = _as_damage(error)
        unread = any(key not in shard.places for key in shard.damage)
        # Each shard ends with its info record: pages that do not lead to it may be those of an earlier commit.
        if shard.pages_damage is not None or shard.identity is None or unread:
            self._salvage()
        return shard

    def _read(self, entry: pages.Entry) -> None:
        key = int.from_bytes(entry.key, "big")
        try:
            self._take(key, entry, *read_head(self._fd, entry))
        except (DamageError, OSError) as error:
            self._shard.damage[key] = Damaged(None, (_as_damage(error),))
            with contextlib.suppress(DamageError, OSError):
                prefix = parse_prefix(os.pread(self._fd, PREFIX_BYTES, entry.offset))
                if prefix.number == key:
                    self._shard.heads[key] = prefix.header_xxh3

    def _salvage(self) -> None:
        """Look for the records that the pages did not lead to."""
        shard = self._shard
        lost: dict[int, list[tuple[pages.Entry, Prefix, Header]]] = {}
        for entry, prefix, header in find_records(self._fd):
            if prefix.number not in shard.places:
                lost.setdefault(prefix.number, []).append((entry, prefix, header))
        if lost and shard.pages_damage is None:
            found = f"pages that do not lead to {count_of(len(lost), 'record')} of the file"
            shard.pages_damage = DamageError(found, "pages that lead to all", kind="pages")
        for key, copies in lost.items():
            if len({prefix.header_xxh3 for _, prefix, _ in copies}) > 1:
                error = DamageError("two different records of this number", "one", kind="pages")
                shard.damage[key] = Damaged(None, (error,))
                continue
            for entry, prefix, header in copies:
                if not shard.is_sound(key):
                    shard.damage.pop(key, None)
                    self._take(key, entry, prefix, header)

    def _take(self, key: int, entry: pages.Entry, prefix: Prefix, header: Header) -> None:
        """Add a record to what its shard holds, with what is wrong with it."""
        shard = self._shard
        try:
            errors = check_contents(self._fd, entry, prefix, header)
        except OSError as error:
            errors = [_as_damage(error)]
        shard.heads[key] = prefix.header_xxh3
        try:
            self._sort_in(key, entry, prefix, header)
            shard.places[key] = entry
        except DamageError as error:
            errors.append(error)
        if errors:
            shard.damage[key] = Damaged(header.name, tuple(errors))

    def _sort_in(self, key: int, entry: pages.Entry, prefix: Prefix, header: Header) -> None:
        if key == INFO_KEY:
            self._shard.identity = _identity(header)
        elif key & ATTACHMENT_BIT:
            self._shard.attachments[key] = sum(item.nbytes for item in header.fields)
        else:
            row = make_row(self._schema, 0, entry.offset, prefix, header)
            name = header.name.encode("utf-8", "surrogateescape")
            source_bytes = sum(file.nbytes for file in header.files)
            self._shard.samples[key] = Sample(row, name, header.split, source_bytes)
            if self._tell is not None:
                self._tell(entry.nbytes)


def _digest(fd: int) -> str:
    """The digest of a file; "" where the disk does not give all of it."""
    try:
        return digest_file(fd)
    except OSError as error:
        _as_damage(error)
        return ""


def _as_damage(error: Exception) -> DamageError:
    """A read that the disk refused is damage like any other. Raises `ResourceError` where it is not the disk."""
    if isinstance(error, DamageError):
        return error
    if isinstance(error, OSError):
        raise_if_exhausted(error, "a shard")
    found = getattr(error, "strerror", None) or str(error)
    return DamageError(f"bytes that cannot be read ({found})", "a readable file", kind="unreadable")


def _identity(header: Header) -> Identity | None:
    try:
        return Identity.from_meta(header.meta)
    except DamageError:
        return None
