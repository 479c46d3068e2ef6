"""Raw files: rows of numbers without a header. How many a file holds, and why it does not fit where it does not."""

from __future__ import annotations

from dataclasses import dataclass

from fastload.errors import FormatError
from fastload.formats.base import Buffer, Doubt
from fastload.formats.sniff import EMPTY, HEAD_BYTES, fix_for, foreign
from fastload.schema import Problem

COLUMNS_IN_USE = range(3, 11)
"""Column counts that point files come with: x y z alone to x y z, intensity, ring, time, normal and so on."""
MAX_COLUMNS = 32
"""Points and labels that fit at more columns than this fit by chance."""
VALUE_BYTES = 4
MAX_HEADER_BYTES = 256
"""Surplus bytes up to here may be a header: NumPy's is 80 or 128 bytes, a count 4 or 8."""

_WIDTHS = {
    1: "1 byte a point: uint8? 1 byte a label would fit",
    2: "2 bytes a point: uint16, a voxel label? 2 bytes a label would fit",
    4: "4 bytes a point: uint32, a SemanticKITTI label? 4 bytes a label would fit",
    8: "8 bytes a point: int64? 8 bytes a label would fit",
}


@dataclass(frozen=True)
class Row:
    """What one row of a raw file is.

    Attributes:
        nbytes: its bytes.
        noun: the word for it ("point", "label").
        content: what it holds, in words.
        columns: how many 4-byte values it has where other counts are in use too, else 0.
    """

    nbytes: int
    noun: str
    content: str
    columns: int = 0


def count_rows(size_bytes: int, row: Row, head: bytes = b"") -> int:
    """How many rows a file of this size holds.

    Raises `FormatError` when it is not a whole number of them, or none.
    """
    count, remainder = divmod(size_bytes, row.nbytes)
    if remainder or not count:
        raise refusal(explain_size(size_bytes, row, head), "size")
    return count


def count_raw_rows(data: Buffer, row: Row) -> int:
    """How many rows `data` holds, once its first bytes have been seen to be no other kind of file.

    Raises `FormatError` for another kind of file and for a size that does not fit.
    """
    view = memoryview(data)
    head = view[:HEAD_BYTES].tobytes()
    what = foreign(head)
    if what is not None:
        raise refusal(_explain_foreign(view.nbytes, what, row), "format")
    return count_rows(view.nbytes, row, head)


def refusal(doubt: Doubt, kind: str) -> FormatError:
    """The error for a file that is refused, with one `Problem` that names no path yet."""
    return FormatError(problems=[Problem(None, None, None, doubt.found, doubt.expected, doubt.fix, kind)])


def explain_size(size_bytes: int, row: Row, head: bytes = b"") -> Doubt:
    """Why a file of this size is not rows of this kind. `head`: its first bytes, where they are at hand."""
    if size_bytes == 0:
        return Doubt("0 bytes", f"{row.noun}s of {row.nbytes} bytes ({row.content})", fix_for(EMPTY))
    what = foreign(head)
    if what is not None:
        return _explain_foreign(size_bytes, what, row)
    remainder = size_bytes % row.nbytes
    return Doubt(
        f"{size_bytes} bytes is not a multiple of {row.nbytes}: {row.nbytes} bytes a {row.noun}, remainder {remainder}",
        f"a whole number of {row.nbytes}-byte {row.noun}s ({row.content})",
        _size_fix(size_bytes, row, head),
    )


