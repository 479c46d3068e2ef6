"""Draws a sequence's street and all that is in it from a seed.

Each kind of thing has its own line across the street, so that nothing stands or drives in another's way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count

import numpy as np
from numpy.typing import NDArray

from scan_simulator import things
from scan_simulator.scene import (
    BODY,
    CURB_M,
    MAX_RANGE_M,
    SIDEWALK_EDGE_M,
    STRIP_EDGE_M,
    Bodies,
    Ground,
    Movers,
    Scene,
    placed,
)
from scan_simulator.street import LANE_OFFSET_M, SCAN_PERIOD_S, Drive, Street, winding_street
from scan_simulator.things import REFLECTIVITY, Label, Maker, Part, Parts

_REACH_M = MAX_RANGE_M + 40  # how far the street goes on before and after the drive
_SIDES = (-1, 1)  # right, left
# Metres from the centre line to the line that each kind of thing keeps to.
_STRIP_LINE_M = 4.05
_POLE_LINE_M = STRIP_EDGE_M + 0.22
_WALKER_LINES_M = (5.75, 6.25)
_STANDER_LINE_M = 6.72
_FENCE_LINE_M = SIDEWALK_EDGE_M + 0.3

# Kinds of things that carry an instance number, as SemanticKITTI has them.
_COUNTED = frozenset(
    {
        Label.CAR,
        Label.BICYCLE,
        Label.MOTORCYCLE,
        Label.TRUCK,
        Label.PERSON,
        Label.BICYCLIST,
        Label.MOVING_CAR,
        Label.MOVING_PERSON,
    }
)


@dataclass
class Crowd:
    """Things on their way into a scene; it numbers the instances.

    Attributes:
        rng: draws the things.
        rows: one BODY row a part, in its thing's coordinates.
        owner: the thing that each row belongs to.
        spots: along, offset, base and turn of each thing.
        instances: how many instance numbers have been given out; all crowds of a scene share the count.
    """

    rng: np.random.Generator
    instances: Iterator[int]
    rows: list[tuple[object, ...]] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)
    spots: list[tuple[float, float, float, float]] = field(default_factory=list)

    def add(self, make: Maker, along: float, offset: float, base: float = CURB_M, turn: float = 0.0) -> None:
        """Put a new thing of a kind at a place, turned from the street's heading by `turn` radians."""
        self.add_parts(make(self.rng), along, offset, base, turn)

    def add_parts(self, parts: Parts, along: float, offset: float, base: float, turn: float = 0.0) -> None:
        """Put given parts, as one thing, at a place."""
        counted = any(part.label in _COUNTED for part in parts)
        instance = next(self.instances) if counted else 0
        shade = self.rng.standard_normal()
        for part in parts:
            mean, spread = REFLECTIVITY[part.label]
            reflectivity = float(np.clip(mean + spread * shade, 0.04, 0.98))
            label = int(part.label) | instance << 16
            self.rows.append((part.solid, label, part.centre, part.half, 0.0, reflectivity, part.loss, part.rough))
            self.owner.append(len(self.spots))
        self.spots.append((along, offset, base, turn))

    def bodies(self) -> Bodies:
        """(B,) BODY in the things' own coordinates."""
        return np.array(self.rows, dtype=BODY)

    def standing(self, street: Street) -> Bodies:
        """(B,) BODY in world coordinates, where the things were put."""
        along, offset, base, turn = np.array(self.spots, dtype=np.float64).T
        x, y, heading = street.to_world(along, offset)
        owner = np.array(self.owner, dtype=np.intp)
        return placed(self.bodies(), x[owner], y[owner], base[owner], (heading + turn)[owner])


@lru_cache(maxsize=2)
def build_scene(seed: int, sequence: int, frames: int) -> Scene:
    """The scene of a sequence; the same for the same arguments."""
    rng = np.random.default_rng((seed, sequence, 0))
    # The pace of a narrow street: scans half a second apart then see much the same places, so that aligned
    # scans of 130,000 points lie within 5 cm of each other (median distance of a static point to its nearest).
    drive = Drive(rng.uniform(4.8, 6.0), rng.uniform(0, 2 * np.pi, 4))
    duration_s = frames * SCAN_PERIOD_S
    street = winding_street(rng, -_REACH_M, drive.along(duration_s) + _REACH_M)
    instances = count(1)
    crowd = Crowd(rng, instances)
    ground = _ground(rng, street)
    for side in _SIDES:
        _fill_strip(crowd, ground, side)
        _fill_sidewalk(crowd, ground, side)
        _fill_plots(crowd, ground, side)
    movers = _traffic(Crowd(rng, instances), street, duration_s)
    return Scene(ground, drive, crowd.standing(street), movers)


