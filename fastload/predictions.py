"""`fastload.export_labels`: predictions as the files that a benchmark takes."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastload.errors import LabelError, SampleError, UsageError, list_problems
from fastload.formats.base import Format
from fastload.formats.registry import get_format
from fastload.labels import MAX_ID, LabelMap, list_ids
from fastload.layouts.base import PredictionLayout
from fastload.layouts.registry import BUILT_IN, get_layout
from fastload.packing.unpack import safe_target
from fastload.pointwise import Scan, Values, sample_numbers, values_by_sample
from fastload.schema import Problem
from fastload.store import fs
from fastload.store.reader import Store
from fastload.units import brief, count_of

if TYPE_CHECKING:
    from fastload.dataset import PackedDataset

SEMANTIC, INSTANCE = "semantic", "instance"
LABEL_MAPS = {"semantickitti": "semantickitti"}
"""For layouts whose raw class ids are known: the built-in map that lists them."""
_MAX_IDS_IN_WARNING = 5
_NO_PLACE = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
"""What the system answers where no file can have this path, whoever writes it."""
Ids = NDArray[np.uint16]


def export_labels(
    dataset: PackedDataset,
    index: Any,
    semantic: Any,
    out: str | Path,
    *,
    instance: Any = None,
    label_map: str | Path | LabelMap | None = None,
) -> list[Path]:
    """Write predictions for samples as their benchmark takes them, one file a sample.

    SemanticKITTI (semantic-kitti-api: README, `validate_submission.py`): the sample
    `sequences/11/velodyne/000042` gives `out/sequences/11/predictions/000042.label`, one little-endian uint32 a
    point, the class in its lower and the instance in its upper 16 bits, in the order of the stored points.
    Predictions that are there already are replaced. All are checked before the first is written, the stored
    instances and the places of the files among it: either all files are written or, where one does not fit, none.
    Only what happens while they are written (a full disk, Ctrl-C) leaves some of them: each whole, the others as they
    were. Several processes may write to the same folder, the same samples too.

    Raw ids that are none of SemanticKITTI's give one `UserWarning` a call, and are written: they may be train ids whose
    map was forgotten.

    Args:
        dataset: where the samples come from; a split or a `.subset(...)` of one as well.
        index: a sample's number in `dataset`, or several, (B,): `batch["index"]`. Negative ones count from the end.
        semantic: the class of every stored point, in their order: integers of any width; numpy, torch (on any
            device) or lists.
            For one number (N,). For several one of: a list of B arrays (N,), all labels one after the other
            (sum N,), as batches have them, or padded (B, max N), of which each row's first N count.
        out: the folder to write to; made where it is missing. Not inside the packed dataset.
        instance: instance numbers 0 to 65535 in any form that `semantic` may have, or one number for all points.
            None: those that are stored with the sample, its ground truth, and zeros where it has none. 0 writes
            zeros for all.
        label_map: the map whose train ids `semantic` has: "semantickitti", a YAML file or a `LabelMap`; its raw
            ids are written. None: the one that `dataset` was opened with; where it was opened without one,
            `semantic` has raw ids 0 to 65535.

    Returns:
        The files, one for each number in `index`, in its order. A number that comes twice (a distributed
        sampler repeats some) gives one file.

    Raises:
        LabelError: another number of labels than points, values that are no ids of the map, or none at all
            (floats, bools); names each such sample. Nothing was written.
        UsageError: a wrong argument, a place where no file can be written (below a file, a folder of its name, too
            long a name), or a dataset whose layout has no files for predictions.
        IndexError: there is no sample of such a number.
        CorruptError: the dataset is damaged. Nothing was written.
        ResourceError: the disk is full.
        PermissionError: the folder may not be written to.
    """
    store = _store_of(dataset)
    classes = _Classes.of(dataset, label_map)
    numbers, many = sample_numbers(index)
    targets = _targets(dataset, store, numbers, out)
    if instance is not None and any(INSTANCE not in target.format.parts for target in targets):
        raise UsageError(f"instance: the prediction files of layout {store.manifest.layout!r} have no place for it")
    scans = [target.scan for target in targets]
    lone = None if many else numbers[0]
    semantics = values_by_sample(semantic, SEMANTIC, scans, lone=lone)
    problems = _problems(SEMANTIC, semantics, scans, classes.raw, classes.advice)
    instances: Sequence[Values | None] = [None] * len(scans)
    if instance is not None:
        instances = values_by_sample(instance, INSTANCE, scans, lone=lone, scalar=True)
        problems += _problems(INSTANCE, instances, scans, _to_uint16, "number a scan's objects from 1, 0 for none")
    _raise_for(problems, len(scans))
    predictions = [_Prediction(*item) for item in zip(targets, semantics, instances, strict=True)]
    _raise_for(_contradictions(predictions), len(scans))
    once = list({prediction.target.number: prediction for prediction in predictions}.values())
    for prediction in once:
        _check_place(prediction.target.path)
        _check_stored(store, prediction)
    if classes.label_map is None:
        _warn_of_unknown(once, store.manifest.layout)
    for prediction in once:
        _write(store, prediction, classes)
    return [Path(target.scan.path) for target in targets]


@dataclass(frozen=True)
class _Target:
    """A sample and the file for its predictions.

    Attributes:
        number: the sample's number in the whole packed dataset.
        scan: its name and points.
        path: the file, links in the output folder's own path resolved.
        format: what the file is written in.
    """

    number: int
    scan: Scan
    path: Path
    format: Format


@dataclass(frozen=True)
class _Prediction:
    """What was given for a sample, both (N,). `instance` is None where the stored one is meant."""

    target: _Target
    semantic: Any
    instance: Any


@dataclass(frozen=True)
class _Classes:
    """What the given classes are.

    Attributes:
        label_map: the map whose train ids they are; None for raw ids.
        advice: what to do about classes that are none.
    """

    label_map: LabelMap | None
    advice: str

    @classmethod
    def of(cls, dataset: PackedDataset, label_map: str | Path | LabelMap | None) -> _Classes:
        """By the map that was given, else by the dataset's own."""
        if label_map is not None:
            return cls(LabelMap.load(label_map), "or give the map that they are of")
        if dataset.label_map is not None:
            return cls(dataset.label_map, "the dataset was opened with this map; for raw ids open it without one")
        return cls(None, "give raw ids, or the map of train ids: label_map=")

    def raw(self, values: NDArray[Any]) -> Ids:
        """The raw ids. Raises `LabelError` for values that are none of the map."""
        return _to_uint16(values) if self.label_map is None else self.label_map.inverse(values)


