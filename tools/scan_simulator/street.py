"""A street's centre line as a smooth curve, and a car's drive along it.

Street coordinates are `along` (metres on the centre line) and `offset` (metres to the left of it). World
coordinates are x, y on the ground and z up, z = 0 on the road.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SCAN_PERIOD_S = 0.1
SENSOR_HEIGHT_M = 1.73
LANE_OFFSET_M = 1.5  # the middle of a lane; traffic keeps to the right
_SAMPLE_M = 0.5  # between two samples of the centre line; its bend within one is under a millimetre


@dataclass(frozen=True)
class Street:
    """The centre line, sampled evenly.

    The heading stays within a right angle of the x axis, so x grows along the street and a point has one
    nearest place on it.

    Attributes:
        start: `along` of the first sample, metres.
        x: (K,) float64, metres, increasing.
        y: (K,) float64, metres.
        heading: (K,) float64, radians from the x axis.
    """

    start: float
    x: Floats
    y: Floats
    heading: Floats

    @property
    def end(self) -> float:
        """`along` of the last sample, metres."""
        return self.start + _SAMPLE_M * (len(self.x) - 1)

    def centre(self, along: Floats) -> tuple[Floats, Floats, Floats]:
        """x, y and heading of the centre line, each as `along`; beyond the ends, those of the end."""
        place = np.clip((along - self.start) / _SAMPLE_M, 0, len(self.x) - 1.001)
        index = place.astype(np.intp)
        share = place - index

        def at(table: Floats) -> Floats:
            left: Floats = table[index]
            return left + share * (table[index + 1] - left)

        return at(self.x), at(self.y), at(self.heading)

    def to_world(self, along: Floats, offset: Floats) -> tuple[Floats, Floats, Floats]:
        """x, y and the street's heading at places given in street coordinates, each as `along`."""
        x, y, heading = self.centre(along)
        return x - offset * np.sin(heading), y + offset * np.cos(heading), heading

    def to_street(self, x: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
        """Along, offset and the street's heading for points given in world coordinates, each as `x`."""
        along = self.start + _SAMPLE_M * np.interp(x, self.x, np.arange(len(self.x)))
        # Three steps bring points within 15 m of the centre line to a millimetre; beyond it is all terrain.
        for _ in range(3):
            centre_x, centre_y, heading = self.centre(along)
            ahead = (x - centre_x) * np.cos(heading) + (y - centre_y) * np.sin(heading)
            along = along + np.clip(ahead, -30, 30)
        centre_x, centre_y, heading = self.centre(along)
        offset = (y - centre_y) * np.cos(heading) - (x - centre_x) * np.sin(heading)
        return along, offset, heading


def winding_street(rng: np.random.Generator, start: float, end: float) -> Street:
    """A street from `start` to `end` with gentle bends (radius above 100 m)."""
    along = np.arange(start, end + _SAMPLE_M, _SAMPLE_M)
    heading = np.zeros_like(along)
    for swing, low, high in ((0.30, 300.0, 450.0), (0.10, 180.0, 260.0)):
        heading += swing * np.sin(2 * np.pi * along / rng.uniform(low, high) + rng.uniform(0, 2 * np.pi))
    steps = _SAMPLE_M * np.stack([np.cos(heading), np.sin(heading)])
    middles = (steps[:, 1:] + steps[:, :-1]) / 2
    x, y = np.concatenate([np.zeros((2, 1)), np.cumsum(middles, axis=1)], axis=1)
    return Street(start, x, y, heading)


@dataclass(frozen=True)
class Drive:
    """How the car with the sensor moves: its speed wavers, it weaves in its lane, it pitches and rolls.

    Attributes:
        speed: metres a second, on average.
        phase: (4,) float64, radians: of the speed, the weave, the pitch and the roll.
    """

    speed: float
    phase: Floats

    def along(self, time_s: float) -> float:
        """Metres driven along the street since time 0."""
        pace = 2 * np.pi / 19
        waver = 0.15 * (np.sin(pace * time_s + self.phase[0]) - np.sin(self.phase[0])) / pace
        return self.speed * (time_s + float(waver))

    def offset(self, time_s: float) -> float:
        """The sensor's offset from the centre line, metres."""
        return float(-LANE_OFFSET_M + 0.15 * np.sin(2 * np.pi * time_s / 11 + self.phase[1]))

    def pose(self, street: Street, time_s: float) -> Floats:
        """The (4, 4) float64 matrix from the sensor's coordinates to the world's at a time."""
        x, y, heading = street.to_world(np.array(self.along(time_s)), np.array(self.offset(time_s)))
        sway = (self.offset(time_s + 0.01) - self.offset(time_s - 0.01)) / 0.02
        pitch = 0.005 * np.sin(2 * np.pi * time_s / 2.7 + self.phase[2])
        roll = 0.004 * np.sin(2 * np.pi * time_s / 3.9 + self.phase[3])
        lift = 0.02 * np.sin(2 * np.pi * time_s / 1.9 + self.phase[2])
        pose = np.eye(4)
        pose[:3, :3] = rotation(float(heading) + np.arctan2(sway, self.speed), float(pitch), float(roll))
        pose[:3, 3] = float(x), float(y), SENSOR_HEIGHT_M + float(lift)
        return pose


def rotation(yaw: float, pitch: float, roll: float) -> Floats:
    """The (3, 3) float64 rotation by roll about x, then pitch about y, then yaw about z, radians."""
    (cy, sy), (cp, sp), (cr, sr) = ((np.cos(angle), np.sin(angle)) for angle in (yaw, pitch, roll))
    about_z = np.array([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]])
    about_y = np.array([[cp, 0, sp], [0, 1, 0], [-sp, 0, cp]])
    about_x = np.array([[1, 0, 0], [0, cr, -sr], [0, sr, cr]])
    turned: Floats = about_z @ about_y @ about_x
    return turned