def _ground(rng: np.random.Generator, street: Street) -> Ground:
    """Crossings and parking strips; no plot is paved yet."""
    metres = int(street.end - street.start) + 1
    crossing = np.zeros(metres, dtype=np.bool_)
    for start in _walk(rng, rng.uniform(0, 60), metres, 60, 120):
        crossing[int(start) : int(start) + 3] = True
    kept_free = np.convolve(crossing, np.ones(9), mode="same") > 0
    parking = np.stack([_stretches(rng, metres) & ~kept_free for _ in _SIDES])
    return Ground(street, parking, np.zeros((2, metres), dtype=np.bool_), crossing)


def _stretches(rng: np.random.Generator, metres: int) -> NDArray[np.bool_]:
    """(metres,) bool: stretches of parking strip, 25 to 60 m long, and of verge between them."""
    parking = np.zeros(metres, dtype=np.bool_)
    for start in _walk(rng, 0, metres, 25, 60):
        parking[int(start) :] = rng.random() < 0.7
    return parking


def _walk(rng: np.random.Generator, start: float, end: float, shortest: float, longest: float) -> Iterator[float]:
    """Places from `start` to `end`, each between `shortest` and `longest` metres after the one before."""
    place = start
    while place < end:
        yield place
        place += rng.uniform(shortest, longest)


_SLOT_KINDS: tuple[tuple[float, Maker | None], ...] = (
    (0.74, things.car),
    (0.06, things.truck),
    (0.06, things.motorcycle),
    (0.06, things.bicycle),
    (0.03, things.bicyclist),
    (0.05, None),
)
_VERGE_KINDS: tuple[tuple[float, Maker | None], ...] = (
    (0.46, things.tree),
    (0.14, things.lamp),
    (0.16, things.sign),
    (0.10, things.bush),
    (0.08, things.bin_),
    (0.06, things.bicycle),
)


def _draw(rng: np.random.Generator, kinds: tuple[tuple[float, Maker | None], ...]) -> Maker | None:
    """One of the kinds, by their shares."""
    shares = np.cumsum([share for share, _ in kinds])
    return kinds[min(int(np.searchsorted(shares, rng.random())), len(kinds) - 1)][1]


