"""The page walk: where LMDB put each value, found by plain reads of the file with every bound checked.

LMDB's own code trusts what it maps: a flipped bit in a page can make it crash or count wrongly. Here every
page number, node and size is held against the file before it is used, and nothing is mapped.

The form (LMDB 0.9, data version 1, 64-bit little-endian; `lmdb.h`, `mdb.c`): pages 0 and 1 are meta pages,
the one with the higher transaction number counts. A page begins with its number (u8), padding (u2), flags
(u2), and lower and upper bounds of its free space (u2 each); then come u2 positions of its nodes. A node is
two u2 (low, high half of the data's size; on branch pages the child's page number with the flags as its
top), flags u2, key size u2, key, data. Data too large for a leaf lies on consecutive overflow pages; the
leaf then holds the first one's number, and the data begins 16 bytes into it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from fastload.store.record import DamageError

PAGE_HEADER = struct.Struct("<QHHHH")
_NODE = struct.Struct("<HHHH")
_META = struct.Struct("<IIQQ")
_DB = struct.Struct("<IHHQQQQQ")
_META_BYTES = PAGE_HEADER.size + _META.size + 2 * _DB.size + 16
_MAGIC = 0xBEEFC0DE
_DATA_VERSION = 1
_BRANCH, _LEAF, _OVERFLOW, _META_FLAG = 0x01, 0x02, 0x04, 0x08
_BIGDATA = 0x01
_NO_ROOT = 2**64 - 1
_MAX_DEPTH = 32
PAGE_SIZES = tuple(2**power for power in range(9, 17))


@dataclass(frozen=True)
class Entry:
    """A key and where its value lies in the file."""

    key: bytes
    offset: int
    nbytes: int


@dataclass(frozen=True)
class _Meta:
    page_size: int
    root: int
    last_page: int
    transaction: int
    entries: int


def walk(fd: int) -> Iterator[Entry]:
    """The entries of an LMDB file in key order.

    Args:
        fd: an open descriptor of the file; it is only read, at given positions.

    Raises:
        DamageError: the file is not an undamaged LMDB file of data version 1.
    """
    size = os.fstat(fd).st_size
    meta = _newest_meta(fd, size)
    if (meta.last_page + 1) * meta.page_size > size:
        pages = meta.last_page + 1
        raise _damage(f"{size:,} bytes", f"{pages:,} pages of {meta.page_size} bytes")
    count = 0
    last = b""
    seen: set[int] = set()
    if meta.root != _NO_ROOT:
        for entry in _walk_page(fd, meta, meta.root, 0, seen):
            if count and entry.key <= last:
                raise _damage("keys out of order", "ascending keys")
            count, last = count + 1, entry.key
            yield entry
    if count != meta.entries:
        raise _damage(f"{count} entries", f"{meta.entries} as the file itself says")


def read_map_size(fd: int) -> int | None:
    """The map size that the file was written with, which its meta pages keep; None where both are damaged."""
    for step in (0, *PAGE_SIZES):
        data = os.pread(fd, _META_BYTES, step)
        try:
            if _read_meta(data) is not None:
                return int(_META.unpack_from(data, PAGE_HEADER.size)[3])
        except DamageError:
            continue
    return None


def _newest_meta(fd: int, size: int) -> _Meta:
    first = _read_meta(os.pread(fd, _META_BYTES, 0))
    if first is not None:
        second = _read_meta(os.pread(fd, _META_BYTES, first.page_size))
    else:
        second = next(filter(None, (_read_meta(os.pread(fd, _META_BYTES, step)) for step in PAGE_SIZES)), None)
    metas = [meta for meta in (first, second) if meta is not None]
    if not metas:
        found = f"{size:,} bytes without an LMDB meta page" if size else "an empty file"
        raise _damage(found, f"an LMDB file of data version {_DATA_VERSION}")
    if len(metas) < 2 or metas[0].page_size != metas[1].page_size:
        # The one that is left may be that of an earlier commit: a smaller file that seems whole.
        raise _damage("a damaged meta page", "two meta pages of one page size")
    return max(metas, key=lambda meta: meta.transaction)


def _read_meta(data: bytes) -> _Meta | None:
    if len(data) < _META_BYTES:
        return None
    flags = PAGE_HEADER.unpack_from(data)[2]
    magic, version, _, _ = _META.unpack_from(data, PAGE_HEADER.size)
    if magic != _MAGIC or not flags & _META_FLAG:
        return None
    if version != _DATA_VERSION:
        raise _damage(f"LMDB data version {version}", f"{_DATA_VERSION} (py-lmdb 1.x to 3.x)")
    free = PAGE_HEADER.size + _META.size
    page_size = _DB.unpack_from(data, free)[0]
    main = _DB.unpack_from(data, free + _DB.size)
    last_page, transaction = struct.unpack_from("<QQ", data, free + 2 * _DB.size)
    if page_size not in PAGE_SIZES:
        return None
    return _Meta(page_size, main[7], last_page, transaction, main[6])


def _walk_page(fd: int, meta: _Meta, number: int, depth: int, seen: set[int]) -> Iterator[Entry]:
    if number in seen or depth > _MAX_DEPTH:
        raise _damage(f"page {number} reached twice or at depth {depth}", "a tree")
    seen.add(number)
    page = _read_page(fd, meta, number)
    flags, lower = PAGE_HEADER.unpack_from(page)[2:4]
    kind = flags & (_BRANCH | _LEAF | _OVERFLOW | _META_FLAG)
    if kind not in (_BRANCH, _LEAF) or not PAGE_HEADER.size <= lower <= meta.page_size or lower % 2:
        raise _damage(f"page {number} with flags {flags:#x} and lower bound {lower}", "a branch or leaf page")
    for position in struct.unpack_from(f"<{(lower - PAGE_HEADER.size) // 2}H", page, PAGE_HEADER.size):
        low, high, node_flags, key, data_start = _read_node(page, number, position)
        if kind == _BRANCH:
            yield from _walk_page(fd, meta, low | high << 16 | node_flags << 32, depth + 1, seen)
        else:
            yield _leaf_entry(fd, meta, page, number, (low | high << 16, node_flags, key, data_start))


def _read_node(page: bytes, number: int, position: int) -> tuple[int, int, int, bytes, int]:
    if position < PAGE_HEADER.size or position + _NODE.size > len(page):
        raise _damage(f"a node at {position} of page {number}", "one inside the page")
    low, high, flags, key_bytes = _NODE.unpack_from(page, position)
    start = position + _NODE.size
    if start + key_bytes > len(page):
        raise _damage(f"a key of {key_bytes} bytes at {position} of page {number}", "one inside the page")
    return low, high, flags, page[start : start + key_bytes], start + key_bytes


def _leaf_entry(fd: int, meta: _Meta, page: bytes, number: int, node: tuple[int, int, bytes, int]) -> Entry:
    nbytes, flags, key, start = node
    if flags == 0:
        if start + nbytes > len(page):
            raise _damage(f"{nbytes} bytes of data at {start} of page {number}", "data inside the page")
        return Entry(key, number * meta.page_size + start, nbytes)
    if flags != _BIGDATA or start + 8 > len(page):
        raise _damage(f"a node with flags {flags:#x} on page {number}", "plain data")
    first = int.from_bytes(page[start : start + 8], "little")
    pages = -(-(PAGE_HEADER.size + nbytes) // meta.page_size)
    if not 2 <= first <= first + pages - 1 <= meta.last_page:
        raise _damage(f"{nbytes} bytes from page {first} of {meta.last_page + 1}", "data inside the file")
    head = os.pread(fd, PAGE_HEADER.size, first * meta.page_size)
    if len(head) < PAGE_HEADER.size or head[:8] != page[start : start + 8] or head[10] & _OVERFLOW == 0:
        raise _damage(f"page {first} where data should begin", "an overflow page")
    if int.from_bytes(head[12:16], "little") < pages:
        raise _damage(f"{int.from_bytes(head[12:16], 'little')} overflow pages", f"{pages} for {nbytes} bytes")
    return Entry(key, first * meta.page_size + PAGE_HEADER.size, nbytes)


def _read_page(fd: int, meta: _Meta, number: int) -> bytes:
    if not 2 <= number <= meta.last_page:
        raise _damage(f"a pointer to page {number}", f"one of pages 2 to {meta.last_page}")
    page = os.pread(fd, meta.page_size, number * meta.page_size)
    if len(page) < meta.page_size or int.from_bytes(page[:8], "little") != number:
        raise _damage(f"page {number} cut short or with another number", "a whole page")
    return page


def _damage(found: str, expected: str) -> DamageError:
    return DamageError(found, expected, kind="pages")
