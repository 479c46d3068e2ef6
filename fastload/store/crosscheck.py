"""Two readers of one file: the page walk's offsets held against LMDB's own reading of a shard just written.

All later reading goes by the recorded offsets. A form of LMDB file that the walk would misunderstand is found
here, before the shard has its name.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import lmdb

from fastload.store import pages
from fastload.store.files import OpenFile
from fastload.store.record import DamageError

_END_BYTES = 64
"""What is compared of each end of a value. A large value lies on consecutive pages, so that both its ends are where
it says when it is; reading all of it again would cost as much as writing it."""


def cross_check(env: lmdb.Environment, path: Path) -> None:
    """See that the page walk of `path` finds each value where LMDB has it, and all of them.

    Args:
        env: the file's environment, its writing committed.
        path: the file.

    Raises:
        DamageError: the two do not agree.
    """
    file = OpenFile(path)
    with env.begin(buffers=True) as transaction, transaction.cursor() as cursor:
        for entry, item in itertools.zip_longest(pages.walk(file.fd), cursor):
            if entry is None or item is None:
                raise DamageError("fewer records in one reading than in the other", "the same", kind="pages")
            _compare(file.fd, entry, *item)


def _compare(fd: int, entry: pages.Entry, key: Any, value: Any) -> None:
    found = entry.key, entry.nbytes, *_ends(fd, entry)
    wanted = bytes(key), len(value), bytes(value[:_END_BYTES]), bytes(value[max(len(value) - _END_BYTES, 0) :])
    if found != wanted:
        said = f"{len(value)} bytes by LMDB itself"
        raise DamageError(f"key {entry.key.hex()} with {entry.nbytes} bytes at {entry.offset}", said, kind="pages")


def _ends(fd: int, entry: pages.Entry) -> tuple[bytes, bytes]:
    head = os.pread(fd, min(_END_BYTES, entry.nbytes), entry.offset)
    tail_bytes = min(_END_BYTES, entry.nbytes)
    return head, os.pread(fd, tail_bytes, entry.offset + entry.nbytes - tail_bytes)
