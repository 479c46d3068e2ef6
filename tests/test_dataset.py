"""PackedDataset: the right arrays, from any process, thread, copy or link; and clear refusals."""

import copy
import gc
import io
import marshal
import multiprocessing
import os
import pickle
import shutil
import threading
import types
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import fastload
from fastload import PackedDataset
from fastload.errors import CorruptError, DatasetError, LabelError, SampleError, UsageError
from fastload.schema import Field, Schema
from tests.support import MadeSample, rebind, run_python, same, write_store, write_tree

NAME = "sequences/08/velodyne/000001"


def raw(scans, name):
    points = np.fromfile(scans / f"{name}.bin", "<f4").reshape(-1, 4)
    label = np.fromfile(scans / f"{name.replace('velodyne', 'labels')}.label", "<u4")
    return points, (label & 0xFFFF).astype(np.uint16), (label >> 16).astype(np.uint16)


def assert_right(scans, sample):
    points, semantic, instance = raw(scans, sample["name"])
    assert same(sample["points"], points)
    assert same(sample["semantic"], semantic)
    assert same(sample["instance"], instance)


def equal(a, b):
    assert a.keys() == b.keys()
    assert all(same(np.asarray(a[k]), np.asarray(b[k])) for k in a)
    return True


def test_a_sample_is_what_the_files_say(packed, scans):
    dataset = PackedDataset(packed)
    assert len(dataset) == 6
    for index, sample in enumerate(dataset):
        assert type(sample) is dict
        assert list(sample) == ["points", "semantic", "instance", "pose", "time", "name", "index"]
        assert_right(scans, sample)
        assert sample["index"] == index
        assert (sample["pose"].shape, sample["pose"].dtype) == ((4, 4), np.float64)
        assert (sample["time"].shape, sample["time"].dtype) == ((), np.float64)


def test_pose_is_lidar_to_world(packed, scans):
    sample = PackedDataset(packed, "val")[1]
    folder = scans / "sequences/08"
    row = np.array((folder / "poses.txt").read_text().splitlines()[1].split(), float).reshape(3, 4)
    calibration = dict(line.split(":", 1) for line in (folder / "calib.txt").read_text().splitlines() if line)
    tr = np.vstack([np.array(calibration["Tr"].split(), float).reshape(3, 4), [0, 0, 0, 1]])
    expected = np.linalg.inv(tr) @ np.vstack([row, [0, 0, 0, 1]]) @ tr
    np.testing.assert_allclose(sample["pose"], expected, atol=1e-9)
    assert sample["time"] == float((folder / "times.txt").read_text().split()[1])


def test_indices_are_those_of_a_sequence(packed):
    dataset = PackedDataset(packed, "train")
    assert len(dataset) == 3
    assert equal(dataset[-1], dataset[2])
    assert equal(dataset[np.int64(1)], dataset[1])
    assert equal(dataset[torch.tensor(1)], dataset[1])
    for outside in (3, -4, 10**12):
        with pytest.raises(IndexError, match="of 3"):
            dataset[outside]
    for wrong in (1.0, "1", None, slice(2)):
        with pytest.raises(TypeError, match="an integer is needed"):
            dataset[wrong]
    assert [s["index"] for s in dataset.__getitems__([2, 0])] == [2, 0]


def test_arrays_are_fresh_and_may_be_written_to(packed, scans):
    dataset = PackedDataset(packed)
    sample = dataset[3]
    for value in sample.values():
        if isinstance(value, np.ndarray):
            value[...] = 1
    torch.from_numpy(sample["points"]).mul_(0)
    assert_right(scans, dataset[3])
    assert_right(scans, PackedDataset(packed)[3])
    assert fastload.verify(packed).ok


def test_splits_names_and_find(packed):
    everything, val = PackedDataset(packed), PackedDataset(packed, "val")
    assert everything.splits == val.splits == {"train": 3, "val": 3}
    assert val.names[1] == NAME
    assert list(val.names) == [f"sequences/08/velodyne/{i:06d}" for i in range(3)]
    assert val.names[-2:] == list(val.names)[1:]
    assert val.find(NAME) == 1
    assert everything.find(NAME) == 4
    with pytest.raises(SampleError, match="no sample is called 'sequences/00/velodyne/000000'"):
        val.find("sequences/00/velodyne/000000")
    with pytest.raises(UsageError, match="no split 'valid'; it has train, val"):
        len(PackedDataset(packed, "valid"))


