"""Reading where things go wrong around the reader: cut files, foreign users, few descriptors, many processes."""

import contextlib
import copy
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

import fastload
from fastload import PackedDataset
from fastload.errors import CorruptError
from fastload.schema import Field, Schema
from tests.support import REPO, MadeSample, run_python, write_store, write_tree

NUMBERED = Schema((Field("x", dtype="int64", shape=(16,)),))
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def write_numbered(root, count, per_shard, splits=("train",)):
    """Samples whose every value is their number in their split's order of writing."""
    samples = [
        MadeSample(f"{split}/{i:06d}", split, {"x": np.full(16, s * count + i)})
        for s, split in enumerate(sorted(splits))
        for i in range(count)
    ]
    write_store(root, NUMBERED, samples, per_shard=per_shard)
    return root


def state_of(root):
    """Names, sizes and times of all files and folders: what any write would change."""
    return {
        str(path.relative_to(root)): (path.lstat().st_mtime_ns, path.lstat().st_ctime_ns, path.lstat().st_size)
        for path in (root, *root.rglob("*"))
    }


# --- cut shards


LARGE = Schema((Field("points", dtype="float32", shape=(4,), rows="points"),))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Two shards of 25 records of some 100,000 bytes."""
    rng = np.random.default_rng(0)
    samples = [MadeSample(f"{i:04d}", "train", {"points": rng.random((6250, 4), np.float32)}) for i in range(50)]
    root = tmp_path_factory.mktemp("large") / "d"
    write_store(root, LARGE, samples, per_shard=25)
    return root


@pytest.mark.parametrize(("keep", "pad", "method"), [
    *((keep, pad, "fork") for keep in (0, 4096, 8192, 0.5, 0.9, -4096, -1) for pad in (False, True)),
    (0.5, False, "spawn"), (0.5, True, "forkserver"),
])  # fmt: skip
def test_a_cut_shard_under_worker_processes_is_an_error_in_the_parent(large, tmp_path, keep, pad, method):
    """No worker dies of a bus error; the shard and its sizes, or the first damaged record, are named within seconds.

    Readers of the other shard go on.
    """
    shutil.copytree(large, tmp_path / "d")
    shard = tmp_path / "d/shards/00001.lmdb"
    size = shard.stat().st_size
    left = int(size * keep) if isinstance(keep, float) else keep if keep >= 0 else size + keep
    lost = shard.read_bytes()[left:]
    os.truncate(shard, left)
    if pad:
        os.truncate(shard, size)
    dataset = PackedDataset(tmp_path / "d")
    sound = dataset.subset(range(25))
    assert len(list(DataLoader(sound, 5, num_workers=2, collate_fn=dataset.collate))) == 5
    loader = DataLoader(dataset, 5, num_workers=2, collate_fn=dataset.collate, multiprocessing_context=method)
    started = time.monotonic()
    error = None
    try:
        for _ in loader:
            pass
    except CorruptError as caught:
        error = caught.with_traceback(None)
    if pad and not any(lost):
        assert error is None  # only zeros were cut: nothing is lost
        return
    if pad and error is None:
        # What is zero now lies in no record: verify alone can see it.
        problems = fastload.verify(tmp_path / "d").problems
        assert {problem.shard for problem in problems} == {"shards/00001.lmdb"}
        return
    assert "00001.lmdb" in str(error)
    assert time.monotonic() - started < (5 if method == "fork" else 60)
    assert pad or f"{left:,} bytes; expected {size:,}" in str(error)
    assert not pad or "sample 00" in str(error)
    assert not fastload.verify(tmp_path / "d").ok


CUT_MEANWHILE = """
import os, sys, threading
import fastload
from torch.utils.data import DataLoader
root, keep = sys.argv[1], int(sys.argv[2])
dataset = fastload.PackedDataset(root, verify=sys.argv[3])
right = [sample["points"].tobytes() for sample in dataset]
shard = os.path.join(root, "shards/00001.lmdb")
ready, cut, errors = threading.Barrier(4), threading.Event(), []
def read(numbers):
    ready.wait()
    turns = 0
    while turns < 20:
        turns += cut.is_set()
        for number in numbers:
            try:
                assert dataset[number]["points"].tobytes() == right[number], number
            except fastload.CorruptError as error:
                errors.append((number, error.shard, error.sample))
