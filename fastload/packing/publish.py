"""Making a dataset of finished shards: index, names and, last, the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastload.schema import ROWS_POINTS
from fastload.store import fs
from fastload.store.files import BlockEntry, describe_chunks
from fastload.store.identity import Kind
from fastload.store.index import INDEX_FILE, Rows, index_chunks
from fastload.store.manifest import Manifest, Range, ShardEntry, write_manifest
from fastload.store.names import NAMES_FILE, STARTS_FILE, names_chunks
from fastload.store.scan import ShardResult

Chunks = Sequence[bytes | memoryview]


@dataclass(frozen=True)
class Contents:
    """All that index, names and manifest are made of.

    Attributes:
        kind: layout, options, schema, and what was changed on request.
        shards: the shards, in order.
        rows: the index rows of all samples, in order, in blocks.
        names: the samples' names.
        splits: for each split its [start, stop) ranges.
        source_bytes: size of the source files that are in the shards.
        dropped: [start, stop) ranges of numbers that no sample has; `rows` and `names` hold what is known of them.
        origin: the shards as they were packed, where something was left out.
    """

    kind: Kind
    shards: tuple[ShardEntry, ...]
    rows: Sequence[Rows]
    names: Sequence[bytes]
    splits: Mapping[str, tuple[Range, ...]]
    source_bytes: int
    dropped: tuple[Range, ...] = ()
    origin: tuple[ShardEntry, ...] = ()

    def side_files(self) -> dict[str, Chunks]:
        """The bytes of index and names, by file name."""
        total = len(self.names)
        data, starts = names_chunks(self.names, total)
        index = list(index_chunks(self.kind.schema, self.rows, total))
        return {INDEX_FILE: index, NAMES_FILE: data, STARTS_FILE: starts}

    def manifest(self, files: Mapping[str, BlockEntry]) -> Manifest:
        """The manifest over these files (index and names as written)."""
        return Manifest(
            layout=self.kind.layout,
            options=self.kind.options,
            schema=self.kind.schema,
            samples=len(self.names) - sum(stop - start for start, stop in self.dropped),
            points=self._count_points(),
            source_bytes=self.source_bytes,
            present=self._count_present(),
            splits=self.splits,
            dropped=self.dropped,
            shards=self.shards,
            origin=self.origin,
            index=files[INDEX_FILE],
            names=(files[NAMES_FILE], files[STARTS_FILE]),
            lossy=self.kind.lossy,
        )

    def _kept_rows(self) -> Iterator[Rows]:
        """The rows of the samples that are there."""
        first = 0
        for rows in self.rows:
            kept = np.ones(len(rows), bool)
            for start, stop in self.dropped:
                kept[max(start - first, 0) : max(stop - first, 0)] = False
            yield rows[kept] if self.dropped else rows
            first += len(rows)

    def _count_points(self) -> int:
        if ROWS_POINTS not in self.kind.schema.row_groups:
            return 0
        return sum(int(rows[f"rows_{ROWS_POINTS}"].sum(dtype=np.int64)) for rows in self._kept_rows())

    def _count_present(self) -> dict[str, int]:
        counts = dict.fromkeys(self.kind.schema.names, 0)
        for rows in self._kept_rows():
            for bit, name in enumerate(counts):
                counts[name] += int(np.count_nonzero(rows["present"] >> np.uint64(bit) & np.uint64(1)))
        return counts


def contents_of(
    kind: Kind, shards: Sequence[ShardResult], splits: Mapping[str, tuple[Range, ...]], source_bytes: int
) -> Contents:
    """What a dataset of these shards is made of, its samples numbered without a gap."""
    rows = [shard.rows for shard in shards]
    names = [name for shard in shards for name in shard.names]
    return Contents(kind, tuple(_entries(shards)), rows, names, splits, source_bytes)


def publish_dataset(out: Path, contents: Contents) -> Manifest:
    """Write index, names and manifest over shards that are on the disk already.

    Raises:
        ResourceError: the disk is full.
    """
    files = contents.side_files()
    for file, chunks in files.items():
        fs.write_atomic(out / file, chunks)
    manifest = contents.manifest(describe(files))
    write_manifest(out, manifest)
    return manifest


def describe(files: Mapping[str, Iterable[bytes | memoryview]]) -> dict[str, BlockEntry]:
    """Sizes and digests of files with these bytes."""
    return {file: describe_chunks(file, chunks) for file, chunks in files.items()}


def _entries(shards: Sequence[ShardResult]) -> list[ShardEntry]:
    entries = []
    first = 0
    for shard in shards:
        samples = len(shard.rows)
        entries.append(
            ShardEntry(shard.file, shard.nbytes, shard.xxh3_128, first, samples, shard.attachments, shard.records_xxh3)
        )
        first += samples
    return entries
