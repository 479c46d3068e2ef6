"""What a packed dataset says of itself, without reading its samples."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastload._version import __version__
from fastload.schema import ROWS_POINTS
from fastload.store.manifest import FORMAT_VERSION, read_manifest


@dataclass(frozen=True)
class Info:
    """What the manifest says.

    Attributes:
        root: the dataset's folder.
        format_version: version of the disk format.
        layout: the layout that the source was read with.
        samples: number of samples.
        points: number of points in all samples; None where samples have none.
        shards: number of shards.
        bytes: size of the shards.
        source_bytes: size of the source files that they hold.
        splits: number of samples of each split.
        fields: for each field its kind, dtype, shape, rows, columns, codec, and how many samples have it.
        lossy: what was changed on request, one sentence each.
        fingerprint: digest of all that the dataset is.
    """

    root: str
    format_version: int
    layout: str
    samples: int
    points: int | None
    shards: int
    bytes: int
    source_bytes: int
    splits: Mapping[str, int]
    fields: Mapping[str, Mapping[str, Any]]
    lossy: tuple[str, ...]
    fingerprint: str

    def to_json(self) -> dict[str, Any]:
        """The information as plain JSON values."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["lossy"] = list(self.lossy)
        return {"schema": "fastload.info/1", "fastload_version": __version__, **values}


def info(root: str | Path) -> Info:
    """What the packed dataset in the folder `root` says of itself.

    Raises:
        DatasetNotFoundError: there is none, or its packing was not finished.
        VersionError: written in a newer format.
        CorruptError: its manifest is damaged.
    """
    manifest = read_manifest(Path(root))
    fields = {}
    for field in manifest.schema:
        values = field.to_json()
        del values["name"]
        fields[field.name] = {**values, "codec": None, "samples": manifest.present.get(field.name, 0)}
    return Info(
        root=os.fspath(root),
        format_version=FORMAT_VERSION,
        layout=manifest.layout,
        samples=manifest.samples,
        points=manifest.points if ROWS_POINTS in manifest.schema.row_groups else None,
        shards=len(manifest.shards),
        bytes=manifest.bytes,
        source_bytes=manifest.source_bytes,
        splits={split: manifest.split_size(split) for split in manifest.splits},
        fields=fields,
        lossy=manifest.lossy,
        fingerprint=manifest.fingerprint,
    )
