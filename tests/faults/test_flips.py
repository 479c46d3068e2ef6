"""Every byte of a dataset flipped, every page of a shard cut off: found and named, and never wrong data.

A small dataset holds in one shard all that a shard can hold. Each damage is done to the file in place, then
the dataset is verified and read through newly opened objects, in child processes that may die without ending
the tests. What is right comes from the arrays that were written, and from where LMDB itself says its values lie.
The same proof is run on readers and verifiers that were broken on purpose: it has to fail on them.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import lmdb
import numpy as np
import pytest

import fastload
from fastload.errors import CorruptError, FastloadError
from fastload.packing import verify_shard as verification
from fastload.schema import Field, Schema
from fastload.store.attachments import read_attachments
from fastload.store.reader import open_store
from fastload.store.record import ATTACHMENT_BIT, INFO_KEY
from tests.support import REPO, MadeSample, same, write_store

SEED = 1
PARTS = 2
"""How many child processes share the damages."""
SECONDS_A_DAMAGE = 10
"""Verifying and reading this dataset takes milliseconds."""
PAGE = 4096
META_BYTES = 152
"""What LMDB uses of each of the first two pages."""
SHARD = "shards/00000.lmdb"
MANIFEST, NAMES = "dataset.json", ("names.bin", "names.npy")
SIDE_FILES = ("index.npy", *NAMES, MANIFEST)
SCHEMA = Schema(
    (
        Field("points", dtype="float32", shape=(4,), rows="points", columns=("x", "y", "z", "intensity")),
        Field("semantic", dtype="uint16", rows="points"),
        Field("pose", dtype="float64", shape=(4, 4)),
    )
)
LARGE = 4
"""The sample whose record is too large for a leaf page."""


# --- the dataset, and what is right


def arrays_of(number):
    """The arrays of one sample: random, so that each is found again in the bytes; one sample has no labels."""
    rng = np.random.default_rng(number)
    count = 190 if number == LARGE else 7 + number
    arrays = {"points": rng.random((count, 4), np.float32)}
    if number != 2:
        arrays["semantic"] = rng.integers(256, 65536, count).astype(np.uint16)
    return arrays | {"pose": rng.random((4, 4))}


NUMBERS = range(7)
SPLITS = {"pr\u00fcfung": ((0, 3),), "train": ((3, 7),)}
SPLIT_OF = {number: split for split, parts in SPLITS.items() for start, stop in parts for number in range(start, stop)}
NAME_OF = {number: f"{SPLIT_OF[number]}/{number:03d}\u00e4" for number in NUMBERS}
ATTACHMENTS = {
    "calib.txt": np.random.default_rng(100).bytes(150),
    "tables/large.json": np.random.default_rng(101).bytes(2500),
}


def write_dataset(root):
    """Small samples in leaf pages below a branch page, a large one and a large attachment in pages of their own."""
    samples = [MadeSample(NAME_OF[number], SPLIT_OF[number], arrays_of(number)) for number in NUMBERS]
    # Two commits: the second leaves pages of the first behind, which nothing refers to any more.
    ordered = write_store(root, SCHEMA, samples, per_shard=len(samples), commit_bytes=9000, attachments=ATTACHMENTS)
    assert [sample.name for sample in ordered] == list(NAME_OF.values())
    return root


@dataclass(frozen=True)
class Region:
    """A range of the shard's bytes that belongs to a record, or to a field's bytes within one."""

    start: int
    stop: int
    key: int
    field: str | None = None


def regions_of(shard):
    """Where LMDB has the records, and in them the fields' bytes as they were written."""
    found = []
    data = shard.read_bytes()
    with lmdb.open(str(shard), subdir=False, lock=False, readonly=True) as env, env.begin(buffers=True) as txn:
        base = map_address(shard)
        for raw_key, value in txn.cursor():
            key = int.from_bytes(raw_key, "big")
            start = np.frombuffer(value, np.uint8).__array_interface__["data"][0] - base
            record = data[start : start + len(value)]
            assert record == bytes(value)
            found.append(Region(start, start + len(value), key))
            for name, content in contents_of(key).items():
                assert record.count(content) == 1
                place = start + record.index(content)
                found.append(Region(place, place + len(content), key, name))
            del value
    return found


