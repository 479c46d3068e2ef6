"""The manifest `dataset.json`: what the dataset is and which files make it.

It is written last; a dataset exists when its manifest does.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from fastload.errors import CorruptError, DatasetNotFoundError, VersionError
from fastload.schema import Schema
from fastload.store import fs
from fastload.store.advice import advise
from fastload.store.files import BLOCK_BYTES, BlockEntry, FileEntry, OpenFile, explain_read_error, read_at
from fastload.store.index import INDEX_FILE, index_bytes
from fastload.store.names import NAMES_FILE, STARTS_FILE, starts_bytes_of
from fastload.store.plain import Types, check_list, check_object, check_type, parse_object
from fastload.store.record import MAX_RECORD_BYTES
from fastload.store.shard import SHARDS_FOLDER, is_shard_name

MANIFEST_FILE = "dataset.json"
FORMAT = "fastload"
FORMAT_VERSION = 1
Range = tuple[int, int]


@dataclass(frozen=True)
class ShardEntry(FileEntry):
    """A shard: number of its first sample, how many samples and attachments it holds, and a digest of those."""

    first: int
    samples: int
    attachments: int
    records_xxh3: str


@dataclass(frozen=True)
class Manifest:
    """What `dataset.json` says.

    Attributes:
        layout: the layout that the source was read with.
        options: the layout's options that shaped the data.
        schema: the fields of the samples.
        samples: how many samples there are.
        points: how many points they have in all.
        source_bytes: size of all source files that are in it.
        present: how many samples have each field.
        splits: for each split its [start, stop) ranges of sample numbers.
        dropped: ranges of numbers that no sample has: damaged ones, left out by `fastload repair` on request.
        shards: the shards, in order.
        origin: the shards as they were packed, where a repair left something out; so that what was left out is known
            when it is found again. Size 0 and digests "" where they are unknown.
        index: the index file.
        names: `names.bin` and `names.npy`.
        lossy: what was changed on request, one sentence each.
    """

    layout: str
    options: Mapping[str, Any]
    schema: Schema
    samples: int
    points: int
    source_bytes: int
    present: Mapping[str, int]
    splits: Mapping[str, tuple[Range, ...]]
    dropped: tuple[Range, ...]
    shards: tuple[ShardEntry, ...]
    origin: tuple[ShardEntry, ...]
    index: BlockEntry
    names: tuple[BlockEntry, BlockEntry]
    lossy: tuple[str, ...] = field(default=())

    @property
    def bytes(self) -> int:
        """Size of all shards."""
        return sum(shard.bytes for shard in self.shards)

    @property
    def numbers(self) -> int:
        """How many numbers index and names have: those of the samples, and those of dropped ones."""
        return self.samples + sum(stop - start for start, stop in self.dropped)

    @functools.cached_property
    def kept(self) -> tuple[Range, ...]:
        """The numbers that samples have, as [start, stop) ranges that ascend and do not touch."""
        starts = [0, *(stop for _, stop in self.dropped)]
        stops = [*(start for start, _ in self.dropped), self.numbers]
        return tuple((start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop)

    def numbers_of(self, shard: ShardEntry) -> Iterator[int]:
        """The numbers of a shard's samples: from its first on, those that were not dropped."""
        kept = (number for a, b in self.kept for number in range(max(a, shard.first), b))
        return itertools.islice(kept, shard.samples)

    @property
    def fingerprint(self) -> str:
        """Digest of all that the manifest says: two datasets with the same one are the same, byte for byte."""
        return xxhash.xxh3_128_hexdigest(_canonical(self.to_json()))

    def split_size(self, split: str) -> int:
        """How many samples a split has."""
        return sum(stop - start for start, stop in self.splits[split])

    def to_json(self) -> dict[str, Any]:
        """The manifest as plain JSON values, without its checksum."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "layout": self.layout,
            "options": dict(self.options),
            "schema": self.schema.to_json(),
            "samples": self.samples,
            "points": self.points,
            "source_bytes": self.source_bytes,
            "present": dict(self.present),
            "splits": {split: [list(part) for part in parts] for split, parts in self.splits.items()},
            "dropped": [list(part) for part in self.dropped],
            "shards": [asdict(shard) for shard in self.shards],
            "origin": [asdict(shard) for shard in self.origin],
            "index": _entry_json(self.index),
            "names": [_entry_json(entry) for entry in self.names],
            "lossy": list(self.lossy),
        }


def _entry_json(entry: BlockEntry) -> dict[str, Any]:
    return {**asdict(entry), "blocks": list(entry.blocks)}


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Publish the dataset: write its manifest, in one atomic step."""
    # The temporary file marks an unfinished pack: it goes only by becoming the manifest.
    fs.write_atomic(root / MANIFEST_FILE, [manifest_bytes(manifest)], keep_temporary=True)