def test_counts_and_info_need_no_data(packed, scans):
    dataset = PackedDataset(packed, "val")
    counts = [len(raw(scans, name)[0]) for name in dataset.names]
    assert dataset.counts.tolist() == counts
    assert dataset.counts.dtype == np.int64
    info = dataset.info(1)
    assert (info.name, info.index, info.number, info.split) == (NAME, 1, 4, "val")
    assert info.fields["points"] == (counts[1], 4)


def test_a_damaged_index_row_is_named(packed, tmp_path):
    root = tmp_path / "d"
    shutil.copytree(packed, root)
    index = np.load(root / "index.npy")
    index["shard"][2] = 4_000_000
    with open(root / "index.npy", "wb") as file:
        np.lib.format.write_array(file, index, version=(3, 0))
    with pytest.raises(CorruptError, match=r"index\.npy: bytes 0 on are not those that were written"):
        len(PackedDataset(root))
    rebind(root)
    dataset = PackedDataset(root)
    assert dataset.info(1).shard.startswith("shards/")
    for read in (dataset.info, dataset.__getitem__):
        with pytest.raises(CorruptError, match=r"index\.npy: row 2"):
            read(2)


def test_fields_are_read_alone_and_in_the_order_asked_for(packed, scans):
    sample = PackedDataset(packed, fields=["semantic", "points"])[0]
    assert list(sample) == ["semantic", "points", "name", "index"]
    points, semantic, _ = raw(scans, sample["name"])
    assert same(sample["semantic"], semantic)
    assert same(sample["points"], points)
    assert list(PackedDataset(packed, fields=["time"])[0]) == ["time", "name", "index"]
    assert list(PackedDataset(packed, fields=[])[0]) == ["name", "index"]


def test_columns_and_dtypes(packed, scans):
    dataset = PackedDataset(packed, columns={"points": ("z", "x")}, dtypes={"points": "float16", "pose": np.float32})
    sample = dataset[2]
    points = raw(scans, sample["name"])[0]
    assert same(sample["points"], np.ascontiguousarray(points[:, [2, 0]]).astype(np.float16))
    assert sample["points"].flags.c_contiguous
    assert sample["pose"].dtype == np.float32


def _made(root, array):
    """A dataset of one sample with a field `x`."""
    schema = Schema((Field("x", dtype=str(array.dtype), shape=array.shape[1:], rows="points"),))
    write_store(root, schema, [MadeSample("one", "train", {"x": array})])
    return root


LIMITS = {"bool": (False, True), "float32": (-1.5, 3e4), "complex64": (1j, 2)} | {
    kind: (np.iinfo(kind).min, np.iinfo(kind).max) for kind in ("int8", "uint8", "int16", "uint16", "int64", "uint64")
}


EXACT = {"float16": 11, "float32": 24, "complex64": 24, "complex128": 53}  # bits of whole numbers
EXACT = {kind: (-(2**bits), 2**bits) for kind, bits in EXACT.items()}


@pytest.mark.parametrize("stored", LIMITS)
def test_no_conversion_changes_values_unasked(tmp_path, stored):
    array = np.array([*LIMITS[stored], 1, 0], stored)
    root = _made(tmp_path / "d", array)
    for wanted in (*LIMITS, "float16", "int32", "uint32", ">i2", "complex128"):
        dataset = PackedDataset(root, dtypes={"x": wanted})
        kind = np.dtype(wanted).kind
        if array.dtype.kind in {"b": "iufc", "i": "fc", "u": "fc", "f": "c"}.get(kind, ""):
            with pytest.raises(UsageError, match=f"dtypes: field 'x' is {stored}, which {np.dtype(wanted)} would"):
                len(dataset)
            continue
        exact = EXACT.get(wanted) or (np.iinfo(wanted).min, np.iinfo(wanted).max) if kind in "fciu" else (0, 1)
        integers = array if array.dtype.kind in "iu" else []
        lost = [int(value) for value in integers if not exact[0] <= int(value) <= exact[1]]
        if lost:
            with pytest.raises(SampleError, match="d: sample one, field x: found") as caught:
                dataset[0]
            assert any(f"found {value}, which {np.dtype(wanted)} (" in str(caught.value) for value in lost)
        else:
            assert same(dataset[0]["x"], array.astype(wanted))


