"""The whole page as records, so that templates decide nothing."""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from perfctl.orchestrator.counts.counters.sums import instructions, ops_path
from perfctl.orchestrator.counts.derived.records import Derived
from perfctl.orchestrator.counts.derived.rules import error_of
from perfctl.orchestrator.counts.hardware.peaks import Peaks
from perfctl.orchestrator.ledger.analysis import Analysis, analyse_all, short_names
from perfctl.orchestrator.ledger.prepared import (
    PreparedBatch,
    Study,
    heading,
    parts,
    studies,
)
from perfctl.orchestrator.ledger.usage.exchange import JobTalk
from perfctl.orchestrator.ledger.usage.served import same_sequences
from perfctl.orchestrator.report.charts import study as charts_study
from perfctl.orchestrator.report.charts.study import chart_views, label, layer_colours
from perfctl.orchestrator.report.findings import SHOWN, findings
from perfctl.orchestrator.report.ledger.matrix import Matrix, matrix
from perfctl.orchestrator.report.ledger.page import Reason, ledger_view
from perfctl.orchestrator.report.ledger.parts import parts_table, times_table, variants_table
from perfctl.orchestrator.report.ledger.phases import has_repeats, phase_tables, phases_of
from perfctl.orchestrator.report.ledger.roofline import roofline_charts, roofline_tables, roofs_note
from perfctl.orchestrator.report.ledger.trail import packed, trails
from perfctl.orchestrator.report.page import about, kernels, timeline, usage
from perfctl.orchestrator.report.page import study as page_study
from perfctl.orchestrator.report.page.icicle import icicles
from perfctl.orchestrator.report.page.inference import answered
from perfctl.orchestrator.report.page.kernels import advice_table, mix_table, switch_table
from perfctl.orchestrator.report.page.records import Finding, PageView, Section, StudyView
from perfctl.orchestrator.report.page.several import overview
from perfctl.orchestrator.report.studies.ranks import rank_findings, ranks_tables, talks
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    amount,
    listing,
    name_cell,
    nothing,
    text_cell,
)
from perfctl.records.bench import WORKLOAD
from perfctl.records.report import Kernel
from perfctl.records.run import Run

COLUMNS = (
    Column("batch"),
    Column("layer", style="code"),
    Column("direction", style="text"),
    Column("kernel", style="code"),
    Column("launches", note="of this kernel with this rule, in all steps that were recorded"),
    Column("instruction", style="text"),
    Column("derived", note="threads of one launch; tensor: FLOP, 1 multiply-add = 2"),
    Column("counted", note="the same instruction of the same launch, from its counter"),
    Column("deviation", style="text", note="derived against counted"),
    Column("rule", style="text"),
    Column(
        "verified", style="text", note="error of this rule on launches whose counters are known"
    ),
)
NUMBERS = (
    "charts",
    "parts",
    "times",
    "phases",
    "passes",
    "inference",
    "ledger",
    "roofline",
    "sweep",
    "switches",
    "kernels",
    "timeline",
    "operators",
    "ranges",
    "api",
    "ranks",
    "utilisation",
    "memory",
    "summaries",
)
"""Sections of numbers, with their origin beside the heading."""
CHARTS_FIRST = 2
"""Charts on the first screen; the others are in the batch sweep."""
WHOLE = 6
"""Networks of a bench that have a part each; more share one."""
PRINTED = 40
"""Rows of the matrix on paper, those with the most time."""


def derived_table(study: Study, names: Mapping[str, str] | None = None) -> Table | None:
    """One row a batch size, layer, kernel and rule; None where no launch has a rule.

    ``names``: short kernel names of the page.
    """
    names = short_names(study.runs) if names is None else names
    rows = [row for batch in study.prepared_batches for row in _rows(batch, names)]
    return listing("Derived counts, by the rule of each kernel", COLUMNS, rows, drop_run=False)


def _rows(
    batch: PreparedBatch, names: Mapping[str, str]
) -> Iterator[list[Cell | int | str | None]]:
    source = batch.derived or batch.counted
    found = batch.completed | (batch.derived.derived if batch.derived else {})
    groups: dict[tuple[str | None, str | None, str, Derived], list[Kernel]] = defaultdict(list)
    for kernel in source.run.report.kernels if source and found else ():
        if (derived := found.get(kernel.launch)) is not None and (derived.ffma or derived.tensor):
            groups[kernel.layer, kernel.direction, kernel.name, derived].append(kernel)
    for (layer, direction, name, derived), launches in groups.items():
        name_of, value = ("tensor", derived.tensor) if derived.tensor else ("FFMA", derived.ffma)
        counted = _counted(batch, launches[0].launch, name_of)
        yield [
            batch.batch,
            text_cell(layer) if layer else nothing("no range says so"),
            direction,
            name_cell(name, names.get(name)),
            len(launches),
            name_of,
            amount(value, "FLOP" if derived.tensor else ""),
            amount(counted, ""),
            text_cell(f"{(value or 0) / counted - 1:+.1%}")
            if counted
            else nothing("not collected"),
            derived.rule,
            error_of([derived.family]),
        ]


