"""perfctl scrub"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.cli import console, options


def scrub(
    file: Annotated[
        Path, typer.Argument(help="A report: an nsys .sqlite, or any report that is text, gzipped or not.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The copy. Default: NAME.scrubbed.* beside the report.")
    ] = None,
    force: console.Force = False,
    as_json: options.Json = False,
) -> None:
    """Write a copy of a report without process environments and secrets. Secrets are named, their values are not shown.

    The report itself is not changed. Kernels, copies, ranges and counters are the same in both.
    """
    from perfctl.orchestrator.actions.ingest.scan_file import scrub as run
    from perfctl.parsers import sniff

    done = run(file, out, force=force)
    target = done.path
    if as_json:
        console.as_json({"path": str(target), "rows_removed": dict(done.rows), "looked_like_secrets": list(done.names)})
        return
    for table, rows in done.rows.items():
        console.result(f"{table}: {rows:,} rows removed")
    found = f"Looked like secrets, and gone: {', '.join(done.names)}" if done.names else "Nothing looked like a secret."
    console.result(found)
    if done.names:
        console.result("Whoever had the report has them: replace those tokens.")
    known = f" Next: perfctl ingest {shlex.quote(str(target))}" if sniff(target) else ""
    console.result(f"Wrote {target}.{known}")
