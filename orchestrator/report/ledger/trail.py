"""From a ratio back to where it comes from: kernels, instruction counts, the formula with its
numbers, the rule, the source.

One trail for each row of the ledger, and one for each verdict about the sweep. The page shows it in
a panel; everything in it is worked out here. FLOPs: 1 multiply-add = 2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath

from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.causes.evidence import KernelGroup, kernels_by_key
from perfctl.orchestrator.ledger.causes.rule import Cause
from perfctl.orchestrator.ledger.ledger import LedgerRow
from perfctl.orchestrator.ledger.prepared import DerivedRun, PreparedBatch, PreparedRun
from perfctl.orchestrator.ledger.timing import Key
from perfctl.orchestrator.report.ledger.causes import describe_cause, describe_fix
from perfctl.orchestrator.report.ledger.keys import row_key, sweep_key
from perfctl.orchestrator.report.ledger.page import explain_reason, formulas, reason
from perfctl.orchestrator.report.numbers import full, ratio, significant, time
from perfctl.orchestrator.report.tables import mark
from perfctl.records.run import Run

KERNELS = 12
"""Rows of a table of kernels; the rest is counted."""
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
LAUNCHES = 8
"""Numbers of launches in a line; the query has all."""
RULES = 4


@dataclass(frozen=True, slots=True)
class TrailStep:
    """One step back: a heading, sentences, a table, text to copy."""

    title: str
    lines: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    code: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trail:
    """The way from one figure to its sources."""

    key: str
    """Part of the page's address: the same after the page is written again."""
    title: str
    steps: tuple[TrailStep, ...]


def packed(found: Iterable[Trail]) -> dict[str, object]:
    """Trails as the page carries them: ``text`` has every text once, ``trails`` numbers in
    its place.

    A trail is [title, steps], a step [title, lines, heads, rows, code]; templates/trail.js reads
    them back.
    """
    pool: dict[str, int] = {}

    def place(text: str) -> int:
        return pool.setdefault(text, len(pool))

    def step(one: TrailStep) -> list[object]:
        rows = [list(map(place, row)) for row in one.rows]
        return [
            place(one.title),
            list(map(place, one.lines)),
            list(map(place, one.heads)),
            rows,
            list(map(place, one.code)),
        ]

    trails_of = {one.key: [place(one.title), [step(part) for part in one.steps]] for one in found}
    return {"text": list(pool), "trails": trails_of}


def trails(found: Analysis) -> tuple[Trail, ...]:
    """Trails of all ledger rows, then of the verdicts about the sweep (one a rule)."""
    each = {batch.batch: _kernels_of(batch) for batch in found.study.prepared_batches}
    rows = tuple(_row_trail(row, found, each[row.batch]) for row in found.ledger.rows)
    by_rule: dict[str, list[Cause]] = {}
    for cause in found.judgement.sweep:
        by_rule.setdefault(cause.rule, []).append(cause)
    return (
        *rows,
        *(_sweep_trail(rule, causes, found, each) for rule, causes in by_rule.items()),
    )


@dataclass(frozen=True, slots=True)
class _Counted:
    """The run that FLOPs are read from at one batch size, and its kernels by ledger key."""

    run: PreparedRun | None
    kernels: Mapping[Key | None, Sequence[KernelGroup]]
    launches: Mapping[Key | None, Sequence[int]]
    batch: PreparedBatch


def _kernels_of(batch: PreparedBatch) -> _Counted:
    run = batch.counting
    launches: dict[Key | None, list[int]] = defaultdict(list)
    for kernel, key in run.launches if run else ():
        launches[key].append(kernel.launch)
    return _Counted(run, kernels_by_key(run) if run else {}, launches, batch)


def _row_trail(row: LedgerRow, found: Analysis, counted: _Counted) -> Trail:
    groups = counted.kernels.get((row.layer, row.direction), ())
    launches = counted.launches.get((row.layer, row.direction), ())
    steps = (
        _compared(row),
        _kernels(row, groups, found.names),
        *_rules(counted, launches),
        _on_paper(row),
        _reasons(row, found),
        _source(counted.run, launches),
    )
    kept = tuple(step for step in steps if step is not None)
    return Trail(
        row_key(row.place, row.direction, row.batch),
        f"{row.name}{', batch ' + str(row.batch) if row.batch else ''}",
        kept,
    )


