"""Making a dataset of finished shards: index, names and, last, the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastload.schema import Schema
from fastload.store.files import describe_blocks
from fastload.store.index import INDEX_FILE, write_index
from fastload.store.manifest import Manifest, Range, ShardEntry, write_manifest
from fastload.store.names import NAMES_FILE, STARTS_FILE, write_names
from fastload.store.scan import ShardResult


@dataclass(frozen=True)
class Description:
    """What a manifest says beside what its shards tell."""

    layout: str
    options: Mapping[str, Any]
    schema: Schema
    splits: Mapping[str, tuple[Range, ...]]
    source_bytes: int
    lossy: tuple[str, ...] = ()


def publish_dataset(out: Path, description: Description, shards: Sequence[ShardResult]) -> Manifest:
    """Write index, names and manifest over shards that are on the disk already.

    Raises:
        ResourceError: the disk is full.
    """
    schema = description.schema
    samples = sum(len(shard.rows) for shard in shards)
    write_index(out / INDEX_FILE, schema, (shard.rows for shard in shards), samples)
    write_names(out, (name for shard in shards for name in shard.names), samples)
    manifest = Manifest(
        layout=description.layout,
        options=description.options,
        schema=schema,
        samples=samples,
        points=sum(shard.points for shard in shards),
        source_bytes=description.source_bytes,
        present=_count_present(schema, shards),
        splits=description.splits,
        shards=tuple(_entries(shards)),
        index=describe_blocks(out, INDEX_FILE),
        names=(describe_blocks(out, NAMES_FILE), describe_blocks(out, STARTS_FILE)),
        lossy=description.lossy,
    )
    write_manifest(out, manifest)
    return manifest


def _entries(shards: Sequence[ShardResult]) -> list[ShardEntry]:
    entries = []
    first = 0
    for shard in shards:
        samples = len(shard.rows)
        entries.append(ShardEntry(shard.file, shard.nbytes, shard.xxh3_128, first, samples, shard.attachments))
        first += samples
    return entries


def _count_present(schema: Schema, shards: Sequence[ShardResult]) -> dict[str, int]:
    counts = dict.fromkeys(schema.names, 0)
    for shard in shards:
        for bit, name in enumerate(schema.names):
            counts[name] += int(np.count_nonzero(shard.rows["present"] >> np.uint64(bit) & np.uint64(1)))
    return counts
