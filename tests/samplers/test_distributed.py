"""The distributed sampler beside torch's, and the cases in which torch's own goes wrong."""

from __future__ import annotations

import tracemalloc
import warnings
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from fastload.errors import UsageError
from fastload.samplers.distributed import DistributedSampler

lengths, worlds = st.integers(0, 60), st.integers(1, 9)
EMPTY = "ignore:DistributedSampler.*leave nothing:UserWarning"


def parts(length: int, replicas: int, **options) -> list[list[int]]:
    return [list(DistributedSampler(range(length), replicas, rank, **options)) for rank in range(replicas)]


def global_order(dealt: list[list[int]]) -> list[int]:
    return [index for step in zip(*dealt, strict=True) for index in step]


@given(lengths, worlds, st.booleans())
@settings(max_examples=150, deadline=None)
@pytest.mark.filterwarnings(EMPTY)
def test_without_shuffle_it_is_torchs(length, replicas, drop_last):
    for rank in range(replicas):
        ours = DistributedSampler(range(length), replicas, rank, shuffle=False, drop_last=drop_last)
        theirs = torch.utils.data.DistributedSampler(range(length), replicas, rank, shuffle=False, drop_last=drop_last)
        assert (ours.num_samples, ours.total_size, len(ours)) == (theirs.num_samples, theirs.total_size, len(theirs))
        assert list(ours) == (list(theirs) if length else [])  # torch's divides by zero where there are no samples


@given(lengths, worlds, st.booleans(), st.integers(0, 2**64 - 1), st.integers(0, 1000))
@settings(max_examples=150, deadline=None)
@pytest.mark.filterwarnings(EMPTY)
def test_the_global_order_is_the_same_for_any_world(length, replicas, drop_last, seed, epoch):
    alone = DistributedSampler(range(length), seed=seed)
    alone.set_epoch(epoch)
    order = list(alone)
    assert sorted(order) == list(range(length))
    samplers = [DistributedSampler(range(length), replicas, r, True, seed, drop_last) for r in range(replicas)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    dealt = global_order([list(sampler) for sampler in samplers])
    if drop_last:
        assert dealt == order[: length - length % replicas]
    else:
        assert dealt[:length] == order
        assert dealt[length:] == [order[i % length] for i in range(len(dealt) - length)]
        assert len(dealt) - length < replicas
    assert all(type(index) is int for index in dealt)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("length", "replicas"), [(3, 7), (1, 8), (4, 9)])
def test_fewer_samples_than_ranks(length, replicas, shuffle):
    dealt = parts(length, replicas, shuffle=shuffle)
    assert [len(part) for part in dealt] == [1] * replicas
    assert set(global_order(dealt)) == set(range(length))
    assert len(set(global_order(dealt)[:length])) == length
    assert max(Counter(global_order(dealt)).values()) <= -(-replicas // length)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("length", "replicas"), [(3, 7), (1, 8)])
def test_fewer_samples_than_ranks_with_drop_last_are_none(length, replicas, shuffle):
    with pytest.warns(UserWarning, match=f"{length} samples for {replicas} ranks") as caught:
        sampler = DistributedSampler(range(length), replicas, 0, shuffle=shuffle, drop_last=True)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert (len(sampler), list(sampler), sampler.num_samples, sampler.total_size) == (0, [], 0, 0)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("replicas", [1, 2])
def test_no_samples_are_an_empty_pass(replicas, drop_last, shuffle):
    sampler = DistributedSampler([], replicas, 0, shuffle=shuffle, drop_last=drop_last)
    assert (len(sampler), list(sampler), list(sampler)) == (0, [], [])
    sampler.load_state_dict(sampler.state_dict())
    assert sampler.epoch == 0


@pytest.mark.parametrize(
    ("replicas", "rank", "error", "message"),
    [
        (0, 0, UsageError, "^num_replicas=0:"),
        (-1, 0, UsageError, "^num_replicas=-1:"),
        (2, 2, UsageError, "^rank=2: num_replicas is 2, so ranks are 0 to 1$"),
        (2, -1, UsageError, "^rank=-1:"),
        (2.0, 0, TypeError, r"^num_replicas=2\.0: .*not float"),
        (True, 0, TypeError, "^num_replicas=True: .*bool"),
        (2, False, TypeError, "^rank=False: .*bool"),
        (2, "0", TypeError, "^rank='0': .*not str"),
        (4, None, UsageError, "^rank=None with num_replicas=4:"),
        (None, 2, UsageError, "^rank=2: num_replicas is not given"),
    ],
)
def test_the_wrong_argument_is_named(replicas, rank, error, message):
    with pytest.raises(error, match=message) as caught:
        DistributedSampler(range(4), replicas, rank)
    assert isinstance(caught.value, (ValueError, TypeError))


def test_without_a_group_it_is_rank_0_of_1():
    sampler = DistributedSampler(range(4))
    assert (sampler.num_replicas, sampler.rank, len(sampler)) == (1, 0, 4)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"seed": 1.0}, TypeError, "^seed=1.0"),
        ({"seed": True}, TypeError, "^seed=True"),
        ({"seed": 2**64}, UsageError, "^seed=18446744073709551616"),
        ({"shuffle": "no"}, TypeError, "^shuffle='no'"),
        ({"drop_last": None}, TypeError, "^drop_last=None"),
        ({"dataset": iter([1])}, TypeError, "^dataset=.*cannot be counted"),
    ],
)
def test_other_wrong_arguments_are_named(options, error, message):
    with pytest.raises(error, match=message):
        DistributedSampler(**{"dataset": range(4), **options})


