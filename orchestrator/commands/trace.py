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
    make_api_function,
)
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.files import check_output_path, replace_when_done
from perfctl.orchestrator.report.files import trace as trace_file
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.stored_runs import analyse_run_or_end, load_single_run


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace that was written."""

    JSON_INLINED = ("counts",)

    path: Path
    run: int
    step: int | None
    """None: everything that was captured."""
    events: int
    counts: trace_file.TraceCounts
    """Number of events by kind: kernels, copies, ranges, operators, samples, arrows."""


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
        ),
    ] = None
    force: Force = False
    store: Store = DEFAULT_STORE


def write_trace(options: TraceOptions, events: Events) -> Trace:
    """Write the trace."""
    step = options.step
    if options.whole and step is not None:
        raise UsageError("`whole` and `step` exclude each other", "Choose one")
    trace_path = options.out or Path(f"trace-run{options.run}.json.gz")
    if not trace_path.name.endswith((".json", ".json.gz")):
        raise UsageError(
            f"invalid file name '{trace_path}' for `out`",
            "Use a name that ends with .json or .json.gz",
        )
    check_output_path(trace_path, force=options.force)
    with database.open_store_for_reading(options.store) as connection:
        stored = load_single_run(connection, options.run)
        is_step_chosen = step is None and not options.whole
        if is_step_chosen:
            step = next(
                iter(
                    analyse_run_or_end(stored, lambda: trace_file.list_traced_steps(stored))[::-1]
                ),
                None,
            )
        calls = read.read_op_calls(connection, options.run)
        content, counts = analyse_run_or_end(
            stored, lambda: trace_file.build_trace(stored, step, calls)
        )
    if is_step_chosen and step is None:
        events.note(
            f"run {options.run} has no measured steps, so perfctl writes the complete capture"
        )
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode()
    with replace_when_done(trace_path, force=options.force) as partial:
        partial.write_bytes(gzip.compress(text, mtime=0) if trace_path.suffix == ".gz" else text)
    written = sum(event["ph"] != "M" for event in content["traceEvents"])
    return Trace(trace_path, options.run, step, written, counts)


def build_trace_view(written: Trace) -> View:
    """Return what was written, and how to open it."""
    singular = {"copies": "copy"}
    parts = [
        f"{count:,} {singular.get(kind, kind[:-1]) if count == 1 else kind}"
        for kind, count in written.counts._asdict().items()
        if count
    ]
    return View(
        f"Wrote {written.path} ({', '.join(parts)})",
        ("Next: open the file in ui.perfetto.dev, which does not upload it",),
    )


COMMAND = Command(TraceOptions, write_trace, build_trace_view, has_document=False)
trace = make_api_function(TraceOptions, write_trace)
