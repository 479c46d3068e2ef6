"""The index: one fixed-width row a sample, enough to compute every field's place without reading the record.

`index.npy` is a one-dimensional structured array, little-endian:

- `offset` u8: where the record begins in its shard file
- `present` u8: one bit a field of the schema, set where the sample has it
- `header_xxh3` u8: the record header's checksum, which binds the row to this very record: a shard of
  another dataset with the same sizes and names does not pass for ours
- `shard` u4, `header_bytes` u4, `record_bytes` u4
- `rows_GROUP` u4 for each ragged group of the schema (points, boxes): its first dimension
- for fields kept as encoded bytes `bytes_FIELD` u4, and for images also `height_FIELD` u4, `width_FIELD` u4
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastload.schema import Field, Schema
from fastload.store.files import BlockEntry
from fastload.store.npy import RowFile, npy_header
from fastload.store.record import PREFIX_BYTES, DamageError, Header, Prefix, align

INDEX_FILE = "index.npy"
Rows = NDArray[np.void]
IMAGE_KINDS = ("image", "depth", "mask")
_MAX_U4 = 2**32 - 1


@dataclass(frozen=True)
class Place:
    """Where a field of a sample lies.

    Attributes:
        name: the field's name.
        offset: from the start of the record.
        nbytes: bytes as stored.
        dtype: of the values.
        shape: of the array.
    """

    name: str
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


def row_dtype(schema: Schema) -> np.dtype[np.void]:
    """The dtype of an index row for samples of this schema."""
    columns = [("offset", "<u8"), ("present", "<u8"), ("header_xxh3", "<u8")]
    columns += [(name, "<u4") for name in ("shard", "header_bytes", "record_bytes")]
    columns += [(f"rows_{group}", "<u4") for group in schema.row_groups]
    for field in schema:
        if field.kind != "array":
            columns.append((f"bytes_{field.name}", "<u4"))
        if field.kind in IMAGE_KINDS:
            columns += [(f"height_{field.name}", "<u4"), (f"width_{field.name}", "<u4")]
    return np.dtype(columns)


def make_row(schema: Schema, shard: int, offset: int, prefix: Prefix, header: Header) -> tuple[int, ...]:
    """The index row of a record.

    Raises:
        DamageError: a field that the schema does not have, or that is not as the schema says; a number that no
            column of the index holds.
    """
    values = dict.fromkeys(row_dtype(schema).names or (), 0)
    values.update(
        offset=offset,
        header_xxh3=prefix.header_xxh3,
        shard=shard,
        header_bytes=prefix.header_bytes,
        record_bytes=prefix.record_bytes,
    )
    bits = {name: bit for bit, name in enumerate(schema.names)}
    seen: dict[str, int] = {}
    last = -1
    for item in header.fields:
        bit = bits.get(item.name, -1)
        if bit <= last:
            raise DamageError("a field that the schema does not have there", "the schema's fields in order",
                              kind="header", field=item.name)  # fmt: skip
        last = bit
        values["present"] |= 1 << bit
        field = schema.fields[bit]
        if field.kind == "array":
            count = _row_count(field, item.dtype, item.shape)
            if field.rows is not None and seen.setdefault(field.rows, count) != count:
                raise DamageError(f"{count} rows", f"{seen[field.rows]} as in the other {field.rows} fields",
                                  kind="header", field=item.name)  # fmt: skip
        else:
            values[f"bytes_{field.name}"] = item.nbytes
        if field.kind in IMAGE_KINDS:
            values[f"height_{field.name}"] = _small(item.meta.get("height", 0), "height", field)
            values[f"width_{field.name}"] = _small(item.meta.get("width", 0), "width", field)
    values.update({f"rows_{group}": count for group, count in seen.items()})
    return tuple(values.values())


def _small(value: object, what: str, field: Field) -> int:
    """A number that a record says, once it fits a column of the index."""
    if type(value) is not int or not 0 <= value <= _MAX_U4:
        wanted = f"a whole number from 0 to {_MAX_U4:,}"
        raise DamageError(f"{what} {value!r:.40}", wanted, kind="header", field=field.name)
    return value


def _row_count(field: Field, dtype: str, shape: tuple[int, ...]) -> int:
    """The first dimension of a stored array (0 where its shape is fixed), once its form is the schema's."""
    count = shape[0] if field.rows is not None and shape else 0
    if dtype != field.dtype or shape != field.full_shape(count):
        wanted = f"{field.dtype} {field.full_shape(count)}"
        raise DamageError(f"{dtype} {shape}", f"{wanted} by the schema", kind="header", field=field.name)
    return _small(count, "a first dimension of", field)


def index_bytes(schema: Schema, samples: int) -> int:
    """The size of an index file."""
    dtype = row_dtype(schema)
    return len(npy_header(dtype, samples)) + samples * dtype.itemsize


def places(schema: Schema, row: np.void) -> Iterator[Place]:
    """Where each field that the sample has lies, in the record's order, computed from its row alone."""
    values = dict(zip(row.dtype.names or (), row.item(), strict=True))
    present = values["present"]
    position = PREFIX_BYTES + values["header_bytes"]
    body = position
    for bit, field in enumerate(schema.fields):
        if not present >> bit & 1:
            continue
        position = body + align(position - body)
        if field.kind == "array":
            count = values[f"rows_{field.rows}"] if field.rows is not None else 0
            nbytes = field.row_bytes * (count if field.rows is not None else 1)
            yield Place(field.name, position, nbytes, str(field.dtype), field.full_shape(count))
        else:
            nbytes = values[f"bytes_{field.name}"]
            yield Place(field.name, position, nbytes, "uint8", (nbytes,))
        position += nbytes


def index_chunks(schema: Schema, blocks: Iterable[Rows], total: int) -> Iterator[bytes]:
    """The bytes of the index file, of blocks of rows, `total` in all."""
    yield npy_header(row_dtype(schema), total)
    for block in blocks:
        yield block.tobytes()


def open_index(root: Path, schema: Schema, samples: int, entry: BlockEntry) -> RowFile:
    """The index: `samples` rows of `row_dtype(schema)`.

    Raises:
        CorruptError: missing, of another size than the manifest says, or of another form.
    """
    return RowFile(root, entry, row_dtype(schema), samples)
