"""SemanticKITTI and KITTI odometry: `sequences/NN/` with scans, labels, poses, times and a calibration.

::

    sequences/00/velodyne/000042.bin    a scan; its name as a sample: sequences/00/velodyne/000042
    sequences/00/labels/000042.label    its labels; test sequences have none
    sequences/00/poses.txt              row k: the camera's pose at scan k; with calib.txt it gives `pose`
    sequences/00/calib.txt              `Tr:` from LiDAR to camera
    sequences/00/times.txt              row k: seconds at scan k

Files belong together by number, never by position. What is not there is absent from a sample, never zeros.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fastload.errors import SampleError, UsageError
from fastload.formats.kitti_bin import KITTI_BIN
from fastload.formats.semantickitti_label import SEMANTICKITTI_LABEL
from fastload.layouts.base import Note, SourceFile, SourceSample
from fastload.layouts.listing import (
    Numbered,
    first_few,
    is_absent,
    is_named,
    is_there,
    list_folders,
    list_numbered,
    read_text,
    unreadable,
)
from fastload.layouts.splits import Splits, make_splits, read_splits
from fastload.layouts.trajectory import (
    Matrix,
    Rows,
    TextError,
    lidar_poses,
    parse_calibration,
    parse_poses,
    parse_times,
)
from fastload.oserrors import raise_if_exhausted
from fastload.schema import ROWS_POINTS, Field, Problem, Schema
from fastload.units import count_of, local_name, portable_name

SEQUENCES = "sequences"
SCANS, LABELS, PREDICTIONS = "velodyne", "labels", "predictions"
SCAN_SUFFIX, LABEL_SUFFIX = ".bin", ".label"
CALIBRATION, POSES, TIMES = "calib.txt", "poses.txt", "times.txt"
OFFICIAL_SPLITS = make_splits(
    {"train": [0, 1, 2, 3, 4, 5, 6, 7, 9, 10], "val": [8], "test": list(range(11, 22))}, official=True
)
SCHEMA = Schema(
    (
        Field("points", dtype="float32", shape=(4,), rows=ROWS_POINTS, columns=KITTI_BIN.columns),
        Field("semantic", dtype="uint16", rows=ROWS_POINTS),
        Field("instance", dtype="uint16", rows=ROWS_POINTS),
        Field("pose", dtype="float64", shape=(4, 4)),
        Field("time", dtype="float64"),
    )
)
UNLABELLED_SPLIT = "test"
LOST = {LABELS: "semantic and instance", POSES: "pose", CALIBRATION: "pose", TIMES: "time"}
"""What a sample lacks where an optional file or folder is not there."""
MAX_MISSING_IN_NOTE = 30

Value = TypeVar("Value")
Report = Problem | Note


@dataclass(frozen=True)
class Options:
    """What can be asked of this layout.

    Attributes:
        splits: the split of each sequence.
        subset: whether the scans are a part of their sequence: poses and times are still taken by number, and
            rows that belong to no scan are fine.
    """

    splits: Splits = OFFICIAL_SPLITS
    subset: bool = False


@dataclass(frozen=True)
class SemanticKitti:
    """The layout of SemanticKITTI and of KITTI odometry."""

    name: str = "semantickitti"
    schema: Schema = SCHEMA
    looks_for: str = "sequences/NN/velodyne/*.bin"

    def detect(self, root: Path) -> bool:
        """Whether a sequence with a scan lies below `root`.

        What cannot be looked into counts as one: `samples` then says what is in the way.
        """
        folder = os.path.join(root, SEQUENCES)
        return _holds(folder, lambda: any(_has_scan(os.path.join(folder, name)) for name in list_folders(folder)))

    def samples(self, root: Path, **options: Any) -> Iterator[SourceSample | Problem | Note]:
        """All scans below `root`, sorted, with the problems and notes met on the way.

        Args:
            root: the folder that holds `sequences/`.
            **options: `splits`: a mapping from split to sequences, or the path of a YAML or JSON file with
                one (default: the official train, val and test). `subset=True`: the scans are a part of
                their sequence, see `Options`.

        Raises `UsageError` for another option or a wrong value.
        """
        return _walk(os.fspath(root), _options(options))

    def attachments(self, root: Path) -> Iterator[str]:
        """`calib.txt`, `poses.txt` and `times.txt` of all sequences, sorted; whatever has such a name.

        Raises `OSError` where a folder is missing or cannot be looked into.
        """
        folder = os.path.join(root, SEQUENCES)
        for name in list_folders(folder):
            for file in (CALIBRATION, POSES, TIMES):
                if is_there(os.path.join(folder, name, file)):
                    yield f"{SEQUENCES}/{name}/{file}"

    def prediction_file(self, sample: str) -> SourceFile:
        """`sequences/11/predictions/000042.label` for `sequences/11/velodyne/000042`.

        As semantic-kitti-api's `validate_submission.py` and `evaluate_semantics.py` look for it.

        Raises `SampleError` for a name of another form.
        """
        match sample.split("/"):
            case [first, sequence, folder, stem] if (first, folder) == (SEQUENCES, SCANS) and sequence and stem:
                path = f"{SEQUENCES}/{local_name(sequence)}/{PREDICTIONS}/{local_name(stem)}{LABEL_SUFFIX}"
                return SourceFile(path, SEMANTICKITTI_LABEL.name)
        raise SampleError(f"sample {sample}: expected a name such as {SEQUENCES}/11/{SCANS}/000042")


@dataclass(frozen=True)
class _Sequence:
    """One sequence on disk.

    Attributes:
        name: its folder's name.
        folder: where it is.
        absent: optional file -> sequences that lack it; shared by all, told in one note at the end.
    """

    name: str
    folder: str
    absent: dict[str, list[str]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"{SEQUENCES}/{self.name}"

    def note_absence(self, what: str) -> None:
        self.absent.setdefault(what, []).append(self.name)


@dataclass(frozen=True)
class _Extras:
    """What a sequence has beside its scans, by scan number."""

    labels: Numbered
    poses: Mapping[int, Matrix]
    times: Mapping[int, float]


def _options(given: Mapping[str, Any]) -> Options:
    unknown = sorted(set(given) - {"splits", "subset"})
    if unknown:
        raise UsageError(f"layout semantickitti has no option {unknown[0]!r}; it has splits and subset")
    splits, subset = given.get("splits"), given.get("subset", False)
    if not isinstance(subset, bool):
        raise UsageError(f"subset: found {subset!r}; expected True or False")
    return Options(OFFICIAL_SPLITS if splits is None else read_splits(splits), subset)


def _walk(root: str, options: Options) -> Iterator[SourceSample | Report]:
    folder = os.path.join(root, SEQUENCES)
    try:
        names = list_folders(folder)
    except OSError as error:
        yield _no_sequences(root, error)
        return
    absent: dict[str, list[str]] = {}
    filled: set[str] = set()
    problems = 0
    for name in names:
        for item in _sequence_items(_Sequence(name, os.path.join(folder, name), absent), options):
            filled |= {item.split} if isinstance(item, SourceSample) else set()
            problems += isinstance(item, Problem)
            yield item
    yield from _absence_notes(absent)
    yield from _missing_sequences(names, options.splits)
    if filled:
        yield from _unfilled_splits(filled, options.splits)
    elif not problems:
        expected = "sequences/NN/velodyne/NNNNNN.bin"
        yield Problem(SEQUENCES, None, None, "no scan to pack", expected, "check the folder and the splits", "empty")


def _no_sequences(root: str, error: OSError) -> Problem:
    if not is_absent(os.path.join(root, SEQUENCES), error):
        return unreadable(SEQUENCES, error)
    fix = "give the folder that holds sequences/"
    here = Path(root).absolute()
    if _is_folder(here / "dataset" / SEQUENCES):
        fix += f": {here / 'dataset'}"
    elif here.name == SEQUENCES:
        fix += f": {here.parent}"
    return Problem(SEQUENCES, None, None, f"no such folder in {root}", "sequences/NN/velodyne", fix, "missing")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _absence_notes(absent: Mapping[str, list[str]]) -> Iterator[Note]:
    for what, names in absent.items():
        where = f"{count_of(len(names), 'sequence')} ({first_few(names, 5)})"
        yield Note(None, f"no {what} in {where}: packed without {LOST[what]}")


def _missing_sequences(names: list[str], splits: Splits) -> Iterator[Note]:
    """The sequences that the user's splits name and that are not here, in the order of the splits."""
    here = set(map(portable_name, names))
    missing = [f"{sequence} ({split})" for sequence, split in splits.of.items() if sequence not in here]
    if missing and not splits.official:
        listed = first_few(missing, MAX_MISSING_IN_NOTE)
        yield Note(None, f"{count_of(len(missing), 'sequence')} named in the splits but not here: {listed}")


