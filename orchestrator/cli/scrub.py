"""perfctl scrub"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.errors import UsageError


def scrub(
    file: Annotated[
        Path, typer.Argument(help="A report: an nsys .sqlite, or any report that is text, gzipped or not.")
    ],
    out: Annotated[Path | None, typer.Option(help="The copy. Default: NAME.scrubbed.* beside the report.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the copy if it is there.")] = False,
    as_json: options.Json = False,
) -> None:
    """Write a copy of a report without the process environments and secrets in it; what was found is named, not shown.

    The report itself stays as it is. Kernels, copies, ranges and counters are the same in both.
    """
    target = out or beside(file)
    if not file.exists():
        raise UsageError(f"{file}: there is no such file", "Check the path")
    if target.exists() and target.samefile(file):
        raise UsageError(f"--out: {target} is the report itself", "Name another file")
    if target.exists() and not force:
        raise UsageError(f"{target} is there already", "Say --force to replace it, or --out for another name")
    if not target.parent.is_dir():
        raise UsageError(f"--out: there is no folder {target.parent}", "Make it first")
    from perfctl.parsers import sniff
    from perfctl.parsers.scrub import scrub as write_copy

    done = write_copy(file, target)
    if as_json:
        console.as_json({"path": str(target), "rows_removed": dict(done.rows), "looked_like_secrets": list(done.names)})
        return
    for table, rows in done.rows.items():
        console.result(f"{table}: {rows:,} rows removed")
    found = f"Looked like secrets, and gone: {', '.join(done.names)}" if done.names else "Nothing looked like a secret."
    console.result(found)
    if done.names:
        console.result("Whoever had the report itself had them too: replace those tokens.")
    known = f" Next: perfctl ingest {shlex.quote(str(target))}" if sniff(target) else ""
    console.result(f"Wrote {target}.{known}")


def beside(file: Path) -> Path:
    """Where the copy goes: report.sqlite -> report.scrubbed.sqlite, trace.json.gz -> trace.scrubbed.json.gz."""
    endings = file.suffixes[-2:] if file.suffix == ".gz" else file.suffixes[-1:]
    ending = "".join(endings)
    return file.with_name(f"{file.name.removesuffix(ending)}.scrubbed{ending}")
