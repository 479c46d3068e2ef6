"""No process outlives a benchmark, however it ends."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from benchmarks.harness.guard import ProcessGuard
from tests.support import REPO

START = """
import sys
from benchmarks.harness.command import main
from tests.benchmarks.support import command, contender
contenders = [contender("reference", "Good"), contender("hanging", "Hanging", pids=sys.argv[1])]
sys.exit(main(command(contenders), [sys.argv[2], "--rounds", "1"]))
"""
DEADLINE_S = 30.0


def gone(pid):
    """Whether a process has ended; who adopted it need not have asked for its exit code yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def all_gone(pids):
    return wait_until(lambda pids=tuple(pids): all(map(gone, pids)))


def wait_until(is_so):
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if is_so():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def hanging(tmp_path):
    """A benchmark in a process of its own, in the midst of a round that never ends; all processes of it."""
    pids = tmp_path / "pids"
    arguments = [sys.executable, "-c", START, str(pids), str(tmp_path / "work")]
    with subprocess.Popen(arguments, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        try:
            assert wait_until(pids.exists)
            children = [child.pid for child in psutil.Process(parent.pid).children(recursive=True)]
            assert len(children) >= 4, "the watch, two contenders, and what one of them started"
            yield parent, [*children, *map(int, pids.read_text().split())]
        finally:
            parent.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_benchmark_that_is_killed_takes_all_with_it(hanging, number):
    parent, pids = hanging
    parent.send_signal(number)
    parent.wait()
    assert all_gone(pids)


def test_ctrl_c_ends_all_and_says_so(hanging):
    parent, pids = hanging
    parent.send_signal(signal.SIGINT)
    _, messages = parent.communicate(timeout=DEADLINE_S)
    assert parent.returncode == 130
    assert all(map(gone, pids)), "before the benchmark itself ends"
    assert b"interrupted" in messages
    assert b"Traceback" not in messages


def test_the_guard_ends_what_left_its_group(tmp_path):
    code = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)"
    with ProcessGuard() as guard:
        process = guard.start([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        with process:
            pid = int(process.stdout.readline())
            process.stdout.close()
            assert not gone(pid)
        guard.end(process)
        assert all_gone([pid])
        guard.end(process)  # a second time does nothing


def test_a_guard_that_lost_its_watch_still_ends_all():
    with ProcessGuard() as guard:
        watch = next(child for child in psutil.Process().children() if "guard.py" in " ".join(child.cmdline()))
        os.kill(watch.pid, signal.SIGKILL)
        wait_until(lambda: gone(watch.pid))
        process = guard.start(["sleep", "600"])
    assert process.returncode == -signal.SIGKILL
