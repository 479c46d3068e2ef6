"""The formats by name."""

from __future__ import annotations

from fastload.errors import UsageError
from fastload.formats.base import Format
from fastload.formats.kitti_bin import KITTI_BIN
from fastload.formats.semantickitti_label import SEMANTICKITTI_LABEL

FORMATS: dict[str, Format] = {
    KITTI_BIN.name: KITTI_BIN,
    SEMANTICKITTI_LABEL.name: SEMANTICKITTI_LABEL,
}


def get_format(name: str) -> Format:
    """The format of this name. Raises `UsageError` for an unknown one."""
    try:
        return FORMATS[name]
    except KeyError:
        raise UsageError(f"format {name!r} is unknown; expected one of {', '.join(sorted(FORMATS))}") from None