def _store_of(dataset: PackedDataset) -> Store:
    from fastload.dataset import PackedDataset  # loads torch, which whoever has a dataset has loaded

    if not isinstance(dataset, PackedDataset):
        raise UsageError(
            f"dataset: found {type(dataset).__name__}; expected the PackedDataset that the samples come from, whose"
            " numbers batch['index'] has (torch's Subset keeps it as .dataset)"
        )
    return dataset._open().store


def _targets(dataset: PackedDataset, store: Store, numbers: Sequence[int], out: str | Path) -> list[_Target]:
    layout = _prediction_layout(store)
    folder = _output_folder(out, store.root)
    return [_target(dataset, number, layout, out, folder) for number in numbers]


def _prediction_layout(store: Store) -> PredictionLayout:
    name = store.manifest.layout
    known = [name for name, layout in BUILT_IN.items() if isinstance(layout, PredictionLayout)]
    try:
        layout = get_layout(name)
    except UsageError:
        layout = None
    if not isinstance(layout, PredictionLayout):
        raise UsageError(
            f"{store.root}: has the layout {name!r}, for which no form of prediction files is known; those of"
            f" {', '.join(known)} are; LabelMap.inverse gives raw ids to write in a form of your own"
        )
    return layout


def _output_folder(out: str | Path, root: Path) -> Path:
    """The folder to write to, links resolved. Raises `UsageError` for one that will not do."""
    if not isinstance(out, str | os.PathLike) or not _is_path(os.fspath(out)):
        raise UsageError(f"out: found {brief(out)}; expected the path of a folder")
    if os.path.lexists(out) and not Path(out).is_dir():
        raise UsageError(f"{out}: a file is there, or a link that leads nowhere; choose another folder")
    _check_parents(Path(out))  # before links are resolved: one that leads nowhere is not made to lead somewhere
    folder = Path(os.path.realpath(out))
    _refuse_dataset(folder, root)
    return folder


