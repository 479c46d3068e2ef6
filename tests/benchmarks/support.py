"""What the harness's tests share: a command of chosen peers, run in this process."""

import json
from pathlib import Path

from benchmarks.harness.command import main
from benchmarks.harness.contender import Contender, Limit
from benchmarks.harness.delivery import Delivery
from benchmarks.harness.scenario import Command, Scenario

DELIVERY = Delivery(("points", "semantic"), "offset")


def contender(name, peer, /, delivery=DELIVERY, **options):
    return Contender(name, f"tests.benchmarks.odd_peers:{peer}", options, delivery)


def command(contenders, limits=(), reference="reference"):
    """A command that runs these, and needs no data."""

    def build(options, place):
        place.folder.mkdir(exist_ok=True)
        return Scenario(
            title="peers of the tests",
            contenders=tuple(contenders),
            limits=tuple(limits),
            reference=reference,
            data={},
            data_line="no data",
            files=(),
        )

    return Command("odd", "Odd peers.", "  none\n", lambda parser: None, build)


def run(tmp_path: Path, contenders, *arguments, limits=(), reference="reference"):
    """Exit code and JSON of a run."""
    out = tmp_path / "out.json"
    code = main(command(contenders, limits, reference), [str(tmp_path / "work"), "--json", str(out), *arguments])
    return code, json.loads(out.read_text())


def memcpy_of(path: Path) -> Limit:
    path.write_bytes(bytes(100_000))
    options = {"files": [str(path)], "buffer_bytes": 100_000, "threads": 1}
    return Limit("memcpy:1", "benchmarks.harness.limits.memcpy:open_limit", options)


def named(entries, name):
    return next(entry for entry in entries if entry["name"] == name)
