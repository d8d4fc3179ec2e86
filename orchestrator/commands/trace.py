"""Write one step of a run as a trace for other programs."""

from __future__ import annotations

import gzip
import json
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from perfctl.orchestrator.commands.declare import (
    DEFAULT_STORE,
    Command,
    Events,
    Force,
    Option,
    Store,
    api,
)
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.files import check_free, replacing
from perfctl.orchestrator.report.files.trace import TraceCounts
from perfctl.orchestrator.report.files.trace import steps as steps_of
from perfctl.orchestrator.report.files.trace import trace as trace_of
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.stored_runs import only_run, shown


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace that was written."""

    JSON_INLINED = ("counts",)

    path: Path
    run: int
    step: int | None
    """None: everything that was captured."""
    events: int
    counts: TraceCounts
    """Events by what they are of: kernels, copies, ranges, operators, samples, arrows."""


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Write one step as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing: kernels,
    copies, ranges, operators and samples. The same run gives the same bytes.

    Raises UsageError for a request that makes no sense, StoreError if there is no store or no such
    run.
    """

    run: Annotated[int, Option("Number of the run, from 'perfctl runs'.", is_argument=True)]
    _: KW_ONLY
    step: Annotated[int | None, Option("Measured step. Default: the last one.")] = None
    whole: Annotated[bool, Option("Write the complete capture, not one step.")] = False
    out: Annotated[
        Path | None,
        Option(
            "Output file: .json or .json.gz. Default: trace-runN.json.gz.",
            group="Output",
            names=("--out", "-o"),
        ),
    ] = None
    force: Force = False
    store: Store = DEFAULT_STORE


def run(asked: TraceOptions, events: Events) -> Trace:
    """Write the trace."""
    step = asked.step
    if asked.whole and step is not None:
        raise UsageError("`whole` and `step` exclude each other", "Choose one")
    target = asked.out or Path(f"trace-run{asked.run}.json.gz")
    if not target.name.endswith((".json", ".json.gz")):
        raise UsageError(
            f"invalid file name '{target}' for `out`", "Use a name that ends with .json or .json.gz"
        )
    check_free(target, force=asked.force)
    with database.reading(asked.store) as connection:
        found = only_run(connection, asked.run)
        known = shown(found, lambda: steps_of(found))
        if step is None and not asked.whole:
            step = known[-1] if known else None
            if step is None:
                events.note(
                    f"run {asked.run} has no measured steps, so perfctl writes the complete capture"
                )
        content, counted = shown(
            found, lambda: trace_of(found, step, read.op_calls(connection, asked.run))
        )
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode()
    with replacing(target, force=asked.force) as partial:
        partial.write_bytes(gzip.compress(text, mtime=0) if target.suffix == ".gz" else text)
    written = sum(event["ph"] != "M" for event in content["traceEvents"])
    return Trace(target, asked.run, step, written, counted)


def view(written: Trace) -> View:
    """What was written, and how to open it."""
    singular = {"copies": "copy"}
    parts = [
        f"{count:,} {singular.get(what, what[:-1]) if count == 1 else what}"
        for what, count in written.counts._asdict().items()
        if count
    ]
    return View(
        f"Wrote {written.path} ({', '.join(parts)})",
        ("Next: open the file in ui.perfetto.dev, which does not upload it",),
    )


COMMAND = Command(TraceOptions, run, view, has_document=False)
trace = api(TraceOptions, run)
