"""The way from a figure back to its sources: kernels, instruction counts, the formula with its
numbers, the rule, the report.

There is one trail for each row of the ledger, and one for each cause about the sweep. The HTML
report shows it in a panel. FLOPs: 1 multiply-add = 2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple

from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.causes.evidence import KernelGroup, group_kernels_by_row
from perfctl.orchestrator.ledger.causes.rule import Cause
from perfctl.orchestrator.ledger.ledger import LedgerRow, describe_kernel_method_and_tile
from perfctl.orchestrator.ledger.prepared import DerivedRun, PreparedBatch, PreparedRun
from perfctl.orchestrator.ledger.timing import Key
from perfctl.orchestrator.report.ledger import (
    build_row_evidence_trail_key,
    build_sweep_evidence_trail_key,
)
from perfctl.orchestrator.report.ledger.causes import (
    describe_cause,
    describe_cause_with_fix,
    describe_fix,
    describe_unexplained_difference_share,
)
from perfctl.orchestrator.report.ledger.page import build_ledger_row_cells
from perfctl.orchestrator.report.numbers import format_integer_or_six_digits
from perfctl.orchestrator.statistics import group_by
from perfctl.records.run import Point, Run, format_sweep_point

KERNELS_MAX, RULES_MAX, FORMULAS_MAX = 12, 4, 8
"""Rows of a table of kernels, and lines of rules and formulas; the others are counted."""
LAUNCHES_MAX, QUERIED_MAX = 8, 200
"""Numbers of launches in a sentence, and in a query."""
COUNTS = (
    "fadd",
    "fmul",
    "ffma",
    "hadd",
    "hmul",
    "hfma",
    "dadd",
    "dmul",
    "dfma",
    "fadd2",
    "fmul2",
    "ffma2",
)
"""Instructions in the order of the table; a column for those that some kernel executed."""
FIGURES = ("ratio", "executed", "estimate", "time", "estimate / time", "bound")
"""Cells of the ledger that the first step explains."""


class TrailStep(NamedTuple):
    """One step back: a heading, sentences, a table, text to copy."""

    title: str
    lines: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    code: tuple[str, ...] = ()


class Trail(NamedTuple):
    """The way from one figure to its sources."""

    key: str
    """Part of the report's address: the same after the report is written again."""
    title: str
    steps: tuple[TrailStep, ...]


def deduplicate_trail_texts(trails: Iterable[Trail]) -> dict[str, object]:
    """Return trails as the HTML report carries them: ``text`` has every text once, ``trails``
    numbers in its place; templates/trail.js reads them back."""
    numbers: dict[str, int] = {}

    def replace_texts_with_index(value: str | tuple[object, ...]) -> object:
        if isinstance(value, str):
            return numbers.setdefault(value, len(numbers))
        return [replace_texts_with_index(item) for item in value]  # type: ignore[arg-type]

    packed_trails = {
        trail.key: replace_texts_with_index((trail.title, trail.steps)) for trail in trails
    }
    return {"text": list(numbers), "trails": packed_trails}


@dataclass(frozen=True, slots=True)
class _CountingSource:
    """The run that FLOPs are read from at one batch size, and its kernels by ledger key."""

    batch: PreparedBatch
    run: PreparedRun | None
    kernels: Mapping[Key | None, Sequence[KernelGroup]]
    launches: Mapping[Key | None, Sequence[int]]


def build_figure_source_trails(analysis: Analysis) -> tuple[Trail, ...]:
    """Return the trails of all ledger rows, then of the causes about the sweep (one per rule)."""
    sources = {}
    for batch in analysis.study.prepared_batches:
        run = batch.counted_or_derived_run
        launches = defaultdict(list)
        for kernel, key in run.measured_launches if run else ():
            launches[key].append(kernel.launch)
        kernels = group_kernels_by_row(run) if run else {}
        sources[batch.batch] = _CountingSource(batch, run, kernels, launches)
    rows = (
        _build_row_source_trail(row, analysis, sources[row.batch]) for row in analysis.ledger.rows
    )
    by_rule = group_by(analysis.judgement.sweep, lambda cause: cause.rule)
    sweep = (_build_sweep_cause_trail(causes, analysis, sources) for causes in by_rule.values())
    return (*rows, *sweep)


