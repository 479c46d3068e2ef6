"""Label maps: a data set's raw class ids to the consecutive ids that a network is trained on, and back."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastload.errors import LabelError, UsageError
from fastload.textfiles import ContentError, read_content
from fastload.units import brief

MAX_ID = 65535
"""Class ids are stored as uint16."""
MAX_IDS_IN_MESSAGE = 20
"""How many unknown ids an error lists before it counts the rest."""
LOOK_UP_POINTS = 32768
"""Points that are looked up at once. numpy makes an int64 copy of the ids: as one piece of 1 MB it went back
to the system after each scan and cost 800 us of page faults beside 100 us of work."""
UNKNOWN = -1
"""What a look-up table holds where there is no id; ids are never negative."""

_SEMANTICKITTI_LABELS: dict[int, tuple[str, int]] = {
    # raw id: (name, train id). SemanticKITTI development kit: config/semantic-kitti.yaml
    0: ("unlabeled", 0),
    1: ("outlier", 0),
    10: ("car", 1),
    11: ("bicycle", 2),
    13: ("bus", 5),
    15: ("motorcycle", 3),
    16: ("on-rails", 5),
    18: ("truck", 4),
    20: ("other-vehicle", 5),
    30: ("person", 6),
    31: ("bicyclist", 7),
    32: ("motorcyclist", 8),
    40: ("road", 9),
    44: ("parking", 10),
    48: ("sidewalk", 11),
    49: ("other-ground", 12),
    50: ("building", 13),
    51: ("fence", 14),
    52: ("other-structure", 0),
    60: ("lane-marking", 9),
    70: ("vegetation", 15),
    71: ("trunk", 16),
    72: ("terrain", 17),
    80: ("pole", 18),
    81: ("traffic-sign", 19),
    99: ("other-object", 0),
    252: ("moving-car", 1),
    253: ("moving-bicyclist", 7),
    254: ("moving-person", 6),
    255: ("moving-motorcyclist", 8),
    256: ("moving-on-rails", 5),
    257: ("moving-bus", 5),
    258: ("moving-truck", 4),
    259: ("moving-other-vehicle", 5),
}
_SEMANTICKITTI_INVERSE = (0, 10, 11, 15, 18, 20, 30, 31, 32, 40, 44, 48, 49, 50, 51, 70, 71, 72, 80, 81)


@dataclass(frozen=True)
class LabelMap:
    """A table from raw class ids to train ids 0, 1, 2, ... and back. Equal maps have equal tables.

    Attributes:
        train_ids: pairs (raw id, train id), by raw id.
        raw_ids: for each train id the raw id that stands for it in predictions.
        names: for each train id its class name.
        ignore: train ids that scoring leaves out.
        raw_names: pairs (raw id, name), by raw id.
        source: the built-in name or the file that it came from; plays no part in comparisons.
    """

    train_ids: tuple[tuple[int, int], ...]
    raw_ids: tuple[int, ...]
    names: tuple[str, ...]
    ignore: frozenset[int] = frozenset()
    raw_names: tuple[tuple[int, str], ...] = ()
    source: str = field(default="", compare=False)

    @classmethod
    def load(cls, name_or_path: str | os.PathLike[str] | LabelMap) -> LabelMap:
        """The built-in map "semantickitti" (19 classes and 0 = unlabeled), or a YAML file's.

        A file has the form of SemanticKITTI's own: `labels`, `learning_map`, `learning_map_inv` and
        `learning_ignore`. A built-in name wins over a file of that name. A `LabelMap` is given back as it is.

        Raises:
            UsageError: no such map, or the file has another form.
        """
        if isinstance(name_or_path, LabelMap):
            return name_or_path
        if not isinstance(name_or_path, (str, os.PathLike)):
            raise UsageError(
                f"label_map: found {name_or_path!r}; expected {_choices()}, a YAML file's path or a LabelMap"
            )
        if name_or_path in _BUILT_IN:
            return _BUILT_IN[name_or_path]
        path = Path(name_or_path)
        return cls.from_mapping(_read_yaml(path), source=str(path))

    @classmethod
    def from_mapping(cls, values: Any, *, source: str) -> LabelMap:
        """The map that a file in SemanticKITTI's form describes.

        Raises:
            UsageError: another form; names `source`, the key, what was found and what was expected.
        """
        labels = _section(values, "labels", source)
        learning_map = _ids(_section(values, "learning_map", source), f"{source}: learning_map")
        inverse = _ids(_section(values, "learning_map_inv", source), f"{source}: learning_map_inv")
        ignore = _section(values, "learning_ignore", source)
        for raw_id, name in labels.items():
            _check_id(raw_id, f"{source}: labels")
            _check_kind(name, str, f"{source}: labels[{raw_id}]", "a class name")
        for train_id, ignored in ignore.items():
            _check_kind(ignored, bool, f"{source}: learning_ignore[{train_id}]", "true or false")
        _check_inverse(inverse, learning_map, labels, source)
        _check_known(ignore, inverse, f"{source}: learning_ignore", "learning_map_inv")
        return cls(
            train_ids=tuple(sorted(learning_map.items())),
            raw_ids=tuple(inverse[train_id] for train_id in range(len(inverse))),
            names=tuple(labels[inverse[train_id]] for train_id in range(len(inverse))),
            ignore=frozenset(train_id for train_id, ignored in ignore.items() if ignored),
            raw_names=tuple(sorted(labels.items())),
            source=source,
        )

    @property
    def num_classes(self) -> int:
        """How many train ids there are, those in `ignore` included."""
        return len(self.names)

    def forward(
        self, raw: ArrayLike, *, ignore_index: int | None = None, out: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """Train ids of raw ids.

        Args:
            raw: integers of any dtype and shape. Negative ids and ids above 65535 are unknown like any
                other: none wraps around or is clipped.
            ignore_index: what unknown ids become; None: they are an error.
            out: C-contiguous int64 array of the same shape to write into.

        Returns:
            `out`, or a new int64 array of raw's shape.

        Raises:
            LabelError: unknown ids, each listed with its number of points. `out` is overwritten then.
            UsageError: `raw` does not hold integers, or `out` or `ignore_index` do not fit.
        """
        ids = _integers(raw, "raw labels")
        target = np.empty(ids.shape, np.int64) if out is None else _check_out(out, ids.shape)
        if out is not None and np.may_share_memory(out, ids):
            ids = ids.copy()  # unknown ids are named after the look-up has written over them
        fill = None if ignore_index is None else _check_ignore_index(ignore_index)
        if _look_up(self._forward_table, ids, target):
            return target
        unknown = target == UNKNOWN
        if fill is None:
            raise LabelError(self._describe_unknown(ids[unknown]))
        np.copyto(target, fill, where=unknown)
        return target

    def inverse(self, mapped: ArrayLike) -> NDArray[np.uint16]:
        """Raw ids (uint16, same shape) of train ids: the one that stands for each class.

        Raises:
            LabelError: train ids that the map does not have, each listed with its number of points.
            UsageError: `mapped` does not hold integers.
        """
        ids = _integers(mapped, "train ids")
        found = np.empty(ids.shape, np.int64)
        if not _look_up(self._inverse_table, ids, found):
            raise LabelError(
                f"train ids that label map {self.source!r} does not have: {list_ids(ids[found == UNKNOWN])};"
                f" expected 0 to {self.num_classes - 1}; replace the ids of ignored points first"
            )
        return found.astype(np.uint16)

    def _describe_unknown(self, ids: NDArray[Any]) -> str:
        instances = "; ids above 65535 may carry instance numbers: the class is in the lower 16 bits"
        return (
            f"labels that label map {self.source!r} does not know: {list_ids(ids)}; expected the"
            f" {len(self.train_ids)} ids of its learning_map{instances if ids.max() > MAX_ID else ''};"
            " correct the labels, add the ids to a copy of the map's YAML file, or say what they become"
            " (ignore_index=0, for example)"
        )

    @functools.cached_property
    def _forward_table(self) -> NDArray[np.int64]:
        return _table(dict(self.train_ids))

    @functools.cached_property
    def _inverse_table(self) -> NDArray[np.int64]:
        return _table(dict(enumerate(self.raw_ids)))

    def __getstate__(self) -> dict[str, Any]:
        """All but the tables, which are made again at first use."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


