"""A street with all that stands and moves in it, as the ray-caster asks for it.

From the centre line outwards, the same on both sides: a lane, a strip (parking, or a raised verge of grass),
the sidewalk, then plots with houses or gardens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scan_simulator.street import SCAN_PERIOD_S, Drive, Floats, Street
from scan_simulator.things import Label

MAX_RANGE_M = 120.0
CURB_M = 0.12  # how far sidewalks, verges and plots lie above the road
ROAD_EDGE_M = 3.0
STRIP_EDGE_M = 5.1
SIDEWALK_EDGE_M = 6.7

# One row a body: everything that the ray-caster asks about it.
BODY = np.dtype(
    [
        ("solid", "u1"),
        ("label", "u4"),  # class in the lower 16 bits, instance in the upper 16, as the label files have it
        ("centre", "f8", 3),
        ("half", "f8", 3),
        ("yaw", "f8"),
        ("reflectivity", "f8"),
        ("loss", "f8"),
        ("rough", "f8"),
    ]
)
Bodies = NDArray[np.void]


@dataclass(frozen=True)
class Ground:
    """What the ground is at each place of the street.

    Attributes:
        street: the centre line.
        parking: (2, M) bool: whether the strip is parking, for the right side and the left, a metre a column.
        paved: (2, M) bool: whether the plot beyond the sidewalk is paved for parking.
        crossing: (M,) bool: whether a pedestrian crossing is painted on the road.
    """

    street: Street
    parking: NDArray[np.bool_]
    paved: NDArray[np.bool_]
    crossing: NDArray[np.bool_]

    def raised(self, along: Floats, offset: Floats) -> NDArray[np.bool_]:
        """Whether places lie a curb's height above the road."""
        return np.asarray(np.abs(offset) > self.curb(along, offset))

    def curb(self, along: Floats, offset: Floats) -> Floats:
        """Metres from the centre line to the curb on each place's side."""
        parking = self.parking[(offset > 0).astype(np.intp), self._metre(along)]
        return np.where(parking, STRIP_EDGE_M, ROAD_EDGE_M)

    def label(self, along: Floats, offset: Floats) -> NDArray[np.uint32]:
        """The classes of places on the ground, as `along`."""
        side, metre, away = (offset > 0).astype(np.intp), self._metre(along), np.abs(offset)
        plot = np.where(self.paved[side, metre] & (away < 22), Label.PARKING, Label.TERRAIN)
        strip = np.where(self.parking[side, metre], Label.PARKING, Label.TERRAIN)
        road = np.where(self._painted(along, offset), Label.LANE_MARKING, Label.ROAD)
        outwards = [away < ROAD_EDGE_M, away < STRIP_EDGE_M, away < SIDEWALK_EDGE_M]
        return np.select(outwards, [road, strip, np.full_like(road, Label.SIDEWALK)], plot).astype(np.uint32)

    def _painted(self, along: Floats, offset: Floats) -> NDArray[np.bool_]:
        dash = (np.abs(offset) < 0.08) & (along % 6 < 3)
        edge = np.abs(np.abs(offset) - (ROAD_EDGE_M - 0.2)) < 0.07
        stripe = self.crossing[self._metre(along)] & ((offset + 10) % 1.0 < 0.5)
        return np.asarray(dash | edge | stripe)

    def _metre(self, along: Floats) -> NDArray[np.intp]:
        return np.clip(along - self.street.start, 0, len(self.crossing) - 1).astype(np.intp)


@dataclass(frozen=True)
class Movers:
    """Things that move along the street.

    Attributes:
        bodies: (B,) BODY, their centres in their thing's own coordinates.
        owner: (B,) intp, the thing that each body belongs to.
        along: (T,) float64, metres at time 0; for a convoy's cars, ahead of the sensor at any time.
        offset: (T,) float64, metres left of the centre line.
        base: (T,) float64, metres above the road.
        speed: (T,) float64, metres a second along the street.
        sway: (T,) float64, metres that it falls back and catches up.
        convoy: (T,) bool: whether it drives with the sensor.
    """

    bodies: Bodies
    owner: NDArray[np.intp]
    along: Floats
    offset: Floats
    base: Floats
    speed: Floats
    sway: Floats
    convoy: NDArray[np.bool_]

    def at(self, street: Street, sensor_along: float, time_s: float) -> Bodies:
        """(B',) BODY: those within the sensor's reach at a time, in world coordinates."""
        own = self.along + self.speed * time_s + self.sway * np.sin(0.4 * time_s + self.along)
        along = np.where(self.convoy, own + sensor_along, own)
        near = (np.abs(along - sensor_along) < MAX_RANGE_M)[self.owner]
        x, y, heading = street.to_world(along, self.offset)
        owner = self.owner[near]
        return placed(self.bodies[near], x[owner], y[owner], self.base[owner], heading[owner])


@dataclass(frozen=True)
class Scene:
    """One sequence's world and the drive through it.

    Attributes:
        ground: the street and its ground.
        drive: the way of the car with the sensor.
        standing: (B,) BODY, all that does not move, in world coordinates.
        movers: all that does.
    """

    ground: Ground
    drive: Drive
    standing: Bodies
    movers: Movers

    def pose(self, frame: int) -> Floats:
        """The (4, 4) float64 matrix from the sensor's coordinates to the world's in a frame."""
        return self.drive.pose(self.ground.street, frame * SCAN_PERIOD_S)

    def bodies(self, frame: int) -> Bodies:
        """(B,) BODY: what the sensor may see in a frame, in world coordinates."""
        time_s = frame * SCAN_PERIOD_S
        apart = self.standing["centre"][:, :2] - self.pose(frame)[:2, 3]
        near = np.hypot(apart[:, 0], apart[:, 1]) < MAX_RANGE_M + 15
        moving = self.movers.at(self.ground.street, self.drive.along(time_s), time_s)
        return np.concatenate([self.standing[near], moving])


def placed(bodies: Bodies, x: Floats, y: Floats, base: Floats, yaw: Floats) -> Bodies:
    """The bodies moved from their things' coordinates to the world: turned by `yaw`, set at x, y, base."""
    result: Bodies = bodies.copy()
    cos, sin = np.cos(yaw), np.sin(yaw)
    ahead, left = bodies["centre"][:, 0], bodies["centre"][:, 1]
    result["centre"][:, 0] = x + cos * ahead - sin * left
    result["centre"][:, 1] = y + sin * ahead + cos * left
    result["centre"][:, 2] += base
    result["yaw"] += yaw
    return result
