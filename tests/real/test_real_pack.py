"""The real SemanticKITTI files: packed, read, verified and given back as `expected.json` says."""

import hashlib
import json

import numpy as np
import pytest

import fastload
from tests.support import run_fastload, tree_bytes


@pytest.fixture(scope="module")
def expected(samples_folder):
    return json.loads((samples_folder / "expected.json").read_text())


@pytest.fixture(scope="module")
def packed_real(samples_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("real") / "d"
    done = run_fastload("pack", "semantickitti", samples_folder / "semantickitti", out)
    assert done.returncode == 0, done.stderr
    return out


def test_info(packed_real, expected):
    done = run_fastload("info", packed_real, "--json")
    found = json.loads(done.stdout)
    scans = {k: v for k, v in expected.items() if k.startswith("semantickitti/") and k.endswith(".bin")}
    files = {k: v for k, v in expected.items() if k.startswith("semantickitti/sequences")}
    assert found["samples"] == len(scans) == 3
    assert found["points"] == sum(scan["points"] for scan in scans.values())
    assert found["source_bytes"] == sum(file["bytes"] for file in files.values())
    assert found["splits"] == {"test": 1, "train": 1, "val": 1}
    assert found["fields"]["points"]["columns"] == ["x", "y", "z", "intensity"]
    assert [found["fields"][name]["samples"] for name in ("points", "semantic", "pose")] == [3, 2, 0]
    assert found["lossy"] == []


@pytest.mark.parametrize("sequence", ["00", "08", "11"])
def test_arrays_and_label_histograms(packed_real, expected, sequence):
    dataset = fastload.PackedDataset(packed_real)
    sample = dataset[dataset.find(f"sequences/{sequence}/velodyne/000000")]
    scan = expected[f"semantickitti/sequences/{sequence}/velodyne/000000.bin"]
    points = sample["points"]
    assert points.shape == (scan["points"], scan["columns"])
    assert points[0].tolist() == scan["first"]
    assert points[-1].tolist() == scan["last"]
    assert points.min(0).tolist() == scan["min"]
    assert points.max(0).tolist() == scan["max"]
    np.testing.assert_allclose(points.mean(0, dtype=np.float64), scan["mean"], rtol=1e-12)
    assert hashlib.sha256(points.tobytes()).hexdigest() == scan["sha256"]
    label = expected.get(f"semantickitti/sequences/{sequence}/labels/000000.label")
    if label is None:
        assert "semantic" not in sample
        assert "instance" not in sample
        return
    ids, counts = np.unique(sample["semantic"], return_counts=True)
    assert {str(i): c for i, c in zip(ids.tolist(), counts.tolist(), strict=True)} == label["semantic_histogram"]
    assert int(sample["instance"].max()) == label["max_instance"]


def test_every_file_comes_back(packed_real, samples_folder, expected, tmp_path):
    done = run_fastload("unpack", packed_real, tmp_path / "again")
    assert done.returncode == 0, done.stderr
    found = tree_bytes(tmp_path / "again")
    assert found == tree_bytes(samples_folder / "semantickitti")
    for name, data in found.items():
        assert hashlib.sha256(data).hexdigest() == expected[f"semantickitti/{name}"]["sha256"]


def test_verify(packed_real):
    done = run_fastload("verify", packed_real)
    assert done.returncode == 0, done.stderr


def test_learning_map(packed_real, expected):
    dataset = fastload.PackedDataset(packed_real, "train", label_map="semantickitti")
    mapped = np.bincount(dataset[0]["semantic"], minlength=20)
    raw = expected["semantickitti/sequences/00/labels/000000.label"]["semantic_histogram"]
    assert mapped[1] == raw["10"] + raw["252"]
    assert mapped[9] == raw["40"]
    assert mapped[6] == raw["30"] + raw["254"]
    assert mapped[0] == raw["0"] + raw["1"] + raw["52"] + raw["99"]
    assert mapped.sum() == 123389
