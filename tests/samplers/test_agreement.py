"""Two processes of a gloo group that hold the same order, or do not."""

from __future__ import annotations

import copy
import json
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from fastload.errors import UsageError
from fastload.samplers.agreement import Agreement, Terms, _agree, _Row, _table_of
from fastload.samplers.distributed import DistributedSampler

RANKS = Path(__file__).with_name("ranks.py")
DEADLINE_S = 60  # of the whole play, two starts of torch included

Play = list[dict[str, dict]]


def tcp_address(_: Path) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def file_address(folder: Path) -> str:
    return f"file://{folder / 'store'}"


@pytest.fixture(scope="module", params=[tcp_address, file_address])
def play(request, tmp_path_factory) -> Play:
    """What the scenes in ranks.py gave on rank 0 and on rank 1."""
    address = request.param(tmp_path_factory.mktemp("group"))
    commands = [[sys.executable, RANKS, str(rank), "2", address] for rank in range(2)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, cwd=RANKS.parents[2], **pipes) for command in commands]
    try:
        outputs = [process.communicate(timeout=DEADLINE_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [0, 0], outputs
    return [json.loads(output) for output, _ in outputs]


@pytest.mark.parametrize("scene", ["equal", "extra_sampler_on_rank_0", "copies", "shared_seed"])
def test_ranks_with_the_same_order_cover_it(play, scene):
    indices = [rank[scene]["indices"] for rank in play]
    assert sorted(indices[0] + indices[1]) == list(range(100))


@pytest.mark.parametrize(
    ("scene", "rows"),
    [
        ("other_seed", ["0 0 100 0 False True 0", "1 1 100 0 False True 0"]),
        ("other_length", ["0 0 100 0 False True 0", "1 0 99 0 False True 0"]),
        ("other_drop_last", ["0 0 100 0 False True 0", "1 0 100 0 True True 0"]),
        ("other_epoch", ["0 0 100 0 False True 0", "1 0 100 1 False True 0"]),
        ("other_position", ["0 0 100 0 False True 40", "1 0 100 0 False True 42"]),
    ],
)
def test_ranks_with_different_orders_both_get_the_table(play, scene, rows):
    for rank in play:
        lines = [" ".join(line.split()) for line in rank[scene]["error"].splitlines()]
        assert lines[0].startswith("DistributedSampler: the ranks do not hold the same order")
        assert lines[1:-1] == ["rank seed length epoch drop_last shuffle position", *rows]
        assert rank[scene]["seconds"] < 10


def test_the_error_stays(play):
    for rank in play:
        assert rank["other_seed"]["again"]["error"] == rank["other_seed"]["error"]


@pytest.mark.parametrize("scene", ["other_seed_unshuffled", "other_seed_of_given_ranks"])
def test_what_cannot_or_need_not_be_compared_is_not(play, scene):
    assert all("indices" in rank[scene] for rank in play)


def test_no_seed_is_rank_0s_on_all(play):
    for rank in play:
        outcome = rank["shared_seed"]
        assert [outcome[key] for key in ("before", "seed", "after", "attribute")] == [None, 100, 100, None]


def test_a_rank_that_passes_alone_goes_on_and_harms_nobody(play):
    """Rank 0 looks at a batch; then both train at epoch 5, and no rank waits again."""
    alone = play[0]["rank_0_alone_first"]["alone"]
    assert len(alone["indices"]) == 50
    assert 0.9 < alone["seconds"] < 9
    together = [rank["rank_0_alone_first"] for rank in play]
    assert sorted(together[0]["indices"] + together[1]["indices"]) == list(range(100))
    assert max(outcome["seconds"] for outcome in together) < 0.9


def test_a_rank_that_comes_late_still_sees_another_seed(play):
    assert "indices" in play[0]["rank_0_alone_with_another_seed"]
    assert "do not hold the same order" in play[1]["rank_0_alone_with_another_seed"]["error"]


def test_a_seed_that_rank_0_does_not_share_is_an_error(play):
    error = play[1]["no_seed_from_rank_0"]["error"]
    assert error.startswith("seed=None: rank 0 shared no seed with rank 1 within 0.5 s")


# Without other processes


@pytest.fixture
def group(monkeypatch):
    """Makes a group of which this process is a rank, and the only one that lives."""

    def make(rank: int, num_ranks: int, store: dist.Store) -> None:
        monkeypatch.setattr(dist, "is_initialized", lambda: True)
        monkeypatch.setattr(dist, "get_rank", lambda: rank)
        monkeypatch.setattr(dist, "get_world_size", lambda: num_ranks)
        monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)

    return make


def test_rank_and_world_are_the_groups(group):
    group(1, 2, dist.HashStore())
    sampler = DistributedSampler(range(10))
    assert (sampler.num_replicas, sampler.rank) == (2, 1)
    assert copy.deepcopy(sampler)._agreement is sampler._agreement
    assert pickle.loads(pickle.dumps(sampler))._agreement is None
    with pytest.raises(UsageError, match="rank=2: the process group has 2, so ranks are 0 to 1"):
        DistributedSampler(range(10), rank=2)


def test_given_numbers_go_before_the_groups(group):
    group(1, 2, dist.HashStore())
    sampler = DistributedSampler(range(10), num_replicas=4, rank=3)
    assert (sampler.num_replicas, sampler.rank, sampler._agreement) == (4, 3, None)
    assert DistributedSampler(range(10), num_replicas=3).rank == 1


def test_without_a_real_store_nothing_is_compared(group):
    group(1, 2, dist.Store())
    assert list(DistributedSampler(range(10), shuffle=False)) == [1, 3, 5, 7, 9]


def test_when_the_store_is_gone_nothing_is_compared(group):
    class Gone(dist.HashStore):
        def set(self, key, value):
            raise dist.DistNetworkError("connection reset")

    group(0, 2, Gone())
    assert list(DistributedSampler(range(10), shuffle=False)) == [0, 2, 4, 6, 8]


def test_a_group_of_one_has_nobody_to_ask(group):
    group(0, 1, dist.HashStore())
    assert Agreement.begin() is None
    assert sorted(DistributedSampler(range(10))) == list(range(10))


def test_the_table_of_many_ranks_shows_those_that_differ():
    rows = [_Row(Terms(0, 100, int(rank in (700, 900)), False, True, 0)) for rank in range(1000)]
    assert not _agree(rows)
    table = _table_of(rows).splitlines()
    assert [line.split()[0] for line in table[2:4]] == ["0", "1"]
    assert [line.split()[0] for line in table[20:22]] == ["700", "900"]
    assert "... and 980 more ranks" in table[22]
