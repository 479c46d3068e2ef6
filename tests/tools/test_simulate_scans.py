"""The scan simulator: its files read with numpy alone, its ray-caster against a march along each ray."""

import hashlib
import itertools
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

import simulate_scans  # noqa: E402
from scan_simulator.meet import nearest  # noqa: E402
from scan_simulator.rays import cast_rays  # noqa: E402
from scan_simulator.scene import BODY  # noqa: E402
from scan_simulator.street import rotation  # noqa: E402
from scan_simulator.things import Solid  # noqa: E402
from simulate_scans import SimulationError, simulate  # noqa: E402

THINGS = {10, 11, 15, 18, 30, 31, 252, 254}
STUFF = {0, 40, 44, 48, 50, 51, 60, 70, 71, 72, 80, 81}
# What semantic-kitti.yaml's learning_map makes of the raw classes that occur.
LEARNED = {0: 0, 10: 1, 252: 1, 11: 2, 15: 3, 18: 4, 30: 6, 254: 6, 31: 7, 40: 9, 60: 9, 44: 10, 48: 11}
LEARNED |= {50: 13, 51: 14, 70: 15, 71: 16, 72: 17, 80: 18, 81: 19}


@dataclass(frozen=True)
class Scan:
    points: np.ndarray
    label: np.ndarray
    instance: np.ndarray
    to_first: np.ndarray

    @property
    def placed(self):
        """The points in the first scan's coordinates, float64."""
        return self.points[:, :3].astype(np.float64) @ self.to_first[:3, :3].T + self.to_first[:3, 3]


def numbers_to_matrix(text):
    return np.vstack([np.array(text.split(), dtype=np.float64).reshape(3, 4), [0, 0, 0, 1]])


def read_sequence(folder):
    calib = dict(line.split(": ") for line in (folder / "calib.txt").read_text().splitlines())
    tr = numbers_to_matrix(calib["Tr"])
    poses = (folder / "poses.txt").read_text().splitlines()
    names = sorted(path.stem for path in (folder / "velodyne").glob("*.bin"))
    assert len(poses) == len(names)
    scans = []
    for name, pose in zip(names, poses, strict=True):
        points = np.fromfile(folder / "velodyne" / f"{name}.bin", dtype="<f4").reshape(-1, 4)
        label = np.fromfile(folder / "labels" / f"{name}.label", dtype="<u4")
        assert len(points) == len(label)
        to_first = np.linalg.inv(tr) @ numbers_to_matrix(pose) @ tr
        scans.append(Scan(points, label & 0xFFFF, label >> 16, to_first))
    return scans


