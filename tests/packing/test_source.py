"""One sample's files: what does not fit is named for what it is, and limits of the machine are no bad files."""

import errno
import gzip
import io
import os

import numpy as np
import pytest

import fastload
from fastload.errors import FormatError, ResourceError, SourceError
from fastload.formats.registry import FORMATS, get_format
from fastload.formats.semantickitti_label import SEMANTICKITTI_LABEL
from fastload.layouts.base import SourceFile, SourceSample
from fastload.layouts.semantickitti import SCHEMA
from fastload.packing.files import file_size
from fastload.packing.source import Measured, load, measure, read_attachment
from tests.support import run_python, skip_where_pathlib_keeps, write_tree

BIN, LABEL = "sequences/00/velodyne/000000.bin", "sequences/00/labels/000000.label"
LABELS = SourceFile(LABEL, SEMANTICKITTI_LABEL.name)
SAMPLE = SourceSample(
    "sequences/00/velodyne/000000",
    "train",
    {"points": SourceFile(BIN, "kitti_bin"), "semantic": LABELS, "instance": LABELS},
)
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
REFUSED = (errno.EIO, errno.ESTALE, errno.EACCES)


def made(root, points, labels):
    """A scan of so many points, and these bytes as its labels."""
    write_tree(root, {"00/000000": points})
    (root / LABEL).write_bytes(labels)
    return root


def problems(root):
    found = measure(root, SCHEMA, SAMPLE)
    assert isinstance(found, list), found
    return found


def only(root):
    (problem,) = problems(root)
    return problem


def npy():
    file = io.BytesIO()
    np.save(file, np.zeros(5, np.uint32))
    return file.getvalue()


# --- rows that do not fit


@pytest.mark.parametrize("fill", [0, 10, 40, 48, 72, 123, 252], ids=lambda value: f"class {value}")
@pytest.mark.parametrize("points", [24, 25, 77, 34_688, 24_689])
@pytest.mark.parametrize(("width", "hint"), [(1, "1 byte a point: uint8?"), (2, "2 bytes a point: uint16"),
                                             (8, "8 bytes a point: int64?")])  # fmt: skip
def test_labels_of_another_width_are_told_by_the_points(tmp_path, fill, points, width, hint):
    """Whatever the classes are: those of cars and roads are printable bytes, and look like text."""
    labels = np.full(points, fill, f"<u{width}").tobytes()
    problem = only(made(tmp_path, points, labels))
    assert (problem.path, problem.kind) == (LABEL, "rows")
    assert problem.found.startswith(f"{points:,} points, ")
    assert hint in problem.found
    assert BIN in problem.found
    assert "text" not in problem.found


def test_the_words_for_labels_of_one_byte(tmp_path):
    problem = only(made(tmp_path, 24, bytes([10]) * 24))
    assert problem.found.startswith("24 points, 6 labels of 4 bytes; 1 byte a point: uint8?")


@pytest.mark.parametrize("rounds", range(40))
def test_labels_of_one_byte_of_any_classes(tmp_path, rounds):
    rng = np.random.default_rng(rounds)
    points = int(rng.integers(2, 3000))
    labels = rng.choice(np.array([0, 1, 10, 11, 13, 30, 40, 44, 48, 50, 51, 70, 72, 80, 81, 99, 252], np.uint8), points)
    assert "1 byte a point: uint8?" in only(made(tmp_path, points, labels.tobytes())).found, f"seed {rounds}"


@pytest.mark.parametrize("points", [24, 1000])
@pytest.mark.parametrize("text", ["10\n40\n72\n" * 3, "10\n" * 1001, "0.5 0.25\n" * 999, "10 40\r\n" * 13])
def test_labels_written_as_text_are_called_text(tmp_path, points, text):
    problem = only(made(tmp_path, points, text.encode()))
    assert (problem.path, problem.kind) == (LABEL, problem.kind)
    assert problem.found == f"{len(text)} bytes that are text"


