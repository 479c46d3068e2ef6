"""`fastload unpack`."""

from __future__ import annotations

import argparse

from fastload.cli.common import add_verb, existing, given, print_json, progress_of, show
from fastload.units import count_of, format_seconds, format_size

_EPILOG = """\
examples:
  fastload unpack skitti /data/again
  fastload unpack skitti /data/val --split val
  fastload unpack skitti /data/one --name 'sequences/00/velodyne/000042'
"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    description = "Write the source files of a packed dataset, byte for byte."
    parser = add_verb(verbs, "unpack", "give the source files back", description, _EPILOG)
    parser.add_argument("out", metavar="OUT", help="folder of the packed dataset")
    parser.add_argument("dest", metavar="DEST", help="folder to write the files to")
    parser.add_argument("--split", help="only the samples of this split")
    parser.add_argument("--name", action="append", metavar="GLOB", help="only samples whose name matches; repeatable")
    parser.add_argument("--overwrite", action="store_true", help="write into a folder that is not empty")
    parser.add_argument(
        "--lossy-ok", action="store_true", help="go on where something was changed by packing, or left out by a repair"
    )
    parser.set_defaults(run=run, again="run the same command with --overwrite to start over")


def run(options: argparse.Namespace) -> int:
    """Unpack, and say what was written."""
    existing(options.out, "OUT")
    given(options.dest, "DEST")
    from fastload.packing.unpack import unpack

    with progress_of(options) as progress:
        report = unpack(
            options.out,
            options.dest,
            split=options.split,
            names=options.name,
            overwrite=options.overwrite,
            lossy_ok=options.lossy_ok,
            progress=progress,
        )
    if options.json:
        print_json(report.to_json())
    elif not options.quiet:
        show(
            f"unpacked {count_of(report.samples, 'sample')} and {count_of(report.attachments, 'attachment')}:"
            f" {count_of(report.files, 'file')}, {format_size(report.bytes)} in {format_seconds(report.seconds)}:"
            f" {report.out}",
            options,
        )
    return 0
