"""The whole page as records, so that templates decide nothing."""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from perfctl.orchestrator.counts.counters.sums import instructions, ops_path
from perfctl.orchestrator.counts.derived.records import Derived
from perfctl.orchestrator.counts.derived.rules import error_of
from perfctl.orchestrator.counts.hardware.peaks import Peaks
from perfctl.orchestrator.ledger.analysis import Analysis, analyse_all
from perfctl.orchestrator.ledger.prepared import (
    PreparedBatch,
    Study,
    heading,
    parts,
    studies,
)
from perfctl.orchestrator.ledger.usage.exchange import JobTalk
from perfctl.orchestrator.ledger.usage.phase_layers import PhaseParts
from perfctl.orchestrator.ledger.usage.served import same_sequences
from perfctl.orchestrator.report.charts import study as charts_study
from perfctl.orchestrator.report.charts.charts import Chart
from perfctl.orchestrator.report.charts.study import chart_views, label, layer_colours
from perfctl.orchestrator.report.findings import SHOWN, findings
from perfctl.orchestrator.report.ledger.matrix import Matrix, matrix
from perfctl.orchestrator.report.ledger.page import ledger_view
from perfctl.orchestrator.report.ledger.parts import parts_table, times_table, variants_table
from perfctl.orchestrator.report.ledger.phases import has_repeats, phase_tables, phases_of
from perfctl.orchestrator.report.ledger.roofline import roofline_charts, roofline_tables, roofs_note
from perfctl.orchestrator.report.ledger.trail import packed, trails
from perfctl.orchestrator.report.page import about, kernels, timeline, usage
from perfctl.orchestrator.report.page import study as page_study
from perfctl.orchestrator.report.page.icicle import icicles
from perfctl.orchestrator.report.page.kernels import advice_table, mix_table, switch_table
from perfctl.orchestrator.report.page.records import Finding, PageView, Section, StudyView
from perfctl.orchestrator.report.page.several import overview
from perfctl.orchestrator.report.studies.inference_findings import answered
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
    Column("launches", note="of this kernel with this rule, in all recorded steps"),
    Column("instruction", style="text"),
    Column("derived", note="threads of one launch; tensor: FLOP, 1 multiply-add = 2"),
    Column("counted", note="the same instruction of the same launch, from its counter"),
    Column("deviation", style="text", note="derived / measured"),
    Column("rule", style="text"),
    Column("verified", style="text", note="error of this rule on launches with counters"),
)
WITHOUT_ORIGIN = {"breakdown", "derived", "advice", "runs", "gaps", "repeat"}
"""Sections without the origin of their numbers beside the heading."""
CHARTS_FIRST = 2
"""Charts on the first screen; the others are in the batch sweep."""
WHOLE = 6
"""Networks of a bench that have a part each; more share one."""
PRINTED = 40
"""Rows of the matrix on paper, those with the most time."""


def derived_table(study: Study, names: Mapping[str, str]) -> Table | None:
    """One row a batch size, layer, kernel and rule; None where no launch has a rule. ``names``:
    short kernel names of the page."""
    rows = [row for batch in study.prepared_batches for row in _derived_rows(batch, names)]
    return listing("Derived counts, by the rule of each kernel", COLUMNS, rows)


