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


def _shared_memory() -> set[str]:
    """Files of shared tensors in /dev/shm that this process or a child of it made: their names hold its number."""
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    names = os.listdir("/dev/shm") if Path("/dev/shm").is_dir() else []
    return {name for name in names if any(f"_{pid}_" in name for pid in own)}


def _children() -> set[int]:
    helpers = ("resource_tracker", "forkserver")
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            if not any(word in " ".join(child.cmdline()) for word in helpers):
                found.add(child.pid)
        except psutil.Error:
            continue
    return found


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """No process, descriptor, thread or shared memory is left by a test."""
    files, shared, threads, children = _open_files(), _shared_memory(), set(threading.enumerate()), _children()
    yield
    gc.collect()
    left = {fd: target for fd, target in _open_files().items() if files.get(fd) != target}
    assert not left, f"descriptors left open: {left}"
    assert not _shared_memory() - shared, "files left in /dev/shm"
    new_threads = [t.name for t in set(threading.enumerate()) - threads if t.is_alive() and not t.daemon]
    assert not new_threads, f"threads left: {new_threads}"
    assert not _children() - children, "child processes left"


@pytest.fixture(scope="session")
def samples_folder() -> Path:
    """The folder of real files, where the checkout has one beside it."""
    if not SAMPLES.is_dir():
        pytest.skip(f"real sample files are not at {SAMPLES}")
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
