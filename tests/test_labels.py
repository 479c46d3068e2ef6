"""Label maps against the upstream YAML files, read here with plain Python."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fastload.errors import LabelError, UsageError
from fastload.labels import LOOK_UP_POINTS, LabelMap

SAMPLES = Path(__file__).resolve().parents[2] / "shared" / "samples"
CONFIG = SAMPLES / "semantickitti-config"
needs_samples = pytest.mark.skipif(
    not SAMPLES.is_dir(), reason="needs the real sample files, which lie beside the repository"
)
INTEGER_DTYPES = ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", ">u2", ">u4", ">u8", ">i2", ">i4", ">i8")
SMALL = {
    "labels": {0: "nothing", 5: "road", 9: "car", 65535: "sky"},
    "learning_map": {0: 0, 5: 1, 9: 2, 65535: 3},
    "learning_map_inv": {0: 0, 1: 5, 2: 9, 3: 65535},
    "learning_ignore": {0: True, 1: False, 2: False, 3: False},
}


def small_map() -> LabelMap:
    return LabelMap.from_mapping(SMALL, source="small.yaml")


def write_yaml(path: Path, **changes) -> Path:
    values = {key: value for key, value in (SMALL | changes).items() if value is not ...}
    path.write_text(yaml.safe_dump(values))
    return path


# --- loading


@needs_samples
def test_the_built_in_map_is_the_upstream_file():
    built_in = LabelMap.load("semantickitti")
    upstream = yaml.safe_load((CONFIG / "semantic-kitti.yaml").read_text())
    assert dict(built_in.train_ids) == upstream["learning_map"]
    assert dict(enumerate(built_in.raw_ids)) == upstream["learning_map_inv"]
    assert dict(built_in.raw_names) == upstream["labels"]
    assert built_in.ignore == {key for key, ignored in upstream["learning_ignore"].items() if ignored}
    assert built_in.names == tuple(upstream["labels"][raw] for raw in upstream["learning_map_inv"].values())
    assert built_in == LabelMap.load(CONFIG / "semantic-kitti.yaml")
    assert hash(built_in) == hash(LabelMap.load(str(CONFIG / "semantic-kitti.yaml")))


def test_the_built_in_map_has_19_classes_and_unlabeled():
    labels = LabelMap.load("semantickitti")
    assert labels.num_classes == len(labels.names) == 20
    assert labels.names[0] == "unlabeled"
    assert labels.names[19] == "traffic-sign"
    assert labels.ignore == {0}


@needs_samples
@pytest.mark.parametrize(
    ("name", "classes"), [("semantic-kitti-all", 26), ("semantic-kitti-coarse", 9), ("semantic-kitti-mos", 3)]
)
def test_other_upstream_files_load(name, classes):
    labels = LabelMap.load(CONFIG / f"{name}.yaml")
    upstream = yaml.safe_load((CONFIG / f"{name}.yaml").read_text())
    assert labels.num_classes == classes
    raw = np.array(list(upstream["learning_map"]), np.uint16)
    assert labels.forward(raw).tolist() == list(upstream["learning_map"].values())
    assert labels != LabelMap.load("semantickitti")


def test_a_map_is_given_back_as_it_is():
    labels = small_map()
    assert LabelMap.load(labels) is labels


def test_a_file_loads_by_path_and_by_text(tmp_path):
    path = write_yaml(tmp_path / "own.yaml")
    assert LabelMap.load(path) == LabelMap.load(str(path)) == small_map()
    assert LabelMap.load(path).source == str(path)


@pytest.mark.parametrize("value", [None, 3, b"semantickitti", ["semantickitti"]])
def test_other_arguments_are_refused(value):
    with pytest.raises(UsageError, match="expected 'semantickitti', a YAML file's path or a LabelMap"):
        LabelMap.load(value)


def test_an_unknown_name_lists_the_built_in_ones(tmp_path):
    with pytest.raises(UsageError, match=r"'semantic_kitti'.*'semantickitti'.*check the path"):
        LabelMap.load("semantic_kitti")
    with pytest.raises(UsageError, match="cannot be read"):
        LabelMap.load(tmp_path)


@pytest.mark.parametrize("content", ["a: [1", "a: b: c", "\tlabels: 1", "x: 2024-99-99", "[" * 5000], ids=range(5))
def test_what_is_not_yaml_is_refused(tmp_path, content):
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"bad\.yaml"):
        LabelMap.load(path)


def test_bytes_that_are_not_text_are_refused(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_bytes(b"\x00\xff\xfe\x00" * 4)
    with pytest.raises(UsageError, match=r"bad\.yaml: not a YAML file"):
        LabelMap.load(path)


@pytest.mark.parametrize("content", ["", "- 1\n", "just text\n", "12\n"])
def test_a_file_without_keys_is_refused(tmp_path, content):
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"bad.yaml: found .*expected the keys labels, learning_map"):
        LabelMap.load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_map": ...}, r"key 'learning_map' is missing, found labels"),
        ({"learning_ignore": ...}, r"key 'learning_ignore' is missing"),
        ({"learning_map": [1, 2]}, r"learning_map: found \[1, 2\]; expected lines"),
        ({"learning_map": {}}, r"learning_map: found \{\}"),
        ({"labels": None}, r"labels: found None"),
        ({"labels": {0: True}}, r"labels\[0\]: found True; expected a class name"),
        ({"labels": {"road": 5}}, r"labels: found the id 'road'; expected an integer from 0 to 65535"),
        ({"learning_map": {-1: 0}}, r"learning_map: found the id -1"),
        ({"learning_map": {65536: 0}}, r"learning_map: found the id 65536"),
        ({"learning_map": {True: 0}}, r"learning_map: found the id True"),
        ({"learning_map": {5: 1.0}}, r"learning_map\[5\]: found the id 1.0"),
        ({"learning_map": {5: -1}}, r"learning_map\[5\]: found the id -1"),
        ({"learning_map": {5: "road"}}, r"learning_map\[5\]: found the id 'road'"),
        ({"learning_map_inv": {0: 70000}}, r"learning_map_inv\[0\]: found the id 70000"),
        ({"learning_map": {5: 4}}, r"learning_map: found 4, which learning_map_inv does not have"),
        ({"learning_map_inv": {0: 0, 1: 5, 3: 9}}, r"learning_map_inv: found train ids up to 3 without \[2\]"),
        ({"learning_map_inv": {0: 0, 1: 6, 2: 9, 3: 65535}}, r"learning_map_inv: found 6, which labels"),
        ({"learning_ignore": {0: 1}}, r"learning_ignore\[0\]: found 1; expected true or false"),
        ({"learning_ignore": {7: True}}, r"learning_ignore: found 7, which learning_map_inv"),
    ],
)
def test_wrong_forms_name_file_key_found_and_expected(tmp_path, changes, message):
    path = write_yaml(tmp_path / "own.yaml", **changes)
    with pytest.raises(UsageError, match=r"own\.yaml: " + message):
        LabelMap.load(path)


@pytest.mark.parametrize(
    ("twice", "key"),
    [("learning_map:\n  5: 1\n  5: 2\n", "5"), ("labels: {0: a}\nlabels: {1: b}\n", "labels"), ("{a: 1, 'a': 1}", "a")],
)
def test_a_key_that_comes_twice_is_refused_with_the_file(tmp_path, twice, key):
    path = tmp_path / "own.yaml"
    path.write_text(twice)
    with pytest.raises(UsageError, match=rf"own\.yaml: .*key '{key}' comes twice"):
        LabelMap.load(path)


def test_a_json_file_is_a_map_too_and_held_to_the_same(tmp_path):
    path = tmp_path / "own.json"
    path.write_text('{"labels": {}, "labels": {}}')
    with pytest.raises(UsageError, match=r"own\.json: .*key 'labels' comes twice"):
        LabelMap.load(path)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "own.yaml")
    with pytest.raises(UsageError, match=r"own\.yaml: cannot be read as a label map \(not a regular file\)"):
        LabelMap.load(tmp_path / "own.yaml")


def test_reading_only_the_built_in_map_does_not_import_yaml():
    code = "import sys, fastload.labels as l; l.LabelMap.load('semantickitti'); sys.exit('yaml' in sys.modules)"
    root = Path(__file__).resolve().parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60).returncode == 0


# --- values: pickles, comparisons


def test_it_pickles_small_and_equal_after_use():
    labels = small_map()
    labels.forward(np.array([65535], np.uint16))
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(labels, protocol)
        assert len(data) < 2000
        copy = pickle.loads(data)
        assert copy == labels
        assert copy.source == labels.source
        assert copy.forward([65535]).tolist() == [3]


def test_maps_are_equal_by_content_not_by_source():
    assert small_map() == LabelMap.from_mapping(SMALL, source="elsewhere")
    assert hash(small_map()) == hash(LabelMap.from_mapping(SMALL, source="elsewhere"))
    changed = SMALL | {"learning_map": {0: 0, 5: 2, 9: 1, 65535: 3}}
    assert small_map() != LabelMap.from_mapping(changed, source="small.yaml")


def test_it_cannot_be_changed():
    labels = small_map()
    with pytest.raises(AttributeError):
        labels.names = ()
    with pytest.raises(ValueError, match="read-only"):
        labels._forward_table[0] = 1


# --- forward


@needs_samples
@pytest.mark.parametrize(
    "config", ["semantic-kitti", "semantic-kitti-all", "semantic-kitti-coarse", "semantic-kitti-mos"]
)
@pytest.mark.parametrize("scan", ["00", "08"])
def test_a_real_scan_maps_as_the_yaml_says(config, scan):
    raw = np.fromfile(SAMPLES / "semantickitti" / "sequences" / scan / "labels" / "000000.label", "<u4")
    semantic = (raw & 0xFFFF).astype(np.uint16)
    table = yaml.safe_load((CONFIG / f"{config}.yaml").read_text())["learning_map"]
    mapped = LabelMap.load(CONFIG / f"{config}.yaml").forward(semantic)
    assert mapped.dtype == np.int64
    assert mapped.tolist() == [table[value] for value in semantic.tolist()]


def test_unknown_ids_are_named_with_counts_most_frequent_first():
    raw = np.array([10, 7, 261, 65535, 261, 10, 261, 7], np.uint16)
    message = r"'semantickitti' does not know: 261 \(3 points\), 7 \(2 points\), 65535 \(1 point\); expected"
    with pytest.raises(LabelError, match=message) as caught:
        LabelMap.load("semantickitti").forward(raw)
    assert "ignore_index=0" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert raw.tolist() == [10, 7, 261, 65535, 261, 10, 261, 7]


def test_instance_bits_play_no_part_once_they_are_split_off():
    plain = np.array([10, 7, 261, 65535], np.uint32)
    instances = np.array([1, 2, 3, 65535], np.uint32) << 16
    messages = []
    for raw in (plain, plain | instances):
        with pytest.raises(LabelError) as caught:
            LabelMap.load("semantickitti").forward((raw & 0xFFFF).astype(np.uint16))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_ids_with_instance_bits_are_unknown_and_the_message_says_why():
    raw = np.array([10, 10 | 5 << 16], np.uint32)
    with pytest.raises(LabelError, match=r"327690 \(1 point\).*the class is in the lower 16 bits"):
        LabelMap.load("semantickitti").forward(raw)


def test_many_unknown_ids_are_counted():
    with pytest.raises(LabelError, match=r"and 80 more ids \(80 points\)"):
        small_map().forward(np.arange(100, 200))


@pytest.mark.parametrize("ignore_index", [0, 255, -1, -100, np.int64(7)])
def test_unknown_ids_become_the_ignore_index(ignore_index):
    raw = np.array([10, 7, 261, 65535, 259], np.uint16)
    mapped = LabelMap.load("semantickitti").forward(raw, ignore_index=ignore_index)
    assert mapped.tolist() == [1, ignore_index, ignore_index, ignore_index, 5]


@pytest.mark.parametrize("value", ["0", 1.0, None.__class__, 2**63])
def test_an_ignore_index_that_is_no_integer_is_refused(value):
    with pytest.raises(UsageError, match="ignore_index"):
        small_map().forward([0], ignore_index=value)


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", ">i4"])
def test_negative_ids_are_unknown(dtype):
    labels = small_map()  # knows 65535 = -1 as 16 bits, and 0, to which -1 would be clipped
    raw = np.array([0, -1, 5, -128], dtype)
    assert labels.forward(raw, ignore_index=99).tolist() == [0, 99, 1, 99]
    with pytest.raises(LabelError, match=r"-128 \(1 point\), -1 \(1 point\)"):
        labels.forward(raw)


@pytest.mark.parametrize("dtype", ["i4", "u4", "i8", "u8", ">u8"])
def test_ids_above_16_bits_are_not_wrapped(dtype):
    raw = np.array([65535, 65536, 65536 + 5, 5], dtype)
    assert small_map().forward(raw, ignore_index=99).tolist() == [3, 99, 99, 1]
    with pytest.raises(LabelError, match=r"65536 \(1 point\), 65541 \(1 point\)"):
        small_map().forward(raw)


def test_the_largest_ids_are_unknown():
    raw = np.array([2**64 - 1, 2**63, 5], np.uint64)
    assert small_map().forward(raw, ignore_index=99).tolist() == [99, 99, 1]
    with pytest.raises(LabelError, match=r"18446744073709551615 \(1 point\)"):
        small_map().forward(raw)


def test_out_is_written_and_returned():
    raw = np.array([[5, 9], [0, 5]], np.uint16)
    out = np.full((2, 2), -7, np.int64)
    assert small_map().forward(raw, out=out) is out
    assert out.tolist() == [[1, 2], [0, 1]]


def test_out_may_be_the_input():
    raw = np.array([5, 9, 77, -3])
    with pytest.raises(LabelError, match=r"-3 \(1 point\), 77 \(1 point\)"):
        small_map().forward(raw.copy(), out=raw)
    raw = np.array([5, 9, 77, -3])
    assert small_map().forward(raw, ignore_index=50, out=raw).tolist() == [1, 2, 50, 50]


@pytest.mark.parametrize(
    "out",
    [np.empty(3, np.int64), np.empty(2, np.int32), np.empty((2, 1), np.int64), [0, 0], np.empty(4, np.int64)[::2]],
    ids=["long", "dtype", "shape", "list", "gaps"],
)
def test_an_out_that_does_not_fit_is_refused(out):
    with pytest.raises(UsageError, match="out: found"):
        small_map().forward(np.array([0, 5], np.uint16), out=out)


@pytest.mark.parametrize("raw", [[1.0], np.array([True]), np.array(["5"]), np.array([None])])
def test_other_than_integers_are_refused(raw):
    with pytest.raises(UsageError, match=r"found dtype .*expected integers"):
        small_map().forward(raw)
    with pytest.raises(UsageError, match=r"found dtype .*expected integers"):
        small_map().inverse(raw)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 0), (1,), (3, 4, 5)])
def test_any_shape_is_kept(shape):
    raw = np.full(shape, 9, np.uint16)
    assert small_map().forward(raw).shape == shape
    assert small_map().inverse(small_map().forward(raw)).shape == shape
    assert (small_map().forward(raw) == 2).all()


@given(
    st.sampled_from(INTEGER_DTYPES),
    st.lists(st.sampled_from([0, 5, 9, 65535, 1, 7, 65536, -1, 2**31, -(2**40), 2**64 - 1]), max_size=30),
    st.sampled_from([1, 2, -1]),
)
def test_forward_is_a_plain_look_up(dtype, ids, step):
    info = np.iinfo(dtype)
    ids = [value for value in ids if info.min <= value <= info.max]
    raw = np.array(ids, dtype)[::step]
    expected = [SMALL["learning_map"].get(value, -9) for value in ids[::step]]
    assert small_map().forward(raw, ignore_index=-9).tolist() == expected


def test_more_points_than_one_piece():
    raw = np.resize(np.array([0, 5, 9, 65535], np.uint16), 2 * LOOK_UP_POINTS + 3)
    expected = np.resize([0, 1, 2, 3], raw.shape)
    assert (small_map().forward(raw) == expected).all()
    raw[LOOK_UP_POINTS - 1 : LOOK_UP_POINTS + 1] = 8
    with pytest.raises(LabelError, match=r"8 \(2 points\)"):
        small_map().forward(raw)
    raw[:] = 0
    raw[0] = 8  # only the first piece has an unknown id
    with pytest.raises(LabelError, match=r"8 \(1 point\)"):
        small_map().forward(raw)


def test_threads_share_a_map():
    labels = small_map()
    raw = np.resize(np.array([0, 5, 9, 65535], np.uint16), 100_000)
    expected = np.resize([0, 1, 2, 3], raw.shape)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: labels.forward(raw), range(64)))
    assert all((result == expected).all() for result in results)


# --- inverse


def test_inverse_gives_the_raw_id_of_each_class():
    raw = LabelMap.load("semantickitti").inverse(np.arange(20))
    assert raw.dtype == np.uint16
    assert raw.tolist() == [0, 10, 11, 15, 18, 20, 30, 31, 32, 40, 44, 48, 49, 50, 51, 70, 71, 72, 80, 81]


def test_inverse_keeps_the_largest_raw_id():
    assert small_map().inverse([3, 0]).tolist() == [65535, 0]


@given(st.lists(st.integers(0, 19), max_size=50), st.sampled_from(INTEGER_DTYPES))
def test_inverse_then_forward_is_the_identity(mapped, dtype):
    labels = LabelMap.load("semantickitti")
    assert labels.forward(labels.inverse(np.array(mapped, dtype))).tolist() == mapped


@pytest.mark.parametrize("mapped", [[20, 255, 20], np.array([-1, 0]), np.array([2**63], np.uint64)])
def test_train_ids_without_a_class_are_named(mapped):
    with pytest.raises(LabelError, match=r"does not have: .* \(.* points?\)(, 255 \(1 point\))?; expected 0 to 19"):
        LabelMap.load("semantickitti").inverse(mapped)
