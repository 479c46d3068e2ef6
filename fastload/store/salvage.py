"""Records found by their own marks, in a file whose pages cannot be trusted.

A record says what it is, how long it is, and what its header's checksum is. So each can be found by reading
the file from its beginning to its end, whatever LMDB's pages around it say.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from fastload.store import pages
from fastload.store.files import read_at
from fastload.store.record import (
    KEY_BYTES,
    MAGIC,
    PREFIX_BYTES,
    DamageError,
    Header,
    Prefix,
    parse_header,
    parse_prefix,
)

_CHUNK_BYTES = 4 << 20
_RETRY_BYTES = 64 << 10
_BUDGET = 8
"""Headers are checked up to this many times the file's size in all: marks made to do harm would claim far more."""


def find_records(fd: int) -> Iterator[tuple[pages.Entry, Prefix, Header]]:
    """Place, prefix and header of each record whose prefix and header are undamaged, in order of the file.

    What lies inside a record found is not looked at, so that data that resembles a record is not taken for
    one. A record may end behind the end of a file that was cut. LMDB may have left an older copy of a small
    one on a page that it no longer uses; both are given.
    """
    size = os.fstat(fd).st_size
    budget = _BUDGET * size
    base = position = 0
    while base < size and (data := _read_chunk(fd, base)):
        while (at := data.find(MAGIC, position - base)) >= 0:
            start = base + at
            position = start + 1
            try:
                prefix = parse_prefix(
                    data[at : at + PREFIX_BYTES] if at + PREFIX_BYTES <= len(data) else _head(fd, start)
                )
                budget -= prefix.header_bytes
                if budget < 0 or start + PREFIX_BYTES + prefix.header_bytes > size:
                    continue
                header = parse_header(prefix, read_at(fd, prefix.header_bytes, start + PREFIX_BYTES))
            except (DamageError, OSError):
                continue
            yield pages.Entry(prefix.number.to_bytes(KEY_BYTES, "big"), start, prefix.record_bytes), prefix, header
            position = start + prefix.record_bytes
        base = max(base + max(len(data) - len(MAGIC) + 1, 1), position)
        position = max(position, base)


def _head(fd: int, start: int) -> bytes:
    return os.pread(fd, PREFIX_BYTES, start)


def _read_chunk(fd: int, base: int) -> bytes:
    """Bytes of the file from `base` on; zeros where the disk does not give them."""
    try:
        return os.pread(fd, _CHUNK_BYTES, base)
    except OSError:
        try:
            return os.pread(fd, _RETRY_BYTES, base)
        except OSError:
            return bytes(_RETRY_BYTES)
