"""Batches against plain numpy: np.concatenate and np.stack, then a cast to torch's dtype."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import pickle
from collections import UserDict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory as torch_pin_memory

from fastload.collation.collate import PER_POINT, Batch, Collate, collate
from fastload.errors import CollateError, UsageError
from fastload.schema import Field, Schema

WIDENED = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}
DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
SCHEMA = Schema(
    (
        Field("points", dtype="float32", shape=(4,), rows="points"),
        Field("semantic", dtype="uint16", rows="points"),
        Field("velocity", dtype="float32", shape=(2,), rows="points"),
        Field("color", dtype="float32", shape=(3,)),
        Field("boxes", dtype="float32", shape=(7,), rows="boxes"),
        Field("pose", dtype="float64", shape=(4, 4)),
        Field("meta", kind="json"),
    )
)


def scan(count: int, name: str = "a", **fields: Any) -> dict[str, Any]:
    """A sample of `count` points whose values tell rows and columns apart."""
    return {
        "points": np.arange(count * 4, dtype=np.float32).reshape(count, 4) + 1,
        "semantic": np.arange(count, dtype=np.uint16) + 65535 - count,
        "name": name,
        **fields,
    }


def scans(*counts: int) -> list[dict[str, Any]]:
    return [scan(count, f"s{i}", index=10 + i) for i, count in enumerate(counts)]


def widen(array: np.ndarray) -> np.ndarray:
    native = array.astype(array.dtype.newbyteorder("="))
    return native.astype(WIDENED.get(native.dtype.name, native.dtype))


def assert_equal(tensor: torch.Tensor, array: np.ndarray) -> None:
    assert isinstance(tensor, torch.Tensor)
    assert tuple(tensor.shape) == array.shape
    assert tensor.numpy().dtype == widen(array).dtype
    np.testing.assert_array_equal(tensor.numpy(), widen(array))


def assert_same_batch(left: Batch, right: Batch) -> None:
    assert type(left) is type(right) is Batch
    assert list(left) == list(right)
    for name, value in left.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == right[name].dtype
            assert torch.equal(value, right[name])
        elif value and isinstance(value[0], torch.Tensor):
            assert all(map(torch.equal, value, right[name]))
        else:
            assert value == right[name]


def error_of(call: Any) -> str:
    with pytest.raises(CollateError) as caught:
        call()
    assert isinstance(caught.value, RuntimeError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return str(caught.value)


def pasted(message: str, number: int) -> Collate:
    """What one of the lines in a message makes when it is pasted."""
    line = message.split("collate_fn=fastload.")[number + 1]
    closed = [line[: end + 1] for end, letter in enumerate(line) if letter == ")"]
    call = next(text for text in closed if text.count("(") == text.count(")"))
    return eval(call, {"Collate": Collate})


# --- concatenation


def test_scans_of_5_0_3_5_points():
    samples = scans(5, 0, 3, 5)
    batch = collate(samples)
    assert list(batch) == ["points", "semantic", "name", "index", "offset"]
    assert_equal(batch["points"], np.concatenate([sample["points"] for sample in samples]))
    assert_equal(batch["semantic"], np.concatenate([sample["semantic"] for sample in samples]))
    assert batch["points"].shape == (13, 4)
    assert batch["semantic"].dtype == torch.int32
    assert batch["offset"].tolist() == [5, 5, 8, 13]
    assert batch["offset"].dtype == torch.int64
    assert batch["index"].tolist() == [10, 11, 12, 13]
    assert batch["index"].dtype == torch.int64
    assert batch["name"] == ["s0", "s1", "s2", "s3"]


def test_batch_index_is_each_points_sample():
    batch = Collate(batch_index=True)(scans(5, 0, 3))
    assert batch["batch_index"].tolist() == [0] * 5 + [2] * 3
    assert batch["batch_index"].dtype == torch.int64


@pytest.mark.parametrize("counts", [(4,), (4, 4), (0,), (0, 0), (1,)])
def test_a_pose_is_stacked_even_when_it_has_as_many_rows_as_points(counts):
    samples = [scan(count, pose=np.eye(4) * 3) for count in counts]
    batch = collate(samples)
    assert batch["points"].shape == (sum(counts), 4)
    assert batch["semantic"].shape == (sum(counts),)
    assert_equal(batch["pose"], np.stack([sample["pose"] for sample in samples]))
    assert batch["offset"].tolist() == np.cumsum(counts).tolist()


def test_a_batch_of_one_has_the_layout_of_any_other():
    for options in ({}, {"batch_index": True}, {"layout": "padded"}, {"lists": ("pose",)}):
        one = Collate(**options)([scan(3, pose=np.eye(4), time=1.5, index=4)])
        two = Collate(**options)([scan(3, pose=np.eye(4), time=1.5, index=4)] * 2)
        assert list(one) == list(two)
        for name in one:
            assert type(one[name]) is type(two[name])
            if isinstance(one[name], torch.Tensor):
                assert one[name].ndim == two[name].ndim
                assert one[name].dtype == two[name].dtype


def test_without_points_there_is_no_offset():
    batch = collate([{"image": np.zeros((3, 4, 5), np.uint8), "label": i} for i in range(2)])
    assert list(batch) == ["image", "label"]
    assert batch["image"].dtype == torch.uint8
    assert batch["label"].tolist() == [0, 1]


def test_the_standard_names():
    assert {
        *("points", "semantic", "instance", "coord", "color", "normal"),
        *("intensity", "strength", "segment", "time_lag"),
    } == PER_POINT
    sample = {name: np.zeros((3, 2), np.float32) for name in PER_POINT}
    batch = collate([sample, sample])
    assert all(batch[name].shape == (6, 2) for name in PER_POINT)


def test_a_transform_may_drop_points_from_all_per_point_fields():
    samples = scans(5, 3)
    for sample in samples:
        keep = sample["points"][:, 0] > 4
        sample["points"], sample["semantic"] = sample["points"][keep], sample["semantic"][keep]
    assert collate(samples)["offset"].tolist() == [4, 6]


def test_a_transform_that_forgets_a_field():
    samples = scans(5, 3)
    samples[1]["points"] = samples[1]["points"][:2]
    message = error_of(lambda: collate(samples))
    assert "sample 1 of the batch ('s1')" in message
    assert "points 2, semantic 3" in message
    assert pasted(message, 0).per_point == ("points",)
    assert pasted(message, 1)(samples)["semantic"][1].shape == (3,)


# --- which field is what


def test_per_point_decides_by_name():
    samples = [scan(3, mass=np.zeros(3)), scan(2, mass=np.zeros(2))]
    batch = Collate(per_point=("points", "semantic", "mass"))(samples)
    assert batch["mass"].shape == (5,)
    batch = Collate(per_point=["points"], lists=["semantic", "mass"])(samples)
    assert [tensor.shape for tensor in batch["mass"]] == [(3,), (2,)]
    assert [tensor.dtype for tensor in batch["semantic"]] == [torch.int32] * 2


def test_lists_hold_a_tensor_of_each_sample():
    samples = [scan(3, boxes=np.ones((2, 7))), scan(2, boxes=np.ones((0, 7)))]
    boxes = Collate(lists=("boxes",))(samples)["boxes"]
    assert isinstance(boxes, list)
    assert [tuple(tensor.shape) for tensor in boxes] == [(2, 7), (0, 7)]


def test_lists_take_over_what_is_no_array():
    values = [{"a": 1}, None, "text"]
    batch = Collate(lists=("meta",))([{"meta": value} for value in values])
    assert batch["meta"] == values


def test_the_schema_decides_when_bound():
    counts = (3, 2)
    samples = [
        scan(
            count,
            velocity=np.zeros((count, 2), np.float32),
            color=np.zeros(3, np.float32),
            boxes=np.zeros((i, 7), np.float32),
            meta={"i": i},
        )
        for i, count in enumerate(counts)
    ]
    batch = collate.bind(SCHEMA)(samples)
    assert batch["velocity"].shape == (5, 2)
    assert batch["color"].shape == (2, 3)  # a standard name, but not per point in this schema
    assert [tuple(tensor.shape) for tensor in batch["boxes"]] == [(0, 7), (1, 7)]
    assert batch["meta"] == [{"i": 0}, {"i": 1}]


def test_fields_that_the_schema_does_not_know():
    samples = [scan(3, strength=np.zeros(3), score=0.5), scan(2, strength=np.zeros(2), score=1.5)]
    batch = collate.bind(SCHEMA)(samples)
    assert batch["strength"].shape == (5,)
    assert batch["score"].tolist() == [0.5, 1.5]
    assert batch["score"].dtype == torch.float64


def test_arguments_win_over_the_schema():
    samples = [scan(2, boxes=np.zeros((2, 7)), velocity=np.zeros((2, 2)))]
    batch = Collate(per_point=("points", "semantic", "boxes"), lists=("velocity",)).bind(SCHEMA)(samples)
    assert batch["boxes"].shape == (2, 7)
    assert isinstance(batch["velocity"], list)


class Described:
    """A dataset, for all that binding asks of one."""

    schema, ignore_index = SCHEMA, 255


@pytest.mark.parametrize("layout", ["concat", "padded"])
def test_a_dataset_binds_its_schema_and_its_ignore_index(layout):
    plain = Collate(layout=layout, lists=("pose",))
    assert plain.bind(Described()) == plain.bind(SCHEMA, ignore_index=255)
    assert plain.bind(Described(), ignore_index=7) == plain.bind(SCHEMA, ignore_index=7)
    batch = Collate(layout="padded").bind(Described())(scans(3, 1))
    assert batch["semantic"][1].tolist() == [65534, 255, 255]
    assert batch["points"][1, 1:].eq(0).all()


@pytest.mark.parametrize("other", [None, 3, "padded", {"schema": SCHEMA}, SCHEMA.fields, [scan(2)]])
def test_what_is_neither_a_schema_nor_a_dataset_is_not_bound(other):
    with pytest.raises(UsageError, match=r"(?s)bind: found .*; expected a PackedDataset"):
        collate.bind(other)


MISTYPED = [({"per_point": ("points", "semantics")}, "'semantic'"), ({"lists": ("boxs",)}, "'boxes'")]


@pytest.mark.parametrize(("options", "meant"), MISTYPED)
@pytest.mark.parametrize("counts", [(3,), (3, 3), (3, 2)])
def test_mistyped_names_are_refused_when_the_schema_is_known(options, meant, counts):
    """Whatever the sizes: with equal ones the labels would be stacked without a word."""
    (option, names) = next(iter(options.items()))
    message = error_of(lambda: Collate(**options).bind(SCHEMA)(scans(*counts)))
    assert f"{option} names {names[-1]!r}, which the samples lack; they have points, semantic" in message
    assert f"did you mean {meant}?" in message


def test_names_that_only_the_schema_has_are_fine():
    batch = Collate(per_point=("points", "semantic", "velocity"), lists=("boxes",)).bind(SCHEMA)(scans(3, 2))
    assert batch["offset"].tolist() == [3, 5]


def test_without_a_schema_names_may_be_those_of_other_samples():
    """One function for scans with labels and without; the names are told where the samples do not fit."""
    plain = Collate(per_point=("points", "semantic", "heigth"), lists=("boxes",))
    assert plain(scans(3, 2))["offset"].tolist() == [3, 5]
    samples = [{**sample, "height": sample["points"][:, 2]} for sample in scans(3, 2)]
    message = error_of(lambda: plain(samples))
    assert "field 'height': shapes differ" in message
    assert "per_point names 'heigth', which the samples lack; they have points, semantic, height" in message
    assert "did you mean 'height'?" in message
    assert "lists names 'boxes', which the samples lack" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "stack"}, "layout: found 'stack'; expected one of 'concat', 'padded'"),
        ({"layout": None}, "layout: found None"),
        ({"layout": "padded", "batch_index": True}, "batch_index=True with layout='padded'"),
        ({"per_point": ("points",), "lists": ("points",)}, "'points' is in per_point and in lists"),
        ({"per_point": "points"}, r"expected several names: per_point=\('points',\)"),
        ({"lists": "boxes"}, r"expected several names: lists=\('boxes',\)"),
        ({"lists": (3,)}, "lists: found 3"),
        ({"per_point": ("points", "offset")}, "per_point: found 'offset'"),
        ({"lists": ("name",)}, "lists: found 'name'"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        Collate(**options)


def test_options_are_keywords_that_exist():
    with pytest.raises(TypeError):
        Collate("padded")
    with pytest.raises(TypeError):
        Collate(padding=True)


# --- values


def test_plain_python_values():
    sample = {"i": 3, "f": 0.5, "b": True, "s": "text", "y": b"raw", "c": 1j, "n": np.float32(2), "z": np.array(7)}
    batch = collate([sample, sample])
    dtypes = {name: batch[name].dtype for name in "ifbcnz"}
    assert dtypes == {
        "i": torch.int64,
        "f": torch.float64,
        "b": torch.bool,
        "c": torch.complex128,
        "n": torch.float32,
        "z": torch.int64,
    }
    assert all(batch[name].shape == (2,) for name in dtypes)
    assert batch["i"].tolist() == [3, 3]
    assert batch["b"].tolist() == [True, True]
    assert batch["s"] == ["text", "text"]
    assert batch["y"] == [b"raw", b"raw"]


def test_the_ends_of_int64():
    assert collate([{"i": -(2**63)}, {"i": 2**63 - 1}])["i"].tolist() == [-(2**63), 2**63 - 1]
    assert "found" not in error_of(lambda: collate([{"i": 2**63}]))


def test_uint64_becomes_int64_where_it_fits():
    assert_equal(collate([{"i": np.array([2**63 - 1], np.uint64)}])["i"], np.array([[2**63 - 1]], np.int64))
    message = error_of(lambda: collate([{"i": np.array([1], np.uint64)}, {"i": np.array([2**63], np.uint64)}]))
    assert "field 'i': sample 1 of the batch has uint64 values beyond int64" in message


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_tensors_are_widened_too(dtype):
    values = torch.tensor([1, 60000], dtype=torch.int64).to(dtype)
    batch = collate([{"points": values}, {"points": values}])
    assert batch["points"].dtype == (torch.int32 if dtype == torch.uint16 else torch.int64)
    assert batch["points"].tolist() == [1, 60000, 1, 60000]


def test_arrays_and_tensors_mix():
    batch = collate([{"points": np.ones((2, 3), np.float32)}, {"points": torch.zeros(1, 3)}])
    assert batch["points"].tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]


def test_tensor_dtypes_that_numpy_lacks():
    samples = [{"points": torch.ones(n, 3, dtype=torch.bfloat16), "pose": torch.ones(()).bfloat16()} for n in (2, 1)]
    batch = collate(samples)
    assert batch["points"].dtype == batch["pose"].dtype == torch.bfloat16
    assert batch["points"].tolist() == [[1, 1, 1]] * 3
    assert batch["pose"].tolist() == [1, 1]
    padded = Collate(layout="padded", lists=("pose",))(samples)
    assert padded["points"].tolist() == [[[1, 1, 1], [1, 1, 1]], [[1, 1, 1], [0, 0, 0]]]
    assert padded["pose"][0].dtype == torch.bfloat16


def test_views_of_tensors():
    base = torch.arange(12.0).reshape(3, 4)
    batch = collate([{"points": base.T}, {"points": base[:, ::2].T}, {"points": torch.ones(1, 1).expand(2, 3)}])
    assert torch.equal(batch["points"], torch.cat([base.T, base[:, ::2].T, torch.ones(2, 3)]))
    conjugate = torch.tensor([1 + 2j]).conj()
    assert collate([{"c": conjugate}])["c"].tolist() == [[1 - 2j]]


def test_read_only_memory_is_copied_without_a_warning():
    memory = np.frombuffer(np.arange(8, dtype=np.float32).tobytes(), np.float32).reshape(2, 4)
    assert not memory.flags.writeable
    batch = collate([{"points": memory, "pose": memory}])
    batch["points"].zero_()
    batch["pose"].zero_()
    assert memory.sum() == 28


@pytest.mark.parametrize("options", [{}, {"layout": "padded"}, {"lists": ("points", "semantic", "pose", "extra")}])
@pytest.mark.parametrize("count", [1, 2])
def test_writes_into_a_batch_never_reach_the_samples(options, count):
    samples = [scan(3, pose=np.eye(4), extra=torch.ones(2), time=np.array(2.0)) for _ in range(count)]
    before = copy.deepcopy(samples)
    batch = Collate(**options)(samples)
    for value in batch.values():
        for tensor in value if isinstance(value, list) else [value]:
            if isinstance(tensor, torch.Tensor):
                tensor.fill_(1 if tensor.dtype == torch.bool else 99)
    for sample, old in zip(samples, before, strict=True):
        assert all(np.array_equal(sample[name], old[name]) for name in old)
        assert list(sample) == list(old)


def test_a_batch_is_data_whatever_the_callers_modes():
    scale = torch.nn.Parameter(torch.ones(()))
    samples = [{"points": torch.ones(2, 3) * scale, "p": scale}]
    batches = [collate(samples)]
    with torch.no_grad():
        batches.append(collate(samples))
    with torch.inference_mode():
        batches.append(collate(samples))
        batches.append(collate([{"points": torch.ones(2, 3), "p": torch.ones(())}]))
    for batch in batches:
        assert not any(batch[name].requires_grad or batch[name].is_inference() for name in ("points", "p"))
        (batch["points"] * torch.ones(3, requires_grad=True)).sum().backward()
    assert torch.is_grad_enabled()


def test_a_default_device_does_not_move_a_batch():
    samples = scans(2, 3)
    torch.set_default_device("meta")
    try:
        batch = Collate(batch_index=True)(samples)
        padded = Collate(layout="padded")(samples)
    finally:
        torch.set_default_device(None)
    assert_same_batch(batch, Collate(batch_index=True)(samples))
    assert_same_batch(padded, Collate(layout="padded")(samples))


def test_kinds_of_samples_and_lists():
    class Sample(dict):
        pass

    plain = scan(2)
    for sample in (Sample(plain), UserDict(plain), Batch(plain)):
        assert_same_batch(collate((sample,)), collate([plain]))
    assert_same_batch(collate(sample for sample in [plain]), collate([plain]))
    assert collate([{"name": np.str_("a"), "index": np.int32(3)}]) == {"name": ["a"], "index": torch.tensor([3])}


def test_empty_samples_make_an_empty_batch():
    assert collate([{}, {}]) == {}


# --- padding


def test_padding():
    samples = scans(2, 0, 3)
    batch = Collate(layout="padded")(samples)
    assert list(batch) == ["points", "semantic", "name", "index", "length", "valid"]
    assert batch["points"].shape == (3, 3, 4)
    assert batch["semantic"].shape == (3, 3)
    assert batch["length"].tolist() == [2, 0, 3]
    assert batch["length"].dtype == torch.int64
    assert batch["valid"].tolist() == [[True, True, False], [False] * 3, [True] * 3]
    assert torch.equal(batch["points"][batch["valid"]], collate(samples)["points"])
    assert batch["points"][~batch["valid"]].abs().sum() == 0
    assert batch["semantic"][~batch["valid"]].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("ignore_index", [255, -1, 0, None])
def test_labels_are_padded_with_the_ignore_index(ignore_index):
    fields = {name: np.ones(1, np.int64) for name in ("semantic", "segment", "instance", "intensity")}
    samples = [fields, {name: np.ones(2, np.int64) for name in fields}]
    batch = Collate(layout="padded").bind(SCHEMA, ignore_index=ignore_index)(samples)
    for name in ("semantic", "segment", "instance"):
        assert batch[name].tolist() == [[1, ignore_index or 0], [1, 1]]
    assert batch["intensity"].tolist() == [[1, 0], [1, 1]]


def test_an_ignore_index_that_the_labels_cannot_hold():
    samples = [{"semantic": np.zeros(n, np.uint8)} for n in (1, 2)]
    message = error_of(lambda: Collate(layout="padded").bind(SCHEMA, ignore_index=-1)(samples))
    assert "field 'semantic': found ignore_index -1, with which torch.uint8 cannot be padded" in message


def test_padding_of_nothing_but_empty_scans():
    batch = Collate(layout="padded")(scans(0, 0))
    assert batch["points"].shape == (2, 0, 4)
    assert batch["valid"].shape == (2, 0)


# --- errors


def test_shapes_that_cannot_be_stacked_name_both_settings():
    samples = [scan(3, "a", velocity=np.ones((3, 2))), scan(2, "b", velocity=np.ones((2, 2)))]
    message = error_of(lambda: collate(samples))
    assert "field 'velocity': shapes differ" in message
    assert "sample 0 of the batch ('a') has (3, 2), sample 1 of the batch ('b') has (2, 2)" in message
    assert pasted(message, 0) == Collate(per_point=("points", "semantic", "velocity"))
    assert pasted(message, 0)(samples)["velocity"].shape == (5, 2)
    assert pasted(message, 1) == Collate(lists=("velocity",))
    assert len(pasted(message, 1)(samples)["velocity"]) == 2


def test_lines_to_paste_keep_all_other_settings():
    samples = [scan(n, "a", mass=np.ones(n), boxes=np.ones((n, 7), np.float32)) for n in (3, 2)]
    bound = Collate(layout="padded", lists=("semantic",)).bind(SCHEMA)
    message = error_of(lambda: bound(samples))
    expected = bound.bind(SCHEMA)(samples := [{k: v for k, v in s.items() if k != "mass"} for s in samples])
    for number in (0, 1):
        assert_same_batch(pasted(message, number)(samples), expected)


def test_per_point_fields_of_different_columns():
    samples = [scan(3, "a"), scan(2, "b", points=np.ones((2, 5), np.float32))]
    message = error_of(lambda: collate(samples))
    assert "field 'points'" in message
    assert "('a') has (3, 4)" in message
    assert "('b') has (2, 5)" in message
    assert "per_point=" in message
    assert len(pasted(message, 0)(samples)["points"]) == 2


def test_many_different_shapes_are_counted():
    message = error_of(lambda: collate([{"x": np.ones(n)} for n in range(20)]))
    assert "sample 7 of the batch has (7,) and 12 more" in message


def test_a_field_that_only_some_samples_have():
    samples = [scan(2, "a"), scan(2, "b"), scan(3, "c")]
    del samples[1]["semantic"]
    message = error_of(lambda: collate(samples))
    assert "field 'semantic': only 2 of 3 samples have it, not sample 1 of the batch ('b')" in message
    assert "fields=('points',)" in message
    assert "lists=('semantic',)" in message
    assert "leave it out" in error_of(lambda: collate([{"a": 1}, {"b": 1}]))
    samples = [{"a": 1}] + [{"a": 1, "b": 2}] * 2 + [{"a": 1}] * 20
    assert "sample 9 of the batch and 13 more" in error_of(lambda: collate(samples))


def test_dtypes_that_differ():
    message = error_of(lambda: collate([{"x": np.ones(2, "f4")}, {"x": np.ones(2, "f8")}]))
    assert "sample 0 of the batch has torch.float32, sample 1 of the batch has torch.float64" in message
    mixed = collate([{"x": np.ones(2, "u2")}, {"x": np.ones(2, ">i4")}])
    assert mixed["x"].dtype == torch.int32


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": 1},
        [1, 2],
        object(),
        np.array(["a"]),
        np.array([None]),
        np.array(["2020-01-01"], "M8[D]"),
        np.zeros(2, "f4,i4"),
        np.zeros(2, np.longdouble),
        np.timedelta64(3, "s"),
        np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")]),
        np.array([[1, 2], [3]], object),
        torch.eye(3).to_sparse(),
    ],
    ids=type,
)
def test_values_that_make_no_tensor(value):
    message = error_of(lambda: collate([{"x": 1, "name": "a"}, {"x": value, "name": "b"}]))
    assert "field 'x': sample 1 of the batch ('b') has" in message
    assert pasted(message, 0) == Collate(lists=("x",))


@pytest.mark.parametrize(("value", "what", "way_out"), [
    (np.zeros(2, "f4,i4"), "an array of [('f0', '<f4'), ('f1', '<i4')]", "structured_to_unstructured"),
    (np.array(["2020-01-01"], "M8[D]"), "an array of datetime64[D]", ".astype('int64')"),
    (np.array([None]), "an array of object", "convert it in the transform"),
    (None, "None", "convert it in the transform"),
])  # fmt: skip
def test_a_value_that_makes_no_tensor_is_described_with_its_way_out(value, what, way_out):
    for sample in ({"x": value}, {"points": value}):
        message = error_of(partial(collate, [sample]))
        assert f": sample 0 of the batch has {what}; expected an array of numbers or bools" in message
        assert way_out in message


def test_a_described_dtype_is_short():
    wide = np.zeros(1, [(f"column_{i}", "f4") for i in range(200)])
    assert len(error_of(lambda: collate([{"x": wide}]))) < 500


@pytest.mark.parametrize("role", ["stack", "points", "padded"])
@pytest.mark.parametrize("value", [
    np.ma.masked_array([1.0, 2.0], [False, True]),
    np.ma.masked_array([1.0, 2.0]),
    np.ma.masked_array([[1, 2]], [[True, True]], "u2")[:, 0],
    np.ma.masked,
    np.ma.array([(1, 2.0)], dtype="i4,f4"),
], ids=["float", "no mask", "row", "constant", "structured"])  # fmt: skip
def test_a_mask_is_never_lost(value, role):
    made = Collate(
        layout="padded" if role == "padded" else "concat", per_point=("x",) if role != "stack" else ("points",)
    )
    message = error_of(lambda: made([{"x": np.ones(2), "name": "a"}, {"x": value, "name": "b"}]))
    assert f"field 'x': sample 1 of the batch ('b') has a masked array of {value.dtype}" in message
    assert ".filled(0)" in message
    kept = pasted(message, 0)([{"x": value}])["x"]
    assert kept[0] is value
    if value.dtype.names is None and value.ndim:
        assert_equal(collate([{"x": value.filled(0)}])["x"], value.filled(0)[None])


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors:UserWarning")
@pytest.mark.filterwarnings("ignore:.*MaskedTensor:UserWarning")
def test_a_tensor_made_of_others_is_no_plain_one():
    masked = torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))
    message = error_of(lambda: collate([{"x": masked}]))
    assert "sample 0 of the batch has a tensor (MaskedTensor, torch.strided)" in message
    assert pasted(message, 0)([{"x": masked}])["x"][0] is masked
    assert collate([{"x": torch.nn.Parameter(torch.ones(2))}])["x"].tolist() == [[1, 1]]


def test_a_per_point_field_that_is_a_single_value():
    message = error_of(lambda: collate([{"color": 3, "points": np.ones((2, 3))}]))
    assert "field 'color': sample 0 of the batch has a single value" in message
    assert pasted(message, 0)([{"color": 3, "points": np.ones((2, 3))}])["color"].tolist() == [3]


def test_no_samples():
    assert "found no samples" in error_of(lambda: collate([]))


def test_one_sample_instead_of_a_list():
    assert "collate([sample])" in error_of(lambda: collate(scan(3)))


@pytest.mark.parametrize("samples", [None, 5, 5.5, object(), np.array(5), torch.tensor(5), len], ids=type)
def test_what_is_no_list_of_samples(samples):
    message = error_of(lambda: collate(samples))
    assert message.startswith("found ")
    assert "expected a list of samples: collate([sample])" in message


def test_an_error_of_a_generator_of_samples_is_its_own():
    def broken():
        yield scan(2)
        raise TypeError("of the generator")

    with pytest.raises(TypeError, match="of the generator"):
        collate(broken())


def test_a_sample_that_is_none():
    message = error_of(lambda: collate([scan(2), None]))
    assert "sample 1 of the batch is None" in message
    assert "dataset.subset" in message


@pytest.mark.parametrize("sample", [(1, 2), np.ones(3), torch.ones(3), "text", 3])
def test_a_sample_that_is_no_dict(sample):
    assert "sample 1 of the batch is " in error_of(lambda: collate([scan(2), sample]))


@pytest.mark.parametrize("name", ["offset", "batch_index", "length", "valid"])
def test_names_that_the_batch_uses(name):
    message = error_of(lambda: collate([scan(2, "a"), scan(2, "b", **{name: 1})]))
    assert f"sample 1 of the batch ('b') has a field {name!r}" in message
    assert "rename" in message


def test_names_and_indices_of_another_type():
    assert "name is int 3; expected text" in error_of(lambda: collate([{"name": 3}]))
    assert "expected one integer each" in error_of(lambda: collate([{"index": 1.5}]))
    assert "expected one integer each" in error_of(lambda: collate([{"index": 2**70}]))


# --- Collate and Batch as objects


def test_a_collate_is_a_value():
    plain = Collate()
    assert plain == collate == Collate(layout="concat")
    assert hash(plain) == hash(Collate())
    assert Collate(lists=["a"]) == Collate(lists=("a",))
    assert plain != plain.bind(SCHEMA)
    for value in (plain, Collate(layout="padded", lists=("a",)).bind(SCHEMA, ignore_index=255)):
        assert pickle.loads(pickle.dumps(value)) == value
        assert copy.deepcopy(value) == value
    with pytest.raises(AttributeError):
        plain.layout = "padded"


def test_its_text_shows_what_was_set():
    assert repr(Collate()) == "Collate()"
    text = repr(Collate(layout="padded", per_point=("points",)).bind(SCHEMA, ignore_index=255))
    assert text.startswith("Collate(layout='padded', per_point=('points',), ignore_index=255, schema=<points, ")


@pytest.fixture
def full_batch() -> Batch:
    samples = [scan(n, f"s{n}", index=n, boxes=np.ones((n, 7)), meta={"n": n}) for n in (2, 3)]
    return Collate(lists=("boxes", "meta"))(samples)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_batch_pickles(full_batch, protocol):
    assert_same_batch(pickle.loads(pickle.dumps(full_batch, protocol)), full_batch)


def test_copies_keep_the_type(full_batch):
    for made in (copy.copy(full_batch), copy.deepcopy(full_batch), full_batch.copy()):
        assert_same_batch(made, full_batch)
    assert full_batch.copy()["points"] is full_batch["points"]
    assert copy.deepcopy(full_batch)["points"] is not full_batch["points"]


def test_to_moves_all_tensors(full_batch):
    moved = full_batch.to("meta", non_blocking=True)
    assert type(moved) is Batch
    assert moved is not full_batch
    for name in ("points", "semantic", "index", "offset"):
        assert moved[name].device.type == "meta"
        assert full_batch[name].device.type == "cpu"
    assert all(tensor.device.type == "meta" for tensor in moved["boxes"])
    assert moved["name"] == ["s2", "s3"]
    assert moved["meta"] == [{"n": 2}, {"n": 3}]
    assert_same_batch(full_batch.to(torch.device("cpu")), full_batch)


def test_to_reaches_tensors_in_tuples():
    moved = Batch(pair=(torch.ones(2), "a"), empty=[]).to("meta")
    assert moved["pair"][0].is_meta
    assert moved["pair"][1] == "a"
    assert moved["empty"] == []


def test_pin_memory_pins_all_tensors(full_batch, monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, *_: pinned.append(self) or self.clone())
    assert_same_batch(full_batch.pin_memory(), full_batch)
    assert len(pinned) == 6  # points, semantic, index, offset and two boxes
    pinned.clear()
    assert_same_batch(torch_pin_memory(full_batch), full_batch)
    assert len(pinned) == 6


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pinned_batches_of_a_data_loader():
    for batch in DataLoader(scans(2, 3), batch_size=2, collate_fn=collate, pin_memory=True):
        assert type(batch) is Batch
        assert batch["points"].is_pinned()
        assert batch.to("cuda", non_blocking=True)["points"].is_cuda


# --- torch's DataLoader


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("workers", "context"), [(0, None), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("layout", ["concat", "padded"])
def test_a_data_loader_gives_equal_batches(workers, context, layout):
    samples = [scan(n, f"s{n}", index=n, boxes=np.ones((n, 7)), empty=np.ones((0, 2))) for n in (5, 0, 3, 5, 1)]
    function = Collate(layout=layout, lists=("boxes",))
    loader = DataLoader(
        samples, batch_size=2, num_workers=workers, multiprocessing_context=context, collate_fn=function
    )
    batches = list(loader)
    assert len(batches) == 3
    for start, batch in zip((0, 2, 4), batches, strict=True):
        assert_same_batch(batch, function(samples[start : start + 2]))
        assert batch["points"].is_shared() == (workers > 0 and batch["points"].numel() > 0)
    del loader, batches
    gc.collect()
    assert multiprocessing.active_children() == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_an_error_in_a_worker_arrives_with_its_text():
    samples = [scan(2, "a"), scan(2, "b", points=np.ones((3, 4), np.float32))]
    loader = DataLoader(samples, batch_size=2, num_workers=1, multiprocessing_context="fork", collate_fn=collate)
    batches = iter(loader)
    with pytest.raises(CollateError, match=r"sample 1 of the batch \('b'\).*points 3, semantic 2"):
        next(batches)
    assert next(batches, None) is None  # an iterator given up after an error keeps torch waiting for 5 s


def test_threads_share_a_collate():
    samples = scans(50, 0, 30)
    expected = collate(samples)
    with ThreadPoolExecutor(8) as pool:
        for batch in pool.map(lambda _: collate(samples), range(64)):
            assert_same_batch(batch, expected)


# --- any arrays


def stored(array: np.ndarray, form: str) -> Any:
    """The same values in another kind of memory."""
    if form == "read-only":
        array.flags.writeable = False
    elif form == "reversed":
        array = array[::-1].copy()[::-1]
    elif form == "strided":
        array = np.repeat(array, 2, axis=0)[::2]
    elif form == "fortran":
        array = np.asfortranarray(array)
    elif form == "big-endian":
        array = array.astype(array.dtype.newbyteorder(">"))
    elif form == "tensor":
        return torch.from_numpy(array)
    return array


FORMS = ("plain", "read-only", "reversed", "strided", "fortran", "big-endian", "tensor")


@st.composite
def ragged(draw: st.DrawFn) -> tuple[list[np.ndarray], list[Any]]:
    """Per-point arrays of one dtype and row shape, and the same in different kinds of memory."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    rows = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    counts = draw(st.lists(st.integers(0, 5), min_size=1, max_size=5))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    plain = [random.integers(0, 200, (count, *rows)).astype(dtype) for count in counts]
    if dtype.kind in "iu":  # the ends of the type; those of uint64 are an error
        for array in plain:
            array[array % 7 == 0] = min(np.iinfo(dtype).max, 2**63 - 1)
            array[array % 7 == 1] = np.iinfo(dtype).min
    return plain, [stored(array.copy(), draw(st.sampled_from(FORMS))) for array in plain]


