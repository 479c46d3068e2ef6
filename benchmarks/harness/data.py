"""The scans that scenarios read: made once into a work folder, as loose files and packed, and used again there."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastload
from benchmarks.harness.errors import BenchmarkError, UsageError
from benchmarks.harness.process import REPO
from benchmarks.harness.scenario import Workplace

RECORD = "data.json"
RECORD_SCHEMA = "fastload.benchmark_data/1"
SCANS, PACKED = "scans", "packed"
SIMULATOR = REPO / "tools" / "simulate_scans.py"
PACK = (sys.executable, "-c", "import sys; from fastload.cli.main import main; sys.exit(main())", "pack")
"""Not `-m fastload`: that would put the current folder first on the path."""
WRONG_USAGE = 2
"""The exit code by which both commands say that an option is wrong; a last line says which."""

Origin = Mapping[str, Any]


@dataclass(frozen=True)
class ScanData:
    """Scans with labels, twice: as the SemanticKITTI layout has them, and packed.

    Attributes:
        source: the folder with `sequences/`.
        packed: the packed dataset.
        origin: where they come from, and how many and large they were asked to be.
        scans: the `.bin` files, sorted; each has a `.label` file.
        source_bytes: size of scans and labels.
    """

    source: Path
    packed: Path
    origin: Origin
    scans: tuple[Path, ...]
    source_bytes: int

    @property
    def labels(self) -> tuple[Path, ...]:
        """The `.label` file of each scan."""
        return tuple(label_of(scan) for scan in self.scans)

    @property
    def shards(self) -> tuple[Path, ...]:
        """The packed dataset's shards."""
        return tuple(sorted((self.packed / "shards").iterdir()))

    @property
    def scan_bytes(self) -> int:
        """Size of an average scan with its labels."""
        return self.source_bytes // len(self.scans)

    def to_json(self) -> dict[str, Any]:
        """Facts as plain JSON values."""
        return {"origin": dict(self.origin), "samples": len(self.scans), "source_bytes": self.source_bytes}

    def describe(self) -> str:
        """The facts in a line for people."""
        what = "simulated scans" if "points" in self.origin else f"scans of {self.origin['source']}"
        return f"{len(self.scans)} {what}, {self.source_bytes / 1e6:,.0f} MB of files"


def label_of(scan: Path) -> Path:
    """The label file that belongs to a scan."""
    return scan.parents[1] / "labels" / f"{scan.stem}.label"


def origin_of(options: argparse.Namespace) -> Origin:
    """Where the scans come from, by the options of `add_scan_options`. Raises `UsageError`."""
    if options.source is None:
        return {"scans": options.scans, "points": options.points}
    if not options.source.is_dir():
        raise UsageError(f"--source {options.source}: there is no such folder; expected one with sequences/NN/velodyne")
    return {"scans": options.scans, "source": str(options.source.resolve())}


def prepare_scans(place: Workplace, origin: Origin) -> ScanData:
    """The scans in the work folder, made if they are not there.

    Raises:
        UsageError: the folder holds scans of another origin, or that no benchmark made.
        BenchmarkError: they cannot be made.
    """
    source, packed = place.folder / SCANS, place.folder / PACKED
    _check_folder(place.folder, origin)
    if not source.exists():
        _make_source(place, origin, source)
    scans = tuple(sorted(source.glob("sequences/*/velodyne/*.bin")))
    if not (packed / "dataset.json").exists():
        shutil.rmtree(packed, ignore_errors=True)  # left of a run that was interrupted
        _run(place, [*PACK, str(source), str(packed), "--quiet"], "packing the scans")
    size = sum(path.stat().st_size for scan in scans for path in (scan, label_of(scan)))
    _check_packed(packed, len(scans))
    return ScanData(source, packed, origin, scans, size)


def _check_folder(folder: Path, origin: Origin) -> None:
    """See that the folder's scans are those that are asked for, or that it has none yet."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: is no folder; choose another name")
    if (folder / SCANS).exists() and (folder / RECORD).exists():
        _check_record(folder / RECORD, _record(origin))
        return
    taken = next((name for name in (SCANS, PACKED) if (folder / name).exists()), None)
    if taken and not (folder / RECORD).exists():
        raise UsageError(
            f"{folder / taken}: is there, but no {RECORD} beside it says what it is; choose another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)


def _record(origin: Origin) -> dict[str, Any]:
    return {"schema": RECORD_SCHEMA, "origin": dict(origin)}


def _check_record(record: Path, wanted: Mapping[str, Any]) -> None:
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
        origin, schema = found["origin"], found["schema"]
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{record}: cannot be read as what a benchmark wrote; choose another folder") from None
    if schema == wanted["schema"] and origin == wanted["origin"]:
        return
    raise UsageError(
        f"{record}: the scans there were made with {_words(origin)}; asked for is {_words(wanted['origin'])};"
        " give the same settings, or another folder, or remove this one"
    )


def _words(origin: Mapping[str, Any]) -> str:
    return " ".join(f"--{name} {value}" for name, value in origin.items())


def _make_source(place: Workplace, origin: Origin, source: Path) -> None:
    """Simulate or copy under another name first, so that the folder is never there in part."""
    partial, packed = source.with_name(f"{source.name}.partial"), source.with_name(PACKED)
    shutil.rmtree(partial, ignore_errors=True)
    if "source" in origin:
        place.say(f"copying {origin['scans']} scans of {origin['source']}")
        _copy_scans(Path(origin["source"]), partial, origin["scans"])
    else:
        _simulate(place, origin, partial)
    shutil.rmtree(packed, ignore_errors=True)  # it was packed from other scans
    (place.folder / RECORD).write_text(json.dumps(_record(origin), indent=1) + "\n", encoding="utf-8")
    partial.rename(source)


def _simulate(place: Workplace, origin: Origin, out: Path) -> None:
    amounts = ["--scans", origin["scans"], "--points", origin["points"], "--sequences", min(2, origin["scans"])]
    command = [sys.executable, str(SIMULATOR), str(out), *map(str, amounts)]
    _run(place, command, f"simulating {origin['scans']} scans")


def _copy_scans(source: Path, target: Path, count: int) -> None:
    """Copy so many scans that have labels, evenly spread over all."""
    labelled = [scan for scan in sorted(source.glob("sequences/*/velodyne/*.bin")) if label_of(scan).is_file()]
    if len(labelled) < count:
        raise UsageError(
            f"--source {source}: {len(labelled)} scans with labels (sequences/NN/velodyne/*.bin, labels/*.label);"
            f" expected {count} or more; set --scans"
        )
    for number in range(count):
        scan = labelled[number * len(labelled) // count]
        for path in (scan, label_of(scan)):
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def _run(place: Workplace, command: list[str], what: str) -> None:
    """Run a command to its end; its output is shown when it fails."""
    place.say(what)
    process = place.guard.start(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with process:
        output, _ = process.communicate()
    place.guard.end(process)
    if process.returncode:
        kind = UsageError if process.returncode == WRONG_USAGE else BenchmarkError
        words = (output.strip() or f"exit code {process.returncode}").splitlines()
        raise kind(f"{what}: {words[-1] if kind is UsageError else '; '.join(words)}")


def _check_packed(packed: Path, scans: int) -> None:
    info = fastload.info(packed)
    if info.samples != scans:
        raise BenchmarkError(
            f"{packed}: {info.samples} samples; {SCANS}/ has {scans} scans; remove it, to have it packed again"
        )