def _table(mapping: Mapping[int, int]) -> NDArray[np.int64]:
    """Values by key; `UNKNOWN` in the gaps and in one last entry, where ids beyond the end are clipped to."""
    table = np.full(max(mapping, default=0) + 2, UNKNOWN, np.int64)
    table[list(mapping)] = list(mapping.values())
    table.flags.writeable = False
    return table


def _look_up(table: NDArray[np.int64], ids: NDArray[Any], out: NDArray[np.int64]) -> bool:
    """Write the table's entries of `ids` to `out` (C-contiguous); whether all are known. The hot path."""
    flat_ids, flat_out = ids.reshape(-1), out.reshape(-1)
    known = True
    for start in range(0, flat_ids.size, LOOK_UP_POINTS):
        stop = start + LOOK_UP_POINTS
        known &= _look_up_piece(table, flat_ids[start:stop], flat_out[start:stop])
    return known


def _look_up_piece(table: NDArray[np.int64], ids: NDArray[Any], out: NDArray[np.int64]) -> bool:
    if ids.dtype.kind == "u" and ids.dtype.itemsize == 8:
        ids = ids.astype(np.int64)  # np.take refuses uint64; what int64 cannot hold becomes negative: unknown
    np.take(table, ids, out=out, mode="clip")  # written straight to `out`, unlike with the default mode
    if ids.dtype.kind == "i" and ids.min() < 0:  # clipped to 0, which may be a known id
        np.copyto(out, UNKNOWN, where=ids < 0)
    return bool(out.min() != UNKNOWN)


