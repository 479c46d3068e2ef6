"""Names and order: every file is a sample of its own, found by its whole path, in one order everywhere."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastload
from fastload.errors import SourceError
from fastload.layouts.base import SourceFile, SourceSample
from fastload.schema import Field, Schema
from fastload.units import portable_name
from tests.support import tree_bytes, write_tree

SCHEMA = Schema((Field("points", dtype="float32", shape=(4,), rows="points"),))


@dataclass(frozen=True)
class AnyFolders:
    """A layout that takes every file with one of the suffixes, however deep it lies; the name is the path without."""

    suffixes: tuple[str, ...] = (".bin",)
    name: str = "any"
    schema: Schema = SCHEMA

    def detect(self, root):
        return True

    def samples(self, root):
        for folder, _, files in os.walk(root):
            for file in files:
                path = os.path.relpath(os.path.join(folder, file), root)
                for suffix in self.suffixes:
                    if path.endswith(suffix):
                        fields = {"points": SourceFile(path, "kitti_bin")}
                        yield SourceSample(portable_name(path.removesuffix(suffix)), "all", fields)

    def attachments(self, root):
        return iter(())


def write_scan(path, count):
    """A scan that is told from others by its number of points and by their values."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(scan_of(count).tobytes())


def scan_of(count):
    points = np.random.default_rng(count).uniform(-40, 40, (count, 4)).astype("<f4")
    points[:, 3] = count / 1000
    return points


def assert_all_there(source, root, points, tmp):
    """Each name has its own points, by number, by iteration and by name; and the tree comes back."""
    dataset = fastload.PackedDataset(root)
    names = list(dataset.names)
    assert names == sorted(points, key=lambda name: name.encode("utf-8", "surrogateescape"))
    assert dataset.counts.tolist() == [points[name] for name in names]
    for index, sample in enumerate(dataset):
        assert (sample["name"], sample["index"], dataset.info(index).name) == (names[index], index, names[index])
        assert np.array_equal(sample["points"], scan_of(points[names[index]]))
        assert dataset.find(names[index]) == index
    fastload.unpack(root, tmp)
    assert tree_bytes(tmp) == tree_bytes(source)
    assert fastload.verify(root).ok


def test_the_same_file_names_in_different_folders_are_different_samples(tmp_path):
    """A key made of the file's name alone would keep one of three."""
    points = {f"{folder}/{stem}": 1 + 10 * i + k for i, folder in enumerate(("A", "B", "A/B", "AB"))
              for k, stem in enumerate(("0001", "1"))}  # fmt: skip
    for name, count in points.items():
        write_scan(tmp_path / "source" / f"{name}.bin", count)
    fastload.pack(tmp_path / "source", tmp_path / "d", layout=AnyFolders())
    assert_all_there(tmp_path / "source", tmp_path / "d", points, tmp_path / "again")


def test_the_same_scan_numbers_in_different_sequences_keep_their_own_labels(tmp_path):
    source = write_tree(tmp_path / "source", {f"{s:02d}/{i:06d}": 10 + s + i for s in (0, 1, 8) for i in (0, 1)})
    fastload.pack(source, tmp_path / "d")
    dataset = fastload.PackedDataset(tmp_path / "d")
    assert len(set(dataset.names)) == len(dataset) == 6
    for sample in dataset:
        label = np.fromfile(source / f"{sample['name'].replace('velodyne', 'labels')}.label", "<u4")
        assert np.array_equal(sample["semantic"], label & 0xFFFF)
        assert len(sample["points"]) == len(label)


@pytest.mark.parametrize("other", [".BIN", ".png", ".bin.gz", ".bin~", ".label", ".txt"])
def test_a_file_of_the_same_stem_beside_a_scan_is_no_second_sample(tmp_path, other):
    """It is neither taken for the scan nor dropped in silence."""
    source = write_tree(tmp_path / "source", {"00/000001": 24})
    (source / f"sequences/00/velodyne/000001{other}").write_bytes(b"something else")
    report = fastload.pack(source, tmp_path / "d")
    assert report.ignored == (f"sequences/00/velodyne/000001{other}",)
    assert list(fastload.PackedDataset(tmp_path / "d").names) == ["sequences/00/velodyne/000001"]
    assert len(fastload.PackedDataset(tmp_path / "d")[0]["points"]) == 24


@pytest.mark.parametrize(("first", "second"), [("000001", "1"), ("42", "0042"), ("7", "000000007")])
def test_two_files_of_one_scan_number_are_a_named_clash(tmp_path, first, second):
    """Which of the two is meant cannot be known; none overwrites the other."""
    source = write_tree(tmp_path / "source", {f"00/{first}": 5, f"00/{second}": 6, "00/000100": 7})
    with pytest.raises(SourceError) as caught:
        fastload.pack(source, tmp_path / "d")
    for name in (f"{first}.bin", f"{second}.bin", f"{first}.label", f"{second}.label"):
        assert name in str(caught.value)
    assert not (tmp_path / "d").exists()


def test_two_files_that_would_make_one_name_are_a_named_clash(tmp_path):
    """A layout that leaves the suffix out of the name: both paths are said, nothing is published."""
    for name, count in (("A/0001.bin", 3), ("A/0001.dat", 4), ("B/0001.dat", 5)):
        write_scan(tmp_path / "source" / name, count)
    layout = AnyFolders((".bin", ".dat"))
    with pytest.raises(SourceError) as caught:
        fastload.pack(tmp_path / "source", tmp_path / "d", layout=layout)
    (problem,) = caught.value.problems
    assert problem.sample == "A/0001"
    assert "A/0001.bin" in str(problem)
    assert "A/0001.dat" in str(problem)
    report = fastload.pack(tmp_path / "source", tmp_path / "d", layout=layout, skip_bad=True)
    assert report.samples == 2
    assert [problem.sample for problem in report.problems] == ["A/0001"]


