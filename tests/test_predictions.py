"""Predictions as files: the right bytes (read here with numpy alone) for the right scans, or nothing and a reason."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset

import fastload
from fastload import LabelError, LabelMap, PackedDataset, SampleError, UsageError, export_labels
from fastload.errors import CorruptError
from fastload.layouts import registry
from fastload.layouts.base import PredictionLayout, SourceFile
from fastload.layouts.semantickitti import SCHEMA, SemanticKitti
from fastload.schema import Field, Schema
from fastload.store.manifest import read_manifest, write_manifest
from tests.support import REPO, MadeSample, run_python, tree_bytes, write_store, write_tree

pytestmark = pytest.mark.filterwarnings("ignore:semantic. raw ids that the layout:UserWarning")
SCANS = {"00/000000": 10, "00/000001": 1000, "08/000000": 8, "11/000000": 9, "11/000042": 12}
CAR, ROAD = (1, 10), (9, 40)  # train id, raw id


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    root = write_tree(tmp_path_factory.mktemp("source"), SCANS)
    shutil.rmtree(root / "sequences/11/labels")
    return root


@pytest.fixture(scope="module")
def root(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("packed") / "d"
    fastload.pack(source, out, shard_size=500)
    return out


@pytest.fixture
def dataset(root):
    with contextlib.closing(PackedDataset(root)) as dataset:
        yield dataset


@pytest.fixture
def mapped(root):
    with contextlib.closing(PackedDataset(root, label_map="semantickitti")) as dataset:
        yield dataset


def stored(source, name):
    """The uint32 labels of the source, by numpy alone."""
    return np.fromfile(source / f"{name.replace('velodyne', 'labels')}.label", "<u4")


def file_of(out, name):
    return Path(out) / f"{name.replace('velodyne', 'predictions')}.label"


def read(out, name):
    """Class and instance of a prediction file, by numpy alone."""
    labels = np.fromfile(file_of(out, name), "<u4")
    return labels & 0xFFFF, labels >> 16


def files(out):
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if not path.is_dir()) if out.exists() else []


def refused(tmp_path, error, *arguments, **options):
    """The message of a refusal that wrote nothing."""
    out = tmp_path / "out"
    with pytest.raises(error) as raised:
        export_labels(*arguments, out, **options)
    assert not out.exists()
    return str(raised.value)


# --- what is written


def test_the_official_place_and_form(dataset, tmp_path):
    number = dataset.find("sequences/11/velodyne/000042")
    raw = np.array([0, 1, 10, 11, 40, 252, 259, 65535, 99, 50, 51, 70])
    paths = export_labels(dataset, number, raw, tmp_path / "out")
    assert paths == [tmp_path / "out/sequences/11/predictions/000042.label"]
    assert files(tmp_path / "out") == ["sequences/11/predictions/000042.label"]
    assert paths[0].read_bytes() == raw.astype("<u4").tobytes()


def test_train_ids_become_raw_ids_by_the_datasets_map(mapped, root, tmp_path):
    number = mapped.find("sequences/11/velodyne/000000")
    export_labels(mapped, number, [1, 9, 0, 19, 1, 1, 1, 1, 1], tmp_path / "a")
    assert read(tmp_path / "a", mapped.names[number])[0].tolist() == [10, 40, 0, 81, 10, 10, 10, 10, 10]
    for label_map in ("semantickitti", LabelMap.load("semantickitti")):
        export_labels(PackedDataset(root), number, [1, 9, 0, 19, 1, 1, 1, 1, 1], tmp_path / "b", label_map=label_map)
        assert tree_bytes(tmp_path / "a") == tree_bytes(tmp_path / "b")


def test_a_map_that_is_given_goes_before_the_datasets_own(mapped, tmp_path):
    text = (
        "labels: {0: a, 7: b}\nlearning_map: {0: 0, 7: 1}\nlearning_map_inv: {0: 0, 1: 7}\nlearning_ignore: {0: true}\n"
    )
    (tmp_path / "own.yaml").write_text(text)
    number = mapped.find("sequences/11/velodyne/000000")
    export_labels(mapped, number, [1] * 9, tmp_path / "out", label_map=tmp_path / "own.yaml")
    assert set(read(tmp_path / "out", mapped.names[number])[0]) == {7}


def test_stored_instances_are_kept_and_absent_ones_are_zeros(dataset, source, tmp_path):
    semantics = [np.full(count, 40) for count in dataset.counts]
    export_labels(dataset, range(5), semantics, tmp_path / "out")
    for name in dataset.names:
        semantic, instance = read(tmp_path / "out", name)
        assert set(semantic) == {40}
        expected = stored(source, name) >> 16 if "/11/" not in name else np.zeros(len(instance))
        assert instance.tolist() == expected.tolist()
    assert (read(tmp_path / "out", "sequences/00/velodyne/000001")[1] > 0).any()


@pytest.mark.parametrize("fields", [("points",), ("semantic", "instance"), None])
def test_instances_are_found_whatever_the_dataset_reads(root, source, tmp_path, fields):
    dataset = PackedDataset(root, "val", fields=fields, dtypes={"instance": "int64"}, transform=lambda sample: None)
    export_labels(dataset, 0, np.zeros(8, int), tmp_path / "out")
    name = "sequences/08/velodyne/000000"
    assert read(tmp_path / "out", name)[1].tolist() == (stored(source, name) >> 16).tolist()


@pytest.mark.parametrize("instance", [0, 65535, np.uint16(7), torch.tensor(7), np.array(7)])
def test_one_instance_number_for_all_points(dataset, tmp_path, instance):
    export_labels(
        dataset, [0, 1], [np.zeros(count, int) for count in dataset.counts[:2]], tmp_path / "out", instance=instance
    )
    for name in dataset.names[:2]:
        assert set(read(tmp_path / "out", name)[1]) == {int(instance)}


def test_instances_of_each_point_in_every_form(dataset, tmp_path):
    counts = dataset.counts[[2, 0]]
    parts = [np.arange(count) * 60 for count in counts]
    padded = np.full((2, counts.max()), 99_999)
    for row, part in zip(padded, parts, strict=True):
        row[: len(part)] = part
    semantic = [np.zeros(count, int) for count in counts]
    for form, instance in enumerate((parts, np.concatenate(parts), padded, torch.tensor(padded))):
        export_labels(dataset, [2, 0], semantic, tmp_path / str(form), instance=instance)
        for number, part in zip((2, 0), parts, strict=True):
            assert read(tmp_path / str(form), dataset.names[number])[1].tolist() == part.tolist()


DTYPES = ["u1", "i1", "u2", "<i2", ">i2", ">u4", "u8", "i8"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_integers_of_any_width_and_byte_order(mapped, tmp_path, dtype):
    values = np.arange(10).astype(dtype)
    number = mapped.find("sequences/00/velodyne/000000")
    export_labels(mapped, number, values, tmp_path / "out")
    assert read(tmp_path / "out", mapped.names[number])[0].tolist() == [0, 10, 11, 15, 18, 20, 30, 31, 32, 40]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"])
def test_tensors_of_any_width_gaps_and_gradients_around_them(mapped, tmp_path, dtype):
    wide = torch.arange(20).to(getattr(torch, dtype)).reshape(10, 2)[:, 0]
    number = mapped.find("sequences/00/velodyne/000000")
    export_labels(mapped, torch.tensor(number), wide, tmp_path / "out")
    assert read(tmp_path / "out", mapped.names[number])[0].tolist()[:3] == [0, 11, 18]


def test_forms_of_many_agree(dataset, tmp_path):
    rng = np.random.default_rng(5)
    numbers = [4, 0, 2, -2]
    parts = [rng.integers(0, 65536, dataset.counts[number]) for number in numbers]
    padded = np.full((4, max(map(len, parts))), -5)
    for row, part in zip(padded, parts, strict=True):
        row[: len(part)] = part
    whole = np.concatenate(parts)
    forms = [
        (numbers, parts), (np.array(numbers), tuple(parts)), (torch.tensor(numbers), [torch.tensor(p) for p in parts]),
        (numbers, [part.tolist() for part in parts]), (numbers, whole), (numbers, torch.tensor(whole)),
        (numbers, whole.tolist()), (numbers, padded), (numbers, torch.tensor(padded)),
        (numbers, torch.tensor_split(torch.tensor(whole), np.cumsum([len(p) for p in parts])[:-1].tolist())),
    ]  # fmt: skip
    for form, (index, semantic) in enumerate(forms):
        paths = export_labels(dataset, index, semantic, tmp_path / str(form))
        assert paths == [file_of(tmp_path / str(form), dataset.names[number]) for number in numbers]
        for number, part in zip(numbers, parts, strict=True):
            assert read(tmp_path / str(form), dataset.names[number])[0].tolist() == part.tolist()


def test_a_lone_sample_as_one_of_many(dataset, tmp_path):
    for form, semantic in enumerate(([[1] * 8], [1] * 8, np.ones(8, int), np.ones((1, 8), int))):
        number = dataset.find("sequences/08/velodyne/000000")
        assert len(export_labels(dataset, [number], semantic, tmp_path / str(form))) == 1


def test_none_of_many(dataset, tmp_path):
    for semantic in ([], np.empty(0, np.int64), torch.empty(0, dtype=torch.int64)):
        assert export_labels(dataset, [], semantic, tmp_path / "out") == []
    assert not (tmp_path / "out").exists()


def test_numbers_are_those_of_the_dataset_that_is_given(root, dataset, tmp_path):
    test = PackedDataset(root, "test")
    chosen = dataset.subset([4, 1])
    for given_, number in ((test, 1), (test, -1), (chosen, 0), (chosen, -1), (dataset, np.int8(-5))):
        (path,) = export_labels(given_, number, np.zeros(given_.counts[number], int), tmp_path / "out")
        assert path == file_of(tmp_path / "out", given_.names[number])


def test_batches_of_a_loader(mapped, tmp_path, source):
    loader = DataLoader(mapped.subset([0, 1, 2]), batch_size=2)
    train = PackedDataset(mapped.root, "train", label_map="semantickitti")
    for form, layout in enumerate(("concat", "padded")):
        collate = fastload.Collate(layout=layout).bind(train.schema)
        loader = DataLoader(train, batch_size=2, collate_fn=collate, num_workers=0)
        for batch in loader:
            export_labels(train, batch["index"], batch["semantic"], tmp_path / str(form), instance=batch["instance"])
        for name in train.names:
            raw = stored(source, name)
            semantic, instance = read(tmp_path / str(form), name)
            assert semantic.tolist() == LabelMap.load("semantickitti").inverse(
                LabelMap.load("semantickitti").forward(raw & 0xFFFF)
            ).tolist()  # fmt: skip
            assert instance.tolist() == (raw >> 16).tolist()


def test_a_loader_with_workers(root, tmp_path):
    dataset = PackedDataset(root, "test", fields=("points",))
    for batch in DataLoader(dataset, batch_size=2, collate_fn=dataset.collate, num_workers=1):
        classes = (batch["points"][:, 0] > 0).long()
        export_labels(dataset, batch["index"], classes, tmp_path / "out", label_map="semantickitti")
    for sample in dataset:
        expected = np.where(sample["points"][:, 0] > 0, 10, 0)
        assert read(tmp_path / "out", sample["name"])[0].tolist() == expected.tolist()


CANONICAL = LabelMap.load("semantickitti")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([raw for raw, _ in CANONICAL.train_ids]), min_size=10, max_size=10), st.data())
def test_mapped_and_written_ids_are_the_canonical_ones(root, tmp_path_factory, raw, data):
    """moving-car (252) comes back as car (10): each class's own raw id, and every one of its ids gives it."""
    out = tmp_path_factory.mktemp("canonical")
    dataset = PackedDataset(root)
    number = dataset.find("sequences/00/velodyne/000000")
    instance = np.array(data.draw(st.lists(st.integers(0, 65535), min_size=10, max_size=10)))
    export_labels(dataset, number, CANONICAL.forward(raw), out, instance=instance, label_map=CANONICAL)
    written = np.frombuffer(file_of(out, dataset.names[number]).read_bytes(), "<u4")
    train = dict(CANONICAL.train_ids)
    assert [train[label & 0xFFFF] for label in written.tolist()] == [train[label] for label in raw]
    assert [label & 0xFFFF for label in written.tolist()] == [CANONICAL.raw_ids[train[label]] for label in raw]
    assert (written >> 16).tolist() == instance.tolist()
    shutil.rmtree(out)


