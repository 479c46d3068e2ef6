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


def find_records(fd: int) -> Iterator[tuple[pages.Entry, Prefix, Header]]:
    """Place, prefix and header of each record whose prefix and header are undamaged, in order of the file.

    What lies inside a record found is not looked at, so that data that resembles a record is not taken for
    one. A record may end behind the end of a file that was cut. LMDB may have left an older copy of a small
    one on a page that it no longer uses; both are given.
    """
    size = os.fstat(fd).st_size
    base = position = 0
    while base < size and (data := os.pread(fd, _CHUNK_BYTES, base)):
        while (at := data.find(MAGIC, position - base)) >= 0:
            start = base + at
            found = _read_head(fd, start, size)
            position = start + 1
            if found is not None:
                prefix, header = found
                key = prefix.number.to_bytes(KEY_BYTES, "big")
                yield pages.Entry(key, start, prefix.record_bytes), prefix, header
                position = start + prefix.record_bytes
        base = max(base + max(len(data) - len(MAGIC) + 1, 1), position)
        position = max(position, base)


def _read_head(fd: int, start: int, size: int) -> tuple[Prefix, Header] | None:
    try:
        prefix = parse_prefix(os.pread(fd, PREFIX_BYTES, start))
        if start + PREFIX_BYTES + prefix.header_bytes > size:
            return None
        return prefix, parse_header(prefix, read_at(fd, prefix.header_bytes, start + PREFIX_BYTES))
    except DamageError:
        return None