def _build_row_source_trail(row: LedgerRow, analysis: Analysis, source: _CountingSource) -> Trail:
    key = (row.layer, row.direction)
    launches = source.launches.get(key, ())
    # counts are derived, or measured ones are compared with rules
    derived = source.run if isinstance(source.run, DerivedRun) else source.batch.derived_run
    rules = derived.instructions_by_launch if derived is not None else {}
    cells = build_ledger_row_cells(row, analysis)
    judged = analysis.judgement.get_row_causes(*row.key)
    causes = [describe_cause_with_fix(cause).join_sentence_numbers_fix() for cause in judged.causes]
    causes += filter(None, [describe_unexplained_difference_share([row], analysis.judgement)])
    steps = (
        TrailStep(
            "Executed / estimated" if row.ratio is None else f"Ratio {cells['ratio'].text}",
            # with all digits, or with the reason for a missing value
            tuple(
                f"{label.capitalize()}: {cells[label].title or cells[label].text}"
                for label in FIGURES
            ),
        ),
        _build_kernels_trail_step(row, source.kernels.get(key, ()), analysis.names),
        *_build_rules_trail_step(rules[launch].rule for launch in launches if launch in rules),
        TrailStep(
            "Estimated", tuple(list_row_formulas(row)) or (row.estimated.reason or "no formula",)
        ),
        TrailStep("Why", tuple(causes)) if causes else None,
        _build_source_trail_step(source.run, launches),
    )
    batch = f", {format_sweep_point(row.batch)}" if row.batch else ""
    return Trail(
        build_row_evidence_trail_key(row.layer_label, row.direction, row.batch),
        f"{row.name}{batch}",
        tuple(filter(None, steps)),
    )


def _build_kernels_trail_step(
    row: LedgerRow, groups: Sequence[KernelGroup], short_kernel_names: Mapping[str, str]
) -> TrailStep | None:
    """Return the kernels of a step with their instructions; without counters only launches."""
    if not groups and not row.kernels:
        return None
    if not groups:
        rows = (
            (
                short_kernel_names.get(use.name, use.name),
                _format_full_amount(use.per_step),
                use.algorithm or use.family or "",
            )
            for use in row.kernels[:KERNELS_MAX]
        )
        return TrailStep("Kernels of a step", (), ("kernel", "launches", "kind"), tuple(rows))
    ordered = sorted(groups, key=lambda group: -group.executed_flops)
    heads, table = _build_kernel_table(ordered[:KERNELS_MAX], short_kernel_names)
    lines = []
    if rule := row.executed.rule:
        lines.append(f"{rule} = FLOP. Instructions: threads that executed them, per step.")
    if len(groups) > KERNELS_MAX:
        lines.append(f"The {KERNELS_MAX} of {len(groups)} kernels with the most FLOPs.")
    elif len(groups) > 1:
        columns = list(_list_instruction_columns(groups).values())[:-1]
        sums = [_format_full_amount(sum(filter(None, values))) for values in columns]
        launches = sum(group.launches for group in groups)
        table.append(
            ("sum", _format_full_amount(launches), *sums, _format_full_amount(row.executed.value))
        )
    return TrailStep("Kernels of a step and their instructions", tuple(lines), heads, tuple(table))


def _list_instruction_columns(groups: Sequence[KernelGroup]) -> dict[str, list[float | None]]:
    """Return the label of each column with numbers, and a value for each kernel."""
    columns = {name.upper(): [group.counts.get(name) for group in groups] for name in COUNTS}
    columns["tensor FLOP"] = [group.tensor.value for group in groups]
    columns = {label: values for label, values in columns.items() if any(values)}
    return {**columns, "FLOP": [group.flops.value for group in groups]}