def _compared(row: LedgerRow) -> TrailStep:
    paper, counted = row.paper, row.counted
    lines = []
    if row.ratio is not None:
        state = "derived" if counted.state == "derived" else "executed"
        lines.append(
            f"{mark(counted)}{full(counted.value or 0)} FLOP {state} / {full(paper.value or 0)} "
            f"FLOP estimated = {mark(counted)}{significant(row.ratio, 4)}"
        )
    else:
        lines += [
            f"Executed: {_value(counted.value, counted.reason)}",
            f"Estimated: {_value(paper.value, paper.reason)}",
        ]
    if row.counted.state == "derived" and row.counted.value is not None:
        lines.append("Derived from kernel names, grids and shapes, without counters.")
    elif row.derived is not None and row.derived.value is not None and counted.value:
        lines.append(
            "Derived with the kernels' rules: "
            f"{mark(row.derived)}{full(row.derived.value, 'FLOP')}."
        )
    if row.time is not None:
        doubt = "" if row.trusted else " (under ncu at locked clocks: not a realistic time)"
        lines.append(
            f"Time: {time(row.time.median)}, median of {row.time.count}; {row.basis}{doubt}."
        )
    title = (
        "Executed / estimated" if row.ratio is None else f"Ratio {mark(counted)}{ratio(row.ratio)}"
    )
    return TrailStep(title, tuple(lines))


def _value(value: float | None, reason: str | None) -> str:
    return full(value, "FLOP") if value is not None else f"unknown: {reason or 'not collected'}"


def _kernels(
    row: LedgerRow, groups: Sequence[KernelGroup], names: Mapping[str, str]
) -> TrailStep | None:
    """Kernels of a step with their instructions; without counters only names and launches."""
    if not groups:
        if not row.kernels:
            return None
        rows = tuple(
            (names.get(use.name, use.name), _often(use.per_step), use.algorithm or use.family or "")
            for use in row.kernels[:KERNELS]
        )
        return TrailStep("Kernels of a step", (), ("kernel", "launches", "kind"), rows)
    counts = [name for name in COUNTS if any(group.counts.get(name) for group in groups)]
    tensor = any(group.tensor.value for group in groups)
    heads = (
        "kernel",
        "launches",
        *(name.upper() for name in counts),
        *(("tensor FLOP",) if tensor else ()),
        "FLOP",
    )
    ordered = sorted(groups, key=lambda group: -group.executed)
    table = [_kernel_row(group, counts, names, tensor=tensor) for group in ordered[:KERNELS]]
    lines = (
        [f"{row.counted.rule} = FLOP. Instructions: threads that executed them, per step."]
        if row.counted.rule
        else []
    )
    if len(groups) > KERNELS:
        lines.append(f"The {KERNELS} of {len(groups)} kernels with the most FLOPs.")
    elif len(groups) > 1:
        sums = [_total(group.counts.get(name) for group in groups) for name in counts]
        tensors = [_total(group.tensor.value for group in groups)] if tensor else []
        table.append(
            (
                "sum",
                _often(sum(group.launches for group in groups)),
                *sums,
                *tensors,
                _amount(row.counted.value),
            )
        )
    title = "Kernels of a step and their instructions"
    return TrailStep(title, tuple(lines), heads, tuple(table))


def _launched(group: KernelGroup, names: Mapping[str, str]) -> str:
    """The kernel's short name and its grid."""
    grid = f" <<<{'x'.join(map(str, group.grid))}>>>" if group.grid else ""
    return names.get(group.name, group.name) + grid


def _kernel_row(
    group: KernelGroup, instructions: Sequence[str], names: Mapping[str, str], *, tensor: bool
) -> tuple[str, ...]:
    counts = (_amount(group.counts.get(name)) for name in instructions)
    of_tensor = (_amount(group.tensor.value),) if tensor else ()
    return (
        _launched(group, names),
        _often(group.launches),
        *counts,
        *of_tensor,
        _amount(group.flops.value),
    )


