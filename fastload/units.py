"""Sizes, durations, counts and names as people write and read them."""

from __future__ import annotations

import os
import re

from fastload.errors import UsageError

_FACTORS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)
MAX_SIZE = 2**63 - 1
"""No file can be larger."""


def parse_size(value: int | str, *, setting: str) -> int:
    """Bytes meant by `value`: a number of bytes, or text such as "512MB" or "2GiB".

    Raises:
        UsageError: naming `setting`, for anything else, for sizes below 1 byte and above 8 EiB.
    """
    size: float
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = _SIZE.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[2].lower() not in _FACTORS:
            raise UsageError(f"{setting}: {brief(value)} is not a size; give bytes, or text such as 512MB or 2GiB")
        size = float(match[1]) * _FACTORS[match[2].lower()]
    if size > MAX_SIZE:
        raise UsageError(f"{setting}: {brief(value)} is more than any file can hold; give bytes, or text such as 2GiB")
    if size < 1:
        raise UsageError(f"{setting}: {brief(value)} is not a positive size; give bytes, or text such as 512MB")
    return int(size)


def brief(value: object) -> str:
    """A value as Python writes it, cut to 60 characters: for messages."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        return f"a very large {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def format_size(size_bytes: float) -> str:
    """A size for people, in powers of 1000: "1.97 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size_bytes) < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.3g} TB"


def format_seconds(seconds: float) -> str:
    """A duration for people: "8.2 s", "3 min 10 s", "2 h 05 min"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"


def count_of(number: int, noun: str) -> str:
    """A count with its noun: "1 sample", "2,000 samples"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def printable(text: str, encoding: str = "utf-8") -> str:
    """`text` with what `encoding` lacks shown as escapes, the bytes of non-UTF-8 file names among it."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


def portable_name(local: str) -> str:
    """A file's name as a dataset keeps it: the same text for the same bytes, whatever the locale.

    Python decodes the bytes of a file name by the locale's encoding; a dataset always by UTF-8, with
    surrogates for bytes that are none.
    """
    return os.fsencode(local).decode("utf-8", "surrogateescape")


def local_name(portable: str) -> str:
    """The name by which this process finds the file that a dataset calls `portable`."""
    return os.fsdecode(portable.encode("utf-8", "surrogateescape"))
