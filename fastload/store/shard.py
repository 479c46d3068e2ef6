"""Writing one shard: records into a single-file LMDB environment, published when it is whole.

Two packs of the same records give the same bytes: keys ascend, commits come every `COMMIT_BYTES` of
records, memory is zeroed before use, and nothing of clock, host or path is stored.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import lmdb

from fastload.errors import CorruptError, ResourceError
from fastload.schema import Schema
from fastload.store import fs
from fastload.store.crosscheck import cross_check
from fastload.store.record import KEY_BYTES, DamageError
from fastload.store.scan import ShardResult, scan_shard

SHARDS_FOLDER = "shards"
COMMIT_BYTES = 64 << 20
"""Record bytes between commits: they bound the memory of a pack, and where they fall fixes the file's bytes."""
_MAP_SLACK = 16 << 20


def shard_file(number: int) -> str:
    """The path of shard `number`, relative to the dataset's folder."""
    return f"{SHARDS_FOLDER}/{number:05d}.lmdb"


def is_shard_name(name: str) -> bool:
    """Whether a file of this name in the shards' folder is a shard."""
    stem = name.removesuffix(".lmdb")
    return name.endswith(".lmdb") and stem.isascii() and stem.isdigit() and len(stem) >= 5


def map_bytes(record_bytes: Iterable[int]) -> int:
    """The map size for records of these sizes: address space, not disk; it only has to be large enough.

    Large values take whole pages; small ones lie in leaves that are at least half full; each commit
    rewrites the pages of the path to the end.
    """
    page = mmap.PAGESIZE
    total = sum(-(-size // page) * page + 2 * page if size >= page // 4 else 4 * (size + 32) for size in record_bytes)
    return -(-(total + total // 8 + _MAP_SLACK) // (1 << 20)) * (1 << 20)


class ShardWriter:
    """Writes records in ascending key order into the temporary file of a shard.

    Owns the LMDB environment between `__enter__` and `__exit__`; an exception removes the file.
    """

    def __init__(self, path: Path, map_size: int, commit_bytes: int = COMMIT_BYTES) -> None:
        self._path = path
        self._temp = fs.temporary(path)
        self._map_size = map_size
        self._commit_bytes = commit_bytes
        self._pending = 0

    def __enter__(self) -> ShardWriter:
        fs.remove(self._temp)
        with fs.removed_on_failure(self._temp), self._explained():
            # No writemap: with it a full disk is SIGBUS. sync=False: one sync at the end is enough, since
            # the file gets its name only after it.
            self._env = lmdb.open(
                os.fsencode(self._temp), subdir=False, lock=False, map_size=self._map_size, sync=False,
                metasync=False, writemap=False, meminit=True, max_dbs=0, mode=0o644,
            )  # fmt: skip
            self._txn = self._env.begin(write=True)
        return self

    def put(self, key: int, record: memoryview) -> None:
        """Append a record; `key` must be larger than the one before.

        Raises:
            ResourceError: the disk is full.
        """
        with self._explained():
            if self._pending and self._pending + len(record) > self._commit_bytes:
                self._txn.commit()
                self._txn = self._env.begin(write=True)
                self._pending = 0
            if not self._txn.put(key.to_bytes(KEY_BYTES, "big"), record, append=True):
                raise ValueError(f"{self._path}: key {key} does not ascend")
        self._pending += len(record)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                with self._explained():
                    self._txn.commit()
                    self._env.sync(True)
                    cross_check(self._env, self._temp)
            else:
                self._txn.abort()
        except DamageError as damage:
            kind = CorruptError
            raise _damaged_at_once(self._path, damage) from damage
        except BaseException:
            kind = ResourceError
            raise
        finally:
            self._env.close()
            if kind is not None:
                fs.discard(self._temp)

    def _explained(self) -> _ExplainedLmdb:
        return _ExplainedLmdb(self._path)


class _ExplainedLmdb:
    """Turns what LMDB says when the disk is full into a `ResourceError` that names path and space."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, lmdb.Error):
            return
        free = fs.free_bytes(self._path)
        # A short write is LMDB's EIO, without a reason: only the disk can tell that it is full.
        full = "No space left" in str(error) or "quota" in str(error)
        if full or ("Input/output error" in str(error) and free is not None and free < 16 << 20):
            raise ResourceError(fs.full_disk_message(self._path, None, "disk full")) from error
        raise ResourceError(
            f"{self._path}: LMDB could not write it ({error}); see that the folder can be written and that no"
            " limit on memory (ulimit -v) or file size (ulimit -f) is in the way, then run the command again"
        ) from error


def publish_shard(root: Path, number: int, schema: Schema) -> ShardResult:
    """Give a written shard its name and gather what index and manifest keep of it.

    Where it cannot have its name, the written file is removed: a full disk has better use for its space.
    """
    file = shard_file(number)
    with fs.removed_on_failure(fs.temporary(root / file)):
        fs.publish(root / file)
    try:
        return scan_shard(root, file, number, schema)
    except DamageError as error:
        raise _damaged_at_once(root / file, error) from error


def _damaged_at_once(path: Path, error: DamageError) -> CorruptError:
    return CorruptError(
        f"{path}: damaged as soon as it was written ({error}); something else writes to this folder, or the"
        " disk fails; see to it, then run the command again",
        shard=f"{SHARDS_FOLDER}/{path.name}",
    )
