"""`fastload info`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastload.cli.common import add_verb, existing, print_json, show
from fastload.units import count_of, format_size

if TYPE_CHECKING:
    from fastload.store.info import Info

_EPILOG = """\
examples:
  fastload info skitti
  fastload info skitti --json
"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs, "info", "what a dataset holds", "What a packed dataset holds, without reading its samples.", _EPILOG
    )
    parser.add_argument("out", metavar="OUT", help="folder of the packed dataset")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print what the manifest says."""
    existing(options.out, "OUT")
    from fastload.store.info import info

    found = info(options.out)
    if options.json:
        print_json(found.to_json())
    else:
        show(describe(found), options)
    return 0


def describe(found: Info) -> str:
    """The information as a table for people."""
    splits = ", ".join(f"{split} {count:,}" for split, count in found.splits.items())
    lines = [
        ("dataset", found.root),
        ("layout", f"{found.layout} (format version {found.format_version})"),
        ("samples", f"{found.samples:,} ({splits})"),
        ("points", "none" if found.points is None else f"{found.points:,}"),
        ("shards", f"{found.shards:,}, {format_size(found.bytes)}"),
        ("source", format_size(found.source_bytes)),
        ("changed", "; ".join(found.lossy) or "nothing: what was packed comes back byte for byte"),
        ("fingerprint", found.fingerprint),
    ]
    fields = [_describe_field(name, values) for name, values in found.fields.items()]
    widths = [max(len(row[column]) for row in fields) for column in range(3)]
    table = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in fields
    ]
    return "\n".join([*(f"{label:<12} {text}" for label, text in lines), "fields", *(f"  {row}" for row in table)])


def _describe_field(name: str, values: Mapping[str, Any]) -> tuple[str, str, str, str]:
    dimensions = ["N" if values["rows"] == "points" else str(values["rows"])] if values["rows"] else []
    dimensions += map(str, values["shape"])
    shape = f"({dimensions[0]},)" if len(dimensions) == 1 else f"({', '.join(dimensions)})"
    columns = f"  {' '.join(values['columns'])}" if values["columns"] else ""
    return name, values["dtype"] or values["kind"], shape, f"in {count_of(values['samples'], 'sample')}{columns}"
