"""`fastload ls`."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fastload._version import __version__
from fastload.cli.common import add_verb, existing
from fastload.cli.streams import print_lines
from fastload.errors import UsageError

if TYPE_CHECKING:
    from fastload.schema import SampleInfo

_DESCRIPTION = """\
List the samples of a packed dataset in the order of their numbers, without reading them.

Plain: one name a line. Control characters (of text direction too), invisible ones,
line separators and backslashes are written as Python's escapes, so that no name breaks
a line or looks like another; the bytes of names that are not UTF-8 are as they are.
--json: one object a line, with exact names and all that is known of a sample; --long
changes nothing then.
"""
_EPILOG = """\
examples:
  fastload ls skitti --split val
  fastload ls skitti --long | less -S
  fastload ls skitti --json | jq -r 'select(.points > 120000) | .name'
"""
_LINES_AT_ONCE = 1000
_MAX_FIELDS_WIDTH = 60
_NONE = "-"


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs, "ls", "list the samples", _DESCRIPTION, _EPILOG, json_help="print one JSON object a line on stdout"
    )
    parser.add_argument("out", metavar="OUT", help="folder of the packed dataset")
    parser.add_argument(
        "--split", metavar="NAME", action="append", help="only the samples of this split; one at most, all without it"
    )
    parser.add_argument(
        "--long", action="store_true", help="a table: number, split, points, bytes, shard, fields, name"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """List the samples."""
    existing(options.out, "OUT")
    _print(_lines(options))
    return 0


def _one_split(options: argparse.Namespace) -> str | None:
    """The split that was asked for. Raises `UsageError` for several: a sample's index counts within one or all."""
    splits: list[str] = options.split or []
    if len(splits) > 1:
        found = ", ".join(map(ascii, splits))
        raise UsageError(f"--split: found {found}; expected one; list one after the other, or all without --split")
    return next(iter(splits), None)


def _lines(options: argparse.Namespace) -> Iterator[str]:
    from fastload.store.listing import list_names, list_samples, one_line

    split = _one_split(options)
    if options.json:
        return map(_json_line, list_samples(options.out, split))
    if not options.long:
        return map(one_line, list_names(options.out, split))
    return _table(list_samples(options.out, split), _widths(options.out))


def _print(lines: Iterable[str]) -> None:
    """Print line by line in pieces: a write for each would take longer than all the rest."""
    rest = iter(lines)
    while piece := list(itertools.islice(rest, _LINES_AT_ONCE)):
        print_lines(piece)


def _json_line(sample: SampleInfo) -> str:
    return json.dumps(
        {
            "schema": "fastload.ls/1",
            "fastload_version": __version__,
            "name": sample.name,
            "index": sample.index,
            "number": sample.number,
            "split": sample.split,
            "points": sample.points,
            "bytes": sample.nbytes,
            "shard": sample.shard,
            "fields": sample.fields,
        }
    )


def _widths(root: str) -> dict[str, int]:
    """Widths of the table's columns: what the manifest tells, so that no sample need be looked at before."""
    from fastload.store.info import info
    from fastload.store.listing import one_line

    found = info(root)
    return {
        "number": len(str(found.samples)),
        "split": max((len(one_line(split)) for split in found.splits), default=0),
        "fields": min(len(",".join(found.fields)), _MAX_FIELDS_WIDTH),
    }


def _table(samples: Iterable[SampleInfo], widths: dict[str, int]) -> Iterator[str]:
    from fastload.store.listing import one_line

    number, split, fields = (max(width, len(title)) for title, width in widths.items())

    def row(cells: tuple[object, ...]) -> str:
        return (
            f"{cells[0]:>{number}}  {cells[1]:<{split}}  {cells[2]:>8}  {cells[3]:>9}  {cells[4]:<17}"
            f"  {cells[5]:<{fields}}  {cells[6]}"
        )

    yield row(("number", "split", "points", "bytes", "shard", "fields", "name"))
    for sample in samples:
        points = _NONE if sample.points is None else sample.points
        yield row((
            sample.number, one_line(sample.split), points, sample.nbytes, sample.shard,
            ",".join(sample.fields) or _NONE, one_line(sample.name),
        ))  # fmt: skip
