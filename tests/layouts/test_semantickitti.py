from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload.errors import ResourceError, UsageError
from fastload.layouts.base import Layout, Note, SourceFile, SourceSample
from fastload.layouts.semantickitti import SemanticKitti
from fastload.schema import Problem
from tests.support import skip_where_pathlib_keeps

LAYOUT = SemanticKitti()
TR_NUMBERS = (
    "4.276802e-04 -9.999672e-01 -8.084491e-03 -1.198460e-02 -7.210626e-03 8.081198e-03 -9.999413e-01 -5.403984e-02"
    " 9.999738e-01 4.859485e-04 -7.206933e-03 -2.921968e-01"
)


def make_sequence(
    root: Path,
    name: str,
    scans: Iterable[int] = range(4),
    labels: Iterable[int] | None = None,
    poses: str | None = None,
    calib: str | None = f"P0: 1 0 0 0 0 1 0 0 0 0 1 0\nTr: {TR_NUMBERS}\n",
    times: str | None = None,
) -> Path:
    folder = root / "sequences" / name
    (folder / "velodyne").mkdir(parents=True)
    for scan in scans:
        (folder / "velodyne" / f"{scan:06d}.bin").write_bytes(bytes(16))
    if labels is not None:
        (folder / "labels").mkdir()
        for scan in labels:
            (folder / "labels" / f"{scan:06d}.label").write_bytes(bytes(4))
    for file, text in (("poses.txt", poses), ("calib.txt", calib), ("times.txt", times)):
        if text is not None:
            (folder / file).write_text(text, newline="")
    return folder


def pose_rows(count: int) -> list[str]:
    """Rows that differ: each turns a little further and moves on."""
    rows = []
    for k in range(count):
        c, s = np.cos(0.01 * k), np.sin(0.01 * k)
        rows.append(" ".join(f"{v:.9e}" for v in (c, 0, s, 0.1 * k, 0, 1, 0, -0.02 * k, -s, 0, c, 1.3 * k)))
    return rows


def expected_pose(row: str) -> np.ndarray:
    pose, tr = np.eye(4), np.eye(4)
    pose[:3] = np.array(row.split(), np.float64).reshape(3, 4)
    tr[:3] = np.array(TR_NUMBERS.split(), np.float64).reshape(3, 4)
    return np.linalg.inv(tr) @ (pose @ tr)


def walk(root: Path, **options: Any) -> tuple[list[SourceSample], list[Problem], list[Note]]:
    found = list(LAYOUT.samples(root, **options))
    return (
        [item for item in found if isinstance(item, SourceSample)],
        [item for item in found if isinstance(item, Problem)],
        [item for item in found if isinstance(item, Note)],
    )


def clean(root: Path, **options: Any) -> list[SourceSample]:
    samples, problems, _ = walk(root, **options)
    assert problems == []
    return samples


def only_problem(root: Path, **options: Any) -> Problem:
    (problem,) = walk(root, **options)[1]
    return problem


def test_a_scan_with_everything(tmp_path: Path) -> None:
    rows = pose_rows(4)
    make_sequence(tmp_path, "00", labels=range(4), poses="\n".join(rows), times="0.0\n0.1\n0.25\n1e0\n")
    samples, problems, notes = walk(tmp_path)
    assert (problems, notes) == ([], [])
    assert [sample.name for sample in samples] == [f"sequences/00/velodyne/00000{k}" for k in range(4)]
    fields = samples[2].fields
    assert list(fields) == ["points", "semantic", "instance", "pose", "time"] == list(LAYOUT.schema.names)
    assert fields["points"] == SourceFile("sequences/00/velodyne/000002.bin", "kitti_bin")
    label = SourceFile("sequences/00/labels/000002.label", "semantickitti_label")
    assert fields["semantic"] == fields["instance"] == label
    assert np.array_equal(fields["pose"], expected_pose(rows[2]))
    assert (fields["pose"].dtype, fields["time"].dtype, fields["time"].shape) == (np.float64, np.float64, ())
    assert [float(sample.fields["time"]) for sample in samples] == [0.0, 0.1, 0.25, 1.0]


