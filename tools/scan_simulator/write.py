"""Simulated sequences written as SemanticKITTI has them, by several processes.

    OUT/sequences/NN/velodyne/000000.bin    (N, 4) float32: x, y, z, intensity
                     labels/000000.label    (N,) uint32: class in the lower 16 bits, instance in the upper 16
                     calib.txt              P0 to P3 and Tr (LiDAR to camera 0), 12 numbers each
                     poses.txt              camera 0 of each scan in camera 0 of the first, 12 numbers a line
                     times.txt              seconds since the first scan, one a line

A scan's LiDAR in the first scan's LiDAR is inv(Tr) @ pose @ Tr.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scan_simulator.furnish import build_scene
from scan_simulator.lidar import scan
from scan_simulator.rays import BEAMS
from scan_simulator.street import SCAN_PERIOD_S, Floats, rotation

# Training and validation sequences come first, so that two sequences have both; 11 to 21 are the test split.
SEQUENCE_ORDER = (0, 8, 1, 2, 3, 4, 5, 6, 7, 9, 10, *range(11, 22))
POINTS_MIN, POINTS_MAX = 5_000, 130_000
# KITTI's longest has 4,661; a street this long still numbers its instances in 16 bits.
SEQUENCE_SCANS_MAX = 20_000
_TRIAL_SCANS = 16
_TRIAL_COLUMNS = 256
# Below this many points a second process costs more to start than it saves.
_POINTS_A_PROCESS = 1_500_000
_CHUNK_SCANS = 4
_OWN_FILES = re.compile(r"velodyne/\d{6}\.bin|labels/\d{6}\.label|(calib|poses|times)\.txt")


class SimulationError(Exception):
    """What was asked for cannot be simulated, or cannot be written there."""


@dataclass(frozen=True)
class Plan:
    """All that the bytes of a run depend on.

    Attributes:
        seed: fixes the streets and the noise.
        frames: how many scans each sequence has, by the sequence's number.
        columns: azimuth steps a turn, the same in all scans.
    """

    seed: int
    frames: dict[int, int]
    columns: int


@dataclass(frozen=True)
class _Task:
    """Some consecutive scans of one sequence, and the folder that they go to."""

    plan: Plan
    sequence: int
    first: int
    last: int
    folder: Path


def simulate(
    out: str | Path,
    *,
    scans: int,
    points: int,
    sequences: int = 1,
    seed: int = 0,
    workers: int | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Write simulated sequences below `out`/sequences and return their folders.

    The bytes depend on scans, points, sequences and seed alone. With more than one worker the calling script
    needs the guard `if __name__ == "__main__"`, since processes are spawned.

    Args:
        out: folder; made if it is missing.
        scans: how many in all, spread over the sequences as evenly as can be.
        points: how many a scan has on average, 5,000 to 130,000.
        sequences: how many, 1 to 22; numbered 00, 08, 01, 02, ... so that two have a training and a
            validation sequence.
        seed: 0 or more.
        workers: processes; 0 and 1 work in this one; None takes the cores of this process, or fewer if there
            is little to do.
        overwrite: whether to replace what an earlier run wrote there.

    Raises:
        SimulationError: a number is out of bounds, or `out` has sequences already and `overwrite` is false.
        OSError: a file cannot be written.
    """
    _check(scans, points, sequences, seed, workers)
    root = Path(out) / "sequences"
    _make_room(root, overwrite)
    plan = _plan(scans, points, sequences, seed)
    folders = {sequence: root / f"{sequence:02d}" for sequence in plan.frames}
    for sequence, folder in folders.items():
        _start_sequence(folder, plan, sequence)
    _run(list(_tasks(plan, folders)), _workers(workers, scans * points))
    return list(folders.values())


def _check(scans: int, points: int, sequences: int, seed: int, workers: int | None) -> None:
    if not 1 <= sequences <= len(SEQUENCE_ORDER):
        raise SimulationError(f"{sequences} sequences: expected 1 to 22, as many as SemanticKITTI has")
    if scans < sequences:
        raise SimulationError(f"{scans} scans for {sequences} sequences: expected at least one for each")
    if scans > SEQUENCE_SCANS_MAX * sequences:
        raise SimulationError(f"{scans} scans in {sequences} sequences: expected at most {SEQUENCE_SCANS_MAX} in each")
    if not POINTS_MIN <= points <= POINTS_MAX:
        raise SimulationError(f"{points} points a scan: expected {POINTS_MIN} to {POINTS_MAX}")
    if seed < 0:
        raise SimulationError(f"seed {seed}: expected 0 or more")
    if workers is not None and workers < 0:
        raise SimulationError(f"{workers} workers: expected 0 or more")


def _make_room(root: Path, overwrite: bool) -> None:
    """Remove an earlier run's files below `root`, and nothing else, if that is allowed."""
    if not root.exists():
        root.mkdir(parents=True)
        return
    if not overwrite:
        raise SimulationError(f"{root} is there already: choose another folder, or overwrite it (--overwrite)")
    for folder in (root / f"{sequence:02d}" for sequence in SEQUENCE_ORDER):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and _OWN_FILES.fullmatch(path.relative_to(folder).as_posix()):
                path.unlink()


