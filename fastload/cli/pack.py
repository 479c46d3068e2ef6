"""`fastload pack`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fastload.cli.common import add_verb, existing, given, print_json, progress_of, say, show
from fastload.errors import UsageError, list_problems
from fastload.units import count_of, format_seconds, format_size

if TYPE_CHECKING:
    from fastload.packing.report import PackReport

_DESCRIPTION = """\
Pack a folder of source files losslessly into a dataset of LMDB shards.

The layout says how the folder is read; it is detected when not given. Nothing is
published unless every file is what it should be: bad ones are all listed, in one run.

layouts:
  semantickitti   sequences/NN/{velodyne,labels,calib.txt,poses.txt,times.txt}
"""
_EPILOG = """\
examples:
  fastload pack /data/SemanticKITTI skitti
  fastload pack semantickitti /data/SemanticKITTI skitti --shard-size 1GiB
  fastload pack /data/mine mine --splits splits.yaml    # train: [0, 1], val: [2]
"""
_MAX_LISTED = 10


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "pack", "pack source files into a dataset", _DESCRIPTION, _EPILOG)
    parser.usage = "fastload pack [LAYOUT] SRC OUT [options]"
    parser.add_argument("words", nargs="+", metavar="[LAYOUT] SRC OUT",
                        help="how to read the source (optional), its folder, the folder to write")  # fmt: skip
    parser.add_argument("--shard-size", default=None, metavar="SIZE",
                        help="about how large a shard may become (default 512MiB)")  # fmt: skip
    parser.add_argument("--splits", metavar="FILE",
                        help="YAML or JSON file: split name -> sequences (default: the official split)")  # fmt: skip
    parser.add_argument("--subset", action="store_true",
                        help="sequences are incomplete: take poses and times by scan number")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true",
                        help="replace a dataset that is at OUT already; it is removed before the new one is written,"
                        " once all sources have been read: a disk that runs full then leaves neither")  # fmt: skip
    parser.add_argument("--skip-bad", action="store_true",
                        help="leave bad samples out and list them; reads the source twice")  # fmt: skip
    parser.add_argument("--force", action="store_true",
                        help="pack files whose values look wrong (coordinates that no LiDAR gives)")  # fmt: skip
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Pack, and say what was packed, left out and ignored."""
    if len(options.words) not in (2, 3):
        raise UsageError(
            f"SRC and OUT are needed, and LAYOUT may stand before them; found {' '.join(options.words)!r}:"
            " fastload pack [LAYOUT] SRC OUT"
        )
    *layouts, source, out = options.words
    folder = existing(source, "SRC")
    given(out, "OUT")
    if options.splits is not None:
        given(options.splits, "--splits")
    from fastload.layouts.registry import detect_layout
    from fastload.packing.run import DEFAULT_SHARD_SIZE, pack

    layout = layouts[0] if layouts else detect_layout(folder).name
    if not layouts:
        say(f"layout: {layout} (detected)", options)
    arguments = {"splits": options.splits} if options.splits is not None else {}
    if options.subset:
        arguments["subset"] = True
    with progress_of(options) as progress:
        report = pack(
            source,
            out,
            layout=layout,
            shard_size=DEFAULT_SHARD_SIZE if options.shard_size is None else options.shard_size,
            overwrite=options.overwrite,
            skip_bad=options.skip_bad,
            force=options.force,
            progress=progress,
            **arguments,
        )
    for note in report.notes:
        say(f"note: {note}", options)
    if report.ignored:
        say(_describe_ignored(report.ignored), options)
    if report.problems:
        what = "left out, or packed all the same (--force)" if options.force else "left out"
        say(f"{what}: {list_problems(report.problems)}", options)
    if options.json:
        print_json(report.to_json())
    elif not options.quiet:
        show(_summary(report), options)
    return 0


def _summary(report: PackReport) -> str:
    splits = ", ".join(f"{split} {count:,}" for split, count in report.splits.items())
    rate = format_size(report.source_bytes / max(report.seconds, 1e-9))
    return (
        f"packed {count_of(report.samples, 'sample')} ({splits}), {report.points:,} points,"
        f" {format_size(report.source_bytes)} into {count_of(report.shards, 'shard')} in"
        f" {format_seconds(report.seconds)} ({rate}/s): {report.root}"
    )


def _describe_ignored(ignored: tuple[str, ...]) -> str:
    listed = ", ".join(ignored[:_MAX_LISTED])
    more = f" and {len(ignored) - _MAX_LISTED:,} more" if len(ignored) > _MAX_LISTED else ""
    return f"ignored, neither sample nor attachment: {count_of(len(ignored), 'file')}: {listed}{more}"