def _total(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return _amount(sum(known)) if known else _amount(None)


def _amount(value: float | None) -> str:
    """Every digit; a sum over steps divided by their number is whole again."""
    if value is None:
        return "not known"
    whole = round(value)
    return full(whole if abs(value - whole) <= 1e-9 * abs(value) else value)


def _often(launches: float) -> str:
    return significant(launches if launches % 1 else int(launches))


def _rules(counted: _Counted, launches: Sequence[int]) -> Iterator[TrailStep]:
    """The arithmetic of the kernels' rules, where counts are derived or compared with rules."""
    source = counted.run if isinstance(counted.run, DerivedRun) else counted.batch.derived
    if source is None:
        return
    found = dict.fromkeys(
        source.derived[launch].rule for launch in launches if launch in source.derived
    )
    if found:
        said = [
            *list(found)[:RULES],
            *([f"and {len(found) - RULES} more"] if len(found) > RULES else []),
        ]
        yield TrailStep("Rule of the kernels", tuple(said))


def _on_paper(row: LedgerRow) -> TrailStep:
    worked = formulas([row])
    several = len(worked) > 1
    lines = [
        f"{which.partition(', ')[2] or row.direction}: {text}" if several else text
        for which, text in worked
    ]
    return TrailStep("Estimated", tuple(lines or [row.paper.reason or "no formula"]))


def _reasons(row: LedgerRow, found: Analysis) -> TrailStep | None:
    judged = found.judgement.at(row.batch, row.layer, row.direction)
    lines = [explain_reason(reason([(row, cause)])) for cause in judged.causes]
    if judged.unexplained is not None and judged.unexplained >= 0.0005:
        lines.append(f"{judged.unexplained * 100:.1f}% of the difference is unexplained.")
    return TrailStep("Why", tuple(lines)) if lines else None


def _source(run: PreparedRun | None, launches: Sequence[int]) -> TrailStep | None:
    """Report, launches and the query that shows their rows."""
    if run is None:
        return None
    where = [_report(run.run)]
    if not launches:
        return TrailStep("Source", tuple(where))
    shown = ", ".join(map(str, launches[:LAUNCHES])) + (
        f" and {len(launches) - LAUNCHES} more" if len(launches) > LAUNCHES else ""
    )
    where.append(
        f"{'Launch' if len(launches) == 1 else 'Launches'} {shown} of the report, numbered from 0."
    )
    table = "derived_count" if isinstance(run, DerivedRun) else "counter"
    return TrailStep("Source", tuple(where), code=(_query(table, run.run, launches),))


def _report(run: Run) -> str:
    name = PurePath(run.artifact).name if run.artifact else "no file"
    digest = f", sha256 {run.artifact_sha256[:12]}" if run.artifact_sha256 else ""
    return (
        f"Run {run.id}: {run.profiler} {run.profiler_version or ''}, {run.report.form}, "
        f"{name}{digest}."
    ).replace(" ,", ",")


def _query(table: str, run: Run, launches: Sequence[int]) -> str:
    first, last = launches[0], launches[-1]
    whole = len(launches) > 1 and list(launches) == list(range(first, last + 1))
    which = (
        f"BETWEEN {first} AND {last}" if whole else f"IN ({', '.join(map(str, launches[:200]))})"
    )
    return f'perfctl query "SELECT * FROM {table} WHERE run_id = {run.id} AND launch {which}"'


def _sweep_trail(
    rule: str, causes: Sequence[Cause], found: Analysis, each: Mapping[int | None, _Counted]
) -> Trail:
    said = [
        line for cause in causes for line in (describe_cause(cause), f"→ {describe_fix(cause)}")
    ]
    steps = [TrailStep("Causes", tuple(dict.fromkeys(said)))]
    names = {name for cause in causes for name in cause.kernels}
    groups = [
        (batch, group, counted.run)
        for batch, counted in each.items()
        for several in counted.kernels.values()
        for group in several
        if group.name in names
    ]
    counts = [name for name in COUNTS if any(name in group.counts for _, group, _ in groups)]
    if groups:
        alone = len({group.name for _, group, _ in groups}) == 1
        title = (
            f"{_short(groups[0][1], found)} at each batch size"
            if alone
            else "Executed at each batch size"
        )
        heads = (
            "batch",
            *(() if alone else ("kernel",)),
            "launches",
            *(f"{name.upper()} executed" for name in counts),
        )
        rows = tuple(
            (
                str(batch or ""),
                *(() if alone else (_short(group, found),)),
                _often(group.launches),
                *(_amount(group.counts.get(name)) for name in counts),
            )
            for batch, group, _ in groups
        )
        steps.append(TrailStep(title, (), heads, rows))
    steps += _paper_of(causes, found)
    steps += _completed(names, each)
    sources = {run.run.id: _report(run.run) for _, _, run in groups if run is not None}
    if sources:
        steps.append(TrailStep("Source", tuple(text for _, text in sorted(sources.items()))))
    return Trail(sweep_key(rule), rule[:1].upper() + rule[1:], tuple(steps))


def _short(group: KernelGroup, found: Analysis) -> str:
    return found.names.get(group.name, group.name)


def _paper_of(causes: Sequence[Cause], found: Analysis) -> Iterator[TrailStep]:
    """Estimated FLOPs and times of the layers that the causes name, at each batch size."""
    layers = set()
    for facts in (asdict(cause.facts) for cause in causes):
        layers |= {facts.get("layer"), *facts.get("layers", ())}
    named = [
        row
        for row in found.ledger.rows
        if row.layer and row.layer in layers and row.direction == "forward"
    ]
    for layer in dict.fromkeys(row.layer for row in named):
        rows = [row for row in named if row.layer == layer]
        lines = tuple(f"{which}: {worked}" for which, worked in formulas(rows))
        table = tuple((str(row.batch or ""), _amount(row.paper.value)) for row in rows)
        yield TrailStep(f"{layer} forward, estimated", lines, ("batch", "FLOP"), table)


def _completed(names: set[str], each: Mapping[int | None, _Counted]) -> Iterator[TrailStep]:
    """What the rules of these kernels give for instructions that were not counted."""
    said: dict[str, None] = {}
    for counted in each.values():
        source = counted.batch.counted
        for kernel in source.run.report.kernels if source else ():
            derived = counted.batch.completed.get(kernel.launch)
            if derived is not None and kernel.name in names and derived.ffma is not None:
                said.setdefault(derived.rule)
    if said:
        yield TrailStep("Derived with the rule of the kernel", tuple(said))
