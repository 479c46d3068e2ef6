"""Where rays meet bodies. The hot path: everything here is float32, on rectangles of the grid of rays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scan_simulator.rays import Rays, Singles, to_body, windows
from scan_simulator.scene import MAX_RANGE_M, Bodies
from scan_simulator.things import Solid

# The sensor in a body's coordinates (x, y, z), the body's half sizes (x, y, z), cosine and sine of its yaw.
_Measures = tuple[float, float, float, float, float, float, float, float]
# float32 in fact: numpy's types do not know that Python's numbers leave it so.
Numbers = NDArray[np.floating[Any]]


def nearest(rays: Rays, bodies: Bodies) -> tuple[Singles, NDArray[np.int32]]:
    """(BEAMS, columns) each ray's distance to the nearest body, and which; MAX_RANGE_M and -1 if none."""
    distance = np.full(rays.x.shape, MAX_RANGE_M, dtype=np.float32)
    index = np.full(rays.x.shape, -1, dtype=np.int32)
    areas, close = windows(rays, bodies)
    measures = _measures(rays, bodies)
    for body in np.argsort(close, kind="stable").tolist():
        for columns in areas[body].columns:
            area = (areas[body].rows, columns)
            best = distance[area]
            if best.size == 0 or best.max() <= close[body]:
                continue
            found = _meet(rays, area, *measures[body])
            nearer = found < best
            np.copyto(best, found, where=nearer, casting="same_kind")
            np.copyto(index[area], body, where=nearer)
    return distance, index


def _meet(rays: Rays, area: tuple[slice, slice], solid: int, measures: _Measures) -> Numbers:
    """Distances at which the rays of an area enter a body, infinite for a miss."""
    # Rays along an axis, and those that miss, divide by zero and take roots of negative numbers.
    with np.errstate(divide="ignore", invalid="ignore"):
        return _MEET[solid](rays.x[area], rays.y[area], rays.z[area], measures)


def _measures(rays: Rays, bodies: Bodies) -> list[tuple[int, _Measures]]:
    """Each body's kind and measures, as Python numbers: they leave float32 arrays float32."""
    cos, sin = np.cos(bodies["yaw"]), np.sin(bodies["yaw"])
    apart = rays.origin - bodies["centre"]
    ahead, left = to_body(bodies["yaw"], apart[:, 0], apart[:, 1])
    columns = [ahead, left, apart[:, 2], *bodies["half"].T, cos, sin]
    rows = np.stack(columns, axis=1).tolist()
    return [(kind, tuple(row)) for kind, row in zip(bodies["solid"].tolist(), rows, strict=True)]


def _slab(position: float, half: float, direction: Singles) -> tuple[Numbers, Numbers]:
    """Where rays enter and leave the space between two planes, metres."""
    inverse = 1 / direction
    middle, reach = -position * inverse, half * np.abs(inverse)
    return middle - reach, middle + reach


def _entered(enter: Numbers, leave: Numbers) -> Numbers:
    """The distance at which a body is entered, infinite where it is missed or behind; NaN is a miss."""
    return np.where((enter < leave) & (enter > 0), enter, np.float32(np.inf))


def _meet_box(x: Singles, y: Singles, z: Singles, measures: _Measures) -> Numbers:
    """Distances at which rays enter a box."""
    ahead, left, up, half_x, half_y, half_z, cos, sin = measures
    enter_x, leave_x = _slab(ahead, half_x, cos * x + sin * y)
    enter_y, leave_y = _slab(left, half_y, cos * y - sin * x)
    enter_z, leave_z = _slab(up, half_z, z)
    enter = np.maximum(np.maximum(enter_x, enter_y), enter_z)
    return _entered(enter, np.minimum(np.minimum(leave_x, leave_y), leave_z))


def _meet_cylinder(x: Singles, y: Singles, z: Singles, measures: _Measures) -> Numbers:
    """Distances at which rays enter an upright cylinder."""
    ahead, left, up, radius, _, half_z, cos, sin = measures
    own_x, own_y = cos * x + sin * y, cos * y - sin * x
    square = own_x * own_x + own_y * own_y
    # From the cross product: b * b - a * c would lose thin poles far away to rounding.
    cross = ahead * own_y - left * own_x
    root = np.sqrt(square * (radius * radius) - cross * cross)
    middle = -(ahead * own_x + left * own_y)
    enter_z, leave_z = _slab(up, half_z, z)
    enter = np.maximum((middle - root) / square, enter_z)
    return _entered(enter, np.minimum((middle + root) / square, leave_z))


def _meet_ellipsoid(x: Singles, y: Singles, z: Singles, measures: _Measures) -> Numbers:
    """Distances at which rays enter an ellipsoid."""
    ahead, left, up, half_x, half_y, half_z, cos, sin = measures
    own = ((cos * x + sin * y) / half_x, (cos * y - sin * x) / half_y, z / half_z)
    spot = (ahead / half_x, left / half_y, up / half_z)
    square = own[0] * own[0] + own[1] * own[1] + own[2] * own[2]
    cross = [own[i] * spot[j] - own[j] * spot[i] for i, j in ((0, 1), (1, 2), (2, 0))]
    root = np.sqrt(square - cross[0] * cross[0] - cross[1] * cross[1] - cross[2] * cross[2])
    middle = -(own[0] * spot[0] + own[1] * spot[1] + own[2] * spot[2])
    return _entered((middle - root) / square, (middle + root) / square)


_MEET: dict[int, Callable[[Singles, Singles, Singles, _Measures], Numbers]] = {
    int(Solid.BOX): _meet_box,
    int(Solid.CYLINDER): _meet_cylinder,
    int(Solid.ELLIPSOID): _meet_ellipsoid,
}
