"""What stands and moves in a street: each thing a few boxes, upright cylinders and ellipsoids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np


class Label(IntEnum):
    """The raw SemanticKITTI classes that occur (semantic-kitti.yaml of the SemanticKITTI API)."""

    UNLABELED = 0
    CAR = 10
    BICYCLE = 11
    MOTORCYCLE = 15
    TRUCK = 18
    PERSON = 30
    BICYCLIST = 31
    ROAD = 40
    PARKING = 44
    SIDEWALK = 48
    BUILDING = 50
    FENCE = 51
    LANE_MARKING = 60
    VEGETATION = 70
    TRUNK = 71
    TERRAIN = 72
    POLE = 80
    TRAFFIC_SIGN = 81
    MOVING_CAR = 252
    MOVING_PERSON = 254


# How much of a pulse a class sends back, head on: the mean, and the spread from one thing to another.
REFLECTIVITY: dict[Label, tuple[float, float]] = {
    Label.UNLABELED: (0.30, 0.10),
    Label.CAR: (0.35, 0.20),
    Label.MOVING_CAR: (0.35, 0.20),
    Label.BICYCLE: (0.25, 0.08),
    Label.MOTORCYCLE: (0.25, 0.10),
    Label.TRUCK: (0.50, 0.15),
    Label.PERSON: (0.30, 0.12),
    Label.MOVING_PERSON: (0.30, 0.12),
    Label.BICYCLIST: (0.30, 0.10),
    Label.ROAD: (0.24, 0.02),
    Label.PARKING: (0.30, 0.02),
    Label.SIDEWALK: (0.38, 0.03),
    Label.BUILDING: (0.42, 0.12),
    Label.FENCE: (0.36, 0.08),
    Label.LANE_MARKING: (0.75, 0.05),
    Label.VEGETATION: (0.34, 0.06),
    Label.TRUNK: (0.28, 0.05),
    Label.TERRAIN: (0.46, 0.04),
    Label.POLE: (0.50, 0.12),
    Label.TRAFFIC_SIGN: (0.92, 0.05),
}


class Solid(IntEnum):
    """The kinds of bodies that a ray can meet."""

    BOX = 0
    CYLINDER = 1
    ELLIPSOID = 2


@dataclass(frozen=True)
class Part:
    """One body of a thing, in the thing's coordinates: x ahead, y left, z up from where it stands.

    Attributes:
        solid: its kind.
        label: the class of its points.
        centre: x, y, z, metres.
        half: half of its length, width and height, metres; a cylinder's or ellipsoid's radii.
        loss: chance that a pulse that meets it is lost (glass, spokes, leaves).
        rough: how far behind its smooth surface the pulse may be sent back, metres.
    """

    solid: Solid
    label: Label
    centre: tuple[float, float, float]
    half: tuple[float, float, float]
    loss: float = 0.0
    rough: float = 0.0


Parts = tuple[Part, ...]
Maker = Callable[[np.random.Generator], Parts]


def box(
    label: Label,
    size: tuple[float, float, float],
    foot: tuple[float, float, float] = (0.0, 0.0, 0.0),
    loss: float = 0.0,
    rough: float = 0.0,
) -> Part:
    """A box of a length, width and height whose floor's middle is at `foot`."""
    half = (size[0] / 2, size[1] / 2, size[2] / 2)
    return Part(Solid.BOX, label, (foot[0], foot[1], foot[2] + half[2]), half, loss, rough)


def cylinder(label: Label, radius: float, height: float, foot: tuple[float, float, float]) -> Part:
    """An upright cylinder whose floor's middle is at `foot`."""
    half = (radius, radius, height / 2)
    return Part(Solid.CYLINDER, label, (foot[0], foot[1], foot[2] + height / 2), half)


_ORIGIN = (0.0, 0.0, 0.0)


def car(rng: np.random.Generator, label: Label = Label.CAR) -> Parts:
    """A body and a cabin, whose glass loses pulses."""
    length, width, height = rng.uniform(3.8, 4.7), rng.uniform(1.65, 1.82), rng.uniform(1.42, 1.65)
    waist = 0.56 * height
    body = box(label, (length, width, waist - 0.2), (0.0, 0.0, 0.2))
    cabin = box(label, (0.55 * length, 0.86 * width, height - waist), (-0.06 * length, 0.0, waist), loss=0.25)
    return body, cabin


def moving_car(rng: np.random.Generator) -> Parts:
    """A car with the class of those that move."""
    return car(rng, Label.MOVING_CAR)