def test_it_is_a_layout() -> None:
    assert isinstance(LAYOUT, Layout)
    assert LAYOUT.name == "semantickitti"
    assert LAYOUT.schema["points"].columns == ("x", "y", "z", "intensity")
    assert [field.name for field in LAYOUT.schema if field.per_point] == ["points", "semantic", "instance"]


def test_the_official_splits(tmp_path: Path) -> None:
    for number in range(22):
        make_sequence(tmp_path, f"{number:02d}", [0])
    splits = {sample.name[10:12]: sample.split for sample in clean(tmp_path)}
    assert [name for name, split in splits.items() if split == "val"] == ["08"]
    assert [name for name, split in splits.items() if split == "test"] == [str(number) for number in range(11, 22)]
    assert sum(split == "train" for split in splits.values()) == 10


def test_scans_without_labels_lack_the_fields(tmp_path: Path) -> None:
    make_sequence(tmp_path, "00", range(2), labels=range(2))
    make_sequence(tmp_path, "08", range(2), labels=range(2))
    make_sequence(tmp_path, "11", range(2))
    make_sequence(tmp_path, "12", range(2), labels=[])
    samples = clean(tmp_path)
    with_labels = [sample.name[10:12] for sample in samples if "semantic" in sample.fields]
    assert with_labels == ["00", "00", "08", "08"]
    assert len(samples) == 8
    assert not any("labels" in str(note) for note in walk(tmp_path)[2])


def test_a_training_sequence_without_labels_is_told(tmp_path: Path) -> None:
    make_sequence(tmp_path, "00")
    assert any("no labels in 1 sequence (00)" in str(note) for note in walk(tmp_path)[2])


def test_labels_for_some_of_the_scans_are_one_problem(tmp_path: Path) -> None:
    make_sequence(tmp_path, "13", range(9), labels=[0, 2, 3])
    problem = only_problem(tmp_path)
    assert problem.path == "sequences/13/labels"
    assert "no label for 6 of 9 scans: 000001.bin, 000004.bin, 000005.bin and 3 more" in problem.found
    assert "skip_bad" in problem.fix
    samples = walk(tmp_path)[0]
    assert [("semantic" in sample.fields) for sample in samples[:3]] == [True, False, True]


def test_labels_without_a_scan(tmp_path: Path) -> None:
    make_sequence(tmp_path, "00", range(2), labels=range(3))
    assert "1 label without a scan: 000002.label" in str(only_problem(tmp_path))


def test_voxels_beside_labels_and_other_files_are_no_samples(tmp_path: Path) -> None:
    folder = make_sequence(tmp_path, "00", range(2))
    (folder / "voxels").mkdir()
    for name in ("voxels/000000.label", "velodyne/._000001.bin", "velodyne/.DS_Store", "velodyne/000009.BIN"):
        (folder / name).write_bytes(b"1")
    (tmp_path / "sequences" / "notes.txt").write_text("none")
    samples = clean(tmp_path)
    assert len(samples) == 2
    assert all(list(sample.fields) == ["points"] for sample in samples)


def test_labels_pair_by_number_never_by_position(tmp_path: Path) -> None:
    folder = make_sequence(tmp_path, "00", [5, 7, 9], labels=[5, 7])
    (folder / "labels" / "9.label").write_bytes(bytes(4))
    labels = [sample.fields["semantic"].path[-12:] for sample in clean(tmp_path)]
    assert labels == ["000005.label", "000007.label", "bels/9.label"]


def test_two_scans_of_one_number(tmp_path: Path) -> None:
    folder = make_sequence(tmp_path, "00", [42])
    (folder / "velodyne" / "42.bin").write_bytes(bytes(16))
    problem = only_problem(tmp_path)
    assert problem.found == "000042.bin and 42.bin are both number 42"
    assert walk(tmp_path)[0] == []