def _unfilled_splits(filled: set[str], splits: Splits) -> Iterator[Note]:
    """The splits that the user named and that got no scan; a part of the official ones is a common download."""
    for split in splits.names:
        if split not in filled and not splits.official:
            yield Note(None, f"split {split!r} has no scan")


def _sequence_items(sequence: _Sequence, options: Options) -> Iterator[SourceSample | Report]:
    split = options.splits.of.get(portable_name(sequence.name))
    if split is None and not options.splits.official:
        yield Note(sequence.path, "in no split: left out")
        return
    scans = yield from _scans(sequence)
    if not scans.keys:
        return
    if split is None:
        yield _unofficial(sequence)
        return
    extras = yield from _extras(sequence, split, scans, options.subset)
    for key, file in scans.by_key.items():
        yield _sample(sequence, split, key, file, extras)


def _unofficial(sequence: _Sequence) -> Problem:
    return Problem(
        sequence.path,
        None,
        None,
        f"sequence {sequence.name} is in none of the official splits",
        "train 00-07, 09, 10; val 08; test 11-21",
        "say which sequences belong to which split: --splits FILE (splits=...)",
        "split",
    )


def _sample(sequence: _Sequence, split: str, key: int | str, file: str, extras: _Extras) -> SourceSample:
    path = f"{sequence.path}/{SCANS}/{file}"
    fields: dict[str, SourceFile | NDArray[np.generic]] = {"points": SourceFile(path, KITTI_BIN.name)}
    label = extras.labels.by_key.get(key)
    if label is not None:
        source = SourceFile(f"{sequence.path}/{LABELS}/{label}", SEMANTICKITTI_LABEL.name)
        fields |= dict.fromkeys(SEMANTICKITTI_LABEL.parts, source)
    if isinstance(key, int) and key in extras.poses:
        fields["pose"] = extras.poses[key]
    if isinstance(key, int) and key in extras.times:
        fields["time"] = np.array(extras.times[key], np.float64)
    return SourceSample(portable_name(path.removesuffix(SCAN_SUFFIX)), split, fields)


