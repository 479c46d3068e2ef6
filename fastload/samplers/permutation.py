"""A permutation of range(n) that is computed position by position: 10^9 samples cost no list.

A Feistel network (M. Luby, C. Rackoff, "How to construct pseudorandom permutations from pseudorandom functions",
1988) in the form for domains of any size (J. Black, P. Rogaway, "Ciphers with arbitrary finite domains", 2002): a
position is split into two digits (left, right) of the mixed radix a x b, the smallest near-square with a * b >= n;
each round adds to one digit a keyed function of the other, modulo its radix; what falls outside range(n) is walked
on until it falls inside. As a * b - n < a, only about one position in sqrt(n) is walked. The round function is the
finaliser of SplitMix64 (G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", 2014; "Mix13"
of D. Stafford). All is integer arithmetic modulo 2^64: the same on any machine and with any numpy.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fastload.errors import UsageError

MAX_LENGTH = 1 << 60
"""Both digits stay below 2^31, so that a digit times 32 random bits fits in 64 bits."""
BLOCK = 4096
"""Positions that are computed at once: the few arrays of 32 KB stay in the first-level cache."""
ROUNDS = 8
ROUNDS_OF_SMALL = 24
SMALL = 1 << 16
"""Below this length a round chooses among few functions, so more of them are taken; it costs nothing there."""

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_SHIFT_30, _SHIFT_27, _SHIFT_32 = np.uint64(30), np.uint64(27), np.uint64(32)
_FACTOR_1, _FACTOR_2 = np.uint64(_MIX_1), np.uint64(_MIX_2)

Words = NDArray[np.uint64]


class Permutation:
    """The order of range(length) that (seed, epoch) fix, for ever.

    Attributes:
        length: how many numbers are permuted.
    """

    def __init__(self, length: int, seed: int, epoch: int) -> None:
        if not 0 <= length <= MAX_LENGTH:
            raise UsageError(f"{length} samples: a computed order has from 0 to {MAX_LENGTH} of them")
        self.length = length
        left = math.isqrt(length - 1) + 1 if length else 1
        self._left, self._right = np.uint64(left), np.uint64(-(-length // left) or 1)
        self._keys = _round_keys(seed, epoch, ROUNDS_OF_SMALL if length < SMALL else ROUNDS)

    def take(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers at these positions of the order: (P,) int64 for (P,) int64.

        Raises:
            IndexError: a position outside range(length).
        """
        if positions.size and (int(positions.min()) < 0 or int(positions.max()) >= self.length):
            raise IndexError(f"a position outside the order of {self.length} samples")
        numbers = np.empty(positions.shape, np.int64)
        for first in range(0, len(positions), BLOCK):
            numbers[first : first + BLOCK] = self._take_block(positions[first : first + BLOCK].astype(np.uint64))
        return numbers

    def _take_block(self, positions: Words) -> NDArray[np.int64]:
        numbers = self._encrypt(positions)
        outside = np.flatnonzero(numbers >= np.uint64(self.length))
        while outside.size:
            numbers[outside] = self._encrypt(numbers[outside])
            outside = outside[numbers[outside] >= np.uint64(self.length)]
        return numbers.view(np.int64)

    def _encrypt(self, positions: Words) -> Words:
        """Hot: the network's image of each position, in range(a * b)."""
        left = positions // self._right
        right = positions - left * self._right
        work, shifted = np.empty_like(positions), np.empty_like(positions)
        for turn, key in enumerate(self._keys):
            if turn % 2 == 0:
                _add_function(left, self._left, right, key, work, shifted)
            else:
                _add_function(right, self._right, left, key, work, shifted)
        images: Words = left * self._right + right
        return images


def mix(word: int) -> int:
    """SplitMix64's finaliser: 64 well-mixed bits for 64 bits."""
    word = ((word ^ (word >> 30)) * _MIX_1) & _WORD
    word = ((word ^ (word >> 27)) * _MIX_2) & _WORD
    return word ^ (word >> 31)


def _round_keys(seed: int, epoch: int, rounds: int) -> list[np.uint64]:
    """Keys of all rounds: the stream of SplitMix64 whose start (seed, epoch) give."""
    start = mix(mix((seed + _GOLDEN) & _WORD) ^ (epoch & _WORD))
    return [np.uint64(mix((start + number * _GOLDEN) & _WORD)) for number in range(1, rounds + 1)]


def _add_function(digit: Words, radix: np.uint64, other: Words, key: np.uint64, work: Words, shifted: Words) -> None:
    """Hot: `digit` += f(other, key) modulo `radix`, in place.

    The finaliser's last step is left out: it leaves the upper 32 bits but one as they are, and only those are used.
    """
    np.bitwise_xor(other, key, out=work)
    np.right_shift(work, _SHIFT_30, out=shifted)
    np.bitwise_xor(work, shifted, out=work)
    np.multiply(work, _FACTOR_1, out=work)
    np.right_shift(work, _SHIFT_27, out=shifted)
    np.bitwise_xor(work, shifted, out=work)
    np.multiply(work, _FACTOR_2, out=work)
    np.right_shift(work, _SHIFT_32, out=work)
    np.multiply(work, radix, out=work)
    np.right_shift(work, _SHIFT_32, out=work)  # 32 random bits to [0, radix)
    np.add(digit, work, out=digit)
    np.subtract(digit, radix, out=work)  # wraps to a huge number where the sum is below the radix
    np.minimum(digit, work, out=digit)
