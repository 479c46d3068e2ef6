"""What a rotating 64-beam LiDAR sees of a scene: one return a ray, from the nearest surface.

A scan is a snapshot: all its rays start at one moment from one place, as in scans whose motion within the
turn has been taken out, which is what KITTI publishes. The rays form a grid, a row a beam from the top one
down, a column an azimuth counter-clockwise from straight ahead, and points keep that order. A body is tested
only against the rectangle of the grid that it may cover, the nearest bodies first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scan_simulator.meet import nearest
from scan_simulator.rays import Rays, Singles, cast_rays, to_body
from scan_simulator.scene import CURB_M, MAX_RANGE_M, Bodies, Ground, Scene
from scan_simulator.things import REFLECTIVITY, Label, Solid

MIN_RANGE_M = 0.5
_RANGE_NOISE_M = 0.01
_TERRAIN_NOISE_M = 0.02  # grass is no plane
# A white surface met head on returns half of its pulses at this range (the loss grows with the fourth power).
# It ends the road, met at a flat angle, at 50 to 60 m, as in KITTI's scans, and walls beyond the reach.
_HALF_SEEN_M = 560.0
_STRAY_LOSS = 0.01
_INTENSITY_NOISE = 0.15
_GROUND_REFLECTIVITY = np.zeros(max(Label) + 1, dtype=np.float32)
for _label, (_mean, _) in REFLECTIVITY.items():
    _GROUND_REFLECTIVITY[_label] = _mean


@dataclass(frozen=True)
class Hits:
    """What each ray of the flattened grid met.

    Attributes:
        distance: (R,) float32, metres; MAX_RANGE_M where it met nothing.
        label: (R,) uint32, as label files have it.
        reflectivity: (R,) float32, the share of a pulse sent back head on; 0 where it met nothing.
        cosine: (R,) float32, of the angle between the ray and the surface's normal.
        loss: (R,) float32, chance that the surface swallows the pulse.
        noise: (R,) float32, metres, standard deviation of the distance.
    """

    distance: Singles
    label: NDArray[np.uint32]
    reflectivity: Singles
    cosine: Singles
    loss: Singles
    noise: Singles


def scan(
    scene: Scene, frame: int, columns: int, seed: tuple[int, int]
) -> tuple[Singles, NDArray[np.uint32], NDArray[np.intp]]:
    """A frame's points, labels and rays.

    Args:
        scene: the world and the drive.
        frame: which scan of the drive.
        columns: azimuths a turn.
        seed: the run's seed and the sequence's number; with the frame they fix the noise.

    Returns:
        points: (N, 4) float32: x ahead, y left, z up in metres from the sensor, intensity in [0, 1].
        labels: (N,) uint32: class in the lower 16 bits, instance in the upper 16.
        rays: (N,) intp, ascending: beam * columns + azimuth step.
    """
    # The scene itself is drawn with a 0 in the last place.
    rng = np.random.default_rng((*seed, frame + 1))
    rays, own = cast_rays(scene.pose(frame), columns, rng.random())
    bodies = scene.bodies(frame)
    distance, index = nearest(rays, bodies)
    hits = _no_hits(distance.ravel())
    _hit_bodies(hits, rays, bodies, index.ravel())
    _hit_ground(hits, rays, scene.ground)
    return _returns(hits, own, rng)


def _no_hits(distance: Singles) -> Hits:
    """Hits that know only their distance."""
    rays = len(distance)
    reflectivity, cosine, loss = np.zeros((3, rays), dtype=np.float32)
    noise = np.full(rays, _RANGE_NOISE_M, dtype=np.float32)
    return Hits(distance, np.zeros(rays, dtype=np.uint32), reflectivity, cosine, loss, noise)


def _hit_bodies(hits: Hits, rays: Rays, bodies: Bodies, index: NDArray[np.int32]) -> None:
    """Fill in what is known of the rays that met a body."""
    ray = np.flatnonzero(index >= 0)
    met = index[ray]
    way = np.stack([axis.ravel()[ray] for axis in (rays.x, rays.y, rays.z)])
    hits.label[ray] = bodies["label"][met]
    hits.reflectivity[ray] = bodies["reflectivity"][met]
    hits.loss[ray] = bodies["loss"][met]
    hits.cosine[ray] = _cosine(way, hits.distance[ray], rays, bodies, met)
    rough = bodies["rough"][met].astype(np.float32)
    hits.distance[ray] += rough * _bumps(way * hits.distance[ray] + rays.origin[:, None])


def _bumps(place: NDArray[np.float64]) -> Singles:
    """(N,) float32 in [0, 1]: how deep leaves lie at world places (3, N); the same in each scan."""
    waves = np.sin(9.1 * place[0] + 3.7 * place[2]) * np.sin(7.3 * place[1] - 5.9 * place[2])
    return np.asarray(0.5 + 0.5 * waves, dtype=np.float32)


def _cosine(way: Singles, distance: Singles, rays: Rays, bodies: Bodies, met: NDArray[np.int32]) -> Singles:
    """(N,) float32: how squarely rays of directions (3, N) meet the surfaces of their bodies."""
    body = bodies[["solid", "centre", "half", "yaw"]][met]
    ahead, left = to_body(body["yaw"], way[0], way[1])
    own = np.stack([ahead, left, way[2].astype(np.float64)])
    apart = (rays.origin - body["centre"]).T
    spot = np.stack([*to_body(body["yaw"], apart[0], apart[1]), apart[2]]) + own * distance
    half = body["half"].T
    normal = _normal(body["solid"], spot / half, half)
    squarely = np.abs((normal * own).sum(axis=0)) / np.linalg.norm(normal, axis=0)
    return np.asarray(squarely, dtype=np.float32)


def _normal(solid: NDArray[np.uint8], scaled: NDArray[np.float64], half: NDArray[np.float64]) -> NDArray[np.float64]:
    """(3, N) float64, not of unit length: normals at places (3, N) given in half sizes of the body."""
    normal = scaled / half
    side = np.argmax(np.abs(scaled), axis=0)
    is_box = solid == Solid.BOX
    normal[:, is_box] = np.arange(3)[:, None] == side[is_box]
    is_cylinder = solid == Solid.CYLINDER
    on_top = is_cylinder & (side == 2)
    normal[2, is_cylinder] = 0
    normal[:, on_top] = np.array([[0.0], [0.0], [1.0]])
    return normal


def _hit_ground(hits: Hits, rays: Rays, ground: Ground) -> None:
    """Fill in what is known of the rays that meet the ground before any body.

    The ground has two levels. A ray that comes down to the upper one where the ground is low goes on to the
    lower one, unless it meets the face of the curb between them.
    """
    down = np.minimum(rays.z, -1e-6)
    ray = np.flatnonzero((CURB_M - rays.origin[2]) / down < hits.distance.reshape(down.shape))
    way = np.stack([axis.ravel()[ray] for axis in (rays.x, rays.y, down)]).astype(np.float64)
    upper, lower = (CURB_M - rays.origin[2]) / way[2], -rays.origin[2] / way[2]
    along, offset, heading = ground.street.to_street(*(rays.origin[:2, None] + upper * way[:2]))
    ahead = way[0] * np.cos(heading) + way[1] * np.sin(heading)
    aside = way[1] * np.cos(heading) - way[0] * np.sin(heading)
    share = _way_down(ground, along, offset, (lower - upper) * ahead, (lower - upper) * aside)
    distance = upper + share * (lower - upper)
    is_face = (share > 0) & (share < 1)
    # A hair further on a ray that met the curb's face is above the sidewalk, which gives it its class.
    past = (share + 0.02 * is_face) * (lower - upper)
    label = ground.label(along + past * ahead, offset + past * aside)
    cosine = np.where(is_face, np.abs(aside), -way[2])
    closer = distance < hits.distance[ray]
    _set_ground(hits, ray[closer], distance[closer], label[closer], cosine[closer])


def _way_down(
    ground: Ground,
    along: NDArray[np.float64],
    offset: NDArray[np.float64],
    ahead: NDArray[np.float64],
    aside: NDArray[np.float64],
) -> NDArray[np.float64]:
    """What share of the way from the upper level to the lower rays go before they meet the ground.

    Args:
        ground: the street and its ground.
        along: (N,) where rays meet the upper level.
        offset: (N,) the same.
        ahead: (N,) how far along the street they then go down to the lower level.
        aside: (N,) how far across it.

    Returns:
        (N,) float64: 0 where the ground is high, 1 where it is low, between at a curb's face.
    """
    is_low = ~ground.raised(along, offset)
    is_face = is_low & ground.raised(along + ahead, offset + aside)
    curb = np.sign(aside) * ground.curb(along + ahead, offset + aside)
    with np.errstate(divide="ignore", invalid="ignore"):
        to_curb = np.clip((curb - offset) / aside, 0.01, 0.99)
    return np.where(is_face, np.nan_to_num(to_curb, nan=0.5), is_low)


def _set_ground(
    hits: Hits,
    ray: NDArray[np.intp],
    distance: NDArray[np.float64],
    label: NDArray[np.uint32],
    cosine: NDArray[np.float64],
) -> None:
    """Write the rays that met the ground over what they would have met behind it."""
    hits.distance[ray] = distance
    hits.label[ray] = label
    hits.reflectivity[ray] = _GROUND_REFLECTIVITY[label]
    hits.cosine[ray] = cosine
    hits.loss[ray] = 0
    hits.noise[ray] = np.where(label == Label.TERRAIN, _TERRAIN_NOISE_M, _RANGE_NOISE_M)


def _returns(
    hits: Hits, own: Singles, rng: np.random.Generator
) -> tuple[Singles, NDArray[np.uint32], NDArray[np.intp]]:
    """Points, labels and rays of the pulses that come back, measured with noise."""
    luck, blur, gleam = (_draw(rng, kind, len(own)) for kind in ("uniform", "normal", "normal"))
    distance = hits.distance + hits.noise * blur
    seen_to = _HALF_SEEN_M * np.sqrt(hits.reflectivity * np.maximum(hits.cosine, 0.01)) + 1e-3
    chance = (1 - _STRAY_LOSS) * (1 - hits.loss) / (1 + (distance / seen_to) ** 4)
    in_reach = (hits.reflectivity > 0) & (distance > MIN_RANGE_M) & (distance < MAX_RANGE_M)
    ray = np.flatnonzero(in_reach & (luck < chance))
    points = np.empty((len(ray), 4), dtype=np.float32)
    points[:, :3] = own[ray] * distance[ray, None]
    points[:, 3] = _intensity(hits, ray, gleam[ray])
    return points, hits.label[ray], ray


def _draw(rng: np.random.Generator, kind: str, number: int) -> Singles:
    if kind == "uniform":
        return rng.random(number, dtype=np.float32)
    return rng.standard_normal(number, dtype=np.float32)


def _intensity(hits: Hits, ray: NDArray[np.intp], gleam: Singles) -> Singles:
    """(N,) float32 in [0, 1], in hundredths as KITTI's: less at flat angles and far away."""
    clear = hits.reflectivity[ray] * (0.3 + 0.7 * hits.cosine[ray]) * np.exp(-hits.distance[ray] / 150)
    noisy = clear * (1 + _INTENSITY_NOISE * gleam)
    return np.asarray(np.round(np.clip(noisy, 0, 1), 2), dtype=np.float32)