def test_real_labels_come_back(samples_folder, tmp_path):
    expected = json.loads((samples_folder / "expected.json").read_text())
    fastload.pack(samples_folder / "semantickitti", tmp_path / "d")
    dataset = PackedDataset(tmp_path / "d", fields=("semantic",))
    for sequence in ("00", "08"):
        number = dataset.find(f"sequences/{sequence}/velodyne/000000")
        (path,) = export_labels(dataset, number, dataset[number]["semantic"], tmp_path / "out")
        label = f"semantickitti/sequences/{sequence}/labels/000000.label"
        assert path.read_bytes() == (samples_folder / label).read_bytes()
        labels = np.fromfile(path, "<u4")
        ids, counts = np.unique(labels & 0xFFFF, return_counts=True)
        histogram = dict(zip(map(str, ids.tolist()), counts.tolist(), strict=True))
        assert histogram == expected[label]["semantic_histogram"]
        assert int((labels >> 16).max()) == expected[label]["max_instance"]
    test = dataset.find("sequences/11/velodyne/000000")
    points = expected["semantickitti/sequences/11/velodyne/000000.bin"]["points"]
    (path,) = export_labels(dataset, test, np.full(points, 9), tmp_path / "out", label_map="semantickitti")
    assert path.read_bytes() == points * b"\x28\0\0\0"


