from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from fastload.errors import ResourceError, UsageError
from fastload.layouts import registry
from fastload.layouts.registry import detect_layout, get_layout, layout_names
from fastload.layouts.semantickitti import SemanticKitti


class Other(SemanticKitti):
    """A layout of another package: it takes any folder with a file `other`."""

    def detect(self, root: Path) -> bool:
        return (root / "other").exists()


class Failing(SemanticKitti):
    def detect(self, root: Path) -> bool:
        raise RuntimeError("out of order")


@pytest.fixture
def third_party(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    values = {"other": "others:Other", "broken": "no_such_module_anywhere:Layout", "wrong": "others:wrong"}
    points = [EntryPoint(name, value, registry.ENTRY_POINTS) for name, value in values.items()]

    class Loaded(EntryPoint):
        def load(self) -> object:
            return {"other": Other, "wrong": 5}[self.name] if self.name != "broken" else EntryPoint.load(self)

    loaded = [Loaded(point.name, point.value, point.group) for point in points]
    monkeypatch.setattr(registry, "entry_points", lambda group: loaded if group == registry.ENTRY_POINTS else [])
    return iter(())


@pytest.fixture
def kitti(tmp_path: Path) -> Path:
    root = tmp_path / "kitti"
    (root / "sequences/00/velodyne").mkdir(parents=True)
    (root / "sequences/00/velodyne/000000.bin").write_bytes(bytes(16))
    return root


def test_the_built_in_layout_by_name() -> None:
    assert get_layout("semantickitti").name == "semantickitti"
    assert "semantickitti" in layout_names()


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'kitty' is unknown.*semantickitti"):
        get_layout("kitty")


def test_detection(kitti: Path) -> None:
    assert detect_layout(kitti).name == "semantickitti"


def test_detection_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"semantickitti: sequences/NN/velodyne/\*\.bin"):
        detect_layout(tmp_path)


def test_detection_hints_at_the_folder_above_or_below(kitti: Path) -> None:
    for root in (kitti.parent, kitti / "sequences"):
        with pytest.raises(UsageError, match=rf"{kitti} looks like semantickitti: give that folder"):
            detect_layout(root)


def test_detection_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        detect_layout(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is not a folder"):
        detect_layout(tmp_path / "file")


@pytest.mark.usefixtures("third_party")
def test_layouts_of_other_packages(tmp_path: Path, kitti: Path) -> None:
    assert isinstance(get_layout("other"), Other)
    assert layout_names() == ["broken", "other", "semantickitti", "wrong"]
    assert detect_layout(kitti).name == "semantickitti"
    (tmp_path / "other").write_text("")
    assert isinstance(detect_layout(tmp_path), Other)


@pytest.mark.usefixtures("third_party")
def test_broken_layouts_of_other_packages_are_told_when_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'broken' \(no_such_module_anywhere:Layout\) cannot be loaded"):
        get_layout("broken")
    with pytest.raises(UsageError, match=r"'wrong' .* is no layout"):
        get_layout("wrong")
    with pytest.raises(UsageError, match=r"fits no layout.*'broken'.*cannot be loaded"):
        detect_layout(tmp_path)


def test_a_layout_that_fails_to_look_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Point(EntryPoint):
        def load(self) -> object:
            return Failing

    monkeypatch.setattr(registry, "entry_points", lambda group: [Point("failing", "a:b", group)])
    with pytest.raises(UsageError, match=r"fits no layout.*failed to look: RuntimeError"):
        detect_layout(tmp_path)


def test_a_folder_that_fits_two_layouts(kitti: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "second", SemanticKitti("second"))
    with pytest.raises(UsageError, match="looks like semantickitti and second; name the layout"):
        detect_layout(kitti)


def test_a_root_that_cannot_be_looked_into_is_not_called_absent(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match=r"loop: cannot be looked into \("):
        detect_layout(tmp_path / "loop")


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, os.strerror(errno.EMFILE)), ResourceError("full")])
def test_a_machine_at_its_limits_is_no_fault_of_a_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    class Exhausted(SemanticKitti):
        def detect(self, root: Path) -> bool:
            raise error

    class Point(EntryPoint):
        def load(self) -> object:
            return Exhausted

    monkeypatch.setattr(registry, "entry_points", lambda group: [Point("exhausted", "a:b", group)])
    with pytest.raises(ResourceError):
        detect_layout(tmp_path)
