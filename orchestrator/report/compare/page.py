"""A comparison as an HTML report, on the terminal, as Markdown for a pull request, and as JSON; its
sentences are in ``words``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress

from perfctl.orchestrator.compare.causes import (
    KINDS,
    NOT_RANKED,
    SAME,
    TIMED,
    AlignedPair,
    ComparedWork,
    align_layers_and_kernels,
)
from perfctl.orchestrator.compare.compare import ComparedPair, Comparison, ComparisonSide
from perfctl.orchestrator.compare.quantities import MEANING, NOT_JUDGED, PER_REPORT
from perfctl.orchestrator.report.compare.quantity_table import (
    ROWS_SHOWN,
    STYLES,
    build_quantity_table,
    choose_result_css_class,
    list_columns_equal_across_pairs,
    select_quantity_rows,
)
from perfctl.orchestrator.report.compare.why import (
    ENERGY_UNITS,
    MINUS,
    join_algorithm_names,
)
from perfctl.orchestrator.report.compare.words import describe_comparison_in_sentences
from perfctl.orchestrator.report.files import documents
from perfctl.orchestrator.report.numbers import (
    DASH,
    format_integer_or_six_digits,
    format_ratio,
    format_time,
)
from perfctl.orchestrator.report.page.about import find_first_run_date
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    build_complete_table,
    build_table,
    missing_cell,
    number_cell,
    optional_text_cell,
    text_cell,
    text_column,
    text_columns,
    time_cell,
    time_column,
)
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.statistics import group_by
from perfctl.records.report import pluralize_count
from perfctl.records.run import Run

SENTENCES = 7
"""Findings before "more"."""
TERMINAL_ROWS, MARKDOWN_ROWS = 24, 25
"""Rows of the table on a terminal, and of those of a pull request."""
NO_LAYERS = "A and B have no layer in common, so perfctl aligns kernels by their family."
PARTS = (
    ("steps", "Steps", "step", ("time",), "Time of a step and of its phases"),
    ("throughput", "Throughput", "step", ("throughput",), "Samples per second, from the step time"),
    ("memory", "Memory", "step", ("memory",), "Memory of a run"),
    (
        "energy",
        "Energy",
        "step",
        ("energy", "energy-delay product"),
        "Energy of a step, and energy x step time (EDP), from power samples",
    ),
    ("layers", "Layers", "layer", ("time",), "Time per step by layer and pass"),
    ("kernels", "Kernels", "kernel", ("time",), "Time per step by kernel"),
    (
        "flops",
        "Executed FLOPs",
        "",
        ("flops",),
        "Executed FLOPs of a step, exact; 1 multiply-add = 2 FLOPs",
    ),
)
"""(key, title, level or "" for all, quantities, caption) of the tables."""


HOW_JUDGED = (
    "perfctl compares several runs per side by their medians, with Welch's t test on logarithms. "
    "It compares one run with one run by their steps, which depend on each other and do not show "
    "the spread between runs.",
    "It judges all rows of a level (steps, layers, kernels) together: if nothing changed, at most "
    "one comparison of 20 reports a slower or faster row. Bars show the interval; the grey band is "
    "the gate.",
)


def build_comparison_page(comparison: Comparison) -> View:
    """Return the complete comparison: sentences, then a chapter for each kind of quantity."""
    pairs = tuple(map(align_layers_and_kernels, comparison.pairs))
    results = {row.result for pair in comparison.pairs for row in pair.rows}
    meanings = [item for item in MEANING.items() if item[0] in results]
    judged = build_complete_table("", text_columns("result", "meaning"), meanings)
    chapters = [
        View("Why it changed", tables=tuple(_build_cause_tables(pairs)), key="why"),
        *_build_quantity_chapters(comparison),
        _build_differences_chapter(comparison, pairs),
        View("How perfctl judges", HOW_JUDGED, (judged,) if meanings else (), key="judged"),
    ]
    runs = (*comparison.a.runs, *comparison.b.runs)
    newest = max((run.started_at for run in runs if run.started_at), default="")
    return replace(
        describe_comparison_in_sentences(comparison, pairs),
        title=f"{comparison.b.label} against {comparison.a.label}",
        facts=(
            *([f"Newest run {newest[:16].replace('T', ' ')} UTC."] if newest else []),
            describe_change_threshold(comparison),
        ),
        open_findings=SENTENCES,
        command="compare",
        properties=describe_compared_sides(comparison),
        chapters=[chapter for chapter in chapters if chapter.tables or chapter.facts],
    )


def describe_change_threshold(comparison: Comparison) -> str:
    """Return from which change on perfctl reports one."""
    return f"A change is reported if it exceeds {comparison.gate * 100:g}% and the spread."


def _build_cause_tables(pairs: Sequence[AlignedPair]) -> Iterator[Table]:
    """Yield one table of all pairs that are aligned: what stands behind the change of each row,
    the largest change first."""
    every = [(match, part) for match in pairs for part in match.parts]
    every.sort(key=lambda item: -abs(item[1].change or 0.0))
    if not any(part.change or part.kind not in (SAME, TIMED) for _, part in every):
        return  # nothing changed
    columns = (
        text_column("workload"),
        Column("batch"),
        text_column("name"),
        text_column("cause", "from the kernels' names, launches and grids"),
        text_column("algorithm"),
        text_column("launches", "per step, if the report states its steps"),
        time_column("A"),
        time_column("B"),
        time_column("change"),
        Column("FLOPs, B/A", note="executed; 1 multiply-add = 2"),
    )
    span = "per step" if all(match.per_step for match in pairs) else "in the complete report"
    by = "layer, pass" if any(match.by_layer for match in pairs) else "kernel family"
    aligned = build_table(
        f"Time {span}, both sides aligned by {by} and algorithm",
        columns,
        [_build_aligned_work_cells(*item) for item in every],
        max_rows=ROWS_SHOWN,
        omitted_columns=list_columns_equal_across_pairs([match.pair for match in pairs]),
    )
    if aligned is not None:
        notes = () if all(match.by_layer for match in pairs) else (NO_LAYERS,)
        yield replace(aligned, notes=(*notes, *aligned.notes))


def _build_aligned_work_cells(match: AlignedPair, part: ComparedWork) -> tuple[object, ...]:
    is_timed_only = part.kind == TIMED
    unknown = "the report has no kernels" if is_timed_only else "not known"
    sides = (part.a, part.b)
    methods = [join_algorithm_names(side.algorithms) if side else "" for side in sides]
    # the arithmetic where that changed
    if methods[0] == methods[1] and part.a and part.b and part.a.arithmetic != part.b.arithmetic:
        methods = [" + ".join(side.arithmetic) or methods[0] for side in (part.a, part.b)]
    launches = [
        f"{side.launches:,.6g}" if side and side.launches is not None else None for side in sides
    ]
    times = (
        time_cell(side.ns if side else None, f"not in {label}")
        for label, side in zip("AB", sides, strict=True)
    )
    change, ns = missing_cell("not known on both sides"), part.change
    if ns is not None:
        mark = "" if not ns else "+" if ns > 0 else MINUS
        title = f"{mark}{format_integer_or_six_digits(abs(ns), 'ns')}"
        change = number_cell(format_time(abs(ns)), title, ns, mark=mark)
    counted = missing_cell("not measured on both sides")
    if part.flops is not None:
        counted = Cell(format_ratio(part.flops), f"{part.flops:.6g}", value=part.flops)
    return (
        match.pair.heading,
        optional_text_cell(match.pair.batch_label, unknown),
        part.name if part.layer or part.row else part.direction,
        missing_cell(unknown) if is_timed_only else text_cell(part.kind, KINDS[part.kind]),
        _build_before_after_cell(
            methods, unknown if is_timed_only else "the kernels' names contain none"
        ),
        _build_before_after_cell(launches, unknown),
        *times,
        change,
        counted,
    )


def _build_before_after_cell(texts: Sequence[str | None], reason: str) -> Cell:
    """Return "GEMM" if both sides have it, otherwise "GEMM → GEMV"."""
    distinct = dict.fromkeys(text or DASH for text in texts)
    return missing_cell(reason) if [*distinct] == [DASH] else text_cell(" → ".join(distinct))


def _build_differences_chapter(comparison: Comparison, pairs: Sequence[AlignedPair]) -> View:
    """Return what differs between the sides, likely causes first, without a ranking if nothing was
    compared, and folded what is the same; equal tables of several batch sizes once."""
    tables = []
    for rows, group in group_by(pairs, _list_ranked_differences).items():
        used = [True, True, True, *[any(row[3] != NOT_RANKED for row in rows)] * 2]
        used.append(any(row[-1] for row in rows))
        labels = compress(("difference", "A", "B", "as a cause", "why", "effect"), used)
        texts = [compress(row, used) for row in rows]
        tables.append(
            _build_pairs_text_table("Differences", [match.pair for match in group], labels, texts)
        )
    equal = [
        _build_pairs_text_table("Equal on both sides", group, ("fact", "A and B"), rows)
        for rows, group in group_by(comparison.pairs, _list_equal_facts).items()
    ]
    shown_tables, folded = (
        tuple(table for table in group if table.rows) for group in (tables, equal)
    )
    none = () if shown_tables else ("The sides have no recorded difference.",)
    return View("Differences between A and B", none, shown_tables, folded=folded, key="differences")


def _list_ranked_differences(match: AlignedPair) -> tuple[tuple[str, ...], ...]:
    pairs = ((suspect, suspect.difference) for suspect in match.suspects)
    return tuple(
        (fact.fact, fact.a, fact.b, item.level, item.why, "not comparable" if fact.blocks else "")
        for item, fact in pairs
    )


def _list_equal_facts(pair: ComparedPair) -> tuple[tuple[str, str], ...]:
    differ = {"batch", *(difference.fact for difference in pair.differences)}
    return tuple((name, a) for name, a, _ in pair.facts if name not in differ)


def _build_pairs_text_table(
    caption: str,
    pairs: Iterable[ComparedPair],
    labels: Iterable[str],
    rows: Iterable[Iterable[str]],
) -> Table:
    """Return a table of texts about these pairs."""
    titles = "; ".join(
        f"{pair.heading}, {pair.batch_prefix}{pair.batch_label}"
        if pair.batch_label
        else pair.heading
        for pair in pairs
    )
    cells = tuple(tuple(map(text_cell, row)) for row in rows)
    return Table(tuple(text_columns(*labels)), cells, f"{caption}: {titles}", tools=False)


def _build_quantity_chapters(comparison: Comparison) -> Iterator[View]:
    """Yield a chapter for each part that has rows; every pair's rows in it, by batch size."""
    for key, title, level, quantities, caption in PARTS:
        chosen = select_quantity_rows(comparison, *((level, quantity) for quantity in quantities))
        if not chosen:
            continue
        if key in ("kernels", "layers"):
            order = [*STYLES, "", NOT_JUDGED]
            chosen.sort(
                key=lambda item: (
                    order.index(
                        NOT_JUDGED
                        if item[1].result == NOT_JUDGED
                        else choose_result_css_class(item[1])
                    ),
                    -item[1].distance_of_medians,
                )
            )
        if any(PER_REPORT in (row.basis or "") for _, row in chosen):
            caption = caption.replace("per step", "in the complete report")
        base = {"memory": "B", "flops": "FLOP"}.get(key, "ns")
        gate = 0.0 if key == "flops" else comparison.gate  # an exact count has none
        table = build_quantity_table(caption, chosen, base, change_threshold=gate)
        yield View(title, tables=(table,) if table else (), key=key)