@pytest.mark.parametrize(("depth", "length"), [(8, 120), (2, 255), (14, 255), (200, 2)])
def test_long_relative_paths_pack_are_found_by_name_and_unpack(tmp_path, depth, length):
    """Far beyond what a key of the store could hold, up to what the system takes: 255 bytes a part, 4,095 in all."""
    folders = "/".join("x" * length for _ in range(depth))
    points = {f"{folders}/{stem}": count for stem, count in (("a" * 251, 3), ("ä" * 125, 4), ("b", 5))}
    for name, count in points.items():
        write_scan(tmp_path / "s" / f"{name}.bin", count)
    fastload.pack(tmp_path / "s", tmp_path / "d", layout=AnyFolders())
    assert_all_there(tmp_path / "s", tmp_path / "d", points, tmp_path / "u")
    fastload.unpack(tmp_path / "d", tmp_path / "one", names=[f"{folders}/b"])
    assert list(tree_bytes(tmp_path / "one")) == [f"{folders}/b.bin"]


@pytest.mark.parametrize("shard_size", ["1GB", "20kB"])
def test_300_numbered_files_have_one_order_everywhere(tmp_path, shard_size):
    """By the bytes of their names: 1, 10, 100, 101, ..., whatever the directory lists first.

    Numbers in the store that need a second byte (255, 256, 257) stay in place; labels, times and names pair by
    the file's number, not by its place.
    """
    source = write_tree(
        tmp_path / "source", {f"00/{i}": i for i in np.random.default_rng(0).permutation(range(1, 301))}
    )
    (source / "sequences/00/times.txt").write_text("".join(f"{i / 8}\n" for i in range(301)))
    fastload.pack(source, tmp_path / "d", shard_size=shard_size, subset=True)
    dataset = fastload.PackedDataset(tmp_path / "d")
    numbers = sorted(range(1, 301), key=str)
    names = [f"sequences/00/velodyne/{number}" for number in numbers]
    assert numbers[:4] == [1, 10, 100, 101]
    assert list(dataset.names) == names
    assert dataset.counts.tolist() == numbers
    for index, sample in enumerate(dataset):
        number = numbers[index]
        raw = np.fromfile(source / f"sequences/00/velodyne/{number}.bin", "<f4").reshape(-1, 4)
        assert (sample["name"], sample["index"]) == (names[index], index)
        assert np.array_equal(sample["points"], raw)
        assert len(sample["semantic"]) == number
        assert sample["time"] == number / 8
    for index in (0, 1, 254, 255, 256, 257, 299):
        assert dataset.find(names[index]) == index
        assert dataset[index]["name"] == dataset.info(index).name == names[index]
    for number in (1, 2, 255, 256, 257, 300):
        assert len(dataset[dataset.find(f"sequences/00/velodyne/{number}")]["points"]) == number
    fastload.unpack(tmp_path / "d", tmp_path / "again")
    assert tree_bytes(tmp_path / "again") == tree_bytes(source)


PARTS = st.binary(min_size=1, max_size=24).filter(lambda part: b"/" not in part and b"\0" not in part)
PARTS = st.one_of(PARTS, st.text("aA1.*?[ äÄ\u0041\u030a\n\\", min_size=1, max_size=8).map(os.fsencode)).filter(
    lambda part: part.strip(b".")
)


@given(st.sets(st.tuples(PARTS, PARTS), min_size=1, max_size=6))
@settings(max_examples=15, deadline=None)
def test_any_bytes_that_a_file_system_takes_for_a_name(parts):
    """Names that are no UTF-8, with line ends, wildcards and blanks: distinct, found by name, unpacked the same."""
    with tempfile.TemporaryDirectory() as folder:
        points = {}
        for count, (first, second) in enumerate(sorted(parts), 1):
            local = os.fsdecode(b"in " + first + b"/" + second + b" file")
            write_scan(os.path.join(folder, "source", f"{local}.bin"), count)
            points[portable_name(local)] = count
        root = Path(folder) / "d"
        fastload.pack(Path(folder) / "source", root, layout=AnyFolders())
        assert_all_there(Path(folder) / "source", root, points, Path(folder) / "again")


TWINS = [("scan", "SCAN"), ("Straße", "STRASSE"), ("\u00e9t\u00e9", "e\u0301te\u0301"), ("\u212b", "\u00c5")]


def pack_twins(tmp_path, twins):
    points = {f"{name}/{stem}": 1 + i for i, (name, stem) in enumerate([(twins[0], "0"), (twins[1], "0"), ("z", "0")])}
    for name, count in points.items():
        write_scan(tmp_path / "source" / f"{name}.bin", count)
    if len(list((tmp_path / "source").iterdir())) < 3:
        pytest.skip("this file system does not tell names apart by case or Unicode form")
    return points, fastload.pack(tmp_path / "source", tmp_path / "d", layout=AnyFolders())


@pytest.mark.parametrize("twins", TWINS)
def test_names_that_differ_in_case_or_unicode_form_alone_are_two_samples(tmp_path, twins):
    points, _ = pack_twins(tmp_path, twins)
    assert_all_there(tmp_path / "source", tmp_path / "d", points, tmp_path / "again")


@pytest.mark.parametrize("twins", TWINS)
def test_names_that_differ_in_case_or_unicode_form_alone_are_warned_of(tmp_path, twins):
    """On a disk of another system one would overwrite the other: both are named when they are packed."""
    _, report = pack_twins(tmp_path, twins)
    (note,) = [note for note in report.notes if f"{twins[0]}/0" in note]
    assert f"{twins[1]}/0" in note