def _derived_rows(
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
        values = batch.counted.values.get(launches[0].launch, {}) if batch.counted else {}
        counted = ops_path(values) if derived.tensor else instructions(values).get("ffma")
        yield [
            batch.batch,
            text_cell(layer) if layer else nothing("no range states it"),
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
        drawn.append(_study(StudyPart(f"s{number}", one, ranks.get(number, ()))))
    inference = _inference([study for study in found if answered(study)])
    if inference:
        drawn = [_details(view, study, found) for view, study in zip(drawn, found, strict=True)]
    views = (*inference, *_benches(bench, len(found) + 1), *_told_apart(drawn))
    # "2026-11-20T21:06:57Z" -> "2026-11-20 21:06 UTC"; anything else as it is
    stamp = re.sub(
        r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d(?:\.\d+)?(?:Z|\+00:00)$", r"\1 \2 UTC", generated_at
    )
    if title is None and not inference and not bench and len(found) > 1 and len(parts(found)) == 1:
        models = dict.fromkeys(
            study.runs[0].report.environment.get("option:model") or study.workload
            for study in found
        )
        title = f"{' and '.join(filter(None, models))}, {len(found)} parts of a study"
    if title is None:
        shown = [view for view in views if not view.folded]
        several = f"{len(shown)} studies and reports" if views else "nothing to show"
        title = shown[0].heading if len(shown) == 1 else several
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


def _inference(found: Sequence[Study]) -> tuple[StudyView, ...]:
    if not found:
        return ()
    from perfctl.orchestrator.report.studies.inference import inference_view

    return (inference_view(found),)


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


@dataclass(frozen=True)
class StudyPart:
    """A study, and what its chapters share."""

    key: str
    analysis: Analysis
    ranks: tuple[JobTalk, ...]
    """The jobs whose first rank this study is."""

    @property
    def runs(self) -> Sequence[Run]:
        return self.analysis.study.runs

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        of_ranks = (item for talk in self.ranks for item in rank_findings(talk))
        said = (*of_ranks, *findings(self.analysis))
        if answered(self.analysis.study):  # they are in the view of all models
            said = tuple(item for item in said if item.evidence != "inference")
        return said

    @cached_property
    def origin(self) -> str | None:
        """Of numbers that were not measured on this machine."""
        names = [name for name, _ in about.origins(self.runs)]
        return None if set(names) <= {"measured"} else " and ".join(names)

    @cached_property
    def phases(self) -> Sequence[PhaseParts]:
        return phases_of(self.analysis)

    @cached_property
    def colours(self) -> Mapping[str, int]:
        return layer_colours(self.analysis.ledger)

    @cached_property
    def charts(self) -> tuple[Chart, ...]:
        drawn = chart_views(self.key, self.analysis, timed=not answered(self.analysis.study))
        if self.origin:
            drawn = tuple(replace(chart, note=f"{self.origin}; {chart.note}") for chart in drawn)
        return drawn


def _study(part: StudyPart) -> StudyView:
    study, said = part.analysis.study, part.findings
    sections = tuple(
        section if section.key in WITHOUT_ORIGIN else replace(section, origin=part.origin)
        for chapters in (_ledger_chapters, _work_chapters, _time_chapters, _run_chapters)
        for section in chapters(part)
        if section is not None
    )
    shown = {section.key for section in sections}
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
        part.key,
        heading(study),
        tuple((name, value) for name, value in facts if value),
        about.origins(study.runs),
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


def _ledger_chapters(part: StudyPart) -> Iterator[Section | None]:
    """The ledger as matrix or table, the first charts, parts, phases and passes."""
    found, runs = part.analysis, part.runs
    repeats = has_repeats(part.phases)
    by_phase = (
        _tables(
            "phases", "Prefill and decode", usage.phases_table(runs), *phase_tables(part.phases)
        ),
        _tables("passes", "Forward and backward", usage.passes_table(runs)),
    )
    entries = _ledger(found, part.findings)
    if repeats:  # in place of a row for each of hundreds of layers
        yield from by_phase
        entries = entries and replace(entries, matrix=None, small=())
    has_matrix = entries is not None and entries.matrix is not None
    if has_matrix:
        yield entries
    if first := part.charts[: 0 if repeats else CHARTS_FIRST]:
        yield Section("charts", "Charts", charts=first)
    yield _tables("parts", "Parts", parts_table(found.parts), variants_table(found))
    yield _tables("times", "CPU timer", times_table(found))
    if not repeats:
        yield from by_phase
    if drawn := icicles(found, part.colours):
        yield Section("breakdown", "Where the time goes", icicles=drawn)
    if not has_matrix:
        yield entries


def _work_chapters(part: StudyPart) -> Iterator[Section | None]:
    """Derived counts, the roofline, the batch sweep, and kernels."""
    found, study, names = part.analysis, part.analysis.study, part.analysis.names
    derived = derived_table(study, names)
    yield _tables("derived", "Derived counts", derived, folded=found.ledger.any_counted)
    if tables := roofline_tables(found.roofline, names):
        charts = roofline_charts(part.key, found.roofline, part.colours, names)
        note = roofs_note(found.roofline)
        yield Section("roofline", "Roofline", note=note, charts=charts, tables=tables)
    later = part.charts[0 if has_repeats(part.phases) else CHARTS_FIRST :]
    swept = page_study.sweep_table(found.points, rates=not answered(study))
    steps = _some(page_study.steps(part.runs))
    tables = () if study.foreign else _some(swept)
    if tables or steps or later:
        title = "Steps" if study.foreign else "Batch sweep"
        yield Section("sweep", title, tables=tables, folded=steps, charts=later)
    yield _tables("switches", "Kernel switches", switch_table(found))
    grids = (
        kernels.launches(study.prepared_runs, names),
        page_study.counters(part.runs, names),
    )
    if any(grids):
        by_name = _some(kernels.summary(study.prepared_runs, names))
        yield Section("kernels", "Kernels", tables=by_name, grids=tuple(filter(None, grids)))
    advice = (advice_table(part.runs, names), mix_table(part.runs, names))
    yield _tables("advice", "Advice and instructions of ncu", *advice, folded=True)


def _time_chapters(part: StudyPart) -> Iterator[Section | None]:
    """The timeline, operators, ranges, calls, ranks, and how busy the devices were."""
    runs, names, folded = part.runs, part.analysis.names, not part.analysis.study.foreign
    if views := tuple(timeline.timelines(runs, part.colours, names)):
        yield Section("timeline", "Timeline", timelines=views)
    else:
        yield _absent("timeline", "Timeline", timeline.absent(runs))
    yield _tables("operators", "Operators", page_study.operators(runs), folded=folded)
    moved = (page_study.ranges(runs), page_study.copies(runs))
    yield _tables("ranges", "Ranges and copies", *moved, folded=folded)
    yield _tables("api", "API calls", page_study.api_calls(runs), folded=True)
    yield _tables("ranks", "Ranks", *(view for talk in part.ranks for view in ranks_tables(talk)))
    used = [item.usage for item in part.analysis.study.prepared_runs]
    tables = _some(
        usage.ways_table(used),
        usage.busy_table(used),
        usage.readings_table(used),
        usage.energy_table(used),
        usage.verdicts_table(runs),
        *usage.waits_tables(used, names),
    )
    if tables:
        chart = charts_study.utilization_chart(f"{part.key}-utilization", [("", used)])
        charts = (chart,) if chart else ()
        yield Section("utilisation", "Utilisation", tables=tables, charts=charts)
    else:
        yield _absent("utilisation", "Utilisation", usage.absent(runs))
    yield _tables("memory", "Memory", usage.memory_use_table(used), usage.memory_table(runs))


def _run_chapters(part: StudyPart) -> Iterator[Section | None]:
    """What the figures rest on."""
    runs, study = part.runs, part.analysis.study
    yield _tables("summaries", "Summaries", page_study.summaries(runs))
    tables = _some(about.runs_table(study), about.differences(runs))
    facts = about.environment(runs)
    yield Section("runs", "Runs and environment", tables=tables, environment=facts)
    missing = about.missing_values(study, part.analysis.ledger)
    yield _tables("gaps", "Gaps", missing, about.diagnostics(runs))
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
    told = {item.text for item in said}  # no sentence stands twice
    sweep = (replace(item, sentence="") if item.sentence in told else item for item in view.sweep)
    return Section(
        "ledger",
        "Ledger",
        ledger=replace(view, sweep=tuple(sweep)),
        matrix=drawn,
        small=_small(found, drawn) if drawn else (),
        trails=packed(trails(found)) | {"names": whole},
    )


def _small(found: Analysis, drawn: Matrix) -> tuple[str, ...]:
    """Return the names of the rows beyond PRINTED that take the most time, or have the most
    estimated FLOPs if none has a time."""
    weight: dict[str, tuple[float, float]] = {}
    for row in found.ledger.rows:
        name = f"{row.place} {'' if row.place == row.direction else row.direction}".strip()
        time, work = weight.get(name, (0.0, 0.0))
        weight[name] = max(time, row.share or 0.0), max(work, float(row.paper.value or 0))
    names = [f"{row.layer} {row.direction}".strip() for row in drawn.rows]
    return tuple(
        sorted(names, key=lambda name: weight.get(name, (0.0, 0.0)), reverse=True)[PRINTED:]
    )


def _absent(key: str, title: str, why: str | None) -> Section | None:
    return Section(key, title, note=f"Not collected: {why}.") if why else None


def _some(*tables: Table | None) -> tuple[Table, ...]:
    return tuple(table for table in tables if table is not None)


def _tables(key: str, title: str, *tables: Table | None, folded: bool = False) -> Section | None:
    kept = _some(*tables)
    if not kept:
        return None
    return Section(key, title, folded=kept) if folded else Section(key, title, tables=kept)