threads = [threading.Thread(target=read, args=(part,)) for part in ([0, 7], [25, 49], [30, 24])]
[t.start() for t in threads]
ready.wait()
batches = iter(DataLoader(dataset.subset(range(25)), 5, num_workers=1, collate_fn=dataset.collate))
next(batches)
os.truncate(shard, keep)
cut.set()
assert len(list(batches)) == 4
[t.join() for t in threads]
assert errors and {shard for _, shard, _ in errors} == {"shards/00001.lmdb"}, errors[:3]
assert min(number for number, _, _ in errors) >= 25
print("done")
"""


@pytest.mark.parametrize("verify", ["once", "never"])
@pytest.mark.parametrize("keep", [0, 4096, 300_000])
def test_a_shard_cut_while_threads_and_workers_read_it(large, tmp_path, keep, verify):
    """Samples whose bytes are gone are errors that name the shard, all others are right, nobody dies."""
    shutil.copytree(large, tmp_path / "d")
    done = run_python(CUT_MEANWHILE, tmp_path / "d", keep, verify)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]


# --- folders that cannot be written to, file systems without locks


READ_ALL = """
import os, sys
import numpy.random  # a worker needs it
from fastload import PackedDataset, verify
from torch.utils.data import DataLoader
def read_all(root):
    dataset = PackedDataset(root)
    loader = DataLoader(dataset, 4, num_workers=2, collate_fn=dataset.collate)
    for epoch in range(2):
        found = [batch["x"][:, 0].tolist() for batch in loader]
        assert sum(found, []) == list(range(len(dataset))), found
    assert verify(root).ok
    return len(dataset)
"""
NOBODY = (
    READ_ALL
    + """
read_all(sys.argv[2])  # as root, so that all modules are loaded: another user may not be able to
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print("read", read_all(sys.argv[1]))
"""
)


@contextlib.contextmanager
def readable_by_all():
    """A folder that every user can look into: pytest's own are the user's alone."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def make_read_only(root):
    for path, _, files in os.walk(root):
        os.chmod(path, 0o555)
        for file in files:
            os.chmod(f"{path}/{file}", 0o444)


def need_root():
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user and to mount")