def contents_of(key):
    if key in NAME_OF:
        return {name: array.tobytes() for name, array in arrays_of(key).items()}
    if key == INFO_KEY:
        return {}
    return {"data": list(ATTACHMENTS.values())[key - ATTACHMENT_BIT]}


def map_address(path):
    """Where this process has the beginning of the file mapped."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    (line,) = [line for line in lines if line[-1] == os.path.realpath(path) and int(line[2], 16) == 0]
    return int(line[0].split("-")[0], 16)


# --- one damage: what verify and reading make of it


@dataclass
class Seen:
    """What a reader gets of the dataset now: for each thing its value, or the error it ended in."""

    problems: tuple = ()
    verify_error: Exception | None = None
    samples: dict = field(default_factory=dict)
    others: dict = field(default_factory=dict)
    foreign: list = field(default_factory=list)


@dataclass(frozen=True)
class Proof:
    """What is put to the proof: a dataset, read in this mode."""

    root: Path
    mode: str = "once"

    def look(self, file=None):
        """Verify and read everything that may hang on the file, through objects opened just now."""
        seen = Seen()
        report = self._caught(seen, lambda: fastload.verify(self.root))
        if isinstance(report, Exception):
            seen.verify_error = report
        else:
            seen.problems = report.problems
            if report.ok == bool(report.problems):
                seen.foreign.append(f"ok={report.ok} with {len(report.problems)} problems")
        dataset = fastload.PackedDataset(self.root, verify=self.mode)
        for number in NUMBERS:
            seen.samples[number] = self._caught(seen, lambda n=number: dataset[n])
        for what, ask in QUESTIONS.items() if file != SHARD else ():
            seen.others[what] = self._caught(seen, lambda ask=ask: ask(dataset))
        seen.others["attachments"] = self._caught(seen, lambda: attachments_of(self.root))
        dataset.close()
        return seen

    @staticmethod
    def _caught(seen, call):
        try:
            return call()
        except FastloadError as error:
            error.__traceback__ = None  # it would keep the dataset open
            return error
        except BaseException as error:
            seen.foreign.append(f"{type(error).__name__}: {error}")
            return None


QUESTIONS = {
    "length": len,
    "names": lambda dataset: list(dataset.names),
    "counts": lambda dataset: dataset.counts.tolist(),
    "splits": lambda dataset: dataset.splits,
    "found": lambda dataset: [dataset.find(name) for name in NAME_OF.values()],
    "fields": lambda dataset: [dict(dataset.info(number).fields) for number in NUMBERS],
}
RIGHT = {
    "length": len(NUMBERS),
    "names": list(NAME_OF.values()),
    "counts": [len(arrays_of(number)["points"]) for number in NUMBERS],
    "splits": {split: sum(b - a for a, b in parts) for split, parts in SPLITS.items()},
    "found": list(NUMBERS),
    "fields": [{name: array.shape for name, array in arrays_of(number).items()} for number in NUMBERS],
    "attachments": ATTACHMENTS,
}
ARRAYS = {number: arrays_of(number) for number in NUMBERS}


def attachments_of(root):
    return {path: data.tobytes() for path, data in read_attachments(open_store(root))}


def wrong_of(seen):
    """What was given and is not what was written, and what is no error of fastload's."""
    yield from seen.foreign
    for number, sample in seen.samples.items():
        if isinstance(sample, dict) and not is_right(number, sample):
            yield f"wrong data: sample {number}"
    for what, value in seen.others.items():
        if not isinstance(value, Exception) and value != RIGHT[what]:
            yield f"wrong {what}: {value!r}"


def is_right(number, sample):
    arrays = ARRAYS[number]
    rest = {name: value for name, value in sample.items() if name not in arrays}
    return rest == {"name": NAME_OF[number], "index": number} and all(
        same(sample[name], array) for name, array in arrays.items() if name in sample
    ) and arrays.keys() <= sample.keys()  # fmt: skip