def test_a_scan_without_points_gives_an_empty_file(tmp_path):
    sample = MadeSample("sequences/11/velodyne/000000", "test", {"points": np.zeros((0, 4), np.float32)})
    write_store(tmp_path / "d", SCHEMA, [sample])
    claim_layout(tmp_path / "d", "semantickitti")
    for semantic in ([], np.empty(0, int)):
        (path,) = export_labels(PackedDataset(tmp_path / "d"), 0, semantic, tmp_path / "out")
        assert path.read_bytes() == b""


def test_a_second_run_replaces_the_first_and_leaves_other_files(dataset, tmp_path):
    for value in (10, 40):
        (path,) = export_labels(dataset, 0, np.full(dataset.counts[0], value), tmp_path / "out", instance=0)
        assert set(np.fromfile(path, "<u4")) == {value}
        (path.parent / "mine.txt").write_text("precious")
    assert sorted(os.listdir(path.parent)) == sorted([path.name, "mine.txt"])
    assert (path.parent / "mine.txt").read_text() == "precious"


def test_the_same_sample_twice(dataset, tmp_path):
    count = int(dataset.counts[0])
    paths = export_labels(dataset, [0, 1, 0 - len(dataset)], [np.full(n, 3) for n in (count, dataset.counts[1], count)],
                          tmp_path / "out")  # fmt: skip
    assert paths[0] == paths[2] != paths[1]
    assert len(files(tmp_path / "out")) == 2
    text = refused(tmp_path / "x", LabelError, dataset, [0, 1, 0], [np.full(n, 3 + i) for i, n in
                   enumerate((count, dataset.counts[1], count))])  # fmt: skip
    assert f"sample {dataset.names[0]}: given twice, with different labels" in text
    assert dataset.names[1] not in text
    same = [np.full(count, 3)] * 2
    text = refused(tmp_path / "x", LabelError, dataset, [0, 0], same, instance=[np.full(count, 1), np.full(count, 2)])
    assert "given twice" in text