def test_a_narrow_dtype_is_right_where_the_values_fit(tmp_path):
    for name, values in (("fits", [0, 127, 5]), ("empty", [])):
        root = _made(tmp_path / name, np.array(values, "uint16"))
        assert same(PackedDataset(root, dtypes={"x": "int8"})[0]["x"], np.array(values, "int8"))


def test_labels_are_held_against_the_dtype_after_the_map(packed, scans):
    ids = PackedDataset(packed, label_map="semantickitti")[0]["semantic"]
    mapped = PackedDataset(packed, label_map="semantickitti", dtypes={"semantic": "uint8"})[0]["semantic"]
    assert same(mapped, ids.astype("uint8"))
    with pytest.raises(SampleError, match=r"000000, field semantic: found \d+, which int8 \(-128 to 127\)") as caught:
        PackedDataset(packed, dtypes={"semantic": "int8"})[0]
    assert f"found {raw(scans, 'sequences/00/velodyne/000000')[1].max()}," in str(caught.value)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"fields": ["colour"]}, "fields: no field 'colour' in this dataset; it has points"),
    ({"fields": "points"}, r"fields=\['points'\]"),
    ({"columns": {"points": ("x", "w")}}, "x, y, z, intensity; asked for x, w"),
    ({"columns": {"points": ()}}, "asked for none"),
    ({"columns": ("x", "y")}, "give a dict by field"),
    ({"dtypes": "float16"}, "give a dict by field"),
    ({"columns": {"points": "xyz"}}, "tuple of names"),
    ({"columns": {"pose": ("x",)}}, "no named columns"),
    ({"dtypes": {"colour": "float16"}}, "no field 'colour'"),
    ({"dtypes": {"points": "flaot"}}, "'flaot' is not a numpy dtype"),
    ({"dtypes": {"points": object}}, "not a dtype of numbers"),
    ({"dtypes": {"points": "int32"}}, "dtypes: field 'points' is float32, which int32 would change"),
    ({"dtypes": {"pose": "bool"}}, "field 'pose' is float64, which bool would change"),
    ({"dtypes": {"semantic": bool}}, "field 'semantic' is uint16, which bool would change"),
    ({"verify": "sometimes"}, "none of 'once'"),
    ({"ignore_index": 255}, "give label_map="),
    ({"label_map": "semantickity"}, "semantickitti"),
])  # fmt: skip
def test_wrong_arguments_are_named(packed, arguments, message):
    with pytest.raises(UsageError, match=message):
        len(PackedDataset(packed, **arguments))


def test_label_map_gives_train_ids(packed, scans):
    sample = PackedDataset(packed, label_map="semantickitti")[0]
    raw_ids = raw(scans, sample["name"])[1]
    assert sample["semantic"].dtype == np.int64
    learning_map = {0: 0, 10: 1, 40: 9, 48: 11, 50: 13, 252: 1, 70: 15, 80: 18}
    for raw_id, train_id in learning_map.items():
        assert (sample["semantic"][raw_ids == raw_id] == train_id).all()
    assert sample["instance"].dtype == np.uint16


