"""perfctl trace"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console, options, output
from perfctl.orchestrator.errors import UsageError


def trace(
    run: Annotated[int, typer.Option(help="Number of the run, from 'perfctl runs'.")],
    step: Annotated[int | None, typer.Option(help="Measured step. Default: the last one.")] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Everything that was captured, not one step.")] = False,
    out: Annotated[Path | None, typer.Option(help="FILE.json or .json.gz. Default: trace-runN.json.gz.")] = None,
    force: output.Force = False,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Write one step as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing: kernels, copies, ranges."""
    from perfctl.orchestrator.report import trace_events
    from perfctl.orchestrator.store import database, read

    if whole and step is not None:
        raise UsageError("--whole and --step together", "Choose one")
    target = out or Path(f"trace-run{run}.json.gz")
    if not target.name.endswith((".json", ".json.gz")):
        raise UsageError(f"--out: '{target}' is no .json or .json.gz", "Perfetto opens these")
    output.check_free(target, force=force)
    with database.reading(store or DEFAULT) as connection:
        (found,) = read.load(connection, [run])
    known = trace_events.steps(found)
    if step is None and not whole and known:
        step = known[-1]
    if step is None and not whole:
        console.note(f"run {run} has no measured steps: everything that was captured is written")
    content = trace_events.trace(found, step)
    with output.replacing(target, force=force) as partial:
        _write(partial, content, packed=target.suffix == ".gz")
    events = sum(event["ph"] != "M" for event in content["traceEvents"])
    if as_json:
        console.as_json({"path": str(target), "run": run, "step": step, "events": events})
    else:
        console.result(
            f"Wrote {target} ({events:,} events). Next: open it in ui.perfetto.dev, which keeps it in your browser"
        )


def _write(path: Path, content: dict[str, Any], *, packed: bool) -> None:
    """The same content gives the same bytes."""
    import gzip
    import json

    text = json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if packed else text)