def test_poses_too_few(tmp_path: Path) -> None:
    make_sequence(tmp_path, "00", poses="\n".join(pose_rows(3)))
    problem = only_problem(tmp_path)
    assert (problem.path, problem.field) == ("sequences/00/poses.txt", "pose")
    assert problem.found == "3 poses for 4 scans; none for scan 3"
    assert not any("pose" in sample.fields for sample in walk(tmp_path)[0])


def test_poses_too_many(tmp_path: Path) -> None:
    make_sequence(tmp_path, "00", poses="\n".join(pose_rows(5)))
    problem = only_problem(tmp_path)
    assert problem.found == "5 poses for 4 scans; no scan 4"
    assert "subset=True" in problem.fix


def test_poses_with_blank_lines_and_windows_line_ends(tmp_path: Path) -> None:
    rows = pose_rows(4)
    make_sequence(tmp_path, "00", poses="\r\n".join(rows) + "\r\n \r\n\r\n")
    samples = clean(tmp_path)
    for sample, row in zip(samples, rows, strict=True):
        assert np.array_equal(sample.fields["pose"], expected_pose(row))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda row: row.rsplit(" ", 1)[0], "line 3: 11 numbers"),
        (lambda row: row.replace("0.000000000e+00", "nan", 1), "line 3: nan"),
        (lambda row: row.replace("0.000000000e+00", "-inf", 1), "line 3: -inf"),
        (lambda row: row.replace("0.000000000e+00", "0,0", 1), "line 3: '0,0'"),
    ],
)
def test_a_bad_row_of_poses_is_named_by_its_line(tmp_path: Path, change: Any, text: str) -> None:
    rows = pose_rows(4)
    rows[2] = change(rows[2])
    make_sequence(tmp_path, "00", poses="\n".join(rows))
    problem = only_problem(tmp_path)
    assert text in problem.found
    assert problem.path == "sequences/00/poses.txt"


@pytest.mark.parametrize("calib", ["P0: 1 0 0 0 0 1 0 0 0 0 1 0\n", "", None])
def test_poses_without_a_calibration_are_told_and_left_out(tmp_path: Path, calib: str | None) -> None:
    make_sequence(tmp_path, "00", poses="\n".join(pose_rows(4)), calib=calib)
    samples, problems, notes = walk(tmp_path)
    assert problems == []
    assert not any("pose" in sample.fields for sample in samples)
    assert any("calib.txt" in str(note) and "without pose" in str(note) for note in notes)


@pytest.mark.parametrize("key", ["Tr_velo_to_cam:", "Tr_velo_cam", "Tr :", "Tr"])
def test_other_names_of_the_calibration(tmp_path: Path, key: str) -> None:
    rows = pose_rows(4)
    make_sequence(tmp_path, "00", poses="\n".join(rows), calib=f"R0_rect: 1 0\n{key} {TR_NUMBERS}\n")
    assert np.array_equal(clean(tmp_path)[2].fields["pose"], expected_pose(rows[2]))


@pytest.mark.parametrize(
    ("numbers", "text"),
    [("1 2 3", "line 1: 3 numbers"), (TR_NUMBERS + "x", "line 1: '"), ("0 " * 12, "line 1: a matrix without")],
)
def test_a_bad_calibration_is_named(tmp_path: Path, numbers: str, text: str) -> None:
    make_sequence(tmp_path, "00", poses="\n".join(pose_rows(4)), calib=f"Tr: {numbers}\n")
    problem = only_problem(tmp_path)
    assert problem.path == "sequences/00/calib.txt"
    assert text in problem.found


