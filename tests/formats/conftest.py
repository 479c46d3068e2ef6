from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

MakeScan = Callable[..., NDArray[np.float32]]


@pytest.fixture(scope="session")
def make_scan() -> MakeScan:
    return scan


def scan(count: int, columns: int = 4, seed: int = 0, shuffled: bool = False) -> NDArray[np.float32]:
    """A spinning sensor on a plane with walls: x y z intensity in [0, 1], then ring and zeros."""
    rng = np.random.default_rng(seed)
    turn = np.arange(count) / 60 * 2 * np.pi
    reach = 20 + 15 * np.sin(turn / 7) + rng.normal(0, 0.05, count)
    points = np.zeros((count, columns), np.float32)
    points[:, 0] = reach * np.cos(turn)
    points[:, 1] = reach * np.sin(turn)
    points[:, 2] = -1.7 + reach * np.sin(turn / 50) * 0.2
    if columns > 3:
        points[:, 3] = rng.random(count).round(2)
    if columns > 4:
        points[:, 4] = np.arange(count) % 32
    return rng.permutation(points) if shuffled else points
