"""What a file's bytes really are, where they are not raw numbers.

A download that failed, a pointer of Git LFS or an array saved by another program often has the right name
and even a size that fits. Its first bytes tell. Raw float32 scans and uint32 labels begin with none of these
marks: read as a number, each is a coordinate or a class that no sensor and no label set has.
"""

from __future__ import annotations

import re

HEAD_BYTES = 512
"""How many of a file's first bytes are looked at."""
MIN_TEXT_BYTES = 8
MIN_UTF8_BYTES = 64
"""Shorter raw data can be valid UTF-8 by chance."""

_PRINTABLE = bytes([*range(0x20, 0x7F), *b"\t\n\r\f"])

NPY = "a NumPy .npy file"
ZIP = "a zip archive (.npz, .zip or .pt)"
GZIP = "gzip-compressed data"
PCD = "a PCD point cloud"
PLY = "a PLY point cloud"
LAS = "a LAS point cloud"
PICKLE = "a Python pickle"
HTML = "an HTML page"
JSON = "JSON text"
LFS = "a Git LFS pointer"
TEXT = "text"
EMPTY = "an empty file"
ZEROS = "nothing but zero bytes"

_MARKS: tuple[tuple[bytes, str], ...] = (
    (b"\x93NUMPY", NPY),
    (b"PK\x03\x04", ZIP),
    (b"PK\x05\x06", ZIP),
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF87a", "a GIF image"),
    (b"GIF89a", "a GIF image"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed data"),
    (b"\xfd7zXZ\x00", "xz-compressed data"),
    (b"BZh91AY&SY", "bzip2-compressed data"),
    (b"# .PCD", PCD),
    (b"VERSION .7", PCD),
    (b"VERSION 0.7", PCD),
    (b"ply\n", PLY),
    (b"ply\r", PLY),
    (b"version https://git-lfs", LFS),
)
_PREFIXES = tuple(mark for mark, _ in _MARKS)

_PATTERNS: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"\x1f\x8b\x08[\x00-\x1f]"), GZIP),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), "a WebP image"),
    (re.compile(rb"LASF.{20}\x01[\x00-\x09]", re.DOTALL), LAS),
    # The two magic bytes alone begin one raw scan in 16,000: what follows them must fit too.
    (
        re.compile(
            rb"\x80[\x02-\x05](?:\x95.{5}\x00\x00\x00|c[\w.]+\n|[\]\x7d)(][q\x94]|X.\x00\x00\x00|\x8a\x0al\xfc)",
            re.DOTALL,
        ),
        PICKLE,
    ),
    (re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html|head|\?xml)", re.IGNORECASE), HTML),
)
_PATTERN_STARTS = frozenset(b"\x1fRL\x80\xef<") | frozenset(b" \t\r\n\f\v")

_FIXES = {
    NPY: "load it with numpy.load and write the raw values: array.astype(dtype).tofile(path)",
    ZIP: "unpack it, or load it with the program that wrote it and write the raw values",
    GZIP: "decompress it first (gunzip)",
    HTML: "the download failed and gave a page instead of the file: get it again",
    LFS: "fetch the real file: git lfs pull",
    PICKLE: "fastload never unpickles: load it where you trust it and write the raw values",
    EMPTY: "an unfilled download or an interrupted copy: get the file again",
    ZEROS: "an unfilled download or an interrupted copy: get the file again",
}
_FIX = "use the layout for such files, or convert it to the raw values"


def what_is(head: bytes, size: int) -> str | None:
    """What a file of `size` bytes that begins with `head` is, None where it may well be raw numbers.

    "Nothing but zero bytes" is only said where `head` is the whole file. Label files of nothing but zeros are
    legal: they call `foreign` instead.
    """
    if size == 0:
        return EMPTY
    if len(head) >= size and not any(head):
        return ZEROS
    return foreign(head[:HEAD_BYTES])


def foreign(head: bytes) -> str | None:
    """The kind of file that begins with `head`, None for raw numbers. Costs 1-3 us.

    Not for labels of one byte each: classes such as 40 and 72 are letters.
    """
    if head.startswith(_PREFIXES):
        return next(what for mark, what in _MARKS if head.startswith(mark))
    if head and head[0] in _PATTERN_STARTS:
        for pattern, what in _PATTERNS:
            if pattern.match(head):
                return what
    if len(head) >= MIN_TEXT_BYTES and _is_text(head):
        return JSON if head.lstrip()[:1] in (b"{", b"[") else TEXT
    return None


def fix_for(what: str) -> str:
    """What to do about a file that is `what`, as `what_is` says it."""
    return _FIXES.get(what, _FIX)


def _is_text(head: bytes) -> bool:
    head = head.removeprefix(b"\xef\xbb\xbf")
    rest = head.translate(None, _PRINTABLE)
    if not rest:
        return True
    if min(rest) < 0x80 or len(head) < MIN_UTF8_BYTES or len(rest) > len(head) // 2:
        return False
    return _is_utf8(head)


def _is_utf8(head: bytes) -> bool:
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        # A character cut off at the end of the head is no fault.
        return error.start >= len(head) - 3
    return True