def test_relative_paths_and_text(dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (path,) = export_labels(dataset, 0, np.zeros(dataset.counts[0], int), "out")
    assert path == file_of("out", dataset.names[0])
    assert path.exists()
    (path,) = export_labels(dataset, 0, np.zeros(dataset.counts[0], int), ".")
    assert path.exists()


def test_names_that_are_no_utf8(tmp_path):
    source = write_tree(tmp_path / "source", {"00/000000": 5}, labels=False)
    velodyne = source / "sequences/00/velodyne"
    os.rename(velodyne / "000000.bin", os.fsencode(velodyne) + b"/a\xff\xe9.bin")
    fastload.pack(source, tmp_path / "d")
    export_labels(PackedDataset(tmp_path / "d"), 0, [1, 2, 3, 4, 5], tmp_path / "out")
    assert os.listdir(os.fsencode(tmp_path / "out/sequences/00/predictions")) == [b"a\xff\xe9.label"]
    code = """
import sys
from fastload import PackedDataset, export_labels
print(*map(ascii, export_labels(PackedDataset(sys.argv[1]), 0, [1, 2, 3, 4, 5], sys.argv[2])))
"""
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run_python(code, tmp_path / "d", tmp_path / "other", env=environment)
    assert done.returncode == 0, done.stderr
    assert os.listdir(os.fsencode(tmp_path / "other/sequences/00/predictions")) == [b"a\xff\xe9.label"]


# --- what is refused


def test_predictions_of_a_filtered_scan_are_refused_with_both_counts_and_both_files(dataset, tmp_path):
    number = dataset.find("sequences/00/velodyne/000001")
    text = refused(tmp_path, LabelError, dataset, number, np.ones(994, int))
    assert "994 labels for 1,000 points" in text
    assert "sample sequences/00/velodyne/000001" in text
    assert str(tmp_path / "out/sequences/00/predictions/000001.label") in text
    assert "full[mask] = labels, or labels[inverse]" in text
    assert text.endswith("nothing was written")
    assert issubclass(LabelError, SampleError)
    for count in (0, 999, 1001, 4000):
        assert f"{count:,} labels for 1,000 points" in refused(
            tmp_path, LabelError, dataset, number, np.ones(count, int)
        )


def test_the_bad_ones_are_named_and_the_good_ones_are_not(dataset, tmp_path):
    parts = [np.ones(count, int) for count in dataset.counts]
    bad = dataset.find("sequences/00/velodyne/000001")
    parts[bad] = parts[bad][:994]
    text = refused(tmp_path, LabelError, dataset, range(5), parts)
    assert "1 of 5 samples" in text
    assert set(re.findall(r"sequences/\d+/velodyne/\d+", text)) == {dataset.names[bad]}
    parts[0] = np.append(parts[0], 1)
    text = refused(tmp_path, LabelError, dataset, range(5), parts)
    assert text.startswith("2 problems:\n")
    assert set(re.findall(r"sequences/\d+/velodyne/\d+", text)) == {dataset.names[bad], dataset.names[0]}


def test_a_long_list_of_bad_ones_is_cut(tmp_path):
    source = write_tree(tmp_path / "s", {f"00/{number:06d}": 5 for number in range(40)}, labels=False)
    fastload.pack(source, tmp_path / "d")
    text = refused(tmp_path, LabelError, PackedDataset(tmp_path / "d"), range(40), [[1] * 4] * 40)
    assert len(text.splitlines()) == 23
    assert "... and 20 more\n40 of 40 samples: nothing was written" in text


@pytest.mark.parametrize("shape", [(1009,), (1011,), (2, 999), (2, 1001), (1000, 2), (1, 1000), (2, 1000, 1), (0,)])
def test_an_array_that_cannot_be_taken_apart_tells_the_counts(dataset, tmp_path, shape):
    semantic = np.ones(shape, int)
    numbers = [dataset.find(f"sequences/00/velodyne/{stem}") for stem in ("000001", "000000")]
    text = refused(tmp_path, LabelError, dataset, numbers, semantic)
    assert "for 1,010 points in 2 samples (sequences/00/velodyne/000001 1,000, sequences/00/velodyne/000000 10)" in text
    assert "expected (1010,), or padded (2, 1000)" in text
    assert "a list of one array a sample tells which of them does not fit" in text


@pytest.mark.parametrize(("semantic", "found", "advice"), [
    (np.zeros((9, 20)), "float64 values of shape (9, 20) such as 0, 0, 0", ".argmax(-1)"),
    (torch.full((9, 20), 0.25), "float32 values of shape (9, 20) such as 0.25, 0.25, 0.25", ".argmax(-1)"),
    (torch.zeros(9, 20, dtype=torch.bfloat16, requires_grad=True), "bfloat16 values of shape (9, 20)", ".argmax(-1)"),
    (np.ones(9, np.float16), "float16 values of shape (9,) such as 1, 1, 1", "convert them: .astype(np.int64)"),
    (np.array([1, np.nan, 2.5] * 3), "such as nan, 2.5, nan", "mend what made them"),
    (np.array([np.inf] * 9), "such as inf, inf, inf", "mend what made them"),
    ([1.0] * 9, "float64 values", "convert them"),
    (np.ones(9, bool), "bool values of shape (9,)", "give integers"),
    (torch.ones(9, dtype=torch.bool), "bool values of shape (9,)", "give integers"),
    ([1] * 8 + [None], "object values", "give integers"),
    ([1] * 8 + ["x"], "values of shape (9,)", "give integers"),
    ([1, 2, [3]], "list that is no array of numbers", "expected an array of integers"),
    ([[1, 2], [3]], "a list of 2 arrays for a lone sample number", "expected (9,)"),
    ("car", "values of shape ()", "give integers"),
    (None, "object values of shape ()", "give integers"),
    (7, "values of shape ()", "expected (9,)"),
    (np.ones((9, 1), int), "values of shape (9, 1)", "expected (9,)"),
    (np.ones((1, 9), int), "values of shape (1, 9)", "expected (9,)"),
    (torch.ones((1, 9), dtype=torch.int32), "values of shape (1, 9)", "one of many too: index=["),
    ([np.ones(9, int)], "a list of 1 array for a lone sample number", "in a list too: index=["),
    ((torch.ones(9),), "a list of 1 array for a lone sample number", "in a list too: index=["),
    ([[1] * 9], "a list of 1 array for a lone sample number", "in a list too: index=["),
    ([1] * 8 + [True], "bool values among the numbers", "give integers"),
    ([np.False_] + [1] * 8, "bool values among the numbers", "give integers"),
    ((*[1] * 8, torch.tensor(True)), "bool values among the numbers", "give integers"),
    ([np.array(True)] + [2] * 8, "bool values among the numbers", "give integers"),
    ([True] * 9, "bool values among the numbers", "give integers"),
    (np.ma.masked_equal(np.arange(9), 3), "a masked array", "convert it first"),
    (torch.ones(9, dtype=torch.int64).to_sparse(), "Tensor that is no array of numbers", "convert it first"),
    (torch.ones(9, dtype=torch.int64, device="meta"), "Tensor that is no array of numbers", "convert it first"),
    (np.full(9, 65536), "values outside 0 to 65535: 65536 (9 points)", "label_map="),
    (np.arange(9) - 2, "values outside 0 to 65535: -2 (1 point), -1 (1 point)", "label_map="),
    (np.full(9, 2**64 - 1, np.uint64), "values outside 0 to 65535: 18446744073709551615 (9 points)", "label_map="),
], ids=lambda value: str(value)[:30] if isinstance(value, str) else "")  # fmt: skip
def test_what_is_no_label_is_refused_by_name(dataset, tmp_path, semantic, found, advice):
    number = dataset.find("sequences/11/velodyne/000000")
    text = refused(tmp_path, LabelError, dataset, number, semantic)
    for part in ("sample sequences/11/velodyne/000000, field semantic: ", found, advice, "nothing was written"):
        assert part in text
    other = dataset.find("sequences/11/velodyne/000042")
    text = refused(tmp_path, LabelError, dataset, [other, number], [np.zeros(12, int), semantic])
    assert "sample sequences/11/velodyne/000000, field semantic: " in text
    assert "000042" not in text


def test_scores_of_a_whole_batch_are_refused_with_the_samples(dataset, tmp_path):
    text = refused(tmp_path, LabelError, dataset, range(5), torch.rand(1039, 20))
    assert (
        f"sample {', '.join(dataset.names[:3])} and 2 more, field semantic: float32 values of shape (1039, 20)" in text
    )
    assert ".argmax(-1)" in text


def test_train_ids_that_the_map_lacks_are_listed(mapped, dataset, tmp_path):
    number = mapped.find("sequences/11/velodyne/000000")
    ids = [0, 19, 20, 255, 255, -1, 252, 1, 2]
    text = refused(tmp_path, LabelError, mapped, number, ids)
    assert "255 (2 points), -1 (1 point), 20 (1 point), 252 (1 point); expected 0 to 19" in text
    assert "for raw ids open it without one" in text
    text = refused(tmp_path, LabelError, dataset, number, ids, label_map="semantickitti")
    assert "255 (2 points)" in text
    assert "or give the map that they are of" in text


@pytest.mark.parametrize(("instance", "found"), [
    (65536, "values outside 0 to 65535: 65536 (9 points)"), (-1, "values outside 0 to 65535: -1 (9 points)"),
    (True, "bool values"), (0.5, "float64 values of shape () such as 0.5"), ("x", "values of shape ()"),
    ([1] * 8, "8 labels for 9 points"), (np.full(9, 70000), "70000 (9 points)"), (np.ones(9), "float64 values"),
    (torch.tensor(True), "bool values"),
])  # fmt: skip
def test_what_is_no_instance_is_refused(dataset, tmp_path, instance, found):
    number = dataset.find("sequences/11/velodyne/000000")
    text = refused(tmp_path, LabelError, dataset, number, np.zeros(9, int), instance=instance)
    assert "sample sequences/11/velodyne/000000, field instance: " in text
    assert found in text


@pytest.mark.parametrize(("index", "semantic"), [
    ([0, 1], [np.zeros(9, int), [0] * 11 + [True]]), ([0, 1], [0] * 20 + [True]), ([0, 1], ([0] * 9, [np.True_] * 12)),
    ([0, 1], [torch.zeros(9, dtype=torch.int64), torch.ones(12, dtype=torch.bool)]),
])  # fmt: skip
def test_bools_among_many_are_refused_too(dataset, tmp_path, index, semantic):
    assert "bool values" in refused(tmp_path, LabelError, dataset, index, semantic)
    whole = [np.zeros(count, int) for count in dataset.counts[:2]]
    assert "bool values" in refused(tmp_path, LabelError, dataset, index, whole, instance=semantic)


class Odd:
    """What numpy is to make an array of, and cannot."""

    def __init__(self, kind, words):
        self.kind, self.words = kind, words

    def __array__(self, dtype=None, copy=None):
        raise self.kind(*self.words)


ERRORS = [TypeError, ValueError, RuntimeError, KeyError, OSError, IndexError, ZeroDivisionError, AttributeError,
          MemoryError, AssertionError, StopIteration, LookupError]  # fmt: skip


@pytest.mark.parametrize("words", [(), ("two\nlines",), ("",)])
@pytest.mark.parametrize("kind", ERRORS)
def test_values_that_fail_to_become_an_array_are_refused_whatever_they_raise(dataset, tmp_path, kind, words):
    odd = Odd(kind, words)
    for arguments, options in (((0, odd), {}), (([0, 1], [np.zeros(9, int), odd]), {}), (([0, 1], odd), {}),
                               ((0, np.zeros(9, int)), {"instance": odd})):  # fmt: skip
        text = refused(tmp_path, LabelError, dataset, *arguments, **options)
        assert "Odd that is no array of numbers (" in text
    assert "index: found " in refused(tmp_path, UsageError, dataset, odd, np.zeros(9, int))


@pytest.mark.parametrize("index", [
    True, False, np.True_, [0, True], [True, False], np.array([True]), torch.tensor(True), torch.tensor([True]),
    1.0, [0.0], "0", None, [[0]], np.zeros((1, 1), int), ["a"], torch.tensor([0.5]), slice(2), {0},
], ids=repr)  # fmt: skip
def test_what_is_no_sample_number_is_refused(dataset, tmp_path, index):
    assert "index: found " in refused(tmp_path, UsageError, dataset, index, np.zeros(9, int))


def test_numbers_outside_are_an_index_error(dataset, tmp_path):
    for index in (5, -6, [0, 5], 2**70):
        with contextlib.suppress(UsageError):  # what no int64 holds is no number either
            assert "of 5 in " in refused(tmp_path, IndexError, dataset, index, np.zeros(9, int))


def test_lists_of_another_length(dataset, tmp_path):
    text = refused(tmp_path, UsageError, dataset, [0, 1], [np.zeros(9, int)])
    assert text == "semantic: 1 array for 2 samples; give one array a sample"
    text = refused(tmp_path, UsageError, dataset, [0], [np.zeros(9, int)] * 2)
    assert "semantic: 2 arrays for 1 sample" in text


def test_something_else_than_a_packed_dataset(dataset, tmp_path):
    for other in (Subset(dataset, [0]), str(dataset.root), None):
        text = refused(tmp_path, UsageError, other, 0, [1])
        assert f"dataset: found {type(other).__name__}; expected the PackedDataset" in text


def test_a_map_that_is_none(dataset, tmp_path):
    assert "label_map 'nope'" in refused(tmp_path, UsageError, dataset, 0, [1], label_map="nope")


@pytest.mark.parametrize("inside", ["", "sequences", "new/folder"])
def test_the_packed_dataset_is_not_written_to(root, tmp_path, inside):
    shutil.copytree(root, tmp_path / "d")
    (tmp_path / "link").symlink_to(tmp_path / "d")
    before = tree_bytes(tmp_path / "d")
    dataset = PackedDataset(tmp_path / "d")
    for out in (tmp_path / "d" / inside, tmp_path / "link" / inside, tmp_path / "d/../d" / inside):
        with pytest.raises(UsageError, match="in, the folder of the packed dataset"):
            export_labels(dataset, 0, np.zeros(dataset.counts[0], int), out)
    (tmp_path / "out/sequences/11").mkdir(parents=True)
    shutil.move(tmp_path / "d", tmp_path / "out/sequences/11/predictions")
    dataset = PackedDataset(tmp_path / "out/sequences/11/predictions")
    with pytest.raises(UsageError, match="in, the folder of the packed dataset"):
        export_labels(dataset, 0, np.zeros(dataset.counts[0], int), tmp_path / "out")
    assert tree_bytes(tmp_path / "out/sequences/11/predictions") == before


@pytest.mark.parametrize("out", ["", None, 3, b"out"])
def test_an_out_that_is_no_path(dataset, tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"out: found .*; expected the path of a folder"):
        export_labels(dataset, 0, np.zeros(dataset.counts[0], int), out)
    assert os.listdir(tmp_path) == []


def test_an_out_that_is_a_file_or_leads_nowhere(dataset, tmp_path):
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for out in ("file", "link"):
        with pytest.raises(UsageError, match="a file is there, or a link that leads nowhere"):
            export_labels(dataset, 0, np.zeros(dataset.counts[0], int), tmp_path / out)
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]