def manifest_bytes(manifest: Manifest) -> bytes:
    """The bytes of `dataset.json`."""
    values = manifest.to_json()
    values["checksum"] = _checksum(values)
    return (json.dumps(values, indent=1, ensure_ascii=True) + "\n").encode("ascii")


def read_manifest(root: Path) -> Manifest:
    """The manifest of the dataset in the folder `root`.

    Raises:
        DatasetNotFoundError: no folder, no dataset in it, or one whose packing was not finished.
        VersionError: written in a newer format than this program knows.
        CorruptError: damaged, or changed by hand.
    """
    path = root / MANIFEST_FILE
    try:
        file = OpenFile(path)
        data = read_at(file.fd, file.size, 0)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DatasetNotFoundError(_explain_missing(root)) from error
    except PermissionError:
        raise
    except OSError as error:
        raise explain_read_error(error, path, "the manifest") from error
    values = _parse(path, data)
    version = values["format_version"]
    # That the checksum is of all other values, written so, holds for every version: only so a flipped bit is told
    # from a newer format.
    if not _fits_checksum(values):
        raise _damaged(path, "its checksum does not fit its text")
    if version > FORMAT_VERSION:
        raise VersionError(
            f"{path}: format version {version}; this fastload reads version {FORMAT_VERSION};"
            " install a newer fastload to read it"
        )
    try:
        return _from_json(values)
    except ValueError as error:
        raise _damaged(path, f"not a whole manifest ({error})") from error
    except (RecursionError, ArithmeticError, TypeError, LookupError, AttributeError) as error:  # none is known of
        raise _damaged(path, "not a whole manifest (values that cannot be right together)") from error


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    """The manifest's values, once they say that they are a manifest's, and of which version."""
    try:
        values = parse_object(data)
        for key in ("format", "format_version"):
            if key not in values:
                raise ValueError(f"it has no {key!r}")
        if values["format"] != FORMAT:
            raise ValueError(f"its format is {str(values['format'])[:40]!r}; expected {FORMAT!r}")
        check_type(values["format_version"], int, where="'format_version'")
        if values["format_version"] < 1:
            raise ValueError(f"its 'format_version' is {values['format_version']}; expected 1 or more")
    except ValueError as error:
        raise _damaged(path, f"not a fastload manifest ({error})") from error
    return values


def _fits_checksum(values: Mapping[str, Any]) -> bool:
    try:
        rest = {key: value for key, value in values.items() if key != "checksum"}
        return bool(values.get("checksum") == _checksum(rest))
    except RecursionError:
        return False


def is_manifest(root: Path) -> bool:
    """Whether the `dataset.json` in `root` is one that fastload wrote, of any version, damaged further on or not.

    Raises `OSError` when it cannot be read.
    """
    try:
        file = OpenFile(root / MANIFEST_FILE)
        return f'"format": "{FORMAT}"'.encode() in read_at(file.fd, 4096, 0)
    except CorruptError:
        return False