def _counted(batch: PreparedBatch, launch: int, name: str) -> float | None:
    values = batch.counted.values.get(launch, {}) if batch.counted else {}
    return ops_path(values) if name == "tensor" else instructions(values).get("ffma")


def page_view(
    runs: Iterable[Run],
    *,
    generated_at: str,
    title: str | None,
    peaks: Sequence[Peaks] = (),
    begun: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> PageView:
    """The page of these runs: one part a study, in order of first appearance; studies with a
    ledger first.

    A bench of many networks is one part, with a row for each point instead of a ledger for each
    network. ``begun`` is told of each study: its name, how many are done, how many there are.
    """
    whole, bench = _apart(studies(runs))
    found = sorted(whole, key=lambda study: study.foreign)
    ranks = _ranks(found)
    drawn, analysed = [], analyse_all(found, peaks)
    for number, one in enumerate(analysed, 1):
        begun(label(one.study), number - 1, len(found))
        drawn.append(_study(one, f"s{number}", ranks.get(number, ())))
    inference = _inference([study for study in found if answered(study)])
    if inference is not None:
        drawn = [_details(view, study, found) for view, study in zip(drawn, found, strict=True)]
    views = (
        *([inference] if inference else []),
        *_benches(bench, len(found) + 1),
        *_told_apart(drawn),
    )
    if (
        title is None
        and inference is None
        and not bench
        and len(found) > 1
        and len(parts(found)) == 1
    ):
        models = dict.fromkeys(
            study.runs[0].report.environment.get("option:model") or study.workload
            for study in found
        )
        title = f"{' and '.join(filter(None, models))}, {len(found)} parts of a study"
    if title is None:
        shown = [view for view in views if not view.folded]
        several = f"{len(shown)} studies and reports" if views else "nothing to show"
        title = shown[0].heading if len(shown) == 1 else several
    # "2026-11-20T21:06:57Z" -> "2026-11-20 21:06 UTC"; anything else as it is
    stamp = re.sub(
        r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d(?:\.\d+)?(?:Z|\+00:00)$", r"\1 \2 UTC", generated_at
    )
    together = overview(
        [(f"s{number}", one) for number, one in enumerate(analysed, 1) if not answered(one.study)]
    )
    return PageView(title, stamp, views, overview=together)


def _apart(found: Iterable[Study]) -> tuple[list[Study], list[Study]]:
    """(studies with a part of their own, networks of a bench that share one)."""
    own: list[Study] = []
    bench: list[Study] = []
    for study in (every := list(found)):
        of_bench = study.workload == WORKLOAD and {run.profiler for run in study.runs} == {"none"}
        (bench if of_bench else own).append(study)
    return (every, []) if len(bench) <= WHOLE else (own, bench)


def _benches(bench: Sequence[Study], first: int) -> Iterable[StudyView]:
    """Few pages have one, so what draws it is loaded for these alone; the same holds
    for inference."""
    if not bench:
        return ()
    from perfctl.orchestrator.report.page.bench import bench_views

    return bench_views(bench, first)


def _inference(found: Sequence[Study]) -> StudyView | None:
    if not found:
        return None
    from perfctl.orchestrator.report.studies.inference import inference_view

    return inference_view(found)


def _details(view: StudyView, study: Study, found: Sequence[Study]) -> StudyView:
    """A study of inference below the view of all models: folded, unless it is the only one and
    was profiled."""
    if not answered(study):
        return view
    alone = len(found) == 1 and any(run.profiler != "none" for run in study.runs)
    return replace(view, heading=f"Details: {view.heading}", folded=not alone)


def _told_apart(views: Sequence[StudyView]) -> tuple[StudyView, ...]:
    """With the device in headings that would be the same."""
    often = Tally(view.heading for view in views)
    devices = [dict(view.facts).get("device") for view in views]
    return tuple(
        replace(view, heading=f"{view.heading}, {device}")
        if often[view.heading] > 1 and device
        else view
        for view, device in zip(views, devices, strict=True)
    )


def _ranks(found: Sequence[Study]) -> dict[int, tuple[JobTalk, ...]]:
    """Number of a study, from 1 -> the jobs whose first rank is in it: each rank is a study of
    its own."""
    made: dict[int, tuple[JobTalk, ...]] = {}
    for talk in talks(run for study in found for run in study.runs):
        first = talk.job.ranks[0].run
        number = next(
            number
            for number, study in enumerate(found, 1)
            if any(run is first for run in study.runs)
        )
        made[number] = (*made.get(number, ()), talk)
    return made


def _study(found: Analysis, key: str, ranks: tuple[JobTalk, ...] = ()) -> StudyView:
    """``ranks``: the jobs whose first rank this study is."""
    study = found.study
    said = (*(item for talk in ranks for item in rank_findings(talk)), *findings(found))
    if answered(study):  # they are in the view of all models
        said = tuple(item for item in said if item.evidence != "inference")
    origins = about.origins(study.runs)
    origin = (
        None
        if {name for name, _ in origins} <= {"measured"}
        else " and ".join(name for name, _ in origins)
    )
    sections = tuple(
        replace(part, origin=origin) if part.key in NUMBERS else part
        for part in _parts(found, key, origin, ranks, said)
    )
    shown = {part.key for part in sections}
    if "ledger" in shown:
        said = tuple(
            item if item.evidence in shown else replace(item, evidence="ledger") for item in said
        )
    news = [item for item in said if not item.warning]
    capability = next((device.compute_capability for device in study.runs[0].devices[:1]), None)
    chip = capability if (capability or "").startswith("gfx") else f"CC {capability}"
    facts = (
        ("what", study.runs[0].report.form if study.foreign else ""),
        ("modules", next(filter(None, map(usage.placed_text, study.runs)), "")),
        ("phases", next(filter(None, map(usage.phase_text, study.runs)), "")),
        (
            "device",
            f"{about.device_text(study) or 'not recorded'}" + (f" ({chip})" if capability else ""),
        ),
        ("batch", " ".join(map(str, study.batches)) or _sequences(study)),
        ("tools", about.tools(study.runs)),
        ("from", about.began(study.runs)),
    )
    return StudyView(
        key,
        heading(study),
        tuple((name, value) for name, value in facts if value),
        origins,
        tuple(news[:SHOWN]),
        tuple(news[SHOWN:]),
        tuple(item for item in said if item.warning),
        sections,
    )


def _sequences(study: Study) -> str:
    """Of a server's steps, where each has as many."""
    found = {same_sequences(run) for run in study.runs}
    only = found.pop() if len(found) == 1 else None
    return "" if only is None else f"{only:,} (sequences in each step)"


def _told_above(sweep: Sequence[Reason], said: Sequence[Finding]) -> tuple[Reason, ...]:
    """Without the sentences that stand among the findings."""
    told = {item.text for item in said}
    return tuple(replace(item, sentence="") if item.sentence in told else item for item in sweep)


def _parts(
    found: Analysis,
    key: str,
    origin: str | None,
    ranks: tuple[JobTalk, ...],
    said: Sequence[Finding],
) -> Iterable[Section]:
    """The parts that have contents, in the page's order. ``origin``: of numbers not measured on
    this machine."""
    study, entries, batch_points = found.study, found.ledger, found.points
    some, colours = study.runs, layer_colours(entries)
    drawn = chart_views(key, found, timed=not answered(study))
    if origin:
        drawn = tuple(replace(chart, note=f"{origin}; {chart.note}") for chart in drawn)
    phases = phases_of(found)
    by_phase = (
        *_tables("phases", "Prefill and decode", usage.phases_table(some), *phase_tables(phases)),
        *_tables("passes", "Forward and backward", usage.passes_table(some)),
    )
    entries_view = _ledger(found, said)
    if has_repeats(phases):  # in place of a row for each of hundreds of layers
        yield from by_phase
        entries_view = entries_view and replace(entries_view, matrix=None, small=())
    if entries_view is not None and entries_view.matrix is not None:
        yield entries_view
    first = 0 if has_repeats(phases) else CHARTS_FIRST
    if drawn[:first]:
        yield Section("charts", "Charts", charts=drawn[:first])
    yield from _tables("parts", "Parts", parts_table(found.parts), variants_table(found))
    yield from _tables("times", "Host clock", times_table(found))
    if not has_repeats(phases):
        yield from by_phase
    if parts := icicles(found, colours):
        yield Section("breakdown", "Where the time goes", icicles=parts)
    if entries_view is not None and entries_view.matrix is None:
        yield entries_view
    yield from _tables(
        "derived",
        "Derived counts",
        derived_table(found.study, found.names),
        folded=found.ledger.any_counted,
    )
    if tables := roofline_tables(found.roofline, found.names):
        drawn_roof = roofline_charts(key, found.roofline, colours, found.names)
        yield Section(
            "roofline",
            "Roofline",
            note=roofs_note(found.roofline),
            charts=drawn_roof,
            tables=tables,
        )
    swept = (
        ()
        if study.foreign
        else _some(page_study.sweep_table(batch_points, rates=not answered(study)))
    )
    steps = _some(page_study.steps(some))
    if swept or steps or drawn[first:]:
        title = "Steps" if study.foreign else "Batch sweep"
        yield Section("sweep", title, tables=swept, folded=steps, charts=drawn[first:])
    yield from _tables("switches", "Kernel switches", switch_table(found))
    by_name = _some(kernels.summary(found.study.prepared_runs, names=found.names))
    long = (
        kernels.launches(found.study.prepared_runs, found.names),
        page_study.counters(some, found.names),
    )
    if grids := tuple(grid for grid in long if grid):
        yield Section("kernels", "Kernels", tables=by_name, grids=grids)
    yield from _tables(
        "advice",
        "Advice and instructions of ncu",
        advice_table(some, names=found.names),
        mix_table(some, found.names),
        folded=True,
    )
    if views := tuple(timeline.timelines(some, colours, found.names)):
        yield Section("timeline", "Timeline", timelines=views)
    else:
        yield from _absent("timeline", "Timeline", timeline.absent(some))
    folded = not study.foreign
    yield from _tables("operators", "Operators", page_study.operators(some), folded=folded)
    yield from _tables(
        "ranges",
        "Ranges and copies",
        page_study.ranges(some),
        page_study.copies(some),
        folded=folded,
    )
    yield from _tables("api", "API calls", page_study.api_calls(some), folded=True)
    yield from _tables("ranks", "Ranks", *(view for talk in ranks for view in ranks_tables(talk)))
    used = [item.usage for item in found.study.prepared_runs]
    known = (
        *_some(
            usage.ways_table(used),
            usage.busy_table(used),
            usage.readings_table(used),
            usage.energy_table(used),
            usage.verdicts_table(some),
        ),
        *usage.waits_tables(used, found.names),
    )
    chart = charts_study.utilisation_chart(f"{key}-utilisation", [("", used)])
    if known:
        yield Section("utilisation", "Utilisation", tables=known, charts=(chart,) if chart else ())
    else:
        yield from _absent("utilisation", "Utilisation", usage.absent(some))
    yield from _tables("memory", "Memory", usage.memory_use_table(used), usage.memory_table(some))
    yield from _tables("summaries", "Summaries", page_study.summaries(some))
    tables = _some(about.runs_table(study), about.differences(some))
    yield Section(
        "runs", "Runs and environment", tables=tables, environment=about.environment(some)
    )
    yield from _tables("gaps", "Gaps", about.gaps(found.study, entries), about.diagnostics(some))
    if again := about.commands(study):
        yield Section("repeat", "Repeat", commands=again)


def _ledger(found: Analysis, said: Sequence[Finding]) -> Section | None:
    """The ledger as matrix and table, with the trails of its figures."""
    view = ledger_view(found)
    if view is None:
        return None
    minor = frozenset((group.layer, group.direction) for group in view.groups if group.minor)
    whole = {short: name[:1000] for name, short in found.names.items() if name != short}
    drawn = matrix(found, minor)
    return Section(
        "ledger",
        "Ledger",
        ledger=replace(view, sweep=_told_above(view.sweep, said)),
        matrix=drawn,
        small=_small(found, drawn) if drawn else (),
        trails=packed(trails(found)) | {"names": whole},
    )


def _small(found: Analysis, drawn: Matrix) -> tuple[str, ...]:
    """Names of the rows beyond the PRINTED that take the most time, or have the most FLOPs on paper
    where none is timed."""
    weight: dict[str, tuple[float, float]] = {}
    for row in found.ledger.rows:
        name = f"{row.place} {'' if row.place == row.direction else row.direction}".strip()
        time, work = weight.get(name, (0.0, 0.0))
        weight[name] = max(time, row.share or 0.0), max(work, float(row.paper.value or 0))
    names = [f"{row.layer} {row.direction}".strip() for row in drawn.rows]
    return tuple(
        sorted(names, key=lambda name: weight.get(name, (0.0, 0.0)), reverse=True)[PRINTED:]
    )


def _absent(key: str, title: str, why: str | None) -> Iterable[Section]:
    if why:
        yield Section(key, title, note=f"Not collected: {why}.")


def _some(*found: Table | None) -> tuple[Table, ...]:
    return tuple(item for item in found if item is not None)


def _tables(key: str, title: str, *found: Table | None, folded: bool = False) -> Iterable[Section]:
    if kept := _some(*found):
        yield Section(key, title, folded=kept) if folded else Section(key, title, tables=kept)