def _is_path(text: str | bytes) -> bool:
    """Whether it can be the path of a file: text that is not empty, of characters that paths have."""
    if not isinstance(text, str) or not text or "\0" in text:
        return False
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _target(dataset: PackedDataset, number: int, layout: PredictionLayout, out: str | Path, folder: Path) -> _Target:
    info = dataset.info(number)
    if info.points is None:
        raise SampleError(f"{dataset.root}: sample {info.name} has no points to write labels for")
    file = layout.prediction_file(info.name)
    path = safe_target(folder, file.path)
    parent = Path(os.path.realpath(path.parent))
    if not parent.is_relative_to(folder):
        raise UsageError(f"{path.parent}: a link that leads out of {folder}; remove it, or choose another folder")
    _refuse_dataset(parent, Path(os.path.realpath(dataset.root)))
    scan = Scan(info.name, info.points, os.path.join(out, file.path))
    return _Target(info.number, scan, path, get_format(file.format))


def _refuse_dataset(folder: Path, root: Path) -> None:
    if folder.is_relative_to(root):
        raise UsageError(f"{folder}: is, or lies in, the folder of the packed dataset; choose another folder")


def _check_place(path: Path) -> None:
    """Raise `UsageError` where no file can be written to `path`, as far as that can be told beforehand."""
    long = next((part for part in path.parts if len(os.fsencode(part)) > fs.MAX_NAME_BYTES), None)
    if long is not None:
        length = len(os.fsencode(long))
        raise UsageError(
            f"{path}: the name {brief(long)} has {length} bytes; expected {fs.MAX_NAME_BYTES} at most, as file systems"
            " do; choose another folder (out)"
        )
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            raise UsageError(f"{path}: a folder lies where the file is to be written; move it, or choose another (out)")
    _check_parents(path)


def _check_parents(path: Path) -> None:
    """Raise `UsageError` where a folder that `path` needs is not there and cannot be made."""
    for parent in path.parents:
        if _is_folder(parent):
            return


def _is_folder(path: Path) -> bool:
    """Whether it is a folder; False where it can be made. Raises `UsageError` where it cannot."""
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            return True
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP) or (error.errno == errno.ENOENT and path.is_symlink()):
            raise _no_place(path, error) from error
        return error.errno not in (errno.ENOENT, errno.ENOTDIR)  # not allowed to look: writing will tell
    raise UsageError(f"{path}: a file is there, where a folder is needed; choose another folder (out)")


def _no_place(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path}: nothing can be written there ({error.strerror or error}); choose another folder (out)")


def _problems(
    field: str, values: Sequence[Values | None], scans: Sequence[Scan], convert: Callable[..., Ids], advice: str
) -> list[Problem]:
    """What is wrong with the values of each sample."""
    found = []
    for scan, given in zip(scans, values, strict=True):
        try:
            if isinstance(given, Problem):
                found.append(given)
            else:
                convert(given)
        except LabelError as error:
            found.append(scan.problem(Problem(None, None, field, str(error), "", advice, "value")))
    return found


def _contradictions(predictions: Sequence[_Prediction]) -> list[Problem]:
    """The samples that were given twice, with different predictions; the same ones are fine."""
    first: dict[int, _Prediction] = {}
    found = []
    for prediction in predictions:
        before = first.setdefault(prediction.target.number, prediction)
        if not (_equal(before.semantic, prediction.semantic) and _equal(before.instance, prediction.instance)):
            fix = "repeats of a distributed sampler agree where the network is in eval mode; leave others out"
            problem = Problem(None, None, None, "given twice, with different labels", "one label a point", fix, "twice")
            found.append(prediction.target.scan.problem(problem))
    return found


