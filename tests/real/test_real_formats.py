"""The formats and the layout on real files; the right values are those of `expected.json` beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload.errors import FormatError
from fastload.formats import sniff
from fastload.formats.base import Inspection
from fastload.formats.float_rows import FloatRows
from fastload.formats.kitti_bin import KITTI_BIN
from fastload.formats.rows import explain_counts
from fastload.formats.semantickitti_label import SEMANTICKITTI_LABEL
from fastload.layouts.base import SourceSample
from fastload.layouts.registry import detect_layout
from fastload.layouts.splits import read_splits

SCANS = (
    "semantickitti/sequences/00/velodyne/000000.bin",
    "semantickitti/sequences/08/velodyne/000000.bin",
    "semantickitti/sequences/11/velodyne/000000.bin",
    "kitti/training/velodyne/000000.bin",
    "kitti/training/velodyne/000008.bin",
)
LABELS = ("semantickitti/sequences/00/labels/000000.label", "semantickitti/sequences/08/labels/000000.label")
NUSCENES = "nuscenes/**/*.pcd.bin"
WAYMO = "waymo-kitti-format/training/velodyne/0000000.bin"


@pytest.fixture(scope="session")
def expected(samples_folder: Path) -> dict[str, Any]:
    return json.loads((samples_folder / "expected.json").read_text())


@pytest.mark.parametrize("path", SCANS)
def test_scans(samples_folder: Path, expected: dict[str, Any], path: str) -> None:
    data, right = (samples_folder / path).read_bytes(), expected[path]
    assert KITTI_BIN.rows(len(data)) == right["points"]
    parts = KITTI_BIN.decode(data)
    points = parts["points"]
    assert points.shape == (right["points"], right["columns"])
    assert points[0].tolist() == right["first"]
    assert points[-1].tolist() == right["last"]
    assert points.max(axis=0).tolist() == right["max"]
    assert points.min(axis=0).tolist() == right["min"]
    assert points.mean(axis=0, dtype=np.float64).tolist() == pytest.approx(right["mean"], rel=1e-9)
    assert KITTI_BIN.encode(parts) == data
    assert KITTI_BIN.inspect(parts) == Inspection(nonfinite=right["nonfinite"])


@pytest.mark.parametrize("path", LABELS)
def test_labels(samples_folder: Path, expected: dict[str, Any], path: str) -> None:
    data, right = (samples_folder / path).read_bytes(), expected[path]
    assert SEMANTICKITTI_LABEL.rows(len(data)) == right["points"]
    parts = SEMANTICKITTI_LABEL.decode(data)
    ids, counts = np.unique(parts["semantic"], return_counts=True)
    histogram = dict(zip(map(str, ids.tolist()), counts.tolist(), strict=True))
    assert histogram == right["semantic_histogram"]
    assert int(parts["instance"].max()) == right["max_instance"]
    pairs = {(s, i) for s, i in zip(parts["semantic"].tolist(), parts["instance"].tolist(), strict=True) if i}
    assert len(pairs) == right["instances"]
    assert SEMANTICKITTI_LABEL.encode(parts) == data
    assert SEMANTICKITTI_LABEL.inspect(parts) == Inspection()


def test_nuscenes_read_as_four_columns_is_refused_with_five(samples_folder: Path) -> None:
    files = sorted(samples_folder.glob(NUSCENES))
    assert len(files) == 3
    for file in files:
        data = file.read_bytes()
        (doubt,) = KITTI_BIN.inspect(KITTI_BIN.decode(data)).doubts
        assert "5 columns fit better than 4" in doubt.found
        five = FloatRows("five", ("x", "y", "z", "intensity", "ring"))
        assert five.inspect(five.decode(data)) == Inspection()


def test_waymo_read_as_four_or_five_columns_is_refused_with_six(samples_folder: Path) -> None:
    data = (samples_folder / WAYMO).read_bytes()
    six = FloatRows("six", ("x", "y", "z", "intensity", "elongation", "time"))
    assert six.inspect(six.decode(data)) == Inspection()
    for columns in (4, 5):
        form = FloatRows("rows", six.columns[:columns])
        (doubt,) = form.inspect(form.decode(data)).doubts
        assert f"6 columns fit better than {columns}" in doubt.found


def test_every_real_file_is_known_for_what_it_is(samples_folder: Path, expected: dict[str, Any]) -> None:
    kinds = {".bin": {None}, ".label": {None}, ".png": {"a PNG image"}, ".jpg": {"a JPEG image"}}
    kinds |= {".webp": {"a WebP image"}, ".pcd": {sniff.PCD}, ".yaml": {sniff.TEXT}, ".gif": {"a GIF image"}}
    for path in expected:
        suffix = Path(path).suffix
        if suffix in kinds:
            data = (samples_folder / path).read_bytes()
            assert sniff.foreign(data[: sniff.HEAD_BYTES]) in kinds[suffix], path


def test_an_image_under_the_name_of_a_scan_is_refused(samples_folder: Path) -> None:
    data = (samples_folder / "kitti/training/image_2/000000.png").read_bytes()
    with pytest.raises(FormatError, match="a PNG image"):
        KITTI_BIN.decode(data)


def test_counts_of_real_files(samples_folder: Path) -> None:
    size = (samples_folder / sorted(samples_folder.glob("nuscenes/samples/LIDAR_TOP/*.bin"))[0]).stat().st_size
    doubt = explain_counts(size, 16, 34_688, 1)
    assert doubt is not None
    assert "43,360 points if 4 columns" in doubt.found
    assert "34,688 points if 5 columns" in doubt.found
    assert explain_counts(size, 20, 34_688, 1) is None


def test_the_tree_of_semantickitti(samples_folder: Path) -> None:
    layout = detect_layout(samples_folder / "semantickitti")
    found = list(layout.samples(samples_folder / "semantickitti"))
    scans = [item for item in found if isinstance(item, SourceSample)]
    assert [(scan.name, scan.split, list(scan.fields)) for scan in scans] == [
        ("sequences/00/velodyne/000000", "train", ["points", "semantic", "instance"]),
        ("sequences/08/velodyne/000000", "val", ["points", "semantic", "instance"]),
        ("sequences/11/velodyne/000000", "test", ["points"]),
    ]
    assert [str(item) for item in found if not isinstance(item, SourceSample)] == [
        "no poses.txt in 3 sequences (00, 08, 11): packed without pose",
        "no times.txt in 3 sequences (00, 08, 11): packed without time",
    ]


def test_the_splits_of_semantic_kitti_api_are_the_official_ones(samples_folder: Path) -> None:
    splits = read_splits(samples_folder / "semantickitti-config" / "semantic-kitti.yaml")
    assert splits.names == ("train", "val", "test")
    assert splits.of["08"] == "val"
    assert [name for name, split in splits.of.items() if split == "test"] == [str(n) for n in range(11, 22)]
    assert len(splits.of) == 22
