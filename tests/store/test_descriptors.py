"""The table of open shards: bounded, never the wrong file, nothing left open."""

import os
import random
import resource
import threading

import numpy as np
import pytest

from fastload.errors import ResourceError
from fastload.schema import Field, Schema
from fastload.store.descriptors import TABLE, DescriptorTable
from fastload.store.reader import open_store
from tests.support import MadeSample, run_python, write_store

SCHEMA = Schema((Field("x", "array", "int64", (16,)),))


def write_shards(root, count, per_shard=2):
    samples = [MadeSample(f"{i:05d}", "all", {"x": np.full(16, i, np.int64)}) for i in range(count * per_shard)]
    write_store(root, SCHEMA, samples, per_shard=per_shard)


@pytest.mark.slow
def test_two_open_files_for_fifty_shards_and_eight_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(TABLE, "limit", 2)
    write_shards(tmp_path, 50)
    store = open_store(tmp_path)
    wrong: list[int] = []
    most = [0]

    def read_many(seed):
        rng = random.Random(seed)
        for turn in range(12_500):
            number = rng.randrange(100)
            if not (store.read(number, check=turn % 50 == 0)["x"] == number).all():
                wrong.append(number)
            most[0] = max(most[0], len(TABLE))

    threads = [threading.Thread(target=read_many, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert most[0] <= 3  # one may be in the act of being dropped
    assert len(TABLE) <= 2


def test_files_are_closed_when_the_last_store_goes(tmp_path):
    write_shards(tmp_path, 3)
    before = len(os.listdir("/proc/self/fd"))
    first, second = open_store(tmp_path), open_store(tmp_path)
    assert first is second
    for number in range(6):
        first.read(number)
    assert len(os.listdir("/proc/self/fd")) >= before + 3
    del first, second
    assert len(os.listdir("/proc/self/fd")) == before


def test_through_a_link_it_is_one_store(tmp_path):
    write_shards(tmp_path / "d", 2)
    (tmp_path / "link").symlink_to(tmp_path / "d")
    assert open_store(tmp_path / "d") is open_store(tmp_path / "link")


def test_a_file_that_is_in_use_stays_open_when_the_table_drops_it(tmp_path):
    (tmp_path / "a").write_bytes(b"aaaa")
    (tmp_path / "b").write_bytes(b"bbbb")
    table = DescriptorTable(limit=1)
    held = table.get("a", str(tmp_path / "a"), lambda fd: None)
    table.get("b", str(tmp_path / "b"), lambda fd: None)
    assert len(table) == 1
    assert os.pread(held.fd, 4, 0) == b"aaaa"


def test_a_rewritten_dataset_at_the_same_path_is_read_anew(tmp_path):
    write_shards(tmp_path / "d", 1)
    old = open_store(tmp_path / "d")
    assert old.read(0)["x"][0] == 0
    samples = [MadeSample(f"{i:05d}", "all", {"x": np.full(16, 100 + i, np.int64)}) for i in range(2)]
    write_store(tmp_path / "new", SCHEMA, samples)
    (tmp_path / "d").rename(tmp_path / "old")
    (tmp_path / "new").rename(tmp_path / "d")
    assert open_store(tmp_path / "d").read(0)["x"][0] == 100
    assert old.read(0)["x"][0] == 0


def test_few_descriptors_are_enough_for_many_shards(tmp_path):
    write_shards(tmp_path, 60)
    code = """
import resource, sys
from pathlib import Path
from fastload.store.reader import open_store
store = open_store(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_NOFILE, (32, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
assert all((store.read(n)["x"] == n).all() for _ in range(3) for n in range(120))
"""
    done = run_python(code, tmp_path)
    assert done.returncode == 0, done.stderr


def test_no_descriptor_at_all_is_a_clear_error(tmp_path):
    write_shards(tmp_path, 2)
    store = open_store(tmp_path)
    store.index, store.names
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    holes = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, hard))
        while True:
            try:
                holes.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        with pytest.raises(ResourceError, match=r"too many open files \(soft limit"):
            store.read(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in holes:
            os.close(fd)
    assert store.read(0)["x"][0] == 0