_ENTRY_TYPES: Types = {"file": (str,), "bytes": (int,), "xxh3_128": (str,)}
_BLOCK_TYPES: Types = {**_ENTRY_TYPES, "blocks": (list,)}
_SHARD_TYPES: Types = {
    **_ENTRY_TYPES, "first": (int,), "samples": (int,), "attachments": (int,), "records_xxh3": (str,)
}  # fmt: skip
_FIELD_TYPES: Types = {
    "name": (str,), "kind": (str,), "dtype": (str, type(None)), "shape": (list,), "rows": (str, type(None)),
    "columns": (list,),
}  # fmt: skip
_MANIFEST_TYPES: Types = {
    "format": (str,), "format_version": (int,), "layout": (str,), "options": (dict,), "schema": (list,),
    "samples": (int,), "points": (int,), "source_bytes": (int,), "present": (dict,), "splits": (dict,),
    "dropped": (list,), "shards": (list,), "origin": (list,), "index": (dict,), "names": (list,), "lossy": (list,),
    "checksum": (str,),
}  # fmt: skip


def _from_json(values: Mapping[str, Any]) -> Manifest:
    check_object(values, _MANIFEST_TYPES, "the manifest")
    names = [_block_entry(entry, "names") for entry in values["names"]]
    if len(names) != 2:
        raise ValueError(f"'names' describes {len(names)} files; expected 2")
    manifest = Manifest(
        layout=values["layout"],
        options=values["options"],
        schema=_schema(values["schema"]),
        samples=values["samples"],
        points=values["points"],
        source_bytes=values["source_bytes"],
        present=values["present"],
        splits={split: _ranges(parts, f"split {split!r}") for split, parts in values["splits"].items()},
        dropped=_ranges(values["dropped"], "'dropped'"),
        shards=tuple(_shard_entry(entry, "shards") for entry in values["shards"]),
        origin=tuple(_shard_entry(entry, "origin") for entry in values["origin"]),
        index=_block_entry(values["index"], "index"),
        names=(names[0], names[1]),
        lossy=check_list(values["lossy"], str, where="'lossy'"),
    )
    check_manifest(manifest)
    return manifest


def _block_entry(values: Any, where: str) -> BlockEntry:
    entry = check_object(values, _BLOCK_TYPES, f"an entry of {where!r}")
    return BlockEntry(**{**entry, "blocks": check_list(entry["blocks"], str, where=f"'blocks' of {where!r}")})


def _shard_entry(values: Any, where: str) -> ShardEntry:
    return ShardEntry(**check_object(values, _SHARD_TYPES, f"an entry of {where!r}"))


def _ranges(values: Any, where: str) -> tuple[Range, ...]:
    pairs = [check_list(pair, int, where=f"a range of {where}") for pair in check_list(values, list, where=where)]
    if not all(len(pair) == 2 for pair in pairs):
        raise ValueError(f"a range of {where} that is not two whole numbers")
    return tuple((start, stop) for start, stop in pairs)


def _schema(values: list[Any]) -> Schema:
    for number, value in enumerate(values):
        where = f"field {number} of the schema"
        field = check_object(value, _FIELD_TYPES, where)
        shape = check_list(field["shape"], int, where=f"'shape' of {where}")
        check_list(field["columns"], str, where=f"'columns' of {where}")
        if any(not 0 <= size <= MAX_RECORD_BYTES for size in shape) or math.prod(shape) > MAX_RECORD_BYTES:
            raise ValueError(f"{where} has the shape {shape}, larger than a sample can be")
    return Schema.from_json(values)


