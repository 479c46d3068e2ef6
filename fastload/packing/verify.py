"""`fastload.verify`: everything that can be wrong with a packed dataset, by plain reads.

Nothing is mapped and LMDB's code is not run, so no damage can end the process.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from fastload.errors import CorruptError, DatasetError, DatasetNotFoundError, VersionError
from fastload.packing.execute import ProgressCallback, ProgressCounter
from fastload.packing.report import VerifyReport
from fastload.packing.verify_shard import Run, check_shard, open_file, problem, problem_of, unreadable
from fastload.schema import Problem
from fastload.store.files import BlockEntry, FileEntry, describe_blocks, read_at
from fastload.store.index import open_index
from fastload.store.manifest import MANIFEST_FILE, manifest_bytes, read_manifest
from fastload.store.names import open_names


def verify(root: str | Path, *, quick: bool = False, progress: ProgressCallback | None = None) -> VerifyReport:
    """Check a packed dataset.

    Args:
        root: the dataset's folder.
        quick: look at sizes, index, names and record headers only; else at every checksum.
        progress: called with a `Progress` after each sample.

    Returns:
        `.ok`, and one `Problem` for each thing that is wrong, with shard, sample and field where they are
        known. Damage is never raised.

    Raises:
        DatasetNotFoundError: the folder does not exist.
        VersionError: written in a newer format, about which nothing can be said.
    """
    started = time.monotonic()
    root = Path(root)
    try:
        manifest = read_manifest(root)
    except VersionError:
        raise
    except (DatasetError, OSError) as error:
        if isinstance(error, DatasetNotFoundError) and not root.is_dir():
            raise
        found = _manifest_problem(root, error)
        return VerifyReport(os.fspath(root), False, quick, 0, 0, 0, time.monotonic() - started, (found,))
    run = Run(root, manifest, quick)
    _check_spelling(run)
    _check_side_files(run)
    counter = ProgressCounter("verify", manifest.samples, manifest.bytes, progress)
    for number in range(len(manifest.shards)):
        check_shard(run, number, counter)
    if run.counted:
        _check_totals(run)
    return VerifyReport(
        root=os.fspath(root),
        ok=not run.problems,
        quick=quick,
        samples=run.samples,
        shards=len(manifest.shards),
        bytes=run.bytes,
        seconds=time.monotonic() - started,
        problems=tuple(run.problems),
    )


def _manifest_problem(root: Path, error: DatasetError | OSError) -> Problem:
    """The problem that a manifest is which cannot be used. Raises `ResourceError` when it is not the file's fault."""
    if isinstance(error, (CorruptError, DatasetNotFoundError)):
        return Problem(None, None, None, str(error), "", "", kind="manifest")
    cause = error.__cause__ if isinstance(error, DatasetError) else error
    return unreadable(root, MANIFEST_FILE, cause if isinstance(cause, OSError) else OSError(str(error)))


def _check_spelling(run: Run) -> None:
    """See that the manifest is the file that was written, not another that means the same."""
    data = manifest_bytes(run.manifest)
    file = open_file(run, FileEntry(MANIFEST_FILE, len(data), ""))
    if isinstance(file, Problem):
        run.problems.append(file)
        return
    try:
        found = read_at(file.fd, file.size, 0)
    except OSError as error:
        run.problems.append(unreadable(run.root, MANIFEST_FILE, error))
        return
    if found != data:
        what = "another spelling of what was written"
        run.problems.append(problem(run, MANIFEST_FILE, "manifest", what, "the file as written"))


def _check_side_files(run: Run) -> None:
    """Index and names: sizes, digests and form; they are used further on only when they are right."""
    manifest = run.manifest
    sound = [_check_digest(run, entry) for entry in (manifest.index, *manifest.names)]
    try:
        if sound[0]:
            run.index = open_index(run.root, manifest.schema, manifest.numbers, manifest.index)
    except (DatasetError, OSError) as error:
        run.problems.append(problem_of(run, manifest.index.file, error))
    try:
        if all(sound[1:]):
            run.names = open_names(run.root, manifest.numbers, *manifest.names)
    except (DatasetError, OSError) as error:
        run.problems.append(problem_of(run, manifest.names[0].file, error))


def _check_digest(run: Run, entry: BlockEntry) -> bool:
    """Whether a file is there with the size and digest that the manifest says; a problem is added if not."""
    found = _file_problem(run, entry)
    if found is not None:
        run.problems.append(found)
    return found is None


def _file_problem(run: Run, entry: BlockEntry) -> Problem | None:
    file = open_file(run, entry)
    if isinstance(file, Problem):
        return file
    try:
        size = file.size
        if size != entry.bytes:
            wanted = f"{entry.bytes:,} bytes as dataset.json says"
            return problem(run, entry.file, "size", f"{size:,} bytes", wanted)
        found = describe_blocks(run.root, entry.file)
        run.bytes += size
    except (CorruptError, FileNotFoundError):  # replaced meanwhile
        return problem(run, entry.file, "missing", "not a regular file any more", f"{entry.bytes:,} bytes")
    except OSError as error:
        return unreadable(run.root, entry.file, error)
    if found != entry:
        digests = f"digest {found.xxh3_128}", f"{entry.xxh3_128} as dataset.json says, and its digests of blocks"
        return problem(run, entry.file, "digest", *digests)
    return None


def _check_totals(run: Run) -> None:
    """Hold the manifest's sums against those of the records."""
    manifest = run.manifest
    found = {name: count for name, count in run.present.items() if count}
    wanted = {name: count for name, count in manifest.present.items() if count}
    for what, is_there, said in (
        ("points", run.points, manifest.points),
        ("source bytes", run.source_bytes, manifest.source_bytes),
        ("samples with each field", found, wanted),
    ):
        if is_there != said:
            what_is_there = f"{is_there} by the records"
            run.problems.append(problem(run, MANIFEST_FILE, "manifest", f"{what}: {said}", what_is_there))
