"""Compare two sides; each is a run, a sweep, a store, a report, or a folder of reports."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from perfctl.orchestrator.commands.declare import (
    DEFAULT_STORE,
    Command,
    Events,
    Force,
    Gate,
    HtmlReport,
    MemoryLimit,
    Option,
    Store,
    make_api_function,
)
from perfctl.orchestrator.errors import PerfctlError, Regressed, UsageError
from perfctl.orchestrator.files import write_text
from perfctl.orchestrator.report.compare import page
from perfctl.orchestrator.report.compare.page import CompareOutput
from perfctl.orchestrator.report.view import RawLines, View
from perfctl.orchestrator.sides import compare_sides

if TYPE_CHECKING:
    from perfctl.orchestrator.compare.compare import Comparison


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Compare B with A: changes in time beyond --gate and the spread, and added or removed kernels.

    A and B are paths (a database, a report or a folder of reports), sweeps of the database (name,
    beginning of a name, or sweep:3), or runs (number, or run:12). With --rev, put the command of a
    sweep after --. Exit code 3 if something is worse, 1 if something is not comparable or failed in
    B.

    Raises UsageError for a side that does not exist or a gate that is not a share, PerfctlError for
    a side without a complete run, StoreError and ReportError for files that cannot be read, and
    nothing if B is worse: see ``Comparison.regressions``, ``not_comparable`` and ``failed``.
    """

    a: Annotated[
        Path | str | int | None, Option("Before.", metavar="A", is_argument=True, parse=str)
    ] = None
    b: Annotated[
        Path | str | int | None, Option("After.", metavar="B", is_argument=True, parse=str)
    ] = None
    rest: Annotated[
        Sequence[str],
        Option("Command of the sweep, with --rev.", metavar="SWEEP", is_argument=True),
    ] = ()
    _: KW_ONLY
    rev: Annotated[
        str | None,
        Option(
            "Run a sweep on this git revision (A) and on the working tree (B).", metavar="REVISION"
        ),
    ] = None
    repeat: Annotated[int | None, Option("Runs per side, with --rev. Default: 5.", least=1)] = None
    gate: Gate = 0.05
    anyway: Annotated[
        bool,
        Option(
            "Compare even if device, software or workload differ, or the CPU was busy; the output "
            "is marked."
        ),
    ] = False
    memory_limit: MemoryLimit = None
    store: Store = DEFAULT_STORE
    out: HtmlReport = None
    force: Force = False
    markdown: Annotated[
        str | None,
        Option(
            "Write a summary for a pull request; - for standard output.", "Output", metavar="FILE"
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class CompareResult:
    """Both sides, compared as it was asked for."""

    comparison: Comparison
    is_summary: bool
    """Whether the summary for a pull request is printed."""


def compare_and_write(options: CompareOptions, events: Events) -> CompareResult:
    """Compare, and write the page and the summary that were asked for."""
    comparison = compare_requested_sides(options, events)
    is_summary = options.markdown == "-"
    if options.out is not None:
        from perfctl.orchestrator.report.compare.page import build_comparison_page
        from perfctl.orchestrator.report.page.page import render_view_as_html

        html = render_view_as_html(build_comparison_page(comparison))
        write_text(options.out, html, force=options.force)
        events.note(f"Wrote {options.out}")
    if options.markdown is not None and not is_summary:
        write_text(
            Path(options.markdown),
            page.write_pull_request_markdown(comparison),
            force=options.force,
        )
        events.note(f"Wrote {options.markdown}")
    return CompareResult(comparison, is_summary)


def compare_requested_sides(options: CompareOptions, events: Events) -> Comparison:
    """Compare two sides, or run a sweep on both and compare these."""
    sides = [
        *(str(argument) for argument in (options.a, options.b) if argument is not None),
        *options.rest,
    ]
    if options.rev is not None:
        if options.store != DEFAULT_STORE:
            raise UsageError("`rev` uses a separate database", "Omit `store`")
        from perfctl.orchestrator.launch.sweep.revisions import REPEAT, run_sweep_on_both_revisions

        stores = run_sweep_on_both_revisions(
            options.rev, sides, repeat=options.repeat or REPEAT, messages=events
        )
        comparison = compare_sides(
            stores.a, stores.b, gate=options.gate, anyway=options.anyway, messages=events
        )
        events.note(
            f"To compare both sides again: perfctl compare {shlex.quote(str(stores.a))} "
            f"{shlex.quote(str(stores.b))}"
        )
        return comparison
    if options.repeat is not None:
        raise UsageError(
            "`repeat` needs `rev`", "Repeat the sweep itself: perfctl torch --repeat 5"
        )
    if len(sides) != 2:
        number = "one" if len(sides) == 1 else len(sides)
        number_given = f"got {number} ({', '.join(map(repr, sides))})" if sides else "got none"
        raise UsageError(
            f"compare needs two runs, sweeps or databases; {number_given}",
            "Example: perfctl compare 1 2",
        )
    return compare_sides(
        sides[0],
        sides[1],
        gate=options.gate,
        anyway=options.anyway,
        store=options.store,
        messages=events,
        memory_limit=options.memory_limit,
    )


def build_compare_output(compared: CompareResult) -> CompareOutput:
    """Return the complete comparison for programs."""
    from perfctl.orchestrator.report.compare.page import build_comparison_output

    if compared.is_summary:
        raise UsageError(
            "--json and `markdown` - both write to standard output", "Set `markdown` to a file"
        )
    return build_comparison_output(compared.comparison)


def build_compare_view(compared: CompareResult) -> View | RawLines:
    """Return the sides, what changed and one table, or the summary for a pull request."""

    if compared.is_summary:
        return RawLines([page.write_pull_request_markdown(compared.comparison)], "`markdown` -")
    return page.build_comparison_summary(compared.comparison)


def raise_if_regressed_or_incomparable(compared: CompareResult, events: Events) -> None:
    """Raise what gives the exit code; nothing when all is well."""
    from perfctl.orchestrator.report.compare.why import format_percent_change

    comparison = compared.comparison
    worse = comparison.regressions
    if worse:
        pair, row = worse[0]
        batch = f" at batch {pair.batch_label}" if pair.batch_label else ""
        change = f", {format_percent_change(row.change)}" if row.change is not None else ""
        gate = f"over {comparison.gate * 100:g}%"
        heading = f"{len(worse)} regressions {gate}; largest"
        heading = heading if len(worse) > 1 else f"1 regression {gate}"
        raise Regressed(f"{heading}: {row.name}{batch}{change} ({row.result})")
    if comparison.not_comparable:
        reasons = "; ".join(
            f"{fact.sentence} ({fact.reason})"
            for fact in comparison.not_comparable[0].blocking_differences
        )
        raise PerfctlError(
            f"not comparable: {reasons}",
            "Compare runs that agree in this, or use `anyway` to see the differences",
        )
    if comparison.failed:
        raise PerfctlError(f"failed in B: {comparison.failed[0]}")
    if not comparison.pairs:
        raise PerfctlError(
            "not comparable: A and B share no workload and batch size",
            f"A has {'; '.join(comparison.only_a) or 'nothing'}. B has "
            f"{'; '.join(comparison.only_b) or 'nothing'}",
        )
    is_repeatable = any(
        row.needs_repeats and {run.origin for run in (*pair.runs_a, *pair.runs_b)} == {"measured"}
        for pair in comparison.pairs
        for row in pair.rows
    )
    if comparison.judged_time_count == 0 and is_repeatable:
        events.warning(
            "no timing could be tested (see the reasons above). Rerun both sweeps with --repeat 5"
        )


COMMAND = Command(
    CompareOptions,
    compare_and_write,
    build_compare_view,
    build_compare_output,
    check=raise_if_regressed_or_incomparable,
)
compare = make_api_function(CompareOptions, compare_requested_sides)
