"""`fastload repair` at the command line: exit codes, what goes where, and the JSON object."""

import json
import shutil

import pytest

import fastload
from tests.support import run_fastload, tree_bytes


@pytest.fixture
def damaged(packed, tmp_path):
    """A dataset with a bit flipped in the data of one sample, and the name of that sample."""
    root = tmp_path / "d"
    shutil.copytree(packed, root)
    dataset = fastload.PackedDataset(root)
    info = dataset.info(4)
    shard = bytearray((root / info.shard).read_bytes())
    needle = dataset[4]["points"].tobytes()
    shard[shard.index(needle) + 100] ^= 1
    (root / info.shard).write_bytes(shard)
    dataset.close()
    return root, info.name


def test_a_sound_dataset_is_left_alone(packed):
    done = run_fastload("repair", packed)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nothing to rebuild\nok: 6 samples in")


def test_missing_files_are_rebuilt(packed, tmp_path):
    root = tmp_path / "d"
    shutil.copytree(packed, root)
    (root / "dataset.json").unlink()
    (root / "names.bin").unlink()
    plan = run_fastload("repair", root, "--dry-run")
    assert plan.returncode == 0
    assert plan.stdout.startswith("would be rebuilt: names.bin, dataset.json\n")
    assert "dataset.json" not in tree_bytes(root)
    done = run_fastload("repair", root)
    assert done.returncode == 0
    assert done.stdout.startswith("rebuilt: names.bin, dataset.json\n")
    assert tree_bytes(root) == tree_bytes(packed)


def test_damage_that_remains_is_1_and_named(damaged):
    root, name = damaged
    done = run_fastload("repair", root)
    assert done.returncode == 1
    assert f"sample {name}, field points" in done.stderr
    assert "--drop-damaged" in done.stderr
    assert "1 problem left" in done.stdout
    quiet = run_fastload("repair", root, "--quiet")
    assert (quiet.returncode, quiet.stdout) == (1, "")
    assert name in quiet.stderr


def test_what_is_left_out_is_listed(damaged):
    root, name = damaged
    done = run_fastload("repair", root, "--drop-damaged", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert list(report)[:2] == ["schema", "fastload_version"]
    assert report["schema"] == "fastload.repair/1"
    assert (report["ok"], report["samples"], report["problems"]) == (True, 5, [])
    assert [problem["sample"] for problem in report["dropped"]] == [name]
    assert run_fastload("verify", root).returncode == 0
    assert "left out by fastload repair: 1 sample" in run_fastload("info", root).stdout
    assert name not in run_fastload("ls", root).stdout.splitlines()
    again = run_fastload("repair", root)
    assert again.returncode == 0
    assert again.stdout.startswith("nothing to rebuild\nok: 5 samples in")
    assert "left out by fastload repair: 1 sample (earlier)" in again.stderr


@pytest.mark.parametrize(("arguments", "code"), [(["nothere"], 2), (["."], 1), ([], 2), (["--drop-damage"], 2)])
def test_wrong_usage_is_2_and_no_dataset_is_1(arguments, code, tmp_path):
    done = run_fastload("repair", *arguments) if arguments != ["."] else run_fastload("repair", tmp_path)
    assert done.returncode == code
    assert done.stderr
    assert "Traceback" not in done.stderr
