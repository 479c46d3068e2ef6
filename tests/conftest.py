"""Fixtures that all tests share. Every test is held to leave nothing behind."""

import gc
import os
import threading
from pathlib import Path

import psutil
import pytest

SAMPLES = Path(__file__).resolve().parents[2] / "shared" / "samples"
PASSING = ("anon_inode", "pipe:", "socket:", "/dev/", "/proc/")
"""Descriptors that pytest, torch and multiprocessing keep for the whole run."""


def _open_files() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if not target.startswith(PASSING):
            found[fd] = target
    return found


def _children() -> dict[int, str]:
    """The living children, their own included, but for the helpers that multiprocessing keeps for the whole run."""
    found = {}
    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline())
        except psutil.Error:
            continue
        if "resource_tracker" not in command and "forkserver" not in command:
            found[child.pid] = command
    return found


def _shared_memory() -> set[str]:
    """Files of shared tensors in /dev/shm that this process made: their names hold its number."""
    names = os.listdir("/dev/shm") if Path("/dev/shm").is_dir() else []
    return {name for name in names if f"_{os.getpid()}_" in name}


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.is_alive() and not thread.daemon}


def _state() -> dict[str, set[object]]:
    return {
        "descriptors": set(_open_files().items()),
        "files in /dev/shm": set(_shared_memory()),
        "threads": set(_threads()),
        "processes": set(_children().items()),
    }


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """No process, descriptor, thread or shared memory is left by a test."""
    before = _state()
    yield
    left = _left(before)
    if left:
        gc.collect()  # slow with torch loaded, so only where something is left that a cycle may hold
        left = _left(before)
    assert not left, f"left behind: {left}"


def _left(before: dict[str, set[object]]) -> dict[str, set[object]]:
    return {what: now - before[what] for what, now in _state().items() if now - before[what]}


@pytest.fixture(scope="session")
def samples_folder() -> Path:
    """The folder of real files, where the checkout has one beside it."""
    if not SAMPLES.is_dir():
        pytest.skip("the real sample files, which may not be published, are not in ../shared/samples")
    return SAMPLES


@pytest.fixture(scope="session")
def scans(tmp_path_factory) -> Path:
    """A simulated SemanticKITTI tree: 3 scans in sequence 00 (train), 3 in 08 (val), about 5,000 points each."""
    from scan_simulator import simulate

    root = tmp_path_factory.mktemp("scans") / "source"
    simulate(root, scans=6, points=5000, sequences=2, seed=7, workers=1)
    return root


@pytest.fixture(scope="session")
def packed(scans, tmp_path_factory) -> Path:
    """The simulated scans, packed into several shards. Not to be changed: tests that damage it copy it."""
    import fastload

    root = tmp_path_factory.mktemp("packed") / "dataset"
    fastload.pack(scans, root, shard_size=300_000)
    return root