@settings(max_examples=300, deadline=None)
@given(ragged())
def test_concatenation_is_numpys(arrays):
    plain, values = arrays
    batch = Collate(batch_index=True)([{"points": value} for value in values])
    assert_equal(batch["points"], np.concatenate(plain))
    assert batch["points"].is_contiguous()
    counts = [len(array) for array in plain]
    assert batch["offset"].tolist() == np.cumsum(counts).tolist()
    assert batch["batch_index"].tolist() == [i for i, count in enumerate(counts) for _ in range(count)]


@settings(max_examples=300, deadline=None)
@given(ragged(), st.sampled_from([None, 0, 99]))
def test_padding_is_numpys(arrays, ignore_index):
    plain, values = arrays
    batch = Collate(layout="padded").bind(SCHEMA, ignore_index=ignore_index)(
        [{"points": value, "segment": value} for value in values]
    )
    longest = max(len(array) for array in plain)
    for name, fill in (("points", 0), ("segment", ignore_index or 0)):
        expected = np.full((len(plain), longest, *plain[0].shape[1:]), fill, plain[0].dtype)
        for row, array in zip(expected, plain, strict=True):
            row[: len(array)] = array
        assert_equal(batch[name], expected)
    assert batch["length"].tolist() == [len(array) for array in plain]
    assert batch["valid"].sum(1).tolist() == batch["length"].tolist()


@settings(max_examples=200, deadline=None)
@given(ragged())
def test_lists_are_the_arrays(arrays):
    plain, values = arrays
    batch = Collate(lists=("boxes",))([{"boxes": value} for value in values])
    for tensor, array in zip(batch["boxes"], plain, strict=True):
        assert_equal(tensor, array)


@settings(max_examples=200, deadline=None)
@given(ragged(), st.integers(1, 4), st.data())
def test_stacking_is_numpys(arrays, size, data):
    plain = arrays[0][0]
    values = [stored(plain.copy(), data.draw(st.sampled_from(FORMS))) for _ in range(size)]
    assert_equal(collate([{"pose": value} for value in values])["pose"], np.stack([plain] * size))
