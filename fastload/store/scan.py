"""Reading a shard as a file: its records, their contents, its digest. Plain reads only, nothing is mapped."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from fastload.schema import Schema
from fastload.store import pages
from fastload.store.files import read_at
from fastload.store.index import Rows, make_row, row_dtype
from fastload.store.record import (
    ATTACHMENT_BIT,
    INFO_KEY,
    KEY_BYTES,
    PREFIX_BYTES,
    DamageError,
    Header,
    Prefix,
    check_body,
    check_field,
    parse_header,
    parse_prefix,
)

_READ_BYTES = 4 << 20
_HEAD = struct.Struct("<QQ")
_HEAD_BYTES = 4096
"""Nearly every record's prefix and header are shorter: one read for both."""


@dataclass(frozen=True)
class ShardResult:
    """A published shard.

    Attributes:
        file: its path relative to the dataset's folder, with `/`.
        nbytes: its size.
        xxh3_128: digest of the whole file, hexadecimal.
        rows: (samples,) index rows, in order of the samples' numbers.
        names: the samples' names, in that order.
        points: how many points the samples have in all.
        attachments: how many attachments it holds.
        records_xxh3: digest of what is in it, wherever in the file: see `digest_records`.
    """

    file: str
    nbytes: int
    xxh3_128: str
    rows: Rows
    names: tuple[bytes, ...]
    points: int
    attachments: int
    records_xxh3: str


def scan_shard(root: Path, file: str, number: int, schema: Schema) -> ShardResult:
    """Index rows, names and digest of a shard, read from its file.

    Raises:
        DamageError: the file is not a whole shard of this schema.
    """
    dtype = row_dtype(schema)
    rows: list[tuple[int, ...]] = []
    names: list[bytes] = []
    attachments = 0
    heads: list[tuple[int, int]] = []
    with (root / file).open("rb", buffering=0) as opened:
        fd = opened.fileno()
        for key, offset, prefix, header in read_headers(fd):
            if key == INFO_KEY:
                continue
            heads.append((key, prefix.header_xxh3))
            if key & ATTACHMENT_BIT:
                attachments += 1
                continue
            rows.append(make_row(schema, number, offset, prefix, header))
            names.append(header.name.encode("utf-8", "surrogateescape"))
        digest = digest_file(fd)
        size = os.fstat(fd).st_size
    array = np.array(rows, dtype) if rows else np.empty(0, dtype)
    points = int(array["rows_points"].sum(dtype=np.int64)) if "rows_points" in (dtype.names or ()) else 0
    return ShardResult(file, size, digest, array, tuple(names), points, attachments, digest_records(heads))


def read_headers(fd: int) -> Iterator[tuple[int, int, Prefix, Header]]:
    """Key, file offset, prefix and header of each record of a shard, in key order.

    Raises:
        DamageError: damaged pages, prefixes or headers.
    """
    for entry in pages.walk(fd):
        yield int.from_bytes(entry.key, "big"), entry.offset, *read_head(fd, entry)


def read_head(fd: int, entry: pages.Entry) -> tuple[Prefix, Header]:
    """Prefix and header of one record.

    Raises:
        DamageError: damaged, or not the record of this key and size.
    """
    head = os.pread(fd, min(entry.nbytes, _HEAD_BYTES), entry.offset)
    prefix = parse_prefix(head)
    key = int.from_bytes(entry.key, "big")
    if len(entry.key) != KEY_BYTES or prefix.number != key or prefix.record_bytes != entry.nbytes:
        found = f"the record of number {prefix.number} with {prefix.record_bytes:,} bytes"
        raise DamageError(found, f"number {key} with {entry.nbytes:,} bytes", kind="prefix")
    end = PREFIX_BYTES + prefix.header_bytes
    if len(head) < end:
        head = read_at(fd, end, entry.offset)
    return prefix, parse_header(prefix, head[PREFIX_BYTES:end])


def check_contents(fd: int, entry: pages.Entry, prefix: Prefix, header: Header) -> list[DamageError]:
    """Hold the bytes behind a record's header against its checksums. Gives what is wrong, each field by itself."""
    start = PREFIX_BYTES + prefix.header_bytes
    body = memoryview(read_at(fd, entry.nbytes - start, entry.offset + start))
    if len(body) != entry.nbytes - start:
        return [DamageError(f"{len(body):,} bytes of data", f"{entry.nbytes - start:,}", kind="size")]
    found = []
    for item in header.fields:
        try:
            check_field(item, body[item.offset : item.offset + item.nbytes])
        except DamageError as error:
            found.append(error)
    try:
        check_body(header, body, only=())
    except DamageError as error:
        found.append(error)
    return found


def digest_records(heads: Iterable[tuple[int, int]]) -> str:
    """xxh3-64 of what a shard holds, hexadecimal: of key and header checksum of each record but the info record.

    The headers hold the checksums of the fields: so it is a digest of all contents, the same wherever in the file
    they lie, that can be told as long as the records' prefixes can be read.
    """
    return xxhash.xxh3_64_hexdigest(b"".join(_HEAD.pack(key, header_xxh3) for key, header_xxh3 in sorted(heads)))


def digest_file(fd: int) -> str:
    """xxh3-128 of a whole file, hexadecimal, by plain reads."""
    digest = xxhash.xxh3_128()
    buffer = bytearray(_READ_BYTES)
    position = 0
    while count := os.preadv(fd, [buffer], position):
        digest.update(memoryview(buffer)[:count])
        position += count
    return digest.hexdigest()
