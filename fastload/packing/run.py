"""`fastload.pack`: a folder of source files becomes a packed dataset."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastload.errors import SourceError, UsageError
from fastload.layouts.base import Layout
from fastload.layouts.registry import detect_layout, get_layout
from fastload.layouts.splits import read_splits
from fastload.packing.execute import (
    Findings,
    ProgressCallback,
    ProgressCounter,
    check_attachments,
    check_samples,
    write_shard,
)
from fastload.packing.output import abandon, begin, check_output, check_space, claim_output
from fastload.packing.plan import Listing, Plan, list_source, make_plan
from fastload.packing.publish import contents_of, publish_dataset
from fastload.packing.report import PackReport
from fastload.schema import Problem
from fastload.store.manifest import MANIFEST_FILE, Manifest
from fastload.store.scan import ShardResult
from fastload.units import parse_size

DEFAULT_SHARD_SIZE = "512MiB"
"""Large enough that a 300 GB dataset has few hundred open files, small enough to copy or repair one."""


def pack(
    source: str | Path,
    out: str | Path,
    *,
    layout: str | Layout | None = None,
    shard_size: int | str = DEFAULT_SHARD_SIZE,
    overwrite: bool = False,
    skip_bad: bool = False,
    force: bool = False,
    progress: ProgressCallback | None = None,
    **layout_options: Any,
) -> PackReport:
    """Pack a folder of source files losslessly into a dataset.

    Nothing is published unless all is well: the manifest, by which a dataset exists, is written last.

    Args:
        source: the folder with the source files.
        out: the folder to write the dataset to; made where it is missing.
        layout: how the source is read, by name or as a `Layout`; detected when None.
        shard_size: about how large a shard may become: bytes, or text such as "512MiB".
        overwrite: replace a dataset that is at `out` already. The sources are read once before it is removed,
            so that bad ones leave it as it is; but it is removed before the new one is written, so that a kill
            or a disk that fills up leaves an unfinished pack.
        skip_bad: leave bad samples out (they are in the report) instead of stopping. All files are then
            read twice: the order of samples is fixed before the first is written.
        force: pack files whose values look wrong (coordinates that no LiDAR gives).
        progress: called with a `Progress` after each sample.
        **layout_options: options of the layout; `splits=` maps split names to lists of sequences, or is the
            path of a YAML or JSON file that does.

    Returns:
        What was packed, left out and ignored.

    Raises:
        UsageError: wrong arguments, or `out` is in use for something else.
        SourceError: bad files, all of them in `.problems`; nothing was published.
        LockedError: another pack is writing to `out`.
        ResourceError: the disk is full, or too full for the dataset.
    """
    started = time.monotonic()
    _check_not_empty(source=source, out=out)
    source, out = Path(source), Path(out)
    shard_bytes = parse_size(shard_size, setting="shard_size")
    _check_folders(source, out)
    reader = _choose_layout(layout, source)
    options = _resolve_options(layout_options)
    check_output(out, overwrite=overwrite)
    listing = list_source(source, reader, options, out)
    replaces = (out / MANIFEST_FILE).exists()
    if listing.problems or skip_bad or replaces:
        listing = _check_listing(source, reader, options, listing, progress, skip_bad=skip_bad, force=force)
    plan = make_plan(source, reader, options, listing, shard_bytes)
    if plan.samples == 0:
        raise _nothing_to_pack(source, reader, listing)
    with claim_output(out):
        check_output(out, overwrite=overwrite)  # again: another pack may have ended here meanwhile
        check_space(out, plan.least_bytes)
        findings = Findings()
        manifest = _write(out, plan, findings, progress, force=force)
    return _report(out, plan, findings, manifest, time.monotonic() - started)


def _report(out: Path, plan: Plan, findings: Findings, manifest: Manifest, seconds: float) -> PackReport:
    return PackReport(
        root=os.fspath(out),
        layout=plan.layout,
        samples=manifest.samples,
        points=manifest.points,
        splits={split: manifest.split_size(split) for split in manifest.splits},
        shards=len(manifest.shards),
        bytes=manifest.bytes,
        source_bytes=manifest.source_bytes,
        seconds=seconds,
        resumed_shards=0,
        problems=(*plan.problems, *findings.forced),
        notes=(*plan.notes, *_note_nonfinite(findings)),
        ignored=plan.ignored,
        nonfinite=findings.nonfinite,
    )


def _write(out: Path, plan: Plan, findings: Findings, progress: ProgressCallback | None, *, force: bool) -> Manifest:
    """Shards, then index, names and manifest; nothing is published when a sample turns out bad."""
    counter = ProgressCounter("pack", plan.samples, plan.source_bytes, progress)
    begin(out)
    results: list[ShardResult] = []
    for shard in plan.shards:
        if findings.problems:
            check_samples(plan, shard.samples, findings, counter, force=force)
            continue
        result = write_shard(out, plan, shard, findings, counter, force=force)
        if result is not None:
            results.append(result)
    if findings.problems:
        abandon(out)
        raise SourceError(problems=findings.problems)
    splits = {split: (part,) for split, part in plan.splits.items()}
    return publish_dataset(out, contents_of(plan.kind, results, splits, plan.source_bytes))


def _check_not_empty(**paths: str | Path) -> None:
    for name, path in paths.items():
        if not os.fspath(path):
            raise UsageError(f"{name}: an empty path; give a folder")


def _check_folders(source: Path, out: Path) -> None:
    if not source.is_dir():
        what = "not a folder" if source.exists() else "there is no such folder"
        raise UsageError(f"{source}: {what}; give the folder that holds the source files")
    real_source, real_out = Path(os.path.realpath(source)), Path(os.path.realpath(out))
    if real_source == real_out or real_out in real_source.parents:
        raise UsageError(f"{out}: the output is the source, or holds it; choose another folder for the dataset")


def _choose_layout(layout: str | Layout | None, source: Path) -> Layout:
    if layout is None:
        return detect_layout(source)
    return get_layout(layout) if isinstance(layout, str) else layout


def _resolve_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The layout's options as the manifest may keep them: what a file says, not where it lies."""
    if options.get("splits") is None:
        return {name: value for name, value in options.items() if name != "splits"}
    splits = read_splits(options["splits"])
    sequences = {split: [s for s, its_split in splits.of.items() if its_split == split] for split in splits.names}
    return {**options, "splits": sequences}


