from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fastload.errors import UsageError
from fastload.layouts.splits import read_splits


def test_numbers_become_the_names_of_folders() -> None:
    splits = read_splits({"train": [0, 1, "02", "night"], "val": (8,), "rest": []})
    assert splits.of == {"00": "train", "01": "train", "02": "train", "night": "train", "08": "val"}
    assert splits.names == ("train", "val", "rest")
    assert not splits.official


@pytest.mark.parametrize("suffix", ["yaml", "yml", "json"])
def test_files_of_either_kind(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"splits.{suffix}"
    path.write_text(json.dumps({"train": [0, 10], "val": ["08"]}))
    for given in (path, str(path)):
        assert read_splits(given).of == {"00": "train", "10": "train", "08": "val"}


def test_yaml_as_people_write_it(tmp_path: Path) -> None:
    path = tmp_path / "splits.yaml"
    path.write_text("train: # most\n  - 00\n  - 07\n  - 08\n  - 09\nval: [10]\n")
    assert list(read_splits(path).of) == ["00", "07", "08", "09", "10"]


def test_the_form_of_semantic_kitti_api(tmp_path: Path) -> None:
    path = tmp_path / "semantic-kitti.yaml"
    path.write_text("name: kitti\nlabels:\n  0: none\nsplit:\n  train: [0, 1]\n  valid: [8]\n  test: [11]\n")
    splits = read_splits(path)
    assert splits.of == {"00": "train", "01": "train", "08": "val", "11": "test"}


def test_a_sequence_in_two_splits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"sequence 08 is in 'train' and in 'val'"):
        read_splits({"train": [8], "val": ["08"]})
    assert read_splits({"train": [8, "08"]}).of == {"08": "train"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "found None"),
        ("[1, 2]", r"found \[1, 2\]"),
        ("just words", "found 'just words'"),
        ("{}", "no splits"),
        ("train: 0", "split 'train' is 0"),
        ("train: {a: 1}", "split 'train' is"),
        ("8: [1]", "8 is not a split's name"),
        ("train: [1.5]", "1.5 in split 'train'"),
        ("train: [true]", "True in split 'train'"),
        ("train: [-1]", "-1 in split 'train'"),
        ("train: [a/b]", "'a/b' in split 'train'"),
        ("train: [1", "cannot be parsed"),
        ("!!python/object/apply:os.getcwd []", "cannot be parsed"),
        ("train: [1]\nval: [1]", "sequence 01 is in 'train' and in 'val'"),
    ],
)
def test_other_forms_are_refused_with_the_file(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=rf"mine\.yaml: .*{found}"):
        read_splits(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml: cannot be read: No such file"):
        read_splits(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"bytes\.yaml: is not text"):
        read_splits(tmp_path / "bytes.yaml")
    (tmp_path / "bad.json").write_text("{train: [1]}")
    with pytest.raises(UsageError, match=r"bad\.json: cannot be parsed"):
        read_splits(tmp_path / "bad.json")
    with pytest.raises(UsageError, match="splits: found 5"):
        read_splits(5)


@pytest.mark.parametrize(("name", "text"), [
    ("s.yaml", "train: [0]\nval: [8]\ntrain: [1]\n"),
    ("s.yaml", "{train: [0], train: [0]}"),
    ("s.json", '{"train": [0], "train": [1]}'),
    ("s.yaml", "split:\n  train: [0]\n  valid: [8]\n  train: [1]\n"),
])  # fmt: skip
def test_a_split_that_is_given_twice_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=rf"{name}: key 'train' comes twice"):
        read_splits(tmp_path / name)


def test_two_names_of_one_split_are_refused() -> None:
    with pytest.raises(UsageError, match="'valid' and 'val' both mean 'val'"):
        read_splits({"split": {"valid": [8], "val": [9]}})


@pytest.mark.parametrize("text", ['{"\\ud800": [0]}', '{"train\\udcff": [0]}', '{"train": ["\\ud800"]}'])
def test_half_characters_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(UsageError, match=r"s\.json: .*'(train)?\\u"):
        read_splits(tmp_path / "s.json")


def test_a_folder_whose_name_is_no_utf8_can_be_meant() -> None:
    name = os.fsdecode(b"caf\xe9")
    assert read_splits({"train": [name]}).of == {name: "train"}


@pytest.mark.parametrize("number", [10**9 + 1, 10**9000, -(10**9000)], ids=range(3))
def test_numbers_that_name_no_sequence(number: int) -> None:
    with pytest.raises(UsageError, match="is not a sequence"):
        read_splits({"train": [number]})
    with pytest.raises(UsageError, match=r"is a very large int|is 1000000001"):
        read_splits({"train": number})


def test_a_pipe_of_splits_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "s.yaml")
    with pytest.raises(UsageError, match=r"s\.yaml: cannot be read: not a regular file"):
        read_splits(tmp_path / "s.yaml")