def test_an_empty_file_of_poses_is_refused_and_a_missing_one_is_told(tmp_path: Path) -> None:
    make_sequence(tmp_path, "00", poses="")
    assert only_problem(tmp_path).found == "0 poses for 4 scans; none for scan 0-3"
    os.remove(tmp_path / "sequences/00/poses.txt")
    samples, problems, notes = walk(tmp_path)
    assert problems == []
    assert not any("pose" in sample.fields for sample in samples)
    assert "no poses.txt in 1 sequence (00): packed without pose" in [str(note) for note in notes]


@pytest.mark.parametrize("affine", ["", " 0 0 0 1"])
def test_rows_that_name_their_scans_shift_nothing(tmp_path: Path, affine: str) -> None:
    rows = pose_rows(4)
    make_sequence(tmp_path, "00", poses=f"1 {rows[1]}{affine}\n3 {rows[3]}{affine}\n")
    samples, problems, notes = walk(tmp_path)
    assert problems == []
    assert [("pose" in sample.fields) for sample in samples] == [False, True, False, True]
    assert np.array_equal(samples[1].fields["pose"], expected_pose(rows[1]))
    assert np.array_equal(samples[3].fields["pose"], expected_pose(rows[3]))
    assert any("2 of 4 scans have no pose" in str(note) for note in notes)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        (["1", "1"], "line 2: scan 1 again"),
        (["1", "2.5"], "line 2: 2.5"),
        (["1", "9"], "2 poses for 4 scans; no scan 9"),
    ],
)
def test_rows_that_name_wrong_scans(tmp_path: Path, numbers: list[str], text: str) -> None:
    rows = pose_rows(2)
    make_sequence(tmp_path, "00", poses="\n".join(f"{n} {row}" for n, row in zip(numbers, rows, strict=True)))
    assert text in only_problem(tmp_path).found


def test_a_part_of_a_sequence_takes_poses_by_number_when_asked(tmp_path: Path) -> None:
    rows = pose_rows(10)
    times = "\n".join(f"{k / 10}" for k in range(10))
    make_sequence(tmp_path, "00", [3, 7], poses="\n".join(rows), times=times)
    problems = walk(tmp_path)[1]
    assert [problem.found for problem in problems] == [
        "10 poses for 2 scans; no scan 0-2, 4-6, 8-9",
        "10 times for 2 scans; no scan 0-2, 4-6, 8-9",
    ]
    samples = clean(tmp_path, subset=True)
    assert np.array_equal(samples[1].fields["pose"], expected_pose(rows[7]))
    assert float(samples[1].fields["time"]) == 0.7


def test_a_part_of_a_sequence_beyond_the_rows_is_refused_all_the_same(tmp_path: Path) -> None:
    make_sequence(tmp_path, "00", [3, 12], poses="\n".join(pose_rows(10)))
    assert only_problem(tmp_path, subset=True).found == "10 poses for 2 scans; none for scan 12"


@pytest.mark.parametrize(
    ("times", "text"),
    [("0\n1\n2\n", "3 times for 4 scans"), ("0\n1\n2\n3 4\n", "line 4: 2 numbers"), ("0\nnan\n2\n3\n", "line 2: nan")],
)
def test_bad_times(tmp_path: Path, times: str, text: str) -> None:
    make_sequence(tmp_path, "00", times=times)
    problem = only_problem(tmp_path)
    assert text in problem.found
    assert (problem.path, problem.field) == ("sequences/00/times.txt", "time")


def test_scans_whose_names_are_no_numbers_have_no_rows(tmp_path: Path) -> None:
    folder = make_sequence(tmp_path, "00", [], poses="\n".join(pose_rows(1)))
    (folder / "velodyne" / "first.bin").write_bytes(bytes(16))
    assert "no numbers: first.bin" in only_problem(tmp_path).found
    os.remove(folder / "poses.txt")
    assert [sample.name for sample in clean(tmp_path)] == ["sequences/00/velodyne/first"]