def unnoticed(seen):
    """That verify did not say anything of the damage."""
    if not seen.problems and seen.verify_error is None:
        yield "verify found nothing"


def missed_in_shard(regions, position, seen):
    """What should have been said of a flip at this position of the shard and was not."""
    yield from unnoticed(seen)
    if SHARD not in {problem.shard for problem in seen.problems}:
        yield f"verify does not name the shard: {seen.problems}"
    here = [region for region in regions if region.start <= position < region.stop]
    if not here:
        return
    region = min(here, key=lambda region: region.stop - region.start)
    yield from missed_by_verify(region, seen)
    yield from missed_by_reading(region, seen)


def missed_by_verify(region, seen):
    name = record_name(region.key)
    named = [(problem.sample, problem.field) for problem in seen.problems if problem.shard == SHARD]
    is_sample = region.key in NAME_OF
    if region.field is not None and (name, region.field) not in named:
        yield f"verify names {named}; expected {name}, {region.field}"
    elif is_sample and name not in [sample for sample, _ in named]:
        yield f"verify names {named}; expected {name}"
    if any(sample not in (name, None) for sample, _ in named):
        yield f"verify blames {named}; only {name} is damaged"


def missed_by_reading(region, seen):
    for number, found in seen.samples.items():
        if number != region.key and not isinstance(found, dict):
            yield f"sample {number} is not damaged, but cannot be read: {found}"
    if region.key == INFO_KEY:
        return
    found = seen.samples.get(region.key, seen.others["attachments"])
    if not isinstance(found, CorruptError):
        yield f"{record_name(region.key)} was read: {found!r}"
    elif found.shard != SHARD:
        yield f"the error names shard {found.shard}"
    elif region.key in NAME_OF and found.sample != NAME_OF[region.key]:
        yield f"the error names sample {found.sample}"
    elif region.key in NAME_OF and region.field not in (None, found.field):
        yield f"the error names field {found.field}, not {region.field}"


def record_name(key):
    if key == INFO_KEY:
        return None
    return NAME_OF.get(key) or list(ATTACHMENTS)[key - ATTACHMENT_BIT]


# --- the children


@contextmanager
def flipped(path, position, bit):
    fd = os.open(path, os.O_RDWR)
    try:
        before = os.pread(fd, 1, position)
        os.pwrite(fd, bytes([before[0] ^ 1 << bit]), position)
        yield
    finally:
        os.pwrite(fd, before, position)
        os.close(fd)


@contextmanager
def cut(path, size, padded):
    """The file without its end, or with zeros there; whether that is any damage."""
    data = path.read_bytes()
    os.truncate(path, size)
    if padded:
        os.truncate(path, len(data))
    try:
        yield not padded or any(data[size:])
    finally:
        with open(path, "r+b") as file:
            file.write(data)


