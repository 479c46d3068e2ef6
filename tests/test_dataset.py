"""PackedDataset: the right arrays, from any process, thread, copy or link; and clear refusals."""

import copy
import gc
import multiprocessing
import os
import pickle
import threading
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import fastload
from fastload import PackedDataset
from fastload.errors import LabelError, SampleError, UsageError
from tests.support import run_python, same, write_tree

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


@pytest.mark.parametrize(("arguments", "message"), [
    ({"fields": ["colour"]}, "fields: no field 'colour' in this dataset; it has points"),
    ({"fields": "points"}, r"fields=\['points'\]"),
    ({"columns": {"points": ("x", "w")}}, "x, y, z, intensity; asked for x, w"),
    ({"columns": {"points": ()}}, "asked for none"),
    ({"columns": {"points": "xyz"}}, "tuple of names"),
    ({"columns": {"pose": ("x",)}}, "no named columns"),
    ({"dtypes": {"colour": "float16"}}, "no field 'colour'"),
    ({"dtypes": {"points": "flaot"}}, "'flaot' is not a numpy dtype"),
    ({"dtypes": {"points": object}}, "not a dtype of numbers"),
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
    for wrong in ([6], [-7], [0.5], [[0]], [True, False], ["a"]):
        with pytest.raises(UsageError, match="subset"):
            dataset.subset(wrong)


def test_fingerprints_tell_what_is_read(packed):
    assert PackedDataset(packed).fingerprint == PackedDataset(str(packed)).fingerprint
    assert PackedDataset(packed, "train").fingerprint != PackedDataset(packed, "val").fingerprint


def double(sample):
    sample["points"] *= 2
    return sample


def test_transform_gets_the_sample_and_gives_the_result(packed, scans):
    dataset = PackedDataset(packed, transform=double)
    assert same(dataset[0]["points"], raw(scans, dataset.names[0])[0] * 2)


def test_copies_and_pickles_are_small_and_equal(packed):
    dataset = PackedDataset(packed, "val", fields=["points"], transform=double, label_map="semantickitti")
    for _ in range(2):  # before and after the first read
        data = pickle.dumps(dataset)
        assert len(data) < 10_000
        for other in (pickle.loads(data), copy.deepcopy(dataset), copy.copy(dataset)):
            assert other.split == "val"
            assert equal(other[2], dataset[2])


def test_a_transform_that_cannot_be_pickled_is_named(packed):
    with pytest.raises(pickle.PicklingError, match=r"transform=<function .*lambda"):
        pickle.dumps(PackedDataset(packed, transform=lambda sample: sample))


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