def test_unknown_labels_stop_or_become_the_ignore_index(tmp_path):
    source = write_tree(tmp_path / "source", {"00/000000": 10, "00/000001": 10})
    path = source / "sequences/00/labels/000001.label"
    np.array([10, 7, 261, 65535, 7, 40, 40, 7 | 3 << 16, 10, 10], "<u4").tofile(path)
    fastload.pack(source, tmp_path / "d")
    dataset = PackedDataset(tmp_path / "d", label_map="semantickitti")
    with pytest.raises(LabelError, match="000001, field semantic") as caught:
        dataset[1]
    for piece in ("7", "261", "65535", "3"):
        assert piece in str(caught.value)
    assert set(dataset[0]) >= {"semantic"}
    mapped = PackedDataset(tmp_path / "d", label_map="semantickitti", ignore_index=255)[1]["semantic"]
    assert mapped.tolist() == [1, 255, 255, 255, 255, 9, 9, 255, 1, 1]
    stored = PackedDataset(tmp_path / "d")[1]["semantic"]
    assert stored.tolist() == [10, 7, 261, 65535, 7, 40, 40, 7, 10, 10]


def test_a_field_that_a_sample_lacks_is_absent_or_an_error_by_name(tmp_path):
    source = write_tree(tmp_path / "source", {"00/000000": 10})
    write_tree(tmp_path / "source", {"11/000000": 20}, labels=False)
    fastload.pack(source, tmp_path / "d")
    test = PackedDataset(tmp_path / "d", "test")
    assert list(test[0]) == ["points", "name", "index"]
    with pytest.raises(SampleError, match="sequences/11/velodyne/000000 has no field 'semantic'"):
        PackedDataset(tmp_path / "d", "test", fields=["points", "semantic"])[0]
    both = PackedDataset(tmp_path / "d")
    with pytest.raises(fastload.CollateError, match="semantic"):
        both.collate([both[0], both[1]])


def test_subsets(packed):
    dataset = PackedDataset(packed)
    chosen = dataset.subset([5, 0, -2])
    assert [s["name"] for s in chosen] == [dataset.names[i] for i in (5, 0, 4)]
    assert [s["index"] for s in chosen] == [0, 1, 2]
    assert chosen.counts.tolist() == [dataset.counts[i] for i in (5, 0, 4)]
    assert chosen.find(dataset.names[4]) == 2
    assert chosen.subset([1])[0]["name"] == dataset.names[0]
    assert len(dataset.subset([])) == 0
    assert dataset.subset(np.arange(2)).fingerprint != dataset.subset([1, 0]).fingerprint != dataset.fingerprint
    for wrong in ([6], [-7], np.array([2**64 - 1], np.uint64), [0.5], [[0]], [True, False], ["a"]):
        with pytest.raises(UsageError, match="subset"):
            dataset.subset(wrong)


def _names_of(dataset, results):
    try:
        results.put(list(dataset.names))
    except DatasetError as error:
        results.put(str(error))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_subset_of_what_was_packed_anew_since_does_not_open(tmp_path):
    source = write_tree(tmp_path / "source", {f"00/{i:06d}": 10 for i in range(4)})
    root = tmp_path / "d"
    fastload.pack(source, root)
    dataset = PackedDataset(root)
    chosen, shared = dataset.subset([1, 3]), PackedDataset(root).subset([0])
    inner, pickled = chosen.subset([1]), pickle.dumps(chosen)
    names = list(chosen.names)
    (source / "sequences/00/velodyne/000000.bin").unlink()
    (source / "sequences/00/labels/000000.label").unlink()
    fastload.pack(source, root, overwrite=True)
    for subset in (chosen, inner, shared, pickle.loads(pickled), copy.copy(chosen), copy.deepcopy(chosen)):
        subset.close()
        with pytest.raises(DatasetError, match="packed anew since this subset was made"):
            subset[0]
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    child = context.Process(target=_names_of, args=(chosen, results))
    child.start()
    assert "packed anew" in results.get()
    child.join()
    child.close()
    results.close()
    dataset.close()
    assert len(dataset) == 3  # the whole dataset is whatever is there
    assert list(dataset.subset([0, 2]).names) == names
    fastload.pack(source, root, overwrite=True, shard_size="1GB")  # the same bytes: the same samples
    assert list(dataset.subset([0, 2]).names) == names


