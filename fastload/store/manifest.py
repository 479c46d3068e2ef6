"""The manifest `dataset.json`: what the dataset is and which files make it.

It is written last; a dataset exists when its manifest does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from fastload.errors import CorruptError, DatasetNotFoundError, FastloadError, VersionError
from fastload.schema import Schema
from fastload.store import fs
from fastload.store.shard import SHARDS_FOLDER

MANIFEST_FILE = "dataset.json"
FORMAT = "fastload"
FORMAT_VERSION = 1
Range = tuple[int, int]


@dataclass(frozen=True)
class FileEntry:
    """A file of the dataset: path relative to its folder, size, xxh3-128 of its bytes (hexadecimal)."""

    file: str
    bytes: int
    xxh3_128: str


@dataclass(frozen=True)
class ShardEntry(FileEntry):
    """A shard: number of its first sample, how many samples and attachments it holds."""

    first: int
    samples: int
    attachments: int


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
        shards: the shards, in order.
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
    shards: tuple[ShardEntry, ...]
    index: FileEntry
    names: tuple[FileEntry, FileEntry]
    lossy: tuple[str, ...] = field(default=())

    @property
    def bytes(self) -> int:
        """Size of all shards."""
        return sum(shard.bytes for shard in self.shards)

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
            "shards": [asdict(shard) for shard in self.shards],
            "index": asdict(self.index),
            "names": [asdict(entry) for entry in self.names],
            "lossy": list(self.lossy),
        }


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Publish the dataset: write its manifest, in one atomic step."""
    values = manifest.to_json()
    values["checksum"] = _checksum(values)
    text = json.dumps(values, indent=1, ensure_ascii=True) + "\n"
    fs.write_atomic(root / MANIFEST_FILE, [text.encode("ascii")])


def read_manifest(root: Path) -> Manifest:
    """The manifest of the dataset in the folder `root`.

    Raises:
        DatasetNotFoundError: no folder, no dataset in it, or one whose packing was not finished.
        VersionError: written in a newer format than this program knows.
        CorruptError: damaged, or changed by hand.
    """
    path = root / MANIFEST_FILE
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DatasetNotFoundError(_explain_missing(root)) from error
    try:
        values = json.loads(data.decode("ascii"))
        version = values["format_version"]
        if values["format"] != FORMAT or not isinstance(version, int):
            raise ValueError(f"format {values['format']!r}")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _damaged(path, f"not a fastload manifest ({type(error).__name__}: {error})") from error
    if version != FORMAT_VERSION:
        raise VersionError(
            f"{path}: format version {version}; this fastload reads version {FORMAT_VERSION};"
            " install a newer fastload to read it"
        )
    if values.pop("checksum", None) != _checksum(values):
        raise _damaged(path, "its checksum does not fit its text")
    try:
        return _from_json(values)
    except (ValueError, TypeError, KeyError, AttributeError, FastloadError) as error:
        raise _damaged(path, f"not a whole manifest ({type(error).__name__}: {error})") from error


def _from_json(values: Mapping[str, Any]) -> Manifest:
    first, second = (FileEntry(**entry) for entry in values["names"])
    splits = {split: tuple((start, stop) for start, stop in parts) for split, parts in values["splits"].items()}
    manifest = Manifest(
        layout=values["layout"],
        options=values["options"],
        schema=Schema.from_json(values["schema"]),
        samples=values["samples"],
        points=values["points"],
        source_bytes=values["source_bytes"],
        present=values["present"],
        splits=splits,
        shards=tuple(ShardEntry(**entry) for entry in values["shards"]),
        index=FileEntry(**values["index"]),
        names=(first, second),
        lossy=tuple(values["lossy"]),
    )
    for shard in manifest.shards:
        folder, _, name = shard.file.partition("/")
        if folder != SHARDS_FOLDER or "/" in name or name.startswith("."):
            raise ValueError(f"shard {shard.file!r} lies outside {SHARDS_FOLDER}/")
    return manifest


def _explain_missing(root: Path) -> str:
    if not root.exists():
        return f"{root}: there is no such folder; give the folder that fastload pack wrote"
    if not root.is_dir():
        return f"{root}: not a folder; give the folder that fastload pack wrote"
    if (root / SHARDS_FOLDER).is_dir():
        return f"{root}: an unfinished pack ({MANIFEST_FILE} is missing); run the same fastload pack command again"
    return f"{root}: not a packed dataset ({MANIFEST_FILE} is missing); make one with: fastload pack SRC {root}"


def _damaged(path: Path, found: str) -> CorruptError:
    return CorruptError(
        f"{path}: {found}; the file is damaged or was changed by hand; copy it anew, or pack the dataset again",
        shard=MANIFEST_FILE,
    )


def _canonical(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode("ascii")


def _checksum(values: Mapping[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(_canonical(values))
