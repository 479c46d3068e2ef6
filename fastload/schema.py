"""The words of fastload as types: what a sample is made of, and what can be wrong with one. No I/O."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from fastload.errors import SchemaError
from fastload.units import printable

Kind = Literal["array", "image", "depth", "mask", "json", "bytes"]
KINDS: tuple[Kind, ...] = ("array", "image", "depth", "mask", "json", "bytes")
RESERVED_NAMES = frozenset({"name", "index", "offset", "batch_index", "length", "valid"})
"""Names that a sample or a batch carries beside its fields."""
MAX_FIELDS = 64
"""A sample's present fields are one bit each in a 64-bit column of the index."""
MAX_NAME_BYTES = 255
ROWS_POINTS = "points"
"""The row group of per-point fields: they share their first dimension N."""


@dataclass(frozen=True)
class Field:
    """One named array (or image, text, bytes) of a sample.

    Attributes:
        name: an identifier; none of `RESERVED_NAMES`.
        kind: `array`, `image`, `depth`, `mask`, `json` or `bytes`.
        dtype: numpy name of the stored values ("float32", "uint16", ...); None for kinds whose stored
            form is encoded bytes.
        shape: the fixed shape: of one row where `rows` is set, else of the whole field.
        rows: the ragged group that gives the first dimension: "points" for per-point fields, another
            word ("boxes") for another group, None for a fixed shape.
        columns: names of the entries of the last dimension, () where they have none.

    Raises:
        SchemaError: a name, kind, dtype or shape that is not allowed.
    """

    name: str
    kind: Kind = "array"
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    rows: str | None = None
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_name(self.name)
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        object.__setattr__(self, "columns", tuple(self.columns))
        if self.kind not in KINDS:
            raise SchemaError(f"field {self.name!r}: kind {self.kind!r} is not one of {', '.join(KINDS)}")
        if self.kind == "array":
            object.__setattr__(self, "dtype", _check_dtype(self.name, self.dtype))
        if any(n < 0 for n in self.shape):
            raise SchemaError(f"field {self.name!r}: shape {self.shape} has a negative dimension")
        if self.rows is not None and not self.rows.isidentifier():
            raise SchemaError(f"field {self.name!r}: rows={self.rows!r} is not an identifier such as 'points'")
        if self.columns and (not self.shape or len(self.columns) != self.shape[-1]):
            raise SchemaError(
                f"field {self.name!r}: {len(self.columns)} column names {self.columns} for shape {self.shape};"
                " one name for each entry of the last dimension is needed, or none"
            )

    @property
    def per_point(self) -> bool:
        """Whether the first dimension is the sample's number of points."""
        return self.rows == ROWS_POINTS

    def full_shape(self, count: int) -> tuple[int, ...]:
        """The array's shape when its row group has `count` rows."""
        return self.shape if self.rows is None else (count, *self.shape)

    @functools.cached_property
    def row_bytes(self) -> int:
        """Bytes of one row (of the whole field where it has no rows)."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))

    def to_json(self) -> dict[str, Any]:
        """The field as plain JSON values, as the manifest stores it."""
        values = dataclasses.asdict(self)
        return {**values, "shape": list(self.shape), "columns": list(self.columns)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Field:
        """The field that `to_json` described. Raises `SchemaError` for anything else."""
        known = {field.name for field in dataclasses.fields(cls)}
        try:
            return cls(**{key: value for key, value in values.items() if key in known})
        except (TypeError, ValueError, AttributeError) as error:
            raise SchemaError(f"not the description of a field: {values!r} ({error})") from error


@dataclass(frozen=True)
class Schema:
    """The fields of a dataset's samples, in the order in which they lie in a record.

    Attributes:
        fields: at most 64 `Field`s with different names.

    Raises:
        SchemaError: two fields of one name, or more than 64.
    """

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", tuple(self.fields))
        names = [field.name for field in self.fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SchemaError(f"field {twice[0]!r} appears {names.count(twice[0])} times; names must differ")
        if len(names) > MAX_FIELDS:
            raise SchemaError(f"{len(names)} fields; at most {MAX_FIELDS} are supported")

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __contains__(self, name: object) -> bool:
        return any(field.name == name for field in self.fields)

    def __getitem__(self, name: str) -> Field:
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(name)

    @property
    def names(self) -> tuple[str, ...]:
        """The fields' names, in order."""
        return tuple(field.name for field in self.fields)

    @functools.cached_property
    def row_groups(self) -> tuple[str, ...]:
        """The names of the ragged groups, in order of first use."""
        return tuple(dict.fromkeys(field.rows for field in self.fields if field.rows is not None))

    def to_json(self) -> list[dict[str, Any]]:
        """The schema as plain JSON values."""
        return [field.to_json() for field in self.fields]

    @classmethod
    def from_json(cls, values: Any) -> Schema:
        """The schema that `to_json` described. Raises `SchemaError` for anything else."""
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise SchemaError(f"a schema is a list of fields, found {values!r}")
        return cls(tuple(Field.from_json(value) for value in values))


