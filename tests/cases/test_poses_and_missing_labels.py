"""Rows that do not line up with scans, and scans without labels, from the files to the batch."""

import numpy as np
import pytest

import fastload
from fastload.errors import CollateError, SampleError, SourceError
from tests.support import write_tree

TR = "4.276802e-04 -9.999672e-01 -8.084491e-03 -1.198460e-02 -7.210626e-03 8.081198e-03 -9.999413e-01"
TR += " -5.403984e-02 9.999738e-01 4.859485e-04 -7.206933e-03 -2.921968e-01"


def row_of(k):
    c, s = np.cos(0.01 * k), np.sin(0.01 * k)
    return " ".join(map(repr, map(float, (c, 0, s, 0.1 * k, 0, 1, 0, -0.02 * k, -s, 0, c, 1.3 * k))))


def pose_of(k):
    pose, tr = np.eye(4), np.eye(4)
    pose[:3] = np.array(row_of(k).split(), float).reshape(3, 4)
    tr[:3] = np.array(TR.split(), float).reshape(3, 4)
    return np.linalg.inv(tr) @ (pose @ tr)


def tree(tmp_path, scans=4, rows=4, calib=f"P0: 1 0 0 0 0 1 0 0 0 0 1 0\nTr: {TR}\n"):
    """A sequence with so many scans and rows of poses; also one that has nothing wrong."""
    source = write_tree(tmp_path / "source", {f"00/{i:06d}": 10 + i for i in range(scans)})
    write_tree(source, {"08/000000": 30})
    folder = source / "sequences/00"
    if rows is not None:
        (folder / "poses.txt").write_text("".join(f"{row_of(k)}\n" for k in range(rows)))
    if calib is not None:
        (folder / "calib.txt").write_text(calib)
    return source


def refused(source, tmp_path):
    with pytest.raises(SourceError) as caught:
        fastload.pack(source, tmp_path / "d")
    assert not (tmp_path / "d").exists()
    (problem,) = caught.value.problems
    assert "sequences/08" not in str(problem)
    return problem


@pytest.mark.parametrize("scans", [1, 2, 5])
@pytest.mark.parametrize("more", [-2, -1, 0, 1, 3])
def test_each_scan_has_its_own_pose_or_the_counts_are_refused(tmp_path, scans, more):
    """One row too few or too many could shift every pose to a neighbour: only equal counts pack."""
    rows = max(0, scans + more)
    source = tree(tmp_path, scans, rows)
    if rows != scans:
        problem = refused(source, tmp_path)
        assert problem.path == "sequences/00/poses.txt"
        assert f"{rows} poses for {scans} scans" in problem.found
        return
    fastload.pack(source, tmp_path / "d")
    for k, sample in enumerate(fastload.PackedDataset(tmp_path / "d", "train")):
        assert np.array_equal(sample["pose"], pose_of(k))


@pytest.mark.parametrize(("change", "found"), [
    (lambda row: row.rsplit(" ", 1)[0], "11 numbers"),
    (lambda row: row + " 1", "13 numbers"),
    (lambda row: row.replace("0.0", "nan", 1), "nan"),
    (lambda row: row.replace("0.0", "-inf", 1), "-inf"),
    (lambda row: "# " + row, "'#'"),
])  # fmt: skip
@pytest.mark.parametrize("line", [2, 3])
def test_a_bad_row_is_named_by_its_line(tmp_path, change, found, line):
    source = tree(tmp_path)
    path = source / "sequences/00/poses.txt"
    rows = path.read_text().splitlines()
    rows[line - 1] = change(rows[line - 1])
    path.write_text("\n".join(rows))
    problem = refused(source, tmp_path)
    assert problem.path == "sequences/00/poses.txt"
    assert f"line {line}: {found}" in problem.found