def check_manifest(manifest: Manifest) -> None:
    """See that a manifest does not contradict itself, so that whoever uses it need not doubt it.

    Raises:
        ValueError: numbers that cannot be right together, or files outside the dataset.
    """
    counts = [manifest.samples, manifest.points, manifest.source_bytes, *manifest.present.values()]
    shards = [*manifest.shards, *manifest.origin]
    entries = [manifest.index, *manifest.names, *shards]
    counts += [entry.bytes for entry in entries]
    counts += [n for shard in shards for n in (shard.first, shard.samples, shard.attachments)]
    if not all(isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 2**63 for count in counts):
        raise ValueError("a count that is no whole number from 0 to 2**63")
    texts = [
        manifest.layout,
        *manifest.lossy,
        *(entry.xxh3_128 for entry in entries),
        *(shard.records_xxh3 for shard in shards),
    ]
    if not all(isinstance(text, str) for text in texts) or not isinstance(manifest.options, dict):
        raise ValueError("layout, options, lossy or a digest of a wrong type")
    if [entry.file for entry in entries[:3]] != [INDEX_FILE, NAMES_FILE, STARTS_FILE]:
        raise ValueError("index or names under other names")
    for side in (manifest.index, *manifest.names):
        if len(side.blocks) != -(-side.bytes // BLOCK_BYTES) or not all(isinstance(b, str) for b in side.blocks):
            raise ValueError(f"{side.file} without a digest for each of its blocks")
    _check_splits(manifest)
    _check_shards(manifest)
    expected = (index_bytes(manifest.schema, manifest.numbers), starts_bytes_of(manifest.numbers))
    if (manifest.index.bytes, manifest.names[1].bytes) != expected:
        raise ValueError(f"{INDEX_FILE} and {STARTS_FILE} are not of the sizes that {manifest.numbers} samples take")
    if list(manifest.present) != list(manifest.schema.names) or max([0, *manifest.present.values()]) > manifest.samples:
        raise ValueError("present does not count the schema's fields")


def _check_shards(manifest: Manifest) -> None:
    """The shards hold, one after the other, all the numbers that were not dropped; those as packed held all."""
    for shard in (*manifest.shards, *manifest.origin):
        folder, _, name = shard.file.partition("/")
        if folder != SHARDS_FOLDER or not is_shard_name(name):
            raise ValueError(f"shard {shard.file!r} lies outside {SHARDS_FOLDER}/, or is not called 00000.lmdb, ...")
    end = 0
    for shard in manifest.origin:
        if shard.first != end:
            raise ValueError(f"{shard.file} began with sample {shard.first}; {end} came next")
        end += shard.samples
    if manifest.origin and end != manifest.numbers:
        raise ValueError(f"{end} samples in the shards as packed, {manifest.numbers} in all")
    kept = iter(manifest.kept)
    start, stop = next(kept, (0, 0))
    for shard in manifest.shards:
        if shard.samples and shard.first != start:
            raise ValueError(f"{shard.file} begins with sample {shard.first}; {start} comes next")
        left = shard.samples
        while left and start < stop:
            step = min(left, stop - start)
            left, start = left - step, start + step
            if start == stop:
                start, stop = next(kept, (stop, stop))
        if left:
            raise ValueError(f"{shard.file} holds {left} samples more than there are")
    if start < stop:
        raise ValueError(f"no shard holds sample {start}")


def _check_splits(manifest: Manifest) -> None:
    """The splits' ranges and the dropped ones hold every number exactly once."""
    for ranges in (*manifest.splits.values(), manifest.dropped):
        if list(ranges) != sorted(ranges):
            raise ValueError("ranges that do not ascend")
    parts = sorted(part for parts in (*manifest.splits.values(), manifest.dropped) for part in parts)
    if not all(type(bound) is int for part in parts for bound in part):
        raise ValueError("a range that is not two whole numbers")
    end = 0
    for start, stop in parts:
        if start != end or stop <= start:
            raise ValueError(f"the splits' range {start} to {stop} where one from {end} should be")
        end = stop
    if end != manifest.numbers:
        raise ValueError(f"the splits end at sample {end} of {manifest.numbers}")


def _explain_missing(root: Path) -> str:
    if not root.exists():
        return f"{root}: there is no such folder; give the folder that fastload pack wrote"
    if not root.is_dir():
        return f"{root}: not a folder; give the folder that fastload pack wrote"
    if fs.temporary(root / MANIFEST_FILE).exists():
        return f"{root}: an unfinished pack ({MANIFEST_FILE} is missing); run the same fastload pack command again"
    if (root / SHARDS_FOLDER).is_dir():
        return f"{root}: {MANIFEST_FILE} is missing; an incomplete copy of a dataset? {advise(root / MANIFEST_FILE)}"
    return f"{root}: not a packed dataset ({MANIFEST_FILE} is missing); make one with: fastload pack SRC {root}"


def _damaged(path: Path, found: str) -> CorruptError:
    return CorruptError(
        f"{path}: {found}; the file is damaged or was changed by hand; {advise(path)}", shard=MANIFEST_FILE
    )


def _canonical(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode("ascii")


def _checksum(values: Mapping[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(_canonical(values))