def truck(rng: np.random.Generator) -> Parts:
    """A cab and a cargo box, short enough for the parking strip."""
    load = rng.uniform(3.2, 4.0)
    cargo = box(Label.TRUCK, (load, 1.9, rng.uniform(1.9, 2.3)), (-0.9, 0.0, 0.8))
    cab = box(Label.TRUCK, (1.5, 1.85, 1.8), (load / 2 - 0.1, 0.0, 0.4), loss=0.1)
    return cargo, cab


def bicycle(rng: np.random.Generator, label: Label = Label.BICYCLE) -> Parts:
    """A thin frame, with spokes that let pulses through, and handlebars."""
    frame = box(label, (rng.uniform(1.55, 1.75), 0.08, 0.75), (0.0, 0.0, 0.05), loss=0.4)
    return frame, box(label, (0.1, 0.55, 0.12), (0.5, 0.0, 0.9))


def bicyclist(rng: np.random.Generator) -> Parts:
    """Somebody who waits astride a bicycle."""
    rider = cylinder(Label.BICYCLIST, 0.22, rng.uniform(0.65, 0.8), (0.0, 0.0, 0.75))
    head = Part(Solid.ELLIPSOID, Label.BICYCLIST, (0.05, 0.0, 1.65), (0.12, 0.12, 0.15))
    return (*bicycle(rng, Label.BICYCLIST), rider, head)


def motorcycle(rng: np.random.Generator) -> Parts:
    """A body, a seat and handlebars."""
    body = box(Label.MOTORCYCLE, (rng.uniform(1.8, 2.1), 0.3, 0.65), (0.0, 0.0, 0.1), loss=0.1)
    return body, box(Label.MOTORCYCLE, (0.15, 0.7, 0.2), (0.55, 0.0, 0.85))


def person(rng: np.random.Generator, label: Label = Label.PERSON) -> Parts:
    """Legs, a torso and a head."""
    height = rng.uniform(1.55, 1.9)
    legs = cylinder(label, 0.14, 0.45 * height, _ORIGIN)
    torso = cylinder(label, rng.uniform(0.18, 0.23), 0.41 * height, (0.0, 0.0, 0.45 * height))
    head = Part(Solid.ELLIPSOID, label, (0.0, 0.0, 0.93 * height), (0.1, 0.1, 0.07 * height))
    return legs, torso, head


def walker(rng: np.random.Generator) -> Parts:
    """A person with the class of those that move."""
    return person(rng, Label.MOVING_PERSON)


def tree(rng: np.random.Generator) -> Parts:
    """A trunk and a crown high enough to drive and walk below."""
    clear, width, height = rng.uniform(2.3, 3.2), rng.uniform(1.1, 2.0), rng.uniform(1.2, 2.2)
    trunk = cylinder(Label.TRUNK, rng.uniform(0.12, 0.26), clear + 0.3, _ORIGIN)
    crown = (width, width * rng.uniform(0.8, 1.0), height)
    middle = (0.0, 0.0, clear + 0.8 * height)
    return trunk, Part(Solid.ELLIPSOID, Label.VEGETATION, middle, crown, loss=0.12, rough=0.25)


def bush(rng: np.random.Generator) -> Parts:
    """A low round shrub."""
    width, height = rng.uniform(0.5, 1.1), rng.uniform(0.5, 1.0)
    half = (width, width * rng.uniform(0.8, 1.0), height)
    return (Part(Solid.ELLIPSOID, Label.VEGETATION, (0.0, 0.0, 0.6 * height), half, loss=0.08, rough=0.15),)


def lamp(rng: np.random.Generator) -> Parts:
    """A tall pole with an arm."""
    height = rng.uniform(4.5, 7.0)
    pole = cylinder(Label.POLE, rng.uniform(0.07, 0.12), height, _ORIGIN)
    return pole, box(Label.POLE, (0.3, 1.2, 0.15), (0.0, 0.0, height))


def sign(rng: np.random.Generator) -> Parts:
    """A thin pole with a plate that faces along the street."""
    height, plate = rng.uniform(1.6, 2.0), rng.uniform(0.45, 0.5)
    pole = cylinder(Label.POLE, 0.045, height, _ORIGIN)
    return pole, box(Label.TRAFFIC_SIGN, (0.06, plate, plate), (0.0, 0.0, height))


def bin_(rng: np.random.Generator) -> Parts:
    """A waste bin, which the class list has no name for."""
    return (box(Label.UNLABELED, (0.6, 0.6, rng.uniform(0.9, 1.2))),)