@pytest.mark.parametrize("what", ["no Tr", "no calib.txt", "no poses.txt"])
def test_what_is_not_there_is_absent_from_the_samples_and_said(tmp_path, what):
    """No identity, no zeros: samples without the field, and a note with the sequence."""
    calib = {"no Tr": "P0: 1 0 0 0 0 1 0 0 0 0 1 0\n", "no calib.txt": None}.get(what, f"Tr: {TR}\n")
    source = tree(tmp_path, rows=None if what == "no poses.txt" else 4, calib=calib)
    report = fastload.pack(source, tmp_path / "d")
    assert any(what in note and "00" in note and "without pose" in note for note in report.notes)
    assert all("pose" not in sample for sample in fastload.PackedDataset(tmp_path / "d"))
    with pytest.raises(SampleError, match="no field 'pose'"):
        fastload.PackedDataset(tmp_path / "d", fields=["pose"])[0]


@pytest.mark.parametrize("key", ["Tr:", "Tr_velo_to_cam:", "Tr_velo_cam"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r\n\r\n", "\n \n\n"])
def test_line_ends_blank_lines_and_names_of_the_calibration_change_no_pose(tmp_path, key, end):
    source = tree(tmp_path, rows=None, calib=f"R0_rect: 1 0{end}{key} {TR}{end}")
    text = end.join(row_of(k) for k in range(4)) + end
    (source / "sequences/00/poses.txt").write_text(text, newline="")
    fastload.pack(source, tmp_path / "d")
    for k, sample in enumerate(fastload.PackedDataset(tmp_path / "d", "train")):
        assert np.array_equal(sample["pose"], pose_of(k))


# --- labels


@pytest.fixture
def partly(tmp_path):
    """Two labelled sequences, one without a folder of labels, one with an empty one."""
    source = write_tree(tmp_path / "source", {f"{s}/{i:06d}": 5 + i for s in ("00", "08") for i in range(3)})
    write_tree(source, {f"{s}/{i:06d}": 9 + i for s in ("11", "12") for i in range(3)}, labels=False)
    (source / "sequences/12/labels").mkdir()
    return source


def test_scans_without_labels_are_in_their_split_without_the_fields(partly, tmp_path):
    """Labels are never invented: absent from the sample, refused in a batch that mixes, fine in one that does not."""
    fastload.pack(partly, tmp_path / "d")
    for split, labelled in (("train", True), ("val", True), ("test", False)):
        samples = list(fastload.PackedDataset(tmp_path / "d", split))
        assert all(("semantic" in sample, "instance" in sample) == (labelled, labelled) for sample in samples)
        assert all(len(sample["semantic"]) == len(sample["points"]) for sample in samples if labelled)
        assert ("semantic" in fastload.collate(samples)) is labelled
    dataset = fastload.PackedDataset(tmp_path / "d")
    order = np.random.default_rng(0).permutation(len(dataset))
    with pytest.raises(CollateError, match="semantic") as caught:
        dataset.collate([dataset[i] for i in order])
    assert "6 of 12 samples" in str(caught.value)


@pytest.mark.parametrize("lacking", [[0], [1], [2], [0, 2], [1, 2]])
@pytest.mark.parametrize("sequence", ["00", "08", "11"])
def test_labels_for_some_scans_of_a_sequence_are_refused_or_on_request_left_unlabelled(tmp_path, sequence, lacking):
    """The scans that lack one are named; on request just they have no labels, and the others keep their own."""
    source = write_tree(tmp_path / "source", {f"{sequence}/{i:06d}": 5 + i for i in range(3)})
    for number in lacking:
        (source / f"sequences/{sequence}/labels/{number:06d}.label").unlink()
    with pytest.raises(SourceError) as caught:
        fastload.pack(source, tmp_path / "d")
    (problem,) = caught.value.problems
    assert f"no label for {len(lacking)} of 3 scans" in problem.found
    assert all((f"{i:06d}.bin" in problem.found) == (i in lacking) for i in range(3))
    report = fastload.pack(source, tmp_path / "d", skip_bad=True)
    assert [problem.path for problem in report.problems] == [f"sequences/{sequence}/labels"]
    for number, sample in enumerate(fastload.PackedDataset(tmp_path / "d")):
        assert len(sample["points"]) == 5 + number
        assert ("semantic" in sample) == (number not in lacking)
        if number not in lacking:
            raw = np.fromfile(source / f"sequences/{sequence}/labels/{number:06d}.label", "<u4")
            assert np.array_equal(sample["semantic"], raw & 0xFFFF)