def explain_counts(points_bytes: int, point_bytes: int, labels_bytes: int, label_bytes: int) -> Doubt | None:
    """Why a file of labels does not belong to a file of points; None where their counts are the same.

    Also None where `points_bytes` is no whole number of points: `explain_size` speaks of that.

    Args:
        points_bytes: size of the file of points, float32 values in rows.
        point_bytes: bytes of one point as it is declared.
        labels_bytes: size of the file of labels.
        label_bytes: bytes of one label as it is declared.
    """
    points, incomplete = divmod(points_bytes, point_bytes)
    if incomplete or points * label_bytes == labels_bytes:
        return None
    expected = f"{points:,} labels ({points * label_bytes} bytes), one a point"
    labels, rest = divmod(labels_bytes, label_bytes)
    width = fitting_width(points, labels_bytes)
    if width:
        found = f"{points:,} points, {labels_bytes:,} bytes of labels" if rest else _counts(points, labels, label_bytes)
        columns = 0 if rest else _columns_for(points_bytes, labels)
        other = f"; or the points have {columns} columns: convert them" if columns in COLUMNS_IN_USE else ""
        fix = f"write labels of {_byte_count(label_bytes)} each{other}"
        return Doubt(f"{found}; {_WIDTHS[width]}", expected, fix)
    if rest:
        text = f"{points:,} points, {labels_bytes} bytes of labels: not a multiple of {label_bytes}"
        return Doubt(text, expected, "the file of labels is cut short or of another kind: get it again")
    columns = _columns_for(points_bytes, labels)
    if columns:
        return _explain_columns(points, point_bytes // VALUE_BYTES, labels, columns)
    return _explain_difference(points, labels, label_bytes, expected)


def fitting_width(points: int, labels_bytes: int) -> int:
    """The bytes of one label, of those in use, at which a file has one label a point; 0 where none fits."""
    width = labels_bytes // points if points and labels_bytes % points == 0 else 0
    return width if width in _WIDTHS else 0


def _explain_columns(points: int, declared: int, labels: int, columns: int) -> Doubt:
    return Doubt(
        f"{points:,} points if {declared} columns, {labels:,} labels;"
        f" {labels:,} points if {columns} columns: {columns} columns fit",
        f"as many labels as points of {declared} columns",
        f"convert the points to {declared} columns",
    )


def _explain_difference(points: int, labels: int, label_bytes: int, expected: str) -> Doubt:
    text = _counts(points, labels, label_bytes)
    surplus = (labels - points) * label_bytes
    if 0 < surplus <= MAX_HEADER_BYTES:
        text += f"; {surplus} bytes more than {points:,} labels need: a stray header of {surplus} bytes?"
    return Doubt(
        text,
        expected,
        "one of the two is cut short or another scan's: get both again; or the labels are those of a filtered"
        " scan: nothing is cut or padded, write one label for every point of the scan",
    )


def _explain_foreign(size_bytes: int, what: str, row: Row) -> Doubt:
    return Doubt(f"{size_bytes} bytes that are {what}", f"raw {row.noun}s ({row.content})", fix_for(what))


def _size_fix(size_bytes: int, row: Row, head: bytes) -> str:
    header = _count_header(size_bytes, row, head)
    if header:
        return f"the first {header} bytes are the number of what follows, a header: strip them"
    if not row.columns:
        return f"the file is cut short, or its {row.noun}s have another width: get it again or convert it"
    fits = [
        f"{size_bytes // (n * VALUE_BYTES):,} {row.noun}s if {n} columns"
        for n in COLUMNS_IN_USE
        if size_bytes % (n * VALUE_BYTES) == 0
    ]
    others = f" ({', '.join(fits)})" if fits else ""
    return f"the file is cut short or has other columns{others}: get it again, or convert it"


def _count_header(size_bytes: int, row: Row, head: bytes) -> int:
    """Bytes of a header that counts the rows or the bytes behind it, 0 where there is none."""
    for width in (4, 8):
        rest = size_bytes - width
        told = int.from_bytes(head[:width], "little")
        if rest > 0 and len(head) >= width and rest % row.nbytes == 0 and told in (rest, rest // row.nbytes):
            return width
    return 0


def _columns_for(points_bytes: int, labels: int) -> int:
    """The column count at which a file of float32 points has as many points as there are labels, else 0."""
    if not labels or points_bytes % (labels * VALUE_BYTES):
        return 0
    columns = points_bytes // (labels * VALUE_BYTES)
    return columns if COLUMNS_IN_USE.start <= columns <= MAX_COLUMNS else 0


def _counts(points: int, labels: int, label_bytes: int) -> str:
    return f"{points:,} points, {labels:,} labels of {_byte_count(label_bytes)}"


def _byte_count(count: int) -> str:
    return "1 byte" if count == 1 else f"{count} bytes"
