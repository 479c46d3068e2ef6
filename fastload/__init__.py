"""fastload: high-performance data loading for LiDAR scans and images with PyTorch.

The public names are imported when they are first used, so that `import fastload` loads neither torch nor
numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fastload._version import __version__

_HOMES = {
    "fastload.collation.collate": ("PER_POINT", "Batch", "Collate", "collate"),
    "fastload.dataset": ("PackedDataset",),
    "fastload.errors": (
        "CollateError", "CorruptError", "DatasetError", "DatasetNotFoundError", "FastloadError", "FormatError",
        "LabelError", "LockedError", "ResourceError", "SampleError", "SchemaError", "SourceError", "UsageError",
        "VersionError",
    ),
    "fastload.labels": ("LabelMap",),
    "fastload.layouts.base": ("Layout", "SourceFile", "SourceSample"),
    "fastload.packing.report": ("PackReport", "Progress", "RepairReport", "UnpackReport", "VerifyReport"),
    "fastload.packing.repair": ("repair",),
    "fastload.packing.run": ("pack",),
    "fastload.packing.unpack": ("unpack",),
    "fastload.packing.verify": ("verify",),
    "fastload.predictions": ("export_labels",),
    "fastload.schema": ("Field", "Problem", "SampleInfo", "Schema"),
    "fastload.store.info": ("Info", "info"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = [
    "PER_POINT",
    "Batch",
    "Collate",
    "CollateError",
    "CorruptError",
    "DatasetError",
    "DatasetNotFoundError",
    "FastloadError",
    "Field",
    "FormatError",
    "Info",
    "LabelError",
    "LabelMap",
    "Layout",
    "LockedError",
    "PackReport",
    "PackedDataset",
    "Problem",
    "Progress",
    "RepairReport",
    "ResourceError",
    "SampleError",
    "SampleInfo",
    "Schema",
    "SchemaError",
    "SourceError",
    "SourceFile",
    "SourceSample",
    "UnpackReport",
    "UsageError",
    "VerifyReport",
    "VersionError",
    "__version__",
    "collate",
    "export_labels",
    "info",
    "pack",
    "repair",
    "unpack",
    "verify",
]

if TYPE_CHECKING:
    from fastload.collation.collate import PER_POINT, Batch, Collate, collate
    from fastload.dataset import PackedDataset
    from fastload.errors import (
        CollateError,
        CorruptError,
        DatasetError,
        DatasetNotFoundError,
        FastloadError,
        FormatError,
        LabelError,
        LockedError,
        ResourceError,
        SampleError,
        SchemaError,
        SourceError,
        UsageError,
        VersionError,
    )
    from fastload.labels import LabelMap
    from fastload.layouts.base import Layout, SourceFile, SourceSample
    from fastload.packing.repair import repair
    from fastload.packing.report import PackReport, Progress, RepairReport, UnpackReport, VerifyReport
    from fastload.packing.run import pack
    from fastload.packing.unpack import unpack
    from fastload.packing.verify import verify
    from fastload.predictions import export_labels
    from fastload.schema import Field, Problem, SampleInfo, Schema
    from fastload.store.info import Info, info


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'fastload' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__") and name.endswith("__"))})