def _fill_strip(crowd: Crowd, ground: Ground, side: int) -> None:
    """Parked vehicles, or trees and poles, between the road and the sidewalk."""
    rng, street = crowd.rng, ground.street
    parking = ground.parking[(side + 1) // 2]
    turn = 0.0 if side < 0 else np.pi
    place = street.start + 4
    while place < street.end - 4:
        metre = int(place - street.start)
        around = parking[metre - 3 : metre + 4]
        if around.all() and (make := _draw(rng, _SLOT_KINDS)):
            crowd.add(make, place, side * _STRIP_LINE_M, 0.0, turn + 0.02 * rng.standard_normal())
        if not around.any() and (make := _draw(rng, _VERGE_KINDS)):
            crowd.add(make, place, side * _STRIP_LINE_M)
        place += 6.0 if around.all() else rng.uniform(3.5, 6.0)


def _fill_sidewalk(crowd: Crowd, ground: Ground, side: int) -> None:
    """Poles and signs at its outer edge, people who stand at its inner edge."""
    rng, street = crowd.rng, ground.street
    for place in _walk(rng, street.start, street.end, 12, 22):
        crowd.add(things.lamp if rng.random() < 0.5 else things.sign, place, side * _POLE_LINE_M)
    for place in _walk(rng, street.start, street.end, 12, 40):
        for step in range(int(rng.integers(1, 4))):
            crowd.add(things.person, place + 0.8 * step, side * _STANDER_LINE_M)


def _fill_plots(crowd: Crowd, ground: Ground, side: int) -> None:
    """Houses, gardens and small car parks, one after the other."""
    rng, street = crowd.rng, ground.street
    place = street.start
    while place < street.end - 20:
        length = rng.uniform(9, 18)
        fill = _PLOTS[int(np.searchsorted(_PLOT_SHARES, rng.random()))]
        fill(crowd, ground, side, place + length / 2, length)
        place += length + rng.uniform(0.4, 3.0)


def _house_plot(crowd: Crowd, ground: Ground, side: int, middle: float, length: float) -> None:
    """A house close to the sidewalk, or behind a fence, a hedge or shrubs."""
    del ground
    rng = crowd.rng
    setback = rng.uniform(0.7, 3.0)
    _house(crowd, side, middle, length, SIDEWALK_EDGE_M + setback)
    if setback > 1.5:
        _front(crowd, side, middle, length)
    for _ in range(2 if setback > 2.2 else 0):
        crowd.add(things.bush, middle + rng.uniform(-0.4, 0.4) * length, side * (SIDEWALK_EDGE_M + 1.3))


def _garden_plot(crowd: Crowd, ground: Ground, side: int, middle: float, length: float) -> None:
    """Trees and shrubs behind a fence or a hedge, and a house at the back."""
    del ground
    rng = crowd.rng
    _front(crowd, side, middle, length)
    for make, number, first in ((things.tree, 3, 10.5), (things.bush, 4, 9.0)):
        for place in np.linspace(-0.4, 0.4, number) * length:
            crowd.add(make, middle + place, side * (first + rng.uniform(0, 6)))
    _house(crowd, side, middle, length, rng.uniform(20, 30))


def _paved_plot(crowd: Crowd, ground: Ground, side: int, middle: float, length: float) -> None:
    """Cars parked across, in front of a house at the back."""
    rng = crowd.rng
    first = middle - length / 2 - ground.street.start
    ground.paved[(side + 1) // 2, int(first) : int(first + length)] = True
    for place in np.arange(2.5, length - 2.5, 2.8):
        if rng.random() < 0.7:
            turn = side * np.pi / 2 + 0.03 * rng.standard_normal()
            crowd.add(things.car, middle - length / 2 + place, side * 12.0, turn=turn)
    _house(crowd, side, middle, length, rng.uniform(22, 30))


_PLOTS = (_house_plot, _garden_plot, _paved_plot)
_PLOT_SHARES = np.array([0.70, 0.88])


def _house(crowd: Crowd, side: int, middle: float, length: float, front: float) -> None:
    """A house whose front is `front` metres from the centre line."""
    depth, height = crowd.rng.uniform(8, 13), crowd.rng.uniform(4.5, 13)
    # Plots inside a bend narrow towards the back.
    walls = things.box(Label.BUILDING, (0.88 * length, depth, height))
    crowd.add_parts((walls,), middle, side * (front + depth / 2), CURB_M)


def _front(crowd: Crowd, side: int, middle: float, length: float) -> None:
    """A fence or a hedge along the sidewalk, in pieces short enough to follow the street's bend."""
    rng = crowd.rng
    height, is_hedge, pieces = rng.uniform(1.0, 1.7), rng.random() < 0.5, int(np.ceil(length / 3.5))
    piece = _hedge(length / pieces, height) if is_hedge else _fence(length / pieces, height)
    offset = side * (_FENCE_LINE_M + 0.2 * is_hedge)
    for number in range(pieces):
        crowd.add_parts((piece,), middle + (number + 0.5 - pieces / 2) * length / pieces, offset, CURB_M)


def _fence(length: float, height: float) -> Part:
    return things.box(Label.FENCE, (length, 0.06, height), loss=0.05)


def _hedge(length: float, height: float) -> Part:
    return things.box(Label.VEGETATION, (length, 0.5, height), loss=0.08, rough=0.12)


_Course = tuple[float, float, bool]  # speed, sway and whether in the convoy, as Movers has them


def _traffic(crowd: Crowd, street: Street, duration_s: float) -> Movers:
    """Cars that drive with the sensor, cars that come towards it, and people who walk."""
    courses = _convoy(crowd)
    courses += _oncoming(crowd, street, duration_s)
    for side in _SIDES:
        for line, direction in zip(_WALKER_LINES_M, (1, -1), strict=True):
            courses += _walkers(crowd, street, duration_s, side * line, direction)
    return _movers(crowd, courses)


def _convoy(crowd: Crowd) -> list[_Course]:
    """Cars that keep their places ahead of the sensor and behind it."""
    before = len(crowd.spots)
    for ahead in (-1, 1):
        for gap in _walk(crowd.rng, crowd.rng.uniform(14, 24), MAX_RANGE_M, 18, 50):
            crowd.add(things.moving_car, ahead * gap, -LANE_OFFSET_M, 0.0)
    return [(0.0, 1.5, True)] * (len(crowd.spots) - before)


def _oncoming(crowd: Crowd, street: Street, duration_s: float) -> list[_Course]:
    """Cars in the other lane."""
    before = len(crowd.spots)
    speed = -crowd.rng.uniform(6.5, 9.0)
    for place in _walk(crowd.rng, street.start, street.end - speed * duration_s, 30, 120):
        # A passing car hides half of the street for a second: in short drives, of a few scans, none passes.
        if not -20 < place < 45:
            crowd.add(things.moving_car, place, LANE_OFFSET_M, 0.0, np.pi)
    return [(speed, 1.5, False)] * (len(crowd.spots) - before)


def _walkers(crowd: Crowd, street: Street, duration_s: float, offset: float, direction: int) -> list[_Course]:
    """People on one line of a sidewalk, all at one pace, so that none walks through another."""
    before = len(crowd.spots)
    speed = direction * crowd.rng.uniform(1.0, 1.5)
    first, last = min(0.0, -speed * duration_s), max(0.0, -speed * duration_s)
    for place in _walk(crowd.rng, street.start + first, street.end + last, 14, 45):
        crowd.add(things.walker, place, offset)
    return [(speed, 0.0, False)] * (len(crowd.spots) - before)


def _movers(crowd: Crowd, courses: list[_Course]) -> Movers:
    """The crowd's things, each on its course."""
    along, offset, base, turn = np.array(crowd.spots, dtype=np.float64).T
    speed, sway, convoy = np.array(courses, dtype=np.float64).T
    owner = np.array(crowd.owner, dtype=np.intp)
    still = np.zeros(len(owner))
    bodies = placed(crowd.bodies(), still, still, still, turn[owner])
    return Movers(bodies, owner, along, offset, base, speed, sway, convoy.astype(np.bool_))
