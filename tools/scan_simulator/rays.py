"""The sensor's rays as a grid, and the part of the grid that each body may cover."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scan_simulator.scene import Bodies

Singles = NDArray[np.float32]

# As a Velodyne HDL-64E, with the beams spread evenly.
BEAMS = 64
TOP_RAD = float(np.deg2rad(2.0))
BEAM_STEP_RAD = float(np.deg2rad(26.8)) / (BEAMS - 1)


@dataclass(frozen=True)
class Rays:
    """A scan's rays, in world directions.

    Attributes:
        pose: (4, 4) float64, from the sensor's coordinates to the world's.
        turn: the first column's azimuth, in columns.
        x, y, z: (BEAMS, columns) float32, unit vectors.
    """

    pose: NDArray[np.float64]
    turn: float
    x: Singles
    y: Singles
    z: Singles

    @property
    def origin(self) -> NDArray[np.float64]:
        """(3,) float64, metres: where the sensor is in the world."""
        return self.pose[:3, 3]

    @property
    def columns(self) -> int:
        """How many azimuths a turn has."""
        return int(self.x.shape[1])


def cast_rays(pose: NDArray[np.float64], columns: int, turn: float) -> tuple[Rays, Singles]:
    """The rays in world directions, and (BEAMS * columns, 3) float32 in the sensor's own."""
    elevation = TOP_RAD - BEAM_STEP_RAD * np.arange(BEAMS)[:, None]
    azimuth = 2 * np.pi * (np.arange(columns) + turn)[None, :] / columns
    flat, up = np.cos(elevation).astype(np.float32), np.sin(elevation).astype(np.float32)
    cos, sin = np.cos(azimuth).astype(np.float32), np.sin(azimuth).astype(np.float32)
    own = np.empty((BEAMS, columns, 3), dtype=np.float32)
    own[..., 0], own[..., 1], own[..., 2] = flat * cos, flat * sin, up
    turned = pose[:3, :3].astype(np.float32)
    x, y, z = (flat * (row[0] * cos + row[1] * sin) + row[2] * up for row in turned)
    return Rays(pose, turn, x, y, z), own.reshape(-1, 3)


@dataclass(frozen=True)
class Window:
    """The rectangle of the grid that a body may cover: rows, and one or two ranges of columns."""

    rows: slice
    columns: tuple[slice, ...]


def windows(rays: Rays, bodies: Bodies) -> tuple[list[Window], NDArray[np.float64]]:
    """Each body's window, and (B,) float64 a lower bound of its distance in metres."""
    corners = _corners(bodies) - rays.origin
    own = np.einsum("bci,ij->bcj", corners, rays.pose[:3, :3])
    nearest = _footprint_distance(rays, bodies)
    furthest = np.hypot(own[..., 0], own[..., 1]).max(axis=1)
    top, bottom = own[..., 2].max(axis=1), own[..., 2].min(axis=1)
    # The slack is for the sensor's tilt, which moves footprints a little.
    close = np.maximum(0.98 * nearest - 0.05, 0.05)
    highest = np.arctan2(top, np.where(top > 0, close, furthest))
    lowest = np.arctan2(bottom, np.where(bottom < 0, close, furthest))
    first_row = np.clip(np.floor((TOP_RAD - highest) / BEAM_STEP_RAD), 0, BEAMS).astype(np.intp)
    last_row = np.clip(np.ceil((TOP_RAD - lowest) / BEAM_STEP_RAD) + 1, 0, BEAMS).astype(np.intp)
    columns = _column_ranges(rays, own, nearest)
    spans = zip(first_row.tolist(), last_row.tolist(), columns, strict=True)
    return [Window(slice(first, last), wide) for first, last, wide in spans], close


def _corners(bodies: Bodies) -> NDArray[np.float64]:
    """(B, 8, 3) float64: the corners of each body's bounding box, world coordinates, metres."""
    signs = np.array([[a, b, c] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)], dtype=np.float64)
    reach = signs[None] * bodies["half"][:, None]
    cos, sin = np.cos(bodies["yaw"])[:, None], np.sin(bodies["yaw"])[:, None]
    turned = reach.copy()
    turned[..., 0] = cos * reach[..., 0] - sin * reach[..., 1]
    turned[..., 1] = sin * reach[..., 0] + cos * reach[..., 1]
    return np.asarray(turned + bodies["centre"][:, None])


def _footprint_distance(rays: Rays, bodies: Bodies) -> NDArray[np.float64]:
    """(B,) float64, metres on the ground from the sensor to each body's footprint."""
    ahead, left = to_body(bodies["yaw"], *(rays.origin[:2] - bodies["centre"][:, :2]).T)
    beyond = np.abs(np.stack([ahead, left], axis=1)) - bodies["half"][:, :2]
    return np.asarray(np.hypot(*np.maximum(beyond, 0).T))


def _column_ranges(rays: Rays, own: NDArray[np.float64], nearest: NDArray[np.float64]) -> list[tuple[slice, ...]]:
    """The columns that each body may cover; all of them for one that reaches over the sensor."""
    middle = np.arctan2(own[..., 1].mean(axis=1), own[..., 0].mean(axis=1))
    aside = np.arctan2(own[..., 1], own[..., 0]) - middle[:, None]
    aside = (aside + np.pi) % (2 * np.pi) - np.pi
    a_radian = rays.columns / (2 * np.pi)
    low = np.floor((middle + aside.min(axis=1)) * a_radian - rays.turn).astype(np.intp)
    high = np.ceil((middle + aside.max(axis=1)) * a_radian - rays.turn).astype(np.intp) + 1
    around = nearest < 0.3
    ranges = zip(low.tolist(), high.tolist(), around.tolist(), strict=True)
    return [_wrapped(0 if all_ else a, rays.columns if all_ else b, rays.columns) for a, b, all_ in ranges]


def _wrapped(low: int, high: int, columns: int) -> tuple[slice, ...]:
    """The range [low, high) of columns, taken round the turn, as slices."""
    if high - low >= columns:
        return (slice(0, columns),)
    low, high = low % columns, low % columns + high - low
    if high <= columns:
        return (slice(low, high),)
    return slice(low, columns), slice(0, high - columns)


def to_body(
    yaw: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """World x and y turned into bodies' own."""
    cos, sin = np.cos(yaw), np.sin(yaw)
    return cos * x + sin * y, cos * y - sin * x
