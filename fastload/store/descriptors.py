"""The process's table of open shard files: bounded, shared by all datasets, safe across threads and forks.

The table drops only its own reference to a file; the last reader closes it. (A descriptor closed under a
reader is given to the next file opened, and the read then returns another file's bytes.) All reads are
positional, so a forked child may go on with the descriptors that it inherited.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

from fastload.oserrors import raise_if_exhausted
from fastload.store.files import OpenFile

MAX_OPEN = 256
"""Upper bound of the table's default size; a quarter of the soft descriptor limit where that is lower."""
_TABLE_FULL = (errno.EMFILE, errno.ENFILE)


class DescriptorTable:
    """At most `limit` open files, the least recently used dropped first.

    Attributes:
        limit: how many the table keeps open; None: decided at first use from the descriptor limit.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self._files: OrderedDict[Hashable, OpenFile] = OrderedDict()
        # Re-entrant: a garbage collection inside the locked part may finalize a dataset, which drops its files.
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._files)

    def get(self, key: Hashable, path: str, check: Callable[[OpenFile], None]) -> OpenFile:
        """The open file of `key`; opened from `path`, and shown to `check`, when the table does not have it.

        Raises:
            OSError: it cannot be opened.
            ResourceError: no descriptor is free even though the table was emptied.
        """
        with self._lock:
            file = self._files.get(key)
            if file is not None:
                self._files.move_to_end(key)
                return file
        file = self._open(path)
        check(file)
        with self._lock:
            self._files[key] = file
            while len(self._files) > self._bound():
                self._files.popitem(last=False)
        return file

    def drop(self, belongs: Callable[[Hashable], bool]) -> None:
        """Let go of the files whose key `belongs` accepts."""
        with self._lock:
            for key in [key for key in self._files if belongs(key)]:
                del self._files[key]

    def _open(self, path: str) -> OpenFile:
        try:
            return OpenFile(path)
        except OSError as error:
            if error.errno not in _TABLE_FULL:
                raise
        self.drop(lambda _: True)
        try:
            return OpenFile(path)
        except OSError as error:
            raise_if_exhausted(error, path)
            raise

    def _bound(self) -> int:
        if self.limit is None:
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            self.limit = max(2, min(MAX_OPEN, soft // 4)) if soft != resource.RLIM_INFINITY else MAX_OPEN
        return self.limit

    def _after_fork(self) -> None:
        # Another thread of the parent may have held the lock at the moment of the fork.
        self._lock = threading.RLock()


TABLE = DescriptorTable()
"""The table that all datasets of this process share."""
os.register_at_fork(after_in_child=TABLE._after_fork)
