"""README.md and the two scripts that it names: what a newcomer pastes has to run as it stands."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support import REPO

SET_UP_COMMANDS = ("bash tools/demo.sh", "bash tools/test.sh")
README = (REPO / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
BASH = [code.strip() for language, code in BLOCKS if language == "bash"]
PYTHON = [code for language, code in BLOCKS if language == "python"]


def run(command, folder, **variables):
    """Run a command in a folder, with a `fastload` of this checkout and no stdin."""
    env = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def folder(tmp_path, scans, packed):
    """What the repository's folder holds after the demo: `.demo/scans`, `.demo/packed`; and a `fastload` command."""
    shutil.copytree(scans, tmp_path / ".demo" / "scans")
    shutil.copytree(packed, tmp_path / ".demo" / "packed")
    command = tmp_path / "bin" / "fastload"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fastload "$@"\n')
    command.chmod(0o755)
    return tmp_path


def test_readme_sets_up_with_two_commands():
    assert [code for code in BASH if "tools/" in code] == list(SET_UP_COMMANDS)


def test_readme_has_only_blocks_that_a_test_runs():
    assert {language for language, _ in BLOCKS} == {"", "bash", "python", "yaml"}
    assert len(PYTHON) >= 2


@pytest.mark.parametrize("code", [code for code in BASH if code not in SET_UP_COMMANDS])
def test_commands_of_the_readme_run(code, folder):
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    assert "ok: " in run(["bash", "-euo", "pipefail", "-c", code], folder, PATH=path)


def test_commands_of_the_readme_give_the_source_back(folder, scans):
    code = next(code for code in BASH if "unpack" in code)
    run(["bash", "-euc", code], folder, PATH=f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    scan = Path("sequences/08/velodyne/000000.bin")
    assert (folder / ".demo" / "mine_again" / scan).read_bytes() == (scans / scan).read_bytes()


@pytest.mark.parametrize("code", PYTHON)
def test_python_of_the_readme_runs(code, folder):
    assert run([sys.executable, "-W", "error", "-c", code], folder)


def test_training_of_the_readme_learns(folder):
    printed = run([sys.executable, "-c", next(code for code in PYTHON if "backward" in code)], folder)
    first, last = (float(loss) for loss in re.findall(r"loss ([\d.]+)", printed))
    assert last < first


def test_the_splits_of_the_readme_are_ones(folder):
    (splits,) = [code for language, code in BLOCKS if language == "yaml"]
    (folder / "splits.yaml").write_text(splits)
    printed = run([sys.executable, "-m", "fastload", "pack", ".demo/scans", "out", "--splits", "splits.yaml"], folder)
    assert "packed 6 samples (train 3, val 3)" in printed


def test_readme_names_only_verbs_and_files_that_exist():
    printed = run([sys.executable, "-m", "fastload", "--help"], REPO)
    for verb in re.findall(r"`fastload (\w+)", README):
        assert re.search(rf"^ +{verb} ", printed, re.MULTILINE), verb
    for path in re.findall(r"\]\((?!https?:)([^)]+)\)", README):
        assert (REPO / path).exists(), path


def test_ci_runs_all_checks(tmp_path):
    assert os.access(REPO / ".ci" / "run", os.X_OK)
    by_ci, by_hand = (run(["bash", str(REPO / path), "--help"], tmp_path) for path in (".ci/run", "tools/test.sh"))
    assert by_ci == by_hand
    assert "ruff, format, mypy and pytest" in by_hand


def test_demo_explains_itself_from_any_folder(tmp_path):
    printed = run(["bash", str(REPO / "tools" / "demo.sh"), "--help"], tmp_path)
    for word in ("--data", "--out", "--scans", "--points", "--seconds", "FASTLOAD_VENV", "FASTLOAD_CONSTRAINTS"):
        assert word in printed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("demo.sh", "--scan", "3"), "unknown option --scan"),
        (("demo.sh", "--points"), "--points needs a value"),
        (("demo.sh", "--data", "nowhere"), "nowhere is no folder"),
        (("test.sh", "--only", "black"), "expected one of ruff format mypy pytest"),
        (("test.sh", "--only"), "--only needs the name of a check"),
    ],
)
def test_wrong_use_is_explained(arguments, said, tmp_path):
    script, *options = arguments
    command = ["bash", str(REPO / "tools" / script), *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.1\nexit 1\n', "Python 3.9.1; Python 3.10 or newer"),
        ('#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\n', "python3-venv"),
    ],
)
def test_a_python_that_will_not_do_is_explained(python, said, tmp_path):
    fake = tmp_path / "python"
    fake.write_text(python)
    fake.chmod(0o755)
    env = {**os.environ, "PYTHON": str(fake), "FASTLOAD_VENV": str(tmp_path / "venv")}
    command = ["bash", str(REPO / "tools" / "test.sh")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert said in done.stderr
    assert not (tmp_path / "venv").exists()


@pytest.mark.slow
def test_demo_runs_and_its_last_lines_too(tmp_path):
    """The demo from another folder, smaller than by default, in this environment; then what it says to paste."""
    demo = ["bash", str(REPO / "tools" / "demo.sh"), "--out", "out dir", "--scans", "40", "--points", "8000"]
    printed = run([*demo, "--seconds", "15"], tmp_path, FASTLOAD_VENV=sys.prefix)
    assert "check passed" in printed
    assert re.search(r"waited for data: [\d.]+ % of the loop", printed)
    lines = re.search(r"In your own code:\n\n((?: {4}.*\n|\n)+)", printed).group(1)
    code = textwrap.dedent(lines)
    assert str(tmp_path / "out dir" / "packed") in code
    report = "\nprint(points.shape, labels.dtype, offset.tolist()[-1] == len(points))"
    assert run([sys.executable, "-W", "error", "-c", code + report], tmp_path).endswith("torch.int64 True\n")