def test_a_subset_outlives_packing_the_same_again(tmp_path):
    source = write_tree(tmp_path / "source", {f"00/{i:06d}": 10 for i in range(3)})
    fastload.pack(source, tmp_path / "d")
    chosen = PackedDataset(tmp_path / "d").subset([2])
    name = chosen[0]["name"]
    fastload.pack(source, tmp_path / "d", overwrite=True)
    chosen.close()
    assert chosen[0]["name"] == name


def test_fingerprints_tell_what_is_read(packed):
    assert PackedDataset(packed).fingerprint == PackedDataset(str(packed)).fingerprint
    assert PackedDataset(packed, "train").fingerprint != PackedDataset(packed, "val").fingerprint
    assert PackedDataset(packed).subset([]).fingerprint != PackedDataset(packed).fingerprint


def double(sample):
    sample["points"] *= 2
    return sample


def test_transform_gets_the_sample_and_gives_the_result(packed, scans):
    dataset = PackedDataset(packed, transform=double)
    assert same(dataset[0]["points"], raw(scans, dataset.names[0])[0] * 2)


def broken(sample):
    raise KeyError("foo")


def test_an_error_of_the_transform_is_its_own_and_names_the_sample(packed):
    with pytest.raises(KeyError, match="foo") as caught:
        PackedDataset(packed, "val", transform=broken)[1]
    if hasattr(caught.value, "__notes__"):
        assert NAME in caught.value.__notes__[0]


def test_names_say_whose_they_are(packed):
    assert "names of PackedDataset" in repr(PackedDataset(packed).names)


def test_copies_and_pickles_are_small_and_equal(packed):
    dataset = PackedDataset(packed, "val", fields=["points"], transform=double, label_map="semantickitti")
    for _ in range(2):  # before and after the first read
        data = pickle.dumps(dataset)
        assert len(data) < 10_000
        for other in (pickle.loads(data), copy.deepcopy(dataset), copy.copy(dataset)):
            assert other.split == "val"
            assert equal(other[2], dataset[2])


def keep(sample, *_, **__):
    return sample


class Counts:
    """A transform that counts its calls in memory that processes share."""

    def __init__(self, context):
        self.calls = context.Value("i", 0)

    def __call__(self, sample):
        with self.calls.get_lock():
            self.calls.value += 1
        return sample


def _loader(dataset, method):
    return DataLoader(dataset, batch_size=2, num_workers=1, collate_fn=dataset.collate, multiprocessing_context=method)


def _local_transforms():
    class Local:
        def __call__(self, sample):
            return sample

        def method(self, sample):
            return sample

        @classmethod
        def of_class(cls, sample):
            return sample

    def local(sample):
        return sample

    return {
        "lambda": lambda sample: sample,
        "function": local,
        "instance": Local(),
        "class": Local,
        "method": Local().method,
        "class method": Local.of_class,
        "partial": partial(local, 1),
        "partial of partial": partial(partial(lambda sample, *_: sample, 1), 2),
        "argument": partial(keep, local),
        "keyword": partial(keep, key=lambda: 1),
    }


@pytest.mark.parametrize("kind", _local_transforms())
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:Got pickle error:UserWarning")  # torch's own, on top of the error
def test_a_local_transform_is_named_when_it_cannot_be_sent_to_a_worker(packed, kind, method):
    transform = _local_transforms()[kind]
    with pytest.raises(pickle.PicklingError, match="transform=") as caught:
        iter(_loader(PackedDataset(packed, transform=transform), method))
    for part in (repr(transform), "at the top of a module", "multiprocessing_context='fork'"):
        assert part in str(caught.value)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_transform_may_hold_what_only_a_worker_can_be_sent(packed, method):
    transform = Counts(multiprocessing.get_context(method))
    assert len(list(_loader(PackedDataset(packed, transform=transform), method))) == 3
    assert transform.calls.value == 6
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(PackedDataset(packed, transform=transform))


class SentByItself:
    """Its instances' class is found by no name, yet they say how they are pickled."""

    def __reduce__(self):
        return partial, (keep,)


SentByItself.__qualname__ = "somewhere.<locals>.SentByItself"


@pytest.mark.parametrize("transform", [keep, partial(keep, key=1), SentByItself(), None],
                         ids=["function", "partial", "sent by itself", "none"])  # fmt: skip
