"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness.process import REPO

PACKAGES = ("torch", "numpy", "lmdb", "fastload")


def cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def machine_facts(data: Path) -> dict[str, Any]:
    """Machine, system and versions as plain JSON values; unknown is None."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cores_usable": cores(),
        "cgroup_cpu_max": _read(Path("/sys/fs/cgroup/cpu.max")),
        "memory_bytes": psutil.virtual_memory().total,
        "cgroup_memory_max": _read(Path("/sys/fs/cgroup/memory.max")),
        "load_average_1min": os.getloadavg()[0],
        "kernel": f"{platform.system()} {platform.release()}",
        "huge_pages": _read(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "file_system": file_system(data),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
    }


def describe_machine(facts: Mapping[str, Any]) -> str:
    """The facts in a line for people."""
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items() if version)
    return (
        f"{facts['cpu'] or 'unknown CPU'}, {facts['cores_usable']} of {facts['cores']} cores,"
        f" {facts['memory_bytes'] / 2**30:.1f} GiB; {facts['kernel']}; {facts['file_system'] or 'unknown file system'};"
        f" Python {facts['python']}, {packages}; commit {facts['commit'] or 'unknown'}"
    )


def file_system(path: Path) -> str | None:
    """Type of the file system that `path` lies on; None where /proc does not tell."""
    mounts = _read(Path("/proc/self/mountinfo"))
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in (mounts or "").splitlines():
        mount, _, kind = line.partition(" - ")
        if mount.split()[2] == wanted:
            return kind.split()[0]
    return None


def _cpu_model() -> str | None:
    lines = (_read(Path("/proc/cpuinfo")) or "").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine() or None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit that is checked out, and whether files differ from it; None without git."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return f"{commit}, changed" if _git("status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(REPO), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
