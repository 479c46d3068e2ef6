"""How many columns a scan has: said by the layout, stored by name, never guessed in silence; odd files are named."""

import numpy as np
import pytest

import fastload
from fastload.errors import SourceError, UsageError
from tests.support import run_fastload, write_tree


def scan_of(count, columns):
    """A spinning sensor between walls: x y z intensity, then ring, time and what else there may be."""
    rng = np.random.default_rng(count)
    turn = np.arange(count) / 60 * 2 * np.pi
    reach = 20 + 15 * np.sin(turn / 7) + rng.normal(0, 0.05, count)
    points = np.zeros((count, columns), "<f4")
    points[:, 0], points[:, 1] = reach * np.cos(turn), reach * np.sin(turn)
    points[:, 2] = -1.7 + reach * np.sin(turn / 50) * 0.2
    points[:, 3:4] = rng.random((count, 1)).round(2)[:, : columns - 3]
    points[:, 4:5] = np.arange(count)[:, None][:, : max(columns - 4, 0)] % 32
    return points


def bin_of(number):
    return f"sequences/00/velodyne/{number:06d}.bin"


@pytest.mark.parametrize(("columns", "count"), [(5, 33), (5, 1021), (6, 11), (6, 35), (3, 7), (3, 501), (7, 999)])
def test_one_odd_file_among_many_is_named_with_its_size(tmp_path, columns, count):
    """A size that is no whole number of points: path, bytes, bytes a point, remainder; the rest packs on request."""
    source = write_tree(tmp_path / "source", {f"00/{i:06d}": 20 + i for i in range(60)}, labels=False)
    odd = source / bin_of(37)
    scan_of(count, columns).tofile(odd)
    size = odd.stat().st_size
    assert size % 16
    with pytest.raises(SourceError) as caught:
        fastload.pack(source, tmp_path / "d")
    (problem,) = caught.value.problems
    assert problem.path == bin_of(37)
    for part in (f"{size} bytes", "16 bytes a point", f"remainder {size % 16}", f"if {columns} columns"):
        assert part in str(problem)
    assert not (tmp_path / "d").exists()
    report = fastload.pack(source, tmp_path / "d", skip_bad=True)
    assert [problem.path for problem in report.problems] == [bin_of(37)]
    names = list(fastload.PackedDataset(tmp_path / "d").names)
    assert len(names) == 59
    assert "sequences/00/velodyne/000037" not in names


@pytest.mark.parametrize(("columns", "count"), [(5, 64), (5, 4000), (6, 64), (3, 400), (7, 400)])
def test_odd_files_whose_size_fits_are_told_by_their_values(tmp_path, columns, count):
    """Without labels only the values can tell: the file is refused with the columns that look right."""
    source = write_tree(tmp_path / "source", {f"00/{i:06d}": 200 for i in range(30)}, labels=False)
    scan_of(count, columns).tofile(source / bin_of(11))
    assert (source / bin_of(11)).stat().st_size % 16 == 0
    with pytest.raises(SourceError) as caught:
        fastload.pack(source, tmp_path / "d")
    assert [problem.path for problem in caught.value.problems] == [bin_of(11)]
    assert fastload.pack(source, tmp_path / "e", skip_bad=True).samples == 29


@pytest.mark.parametrize(("columns", "count"), [(5, 20), (6, 12), (5, 1004), (6, 2), (10, 2)])
def test_labels_say_how_many_columns_the_points_have(tmp_path, columns, count):
    """Bytes that divide by both: the count of labels decides, and both readings are said."""
    source = write_tree(tmp_path / "source", {"00/000000": count, "00/000001": 9})
    scan_of(count, columns).tofile(source / bin_of(0))
    read_as_four = count * columns // 4
    assert count * columns % 4 == 0
    with pytest.raises(SourceError) as caught:
        fastload.pack(source, tmp_path / "d")
    (problem,) = caught.value.problems
    assert f"{read_as_four:,} points if 4 columns, {count:,} labels" in str(problem)
    assert f"{count:,} points if {columns} columns" in str(problem)
    assert bin_of(0) in str(problem)


def test_a_folder_of_scans_that_no_layout_declares_is_not_guessed(tmp_path):
    """240 bytes are 15 points of 4, 12 of 5 or 10 of 6 columns: without a layout nothing is packed."""
    (tmp_path / "source").mkdir()
    scan_of(12, 5).tofile(tmp_path / "source/000000.bin")
    with pytest.raises(UsageError, match="fits no layout"):
        fastload.pack(tmp_path / "source", tmp_path / "d")
    done = run_fastload("pack", tmp_path / "source", tmp_path / "d")
    assert done.returncode == 2
    assert "name the layout" in done.stderr
    assert not (tmp_path / "d").exists()


def test_the_columns_that_were_packed_are_stored_by_name(tmp_path):
    source = write_tree(tmp_path / "source", {"00/000000": 15})
    fastload.pack(source, tmp_path / "d")
    field = fastload.info(tmp_path / "d").fields["points"]
    assert (list(field["shape"]), list(field["columns"])) == ([4], ["x", "y", "z", "intensity"])
    picked = fastload.PackedDataset(tmp_path / "d", columns={"points": ("intensity", "x")})[0]["points"]
    raw = np.fromfile(source / bin_of(0), "<f4").reshape(-1, 4)
    assert np.array_equal(picked, raw[:, [3, 0]])


def test_half_as_many_labels_are_of_half_the_width_or_of_points_twice_as_wide(tmp_path):
    """Both readings fit: 24 points with labels of 2 bytes, or 12 points of 8 columns with labels of 4."""
    write_tree(tmp_path, {"00/000000": 24})
    (tmp_path / "sequences/00/labels/000000.label").write_bytes(bytes(48))
    with pytest.raises(SourceError) as caught:
        fastload.pack(tmp_path, tmp_path / "out", layout="semantickitti")
    (problem,) = caught.value.problems
    assert "uint16" in problem.found
    assert "8 columns" in problem.fix
