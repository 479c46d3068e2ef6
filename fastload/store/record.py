"""One sample's bytes inside a shard: prefix, header, fields.

::

    offset  size  what
    0       4     magic b"FLR1"
    4       2     version of the record's form, 1
    6       2     zero
    8       8     number of the sample (an attachment: its key, top bit set)
    16      4     header bytes H, with padding
    20      4     record bytes, all of it
    24      8     xxh3-64 of the H header bytes
    32      H     header: a msgpack map, then zeros
    32 + H        the body: the fields' bytes in schema order, zeros between them

All numbers are little-endian. A large LMDB value starts 16 bytes into a page, so H is chosen such that the
body starts at a multiple of 64 bytes of the file; every field starts at a multiple of 64 in the body. The
header's map:

- `name`: bytes; of a sample, or an attachment's path
- `split`: the sample's split ("" for an attachment)
- `fields`: a list of [name, dtype, shape, offset in the body, bytes, codec or nil, xxh3-64 (8 bytes,
  little-endian), meta map]
- `files`: a list of [path (bytes), format, {field: part}, bytes]: the source files that the fields give back
- `meta`: a map

Nothing in a record is trusted before its length has been held against the bytes that are there.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
import xxhash
from numpy.typing import NDArray

MAGIC = b"FLR1"
RECORD_VERSION = 1
PREFIX = struct.Struct("<4sHHQIIQ")
PREFIX_BYTES = PREFIX.size
ALIGNMENT = 64
VALUE_OFFSET = 16
"""LMDB's page header: a large value starts this many bytes into its first page."""
MAX_RECORD_BYTES = 2**32 - 1
"""LMDB keeps the size of a value in 32 bits."""
ATTACHMENT_BIT = 1 << 63
INFO_KEY = 2**64 - 1
"""Key of the record that says what dataset a shard belongs to."""
KEY_BYTES = 8
"""A record's key in LMDB: its number, big-endian."""

Buffer = bytes | bytearray | memoryview


class DamageError(ValueError):
    """Bytes that are not a whole record; whoever knows shard and path makes the user's error of it.

    Attributes:
        found: what is there.
        expected: what should be there.
        field: the field concerned, None where it is the record as a whole.
        kind: one word for programs: "prefix", "header", "checksum", "size", "index".
    """

    def __init__(self, found: str, expected: str, *, kind: str, field: str | None = None) -> None:
        super().__init__(f"{found}; expected {expected}")
        self.found, self.expected, self.kind, self.field = found, expected, kind, field


@dataclass(frozen=True)
class StoredField:
    """A field as it lies in a record.

    Attributes:
        name: the field's name.
        dtype: numpy name of the stored values; little-endian.
        shape: the array's shape.
        offset: where its bytes begin, from the start of the body.
        nbytes: how many bytes it takes as stored.
        codec: how the bytes are compressed; None: not at all.
        xxh3: xxh3-64 of the stored bytes.
        meta: more about it (height and width of an encoded image).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    codec: str | None
    xxh3: int
    meta: Mapping[str, Any] = field(default_factory=dict)

    def array(self, body: Buffer) -> NDArray[np.generic]:
        """The field's values as a view of the record's body."""
        count = math.prod(self.shape)
        if count == 0:
            return np.empty(self.shape, self.dtype)
        return np.frombuffer(body, np.dtype(self.dtype).newbyteorder("<"), count, self.offset).reshape(self.shape)


@dataclass(frozen=True)
class StoredFile:
    """A source file that can be given back from a record's fields.

    Attributes:
        path: relative to the source's root (non-UTF-8 bytes as surrogates).
        format: name of the format that encodes it.
        parts: for each field, which of the format's arrays it is.
        nbytes: the file's size.
    """

    path: str
    format: str
    parts: Mapping[str, str]
    nbytes: int


@dataclass(frozen=True)
class Header:
    """What a record says of itself."""

    name: str
    split: str
    fields: tuple[StoredField, ...]
    files: tuple[StoredFile, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Prefix:
    """The first 32 bytes of a record."""

    number: int
    header_bytes: int
    record_bytes: int
    header_xxh3: int


def align(offset: int) -> int:
    """The next multiple of 64 at or after `offset`."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def encode_record(
    number: int,
    name: str,
    arrays: Mapping[str, NDArray[np.generic]],
    *,
    split: str = "",
    files: Sequence[StoredFile] = (),
    field_meta: Mapping[str, Mapping[str, Any]] | None = None,
    meta: Mapping[str, Any] | None = None,
    buffer: bytearray | None = None,
) -> memoryview:
    """The bytes of a record whose fields are `arrays`, in their order.

    Args:
        number: the sample's number, or an attachment's key.
        name: the sample's name, or an attachment's path.
        arrays: each of any shape and any dtype of fixed size; stored little-endian, C order.
        split: the sample's split.
        files: the source files that the fields give back.
        field_meta: more about fields, by name.
        meta: more about the record.
        buffer: reused memory for the result, grown as needed; the result is a view of it.

    Raises:
        ValueError: the record would be larger than 4 GiB - 1.
    """
    if sum(array.nbytes for array in arrays.values()) > MAX_RECORD_BYTES:
        raise ValueError(_too_large(name, sum(array.nbytes for array in arrays.values())))
    plain = {key: as_stored(array) for key, array in arrays.items()}
    fields = _place(plain, field_meta or {})
    header = _encode_header(Header(name, split, fields, tuple(files), meta or {}))
    body_start = PREFIX_BYTES + len(header)
    size = body_start + (fields[-1].offset + fields[-1].nbytes if fields else 0)
    if size > MAX_RECORD_BYTES:
        raise ValueError(_too_large(name, size))
    out = bytearray() if buffer is None else buffer
    if len(out) < size:
        out.extend(bytes(size - len(out)))
    digest = xxhash.xxh3_64_intdigest(header)
    PREFIX.pack_into(out, 0, MAGIC, RECORD_VERSION, 0, number, len(header), size, digest)
    view = memoryview(out)[:size]
    view[PREFIX_BYTES:body_start] = header
    _fill_body(view[body_start:], fields, plain)
    return view


