"""SemanticKITTI `.label`: one uint32 a point, the class in its lower and the instance in its upper 16 bits.

As the readme of semantic-kitti-api describes it. The `.label` files of its `voxels/` folders are something
else: one uint16 a voxel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastload.formats.base import Buffer, Doubt, Inspection, Parts
from fastload.formats.rows import Row, count_raw_rows, count_rows, refusal

SEMANTIC = "semantic"
INSTANCE = "instance"
HALF = np.dtype("<u2")
WHOLE = np.dtype("<u4")
ROW = Row(4, "label", "class and instance as uint32")


@dataclass(frozen=True)
class SemanticKittiLabel:
    """The format of a SemanticKITTI `.label` file."""

    name: str = "semantickitti_label"

    @property
    def parts(self) -> tuple[str, ...]:
        """`("semantic", "instance")`."""
        return (SEMANTIC, INSTANCE)

    @property
    def row(self) -> Row:
        """One label, in bytes and words."""
        return ROW

    @property
    def row_bytes(self) -> int:
        """Bytes of one label."""
        return ROW.nbytes

    def rows(self, size_bytes: int, head: Buffer = b"") -> int:
        """How many labels a file of this size holds. Raises `FormatError` where it is no whole number."""
        return count_rows(size_bytes, ROW, bytes(head))

    def decode(self, data: Buffer) -> dict[str, NDArray[np.generic]]:
        """`semantic` and `instance`: (N,) uint16, contiguous copies. Raises `FormatError` for other files."""
        count = count_raw_rows(data, ROW)
        labels = np.frombuffer(data, WHOLE, count)
        # Shifts and casts are vectorised; copying every second uint16 takes three times as long.
        return {SEMANTIC: labels.astype(HALF), INSTANCE: (labels >> 16).astype(HALF)}

    def encode(self, parts: Parts) -> bytes:
        """The file's bytes. Raises `FormatError` unless both parts are (N,) uint16 with one N > 0."""
        semantic, instance = parts[SEMANTIC], parts[INSTANCE]
        if not (_is_half(semantic) and _is_half(instance)) or len(semantic) != len(instance) or not len(semantic):
            found = (
                f"semantic of shape {semantic.shape}, {semantic.dtype} and"
                f" instance of shape {instance.shape}, {instance.dtype}"
            )
            raise refusal(Doubt(found, "both of shape (N,), uint16, N > 0", "convert the arrays first"), "shape")
        labels = instance.astype(WHOLE)
        labels <<= 16
        labels |= semantic.astype(WHOLE)
        return labels.tobytes()

    def inspect(self, parts: Parts) -> Inspection:
        """Whether they are uint32 in this byte order. Which class ids are known is no question here."""
        semantic, instance = parts[SEMANTIC], parts[INSTANCE]
        if semantic.any() or not instance.any():
            return Inspection()
        return Inspection((_explain_instances_only(instance),))


SEMANTICKITTI_LABEL = SemanticKittiLabel()


def _is_half(array: NDArray[np.generic]) -> bool:
    return array.dtype == np.uint16 and array.ndim == 1


def _explain_instances_only(instance: NDArray[np.generic]) -> Doubt:
    """No class but instances: small whole numbers as float32 or as big-endian integers look like that."""
    as_float = (instance.astype(WHOLE) << 16).view("<f4")
    if np.isfinite(as_float).all() and (as_float == np.rint(as_float)).all():
        hint = "float32 values? write them as uint32"
    else:
        hint = "big-endian integers? write them as little-endian uint32"
    return Doubt(
        f"class 0 in all {len(instance):,} labels, yet instances up to {int(instance.max())}",
        "the class in the lower 16 bits of a little-endian uint32",
        hint,
    )