def test_a_transform_that_can_be_sent_is_sent(packed, transform):
    assert len(list(_loader(PackedDataset(packed, transform=transform), "spawn"))) == 3


class CodePickler(pickle.Pickler):
    """Sends functions as their code, as cloudpickle does."""

    def reducer_override(self, value):
        if isinstance(value, types.FunctionType) and "<lambda>" in value.__qualname__:
            return _function_of, (marshal.dumps(value.__code__),)
        return NotImplemented


def _function_of(code):
    return types.FunctionType(marshal.loads(code), {})


def test_what_another_pickler_can_do_is_left_to_it(packed):
    dataset = PackedDataset(packed, transform=lambda sample: {"twice": sample["points"] * 2})
    sent = io.BytesIO()
    CodePickler(sent).dump(dataset)
    assert same(pickle.loads(sent.getvalue())[0]["twice"], dataset[0]["twice"])
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):  # pickle's own words
        pickle.dumps(dataset)


class PickledOnce:
    def __init__(self):
        self.times = 0

    def __getstate__(self):
        self.times += 1
        return {}


def test_a_transform_is_pickled_once(packed):
    transform = PickledOnce()
    pickle.dumps(PackedDataset(packed, transform=transform))
    assert transform.times == 1


class Remembers:
    """A transform with state, which may know its dataset."""

    def __init__(self):
        self.seen = []
        self.dataset = None

    def __call__(self, sample):
        self.seen.append(sample["index"])
        return sample


def test_a_deep_copy_has_a_transform_of_its_own_and_a_copy_shares_it(packed):
    shared = Remembers()
    dataset = PackedDataset(packed, transform=shared).subset([3, 1])
    shared.dataset = dataset
    deep, both = copy.deepcopy(dataset), copy.deepcopy((dataset, shared, dataset))
    assert deep.transform is not shared
    assert deep.transform.dataset is deep
    assert both[0] is both[2]
    assert both[0].transform is both[1]
    assert copy.copy(dataset).transform is shared
    assert dataset.subset([0]).transform is shared
    name = deep[0]["name"]
    assert (deep.transform.seen, shared.seen) == ([0], [])
    assert name == PackedDataset(packed).names[3]


def test_opening_is_lazy(tmp_path):
    dataset = PackedDataset(tmp_path / "nowhere")
    assert "nowhere" in repr(dataset)
    with pytest.raises(FileNotFoundError, match="no such folder"):
        len(dataset)


def test_closed_datasets_can_be_used_again(packed):
    dataset = PackedDataset(packed)
    before = dataset[0]
    dataset.close()
    dataset.close()
    assert equal(dataset[0], before)


def test_nothing_stays_open(packed):
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd"))
    datasets = [PackedDataset(packed, split) for split in ("train", "val", "train", None)]
    for dataset in datasets:
        list(dataset)
    open_now = len(os.listdir("/proc/self/fd"))
    assert open_now - len(before) <= 3 + len(list((packed / "shards").iterdir())) + 1
    del datasets, dataset
    gc.collect()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_many_datasets_over_one_store_and_a_link(packed, scans, tmp_path):
    (tmp_path / "link").symlink_to(packed)
    datasets = [PackedDataset(packed, "train"), PackedDataset(packed, "val"), PackedDataset(tmp_path / "link")]
    for dataset in datasets:
        for sample in dataset:
            assert_right(scans, sample)