def _check_listing(
    source: Path,
    layout: Layout,
    options: Mapping[str, Any],
    listing: Listing,
    progress: ProgressCallback | None,
    *,
    skip_bad: bool,
    force: bool,
) -> Listing:
    """Read every sample before the first is written, so that one run reports all that is bad.

    Gives the listing of the good ones when bad ones are to be skipped.

    Raises:
        SourceError: there are bad ones, and they are not to be skipped.
    """
    plan = make_plan(source, layout, options, listing, 1 << 62)
    findings = Findings()
    counter = ProgressCounter("check", plan.samples, plan.source_bytes, progress)
    good = check_samples(plan, listing.samples, findings, counter, force=force)
    attachments = check_attachments(source, listing.attachments, findings)
    problems = (*listing.problems, *findings.problems)
    if problems and not skip_bad:
        raise SourceError(problems=problems)
    return Listing(tuple(good), attachments, problems, listing.notes, listing.ignored)


def _nothing_to_pack(source: Path, layout: Layout, listing: Listing) -> SourceError:
    if listing.problems:
        return SourceError(problems=listing.problems)
    notes = "".join(f"\n  {note}" for note in listing.notes)
    found = Problem(
        os.fspath(source), None, None, "no samples", f"a tree of layout {layout.name}",
        f"see that the path and the layout are right{notes}", kind="empty",
    )  # fmt: skip
    return SourceError(problems=[found])


def _note_nonfinite(findings: Findings) -> list[str]:
    if not findings.nonfinite:
        return []
    return [
        f"{findings.nonfinite:,} NaN or infinite values in {findings.nonfinite_files:,} samples were packed as"
        f" they are; the first is in {findings.first_nonfinite}"
    ]