def _build_kernel_table(
    groups: Sequence[KernelGroup], short_kernel_names: Mapping[str, str]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the heads and rows of a table of kernels with their grids and methods."""
    columns = _list_instruction_columns(groups)
    rows = []
    for group, *values in zip(groups, *columns.values(), strict=True):
        grid = f" <<<{'x'.join(map(str, group.grid))}>>>" if group.grid else ""
        method = f" ({kind})" if (kind := describe_kernel_method_and_tile(group.name)) else ""
        name = short_kernel_names.get(group.name, group.name)
        rows.append(
            (
                f"{name}{grid}{method}",
                _format_full_amount(group.launches),
                *map(_format_full_amount, values),
            )
        )
    return ("kernel", "launches", *columns), rows


def _format_full_amount(value: float | None) -> str:
    """Return every digit; a sum over steps divided by their number is an integer again."""
    if value is None:
        return "unknown"
    integer = round(value)
    return format_integer_or_six_digits(
        integer if abs(value - integer) <= 1e-9 * abs(value) else value
    )


def list_row_formulas(row: LedgerRow) -> Iterator[str]:
    """Yield the formulas of a row with its numbers, after their pass and layer if there are
    several."""
    calls = [call for call in row.calls if call.formula][:FORMULAS_MAX]
    for call in calls:
        layer = "" if row.layer else f", {call.layer}"
        yield f"{call.direction}{layer}: {call.formula}" if len(calls) > 1 else str(call.formula)


def _build_rules_trail_step(rules: Iterable[str]) -> Iterator[TrailStep]:
    """Yield the arithmetic of the kernels' rules, if there is any."""
    lines = list(dict.fromkeys(rules))
    if len(lines) > RULES_MAX:
        lines[RULES_MAX:] = [f"and {len(lines) - RULES_MAX} more"]
    if lines:
        yield TrailStep("Rule of the kernels", tuple(lines))


def _build_source_trail_step(run: PreparedRun | None, launches: Sequence[int]) -> TrailStep | None:
    """Return the report, the launches and the query that prints their rows."""
    if run is None:
        return None
    if not launches:
        return TrailStep("Source", (_describe_profiler_report(run.run),))
    numbers = ", ".join(map(str, launches[:LAUNCHES_MAX]))
    if len(launches) > LAUNCHES_MAX:
        numbers += f" and {len(launches) - LAUNCHES_MAX} more"
    noun = "Launch" if len(launches) == 1 else "Launches"
    sentence = f"{noun} {numbers} of the report, numbered from 0."
    table = "derived_count" if isinstance(run, DerivedRun) else "counter"
    chosen = ", ".join(map(str, launches[:QUERIED_MAX]))
    condition = f"run_id = {run.run.id} AND launch IN ({chosen})"
    query = f'perfctl query "SELECT * FROM {table} WHERE {condition}"'
    return TrailStep("Source", (_describe_profiler_report(run.run), sentence), code=(query,))


def _describe_profiler_report(run: Run) -> str:
    name = PurePath(run.artifact).name if run.artifact else "no file"
    digest = f", sha256 {run.artifact_sha256[:12]}" if run.artifact_sha256 else ""
    tool = f"{run.profiler} {run.profiler_version or ''}".strip()
    return f"Run {run.id}: {tool}, {run.report.form}, {name}{digest}."


def _build_sweep_cause_trail(
    causes: Sequence[Cause], analysis: Analysis, sources: Mapping[Point, _CountingSource]
) -> Trail:
    sentences = (
        line for cause in causes for line in (describe_cause(cause), f"→ {describe_fix(cause)}")
    )
    names = {name for cause in causes for name in cause.kernels}
    executed = [
        (batch, group, source.run)
        for batch, source in sources.items()
        for groups in source.kernels.values()
        for group in groups
        if group.name in names
    ]
    steps = [TrailStep("Causes", tuple(dict.fromkeys(sentences)))]
    if executed:
        heads, table = _build_kernel_table([group for _, group, _ in executed], analysis.names)
        rows = (
            (name, str(batch or ""), *values)
            for (batch, *_), (name, *values) in zip(executed, table, strict=True)
        )
        heads = (heads[0], "batch", *heads[1:])
        steps.append(TrailStep("Executed at each batch size", (), heads, tuple(rows)))
    steps += _build_estimate_trail_steps(causes, analysis)
    completed = (  # instructions of these kernels that were not measured
        source.batch.rule_completed_counts_by_launch.get(kernel.launch)
        for source in sources.values()
        for kernel in (
            source.batch.counted_run.run.report.kernels if source.batch.counted_run else ()
        )
        if kernel.name in names
    )
    steps += _build_rules_trail_step(
        derived.rule for derived in completed if derived is not None and derived.ffma is not None
    )
    reports = {
        run.run.id: _describe_profiler_report(run.run) for _, _, run in executed if run is not None
    }
    if reports:
        steps.append(TrailStep("Source", tuple(text for _, text in sorted(reports.items()))))
    rule = causes[0].rule
    return Trail(build_sweep_evidence_trail_key(rule), rule[:1].upper() + rule[1:], tuple(steps))


def _build_estimate_trail_steps(causes: Iterable[Cause], analysis: Analysis) -> Iterator[TrailStep]:
    """Yield the estimated FLOPs of the layers that the causes name, at each batch size."""
    layers = set()
    for cause in causes:
        layers |= {cause.facts.get("layer"), *cause.facts.get("layers", ())}
    rows = [
        row
        for row in analysis.ledger.rows
        if row.layer and row.layer in layers and row.direction == "forward"
    ]
    for name, same in group_by(rows, lambda row: row.name).items():
        lines = (
            f"{format_sweep_point(row.batch)}: "
            f"{'; '.join(list_row_formulas(row)) or _format_full_amount(row.estimated.value)}"
            for row in same
        )
        yield TrailStep(f"{name}, estimated", tuple(lines))