def test_numpys_integers_are_integers():
    sampler = DistributedSampler(range(9), np.int64(2), np.int32(1), seed=np.uint64(3))
    sampler.set_epoch(np.int64(2))
    assert list(sampler) == list(_at_epoch(DistributedSampler(range(9), 2, 1, seed=3), 2))
    assert {type(sampler.state_dict()[key]) for key in ("seed", "epoch", "delivered")} == {int}


def _at_epoch(sampler: DistributedSampler, epoch: int) -> DistributedSampler:
    sampler.set_epoch(epoch)
    return sampler


@pytest.mark.parametrize(("epoch", "error"), [(-1, UsageError), (1.0, TypeError), (True, TypeError), ("1", TypeError)])
def test_a_wrong_epoch_is_named(epoch, error):
    sampler = DistributedSampler(range(4))
    with pytest.raises(error, match=f"^epoch={epoch!r}:"):
        sampler.set_epoch(epoch)
    assert sampler.epoch == 0


def test_frameworks_take_it_for_torchs():
    sampler = DistributedSampler(dataset := list(range(10)), num_replicas=3, rank=1, seed=5, drop_last=True)
    assert isinstance(sampler, torch.utils.data.DistributedSampler)
    assert isinstance(sampler, torch.utils.data.Sampler)
    assert sampler.dataset is dataset
    seen = (sampler.num_replicas, sampler.rank, sampler.epoch, sampler.drop_last, sampler.shuffle, sampler.seed)
    assert seen == (3, 1, 0, True, True, 5)
    assert (sampler.num_samples, sampler.total_size) == (3, 9)
    sampler.epoch = 4  # as some trainers do
    assert sampler.state_dict()["epoch"] == 4


def test_a_dataset_that_grew_is_told():
    sampler = DistributedSampler(dataset := [1, 2, 3], 2, 0)
    dataset.append(4)
    with pytest.raises(UsageError, match="had 3 samples when the sampler was made, and has 4 now"):
        list(sampler)


def test_a_billion_samples_cost_no_memory():
    tracemalloc.start()
    try:
        sampler = DistributedSampler(range(10**9), 8, 3)
        first = list(islice(sampler, 8))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert len(set(first)) == 8
    assert len(sampler) == 125_000_000


def test_no_seed_is_torchs():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    assert list(DistributedSampler(range(50), seed=None)) == list(DistributedSampler(range(50), seed=11))
    assert torch.equal(before, torch.get_rng_state())


# set_epoch with torch's own loader and worker processes that stay


def loader_of(sampler: DistributedSampler, workers: int = 2) -> DataLoader:
    return DataLoader(range(10), sampler=sampler, num_workers=workers, persistent_workers=workers > 0)


def delivered_by(loader: DataLoader) -> list[int]:
    return [int(index) for batch in loader for index in batch]


def test_set_epoch_before_iter_gives_that_epochs_order():
    sampler = DistributedSampler(range(10))
    loader = loader_of(sampler)
    orders = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        orders.append(delivered_by(loader))
    assert orders == [list(_at_epoch(DistributedSampler(range(10)), epoch)) for epoch in range(3)]
    assert len({tuple(order) for order in orders}) == 3


def test_set_epoch_after_iter_is_too_late_and_said_once():
    sampler = DistributedSampler(range(10))
    running = iter(loader_of(sampler))
    with pytest.warns(UserWarning, match=r"set_epoch\(1\) comes too late .* pass of epoch 0") as caught:
        sampler.set_epoch(1)
    assert [warning.filename for warning in caught] == [__file__]
    sampler.set_epoch(2)  # silent: it was said
    assert delivered_by(running) == list(DistributedSampler(range(10)))


def test_set_epoch_after_a_finished_or_a_dropped_pass_is_silent():
    sampler = DistributedSampler(range(10))
    list(sampler)
    sampler.set_epoch(1)
    list(islice(sampler, 4))
    sampler.set_epoch(2)
    exactly = iter(sampler)
    list(islice(exactly, 10))
    sampler.set_epoch(3)
    assert next(exactly, None) is None


def test_a_forgotten_set_epoch_is_said_once_as_the_second_pass_begins():
    sampler = DistributedSampler(range(10))
    loader = loader_of(sampler, workers=0)
    first = delivered_by(loader)
    with pytest.warns(UserWarning, match=r"sampler\.set_epoch\(epoch\) before each epoch.*fastload\.DataLoader"):
        second = delivered_by(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        third = delivered_by(loader)
    assert first == second == third


def test_without_shuffle_no_set_epoch_is_missed():
    loader = loader_of(DistributedSampler(range(10), shuffle=False), workers=0)
    assert delivered_by(loader) == delivered_by(loader) == list(range(10))