def test_threads_share_a_dataset(packed, scans):
    dataset = PackedDataset(packed)
    failures = []

    def work(seed):
        try:
            for index in np.random.default_rng(seed).integers(0, 6, 60):
                assert_right(scans, dataset[index])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def _sums(dataset, results):
    results.put([float(sample["points"].sum()) for sample in dataset])


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_child_processes_read_the_same(packed, method, opened):
    dataset = PackedDataset(packed)
    expected = [float(sample["points"].sum()) for sample in PackedDataset(packed)]
    if opened:
        list(dataset)
    context = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    children = [context.Process(target=_sums, args=(dataset, results)) for _ in range(2)]
    for child in children:
        child.start()
    assert [results.get() for _ in children] == [expected] * 2
    for child in children:
        child.join()
        assert child.exitcode == 0
        child.close()
    results.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_torch_loaders_give_the_same_batches(packed, workers, method):
    dataset = PackedDataset(packed, label_map="semantickitti")
    context = method if workers else None
    loader = DataLoader(
        dataset, batch_size=4, num_workers=workers, collate_fn=dataset.collate, multiprocessing_context=context
    )
    batches = list(loader)
    samples = list(PackedDataset(packed, label_map="semantickitti"))
    for batch, part in zip(batches, (samples[:4], samples[4:]), strict=True):
        assert torch.equal(batch["points"], torch.from_numpy(np.concatenate([s["points"] for s in part])))
        assert torch.equal(batch["semantic"], torch.from_numpy(np.concatenate([s["semantic"] for s in part])))
        assert batch["offset"].tolist() == np.cumsum([len(s["points"]) for s in part]).tolist()
        assert torch.equal(batch["pose"], torch.from_numpy(np.stack([s["pose"] for s in part])))
        assert batch["name"] == [s["name"] for s in part]
        assert batch["index"].tolist() == [s["index"] for s in part]
        assert batch["instance"].dtype == torch.int32
    del loader


FORKS = """
import os, sys, threading
import numpy as np
import fastload
dataset = fastload.PackedDataset(sys.argv[1])
right = [s["points"].tobytes() for s in dataset]
stop = threading.Event()
def read():
    while not stop.is_set():
        for i in range(6):
            assert dataset[i]["points"].tobytes() == right[i]
threads = [threading.Thread(target=read) for _ in range(3)]
[t.start() for t in threads]
for turn in range(25):
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            order = np.random.default_rng(os.getpid()).permutation(6)
            ok = all(dataset[int(i)]["points"].tobytes() == right[i] for i in order)
            os._exit(0 if ok else 7)
        children.append(pid)
    for pid in children:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
stop.set()
[t.join() for t in threads]
print("done")
"""


@pytest.mark.slow
def test_forks_in_the_midst_of_reading_threads(packed):
    done = run_python(FORKS, packed, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]


def test_checksums_are_verified_once_or_always_or_never(packed, monkeypatch):
    from fastload.store import reader

    calls = []
    real = reader.check_field
    monkeypatch.setattr(reader, "check_field", lambda item, data: (calls.append(item.name), real(item, data)))
    counts = {}
    for verify in ("once", "always", "never"):
        calls.clear()
        dataset = PackedDataset(packed, verify=verify)
        dataset[0], dataset[0], dataset[1]
        counts[verify] = len(calls)
    assert counts == {"once": 10, "always": 15, "never": 0}


@pytest.mark.root
def test_a_read_only_dataset_of_another_user_is_read(packed, tmp_path):
    import shutil
    import tempfile

    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        root = f"{folder}/d"
        shutil.copytree(packed, root)
        for path, _, files in os.walk(root):
            os.chmod(path, 0o555)
            for file in files:
                os.chmod(f"{path}/{file}", 0o444)
        before = {p: os.stat(f"{root}/{p}").st_mtime_ns for p in os.listdir(root)}
        child = partial(_become_nobody_and_read, root)
        context = multiprocessing.get_context("fork")
        process = context.Process(target=child)
        process.start()
        process.join()
        assert process.exitcode == 0
        process.close()
        assert before == {p: os.stat(f"{root}/{p}").st_mtime_ns for p in os.listdir(root)}
        os.chmod(f"{root}/shards/00000.lmdb", 0o400)
        process = context.Process(target=partial(_become_nobody_and_fail, root))
        process.start()
        process.join()
        assert process.exitcode == 0
        process.close()


def _become_nobody_and_read(root):
    os.setgroups([])
    os.setuid(65534)
    assert len(list(PackedDataset(root))) == 6


def _become_nobody_and_fail(root):
    os.setgroups([])
    os.setuid(65534)
    with pytest.raises(PermissionError, match=r"00000\.lmdb"):
        list(PackedDataset(root))
