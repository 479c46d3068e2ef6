"""Point and label files that do not fit, packed by the command: refused by name, with the guess that helps."""

import numpy as np
import pytest

import fastload
from tests.support import run_fastload, write_tree

BIN, LABEL = "sequences/00/velodyne/000000.bin", "sequences/00/labels/000000.label"


def points_file(path, count, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(count).uniform(-40, 40, (count, columns)).astype("<f4")
    values[:, 3:] = np.abs(values[:, 3:]) / 40
    values.tofile(path)


def refused(source, tmp_path, *options):
    done = run_fastload("pack", "semantickitti", source, tmp_path / "out", *options)
    assert done.returncode == 1, done
    assert not (tmp_path / "out").exists()
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(("nbytes", "found"), [
    (24, ("24 points, 6 labels", "uint8?")),
    (48, ("24 points, 12 labels", "uint16, a voxel label?")),
    (192, ("24 points, 48 labels", "int64?")),
    (94, ("not a multiple of 4",)),
])  # fmt: skip
def test_labels_of_another_width(tmp_path, nbytes, found):
    source = write_tree(tmp_path / "source", {"00/000000": 24})
    (source / LABEL).write_bytes(bytes(nbytes))
    message = refused(source, tmp_path)
    assert LABEL in message
    assert nbytes == 94 or BIN in message
    for text in found:
        assert text in message


@pytest.mark.parametrize(("points", "width", "found"), [
    (24, 1, "24 points, 6 labels of 4 bytes; 1 byte a point: uint8?"),
    (34_688, 1, "34,688 points, 8,672 labels of 4 bytes; 1 byte a point: uint8?"),
    (24_689, 1, "24,689 points, 24,689 bytes of labels; 1 byte a point: uint8?"),
    (25, 2, "25 points, 50 bytes of labels; 2 bytes a point: uint16"),
    (25, 8, "25 points, 50 labels of 4 bytes; 8 bytes a point: int64?"),
])  # fmt: skip
def test_labels_of_another_width_whose_classes_are_letters(tmp_path, points, width, found):
    """Class 10 is a line feed, 40 a parenthesis, 72 an H: all cars, or a road with plants, is not a text."""
    source = write_tree(tmp_path / "source", {"00/000000": points})
    classes = np.random.default_rng(1).choice([10, 40, 72], points)
    for values in (np.full(points, 10), classes):
        values.astype(f"<u{width}").tofile(source / LABEL)
        message = refused(source, tmp_path)
        assert found in message
        assert "text" not in message


def test_labels_that_are_text_are_called_so(tmp_path):
    source = write_tree(tmp_path / "source", {"00/000000": 24})
    (source / LABEL).write_text("10\n40\n" * 12)
    assert "72 bytes that are text" in refused(source, tmp_path)


@pytest.mark.parametrize("first", [7.995, -7.995, 31.98, 127.9])
def test_a_scan_that_begins_like_an_image(tmp_path, first):
    source = write_tree(tmp_path / "source", {"00/000000": 24})
    data = (source / BIN).read_bytes()
    begin = b"\xff\xd8\xff" + np.float32(first).tobytes()[3:]
    (source / BIN).write_bytes(begin + data[4:])
    assert run_fastload("pack", source, tmp_path / "out").returncode == 0
    assert fastload.PackedDataset(tmp_path / "out")[0]["points"][0, 0] == pytest.approx(first, rel=0.02)


def test_a_folder_under_the_name_of_a_scan(tmp_path):
    source = write_tree(tmp_path / "source", {"00/000000": 24})
    (source / "sequences/00/velodyne/000001.bin").mkdir()
    (source / "sequences/00/labels/000001.label").write_bytes(bytes(4))
    assert "sequences/00/velodyne/000001.bin: not a regular file" in refused(source, tmp_path)


def test_voxel_labels_beside_are_never_taken(tmp_path):
    source = write_tree(tmp_path / "source", {"00/000000": 24})
    (source / "sequences/00/voxels").mkdir()
    (source / "sequences/00/voxels/000000.label").write_bytes(bytes(48))
    done = run_fastload("pack", source, tmp_path / "out")
    assert done.returncode == 0
    assert "sequences/00/voxels/000000.label" in done.stderr  # listed as ignored


def test_five_columns_under_a_layout_of_four(tmp_path):
    source = write_tree(tmp_path / "source", {"00/000000": 20})
    points_file(source / BIN, 20, 5)
    message = refused(source, tmp_path)
    assert "25 points if 4 columns, 20 labels; 20 points if 5 columns" in message
    assert BIN in message


def test_labels_of_one_byte_under_another_name(tmp_path):
    source = write_tree(tmp_path / "source", {"00/000000": 24})
    points_file(source / BIN, 34_688, 4)
    (source / LABEL).write_bytes(bytes(34_688))
    message = refused(source, tmp_path)
    assert "34,688 points, 8,672 labels of 4 bytes" in message
    assert "1 byte a label would fit" in message


def test_predictions_of_a_filtered_scan_blame_only_themselves(tmp_path):
    source = write_tree(tmp_path / "source", {f"00/{i:06d}": 1000 for i in range(5)})
    label = source / "sequences/00/labels/000003.label"
    label.write_bytes(label.read_bytes()[: 994 * 4])
    message = refused(source, tmp_path)
    assert "1,000 points, 994 labels" in message
    assert "sequences/00/labels/000003.label" in message
    assert "sequences/00/velodyne/000003.bin" in message
    for other in (0, 1, 2, 4):
        assert f"{other:06d}" not in message
    done = run_fastload("pack", source, tmp_path / "skipped", "--skip-bad")
    assert done.returncode == 0
    assert "000003" in done.stderr
    assert len(fastload.PackedDataset(tmp_path / "skipped")) == 4


@pytest.mark.parametrize(("rows", "message"), [
    (3, "3 poses for 4 scans"), (5, "5 poses for 4 scans"), (0, "0 poses for 4 scans"),
])  # fmt: skip
def test_poses_that_do_not_line_up(tmp_path, rows, message):
    source = write_tree(tmp_path / "source", {f"00/{i:06d}": 10 for i in range(4)})
    folder = source / "sequences/00"
    (folder / "calib.txt").write_text("P0: 1 0 0 0 0 1 0 0 0 0 1 0\nTr: 1 0 0 0 0 1 0 0 0 0 1 0\n")
    (folder / "poses.txt").write_text("1 0 0 5 0 1 0 6 0 0 1 7\n" * rows)
    found = refused(source, tmp_path)
    assert "sequences/00/poses.txt" in found
    assert message.split(" for ")[0] in found
    assert "4 scans" in found


@pytest.mark.parametrize("word", ["1_2", "\uff11", "1,5"])
def test_numbers_that_only_look_so(tmp_path, word):
    source = write_tree(tmp_path / "source", {f"00/{i:06d}": 10 for i in range(2)})
    (source / "sequences/00/poses.txt").write_text(f"1 0 0 5 0 1 0 6 0 0 1 7\n1 0 0 5 0 1 0 6 0 0 1 {word}\n")
    assert "sequences/00/poses.txt, field pose: line 2: " in refused(source, tmp_path)


def test_two_calibrations_in_one_file(tmp_path):
    source = write_tree(tmp_path / "source", {"00/000000": 10})
    (source / "sequences/00/poses.txt").write_text("1 0 0 5 0 1 0 6 0 0 1 7\n")
    rows = "Tr: 1 0 0 0 0 1 0 0 0 0 1 0\nTr: 1 0 0 9 0 1 0 0 0 0 1 0\n"
    (source / "sequences/00/calib.txt").write_text(rows)
    assert "line 2: Tr again, with other numbers than in line 1" in refused(source, tmp_path)


@pytest.mark.parametrize(("name", "text", "found"), [
    ("s.json", '{"\\ud800": [0]}', "is not a split's name"),
    ("s.json", '{"train": [0], "train": [8]}', "key 'train' comes twice"),
    ("s.yaml", "train: [0]\ntrain: [8]\n", "key 'train' comes twice (lines 1 and 2)"),
    ("s.yaml", "train: [0x" + "f" * 5000 + "]", "beyond 64 bits"),
])  # fmt: skip
def test_splits_that_cannot_be_meant(tmp_path, name, text, found):
    source = write_tree(tmp_path / "source", {"00/000000": 10})
    (tmp_path / name).write_text(text)
    done = run_fastload("pack", source, tmp_path / "out", "--splits", tmp_path / name)
    assert done.returncode == 2
    assert f"{name}: " in done.stderr
    assert found in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("size", ["9" * 400, "9" * 20, "8388608TiB"])
def test_shards_of_absurd_size(tmp_path, size):
    source = write_tree(tmp_path / "source", {"00/000000": 10})
    done = run_fastload("pack", source, tmp_path / "out", "--shard-size", size)
    assert done.returncode == 2
    assert "shard_size: " in done.stderr
    assert "Traceback" not in done.stderr


def test_sequences_of_the_splits_that_are_not_there_are_told(tmp_path):
    source = write_tree(tmp_path / "source", {"00/000000": 10})
    (tmp_path / "s.yaml").write_text("train: [0, 5, 7]\n")
    done = run_fastload("pack", source, tmp_path / "out", "--splits", tmp_path / "s.yaml")
    assert done.returncode == 0
    assert "note: 2 sequences named in the splits but not here: 05 (train), 07 (train)" in done.stderr


def test_poses_of_a_kitti_odometry_tree(tmp_path):
    """A trailing blank line, CRLF, `Tr_velo_to_cam` in scientific notation: the right matrix for each scan."""
    source = write_tree(tmp_path / "source", {f"00/{i:06d}": 10 for i in range(4)})
    folder = source / "sequences/00"
    tr = "4.276802e-04 -9.999672e-01 -8.084491e-03 -1.198459e-02 -7.210626e-03 8.081198e-03 -9.999413e-01"
    tr += " -5.403984e-02 9.999738e-01 4.859485e-04 -7.206933e-03 -2.921968e-01"
    (folder / "calib.txt").write_text(f"Tr_velo_to_cam: {tr}\r\n")
    rows = [f"1 0 0 {i} 0 1 0 {2 * i} 0 0 1 {3 * i}" for i in range(4)]
    (folder / "poses.txt").write_bytes(("\r\n".join(rows) + "\r\n\r\n").encode())
    assert run_fastload("pack", source, tmp_path / "out").returncode == 0
    matrix = np.vstack([np.array(tr.split(), float).reshape(3, 4), [0, 0, 0, 1]])
    for sample in fastload.PackedDataset(tmp_path / "out"):
        pose = np.eye(4)
        pose[:3, 3] = np.array([1, 2, 3]) * sample["index"]
        np.testing.assert_allclose(sample["pose"], np.linalg.inv(matrix) @ pose @ matrix, atol=1e-12)


def test_scans_without_labels(tmp_path):
    """Labelled, unlabelled without a folder, unlabelled with an empty one: absent, never zeros."""
    source = write_tree(tmp_path / "source", {"00/000000": 10, "08/000000": 20})
    write_tree(tmp_path / "source", {"11/000000": 30, "12/000000": 40}, labels=False)
    (source / "sequences/12/labels").mkdir()
    assert run_fastload("pack", source, tmp_path / "out").returncode == 0
    dataset = fastload.PackedDataset(tmp_path / "out")
    has = {sample["name"].split("/")[1]: "semantic" in sample for sample in dataset}
    assert has == {"00": True, "08": True, "11": False, "12": False}
    with pytest.raises(fastload.CollateError, match="semantic"):
        dataset.collate(list(dataset))
    write_tree(tmp_path / "source", {f"01/{i:06d}": 10 for i in range(3)})
    (source / "sequences/01/labels/000001.label").unlink()
    (tmp_path / "second").mkdir()
    message = refused(source, tmp_path / "second")
    assert "no label for 1 of 3 scans: 000001.bin" in message


def test_unknown_class_ids_are_packed_as_they_are_and_named_when_mapped(tmp_path):
    source = write_tree(tmp_path / "source", {"00/000000": 4})
    np.array([10, 7 | 5 << 16, 261, 65535 | 9 << 16], "<u4").tofile(source / LABEL)
    assert run_fastload("pack", source, tmp_path / "out").returncode == 0
    assert fastload.PackedDataset(tmp_path / "out")[0]["semantic"].tolist() == [10, 7, 261, 65535]
    with pytest.raises(fastload.LabelError) as caught:
        fastload.PackedDataset(tmp_path / "out", label_map="semantickitti")[0]
    for text in ("sequences/00/velodyne/000000", "7", "261", "65535", "ignore_index"):
        assert text in str(caught.value)