def too_long(folder):
    return folder / "new" / ("x" * 256)


def long_in_all(folder):
    return folder.joinpath(*["x" * 200] * 20)


def nearly_too_long(folder):
    """The folder's path is one that the system takes, that of the file in it is not."""
    left = 4090 - len(os.fsencode(folder))
    return folder.joinpath(*["x" * 200] * (left // 201), "x" * (left % 201 - 1 or 1))


@pytest.mark.parametrize("out", [
    "file/below", "file/below/deeper", "loop", "loop/below", "loop/a/b", "fifo/below", "/dev/null",
    "/dev/null/x", "a\0b", "a/\0", "a\udcff\ud800", too_long, long_in_all, nearly_too_long, "taken", "other", "gone",
    "\0", "dangling", "dangling/below", "dangling/a/b",
], ids=lambda out: ascii(out) if isinstance(out, str) else out.__name__)  # fmt: skip
def test_where_no_file_can_lie_is_refused_before_any_is_written(dataset, tmp_path, monkeypatch, out):
    """Below a file, a loop of links, or a link to nowhere; names that no file can have; a file in a folder's place."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("precious")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "taken/sequences").mkdir(parents=True)
    (tmp_path / "taken/sequences/08").write_text("precious")
    (tmp_path / "other/sequences/08").mkdir(parents=True)
    (tmp_path / "other/sequences/08/predictions").symlink_to("predictions")
    (tmp_path / "gone/sequences").mkdir(parents=True)
    (tmp_path / "gone/sequences/08").symlink_to("nowhere")
    before = sorted(tmp_path.rglob("*"))
    semantics = [np.zeros(count, int) for count in dataset.counts]
    with pytest.raises(UsageError) as raised:
        export_labels(dataset, range(5), semantics, out(tmp_path) if callable(out) else out)
    assert "choose another" in str(raised.value) or "expected the path of a folder" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_place_that_is_taken_meanwhile_is_named(dataset, tmp_path, monkeypatch):
    """What the check beforehand could not see comes from the system: as the same kind of error."""
    import fastload.predictions

    for check in ("_check_place", "_check_parents"):
        monkeypatch.setattr(fastload.predictions, check, lambda path: None)
    (tmp_path / "file").write_text("precious")
    (tmp_path / "loop").symlink_to("loop")
    file_of(tmp_path / "out", dataset.names[0]).mkdir(parents=True)
    for out in ("file/below", "loop/below", "new/" + "x" * 256, "out"):
        with pytest.raises(UsageError, match=r"nothing can be written there \(.*\); choose another folder"):
            export_labels(dataset, 0, np.zeros(9, int), tmp_path / out)


def test_links_do_not_lead_out_and_one_in_a_files_place_is_replaced(dataset, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("precious")
    semantics = [np.zeros(count, int) for count in dataset.counts[[0, 4]]]
    assert (dataset.names[0][10:12], dataset.names[4][10:12]) == ("11", "08")
    (tmp_path / "out/sequences").mkdir(parents=True)
    (tmp_path / "out/sequences/08").symlink_to(outside)
    with pytest.raises(UsageError, match="a link that leads out of"):
        export_labels(dataset, [0, 4], semantics, tmp_path / "out")
    assert files(tmp_path / "out") == []
    (tmp_path / "out/sequences/08").unlink()
    target = file_of(tmp_path / "out", dataset.names[4])
    target.parent.mkdir(parents=True)
    target.symlink_to(outside / "victim")
    (tmp_path / "elsewhere").symlink_to(tmp_path / "out")
    export_labels(dataset, [0, 4], semantics, tmp_path / "elsewhere")
    assert not target.is_symlink()
    assert target.stat().st_size == 32
    assert tree_bytes(outside) == {"victim": b"precious"}


def claim_layout(root, name):
    """Let the manifest say that the dataset has this layout."""
    from dataclasses import replace

    write_manifest(root, replace(read_manifest(root), layout=name))


NAMES = ["sequences/../velodyne/x", "sequences/00/velodyne/a\0b", "sequences/00/velodyne", "x/00/velodyne/1", "",
         "sequences/00/velodyne/a/b", "sequences//velodyne/1", "sequences/00/velodyne/", "/sequences/00/velodyne/1",
         "../../sequences/00/velodyne/1", "sequences/00/image/1"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_made_to_do_harm_write_nothing(tmp_path, name):
    write_store(tmp_path / "d", SCHEMA, [MadeSample(name, "all", {"points": np.zeros((2, 4), np.float32)})])
    claim_layout(tmp_path / "d", "semantickitti")
    with pytest.raises((SampleError, CorruptError), match=r"expected a name such as|outside the folder"):
        export_labels(PackedDataset(tmp_path / "d"), 0, [1, 2], tmp_path / "a/b/out")
    assert not (tmp_path / "a").exists()


def test_a_name_of_dots_stays_inside(tmp_path):
    name = "sequences/./velodyne/.."
    write_store(tmp_path / "d", SCHEMA, [MadeSample(name, "all", {"points": np.zeros((2, 4), np.float32)})])
    claim_layout(tmp_path / "d", "semantickitti")
    export_labels(PackedDataset(tmp_path / "d"), 0, [1, 2], tmp_path / "out")
    assert files(tmp_path / "out") == ["sequences/predictions/...label"]


def test_a_layout_without_prediction_files_says_so(tmp_path):
    schema = Schema((Field("points", "array", "float32", (4,), "points"),))
    write_store(tmp_path / "d", schema, [MadeSample("n", "all", {"points": np.zeros((2, 4), np.float32)})])
    for layout in ("made", "silent"):
        claim_layout(tmp_path / "d", layout)
        text = refused(tmp_path, UsageError, PackedDataset(tmp_path / "d"), 0, [1, 2])
        assert f"has the layout '{layout}', for which no form of prediction files is known" in text
        assert "those of semantickitti are" in text


class Lidarseg(SemanticKitti):
    """A layout whose predictions have classes only."""

    def prediction_file(self, sample):
        return SourceFile(f"lidarseg/{sample.replace('/', '_')}.bin", "bytes")


class Bytes:
    """One byte a point."""

    name, parts = "bytes", ("semantic",)

    def encode(self, parts):
        assert list(parts) == ["semantic"]
        return parts["semantic"].astype("u1").tobytes()


def test_place_and_format_are_the_layouts_choice(root, tmp_path, monkeypatch):
    from fastload.formats.registry import FORMATS

    assert isinstance(SemanticKitti(), PredictionLayout)
    monkeypatch.setitem(registry.BUILT_IN, "semantickitti", Lidarseg())
    monkeypatch.setitem(FORMATS, "bytes", Bytes())
    dataset = PackedDataset(root)
    (path,) = export_labels(dataset, 0, np.arange(9), tmp_path / "out")
    assert path == tmp_path / "out/lidarseg/sequences_11_velodyne_000000.bin"
    assert path.read_bytes() == bytes(range(9))
    text = refused(tmp_path / "x", UsageError, dataset, 0, np.arange(9), instance=0)
    assert "instance: the prediction files of layout 'semantickitti' have no place for it" in text


def test_a_sample_without_points(tmp_path):
    write_store(tmp_path / "d", SCHEMA, [MadeSample("sequences/00/velodyne/1", "all", {"pose": np.zeros((4, 4))})])
    claim_layout(tmp_path / "d", "semantickitti")
    text = refused(tmp_path, SampleError, PackedDataset(tmp_path / "d"), 0, [])
    assert "sample sequences/00/velodyne/1 has no points" in text


# --- raw ids that look like train ids


@pytest.mark.parametrize("form", [list, np.concatenate, lambda parts: torch.tensor(np.concatenate(parts))])
def test_train_ids_without_a_map_are_written_with_one_warning(dataset, tmp_path, form):
    """The ids with their points, most frequent first, over all samples; and where in the caller's code."""
    names = dataset.names[:3]
    parts = [np.full(count, 9) for count in dataset.counts[:3]]
    parts[0][:2], parts[1][:3], parts[2][:] = 10, 5, 40
    count = sum(len(part) - least for part, least in zip(parts[:2], (2, 3), strict=True))
    with pytest.warns(UserWarning, match="raw ids") as caught:
        export_labels(dataset, [0, 1, 2, 0], form([*parts, parts[0]]), tmp_path / "out")
    (warning,) = caught
    text = str(warning.message)
    assert f"raw ids that the layout 'semantickitti' does not have: 9 ({count} points), 5 (3 points); expected" in text
    assert "label_map='semantickitti'" in text
    assert warning.filename == __file__
    assert [read(tmp_path / "out", name)[0].tolist() for name in names] == [part.tolist() for part in parts]


def test_many_such_ids_are_counted(dataset, tmp_path):
    number = dataset.find("sequences/00/velodyne/000001")
    shown = ", ".join(f"{number} (1 point)" for number in range(300, 305))
    with pytest.warns(UserWarning, match=re.escape(f"{shown} and 995 more ids; expected")) as caught:
        export_labels(dataset, number, np.arange(300, 1300), tmp_path / "out")
    assert len(caught) == 1


@pytest.mark.parametrize("ids", [[raw for raw, _ in LabelMap.load("semantickitti").raw_names], [10], [0, 1, 10]])
def test_known_raw_ids_and_mapped_ones_give_no_warning(dataset, mapped, tmp_path, ids):
    number = dataset.find("sequences/00/velodyne/000001")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (file,) = export_labels(dataset, number, np.resize(ids, 1000), tmp_path / "out", instance=0)
        assert np.array_equal(np.fromfile(file, "<u4"), np.resize(ids, 1000))
        export_labels(mapped, number, np.resize(range(20), 1000), tmp_path / "out")
        export_labels(dataset, number, np.resize(range(20), 1000), tmp_path / "out", label_map="semantickitti")
        export_labels(dataset, [], [], tmp_path / "out")


def test_where_warnings_are_errors_nothing_is_written(dataset, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "label_map=" in refused(tmp_path, UserWarning, dataset, 0, np.full(9, 9))


# --- faults


def test_damage_of_stored_instances_is_named(root, source, tmp_path):
    shutil.copytree(root, tmp_path / "d")
    instance = (stored(source, "sequences/00/velodyne/000001") >> 16).astype("<u2").tobytes()
    (shard,) = [path for path in (tmp_path / "d/shards").iterdir() if instance in path.read_bytes()]
    shard.write_bytes(shard.read_bytes().replace(instance, bytes([instance[0] ^ 1]) + instance[1:], 1))
    dataset = PackedDataset(tmp_path / "d", verify="never")
    number = dataset.find("sequences/00/velodyne/000001")
    with pytest.raises(CorruptError, match="sequences/00/velodyne/000001"):
        export_labels(dataset, number, np.zeros(1000, int), tmp_path / "out")
    assert files(tmp_path / "out") == []
    semantics = [np.zeros(count, int) for count in dataset.counts]
    for order in (range(5), range(4, -1, -1)):
        with pytest.raises(CorruptError, match="sequences/00/velodyne/000001"):
            export_labels(dataset, order, [semantics[at] for at in order], tmp_path / "out")
        assert files(tmp_path / "out") == []
    assert len(export_labels(dataset, range(5), semantics, tmp_path / "out", instance=0)) == 5


def test_a_full_disk_is_a_clear_error_and_leaves_the_old_file(root, tmp_path):
    code = """
import errno, os, sys
import numpy as np
from fastload import PackedDataset, ResourceError, export_labels
from fastload.store import fs
dataset = PackedDataset(sys.argv[1])
number = dataset.find("sequences/00/velodyne/000001")
export_labels(dataset, number, np.full(1000, 10), sys.argv[2], instance=0)
real = os.fdopen
class Full:
    def __init__(self, file): self.file = file
    def __enter__(self): return self
    def __exit__(self, *ignored): self.file.close()
    def write(self, data): raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
fs.os.fdopen = lambda *arguments: Full(real(*arguments))
try:
    export_labels(dataset, number, np.full(1000, 40), sys.argv[2], instance=0)
except ResourceError as error:
    print(error)
"""
    done = run_python(code, root, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "sequences/00/predictions/000001.label: no space to write it" in done.stdout
    assert files(tmp_path / "out") == ["sequences/00/predictions/000001.label"]
    assert set(read(tmp_path / "out", "sequences/00/velodyne/000001")[0]) == {10}


def test_a_folder_in_the_place_of_a_file_is_named_and_nothing_stays(dataset, tmp_path):
    for number in (0, 4):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        file_of(tmp_path / "out", dataset.names[number]).mkdir(parents=True)
        with pytest.raises(UsageError, match=r"000000\.label: a folder lies where the file is to be written"):
            export_labels(dataset, range(5), [np.zeros(count, int) for count in dataset.counts], tmp_path / "out")
        assert files(tmp_path / "out") == []


def test_a_folder_that_may_not_be_written_to_is_named(root, tmp_path):
    code = """
import os, sys
import numpy as np
from fastload import PackedDataset, export_labels
dataset = PackedDataset(sys.argv[1])
dataset.info(0)
if os.geteuid() == 0:
    os.seteuid(65534)  # root may write anywhere
try:
    export_labels(dataset, 0, np.zeros(9, int), sys.argv[2], instance=0)
except PermissionError as error:
    print(error)
"""
    (tmp_path / "out").mkdir(mode=0o500)
    done = run_python(code, root, tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert str(tmp_path / "out") in done.stdout
    assert files(tmp_path / "out") == []


WRITER = """
import sys
import numpy as np
from fastload import PackedDataset, export_labels
dataset = PackedDataset(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(200):
    export_labels(dataset, range(5), np.full(1039, int(sys.argv[3])), sys.argv[2], instance=0)
"""


def test_processes_that_write_the_same_samples_do_not_disturb_each_other(root, dataset, tmp_path):
    """As the ranks of a distributed evaluation do with the samples that pad it."""
    command = [sys.executable, "-c", WRITER, str(root), str(tmp_path / "out")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": REPO}
    writers = [subprocess.Popen([*command, str(value)], **pipes) for value in (10, 40)]
    for writer in writers:
        writer.stdout.readline()
    with ThreadPoolExecutor(2) as pool:
        for writer, (_, err) in zip(
            writers, pool.map(lambda w: w.communicate("go\n", timeout=120), writers), strict=True
        ):
            assert (writer.returncode, err) == (0, "")
    assert len(files(tmp_path / "out")) == 5
    for name in dataset.names:
        semantic, instance = read(tmp_path / "out", name)
        assert set(semantic) in ({10}, {40})
        assert set(instance) == {0}


def test_a_killed_process_leaves_nothing_that_looks_like_a_prediction(root, tmp_path):
    """Evaluation scripts take every file with `.label` in its name."""
    code = """
import os, signal, sys
import numpy as np
from pathlib import Path
from fastload import PackedDataset, export_labels
Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
export_labels(PackedDataset(sys.argv[1]), 0, np.zeros(9, int), sys.argv[2])
"""
    done = run_python(code, root, tmp_path / "out")
    assert done.returncode == -signal.SIGKILL
    (left,) = files(tmp_path / "out")
    assert ".label" not in left
    assert os.path.basename(left).startswith(".tmp-")


def test_importing_it_does_not_load_torch():
    done = run_python("import sys, fastload.predictions; assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr
    assert fastload.export_labels is export_labels