@contextlib.contextmanager
def read_only_mount(root):
    """The folder bound over itself, read-only."""
    done = subprocess.run(["mount", "--bind", root, root], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", root], check=True)
        yield
    finally:
        subprocess.run(["umount", root], check=True)


@pytest.mark.root
@pytest.mark.parametrize("mounted", [False, True])
def test_a_foreign_user_reads_what_may_only_be_read_with_worker_processes(mounted):
    """Nothing is written beside the data: no lock file, no cache, no time changed."""
    need_root()
    with readable_by_all() as folder:
        root = write_numbered(folder / "d", 30, 7)
        make_read_only(root)
        before = state_of(root)
        other = write_numbered(folder / "other", 5, 2)
        with read_only_mount(root) if mounted else contextlib.nullcontext():
            done = run_python(NOBODY, root, other)
        assert (done.returncode, done.stdout) == (0, "read 30\n"), done.stderr[-2000:]
        assert state_of(root) == before


@pytest.mark.root
@pytest.mark.parametrize("file", ["shards/00001.lmdb", "index.npy", "dataset.json"])
def test_a_file_that_a_user_may_not_read_is_a_permission_error_that_names_it(file):
    """In a worker process too."""
    need_root()
    with readable_by_all() as folder:
        root = write_numbered(folder / "d", 30, 7)
        make_read_only(root)
        os.chmod(root / file, 0o400)
        done = run_python(NOBODY, root, write_numbered(folder / "other", 5, 2))
        assert done.returncode == 1, done
        assert done.stderr.strip().splitlines()[-1].startswith("PermissionError")
        assert os.fspath(root / file) in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("inject", [False, True])
def test_reading_takes_no_lock_and_needs_none(tmp_path, inject):
    """Not one lock call on a file of the dataset, in reader and workers; where each would fail, all is read."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace, to see and to fail system calls")
    root = write_numbered(tmp_path / "d", 30, 7)
    files = [option for path in (root, *sorted(root.rglob("*"))) for option in ("-P", os.fspath(path))]
    options = ["-e", "trace=flock,fcntl", *files]
    if inject:
        options += ["-e", "inject=flock:error=ENOLCK", "-e", "inject=fcntl:error=ENOLCK"]
    code = READ_ALL + "print('read', read_all(sys.argv[1]))"
    trace = tmp_path / "trace"
    command = [
        "strace",
        "-f",
        "-qq",
        "-y",
        "-o",
        os.fspath(trace),
        *options,
        sys.executable,
        "-c",
        code,
        os.fspath(root),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPO)
    if "ptrace" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr.strip()[:200]}")
    assert (done.returncode, done.stdout) == (0, "read 30\n"), done.stderr[-2000:]
    assert not [line for line in trace.read_text().splitlines() if "flock(" in line or "LK" in line]


# --- many processes, killed and started again


CROWD = """
import os, random, signal, sys, threading, time
from fastload import PackedDataset
root, crowd, killed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(1)
def live(seed, reads):
    dataset = PackedDataset(root)
    wrong = []
    def read(seed):
        rng = random.Random(seed)
        for _ in range(reads):
            number = rng.randrange(len(dataset))
            if (dataset[number]["x"] != number).any():
                wrong.append(number)
    threads = [threading.Thread(target=read, args=(seed * 3 + i,)) for i in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return 1 if wrong else 0
def start(count, reads):
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            code = 2
            try:
                code = live(os.getpid(), reads)
            finally:
                os._exit(code)
        pids.append(pid)
    return pids
first = start(crowd - killed, 60)
victims = start(killed, 10**9)
for pid in victims:
    time.sleep(rng.uniform(0, 0.004))
    os.kill(pid, signal.SIGKILL)
second = start(killed, 60)
codes = [[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] for pids in (first, victims, second)]
assert codes == [[0] * len(first), [-9] * killed, [0] * killed], codes
print("done")
"""


@pytest.mark.slow
def test_a_crowd_of_reading_processes_of_which_most_are_killed(tmp_path):
    """No table of readers fills up, no lock stays behind: all that live read right, and nothing on disk changes."""
    root = write_numbered(tmp_path / "d", 60, 9)
    before = state_of(root)
    done = run_python(CROWD, root, 60, 45)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]
    assert state_of(root) == before


# --- many shards, few descriptors


@pytest.fixture(scope="module")
def many_shards(tmp_path_factory):
    return write_numbered(tmp_path_factory.mktemp("shards") / "d", 100, 1, ("train", "val", "test"))


FEW_DESCRIPTORS = """
import gc, os, random, resource, sys, threading
import fastload
from torch.utils.data import DataLoader
root, soft = sys.argv[1], int(sys.argv[2])
hard = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
splits = {name: fastload.PackedDataset(root, name) for name in ("train", "val", "test")}
whole = fastload.PackedDataset(root)
first = {"test": 0, "train": 100, "val": 200}
def read(seed):
    rng = random.Random(seed)
    for number in rng.sample(range(300), 300):
        assert (whole[number]["x"] == number).all()
    for split, dataset in splits.items():
        number = rng.randrange(100)
        assert (dataset[number]["x"] == first[split] + number).all()
def in_threads():
    failed = []
    def run(seed):
        try:
            read(seed)
        except BaseException as error:
            failed.append(error)
    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failed, failed
open_now = []
for epoch in range(3):
    in_threads()
    open_now.append(len(os.listdir("/proc/self/fd")))
for dataset in (whole, *splits.values()):
    assert len(list(DataLoader(dataset, 10, num_workers=2, collate_fn=dataset.collate))) == len(dataset) // 10
gc.collect()
open_now.append(len(os.listdir("/proc/self/fd")))
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)
print(*open_now)
"""


@pytest.mark.parametrize("soft", [128, 256])
def test_more_shards_than_descriptors_with_threads_workers_and_three_splits(many_shards, soft):
    """All samples are right, the number of open files does not grow, and nobody's limit is raised in silence."""
    done = run_python(FEW_DESCRIPTORS, many_shards, soft)
    assert done.returncode == 0, done.stderr[-2000:]
    open_now = list(map(int, done.stdout.split()))
    assert max(open_now) < soft
    assert len(set(open_now[:3])) == 1
    assert open_now[3] <= open_now[2] + 2


# --- a dataset that is replaced or removed under its readers


READERS = """
import os, random, sys, time
import numpy as np
import fastload
root, seconds = sys.argv[1], float(sys.argv[2])
def check():
    "One pass through a dataset opened now: what it gives is of one version, then one error may come."
    dataset = fastload.PackedDataset(root)
    versions = set()
    try:
        names = list(dataset.names)
        for index in np.random.default_rng().permutation(len(dataset)):
            time.sleep(random.uniform(0, 0.02))  # so that the dataset is often replaced between two shards
            sample = dataset[int(index)]
            values = {float(sample["points"][0, 3]), float(sample["semantic"][-1]) / 1000}
            versions |= {round(value, 3) for value in values}
            assert (sample["points"][:, 3] == sample["points"][0, 3]).all()
            assert sample["name"] == names[index]
            assert names[index].split("/")[1] == {0.01: "00", 0.04: "00", 0.07: "03"}[round(values.pop(), 3)]
    except (fastload.DatasetError, FileNotFoundError) as error:
        assert str(error) and root in str(error)
        return "broken off", versions
    finally:
        assert len(versions) <= 1, versions
    return "whole", versions
results = set()
until = time.monotonic() + seconds
while time.monotonic() < until or results != {"whole", "broken off"}:
    result, versions = check()
    if versions:
        results.add(result)
    assert time.monotonic() < until + 30, results
print("both")
"""


def write_version(root, sequence, label):
    """Scans of one size whose intensities and labels say which version they are of."""
    source = write_tree(root, {f"{sequence}/{i:06d}": 400 for i in range(6)})
    for path in source.rglob("*.bin"):
        points = np.fromfile(path, "<f4").reshape(-1, 4)
        points[:, 3] = np.float32(label / 1000)
        points.tofile(path)
    for path in source.rglob("*.label"):
        np.full(400, label, "<u4").tofile(path)
    return source


def start_readers(root, seconds, count=2):
    command = [sys.executable, "-c", READERS, os.fspath(root), str(seconds)]
    return [
        subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(count)
    ]


def finish(readers):
    try:
        for reader in readers:
            out, err = reader.communicate(timeout=90)
            assert reader.returncode == 0, err[-2000:]
            yield out
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()


@pytest.mark.slow
def test_readers_of_a_dataset_that_is_packed_anew_see_one_version_or_one_error(tmp_path):
    """Same sizes and same names, or other names: each opened dataset is the old one, the new one, or an error."""
    versions = [write_version(tmp_path / str(k), *k) for k in (("00", 10), ("00", 40), ("03", 70))]
    fastload.pack(versions[0], tmp_path / "d", shard_size="20kB")
    readers = start_readers(tmp_path / "d", 4)
    until = time.monotonic() + 60  # readers that saw both whole datasets and errors end by themselves
    rng = np.random.default_rng(1)
    turn = 0
    while time.monotonic() < until and any(reader.poll() is None for reader in readers):
        turn += 1
        fastload.pack(versions[(0, 1, 0, 1, 2)[turn % 5]], tmp_path / "d", shard_size="20kB", overwrite=True)
        time.sleep(rng.uniform(0, 0.12))  # long enough to open it, often too short to read all of it
    for out in finish(readers):
        assert out == "both\n"
    assert turn > 3
    assert fastload.verify(tmp_path / "d").ok


@pytest.mark.slow
def test_readers_of_a_dataset_that_is_removed_get_the_data_or_one_error(tmp_path):
    source = write_version(tmp_path / "s", "00", 10)
    fastload.pack(source, tmp_path / "whole", shard_size="20kB")
    shutil.copytree(tmp_path / "whole", tmp_path / "d")
    readers = start_readers(tmp_path / "d", 3)
    until = time.monotonic() + 60
    rng = np.random.default_rng(1)
    while time.monotonic() < until and any(reader.poll() is None for reader in readers):
        shutil.rmtree(tmp_path / "d")
        shutil.copytree(tmp_path / "whole", tmp_path / "d")
        time.sleep(rng.uniform(0, 0.12))
    for out in finish(readers):
        assert out == "both\n"


def test_a_reader_that_was_open_before_the_removal_keeps_to_it(tmp_path):
    """What was opened stays readable or is one error that names a file; nothing else is ever given."""
    root = write_numbered(tmp_path / "d", 30, 5)
    dataset = PackedDataset(root)
    assert (dataset[0]["x"] == 0).all()
    shutil.rmtree(root)
    for number in range(30):
        try:
            assert (dataset[number]["x"] == number).all()
        except CorruptError as error:
            assert os.fspath(root) in str(error)  # noqa: PT017 - either is right
            assert number >= 5


# --- how much is read


def io_of(work):
    """Read calls and bytes that this process made while `work` ran."""

    def now():
        lines = Path("/proc/self/io").read_text().splitlines()
        values = dict(line.split(": ") for line in lines)
        return int(values["syscr"]), int(values["rchar"])

    work()  # modules are imported, caches are filled
    alone = now(), now()
    before = now()
    work()
    after = now()
    return tuple(after[i] - before[i] - (alone[1][i] - alone[0][i]) for i in (0, 1))


@pytest.mark.parametrize("count", [200, 20_000])
def test_opening_and_a_first_sample_do_not_scan_the_keys(tmp_path, count):
    """Some 20 reads, however many samples there are."""
    samples = [MadeSample(f"{i:06d}", "train", {"x": np.full(16, i)}) for i in range(count)]
    write_store(tmp_path / "d", NUMBERED, samples, per_shard=count)

    def first_sample():
        dataset = PackedDataset(tmp_path / "d")
        assert len(dataset) == count
        assert (dataset[count // 2]["x"] == count // 2).all()
        dataset.close()

    calls, nbytes = io_of(first_sample)
    assert calls < 50
    assert nbytes < 4 << 20


@pytest.mark.parametrize(("rows", "extra"), [(150_000, 1.01), (6_000, 1.1)])
@pytest.mark.parametrize("verify", ["once", "always", "never"])
def test_large_records_are_read_once_in_few_calls(tmp_path, rows, extra, verify):
    """In any order, hardly more bytes are read than are delivered, and a call or two a sample."""
    rng = np.random.default_rng(0)
    arrays = [rng.random((rows + i, 4), np.float32) for i in range(8)]
    samples = [MadeSample(f"{i}", "train", {"points": array}) for i, array in enumerate(arrays)]
    write_store(tmp_path / "d", LARGE, samples, per_shard=3)
    dataset = PackedDataset(tmp_path / "d", verify=verify)
    order = rng.permutation(8)

    def epoch():
        for index in order:
            assert len(dataset[index]["points"]) == rows + index

    calls, nbytes = io_of(epoch)
    delivered = sum(array.nbytes for array in arrays)
    assert delivered <= nbytes <= delivered * extra
    assert calls <= 8 * 6


# --- copies, pickles and forks


def test_a_pickle_does_not_grow_with_the_dataset(tmp_path):
    """Neither index nor names are inside, before and after they were read, and in the middle of a pass."""
    sizes = {}
    for count in (3, 3000):
        dataset = PackedDataset(write_numbered(tmp_path / str(count), count, count))
        sizes[count] = [len(pickle.dumps(dataset))]
        assert len(dataset.names[:]) == len(dataset.counts) == count
        for index, sample in enumerate(dataset):
            if index in (0, 1, count - 1):
                sizes[count].append(len(pickle.dumps(dataset)))
                for other in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset), copy.copy(dataset)):
                    assert (other[index]["x"] == sample["x"]).all()
                    assert list(other.names[:2]) == list(dataset.names[:2])
    assert max(sizes[3000]) - min(sizes[3]) < 50
    assert max(sizes[3000]) < 10_000


def _read_with_a_loader(dataset, results):
    batches = list(DataLoader(dataset, 4, num_workers=1, collate_fn=dataset.collate))
    results.put(np.concatenate([batch["x"][:, 0].numpy() for batch in batches]).tolist())


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_opens_a_loader_of_its_own_while_the_parent_is_in_the_midst_of_one(tmp_path, method):
    dataset = PackedDataset(write_numbered(tmp_path / "d", 30, 7))
    mine = iter(DataLoader(dataset, 4, num_workers=1, collate_fn=dataset.collate))
    seen = next(mine)["x"][:, 0].tolist()
    context = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    children = [context.Process(target=_read_with_a_loader, args=(dataset, results)) for _ in range(2)]
    for child in children:
        child.start()
    assert [results.get() for _ in children] == [list(range(30))] * 2
    for child in children:
        child.join(30)
        assert child.exitcode == 0
        child.close()
    results.close()
    for batch in mine:
        seen += batch["x"][:, 0].tolist()
    assert seen == list(range(30))


FORKS = """
import os, sys
import numpy as np
import fastload
root = sys.argv[1]
dataset = fastload.PackedDataset(root)
kept = [dataset[number] for number in range(100)]
mine = set(os.listdir("/proc/self/fd"))
for turn in range(int(sys.argv[2])):
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                order = np.random.default_rng(os.getpid()).permutation(200)
                right = all((dataset[int(i)]["x"] == i).all() for i in order)
                right &= all((sample["x"] == i).all() for i, sample in enumerate(kept))
                more = len(os.listdir("/proc/self/fd")) - len(mine)
                code = 0 if right and more <= 40 // 10 else 7
            finally:
                os._exit(code)
        children.append(pid)
    assert all((dataset[number]["x"] == number).all() for number in np.random.default_rng(turn).permutation(200))
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0] * 4, codes
print("done")
"""


@pytest.mark.slow
def test_forked_children_read_on_with_what_they_inherited_and_little_more(tmp_path):
    """Positional reads share no position; a child opens the shards that its parent had not, and no file twice."""
    root = write_numbered(tmp_path / "d", 200, 50)
    before = state_of(root)
    done = run_python(FORKS, root, 25, timeout=60)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]
    assert state_of(root) == before
