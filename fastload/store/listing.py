"""What is known of each sample of a packed dataset without reading its data: from names and index alone."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fastload.errors import UsageError
from fastload.schema import Field, SampleInfo
from fastload.store.index import row_dtype
from fastload.store.manifest import Manifest
from fastload.store.reader import Store, open_store
from fastload.store.record import PREFIX_BYTES, align

_BLOCK_SAMPLES = 4096
"""Samples whose names and index rows are read at once: some 400 kB."""
_HIDDEN = frozenset({"Cc", "Cf", "Zl", "Zp"})
"""Unicode's categories of characters that end a line, steer a terminal, turn the direction of text, or show nothing."""
_PLACE_COLUMNS = ("present", "shard", "offset", "header_bytes", "record_bytes")


class SplitRange(NamedTuple):
    """Samples [start, stop) of the whole dataset, which belong to one split."""

    start: int
    stop: int
    split: str


def list_samples(root: str | Path, split: str | None = None) -> Iterator[SampleInfo]:
    """What is known of the samples of a split (of all by default), in the order of their numbers.

    Names and index are read in blocks as the samples are asked for: neither is ever in memory as a whole.
    `SampleInfo.index` counts the samples that are listed, as a `PackedDataset` of that split does.

    Raises:
        DatasetNotFoundError, VersionError: at once; the dataset cannot be read.
        UsageError: at once; there is no such split.
        CorruptError: at once, or on the way; names or index are damaged.
    """
    store = open_store(Path(root))
    return _infos(store, ranges_of(store, split))


def list_names(root: str | Path, split: str | None = None) -> Iterator[str]:
    """The names of the same samples in the same order; ten times as fast. Raises as `list_samples`."""
    store = open_store(Path(root))
    return _names(store, ranges_of(store, split))


def sample_info(store: Store, number: int, index: int) -> SampleInfo:
    """What is known of sample `number` of the whole dataset, which has the number `index` where it was asked for.

    Raises:
        CorruptError: its index row cannot be right.
    """
    splits = store.manifest.splits
    split = next(split for split, parts in splits.items() if any(start <= number < stop for start, stop in parts))
    return next(_infos(store, [SplitRange(number, number + 1, split)], index))


def ranges_of(store: Store, split: str | None) -> list[SplitRange]:
    """The samples of a split, or of all splits, in the order of their numbers.

    The splits' ranges say which samples there are: a number that is in none of them was left out.

    Raises:
        UsageError: there is no such split.
    """
    if split is not None and split not in store.manifest.splits:
        known = ", ".join(map(one_line, store.manifest.splits)) or "none"
        raise UsageError(f"split {split!r}: {store.root} has the splits {known}; choose one of them")
    return [part for part in _all_ranges(store.manifest) if split in (None, part.split)]


def _all_ranges(manifest: Manifest) -> list[SplitRange]:
    return sorted(SplitRange(*part, split) for split, parts in manifest.splits.items() for part in parts)


def _blocks(ranges: Sequence[SplitRange]) -> Iterator[SplitRange]:
    for start, stop, split in ranges:
        for first in range(start, stop, _BLOCK_SAMPLES):
            yield SplitRange(first, min(first + _BLOCK_SAMPLES, stop), split)


def _names(store: Store, ranges: Sequence[SplitRange]) -> Iterator[str]:
    for start, stop, _ in _blocks(ranges):
        yield from store.names.read(start, stop)


def _infos(store: Store, ranges: Sequence[SplitRange], first_index: int = 0) -> Iterator[SampleInfo]:
    shape_of = _Shapes(store)
    shards = [shard.file for shard in store.manifest.shards]
    index = first_index
    for start, stop, split in _blocks(ranges):
        rows = store.index.read(start, stop)
        names = store.names.read(start, stop)
        columns = zip(rows["shard"].tolist(), rows["record_bytes"].tolist(), rows.tolist(), names, strict=True)
        for number, (shard, nbytes, row, name) in enumerate(columns, start):
            fields, points = shape_of(number, row)
            yield SampleInfo(name, index, split, number, shards[shard], nbytes, points, fields)
            index += 1


class _Part(NamedTuple):
    """How an index row tells a field's shape.

    Attributes:
        name: the field's name.
        column: the row's column with its first dimension; None where its shape is fixed.
        unit_bytes: bytes of one entry of the first dimension; of the whole field where its shape is fixed.
        shape: the other dimensions.
        per_point: whether the first dimension is the sample's number of points.
    """

    name: str
    column: int | None
    unit_bytes: int
    shape: tuple[int, ...]
    per_point: bool


class _Shapes:
    """The shapes of a sample's fields from its index row, as `Store.places` gives them, at a third of the cost.

    Raises:
        CorruptError: a row that cannot be right.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._columns = {name: at for at, name in enumerate(row_dtype(store.manifest.schema).names or ())}
        self._places = tuple(self._columns[name] for name in _PLACE_COLUMNS)
        self._shard_bytes = [shard.bytes for shard in store.manifest.shards]
        self._parts_of = functools.lru_cache(maxsize=256)(self._parts)  # by the fields that a sample has

    def __call__(self, number: int, row: tuple[int, ...]) -> tuple[dict[str, tuple[int, ...]], int | None]:
        """The shapes by field, and the number of points (None where no field has any)."""
        present, shard, offset, header_bytes, record_bytes = [row[column] for column in self._places]
        shapes: dict[str, tuple[int, ...]] = {}
        points = None
        body = end = PREFIX_BYTES + header_bytes
        for name, column, unit_bytes, shape, per_point in self._parts_of(present):
            end = body + align(end - body)
            if column is None:
                shapes[name] = shape
                end += unit_bytes
                continue
            count = row[column]
            shapes[name] = (count, *shape)
            end += unit_bytes * count
            if per_point:
                points = count
        room = self._shard_bytes[shard] - offset if shard < len(self._shard_bytes) else -1
        if end != record_bytes or end > room:
            self._store.places(number)  # says what is wrong with it
        return shapes, points

    def _parts(self, present: int) -> tuple[_Part, ...]:
        fields = self._store.manifest.schema.fields
        return tuple(self._part(field) for bit, field in enumerate(fields) if present >> bit & 1)

    def _part(self, field: Field) -> _Part:
        if field.kind != "array":
            return _Part(field.name, self._columns[f"bytes_{field.name}"], 1, (), False)
        column = None if field.rows is None else self._columns[f"rows_{field.rows}"]
        return _Part(field.name, column, field.row_bytes, field.shape, field.per_point)


def one_line(name: str) -> str:
    """A name for people: on one line, unlike every other name's, and with nothing in it that drives a terminal.

    Control characters, those of text direction and invisible ones are Python's escapes, and so are backslashes, so
    that nothing else looks like an escape. Surrogates, which stand for bytes that are not UTF-8, stay.
    """
    if name.isprintable() and "\\" not in name:
        return name
    return "".join(map(_escaped, name))


def _escaped(character: str) -> str:
    if character != "\\" and unicodedata.category(character) not in _HIDDEN:
        return character
    return character.encode("unicode_escape").decode("ascii")
