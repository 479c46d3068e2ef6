"""State: what is resumed is the rest of the order, once each, in any world."""

from __future__ import annotations

import copy
import json
import pickle
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastload.errors import UsageError
from fastload.samplers.distributed import DistributedSampler
from fastload.samplers.shuffle import ShuffleSampler
from fastload.samplers.state import Pass, ResumableOrder

EMPTY = "ignore:DistributedSampler.*leave nothing:UserWarning"


def ranks(length: int, replicas: int, **options) -> list[DistributedSampler]:
    return [DistributedSampler(range(length), replicas, rank, **options) for rank in range(replicas)]


def restored(state: dict, length: int, replicas: int, **options) -> list[DistributedSampler]:
    samplers = ranks(length, replicas, **options)
    for sampler in samplers:
        sampler.load_state_dict(state)
    return samplers


def order_of(length: int, epoch: int, seed: int = 0) -> list[int]:
    sampler = DistributedSampler(range(length), seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


def deal(samplers: list[DistributedSampler]) -> list[int]:
    """One pass of all ranks, in global order; all of it delivered."""
    return [index for step in zip(*(run(sampler) for sampler in samplers), strict=True) for index in step]


def run(sampler: ResumableOrder, stop: int | None = None) -> list[int]:
    """A pass as a loader makes it, of which `stop` indices are delivered."""
    current = sampler.begin_pass(advance=True)
    indices = list(islice(current, stop))
    current.delivered(len(indices))
    return indices


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_the_rest_comes_once_in_any_world(data):
    length = data.draw(st.integers(1, 60), "length")
    seed, epoch = data.draw(st.integers(0, 2**64 - 1), "seed"), data.draw(st.integers(0, 50), "epoch")
    shuffle = data.draw(st.booleans(), "shuffle")
    order = order_of(length, epoch, seed) if shuffle else list(range(length))
    done = 0
    state = None
    for _ in range(data.draw(st.integers(1, 4), "times resumed")):
        replicas = data.draw(st.integers(1, 9), "replicas")
        samplers = ranks(length, replicas, seed=seed, shuffle=shuffle)
        for sampler in samplers:
            sampler.set_epoch(epoch)
            if state is not None:
                sampler.load_state_dict(state)
        passes = [sampler.begin_pass() for sampler in samplers]
        assert {(p.epoch, p.start, len(p)) for p in passes} == {(epoch, done, -(-(length - done) // replicas))}
        steps = data.draw(st.integers(0, len(passes[0])), "steps")
        taken = [list(islice(current, steps)) for current in passes]
        for current in passes:
            current.delivered(steps)
        now = [index for step in zip(*taken, strict=True) for index in step]
        rest = order[done:]
        assert now[: len(rest)] == rest[: steps * replicas]
        assert now[len(rest) :] == [order[i % length] for i in range(len(now) - min(len(now), len(rest)))]
        states = [sampler.state_dict() for sampler in samplers]
        assert all(other == states[0] for other in states)
        state = states[0]
        done = min(done + steps * replicas, length)
        assert (state["epoch"], state["delivered"]) == (epoch, done)
        if done == length:
            return


@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 40), st.integers(1, 6))
@settings(max_examples=100, deadline=None)
@pytest.mark.filterwarnings(EMPTY)
def test_with_drop_last_the_rest_is_cut_to_whole_steps(length, before, steps, after):
    samplers = ranks(length, before, drop_last=True)
    for sampler in samplers:
        current = sampler.begin_pass()
        steps = min(steps, len(current))
        current.delivered(steps)
    state, done = samplers[0].state_dict(), steps * before
    resumed = restored(state, length, after, drop_last=True)
    order = order_of(length, 0)[done:]
    if done and len(order) < after:
        order = order_of(length, 1)
    assert deal(resumed) == order[: len(order) - len(order) % after]


def test_from_two_ranks_to_four_to_one():
    samplers = ranks(101, 2)
    seen = [run(sampler, stop=20) for sampler in samplers]  # 5 batches of 4
    states = [sampler.state_dict() for sampler in samplers]
    assert states[0] == states[1]
    assert states[0]["delivered"] == 40
    before = [index for step in zip(*seen, strict=True) for index in step]
    four = deal(restored(states[0], 101, 4))
    assert (len(four), sorted(before + four[:61])) == (64, list(range(101)))
    assert four[61:] == order_of(101, 0)[:3]
    assert sorted(before + deal(restored(states[1], 101, 1))) == list(range(101))


# The end of an epoch


def test_saved_after_the_end_the_next_two_passes_are_the_next_two_epochs():
    sampler = DistributedSampler(range(100))
    assert run(sampler) == order_of(100, 0)
    state = sampler.state_dict()
    assert (state["epoch"], state["delivered"]) == (0, 100)
    (resumed,) = restored(state, 100, 1)
    assert [run(resumed), run(resumed)] == [order_of(100, 1), order_of(100, 2)]


def test_saved_with_all_delivered_but_the_pass_not_ended_no_epoch_is_lost():
    sampler = DistributedSampler(range(100))
    current = sampler.begin_pass()
    for _ in range(100):
        next(iter(current))
    current.delivered(100)
    (resumed,) = restored(sampler.state_dict(), 100, 1)
    assert (resumed.epoch, run(resumed)) == (1, order_of(100, 1))


def test_set_epoch_after_loading_begins_that_epoch_at_its_beginning():
    sampler = DistributedSampler(range(100))
    run(sampler, stop=40)
    (resumed,) = restored(sampler.state_dict(), 100, 1)
    resumed.set_epoch(7)
    assert run(resumed) == order_of(100, 7)


def test_set_epoch_with_the_restored_epoch_keeps_the_place():
    sampler = DistributedSampler(range(100))
    sampler.set_epoch(3)
    run(sampler, stop=40)
    (resumed,) = restored(sampler.state_dict(), 100, 1)
    resumed.set_epoch(3)
    assert resumed.state_dict()["delivered"] == 40
    assert run(resumed) == order_of(100, 3)[40:]
    resumed.set_epoch(3)
    assert resumed.state_dict()["delivered"] == 0
    assert run(resumed) == order_of(100, 3)


def test_passes_begun_without_delivery_all_begin_at_the_restored_place():
    sampler = DistributedSampler(range(100))
    run(sampler, stop=40)
    (resumed,) = restored(sampler.state_dict(), 100, 1)
    for _ in range(3):
        current = resumed.begin_pass(advance=True)
        assert (next(iter(current)), current.start, len(current)) == (order_of(100, 0)[40], 40, 60)


def test_only_the_first_epoch_after_a_resume_is_short():
    sampler = DistributedSampler(range(12))
    sampler.set_epoch(1)
    run(sampler, stop=9)
    (resumed,) = restored(sampler.state_dict(), 12, 1)
    assert [run(resumed), run(resumed), run(resumed)] == [order_of(12, 1)[9:], order_of(12, 2), order_of(12, 3)]
    assert len(resumed) == 12


def test_with_drop_last_an_epoch_ends_when_no_whole_step_remains():
    samplers = ranks(10, 4, drop_last=True)
    deal(samplers)
    assert samplers[0].state_dict()["delivered"] == 8
    resumed = restored(samplers[0].state_dict(), 10, 4, drop_last=True)
    assert deal(resumed) == order_of(10, 1)[:8]
    fewer = restored(samplers[0].state_dict(), 10, 2, drop_last=True)  # two ranks can still take the last two
    assert deal(fewer) == order_of(10, 0)[8:]


def test_the_length_is_always_that_of_a_whole_epoch():
    samplers = restored({**DistributedSampler(range(101)).state_dict(), "delivered": 77}, 101, 4)
    assert [len(sampler) for sampler in samplers] == [26] * 4
    assert [len(sampler.begin_pass()) for sampler in samplers] == [6] * 4


@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_in_the_same_world_a_resumed_pass_is_the_unbroken_one_padding_too(length, replicas, steps):
    unbroken = [list(sampler) for sampler in ranks(length, replicas)]
    first = DistributedSampler(range(length), replicas, 0).begin_pass()
    state = first.state_after(steps % len(first))
    resumed = [list(sampler) for sampler in restored(state, length, replicas)]
    assert resumed == [part[steps % len(first) :] for part in unbroken]


# Advancing


def test_advance_moves_on_only_after_something_was_delivered():
    sampler = ShuffleSampler(range(10), seed=1)
    assert sampler.begin_pass(advance=True).epoch == 0
    current = sampler.begin_pass(advance=True)
    current.delivered(0)
    assert sampler.begin_pass(advance=True).epoch == 0
    current.delivered(1)
    assert sampler.begin_pass().epoch == 0
    assert sampler.begin_pass(advance=True).epoch == 1
    assert sampler.epoch == 1


def test_advance_does_not_overtake_set_epoch():
    sampler = ShuffleSampler(range(10), seed=1)
    current = sampler.begin_pass(advance=True)
    current.delivered(3)
    sampler.set_epoch(5)
    current.delivered(4)  # the old pass goes on
    assert (sampler.state_dict()["epoch"], sampler.state_dict()["delivered"]) == (0, 4)
    assert [sampler.begin_pass(advance=True).epoch, run(sampler) and sampler.begin_pass(advance=True).epoch] == [5, 6]


def test_a_redundant_set_epoch_loses_no_place():
    sampler = ShuffleSampler(range(10), seed=1)
    current = sampler.begin_pass(advance=True)
    current.delivered(3)
    sampler.set_epoch(0)
    assert sampler.state_dict()["delivered"] == 3
    current.delivered(10)
    assert sampler.begin_pass(advance=True).epoch == 1


def test_the_newest_pass_that_delivered_is_the_state():
    sampler = ShuffleSampler(range(10), seed=1)
    old, new = sampler.begin_pass(), sampler.begin_pass()
    old.delivered(7)
    assert sampler.state_dict()["delivered"] == 7
    new.delivered(2)
    old.delivered(8)
    assert sampler.state_dict()["delivered"] == 2
    assert (list(old), list(new)) == (order_of(10, 0, 1), order_of(10, 0, 1))


def test_a_pass_is_gone_through_once():
    current = ShuffleSampler(range(10), seed=1).begin_pass()
    assert (len(list(current)), len(list(current)), len(current)) == (10, 0, 10)


def test_state_after_changes_nothing():
    sampler = DistributedSampler(range(10), 4, 0)
    current = sampler.begin_pass()
    before = sampler.state_dict()
    assert [current.state_after(count)["delivered"] for count in range(5)] == [0, 4, 8, 10, 10]
    assert sampler.state_dict() == before
    current.delivered(2)
    assert sampler.state_dict() == current.state_after(2)


def test_plain_iteration_counts_what_was_taken():
    sampler = DistributedSampler(range(10), 2, 1)
    plain = iter(sampler)
    first = [next(plain), next(plain)]
    assert sampler.state_dict()["delivered"] == 4
    (resumed,) = [copy.deepcopy(sampler)]
    resumed.load_state_dict(sampler.state_dict())
    assert first + list(resumed) == list(DistributedSampler(range(10), 2, 1))


# Loading


def test_the_state_is_plain_and_survives_json():
    state = DistributedSampler(range(10), seed=3).state_dict()
    assert json.loads(json.dumps(state)) == state
    assert state == {
        "schema": "fastload.order/1",
        "kind": "permutation",
        "seed": 3,
        "epoch": 0,
        "delivered": 0,
        "length": 10,
        "shuffle": True,
        "fingerprint": None,
    }


def test_loading_does_not_add_up_and_position_0_resets():
    sampler = DistributedSampler(range(100))
    fresh = sampler.state_dict()
    run(sampler, stop=40)
    state = sampler.state_dict()
    for _ in range(3):
        sampler.load_state_dict(state)
        assert sampler.state_dict() == state
    sampler.load_state_dict(fresh)
    assert sampler.state_dict() == fresh
    assert run(sampler) == order_of(100, 0)


def test_passes_begun_before_loading_are_no_longer_heard():
    sampler = DistributedSampler(range(100))
    old = sampler.begin_pass()
    old.delivered(3)
    sampler.load_state_dict({**sampler.state_dict(), "delivered": 40})
    old.delivered(4)
    assert sampler.state_dict()["delivered"] == 40
    assert sampler.begin_pass().start == 40


class Packed(list):
    def __init__(self, length: int, fingerprint: object) -> None:
        super().__init__(range(length))
        self.fingerprint = fingerprint


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"schema": "fastload.order/2"}, "schema is 'fastload.order/2', expected 'fastload.order/1'"),
        ({"kind": "blocks"}, "kind is 'blocks', but this DistributedSampler's is 'permutation'"),
        ({"length": 99}, "length is 99, but .* is 100"),
        ({"fingerprint": "f2"}, "fingerprint is 'f2', but .* is 'f1'"),
        ({"seed": 1}, "seed is 1, but .* is 0: .*seed=1"),
        ({"shuffle": False}, "shuffle is False, but .* is True"),
        ({"delivered": 101}, "delivered is 101, more than its length of 100"),
        ({"delivered": -1}, "delivered is -1"),
        ({"delivered": 1.0}, r"delivered is 1\.0, expected an integer"),
        ({"delivered": True}, "delivered is True"),
        ({"epoch": "1"}, "epoch is '1'"),
        ({"epoch": -1}, "epoch is -1"),
        ({"shuffle": 1}, "shuffle is 1, expected true or false"),
        ({"kind": None}, "kind is None, expected text"),
        ({"fingerprint": 3}, "fingerprint is 3"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(other, message):
    sampler = DistributedSampler(Packed(100, "f1"))
    run(sampler, stop=10)
    before = sampler.state_dict()
    with pytest.raises(UsageError, match=message):
        sampler.load_state_dict({**before, "epoch": 5, **other})
    assert sampler.state_dict() == before


@pytest.mark.parametrize("key", ["kind", "seed", "epoch", "delivered", "length", "shuffle", "fingerprint"])
def test_a_missing_key_is_named(key):
    sampler = DistributedSampler(range(10))
    state = sampler.state_dict()
    del state[key]
    with pytest.raises(UsageError, match=f"the key '{key}' is missing"):
        sampler.load_state_dict(state)


@pytest.mark.parametrize("state", [None, 3, [], {}, {"epoch": 1}])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(UsageError, match="state"):
        DistributedSampler(range(10)).load_state_dict(state)


def test_another_ranks_seed_is_named_when_its_state_is_loaded():
    rank_0, rank_1 = (DistributedSampler(range(100), 2, rank, seed=rank) for rank in (0, 1))
    with pytest.raises(UsageError, match="seed is 0, but this DistributedSampler's is 1"):
        rank_1.load_state_dict(rank_0.state_dict())


@pytest.mark.parametrize("fingerprint", [None, 3, lambda: "f"])
def test_a_fingerprint_is_compared_where_both_have_one(fingerprint):
    state = DistributedSampler(Packed(10, "f1")).state_dict()
    DistributedSampler(Packed(10, fingerprint)).load_state_dict(state)
    assert DistributedSampler(Packed(10, fingerprint)).state_dict()["fingerprint"] is None


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda sampler: pickle.loads(pickle.dumps(sampler))])
@pytest.mark.parametrize("made", [lambda: DistributedSampler(range(30), 2, 1), lambda: ShuffleSampler(range(30), 4)])
def test_copies_keep_the_state(made, copied):
    sampler = made()
    sampler.set_epoch(2)
    plain = iter(sampler)
    next(plain)
    other = copied(sampler)
    assert other.state_dict() == sampler.state_dict()
    assert other.state_dict()["delivered"] > 0
    other.set_epoch(3)  # no warning: the pass that is under way is the original's
    assert (other.epoch, sampler.epoch) == (3, 2)
    other.load_state_dict(sampler.state_dict())
    assert list(other) == list(plain)


def test_the_contract_of_a_pass():
    sampler = DistributedSampler(range(10), 2, 1, seed=9)
    current = sampler.begin_pass()
    assert isinstance(sampler, ResumableOrder)
    assert isinstance(current, Pass)
    assert (current.epoch, current.seed, current.start, len(current)) == (0, 9, 0, 5)
