"""The scenarios end to end, on a few small scans, as a user runs them."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

import fastload
from tests.support import REPO

SCANS = 6
POINTS_BYTES, LABEL_BYTES, INT32_LABEL_BYTES = 16, 4, 8


def run_scenario(name, *arguments, cwd=REPO):
    command = [sys.executable, str(REPO / "benchmarks" / f"{name}.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=cwd)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("benchmark") / "work"


def small(scans):
    return ["--source", scans, "--scans", SCANS, "--rounds", 2]


def points_of(scans):
    return sum(path.stat().st_size for path in scans.rglob("*.bin")) // POINTS_BYTES


def test_scans_hot(work, scans, tmp_path):
    out = tmp_path / "out.json"
    done = run_scenario("scans_hot", work, *small(scans), "--batch-size", 4, "--workers", "0,1", "--json", out, cwd="/")
    assert done.returncode == 0, done.stderr
    names = ["loose-files:0", "loose-files:1", "packed-dataset:0", "packed-dataset:1"]
    report = json.loads(out.read_text())
    assert (report["schema"], report["scenario"], report["reference"]) == (
        "fastload.benchmark/1",
        "scans_hot",
        names[0],
    )
    assert [entry["name"] for entry in report["contenders"]] == names
    digests = {entry["content"]["digest"] for entry in report["contenders"]}
    assert len(digests) == 1
    nbytes = points_of(scans) * (POINTS_BYTES + INT32_LABEL_BYTES)
    for entry in report["contenders"]:
        assert entry["status"] == "ok"
        assert all((figures["samples"], figures["nbytes"]) == (SCANS, nbytes) for figures in entry["rounds"])
        assert entry["summary"]["to_limit"]["median"] > 0
    assert report["data"]["cached_after"] in (None, 1.0)
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 120
    assert [line.split()[0] for line in lines if line.startswith(("loose", "packed-"))] == names
    assert "round 2 of 2" in done.stderr
    assert "round" not in done.stderr.partition("warm-up")[0]


def test_scans_single(work, scans, tmp_path):
    out = tmp_path / "out.json"
    done = run_scenario("scans_single", work, *small(scans), "--json", out)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    nbytes = points_of(scans) * (POINTS_BYTES + LABEL_BYTES)
    assert [entry["content"]["nbytes"] for entry in report["contenders"]] == [nbytes, nbytes]


def test_packing(work, scans, tmp_path):
    out = tmp_path / "out.json"
    done = run_scenario("packing", work, *small(scans), "--json", out)
    assert done.returncode == 0, done.stderr
    copied, packed = json.loads(out.read_text())["contenders"]
    assert copied["content"] == packed["content"]
    assert packed["summary"]["to_reference"]["median"] > 0
    assert sorted(path.name for path in work.iterdir()) == ["data.json", "packed", "scans"]


def test_machine_limits(work, scans):
    done = run_scenario("machine_limits", work, *small(scans))
    assert done.returncode == 0, done.stderr
    shown = [line.split()[0] for line in done.stdout.splitlines() if line.startswith(("memcpy", "disk ", "decode "))]
    assert shown[0] == "memcpy:1"
    assert shown[-2:] == ["disk", "decode"]


def test_simulated_scans_are_made_once_and_used_again(tmp_path):
    settings = ["--scans", 3, "--points", 5000, "--rounds", 1, "--only", "packed-dataset:0"]
    first = run_scenario("scans_hot", tmp_path / "work", *settings)
    assert first.returncode == 0, first.stderr
    assert "simulating 3 scans" in first.stderr
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.bin")}
    assert len(made) == 4, "three scans, and the names of the packed dataset"
    again = run_scenario("scans_hot", tmp_path / "work", *settings)
    assert again.returncode == 0, again.stderr
    assert "simulating" not in again.stderr
    assert {path: path.stat().st_mtime_ns for path in made} == made
    other = run_scenario("scans_hot", tmp_path / "work", "--scans", 4, "--points", 5000)
    assert other.returncode == 2
    assert "data.json: the scans there were made with --scans 3 --points 5000" in other.stderr
    assert "asked for is --scans 4 --points 5000" in other.stderr


def test_scans_of_a_source_are_spread_over_it(work, scans, tmp_path):
    done = run_scenario("scans_single", tmp_path / "work", "--source", scans, "--scans", 2, "--rounds", 1)
    assert done.returncode == 0, done.stderr
    taken = sorted(path.relative_to(tmp_path / "work/scans") for path in (tmp_path / "work/scans").rglob("*.bin"))
    assert [str(path) for path in taken] == ["sequences/00/velodyne/000000.bin", "sequences/08/velodyne/000000.bin"]
    assert all((tmp_path / "work/scans" / path).read_bytes() == (scans / path).read_bytes() for path in taken)


def test_work_that_was_interrupted_is_done_again(scans, tmp_path):
    work = tmp_path / "work"
    settings = [work, "--source", scans, "--scans", 2, "--rounds", 1, "--only", "packed-dataset"]
    assert run_scenario("scans_single", *settings).returncode == 0
    (work / "packed" / "dataset.json").unlink()
    (work / "scans").rename(work / "scans.partial")
    settings[4] = 3  # other settings do not matter where there are no scans
    done = run_scenario("scans_single", *settings)
    assert done.returncode == 0, done.stderr
    assert fastload.info(work / "packed").samples == 3


def test_a_damaged_dataset_is_a_contender_that_fails(scans, tmp_path):
    settings = [tmp_path / "work", "--source", scans, "--scans", 2, "--rounds", 1, "--only", "packed-dataset"]
    assert run_scenario("scans_single", *settings).returncode == 0
    shard = tmp_path / "work/packed/shards/00000.lmdb"
    shard.write_bytes(shard.read_bytes()[:-5000])
    done = run_scenario("scans_single", *settings)
    assert done.returncode == 1
    assert "packed-dataset: FAILED: CorruptError" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(("arguments", "words"), [
    (["--rounds", "0"], "found '0'; expected a whole number, 1 or more"),
    (["--workers", "0,x"], "found 'x'"),
    (["--workers", "2,2"], "expected each number of workers once"),
    (["--timeout", "nan"], "expected seconds"),
    (["--json", "/no/such/folder/out.json"], "there is no folder /no/such/folder; make it first"),
    (["--json", "/"], "is a folder"),
    (["--source", "/no/such/folder"], "--source /no/such/folder: there is no such folder"),
    (["--points", "7"], "scans_hot: simulating 2 scans: simulate_scans.py: error: 7 points a scan: expected 5000"),
])  # fmt: skip
def test_wrong_usage_is_explained(tmp_path, arguments, words):
    done = run_scenario("scans_hot", tmp_path / "work", "--scans", 2, *arguments)
    assert done.returncode == 2, done.stderr
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_wrong_usage_of_folders_and_names(work, scans, tmp_path):
    (tmp_path / "scans").mkdir()
    done = run_scenario("scans_hot", tmp_path)
    assert (done.returncode, "no data.json beside it" in done.stderr) == (2, True), done.stderr
    file = tmp_path / "file"
    file.write_text("")
    done = run_scenario("scans_hot", file)
    assert (done.returncode, "is no folder" in done.stderr) == (2, True), done.stderr
    done = run_scenario("scans_hot", tmp_path / "few", "--source", scans, "--scans", 99)
    assert (done.returncode, "6 scans with labels" in done.stderr) == (2, True), done.stderr
    run_scenario("scans_single", work, *small(scans))
    done = run_scenario("scans_hot", work, *small(scans), "--only", "tape")
    assert (done.returncode, "--only tape: no contender" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("name", ["scans_hot", "scans_single", "packing", "machine_limits"])
def test_help_has_examples(name):
    done = run_scenario(name, "--help")
    assert done.returncode == 0
    assert f"python benchmarks/{name}.py" in done.stdout
    assert "exit codes" in done.stdout


def test_the_peer_of_the_readme_takes_part_as_it_stands(scans, tmp_path):
    """Its file and its line, pasted into a copy of the benchmarks: the right content, and figures."""
    text = (REPO / "benchmarks/README.md").read_text()
    peer, entry = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    file = re.search(r"a whole one, `(peers/\w+\.py)`", text)[1]
    (command,) = re.findall(r"^`python benchmarks/scans_hot.py WORK (--only .*?)`", text, re.MULTILINE)
    shutil.copytree(REPO / "benchmarks", tmp_path / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "benchmarks" / file).write_text(peer)
    scenario = tmp_path / "benchmarks/scans_hot.py"
    before, mark, rest = scenario.read_text().partition('{"loose-files": {"scans": scans}, ')
    assert mark
    scenario.write_text(f"{before}{mark}{entry.strip()} {rest}")
    out = tmp_path / "out.json"
    words = [sys.executable, scenario, tmp_path / "work", *command.split(), *small(scans), "--json", out]
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=300, cwd="/", env=env)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    contenders = {contender["name"]: contender for contender in report["contenders"]}
    assert [(name, contender["status"]) for name, contender in contenders.items()] == [
        ("loose-files:0", "ok"), ("memory-maps:0", "ok"), ("memory-maps:2", "unavailable"),
    ]  # fmt: skip
    assert contenders["memory-maps:0"]["content"] == contenders["loose-files:0"]["content"]
    assert contenders["memory-maps:0"]["summary"]["to_reference"]["median"] > 0