def list_ids(ids: NDArray[Any]) -> str:
    """Each id with its number of points, the most frequent first, the rest counted."""
    values, counts = np.unique(ids, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    shown = [f"{values[i]} ({counts[i]} point{'' if counts[i] == 1 else 's'})" for i in order[:MAX_IDS_IN_MESSAGE]]
    if len(order) > MAX_IDS_IN_MESSAGE:
        rest = order[MAX_IDS_IN_MESSAGE:]
        shown.append(f"and {len(rest)} more ids ({counts[rest].sum()} points)")
    return ", ".join(shown)


def _integers(values: ArrayLike, what: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise UsageError(f"{what}: found dtype {array.dtype}, expected integers; convert them with .astype first")
    return array


def _check_out(out: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.int64]:
    if not isinstance(out, np.ndarray) or out.dtype != np.int64 or out.shape != shape:
        found = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise UsageError(f"out: found {found}; expected an array int64 {shape}")
    if not out.flags.c_contiguous:
        raise UsageError("out: found an array with gaps; expected a C-contiguous one")
    return out


def _check_ignore_index(ignore_index: int) -> int:
    try:
        return int(np.int64(operator.index(ignore_index)))
    except (TypeError, OverflowError) as error:
        raise UsageError(f"ignore_index: found {ignore_index!r}; expected an integer, such as 0 or 255") from error


def _read_yaml(path: Path) -> Any:
    try:
        return read_content(path)
    except FileNotFoundError as error:
        raise UsageError(
            f"label_map {str(path)!r}: neither a built-in map ({_choices()}) nor a file; check the path"
        ) from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read as a label map ({error.strerror or error})") from error
    except ContentError as error:
        raise UsageError(f"{path}: not a YAML file of a label map: {error}; correct the file") from error


def _section(values: Any, key: str, source: str) -> dict[Any, Any]:
    """The part `key` of a file: a mapping that is not empty."""
    if not isinstance(values, dict):
        raise UsageError(
            f"{source}: found {brief(values)}; expected the keys labels, learning_map, learning_map_inv and"
            " learning_ignore, as in SemanticKITTI's semantic-kitti.yaml"
        )
    if key not in values:
        found = ", ".join(str(other) for other in values) or "nothing"
        raise UsageError(f"{source}: key {key!r} is missing, found {found}; add it as in semantic-kitti.yaml")
    section = values[key]
    if not isinstance(section, dict) or not section:
        raise UsageError(f"{source}: {key}: found {brief(section)}; expected lines such as '10: ...', by id")
    return section


def _ids(section: dict[Any, Any], where: str) -> dict[int, int]:
    for key, value in section.items():
        _check_id(key, where)
        _check_id(value, f"{where}[{key}]")
    return section


def _check_id(value: Any, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_ID:
        raise UsageError(f"{where}: found the id {brief(value)}; expected an integer from 0 to {MAX_ID}")


def _check_kind(value: Any, kind: type, where: str, expected: str) -> None:
    if not isinstance(value, kind):
        raise UsageError(f"{where}: found {brief(value)}; expected {expected}")


def _check_inverse(inverse: dict[int, int], learning_map: dict[int, int], labels: dict[int, str], source: str) -> None:
    """Train ids are 0, 1, 2, ...; all that `learning_map` gives are there; each stands for a named label."""
    where = f"{source}: learning_map_inv"
    if sorted(inverse) != list(range(len(inverse))):
        gaps = sorted(set(range(len(inverse))) - set(inverse))
        raise UsageError(
            f"{where}: found train ids up to {max(inverse)} without {brief(gaps)}; expected 0, 1, 2, ..."
            " with no gaps; number the classes anew (what unknown labels become is set by ignore_index=)"
        )
    _check_known(learning_map.values(), inverse, f"{source}: learning_map", "learning_map_inv")
    _check_known(inverse.values(), labels, where, "labels")


def _check_known(ids: Any, known: Mapping[int, Any], where: str, other: str) -> None:
    missing = sorted({value for value in ids if value not in known}, key=str)
    if missing:
        listed = ", ".join(brief(value) for value in missing[:MAX_IDS_IN_MESSAGE])
        raise UsageError(f"{where}: found {listed}, which {other} does not have; expected its ids only; add it there")


def _choices() -> str:
    return ", ".join(repr(name) for name in _BUILT_IN)


_BUILT_IN: dict[Any, LabelMap] = {
    "semantickitti": LabelMap(
        train_ids=tuple((raw_id, train_id) for raw_id, (_, train_id) in _SEMANTICKITTI_LABELS.items()),
        raw_ids=_SEMANTICKITTI_INVERSE,
        names=tuple(_SEMANTICKITTI_LABELS[raw_id][0] for raw_id in _SEMANTICKITTI_INVERSE),
        ignore=frozenset({0}),
        raw_names=tuple((raw_id, name) for raw_id, (name, _) in _SEMANTICKITTI_LABELS.items()),
        source="semantickitti",
    )
}