class Child:
    """Does its part of the damages and writes what was wrong; a hang ends it by the signal of the timer."""

    def __init__(self, root, report, options):
        self.proof = Proof(root, options.get("mode", "once"))
        self.options = options
        self.failures = report.open("a")
        self.done = 0

    def judge(self, what, complaints):
        """Look at the dataset in its present state; note what is wrong with what is seen."""
        signal.setitimer(signal.ITIMER_REAL, SECONDS_A_DAMAGE)
        print(json.dumps(what), flush=True)  # where it was when it died
        self.failures.writelines(json.dumps([what, text]) + "\n" for text in complaints(self.proof.look(what[0])))
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.done += 1

    def flips(self, file):
        """Flip a random bit of each byte of the file in turn."""
        path = self.proof.root / file
        regions = regions_of(path) if file == SHARD else []
        rng = random.Random(f"{SEED} {file}")
        for position in self.options.get("places", range(path.stat().st_size)):
            bits = range(8) if self.options.get("all_bits") else [rng.randrange(8)]
            if position % self.options["parts"] != self.options["part"] or not self._wanted(position, regions):
                continue
            for bit in bits:
                with flipped(path, position, bit):
                    self.judge([file, position, bit], lambda seen, p=position: [
                        *wrong_of(seen),
                        *(missed_in_shard(regions, p, seen) if file == SHARD else unnoticed(seen)),
                    ])  # fmt: skip

    def _wanted(self, position, regions):
        if position // self.options["parts"] % self.options.get("every", 1):
            return False
        in_field = [region for region in regions if region.field and region.start <= position < region.stop]
        return bool(in_field) or not self.options.get("fields_only")

    def cuts(self, file):
        """Cut the file at every page and at odd places, and fill what is lost with zeros."""
        path = self.proof.root / file
        size = path.stat().st_size
        starts = [region.start for region in regions_of(path)]
        places = {
            *range(0, size, PAGE),
            1,
            15,
            16,
            100,
            size - 1,
            size // 2,
            size // 3,
            *starts,
            *(s + 40 for s in starts),
        }
        for number, place in enumerate(sorted(places)):
            for padded in (False, True):
                if number % self.options["parts"] == self.options["part"]:
                    with cut(path, place, padded) as damaged:
                        if damaged:
                            self.judge([file, place, padded], lambda seen: [*wrong_of(seen), *unnoticed(seen)])


def main(root, report, options):
    """What a child process runs."""
    options = json.loads(options)
    if options.get("blind"):
        # As if verify read the records and did not look at them; sizes, pages and digests are still checked.
        assert verification._check_record
        verification._check_record = lambda *_: None
    child = Child(Path(root), Path(report), options)
    for task, file in options["tasks"]:
        getattr(child, task)(file)
    child.judge(["nothing"], lambda seen: [*wrong_of(seen), *(["found"] if seen.problems else [])])
    child.failures.write(json.dumps(["done", child.done]) + "\n")
    child.failures.close()


CODE = "import sys; from tests.faults.test_flips import main; main(*sys.argv[1:])"


@dataclass(frozen=True)
class Outcome:
    """How many damages were done, and what was wrong."""

    damages: int
    failures: list


def prove(made, folder, timeout=600, **options):
    """Share the damages among child processes, each with a copy of the dataset; see that none dies."""
    children = []
    for part in range(PARTS):
        place = folder / str(part)
        shutil.copytree(made, place / "d")
        arguments = [place / "d", place / "failures", json.dumps({"part": part, "parts": PARTS, **options})]
        with (place / "trace").open("w") as trace:
            command = [sys.executable, "-W", "error", "-c", CODE, *map(str, arguments)]
            children.append(subprocess.Popen(command, cwd=REPO, stdout=trace, stderr=subprocess.PIPE, text=True))
    damages, failures = 0, []
    try:
        for part, child in enumerate(children):
            _, stderr = child.communicate(timeout=timeout)
            last = (folder / str(part) / "trace").read_text().splitlines()[-1:]
            assert child.returncode == 0, f"exit {child.returncode} at {last}, seed {SEED}: {stderr[-2000:]}"
            lines = [json.loads(line) for line in (folder / str(part) / "failures").read_text().splitlines()]
            assert lines[-1][0] == "done"
            damages += lines[-1][1]
            failures += lines[:-1]
    finally:
        for child in children:
            child.kill()
            child.communicate()
    return Outcome(damages, failures)


# --- the tests


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("flips") / "d")