def describe_compared_sides(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    """Return ("A", "run 12: batch 64, H100, 2026-11-20"), and the same of B."""
    return tuple(
        (label, f"{side.label}: {_describe_runs_of_side(side, used)}")
        for label, side, used in (
            ("A", comparison.a, [run for pair in comparison.pairs for run in pair.runs_a]),
            ("B", comparison.b, [run for pair in comparison.pairs for run in pair.runs_b]),
        )
    )


def _describe_runs_of_side(side: ComparisonSide, used: Sequence[Run]) -> str:
    batches = sorted({run.batch_size for run in used if run.batch_size is not None})
    count = pluralize_count(len(used), "run")
    if side.runs and not used:
        count += f" of {len(side.runs)}, because the other side has no matching runs"
    devices = dict.fromkeys(run.device.name or run.device.kind for run in used if run.device)
    origins = sorted({run.origin for run in used})
    facts = (
        "" if len(used) == 1 and side.label.startswith("run ") else count,
        f"batch {', '.join(map(str, batches))}" if batches else "",
        ", ".join(devices),
        find_first_run_date(used),
        "" if origins == ["measured"] else " and ".join(origins),
    )
    return ", ".join(filter(None, facts))


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """One side."""

    label: str
    runs: list[int]
    """Numbers of runs."""


@dataclass(frozen=True, slots=True)
class CompareOutput:
    """Times in ns, memory in bytes, throughput in samples per second, energy in J, energy-delay
    product in J s."""

    JSON_INLINED = ("comparison",)

    comparison: Comparison
    a: ComparedSide
    b: ComparedSide
    regressions: int
    improvements: int
    other_changes: int
    not_comparable: int
    findings: Sequence[str]
    warnings: Sequence[str]
    pairs: Sequence[AlignedPair]


def build_comparison_summary(comparison: Comparison) -> View:
    """Return the sides, how the step changed and why, and one table: steps, memory and energy, then
    layers by the size of their change, then kernels and counts that changed. Only the sides if
    nothing may be compared."""
    view = View(
        properties=describe_compared_sides(comparison),
        document=partial(build_comparison_page, comparison),
    )
    if comparison.has_no_comparable_pair or not comparison.pairs:
        return view
    sentences = describe_comparison_in_sentences(
        comparison, tuple(map(align_layers_and_kernels, comparison.pairs))
    )
    steps = select_quantity_rows(
        comparison, *(("step", name) for name in ("time", "memory", *ENERGY_UNITS))
    )
    layers = select_quantity_rows(comparison, ("layer", "time"))
    kernels = select_quantity_rows(comparison, ("kernel", "time"))
    counts = select_quantity_rows(comparison, ("step", "flops"), ("layer", "flops"))
    rows = list(steps)
    # what did not change is omitted below layers, and counts below steps
    for level, is_short in ((layers, False), (kernels, bool(layers)), (counts, bool(steps))):
        listed = [item for item in level if not is_short or choose_result_css_class(item[1])]
        rows += sorted(listed, key=lambda item: -item[1].distance_of_medians)
    table = build_quantity_table(
        "", rows, omitted_columns=("95% interval", "reason"), max_rows=TERMINAL_ROWS
    )
    notes = [describe_change_threshold(comparison)]
    if table and table.hidden:
        notes.append(f"{table.hidden} more rows: --out FILE.html.")
    return replace(
        sentences,
        findings=sentences.findings[: sentences.open_findings],
        properties=view.properties,
        document=view.document,
        tables=(replace(table, hidden=0, notes=()),) if table else (),
        notes=(" ".join(notes),),
    )


def write_pull_request_markdown(comparison: Comparison) -> str:
    """Return a summary for a pull request: the sentences of the page, and folded tables of the rows
    that count."""
    sentences = describe_comparison_in_sentences(
        comparison, tuple(map(align_layers_and_kernels, comparison.pairs))
    )
    worse, better = comparison.regressions, comparison.improvements
    news = comparison.new_gone_or_different_rows
    steps = select_quantity_rows(comparison, ("step", "time"), ("step", "memory"))
    hidden = len(sentences.findings) - SENTENCES
    return documents.write_markdown(
        replace(
            sentences,
            title=f"perfctl compare: {comparison.b.label} against {comparison.a.label}",
            facts=(
                f"{len(worse)} worse, {len(better)} better, {len(news)} new, gone or different.",
                describe_change_threshold(comparison),
            ),
            findings=sentences.findings[:SENTENCES],
            properties=describe_compared_sides(comparison),
            folded=tuple(
                table
                for caption, rows in (
                    ("Changes", [*worse, *better, *news]),
                    ("Steps and memory", steps),
                )
                if (
                    table := build_quantity_table(
                        caption, rows, omitted_columns=("reason",), max_rows=MARKDOWN_ROWS
                    )
                )
            ),
            notes=(f"perfctl compare --out FILE.html has {hidden} more findings.",)
            if hidden > 0
            else (),
        ),
        heading_level=3,
    )


def build_comparison_output(comparison: Comparison) -> CompareOutput:
    """Return the complete comparison for programs."""
    pairs = tuple(map(align_layers_and_kernels, comparison.pairs))
    sentences = describe_comparison_in_sentences(comparison, pairs)
    a, b = comparison.a.label, comparison.b.label
    return CompareOutput(
        comparison=comparison,
        a=ComparedSide(a, [run.id for pair in comparison.pairs for run in pair.runs_a]),
        b=ComparedSide(b, [run.id for pair in comparison.pairs for run in pair.runs_b]),
        regressions=len(comparison.regressions),
        improvements=len(comparison.improvements),
        other_changes=len(comparison.new_gone_or_different_rows),
        not_comparable=len(comparison.not_comparable),
        findings=sentences.finding_and_warning_sentences[0],
        warnings=sentences.warnings,
        pairs=pairs,
    )
