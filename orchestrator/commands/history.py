"""Show quantities of the runs of stores over time or commits, the points at which they changed,
and what else changed there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated

from perfctl.orchestrator.commands.declare import (
    DEFAULT_STORE,
    Command,
    Events,
    Force,
    Gate,
    HtmlReport,
    Option,
    make_api_function,
)
from perfctl.orchestrator.compare.causes import RankedDifference, align_layers_and_kernels
from perfctl.orchestrator.compare.changes import is_ruptures_installed
from perfctl.orchestrator.compare.compare import ComparisonSide, compare_two_sides
from perfctl.orchestrator.compare.history import (
    History,
    HistoryLine,
    HistoryRun,
    build_history_lines,
    extract_history_run,
)
from perfctl.orchestrator.errors import PerfctlError, ToolMissing, UsageError
from perfctl.orchestrator.files import write_text
from perfctl.orchestrator.report.history import build_history_view
from perfctl.orchestrator.sides import raise_if_invalid_gate_share
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.stored_runs import load_readable_runs, run_work_without_failing_runs


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """Track step time, FLOPs, launches, memory and layer times across runs, and detect changes.

    A line has runs of one run group, batch size, profiler, device and clock setting only. perfctl
    reports significant changes, with everything else that changed there. 1 multiply-add = 2 FLOPs.

    Raises ToolMissing without ruptures, UsageError for another ``by`` or a gate below 0,
    StoreError, PerfctlError if no run is complete.
    """

    stores: Annotated[
        Sequence[Path | str],
        Option("Results database to read (repeatable).", names=("--store",), metavar="FILE"),
    ] = (DEFAULT_STORE,)
    _: KW_ONLY
    by: Annotated[
        str,
        Option(
            "One point per sweep (time) or per commit (commit), in order.", metavar="time|commit"
        ),
    ] = "time"
    gate: Gate = 0.05
    out: HtmlReport = None
    force: Force = False


def build_history(options: HistoryOptions, events: Events) -> History:
    """Read every whole run of the stores. Times in ns, memory in bytes."""

    if options.by not in ("time", "commit"):
        raise UsageError(f"invalid value '{options.by}' for `by`", "Choose time or commit")
    raise_if_invalid_gate_share(options.gate)
    if not is_ruptures_installed():
        raise ToolMissing(
            "change points need ruptures, which is not installed", "pip install 'perfctl[history]'"
        )
    runs = [
        run
        for number, store in enumerate(options.stores)
        for run in _read_complete_runs(number, Path(store))
    ]
    if not runs:
        raise PerfctlError(
            "no database has a complete run of a known workload", "See 'perfctl runs'"
        )
    lines = tuple(build_history_lines(runs, by_commit=options.by == "commit", gate=options.gate))
    find = cache(partial(_rank_differences_between_points, tuple(options.stores), lines))
    for index, line in enumerate(lines):
        line.series = tuple(
            replace(
                series,
                changes=tuple(
                    replace(
                        change, differences=find(index, *series.get_points_before_and_after(change))
                    )
                    for change in series.changes
                ),
            )
            for series in line.series
        )
    history = History(tuple(map(str, options.stores)), options.gate, lines)
    if options.out is not None:
        from perfctl.orchestrator.report.page.page import render_view_as_html

        write_text(
            options.out, render_view_as_html(build_history_view(history)), force=options.force
        )
        events.note(f"Wrote {options.out}")
    return history


def _read_complete_runs(store_index: int, store: Path) -> Iterator[HistoryRun]:
    """Yield the whole runs of one store that have a workload; ``store_index``: that of the
    store."""

    with database.open_store_for_reading(store) as connection:
        for run_id in read.list_run_ids(connection):
            for stored in load_readable_runs(connection, [run_id]):
                if stored.status == "ok" and stored.workload is not None:
                    yield run_work_without_failing_runs(
                        [stored], lambda runs: extract_history_run(runs[0], store_index)
                    )


def _rank_differences_between_points(
    stores: Sequence[Path | str],
    lines: Sequence[HistoryLine],
    line_index: int,
    before: int,
    after: int,
) -> tuple[RankedDifference, ...]:
    """Return what differs between two points of the line with this index."""

    def load_side(label: str, point: Sequence[HistoryRun]) -> ComparisonSide:
        store = point[0].store
        with database.open_store_for_reading(Path(stores[store])) as connection:
            ids = [run.run for run in point if run.store == store]
            return ComparisonSide(label, tuple(load_readable_runs(connection, ids)))

    points = lines[line_index].points
    pairs = compare_two_sides(load_side("A", points[before]), load_side("B", points[after])).pairs
    return align_layers_and_kernels(pairs[0]).suspects if pairs else ()


COMMAND = Command(HistoryOptions, build_history, build_history_view)
history = make_api_function(HistoryOptions, build_history)
