"""What a file's bytes really are, where they are not raw numbers.

A download that failed, a pointer of Git LFS or an array saved by another program often has the right name
and even a size that fits. Its first bytes tell. Raw float32 scans and uint32 labels begin with none of these
marks: read as a number, each is a coordinate or a class that no sensor and no label set has. Where its first
four bytes alone could be a coordinate (the JPEG mark FF D8 FF 40 is 7.995 m), so much of the structure behind
them is asked for that the numbers that follow cannot have it by chance.
"""

from __future__ import annotations

import re
import zlib

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

TEXTUAL = frozenset({TEXT, JSON})
"""Guesses from printable bytes alone: labels of one byte each can look so."""

_MARKS: tuple[tuple[bytes, str], ...] = (
    (b"\x93NUMPY", NPY),
    (b"PK\x05\x06" + bytes(16), ZIP),
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed data"),  # -1.5e37
    (b"\xfd7zXZ\x00", "xz-compressed data"),
    (b"BZh91AY&SY", "bzip2-compressed data"),
    (b"# .PCD", PCD),
    (b"VERSION .7", PCD),
    (b"VERSION 0.7", PCD),
    (b"version https://git-lfs", LFS),
)
_PREFIXES = tuple(mark for mark, _ in _MARKS)

_PATTERNS: tuple[tuple[re.Pattern[bytes], str], ...] = (
    # The first segment is a table or an application's (-1.4e17 and beyond): with a frame first, it is -7.995.
    (re.compile(rb"\xff\xd8\xff[\xdb\xe0-\xef\xfe]"), "a JPEG image"),
    # A width below 12,288: larger ones are coordinates.
    (re.compile(rb"GIF8[79]a.[\x00-\x2f]", re.DOTALL), "a GIF image"),
    # The flags' upper byte: it has few bits in use.
    (re.compile(rb"PK\x03\x04...[\x00-\x28]", re.DOTALL), ZIP),
    (re.compile(rb"ply[\r\n]{1,2}(?:format|comment|obj_info) "), PLY),
    # Method, flags, time, how hard it was tried, system; whether the data behind is compressed is tried out.
    (re.compile(rb"\x1f\x8b\x08[\x00-\x1f].{4}[\x00\x02\x04][\x00-\x0d\xff]", re.DOTALL), GZIP),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), "a WebP image"),
    (re.compile(rb"LASF.{20}\x01[\x00-\x09]", re.DOTALL), LAS),
    # The magic bytes begin one raw scan in 16,000, and a scan on a grid of 0.5 m has many zeros: a frame of less
    # than 16 MB and the opcode of a value that no coordinate looks like; a module and a name in it; a value
    # that is remembered as the first; the number that torch.save once began with.
    (
        re.compile(
            rb"\x80[\x02-\x05](?:\x95.{3}\x00{5}[\]}(c\x8c]|c[A-Za-z_][\w.]{4,}\n[A-Za-z_]\w*\n|[\]})]q\x00"
            rb"|\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19)",
            re.DOTALL,
        ),
        PICKLE,
    ),
    # "<HEA" is 12.33 m: the first words must be text.
    (
        re.compile(
            rb"(?:\xef\xbb\xbf)?(?=[\t\n\f\r\x20-\x7e]{24}|[\t\n\f\r\x20-\x7e]*\Z)"
            rb"\s*<(?:!doctype\s+html|html|head|\?xml)",
            re.IGNORECASE,
        ),
        HTML,
    ),
)
_PATTERN_STARTS = frozenset(b"\xffGPp\x1fRL\x80\xef<") | frozenset(b" \t\r\n\f\v")

_FIXES = {
    NPY: "load it with numpy.load and write the raw values: array.astype(dtype).tofile(path)",
    ZIP: "unpack it, or load it with the program that wrote it and write the raw values",
    GZIP: "decompress it first (gunzip)",
    HTML: "the download failed and gave a page instead of the file: get it again",
    LFS: "fetch the real file: git lfs pull",
    PICKLE: "fastload never unpickles: load it where you trust it and write the raw values",
    EMPTY: "an unfilled download or an interrupted copy: get the file again",
}
_FIX = "convert it to the raw values"


def foreign(head: bytes) -> str | None:
    """The kind of file that begins with `head`, None for raw numbers. Costs 1-3 us.

    Not for labels of one byte each: classes such as 40 and 72 are letters.
    """
    if head.startswith(_PREFIXES):
        return next(what for mark, what in _MARKS if head.startswith(mark))
    if head and head[0] in _PATTERN_STARTS:
        for pattern, what in _PATTERNS:
            if pattern.match(head) and (what != GZIP or _inflates(head)):
                return what
    if len(head) >= MIN_TEXT_BYTES and _is_text(head):
        return JSON if head.lstrip()[:1] in (b"{", b"[") else TEXT
    return None


def _inflates(head: bytes) -> bool:
    """Whether a gzip file can begin so; little of it is decompressed."""
    try:
        zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(head, HEAD_BYTES)
    except zlib.error:
        return False
    return True


def fix_for(what: str) -> str:
    """What to do about a file that is `what`, as `foreign` says it."""
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
