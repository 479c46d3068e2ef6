"""The computed permutation against its own definition, written in plain integers, and against chance."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastload.errors import UsageError
from fastload.samplers.permutation import BLOCK, MAX_LENGTH, SMALL, Permutation

seeds = st.integers(-(2**63), 2**64 - 1)
epochs = st.integers(0, 2**40)
PINNED = [
    (10, 0, 0, range(10), [4, 6, 1, 5, 2, 8, 3, 7, 9, 0]),
    (10, 0, 1, range(10), [2, 9, 0, 3, 5, 4, 6, 8, 7, 1]),
    (1_000_003, 42, 7, range(6), [407974, 421118, 552820, 75298, 581159, 612371]),
    (10**9, 2**63 + 5, 3, [0, 1, 10**9 - 1], [977939048, 243765891, 879323190]),
    (2**40, -1, 0, [0, 1, 2**40 - 1], [277309052315, 411961128487, 18750921785]),
]


def splitmix(word: int) -> int:
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


def by_definition(length: int, seed: int, epoch: int, position: int) -> int:
    """One position in plain integers: no numpy, no blocks."""
    radices = [next(a for a in itertools.count(max(1, math.isqrt(length))) if a * a >= length)]
    radices.append(-(-length // radices[0]))
    start = splitmix(splitmix((seed + 0x9E3779B97F4A7C15) % 2**64) ^ epoch)
    while True:
        digits = list(divmod(position, radices[1]))
        for turn in range(24 if length < 65536 else 8):
            key = splitmix((start + (turn + 1) * 0x9E3779B97F4A7C15) % 2**64)
            one, other = turn % 2, 1 - turn % 2
            chance = (splitmix(digits[other] ^ key) >> 32) * radices[one] >> 32
            digits[one] = (digits[one] + chance) % radices[one]
        position = digits[0] * radices[1] + digits[1]
        if position < length:
            return position


def whole(length: int, seed: int, epoch: int) -> list[int]:
    return Permutation(length, seed, epoch).take(np.arange(length)).tolist()


@given(st.integers(0, 3 * BLOCK), seeds, epochs)
@settings(max_examples=60, deadline=None)
def test_each_number_comes_once(length, seed, epoch):
    assert sorted(whole(length, seed, epoch)) == list(range(length))


@pytest.mark.parametrize("length", [SMALL - 1, SMALL, SMALL + 1, 1_000_000, 999_983])
def test_each_number_comes_once_in_long_orders(length):
    assert np.array_equal(np.sort(Permutation(length, 5, 6).take(np.arange(length))), np.arange(length))


@given(st.integers(1, 2**42), seeds, epochs, st.data())
@settings(max_examples=100, deadline=None)
def test_it_is_what_its_definition_says(length, seed, epoch, data):
    positions = data.draw(st.lists(st.integers(0, length - 1), max_size=8))
    taken = Permutation(length, seed, epoch).take(np.array(positions, np.int64))
    assert taken.dtype == np.int64
    assert taken.tolist() == [by_definition(length, seed, epoch, position) for position in positions]


@pytest.mark.parametrize(("length", "seed", "epoch", "positions", "numbers"), PINNED)
def test_the_order_stays_for_ever(length, seed, epoch, positions, numbers):
    assert Permutation(length, seed, epoch).take(np.array(positions)).tolist() == numbers


@given(st.integers(2, 10**12), seeds, epochs)
@settings(max_examples=40, deadline=None)
def test_what_is_taken_does_not_depend_on_the_blocks(length, seed, epoch):
    order = Permutation(length, seed, epoch)
    positions = np.arange(min(length, 2 * BLOCK + 7))
    parts = [order.take(part) for part in np.array_split(positions, 5)]
    assert np.array_equal(np.concatenate(parts), order.take(positions))


@pytest.mark.parametrize("length", range(2, 17))
def test_small_orders_are_about_uniform(length):
    """Each number at each place, and each pair at the first and the last place, equally often over the epochs."""
    orders = np.array([whole(length, 7, epoch) for epoch in range(1500)])
    places = np.array([np.bincount(column, minlength=length) for column in orders.T])
    expected = len(orders) / length
    # a doubly stochastic table: (n - 1)^2 degrees of freedom after the factor (n - 1) / n
    assert_like_chance(((places - expected) ** 2 / expected).sum() * (length - 1) / length, (length - 1) ** 2)
    pairs = Counter(zip(orders[:, 0].tolist(), orders[:, -1].tolist(), strict=True))
    expected = len(orders) / (length * (length - 1))
    seen = [pairs[pair] for pair in itertools.permutations(range(length), 2)]
    assert_like_chance(sum((count - expected) ** 2 / expected for count in seen), len(seen) - 1)


@pytest.mark.parametrize("length", [3, 4, 5])
def test_all_orders_of_few_samples_come(length):
    orders = Counter(tuple(whole(length, seed, epoch)) for seed in range(50) for epoch in range(50))
    expected = 2500 / math.factorial(length)
    assert len(orders) == math.factorial(length)
    assert_like_chance(sum((n - expected) ** 2 / expected for n in orders.values()), len(orders) - 1)


def assert_like_chance(chi_square: float, degrees: int) -> None:
    # Wilson-Hilferty: a normal deviate; beyond 4 once in 30,000 tables
    deviate = ((chi_square / degrees) ** (1 / 3) - 1 + 2 / (9 * degrees)) / math.sqrt(2 / (9 * degrees))
    assert deviate < 4


@pytest.mark.parametrize("length", [1000, 100_000, 10**9])
def test_neighbours_are_strangers(length):
    size = 1000
    orders = np.array([Permutation(length, 3, epoch).take(np.arange(size)) for epoch in range(60)]) / length
    for pairs in ((orders[:, :-1], orders[:, 1:]), (orders[:-1], orders[1:])):
        correlation = np.corrcoef(pairs[0].ravel(), pairs[1].ravel())[0, 1]
        assert abs(correlation) * math.sqrt(pairs[0].size) < 4
    assert abs(orders.mean() - 0.5) < 4 * math.sqrt(1 / 12 / orders.size)


def test_seed_and_epoch_are_two_things():
    assert len({tuple(whole(20, seed, epoch)) for seed in range(10) for epoch in range(10)}) == 100


def test_a_billion_samples_cost_no_memory():
    tracemalloc.start()
    try:
        taken = Permutation(10**9, 0, 0).take(np.arange(8))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert len(set(taken.tolist())) == 8


@pytest.mark.parametrize("position", [-1, 10])
def test_a_position_outside_is_refused(position):
    with pytest.raises(IndexError, match="10 samples"):
        Permutation(10, 0, 0).take(np.array([position]))


@pytest.mark.parametrize("length", [-1, MAX_LENGTH + 1])
def test_a_length_that_cannot_be_is_refused(length):
    with pytest.raises(UsageError, match=str(length)):
        Permutation(length, 0, 0)


def test_the_longest_order_works():
    taken = Permutation(MAX_LENGTH, 1, 1).take(np.array([0, MAX_LENGTH - 1]))
    assert taken.tolist() == [by_definition(MAX_LENGTH, 1, 1, position) for position in (0, MAX_LENGTH - 1)]
