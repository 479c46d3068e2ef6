"""Repair after damage of any kind, in any order, again and again: never wrong data, never a silent loss.

Sequences of random damage and repairs, from a printed seed. What holds after each repair:

- no other errors than the project's own
- every file that was replaced is still there under another name
- a dataset that repair calls ok is ok by `verify`, and each of its samples is the one that was packed
- samples disappear only when asked, and each is listed
"""

import contextlib
import difflib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fastload
from fastload.errors import FastloadError
from fastload.store import pages
from fastload.store.manifest import read_manifest
from tests.support import tree_bytes, write_tree

SCANS = {f"{sequence:02d}/{i:06d}": 1 + (37 * i + 11 * sequence) % 300 for sequence in (0, 1, 8) for i in range(6)}
SIDE_FILES = ("dataset.json", "index.npy", "names.bin", "names.npy")
SHARD_BYTES = 14_000
TRIALS = int(os.environ.get("FASTLOAD_REPAIR_TRIALS", "40"))


def pack(folder: Path, seed: int) -> Path:
    source = write_tree(folder / "source", SCANS, seed=seed)
    for sequence in ("00", "01", "08"):
        (source / "sequences" / sequence / "calib.txt").write_text(
            f"Tr: 1 0 0 {seed} 0 1 0 0 0 0 1 0\nP0:{' 1' * 12}\n"
        )
        (source / "sequences" / sequence / "times.txt").write_text("".join(f"{i}e-1\n" for i in range(6)))
    fastload.pack(source, folder / "d", shard_size=SHARD_BYTES)
    return folder / "d"


@pytest.fixture(scope="module")
def datasets(tmp_path_factory) -> tuple[Path, Path]:
    """A dataset, and another of the same names and sizes with other values."""
    return pack(tmp_path_factory.mktemp("ours"), 1), pack(tmp_path_factory.mktemp("others"), 2)


def contents(root: Path) -> dict[str, tuple[str, dict[str, bytes]]]:
    """Split and bytes of every sample by name; those that cannot be read are left out."""
    found = {}
    for split in fastload.PackedDataset(root).splits:
        dataset = fastload.PackedDataset(root, split, verify="always")
        for index, name in enumerate(dataset.names):
            with contextlib.suppress(fastload.CorruptError):
                sample = dataset[index]
                arrays = {key: value.tobytes() for key, value in sample.items() if isinstance(value, np.ndarray)}
                found[name] = (split, arrays)
    return found


class Damage:
    """Random damage to a dataset."""

    def __init__(self, rng: random.Random, root: Path, sound: Path, foreign: Path | None) -> None:
        self.rng, self.root, self.sound, self.foreign = rng, root, sound, foreign
        kinds = [self.flip, self.flip_head, self.flip_info, self.zero_page, self.cut, self.remove, self.remove_side,
                 self.flip_side, self.pad, self.give_back, self.no_file]  # fmt: skip
        self.kinds: list[Callable[[], str]] = kinds + ([self.exchange] * 3 if foreign is not None else [])

    def __call__(self) -> str:
        return self.rng.choice(self.kinds)()

    def shard(self) -> Path:
        files = [path for path in (self.root / "shards").glob("*.lmdb") if path.is_file()]
        return self.rng.choice(sorted(files)) if files else self.root / "shards/00000.lmdb"

    def change(self, path: Path, start: int, data: bytes | None = None) -> str:
        if path.is_file() and path.stat().st_size > start:
            content = bytearray(path.read_bytes())
            if data is None:
                content[start] ^= 1 << self.rng.randrange(8)
            else:
                content[start : start + len(data)] = data
            path.unlink()  # never through a second name that a repair gave it
            path.write_bytes(content)
        return f"{path.name} at {start}"

    def flip(self) -> str:
        path = self.shard()
        return "flip " + self.change(path, self.rng.randrange(max(path.stat().st_size, 1)) if path.is_file() else 0)

    def entries(self, path: Path) -> list[pages.Entry]:
        found: list[pages.Entry] = []
        with contextlib.suppress(Exception), path.open("rb") as file:
            found.extend(pages.walk(file.fileno()))
        return found

    def flip_head(self) -> str:
        path = self.shard()
        entries = self.entries(path)
        return (
            "head of " + self.change(path, self.rng.choice(entries).offset + self.rng.randrange(60)) if entries else ""
        )

    def flip_info(self) -> str:
        path = self.shard()
        entries = self.entries(path)
        return "info of " + self.change(path, entries[-1].offset + 40) if entries else ""

    def zero_page(self) -> str:
        path = self.shard()
        count = path.stat().st_size // 4096 if path.is_file() else 0
        return "page of " + self.change(path, 4096 * self.rng.randrange(count), bytes(4096)) if count else ""

    def cut(self) -> str:
        path = self.shard()
        if path.is_file():
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data[: self.rng.randrange(len(data) + 1)])
        return f"cut {path.name}"

    def pad(self) -> str:
        path = self.shard()
        if path.is_file():
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data + bytes(self.rng.choice([1, 4096])))
        return f"pad {path.name}"

    def remove(self) -> str:
        path = self.shard()
        path.unlink(missing_ok=True)
        return f"remove {path.name}"

    def no_file(self) -> str:
        path = self.shard()
        path.unlink(missing_ok=True)
        self.rng.choice(
            [
                path.mkdir,
                lambda: os.mkfifo(path),
                lambda: path.symlink_to("nowhere"),
                lambda: path.symlink_to(path.name),
            ]
        )()
        return f"no file {path.name}"

    def remove_side(self) -> str:
        file = self.rng.choice(SIDE_FILES[1:] if self.foreign else SIDE_FILES)
        (self.root / file).unlink(missing_ok=True)
        return f"remove {file}"

    def flip_side(self) -> str:
        path = self.root / self.rng.choice(SIDE_FILES[1:] if self.foreign else SIDE_FILES)
        return "flip " + self.change(path, self.rng.randrange(path.stat().st_size)) if path.is_file() else ""

    def give_back(self) -> str:
        path = self.rng.choice(sorted((self.sound / "shards").glob("*.lmdb")))
        target = self.root / "shards" / path.name
        if target.is_dir() and not target.is_symlink():
            target.rmdir()
        target.unlink(missing_ok=True)
        shutil.copy(path, target)
        return f"give back {path.name}"

    def exchange(self) -> str:
        path = self.rng.choice(sorted((self.foreign / "shards").glob("*.lmdb")))
        target = self.root / "shards" / path.name
        if target.is_file():
            target.unlink()
            shutil.copy(path, target)
        return f"exchange {path.name}"