def test_a_sequence_in_no_split(tmp_path: Path) -> None:
    make_sequence(tmp_path, "00")
    make_sequence(tmp_path, "22")
    problem = only_problem(tmp_path)
    assert "sequence 22 is in none of the official splits" in problem.found
    assert "--splits FILE" in problem.fix
    samples, problems, notes = walk(tmp_path, splits={"train": [22], "val": ["08"]})
    assert problems == []
    assert {(sample.name[10:12], sample.split) for sample in samples} == {("22", "train")}
    assert "sequences/00: in no split: left out" in [str(note) for note in notes]
    assert any("split 'val' has no scan" in str(note) for note in notes)
    assert "1 sequence named in the splits but not here: 08 (val)" in [str(note) for note in notes]


def test_a_sequence_without_scans_is_told(tmp_path: Path) -> None:
    make_sequence(tmp_path, "00")
    (tmp_path / "sequences/01/image_2").mkdir(parents=True)
    (tmp_path / "sequences/02/velodyne").mkdir(parents=True)
    _, problems, notes = walk(tmp_path)
    assert problems == []
    assert "sequences/01: no velodyne folder: left out" in [str(note) for note in notes]
    assert "sequences/02/velodyne: no .bin file: left out" in [str(note) for note in notes]


def test_nothing_to_pack_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "sequences/02/velodyne").mkdir(parents=True)
    assert "no scan to pack" in only_problem(tmp_path).found


def test_a_folder_one_level_off_is_hinted_at(tmp_path: Path) -> None:
    make_sequence(tmp_path / "dataset", "00")
    assert str(tmp_path / "dataset") in only_problem(tmp_path).fix
    assert str(tmp_path / "dataset") in only_problem(tmp_path / "dataset" / "sequences").fix
    assert not LAYOUT.detect(tmp_path)
    assert LAYOUT.detect(tmp_path / "dataset")


def test_things_of_a_wrong_type_are_problems(tmp_path: Path) -> None:
    folder = make_sequence(tmp_path, "00", labels=[])
    (folder / "labels").rmdir()
    (folder / "labels").write_text("")
    (folder / "poses.txt").mkdir()
    (tmp_path / "sequences/01").mkdir()
    (tmp_path / "sequences/01/velodyne").write_text("")
    problems = walk(tmp_path)[1]
    assert {problem.path: problem.found for problem in problems} == {
        "sequences/00/labels": "cannot be read: Not a directory",
        "sequences/00/poses.txt": "cannot be read: Is a directory",
        "sequences/01/velodyne": "cannot be read: Not a directory",
    }


def test_broken_links_are_problems_not_absences(tmp_path: Path) -> None:
    folder = make_sequence(tmp_path, "00")
    for link in (folder / "labels", folder / "poses.txt", tmp_path / "sequences" / "01"):
        link.symlink_to(tmp_path / "nowhere")
    paths = {problem.path for problem in walk(tmp_path)[1]}
    assert paths == {"sequences/00/labels", "sequences/00/poses.txt", "sequences/01"}


def test_linked_sequences_are_followed(tmp_path: Path) -> None:
    folder = make_sequence(tmp_path / "elsewhere", "00", labels=range(4))
    (tmp_path / "sequences").mkdir()
    (tmp_path / "sequences" / "00").symlink_to(folder)
    assert len(clean(tmp_path)) == 4
    assert LAYOUT.detect(tmp_path)
    assert list(LAYOUT.attachments(tmp_path)) == ["sequences/00/calib.txt"]


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    folder = os.fsencode(make_sequence(tmp_path, "00", []) / "velodyne")
    with open(folder + b"/caf\xe9.bin", "wb") as file:
        file.write(bytes(16))
    (sample,) = clean(tmp_path)
    assert os.fsencode(sample.name) == b"sequences/00/velodyne/caf\xe9"