def _scans(sequence: _Sequence) -> Generator[Report, None, Numbered]:
    try:
        Path(sequence.folder).stat()
    except OSError as error:
        yield unreadable(sequence.path, error)
        return Numbered()
    found = yield from _listed(sequence, SCANS, SCAN_SUFFIX)
    if found is None:
        yield Note(sequence.path, f"no {SCANS} folder: left out")
    elif not found.keys:
        yield Note(f"{sequence.path}/{SCANS}", f"no {SCAN_SUFFIX} file: left out")
    return found or Numbered()


def _listed(sequence: _Sequence, name: str, suffix: str) -> Generator[Report, None, Numbered | None]:
    """The files in one of the sequence's folders; None where there is no such folder or it cannot be read."""
    folder = os.path.join(sequence.folder, name)
    try:
        found = list_numbered(folder, suffix)
    except OSError as error:
        if is_absent(folder, error):
            return None
        yield unreadable(f"{sequence.path}/{name}", error)
        return Numbered()
    for key, files in found.clashes.items():
        yield Problem(
            f"{sequence.path}/{name}",
            None,
            None,
            f"{' and '.join(files)} are both number {key}",
            "one file a number",
            "remove or rename one of them",
            "clash",
        )
    return found


def _extras(sequence: _Sequence, split: str, scans: Numbered, subset: bool) -> Generator[Report, None, _Extras]:
    labels = yield from _labels(sequence, split, scans)
    poses = yield from _poses(sequence, scans, subset)
    times = yield from _rows(sequence, TIMES, "time", parse_times, scans, subset)
    return _Extras(labels, poses, times.values if times else {})


