"""perfctl trace"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console as output
from perfctl.orchestrator.cli import options


def trace(
    run: Annotated[int, typer.Argument(help="Number of the run, from 'perfctl runs'.")],
    step: Annotated[int | None, typer.Option(help="Measured step. Default: the last one.")] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Everything that was captured, not one step.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="FILE.json or .json.gz. Default: trace-runN.json.gz."),
    ] = None,
    force: output.Force = False,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Write one step as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing: kernels,
    copies, ranges, operators, readings."""
    from perfctl.orchestrator.actions import export as actions

    written = actions.trace(
        run, step=step, whole=whole, out=out, force=force, store=store or DEFAULT, messages=output
    )
    if as_json:
        output.as_json(written, "trace")
    else:
        singular = {"copies": "copy"}
        parts = [
            f"{count:,} {singular.get(what, what[:-1]) if count == 1 else what}"
            for what, count in written.counted._asdict().items()
            if count
        ]
        output.result(
            f"Wrote {written.path} ({', '.join(parts)}). "
            "Next: open it in ui.perfetto.dev, which keeps it in your browser"
        )