def test_attachments_are_the_text_files_of_all_sequences(tmp_path: Path) -> None:
    make_sequence(tmp_path, "08", poses="", times="")
    make_sequence(tmp_path, "00", times="")
    (tmp_path / "sequences/00/other.txt").write_text("")
    assert list(LAYOUT.attachments(tmp_path)) == [
        "sequences/00/calib.txt",
        "sequences/00/times.txt",
        "sequences/08/calib.txt",
        "sequences/08/poses.txt",
        "sequences/08/times.txt",
    ]
    with pytest.raises(FileNotFoundError):
        list(LAYOUT.attachments(tmp_path / "nowhere"))


def test_detection_needs_a_scan(tmp_path: Path) -> None:
    assert not LAYOUT.detect(tmp_path)
    assert not LAYOUT.detect(tmp_path / "nowhere")
    (tmp_path / "sequences/00/velodyne").mkdir(parents=True)
    (tmp_path / "sequences/01").mkdir()
    assert not LAYOUT.detect(tmp_path)
    (tmp_path / "sequences/00/velodyne/000000.bin").write_bytes(b"")
    assert LAYOUT.detect(tmp_path)


@pytest.mark.parametrize("options", [{"columns": 5}, {"subset": 1}, {"splits": 5}, {"splits": {}}])
def test_unknown_and_wrong_options_are_refused_at_once(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"|".join(options)):
        LAYOUT.samples(tmp_path, **options)


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_sequence(tmp_path, "00")
    scandir = os.scandir

    def refuse(path: str) -> Any:
        if path == str(folder / "velodyne"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    problem = only_problem(tmp_path)
    assert (problem.path, problem.found) == ("sequences/00/velodyne", "cannot be read: Permission denied")


EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
REFUSED = (errno.EIO, errno.ESTALE, errno.EACCES)


def refuse(monkeypatch: pytest.MonkeyPatch, function: str, place: Path, code: int) -> None:
    """Let the `os` function fail for one path."""
    real = getattr(os, function)

    def fail(path: Any, *arguments: Any, **options: Any) -> Any:
        if os.fspath(path) == str(place):
            raise OSError(code, os.strerror(code), str(place))
        return real(path, *arguments, **options)

    skip_where_pathlib_keeps(function)
    monkeypatch.setattr(os, function, fail)


FOLDERS = ("sequences", "sequences/00/velodyne", "sequences/00/labels")


@pytest.mark.parametrize("code", REFUSED)
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_that_cannot_be_listed_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, code: int
) -> None:
    make_sequence(tmp_path, "00", labels=range(4))
    refuse(monkeypatch, "scandir", tmp_path / folder, code)
    problem = only_problem(tmp_path)
    assert (problem.path, problem.found) == (folder, f"cannot be read: {os.strerror(code)}")
    assert LAYOUT.detect(tmp_path)  # so that this is said, rather than that nothing is there


@pytest.mark.parametrize("code", EXHAUSTED)
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_machine_at_its_limits_is_no_problem_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, code: int
) -> None:
    make_sequence(tmp_path, "00", labels=range(4))
    refuse(monkeypatch, "scandir", tmp_path / folder, code)
    with pytest.raises(ResourceError, match=r"too many open files|out of memory"):
        walk(tmp_path)
    if folder != FOLDERS[2]:
        with pytest.raises(ResourceError):
            LAYOUT.detect(tmp_path)


@pytest.mark.parametrize("file", ["poses.txt", "calib.txt", "times.txt"])
@pytest.mark.parametrize("code", [*REFUSED, *EXHAUSTED])
def test_a_text_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, code: int) -> None:
    folder = make_sequence(tmp_path, "00", poses="\n".join(pose_rows(4)), times="0\n1\n2\n3\n")
    refuse(monkeypatch, "open", folder / file, code)
    if code in EXHAUSTED:
        with pytest.raises(ResourceError, match=f"sequences/00/{file}"):
            walk(tmp_path)
    else:
        problem = only_problem(tmp_path)
        assert (problem.path, problem.found) == (f"sequences/00/{file}", f"cannot be read: {os.strerror(code)}")


