"""Statistics, held against numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.summary import paired_ratios, summarize

values = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30)


@given(values)
def test_summaries_are_numpys(numbers):
    summary = summarize(numbers, max)
    quartiles = np.quantile(numbers, [0.25, 0.5, 0.75])
    assert (summary.q25, summary.median, summary.q75) == pytest.approx(tuple(quartiles))
    assert summary.best == max(numbers)
    assert summarize(numbers).best == min(numbers)


def test_nothing_has_no_summary():
    assert summarize([]) is None


def test_ratios_are_of_the_same_round():
    assert paired_ratios({1: 2.0, 2: 9.0, 4: 8.0}, {1: 4.0, 2: 3.0, 3: 1.0}) == [0.5, 3.0]


def test_noise_that_falls_on_a_whole_round_cancels_out():
    noise = {number: 1.5**number for number in range(9)}
    ratios = paired_ratios({n: 2 * slow for n, slow in noise.items()}, noise)
    assert ratios == pytest.approx([2.0] * 9)