def _equal(a: NDArray[Any] | None, b: NDArray[Any] | None) -> bool:
    return a is b or (a is not None and b is not None and np.array_equal(a, b))


def _raise_for(problems: Sequence[Problem], samples: int) -> None:
    """Raise `LabelError` with every sample that does not fit, where there is one."""
    if not problems:
        return
    wrong = len({problem.sample for problem in problems})
    end = "; " if len(problems) == 1 else "\n"
    end += "nothing was written" if samples == 1 else f"{wrong:,} of {samples:,} samples: nothing was written"
    raise LabelError(f"{list_problems(problems)}{end}")


def _check_stored(store: Store, prediction: _Prediction) -> None:
    """Read the stored instances where they will be written: damage is found before the first file is."""
    target = prediction.target
    if target.scan.points and prediction.instance is None and INSTANCE in target.format.parts:
        _instance(store, prediction)


def _warn_of_unknown(predictions: Sequence[_Prediction], layout: str) -> None:
    """One warning where raw ids were given that the layout's own table lacks."""
    if layout not in LABEL_MAPS:
        return
    label_map = LabelMap.load(LABEL_MAPS[layout])
    points = np.zeros(MAX_ID + 1, np.int64)
    for prediction in predictions:
        points += np.bincount(prediction.semantic.astype(np.int64), minlength=len(points))
    points[[raw for raw, _ in label_map.raw_names]] = 0
    unknown = np.flatnonzero(points)
    if not len(unknown):
        return
    frequent = unknown[np.argsort(-points[unknown], kind="stable")][:_MAX_IDS_IN_WARNING]
    listed = ", ".join(f"{number} ({count_of(int(points[number]), 'point')})" for number in frequent)
    more = f" and {count_of(len(unknown) - len(frequent), 'more id')}" if len(unknown) > len(frequent) else ""
    warnings.warn(
        f"semantic: raw ids that the layout {layout!r} does not have: {listed}{more}; expected those of its table, such"
        f" as 10 or 40; written as they are; if they are train ids, give their map: label_map={LABEL_MAPS[layout]!r}",
        UserWarning,
        stacklevel=3,
    )


def _write(store: Store, prediction: _Prediction, classes: _Classes) -> None:
    target = prediction.target
    data = _encode(store, prediction, classes)
    try:
        fs.make_folder(target.path.parent)
        fs.write_shared(target.path, data)
    except OSError as error:
        if error.errno in _NO_PLACE:
            raise _no_place(target.path, error) from error
        raise


def _encode(store: Store, prediction: _Prediction, classes: _Classes) -> bytes:
    target = prediction.target
    if not target.scan.points:
        return b""  # which no format takes for a file of its own
    parts = {SEMANTIC: classes.raw(prediction.semantic)}
    if INSTANCE in target.format.parts:
        parts[INSTANCE] = _instance(store, prediction)
    return target.format.encode(parts)


def _instance(store: Store, prediction: _Prediction) -> Ids:
    """The instance numbers that were given, else those stored with the sample, else zeros."""
    target = prediction.target
    if prediction.instance is not None:
        return _to_uint16(prediction.instance)
    stored = store.read(target.number, (INSTANCE,)).get(INSTANCE)
    return np.zeros(target.scan.points, np.uint16) if stored is None else _to_uint16(stored)


def _to_uint16(values: NDArray[Any]) -> Ids:
    """The same numbers. Raises `LabelError` for those that have no place in 16 bits."""
    wrong = (values < 0) | (values > MAX_ID)
    if wrong.any():
        raise LabelError(f"values outside 0 to {MAX_ID}: {list_ids(values[wrong])}")
    return values.astype(np.uint16)