@pytest.mark.parametrize("file", ["poses.txt", "calib.txt", "times.txt"])
def test_a_pipe_for_a_text_file_is_a_problem_and_not_waited_for(tmp_path: Path, file: str) -> None:
    folder = make_sequence(tmp_path, "00", poses="\n".join(pose_rows(4)), times="0\n1\n2\n3\n")
    (folder / file).unlink()
    os.mkfifo(folder / file)
    problem = only_problem(tmp_path)
    assert (problem.path, problem.found) == (f"sequences/00/{file}", "cannot be read: not a regular file")


@pytest.mark.parametrize("code", [*REFUSED, *EXHAUSTED])
def test_attachments_that_cannot_be_told_stop_the_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    make_sequence(tmp_path, "00")
    refuse(monkeypatch, "scandir", tmp_path / "sequences", code)
    with pytest.raises(OSError, match=os.strerror(code)):
        list(LAYOUT.attachments(tmp_path))
    monkeypatch.undo()
    refuse(monkeypatch, "lstat", tmp_path / "sequences/00/calib.txt", code)
    refuse(monkeypatch, "stat", tmp_path / "sequences/00/calib.txt", code)
    with pytest.raises(OSError, match=os.strerror(code)):
        list(LAYOUT.attachments(tmp_path))


def test_whatever_has_the_name_of_an_attachment_is_one(tmp_path: Path) -> None:
    folder = make_sequence(tmp_path, "00", calib=None)
    os.mkfifo(folder / "calib.txt")
    (folder / "poses.txt").mkdir()
    (folder / "times.txt").symlink_to("nowhere")
    assert [path[13:] for path in LAYOUT.attachments(tmp_path)] == ["calib.txt", "poses.txt", "times.txt"]


def test_a_sequence_behind_a_link_that_leads_to_trouble_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_sequence(tmp_path, "00")
    (tmp_path / "sequences/01").symlink_to("01")  # a loop
    problem = only_problem(tmp_path)
    assert (problem.path, problem.found) == ("sequences/01", f"cannot be read: {os.strerror(errno.ELOOP)}")


def test_a_folder_under_the_name_of_a_scan_is_not_passed_over(tmp_path: Path) -> None:
    folder = make_sequence(tmp_path, "00", range(2), labels=range(2))
    (folder / "velodyne" / "000002.bin").mkdir()
    (folder / "labels" / "000002.label").mkdir()
    assert [sample.fields["semantic"].path[-12:] for sample in clean(tmp_path)][2] == "000002.label"


def test_sequences_of_the_users_splits_that_are_not_there_are_told(tmp_path: Path) -> None:
    make_sequence(tmp_path, "00")
    make_sequence(tmp_path, "08")
    splits = {"train": [0, 1, 9], "val": [8, "night"]}
    notes = [str(note) for note in walk(tmp_path, splits=splits)[2]]
    assert "3 sequences named in the splits but not here: 01 (train), 09 (train), night (val)" in notes
    assert not any("but not here" in str(note) for note in walk(tmp_path)[2])  # a part of the official ones is common
    many = walk(tmp_path, splits={"train": list(range(99))})[2]
    assert any("97 sequences" in str(note) and str(note).endswith("and 67 more") for note in many)


def test_a_second_calibration_in_one_file_is_refused(tmp_path: Path) -> None:
    other = TR_NUMBERS.replace("4.276802e-04", "5.276802e-04")
    calib = f"Tr: {TR_NUMBERS}\nTr: {other}\n"
    make_sequence(tmp_path, "00", poses="\n".join(pose_rows(4)), calib=calib)
    problem = only_problem(tmp_path)
    assert problem.path == "sequences/00/calib.txt"
    assert "line 2: Tr again, with other numbers than in line 1" in problem.found
