"""Sizes as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload.errors import UsageError
from fastload.units import brief, parse_size


@given(st.integers(1, 2**63 - 1))
def test_bytes_are_taken_as_they_are(size):
    assert parse_size(size, setting="x") == size


@pytest.mark.parametrize(("text", "size"), [
    ("1", 1), ("512MiB", 2**29), ("2gib", 2**31), (" 1.5 kB ", 1500), ("3t", 3 * 10**12), ("0.5k", 500),
    ("8000000TB", 8 * 10**18),
])  # fmt: skip
def test_text_with_a_unit(text, size):
    assert parse_size(text, setting="x") == size


@pytest.mark.parametrize("value", [
    "9" * 400, "9" * 9000, 10**400, 10**9000, 2**63, "9223373TB", "1" + "0" * 399 + "GB", "0." + "9" * 9000 + "x",
    0, -1, "0", "0.1", "-1", "", "MB", "1 2", "1XB", "1_000", "\uff11\uff12", "\u0661", "1 \u212ab", "1e3", "nan",
    "inf", True, None, 1.5, b"1", -(10**9000),
], ids=brief)  # fmt: skip
def test_anything_else_is_refused_by_name_and_in_few_words(value):
    with pytest.raises(UsageError, match=r"^shard_size: ") as caught:
        parse_size(value, setting="shard_size")
    assert len(str(caught.value)) < 200


def test_values_are_shown_in_few_words():
    assert brief([1]) == "[1]"
    assert len(brief("x" * 999)) == 60
    assert brief(10**9000) == "a very large int"