def _plan(scans: int, points: int, sequences: int, seed: int) -> Plan:
    """Spread the scans over the sequences, and find the azimuth steps that give the points."""
    share, rest = divmod(scans, sequences)
    numbers = SEQUENCE_ORDER[:sequences]
    frames = {number: share + (place < rest) for place, number in enumerate(numbers)}
    seen = [
        len(scan(build_scene(seed, number, frames[number]), frame, _TRIAL_COLUMNS, (seed, number))[0])
        for number, frame in _trial(frames)
    ]
    returned = float(np.mean(seen)) / (BEAMS * _TRIAL_COLUMNS)
    return Plan(seed, frames, round(points / (BEAMS * returned)))


def _trial(frames: dict[int, int]) -> list[tuple[int, int]]:
    """Sequence and frame of a few scans spread evenly over all."""
    everything = [(number, frame) for number, length in frames.items() for frame in range(length)]
    chosen = np.linspace(0, len(everything) - 1, min(_TRIAL_SCANS, len(everything))).round().astype(int)
    return [everything[place] for place in chosen]


def _workers(asked: int | None, points: int) -> int:
    """How many processes to use."""
    if asked is not None:
        return asked
    return min(_cores(), math.ceil(points / _POINTS_A_PROCESS))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _tasks(plan: Plan, folders: dict[int, Path]) -> Iterator[_Task]:
    for sequence, frames in plan.frames.items():
        for first in range(0, frames, _CHUNK_SCANS):
            last = min(first + _CHUNK_SCANS, frames)
            yield _Task(plan, sequence, first, last, folders[sequence])


def _run(tasks: list[_Task], workers: int) -> None:
    """Carry out the tasks here, or in spawned processes; the first error stops the rest."""
    if workers <= 1:
        for task in tasks:
            _write_scans(task)
        return
    # Forked children could inherit locks held by threads of whoever calls.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(tasks)), mp_context=spawn) as pool:
        try:
            for _ in pool.map(_write_scans, tasks):
                pass
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _write_scans(task: _Task) -> None:
    """Simulate and write a task's scans, labels before points."""
    plan = task.plan
    scene = build_scene(plan.seed, task.sequence, plan.frames[task.sequence])
    for frame in range(task.first, task.last):
        points, labels, _ = scan(scene, frame, plan.columns, (plan.seed, task.sequence))
        _write(task.folder / "labels" / f"{frame:06d}.label", labels.astype("<u4").tobytes())
        _write(task.folder / "velodyne" / f"{frame:06d}.bin", points.astype("<f4").tobytes())


def _start_sequence(folder: Path, plan: Plan, sequence: int) -> None:
    """Make a sequence's folders and write its calibration, poses and times."""
    for name in ("velodyne", "labels"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    frames = plan.frames[sequence]
    scene = build_scene(plan.seed, sequence, frames)
    to_camera = lidar_to_camera()
    to_first = to_camera @ np.linalg.inv(scene.pose(0))
    from_camera = np.linalg.inv(to_camera)
    poses = [to_first @ scene.pose(frame) @ from_camera for frame in range(frames)]
    _write(folder / "calib.txt", _calibration(to_camera).encode())
    _write(folder / "poses.txt", "".join(_numbers(pose) + "\n" for pose in poses).encode())
    times = (f"{frame * SCAN_PERIOD_S:e}\n" for frame in range(frames))
    _write(folder / "times.txt", "".join(times).encode())


def lidar_to_camera() -> Floats:
    """(4, 4) float64: KITTI's axes (camera x right, y down, z ahead) and mounting, a little askew."""
    matrix = np.eye(4)
    axes = np.array([[0.0, -1.0, 0.0], [0.0, 0.0, -1.0], [1.0, 0.0, 0.0]])
    matrix[:3, :3] = rotation(0.008, -0.006, 0.004) @ axes
    matrix[:3, 3] = -0.012, -0.054, -0.292
    return matrix


def _calibration(to_camera: Floats) -> str:
    """calib.txt: the projections of KITTI's four cameras, with their baselines, and Tr."""
    lines = []
    for number, shift in enumerate((0.0, -386.1448, 45.38225, -337.2877)):
        projection = np.array([[718.856, 0, 607.1928, shift], [0, 718.856, 185.2157, 0], [0, 0, 1, 0]])
        lines.append(f"P{number}: {_numbers(projection)}\n")
    return "".join(lines) + f"Tr: {_numbers(to_camera)}\n"


def _numbers(matrix: Floats) -> str:
    """The upper three rows, row by row, in thirteen digits, as KITTI writes calibrations."""
    return " ".join(f"{value:.12e}" for value in matrix[:3].ravel())


def _write(path: Path, data: bytes) -> None:
    """Write a file under another name first, so that it is never there in part."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    partial.replace(path)