def as_stored(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """The array little-endian and in C order, itself where it is that already."""
    little = array.dtype.newbyteorder("<")
    # ascontiguousarray would give a 0-d array a dimension.
    return array.astype(little, order="C", copy=False) if array.ndim == 0 else np.ascontiguousarray(array, little)


def plain_bytes(array: NDArray[np.generic]) -> memoryview:
    """The bytes of a C-contiguous array of any shape, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def parse_prefix(data: Buffer) -> Prefix:
    """The prefix at the start of `data`. Raises `DamageError` for anything that is not one."""
    if len(data) < PREFIX_BYTES:
        raise DamageError(f"{len(data)} bytes", f"a record's prefix of {PREFIX_BYTES} bytes", kind="size")
    magic, version, zero, number, header_bytes, record_bytes, digest = PREFIX.unpack_from(data)
    if magic != MAGIC or zero:
        raise DamageError(f"a record that begins with {bytes(data[:8])!r}", f"{MAGIC!r}", kind="prefix")
    if version != RECORD_VERSION:
        raise DamageError(f"record version {version}", f"{RECORD_VERSION}", kind="prefix")
    if PREFIX_BYTES + header_bytes > record_bytes or (VALUE_OFFSET + PREFIX_BYTES + header_bytes) % ALIGNMENT:
        found = f"a header of {header_bytes} bytes in a record of {record_bytes}"
        raise DamageError(found, "a header that ends inside the record, at a multiple of 64", kind="prefix")
    return Prefix(number, header_bytes, record_bytes, digest)


def parse_header(prefix: Prefix, data: Buffer) -> Header:
    """The header in `data` (the bytes behind the prefix), its checksum and all lengths checked.

    Raises:
        DamageError: wrong checksum, wrong form, or a field that does not lie inside the record.
    """
    if xxhash.xxh3_64_intdigest(data) != prefix.header_xxh3:
        raise DamageError("a header whose checksum does not fit", "an undamaged header", kind="header")
    try:
        header = _decode_header(data)
    except Exception as error:  # what msgpack and numpy raise on bytes made to do harm is not documented
        raise DamageError(f"a header that cannot be read ({error})", "a record's header", kind="header") from error
    _check_places(prefix, header)
    return header


def check_body(header: Header, body: Buffer, only: Sequence[str] | None = None) -> None:
    """Hold the body's bytes against the header's checksums, and see that the gaps are zero.

    Args:
        header: the record's header.
        body: the bytes behind it.
        only: names of the fields to check; all by default.

    Raises:
        DamageError: naming the first field whose bytes are not what was written.
    """
    view = memoryview(body)
    end = 0
    for item in header.fields:
        if any(view[end : item.offset]):
            raise DamageError("bytes before the field that are not zero", "zeros", kind="checksum", field=item.name)
        end = item.offset + item.nbytes
        if only is None or item.name in only:
            check_field(item, view[item.offset : end])


def check_field(item: StoredField, data: Buffer) -> None:
    """Hold a field's stored bytes against its checksum. Raises `DamageError` naming the field."""
    found = xxhash.xxh3_64_intdigest(data)
    if found != item.xxh3:
        raise DamageError(f"checksum {found:016x}", f"{item.xxh3:016x}", kind="checksum", field=item.name)


def _too_large(name: str, size: int) -> str:
    return f"{name}: a record of {size:,} bytes; at most {MAX_RECORD_BYTES:,} fit in one"


def _place(arrays: Mapping[str, NDArray[np.generic]], meta: Mapping[str, Mapping[str, Any]]) -> tuple[StoredField, ...]:
    fields = []
    offset = 0
    for name, array in arrays.items():
        offset = align(offset)
        digest = xxhash.xxh3_64_intdigest(plain_bytes(array))
        fields.append(
            StoredField(name, array.dtype.name, array.shape, offset, array.nbytes, None, digest, meta.get(name, {}))
        )
        offset += array.nbytes
    return tuple(fields)


def _fill_body(body: memoryview, fields: Sequence[StoredField], arrays: Mapping[str, NDArray[np.generic]]) -> None:
    end = 0
    for item in fields:
        body[end : item.offset] = bytes(item.offset - end)
        end = item.offset + item.nbytes
        if item.nbytes:
            body[item.offset : end] = plain_bytes(arrays[item.name])


def _encode_header(header: Header) -> bytes:
    fields = [
        [f.name, f.dtype, list(f.shape), f.offset, f.nbytes, f.codec, f.xxh3.to_bytes(8, "little"), dict(f.meta)]
        for f in header.fields
    ]
    files = [[_to_bytes(f.path), f.format, dict(f.parts), f.nbytes] for f in header.files]
    values = {
        "name": _to_bytes(header.name),
        "split": header.split,
        "fields": fields,
        "files": files,
        "meta": dict(header.meta),
    }
    packed: bytes = msgpack.packb(values, use_bin_type=True, unicode_errors="surrogateescape")
    start = VALUE_OFFSET + PREFIX_BYTES
    return packed.ljust(align(start + len(packed)) - start, b"\0")


def _decode_header(data: Buffer) -> Header:
    unpacker = msgpack.Unpacker(
        raw=False, strict_map_key=True, unicode_errors="surrogateescape", max_buffer_size=max(len(data), 1)
    )
    unpacker.feed(data)
    values = unpacker.unpack()
    if not isinstance(values, dict) or any(data[unpacker.tell() :]):
        raise ValueError("not a map followed by zeros")
    fields = tuple(_decode_field(*item) for item in values["fields"])
    files = tuple(_decode_file(*item) for item in values["files"])
    if not isinstance(values["split"], str) or not isinstance(values["meta"], dict):
        raise TypeError("split or meta of a wrong type")
    header = Header(_to_text(values["name"]), values["split"], fields, files, values["meta"])
    known = {item.name for item in fields}
    if len(known) < len(fields) or not all(known.issuperset(file.parts) for file in files):
        raise ValueError("a field twice, or a file of fields that are not there")
    return header


def _decode_file(path: Any, form: Any, parts: Any, nbytes: Any) -> StoredFile:
    words = (form, *parts, *parts.values()) if isinstance(parts, dict) else (None,)
    if not all(isinstance(word, str) for word in words) or not _is_count(nbytes):
        raise TypeError(f"a file described by {form!r}, {parts!r}, {nbytes!r}")
    return StoredFile(_to_text(path), form, parts, nbytes)


def _decode_field(
    name: Any, dtype: Any, shape: Any, offset: Any, nbytes: Any, codec: Any, digest: Any, meta: Any
) -> StoredField:
    texts = all(isinstance(text, str) for text in (name, dtype, codec or ""))
    if not texts or not isinstance(shape, list) or not isinstance(digest, bytes) or not isinstance(meta, dict):
        raise TypeError(f"field {name!r} described by {dtype!r}, {shape!r}, {codec!r}")
    if not all(map(_is_count, (*shape, offset, nbytes))):
        raise ValueError(f"field {name!r} with shape {shape!r}, {nbytes!r} bytes at {offset!r}")
    if np.dtype(dtype).kind not in "biufc":
        raise ValueError(f"field {name!r} has dtype {dtype!r}")
    return StoredField(name, dtype, tuple(shape), offset, nbytes, codec, int.from_bytes(digest, "little"), meta)


def _check_places(prefix: Prefix, header: Header) -> None:
    """Every field inside the body, in order, and as large as its dtype and shape say."""
    room = prefix.record_bytes - PREFIX_BYTES - prefix.header_bytes
    end = 0
    for item in header.fields:
        if item.offset < end or item.offset % ALIGNMENT or item.offset + item.nbytes > room:
            found = f"{item.nbytes} bytes at offset {item.offset} of a body of {room}"
            raise DamageError(found, "a field inside the record, behind the one before", kind="header", field=item.name)
        end = item.offset + item.nbytes
        if item.codec is None and item.nbytes != np.dtype(item.dtype).itemsize * math.prod(item.shape):
            found = f"{item.nbytes} bytes for {item.dtype} {item.shape}"
            raise DamageError(found, "the bytes of that shape", kind="header", field=item.name)
    if end != room:
        raise DamageError(f"{room - end} bytes behind the last field", "none", kind="header")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _to_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
