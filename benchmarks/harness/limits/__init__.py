"""Limits of the machine, measured beside the contenders: copying memory, reading the disk, decoding JPEGs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.contender import Limit
from benchmarks.harness.data import ScanData
from benchmarks.harness.machine import cores


def memcpy_limits(data: ScanData, batch_size: int, threads: Sequence[int] = ()) -> tuple[Limit, ...]:
    """Copying the scans' bytes into a buffer as large as a batch; the limit with the most threads binds.

    Args:
        data: the scans.
        batch_size: scans a batch.
        threads: numbers of threads; by default one, and one for each core.
    """
    counts = sorted(threads or {1, cores()})
    files = [str(path) for pair in zip(data.scans, data.labels, strict=True) for path in pair]
    options = {"files": files, "buffer_bytes": batch_size * data.scan_bytes}
    return tuple(
        Limit(
            f"memcpy:{count}",
            f"{__name__}.memcpy:open_limit",
            {**options, "threads": count},
            binding=count == counts[-1],
        )
        for count in counts
    )


def disk_limit(files: Sequence[Path]) -> Limit:
    """Reading these files from start to end."""
    return Limit("disk", f"{__name__}.disk:open_limit", {"files": [str(file) for file in files]})


def decode_limit(files: Sequence[Path] = ()) -> Limit:
    """Decoding these JPEGs, or made-up ones, with a thread for each core."""
    options = {"files": [str(file) for file in files], "threads": cores()}
    return Limit("decode", f"{__name__}.decode:open_limit", options, per="samples")