def _labels(sequence: _Sequence, split: str, scans: Numbered) -> Generator[Report, None, Numbered]:
    labels = (yield from _listed(sequence, LABELS, LABEL_SUFFIX)) or Numbered()
    path = f"{sequence.path}/{LABELS}"
    if not labels.keys:
        if split != UNLABELLED_SPLIT:
            sequence.note_absence(LABELS)
        return labels
    unlabelled = [file for key, file in scans.by_key.items() if key not in labels.keys]
    if unlabelled:
        found = f"no label for {len(unlabelled):,} of {len(scans.by_key):,} scans: {first_few(unlabelled)}"
        fix = (
            "add them, or take the labels folder away to pack the whole sequence without;"
            " with skip_bad (--skip-bad) these scans are packed without labels"
        )
        yield Problem(path, None, "semantic", found, "one file for every scan, or none at all", fix, "missing")
    stray = [file for key, file in labels.by_key.items() if key not in scans.keys]
    if stray:
        noun = "label" if len(stray) == 1 else "labels"
        found = f"{len(stray):,} {noun} without a scan: {first_few(stray)}"
        yield Problem(path, None, "semantic", found, "", "add the scans or remove the labels", "missing")
    return labels


def _poses(sequence: _Sequence, scans: Numbered, subset: bool) -> Generator[Report, None, Mapping[int, Matrix]]:
    rows = yield from _rows(sequence, POSES, "pose", parse_poses, scans, subset)
    if rows is None:
        return {}
    calibration = yield from _calibration(sequence)
    if calibration is None:
        return {}
    without = len(scans.numbers - rows.values.keys())
    if without:
        text = f"its rows name their scans: {without:,} of {len(scans.numbers):,} scans have no pose"
        yield Note(f"{sequence.path}/{POSES}", text)
    return lidar_poses(rows.values, calibration)


def _calibration(sequence: _Sequence) -> Generator[Report, None, Matrix | None]:
    calibration = yield from _parsed(sequence, CALIBRATION, "pose", parse_calibration)
    if calibration is None:
        return None
    if calibration.lidar_to_camera is None:
        yield Note(f"{sequence.path}/{CALIBRATION}", "no Tr (LiDAR to camera): packed without pose")
    return calibration.lidar_to_camera


def _rows(
    sequence: _Sequence,
    file: str,
    field_name: str,
    parse: Callable[[str], Rows[Value]],
    scans: Numbered,
    subset: bool,
) -> Generator[Report, None, Rows[Value] | None]:
    """The rows of a text file that belong to the sequence's scans; None where there are none or wrong ones."""
    rows = yield from _parsed(sequence, file, field_name, parse)
    if rows is None:
        return None
    found = rows.mismatch(scans.numbers, subset, f"{field_name}s")
    if scans.unnumbered:
        found = f"scans whose names are no numbers: {first_few(scans.unnumbered)}"
    if found is None:
        return rows
    expected = "rows that name scans which are there" if rows.named else "row k, counted from 0, for scan number k"
    fix = "complete the scans or the rows; where the scans are a part of the sequence, pack with subset=True (--subset)"
    yield Problem(f"{sequence.path}/{file}", None, field_name, found, expected, fix, "count")
    return None


def _parsed(
    sequence: _Sequence, file: str, field_name: str, parse: Callable[[str], Value]
) -> Generator[Report, None, Value | None]:
    """What `parse` makes of a text file of the sequence; None where there is none, or a bad one."""
    path = f"{sequence.path}/{file}"
    try:
        text = read_text(os.path.join(sequence.folder, file))
        if text is not None:
            return parse(text)
        sequence.note_absence(file)
    except OSError as error:
        yield unreadable(path, error, field_name)
    except TextError as error:
        fix = "correct the line, or take the file away to pack without it"
        yield Problem(path, None, field_name, error.found, error.expected, fix, "text")
    return None


def _has_scan(sequence: str) -> bool:
    folder = os.path.join(sequence, SCANS)
    return _holds(folder, lambda: any(is_named(name, SCAN_SUFFIX) for name in _names(folder)))


def _names(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry.name


def _holds(folder: str, look: Callable[[], bool]) -> bool:
    """What `look` finds; False where there is no such folder, True where it cannot be looked into."""
    try:
        return look()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise_if_exhausted(error, folder)
        return True