@pytest.mark.parametrize(
    ("nbytes", "found"), [(94, "94 bytes is not a multiple of 4"), (0, "0 bytes"), (23, "multiple")]
)
def test_sizes_that_fit_no_width(tmp_path, nbytes, found):
    assert found in only(made(tmp_path, 24, bytes(nbytes))).found


@pytest.mark.parametrize(("data", "what"), [
    (gzip.compress(bytes(500), mtime=0), "gzip"), (npy(), "NumPy"), (b"\x89PNG\r\n\x1a\n" + bytes(41), "PNG"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:9\nsize 1974224\n", "Git LFS pointer"),
])  # fmt: skip
@pytest.mark.parametrize("width", [1, 2, 8, 0])
def test_a_file_of_another_kind_is_called_that_though_its_size_fits_a_width(tmp_path, data, what, width):
    points = len(data) if width == 1 else 77
    data += bytes(points * width - len(data)) if width else b""
    assert what in only(made(tmp_path, points, data)).found


def test_other_counts_are_still_compared(tmp_path):
    root = made(tmp_path, 1000, bytes(994 * 4))
    assert "1,000 points, 994 labels of 4 bytes" in only(root).found
    np.zeros((20, 5), "<f4").tofile(root / BIN)
    (root / LABEL).write_bytes(bytes(80))
    assert "25 points if 4 columns, 20 labels; 20 points if 5 columns" in only(root).found


@pytest.mark.parametrize("labels", [bytes([10]) * 24, bytes(96), bytes(48)])
@pytest.mark.parametrize(("points", "found"), [(bytes(383), "383 bytes is not a multiple of 16"), (b"", "0 bytes")])
def test_points_of_a_bad_size_are_blamed_themselves(tmp_path, labels, points, found):
    root = made(tmp_path, 24, labels)
    (root / BIN).write_bytes(points)
    problem = only(root)
    assert problem.path == BIN
    assert found in problem.found


@pytest.mark.parametrize("nbytes", [160, 384, 1600])
def test_points_of_another_kind_are_blamed_before_their_labels(tmp_path, nbytes):
    root = made(tmp_path, 24, bytes(48))
    (root / BIN).write_bytes((b"\x89PNG\r\n\x1a\n" + bytes(nbytes))[:nbytes])
    problem = only(root)
    assert (problem.path, problem.found) == (BIN, f"{nbytes} bytes that are a PNG image")


def test_two_files_of_another_kind_are_both_named(tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:9\nsize 1974224\n"
    root = made(tmp_path, 24, pointer)
    (root / BIN).write_bytes(pointer)
    assert {problem.path for problem in problems(root)} == {BIN, LABEL}


def test_files_that_fit_are_not_read(tmp_path, monkeypatch):
    root = made(tmp_path, 24, bytes(96))
    monkeypatch.setattr(os, "open", lambda *arguments: pytest.fail("opened"))
    measured = measure(root, SCHEMA, SAMPLE)
    assert isinstance(measured, Measured)
    assert (measured.rows, measured.payload_bytes) == ({"points": 24}, 24 * 20)


def test_a_format_whose_rows_have_no_fixed_size(tmp_path, monkeypatch):
    """Its count is compared, its width is not guessed at."""

    class Packed(type(SEMANTICKITTI_LABEL)):
        row_bytes = None

        def rows(self, size_bytes, head=b""):
            return size_bytes - 10

    monkeypatch.setitem(FORMATS, "semantickitti_label", Packed())
    problem = only(made(tmp_path, 24, bytes(48)))
    assert problem.found == f"38 rows, 24 in the sample's first file (points: {BIN})"
    assert get_format("semantickitti_label").row_bytes is None


# --- what cannot be read


def refuse(monkeypatch, function, suffix, code):
    """Let an `os` function fail for paths that end so."""
    real = getattr(os, function)

    def fail(path, *arguments, **options):
        if os.fspath(path).endswith(suffix):
            raise OSError(code, os.strerror(code), os.fspath(path))
        return real(path, *arguments, **options)

    skip_where_pathlib_keeps(function)
    monkeypatch.setattr(os, function, fail)


@pytest.mark.parametrize("code", EXHAUSTED)
@pytest.mark.parametrize("function", ["stat", "open"])
@pytest.mark.parametrize("file", [BIN, LABEL])
def test_a_machine_at_its_limits_is_no_bad_sample(tmp_path, monkeypatch, code, function, file):
    source = write_tree(tmp_path / "source", {f"00/{i:06d}": 24 for i in range(3)})
    refuse(monkeypatch, function, file, code)
    for skip_bad in (False, True):
        with pytest.raises(ResourceError, match=file):
            fastload.pack(source, tmp_path / "out", skip_bad=skip_bad)
        assert not (tmp_path / "out/dataset.json").exists()


@pytest.mark.parametrize("code", REFUSED)
@pytest.mark.parametrize("function", ["stat", "open"])
def test_a_file_that_cannot_be_read_is_a_bad_sample(tmp_path, monkeypatch, code, function):
    source = write_tree(tmp_path / "source", {f"00/{i:06d}": 24 for i in range(3)})
    refuse(monkeypatch, function, BIN, code)
    with pytest.raises(SourceError, match=rf"{BIN}: cannot be read \({os.strerror(code)}\)"):
        fastload.pack(source, tmp_path / "out")
    report = fastload.pack(source, tmp_path / "out", skip_bad=True)
    assert (report.samples, [problem.path for problem in report.problems]) == (2, [BIN])


@pytest.mark.parametrize("code", EXHAUSTED)
def test_limits_met_while_a_wrong_file_is_looked_at(tmp_path, monkeypatch, code):
    root = made(tmp_path, 24, bytes(94))
    refuse(monkeypatch, "open", LABEL, code)
    with pytest.raises(ResourceError, match=LABEL):
        measure(root, SCHEMA, SAMPLE)


LOW_LIMIT = """
import os, resource, sys
from pathlib import Path
from fastload.errors import ResourceError
from fastload.layouts.semantickitti import SCHEMA, SemanticKitti
from fastload.packing.plan import list_source
from fastload.packing.source import load
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for _ in range(int(sys.argv[2])):
    os.close(held.pop())
source = Path(sys.argv[1])
try:
    listing = list_source(source, SemanticKitti(), {}, source / "out")
    for sample in listing.samples:
        load(source, SCHEMA, sample)
except ResourceError as error:
    print("limit:", error)
else:
    print("samples", len(listing.samples), "problems", len(listing.problems))
"""


@pytest.mark.parametrize("free", range(5))
def test_with_few_descriptors_all_is_read_or_the_limit_is_named(tmp_path, free):
    source = write_tree(tmp_path / "source", {f"00/{i:06d}": 24 for i in range(3)})
    done = run_python(LOW_LIMIT, source, free)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "samples 3 problems 0\n" or "too many open files (soft limit" in done.stdout, done.stdout
    assert free or done.stdout.startswith("limit: ")
    assert free < 4 or done.stdout.startswith("samples")


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_a_file_that_became_something_else_is_refused_and_not_waited_for(tmp_path, kind):
    root = made(tmp_path, 24, bytes(96))
    measured = measure(root, SCHEMA, SAMPLE)
    (root / BIN).unlink()
    os.mkfifo(root / BIN) if kind == "fifo" else (root / BIN).mkdir()
    with pytest.raises(FormatError, match=f"{BIN}: cannot be read"):
        load(root, SCHEMA, measured)
    assert "not a regular file" in file_size(root, BIN, None).found
    assert "cannot be read" in read_attachment(root, BIN, 24).found


def test_why_a_file_may_not_be_read_is_said(tmp_path, monkeypatch):
    root = made(tmp_path, 24, bytes(96))
    monkeypatch.setattr(os, "access", lambda *arguments: False)
    assert file_size(root, BIN, None) == 384  # opening it is what counts
    refuse(monkeypatch, "open", BIN, errno.EIO)
    assert file_size(root, BIN, None).found == f"cannot be read ({os.strerror(errno.EIO)})"
