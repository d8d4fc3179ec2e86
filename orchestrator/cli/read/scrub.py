"""perfctl scrub"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.cli import console, options

HELD = {
    "TARGET_INFO_SYSTEM_ENV": "the machine's environment and name",
    "META_DATA_CAPTURE": "process environments, users, folders",
    "META_DATA_EXPORT": "host, user, folders",
    "EXPORT_META_DATA": "host, user, folders",
    "ProcessStreams": "the program's output",
    "ANALYSIS_FILE": "the program's output, collected files",
    "StringIds": "strings that no row names, as process environments are",
    "rocpd_info_process": "process environments, commands",
    "rocpd_info_node": "names of hosts",
}
"""Table, or its beginning -> what stood in the rows that went."""
UNKNOWN = (
    "Not known to perfctl: passwords and tokens that neither their name nor their beginning tells; "
    "names of people, projects, data and machines in names of kernels, ranges and files; folders "
    "outside /home and /Users. Look for yours before you pass the copy on."
)


@dataclass(frozen=True, slots=True)
class ScrubOutput:
    """The copy, without any removed value."""

    path: Path
    rows_removed: Mapping[str, int]
    """Table -> rows."""
    replaced: Mapping[str, int]
    """Kind -> how many were replaced."""


def scrub(
    file: Annotated[
        Path,
        typer.Argument(
            help="A report: an nsys .sqlite, or any report that is text, gzipped or not."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The copy. Default: NAME.scrubbed.* beside the report."),
    ] = None,
    force: console.Force = False,
    as_json: options.Json = False,
) -> None:
    """Write a copy of a report without process environments, secrets and home folders. Values are
    not shown.

    The report itself is not changed. Kernels, copies, ranges and counters are the same in both.
    """
    from perfctl.orchestrator.actions.scrub import scrub as write_copy
    from perfctl.parsers import sniff

    done = write_copy(file, out, force=force)
    if as_json:
        console.as_json(ScrubOutput(done.path, done.rows, done.replaced), "scrub")
        return
    for table, rows in done.rows.items():
        why = next((held for start, held in HELD.items() if table.startswith(start)), "")
        change = "emptied" if table.startswith("rocpd") else "removed"
        console.result(
            f"{table}: {rows:,} row{'s' if rows != 1 else ''} {change}{why and f' ({why})'}"
        )
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in done.replaced.items())
    console.result(f"Replaced by (removed): {kinds or 'nothing'}")
    if "secret" in done.replaced:
        console.result("Whoever had the report has its secrets: replace those tokens.")
    console.result(UNKNOWN)
    known = f" Next: perfctl ingest {shlex.quote(str(done.path))}" if sniff(done.path) else ""
    console.result(f"Wrote {done.path}.{known}")