@pytest.mark.parametrize("foreign", [False, True], ids=["damage", "with shards of another dataset"])
@pytest.mark.parametrize("trial", range(TRIALS))
def test_never_wrong_data_and_never_a_silent_loss(datasets, tmp_path, trial, foreign):
    sound, others = datasets
    rng = random.Random(trial * 2 + foreign)
    root = tmp_path / "d"
    shutil.copytree(sound, root)
    wanted = contents(sound)
    numbers = {name: number for number, name in enumerate(fastload.PackedDataset(sound).names)}
    damage = Damage(rng, root, sound, others if foreign else None)
    story: list[str] = []
    listed: set[object] = set()
    for _ in range(rng.randint(1, 4)):
        story += [damage() for _ in range(rng.randint(1, 3))]
        for _ in range(rng.randint(1, 2)):
            drop = rng.random() < 0.6
            had = set(fastload.PackedDataset(root).names) if is_dataset(root) else None
            before = tree_bytes(root)
            try:
                report = fastload.repair(root, drop_damaged=drop)
            except FastloadError as error:
                story.append(f"repair(drop={drop}): {type(error).__name__}: {str(error)[-150:]}")
                assert tree_bytes(root) == before, story
                continue
            story.append(f"repair(drop={drop}): ok={report.ok} {report.samples} rebuilt={report.rebuilt}")
            after = tree_bytes(root)
            assert not (set(before.values()) - set(after.values())), story
            listed |= {item for p in report.dropped for item in (p.sample, p.index) if item is not None}
            listed |= {p.shard for p in report.dropped if p.index is None}
            if not is_dataset(root):
                continue
            found = contents(root)
            assert all(wanted.get(name) == sample for name, sample in found.items()), story
            if report.ok:
                assert fastload.verify(root).ok, (story, fastload.verify(root).problems)
                assert len(found) == report.samples == len(fastload.PackedDataset(root)), story
            if not drop:
                assert had is None or had <= set(fastload.PackedDataset(root).names), story
            lost = set(wanted) - set(fastload.PackedDataset(root).names)
            open_ended = any("shards behind the last" in text for text in read_manifest(root).lossy)
            assert open_ended or all(name in listed or numbers[name] in listed for name in lost), (story, lost)
            again = fastload.repair(root, drop_damaged=drop)
            assert (again.ok, again.rebuilt) == (report.ok, ()), (story, again, diff(after, tree_bytes(root)))


def diff(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    """The lines of the manifest that changed."""
    old, new = (tree.get("dataset.json", b"").decode().splitlines() for tree in (before, after))
    return list(difflib.unified_diff(old, new, n=0, lineterm=""))


def is_dataset(root: Path) -> bool:
    try:
        return len(list(fastload.PackedDataset(root).names)) >= 0
    except FastloadError:
        return False