@dataclass(frozen=True)
class Problem:
    """One bad thing: where it is, what was found, what was expected and what to do.

    Attributes:
        path: the file, relative to the source or the dataset; None where no single file is meant.
        sample: name of the sample, where one is known.
        field: name of the field, where one is known.
        found: what is there.
        expected: what should be there.
        fix: what to do about it.
        kind: one word for programs ("checksum", "missing", "size", ...); "" where none fits.
        shard: file of the packed dataset, for damage found there.
        index: the sample's number in the dataset, for damage found there.
    """

    path: str | None
    sample: str | None
    field: str | None
    found: str
    expected: str
    fix: str
    kind: str = ""
    shard: str | None = None
    index: int | None = None

    def __str__(self) -> str:
        where = [self.path or self.shard or ""]
        if self.sample is not None and self.sample not in where[0]:
            where.append(f"sample {self.sample}")
        if self.field is not None:
            where.append(f"field {self.field}")
        place = ", ".join(part for part in where if part)
        text = f"{place}: {self.found}" if place else self.found
        text += f"; expected {self.expected}" if self.expected else ""
        return printable(f"{text}; {self.fix}" if self.fix else text)

    def to_json(self) -> dict[str, Any]:
        """The problem as plain JSON values."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class SampleInfo:
    """What is known of a sample without reading its data.

    Attributes:
        name: its name.
        index: its number in this dataset object.
        split: the split that it belongs to.
        number: its number in the whole packed dataset.
        shard: the shard file that holds it, relative to the dataset's folder.
        nbytes: bytes of its record.
        points: how many points it has; None where none of its fields has points.
        fields: shape of each field that it has.
    """

    name: str
    index: int
    split: str
    number: int
    shard: str
    nbytes: int
    points: int | None
    fields: Mapping[str, tuple[int, ...]]

    def to_json(self) -> dict[str, Any]:
        """The information as plain JSON values."""
        return {**dataclasses.asdict(self), "fields": {name: list(shape) for name, shape in self.fields.items()}}


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.isidentifier():
        raise SchemaError(f"field name {name!r} is not an identifier (letters, digits, _; no digit first)")
    if name in RESERVED_NAMES:
        reserved = ", ".join(sorted(RESERVED_NAMES))
        raise SchemaError(f"field name {name!r} is reserved ({reserved}); choose another")
    if len(name.encode("utf-8", "surrogateescape")) > MAX_NAME_BYTES:
        raise SchemaError(f"field name {name[:20]!r}... is longer than {MAX_NAME_BYTES} bytes")


def _check_dtype(name: str, dtype: object) -> str:
    """The canonical name of a storable dtype: numbers and bools of fixed size, never objects or text."""
    if dtype is None:
        raise SchemaError(f"field {name!r}: an array needs a dtype, such as 'float32'")
    try:
        found = np.dtype(cast(Any, dtype))
    except TypeError as error:
        raise SchemaError(f"field {name!r}: {dtype!r} is not a numpy dtype ({error})") from error
    if found.kind not in "biufc" or found.itemsize > 16:
        raise SchemaError(f"field {name!r}: dtype {found} cannot be stored; numbers and bools can")
    return str(found.newbyteorder("=").name)