def digests(out):
    files = sorted(path for path in out.rglob("*") if path.is_file())
    return {path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """12 scans of 5,000 points in two sequences."""
    out = tmp_path_factory.mktemp("small")
    simulate(out, scans=12, points=5_000, sequences=2, seed=3)
    return out


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """Two sequences of 11 scans of 130,000 points, as read."""
    out = tmp_path_factory.mktemp("dense")
    return [read_sequence(folder) for folder in simulate(out, scans=22, points=130_000, sequences=2, workers=1)]


def all_scans(out):
    return [scan for folder in sorted(out.glob("sequences/*")) for scan in read_sequence(folder)]


def test_same_arguments_give_same_bytes_with_any_number_of_workers(small, tmp_path):
    for workers in (1, 2):
        simulate(tmp_path / str(workers), scans=12, points=5_000, sequences=2, seed=3, workers=workers)
        assert digests(tmp_path / str(workers)) == digests(small)


def test_another_seed_and_another_sequence_are_other_streets(small, tmp_path):
    simulate(tmp_path, scans=12, points=5_000, sequences=2, seed=4)
    ours, theirs = digests(small), digests(tmp_path)
    assert ours.keys() == theirs.keys()
    for name, digest in ours.items():
        if not name.endswith(("calib.txt", "times.txt")):
            assert theirs[name] != digest
    assert ours["sequences/00/poses.txt"] != ours["sequences/08/poses.txt"]


def test_layout(small):
    scans = [f"{folder}/{frame:06d}" for folder in ("labels", "velodyne") for frame in range(6)]
    ends = {"labels": "label", "velodyne": "bin"}
    names = {f"{name}.{ends[name.split('/')[0]]}" for name in scans}
    names |= {"calib.txt", "poses.txt", "times.txt"}
    assert set(digests(small)) == {f"sequences/{number}/{name}" for number in ("00", "08") for name in names}


def test_calibration_and_times_are_kitti_text(small):
    folder = small / "sequences" / "08"
    lines = (folder / "calib.txt").read_text().splitlines()
    assert [line.split(":")[0] for line in lines] == ["P0", "P1", "P2", "P3", "Tr"]
    assert all(len(line.split(": ")[1].split()) == 12 for line in lines)
    tr = numbers_to_matrix(lines[4].split(": ")[1])
    np.testing.assert_allclose(tr[:3, :3] @ tr[:3, :3].T, np.eye(3), atol=1e-9)
    assert np.linalg.det(tr) == pytest.approx(1)
    np.testing.assert_allclose(tr[:3, :3] @ [1, 0, 0], [0, 0, 1], atol=0.02)  # ahead is the camera's z
    times = [float(line) for line in (folder / "times.txt").read_text().splitlines()]
    np.testing.assert_allclose(times, 0.1 * np.arange(6), atol=1e-6)


def test_drive_starts_at_identity_and_goes_ahead_with_turns(tmp_path):
    (folder,) = simulate(tmp_path, scans=40, points=5_000, seed=1)
    poses = [scan.to_first for scan in read_sequence(folder)]
    np.testing.assert_allclose(poses[0], np.eye(4), atol=1e-9)
    steps = np.array([(np.linalg.inv(a) @ b)[:3, 3] for a, b in itertools.pairwise(poses)])
    assert ((steps[:, 0] > 0.3) & (steps[:, 0] < 1)).all()
    assert (np.abs(steps[:, 1:]) < 0.1).all()
    assert all(not np.allclose(pose[:3, :3], np.eye(3), atol=1e-4) for pose in poses[1:])


@pytest.mark.parametrize("points", [5_000, 30_000, 130_000])
def test_scans_have_about_the_points_asked_for(points, tmp_path):
    simulate(tmp_path, scans=8, points=points, seed=points, workers=1)
    counts = [len(scan.points) for scan in all_scans(tmp_path)]
    assert np.mean(counts) == pytest.approx(points, rel=0.05)
    assert len(set(counts)) > 1


def test_values_are_in_range(small, dense):
    for scan in all_scans(small) + dense[0]:
        assert np.isfinite(scan.points).all()
        distance = np.linalg.norm(scan.points[:, :3], axis=1)
        assert distance.min() > 0.49
        assert distance.max() < 120.01
        intensity = scan.points[:, 3]
        assert intensity.min() >= 0
        assert intensity.max() <= 1
        assert intensity.std() > 0.05


def test_each_ray_has_one_return_in_the_order_of_the_turn(dense):
    scan = dense[0][0]
    x, y, z, _ = scan.points.astype(np.float64).T
    beam = (2 - np.rad2deg(np.arctan2(z, np.hypot(x, y)))) / (26.8 / 63)
    assert np.abs(beam - beam.round()).max() < 0.01
    beam = beam.round().astype(int)
    assert set(beam) == set(range(64))
    assert (np.diff(beam) >= 0).all()
    azimuth = np.arctan2(y, x) % (2 * np.pi)
    gaps = [np.diff(np.sort(azimuth[beam == number])) for number in range(64)]
    step = np.median(np.concatenate(gaps))
    assert min(gap.min() for gap in gaps) > 0.9 * step


def test_classes_and_instances(small, dense):
    for scan in all_scans(small) + dense[0] + dense[1]:
        assert set(scan.label.tolist()) <= THINGS | STUFF
        assert len({LEARNED[label] for label in scan.label.tolist()} - {0}) >= 8
        is_thing = np.isin(scan.label, list(THINGS))
        assert (scan.instance[is_thing] > 0).all()
        assert (scan.instance[~is_thing] == 0).all()


def test_the_ground_is_low_and_houses_are_high(dense):
    for scan in dense[0]:
        near = np.hypot(scan.points[:, 0], scan.points[:, 1]) < 15
        height = scan.points[:, 2] + 1.73
        assert np.abs(height[near & (scan.label == 40)]).max() < 0.3
        assert height[near & (scan.label == 50)].max() > 1.7


def test_the_way_ahead_is_free(dense):
    for scan in dense[0] + dense[1]:
        x, y, z, _ = scan.points.T
        assert not ((np.abs(x) < 2.5) & (np.abs(y) < 0.85) & (z > -1.5)).any()


def centres(scan, label):
    """The mean place of each instance of a class that has 50 points or more."""
    found = {}
    for instance in np.unique(scan.instance[scan.label == label]):
        chosen = scan.placed[scan.instance == instance]
        if len(chosen) >= 50:
            found[int(instance)] = chosen.mean(axis=0)
    return found


@pytest.mark.parametrize(("label", "least", "most"), [(252, 1.0, 9.0), (254, 0.3, 1.2), (10, 0.0, 1.0)])
def test_things_move_or_stay_as_their_class_says(dense, label, least, most):
    moves = []
    for scans in dense:
        before, after = centres(scans[0], label), centres(scans[5], label)
        moves += [np.linalg.norm(after[thing] - before[thing]) for thing in before.keys() & after.keys()]
    assert len(moves) >= 3
    assert least <= np.median(moves) <= most
    if label == 252:
        assert min(moves) > least


def test_an_instance_keeps_its_class_through_a_sequence(dense):
    for scans in dense:
        classes = {}
        for scan in scans:
            pairs = np.unique(np.stack([scan.instance, scan.label], axis=1)[scan.instance > 0], axis=0)
            for instance, label in pairs.tolist():
                assert classes.setdefault(instance, label) == label


def nearest_distances(places, target):
    """How far places (N, 3) are from their nearest among target (M, 3), at most half a metre."""
    target = target[np.argsort(target[:, 0])]
    first = np.searchsorted(target[:, 0], places[:, 0] - 0.5)
    last = np.searchsorted(target[:, 0], places[:, 0] + 0.5)
    found = []
    for place, low, high in zip(places, first, last, strict=True):
        away = target[low:high] - place
        found.append(np.sqrt(np.min((away * away).sum(axis=1), initial=0.25)))
    return np.array(found)


def gap(scans, first, relative):
    """Median distance of static points of a scan five later, moved by `relative`, to the earlier scan's."""
    earlier, later = scans[first], scans[first + 5]
    target = earlier.points[earlier.label < 250, :3].astype(np.float64)
    chosen = (later.label < 250) & (np.linalg.norm(later.points[:, :3], axis=1) < 25)
    places = later.points[chosen, :3].astype(np.float64)
    places = places[np.random.default_rng(0).permutation(len(places))[:1500]]
    return np.median(nearest_distances(places @ relative[:3, :3].T + relative[:3, 3], target))


@pytest.mark.parametrize("sequence", [0, 1])
@pytest.mark.parametrize("first", [0, 5])
def test_static_points_coincide_by_pose(dense, sequence, first):
    scans = dense[sequence]
    relative = np.linalg.inv(scans[first].to_first) @ scans[first + 5].to_first
    assert gap(scans, first, relative) < 0.05
    assert gap(scans, first, np.linalg.inv(relative)) > 0.08


def random_bodies(rng, number):
    bodies = np.zeros(number, dtype=BODY)
    bodies["solid"] = rng.integers(0, 3, number)
    bodies["half"] = rng.uniform(0.3, 2, (number, 3))
    round_ = bodies["solid"] == Solid.CYLINDER
    bodies["half"][round_, 1] = bodies["half"][round_, 0]
    bodies["yaw"] = rng.uniform(-np.pi, np.pi, number)
    angle, away = rng.uniform(-np.pi, np.pi, number), rng.uniform(3.5, 11, number)
    height = rng.uniform(-1.5, 1.5, number)
    bodies["centre"] = np.stack([away * np.cos(angle), away * np.sin(angle), height], axis=1)
    return bodies


def inside(body, places):
    """Whether places (..., 3) in the world are inside a body."""
    x, y, z = np.moveaxis(places - body["centre"], -1, 0)
    cos, sin = np.cos(body["yaw"]), np.sin(body["yaw"])
    x, y, z = np.abs(np.stack([cos * x + sin * y, cos * y - sin * x, z])) / body["half"][:, None, None, None]
    if body["solid"] == Solid.BOX:
        return (x < 1) & (y < 1) & (z < 1)
    if body["solid"] == Solid.CYLINDER:
        return (x * x + y * y < 1) & (z < 1)
    return x * x + y * y + z * z < 1


@pytest.mark.parametrize("seed", range(3))
def test_rays_end_where_a_march_along_them_first_enters_a_body(seed):
    rng = np.random.default_rng(seed)
    pose = np.eye(4)
    pose[:3, :3] = rotation(rng.uniform(-3, 3), 0.02, -0.015)
    bodies = random_bodies(rng, 12)
    rays, _ = cast_rays(pose, 48, rng.random())
    distance, index = nearest(rays, bodies)
    step = 0.03
    marks = np.arange(step, 14, step)
    places = np.stack([rays.x, rays.y, rays.z], axis=-1)[:, :, None] * marks[:, None]
    entered = np.stack([inside(body, places) for body in bodies]).any(axis=0)
    marched = np.where(entered.any(axis=-1), marks[entered.argmax(axis=-1)], 120.0)
    # A march steps over corners thinner than its step: rays may end earlier there, never later.
    assert (distance <= marched + 1e-3).all()
    assert (np.abs(distance - marched) > 1.01 * step).mean() < 0.01
    assert ((index >= 0) == (distance < 120)).all()


def test_command_line_writes_and_tells(tmp_path):
    command = [sys.executable, "-W", "error", str(TOOLS / "simulate_scans.py"), "out", "--scans", "3"]
    command += ["--points", "5000", "--sequences", "2", "--seed", "5"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1
    assert "3 scans" in done.stdout
    assert "00, 08" in done.stdout
    assert len(list(tmp_path.glob("out/sequences/00/velodyne/*.bin"))) == 2
    assert len(list(tmp_path.glob("out/sequences/08/velodyne/*.bin"))) == 1
    simulate(tmp_path / "api", scans=3, points=5_000, sequences=2, seed=5, workers=0)
    assert digests(tmp_path / "api") == digests(tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--points", "4999"], "4999 points a scan: expected 5000 to 130000"),
        (["--points", "130001"], "130001 points a scan: expected 5000 to 130000"),
        (["--sequences", "23"], "23 sequences: expected 1 to 22"),
        (["--scans", "2", "--sequences", "3"], "2 scans for 3 sequences"),
        (["--scans", "20001"], "at most 20000"),
        (["--seed", "-1"], "seed -1"),
        (["--workers", "-1"], "-1 workers"),
        (["--points", "many"], "invalid int value"),
    ],
)
def test_command_line_refuses_wrong_numbers(arguments, said, tmp_path, capsys):
    with pytest.raises(SystemExit) as refused:
        simulate_scans.main([str(tmp_path / "out"), *arguments])
    assert refused.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_command_line_tells_what_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert simulate_scans.main([str(tmp_path / "file"), "--scans", "1"]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit) as ended:
        simulate_scans.main(["--help"])
    assert ended.value.code == 0
    assert "--scans 200 --points 130000" in capsys.readouterr().out


def test_what_is_there_is_replaced_only_if_asked(tmp_path):
    simulate(tmp_path, scans=3, points=5_000)
    before = digests(tmp_path)
    foreign = [tmp_path / "notes.txt", tmp_path / "sequences/00/velodyne/readme.txt"]
    foreign += [tmp_path / "sequences/00/predictions.bin", tmp_path / "sequences/99/velodyne/000000.bin"]
    foreign[-1].parent.mkdir(parents=True)
    for path in foreign:
        path.write_text("mine")
    with pytest.raises(SimulationError, match="--overwrite"):
        simulate(tmp_path, scans=2, points=5_000, seed=1)
    assert before.items() <= digests(tmp_path).items()
    simulate(tmp_path, scans=2, points=5_000, seed=1, overwrite=True)
    assert all(path.read_text() == "mine" for path in foreign)
    assert [path.name for path in sorted(tmp_path.glob("sequences/00/velodyne/*.bin"))] == [
        "000000.bin",
        "000001.bin",
    ]


def test_a_write_that_fails_leaves_no_file_in_part(tmp_path, monkeypatch):
    def full(path, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        simulate(tmp_path, scans=1, points=5_000)
    assert not [name for name in digests(tmp_path) if name.endswith((".bin", ".label", ".txt"))]