def test_the_dataset_has_all_that_a_shard_can_have(made):
    """Leaf pages with several records, a branch page, records on overflow pages, free pages, both attachments."""
    data = (made / SHARD).read_bytes()
    flags = [int.from_bytes(data[start + 10 : start + 12], "little") for start in range(0, len(data), PAGE)]
    assert {0x01, 0x02, 0x04, 0x08} <= {flag & 0x0F for flag in flags}
    regions = regions_of(made / SHARD)
    records = [region for region in regions if region.field is None]
    assert [region.key for region in records] == [*NUMBERS, ATTACHMENT_BIT, ATTACHMENT_BIT + 1, INFO_KEY]
    on_their_own = [region.key for region in records if region.start % PAGE == 16]
    assert on_their_own == [LARGE, ATTACHMENT_BIT + 1]
    live = {place // PAGE for region in records for place in range(region.start, region.stop, 100)}
    live |= {flags.index(0x08), 1}
    assert len(live) < len(flags) - 1, "no free page"
    assert fastload.verify(made).ok
    assert not [*wrong_of(Proof(made).look())]


@pytest.mark.slow
def test_every_flipped_byte_of_a_shard_is_found_and_never_gives_wrong_data(made, tmp_path):
    """In a record: named by verify and by reading. Anywhere: noticed, never wrong data, a signal or a hang."""
    outcome = prove(made, tmp_path, tasks=[["flips", SHARD]])
    assert outcome.damages == (made / SHARD).stat().st_size + PARTS
    assert not outcome.failures, f"seed {SEED}: {len(outcome.failures)}, first {outcome.failures[:5]}"


def test_no_flipped_byte_of_the_first_pages_makes_attachments_disappear(made, tmp_path):
    """All attachments or an error, also where the damage lets an earlier, emptier tree of pages count."""
    places = [*range(META_BYTES), *range(PAGE, PAGE + META_BYTES)]
    outcome = prove(made, tmp_path, tasks=[["flips", SHARD]], places=places, all_bits=True)
    assert not outcome.failures, outcome.failures[:5]


def test_every_cut_of_a_shard_is_found_and_never_gives_wrong_data(made, tmp_path):
    """At page ends, in records and page heads, with the lost bytes gone or zero."""
    outcome = prove(made, tmp_path, tasks=[["cuts", SHARD]])
    assert outcome.damages > 2 * (made / SHARD).stat().st_size / PAGE
    assert not outcome.failures, outcome.failures[:5]


@pytest.mark.slow
def test_every_flipped_byte_of_the_other_files_is_found_and_never_gives_wrong_data(made, tmp_path):
    """Index, names and manifest: no wrong name, count, split, number or sample."""
    outcome = prove(made, tmp_path, tasks=[["flips", file] for file in SIDE_FILES])
    assert outcome.damages == sum((made / file).stat().st_size for file in SIDE_FILES) + PARTS
    assert not outcome.failures, f"seed {SEED}: {len(outcome.failures)}, first {outcome.failures[:5]}"


def test_a_flip_that_changes_only_how_the_manifest_is_spelled_is_found(made, tmp_path):
    """Every bit of an escaped letter: `\\u00fc` and `\\u00FC` are the same text, but not the file that was written."""
    data = (made / MANIFEST).read_bytes()
    start = data.index(b"\\u00fc")
    outcome = prove(made, tmp_path, tasks=[["flips", MANIFEST]], places=[*range(start, start + 6)], all_bits=True)
    assert outcome.damages == 6 * 8 + PARTS
    assert not outcome.failures, outcome.failures


def test_the_proof_fails_on_a_reader_that_verifies_nothing(made, tmp_path):
    """Without checksums a flip in a field's bytes is wrong data: that is what the proof is able to see."""
    outcome = prove(made, tmp_path, tasks=[["flips", SHARD]], fields_only=True, every=13, mode="never")
    fields = [region for region in regions_of(made / SHARD) if region.field and region.key in NAME_OF]
    places = {position for region in fields for position in range(region.start, region.stop)}
    wrong = {position for (_, position, _), text in outcome.failures if text.startswith("wrong data: sample")}
    assert wrong == {position for position in places if position // PARTS % 13 == 0}
    assert len(wrong) > 300


def test_the_proof_fails_on_a_verify_that_does_not_look_at_records(made, tmp_path):
    """The digest of the whole file still tells that something is wrong; the proof asks what, and of which sample."""
    outcome = prove(made, tmp_path, tasks=[["flips", SHARD]], fields_only=True, every=31, blind=True)
    blamed = [text for _, text in outcome.failures if text.startswith("verify names [(None, None)]; expected")]
    assert len(blamed) == outcome.damages - PARTS > 100
