"""Chapters of inference at low batch: models and batch sizes side by side; and the part of the
ordinary page that has the same of all models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from perfctl.orchestrator.ledger.prepared import Study
from perfctl.orchestrator.ledger.usage.inference import (
    BusyFrom,
    InferencePoint,
    Latency,
    busy_from,
    inference_points,
)
from perfctl.orchestrator.ledger.usage.readings import BUSY, UsageShare
from perfctl.orchestrator.ledger.usage.run_usage import RunUsage
from perfctl.orchestrator.ledger.usage.three_reports import iteration_rows, name_rows, summary_row
from perfctl.orchestrator.report.charts.charts import Chart
from perfctl.orchestrator.report.charts.inference import (
    all_charts,
    images_of,
    interval_of,
    top1_of,
    wide_of,
)
from perfctl.orchestrator.report.findings import SHOWN
from perfctl.orchestrator.report.numbers import percent
from perfctl.orchestrator.report.page import about
from perfctl.orchestrator.report.page.records import Finding, Section, StudyView
from perfctl.orchestrator.report.page.usage import memory_use_table, readings_table
from perfctl.orchestrator.report.studies import inference_findings as sentences
from perfctl.orchestrator.report.studies.inference_findings import (
    LABELS,
    dlprof_runs,
    labelled,
    stated_cell,
)
from perfctl.orchestrator.report.studies.records import Subject, facts_of, make_chapter
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    count,
    decimal_cell,
    name_cell,
    nothing,
    rate,
    share_cell,
    size_cell,
    table,
    text_cell,
    time_cell,
)
from perfctl.orchestrator.report.view import View
from perfctl.records.run import Run

NAMES_MAX, ITERATIONS_MAX, ROWS_MAX = 15, 20, 3000
"""Names of kernels and iterations of a run in their reports, and rows of a table: nothing else
is cut."""
VIEW = {
    "throughput": "Images per second",
    "latency": "Latency",
    "utilisation": "Utilisation",
    "memory": "Memory",
    "accuracy": "Accuracy",
    "all": "All figures",
}
"""Section of the ordinary page -> its title."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What the chapters are made of."""

    points: tuple[InferencePoint, ...]
    busy: tuple[BusyFrom, ...]
    charts: Mapping[str, tuple[Chart, ...]]
    summary_lines: Mapping[int, str]
    """Run -> line 15 of its dlprof_summary.csv, where the file is still there."""

    @property
    def timed(self) -> list[tuple[InferencePoint, Latency]]:
        return [(point, point.latency) for point in self.points if point.latency is not None]

    @property
    def profiled(self) -> list[tuple[InferencePoint, Run]]:
        """Return the run that reports are made from: the lightest profiler that left kernels, else
        operators."""
        found = []
        for point in self.points:
            with_kernels = [run for run in point.runs if any(True for _ in run.report.kernels)]
            with_names = [run for run in point.runs if any(True for _ in run.report.operations)]
            found += [(point, run) for run in (with_kernels or with_names)[:1]]
        return found


def subject(runs: Sequence[Run], summary_lines: Mapping[int, str]) -> Subject:
    """Return what the chapters are made of."""
    answers = _prepare(runs, summary_lines)
    points = answers.points
    origins = {run.origin for run in runs} - {"measured"}
    bad = [run for run in runs if run.status != "ok"]
    return Subject(
        {name: partial(chapter, answers) for name, chapter in CHAPTERS.items()},
        tuple(_facts(points).items()),
        missing=tuple(_missing(answers)),
        origins=(", ".join(sorted(origins)),) if origins else (),
        problems=tuple(f"run {run.id} ({run.profiler}): {run.status}, {run.reason}" for run in bad),
    )


def _facts(points: Sequence[InferencePoint]) -> dict[str, str]:
    images = sorted({images_of(point) for point in points} - {0})
    ends = dict.fromkeys((*images[:1], *images[-1:]))
    what = "models" if any(point.batch for point in points) else "reports"
    facts = {what: ", ".join(sentences.names_of(points))}
    facts |= facts_of([run for point in points for run in point.runs])
    return facts | ({"images": " to ".join(f"{one:,}" for one in ends)} if images else {})


def _prepare(runs: Sequence[Run], summary_lines: Mapping[int, str]) -> Answers:
    points = inference_points(runs)
    return Answers(tuple(points), tuple(busy_from(points)), all_charts(points), summary_lines)


def inference_view(studies: Sequence[Study]) -> StudyView:
    """Return all models and batch sizes as one part of the page: the answer first, then a chart and
    a table a quantity.

    ``studies``: of inference over images.
    """
    runs = [run for study in studies for run in study.runs]
    answers = _prepare(runs, {})
    points, findings = answers.points, []
    sections = []
    for key, title in VIEW.items():
        chapter = CHAPTERS[key](answers)
        tables, folded = _present(chapter.tables), _present(chapter.folded)
        if key == "all":
            tables, folded = (), (*tables, *folded)
        note = " ".join(f"No {what}: {why}." for what, why in chapter.missing)
        if tables or folded or chapter.charts or note:
            charts = answers.charts.get(key, ())
            section = Section(key, title, tables=tables, folded=folded, charts=charts)
            sections.append(replace(section, note=note or None))
            findings += [
                one if isinstance(one, Finding) else Finding(one, key) for one in chapter.findings
            ]
    models = sentences.names_of(points)
    title = ", ".join(models) if len(models) <= 3 else f"{len(models)} models"
    bad = tuple(
        Finding(f"{point.model} at batch {point.batch}: {problem}.", "all", warning=True)
        for point in points
        for problem in point.problems
    )
    return StudyView(
        "infer",
        f"Inference: {title}",
        tuple(_facts(points).items()),
        about.origins(runs),
        tuple(findings[:SHOWN]),
        tuple(findings[SHOWN:]),
        bad,
        tuple(sections),
    )


def _present(tables: Iterable[Table | None]) -> tuple[Table, ...]:
    return tuple(one for one in tables if one is not None)


def _table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[tuple[InferencePoint, Sequence[object]]],
    *,
    whole: bool = False,
) -> Table | None:
    """Return a table that begins with model and batch size; None where nothing else is known."""
    cells = [
        [
            name_cell(point.model),
            count(point.batch, "the report does not say its batch size"),
            *values,
        ]
        for point, values in rows
    ]
    heads = [Column("model", style="code"), Column("batch"), *columns]
    made = table(caption, heads, cells, limit=ROWS_MAX, whole=whole)
    return made if made is not None and len(made.columns) > 2 else None


def _times(*names: str) -> list[Column]:
    return [Column(name, base="ns") for name in names]


def _why(point: InferencePoint, figure: str) -> str:
    why = "no run recorded it"
    return why if point.latency is None else point.latency.why.get(figure, why)


def latency_chapter(answers: Answers) -> View:
    """Times of full batches whose images are ready."""
    columns = [
        Column("batches", note="full batches that were timed"),
        *_times("p50", "p95", "p99", "longest", "p50 per image"),
        Column("measured by", style="text"),
    ]
    rows = []
    for point, timed in answers.timed:
        parts = [time_cell(timed.percentiles[n], timed.why[f"p{n}"]) for n in (50, 95, 99)]
        middle = timed.percentiles[50]
        clock = "the run's own clock"
        if timed.profiler != "none":
            clock = f"its own clock, under {timed.profiler}"
        each = middle and middle / timed.batch
        rows.append((point, [timed.count, *parts, timed.longest, each, clock]))
    why = "it needs 20 full batches, so 20 times the batch size in --images"
    lacks = rows and all(timed.percentiles[95] is None for _, timed in answers.timed)
    return make_chapter(
        charts=answers.charts.get("latency", ()),
        tables=(_table("Latency of a batch: copies and computation, images ready", columns, rows),),
        findings=tuple(sentences.judge_latency(answers.points)),
        missing=(("p95", why),) if lacks else (),
    )


def throughput_chapter(answers: Answers) -> View:
    """Images per second, and the mean step that they follow from."""
    note = "images of full batches over the time of their steps, waiting for images included"
    columns = [Column("images/s", note=note), *_times("mean step", "loading", "copies", "compute")]
    rows = [
        (
            point,
            [rate(one.images_per_second, "images/s"), one.step, one.load, one.copy, one.compute],
        )
        for point, one in answers.timed
    ]
    return make_chapter(
        charts=answers.charts.get("throughput", ()),
        tables=(_table("Images per second, and the mean step they follow from", columns, rows),),
        findings=tuple(sentences.judge_throughput(answers.points)),
    )


def utilisation_chapter(answers: Answers) -> View:
    """How busy GPU, tensor cores and host are, and from which batch size on."""
    points = answers.points
    busy_rows = []
    for busy in (busy for busy in answers.busy if busy.way):
        most = f"none of these; at most {percent(max(share for _, share in busy.measured))}"
        shares = "; ".join(f"{batch}: {percent(share)}" for batch, share in busy.measured)
        since = most if busy.batch is None else str(busy.batch)
        busy_rows.append([busy.model, since, text_cell(busy.way, busy.reason), shares])
    names = ("busy from batch", "found by", "busy share at each batch size")
    heads = [Column("model", style="code"), *(Column(name, style="text") for name in names)]
    caption = f"Batch size from which the GPU is busy ({BUSY * 100:.0f}% of the time or more)"
    columns = [
        Column("GPU busy"),
        Column("GPU idle", note="1 - busy, by kernels only: sampling does not tell"),
        Column("by", style="text", note="sampled: the driver's figure, an estimate"),
        Column("over", style="text", note="shares over different times differ"),
        Column("tensor cores"),
        Column("memory in use", note="highest reading over all of the GPU's memory"),
        Column("host cores busy"),
    ]
    rows = []
    for point in points:
        gpu, by_kernels = point.gpu, point.gpu_way == "kernels"
        none = gpu.reason if gpu.value is None else "an idle share needs kernels with start times"
        idle = None if gpu.value is None or not by_kernels else 1 - gpu.value
        over = "DLProf's wall clock" if point.gpu_way == "DLProf" else gpu.reason
        known = (use.ways.host_cores for use in point.uses if use.ways.host_cores is not None)
        cores = next(known, None)
        values = [
            _share(gpu),
            share_cell(idle, none),
            point.gpu_way or nothing(gpu.reason),
            nothing(over) if gpu.value is None else text_cell(over),
            _share(point.tensor),
            _share(point.memory),
            nothing(point.uses[0].ways.host_reason)
            if cores is None
            else Cell(f"{cores:.3g}", value=round(cores, 4)),
        ]
        rows.append((point, values))
    missing: tuple[tuple[str, str], ...] = ()
    if points and all(point.on_cpu for point in points):
        what = "GPU utilisation, tensor cores, memory of the GPU, batch size that keeps it busy"
        why = "the runs were on a CPU; on a machine with an NVIDIA GPU the same command has them"
        missing = ((what, why),)
    elif points and all(point.gpu.value is None for point in points):
        missing = (("GPU utilisation", points[0].gpu.reason),)
    return make_chapter(
        charts=answers.charts.get("utilisation", ()),
        tables=(
            table(caption, heads, busy_rows),
            _table("GPU, memory and tensor cores", columns, rows),
        ),
        findings=tuple(sentences.judge_busy(points, answers.busy)),
        missing=missing,
    )


def _share(share: UsageShare) -> Cell:
    cell = share_cell(share.value, share.reason)
    return cell if share.value is None else replace(cell, title=share.reason)


def memory_chapter(answers: Answers) -> View:
    """The highest memory of each run, by what recorded it."""
    tables = _by_model(answers, memory_use_table)
    return make_chapter(charts=answers.charts.get("memory", ()), tables=tables)


def _by_model(
    answers: Answers, tabulate: Callable[[Sequence[RunUsage]], Table | None]
) -> tuple[Table | None, ...]:
    """Return a table of the runs of each model, which its caption names."""
    uses: dict[str, list[RunUsage]] = {}
    for point in answers.points:
        uses.setdefault(point.model, []).extend(point.uses)
    tables = {model: tabulate(used) for model, used in uses.items()}
    return tuple(
        one and replace(one, caption=f"{model}: {one.caption.lower()}")
        for model, one in tables.items()
    )


def accuracy_chapter(answers: Answers) -> View:
    """Top-1 with its interval, top-5 and loss."""
    columns = [
        Column("top-1"),
        Column("95% interval", style="text", note="Wilson, for this many images"),
        Column("top-5"),
        Column("loss", note="mean cross-entropy in nats"),
        Column("images", note="that were read and scored"),
        Column("unreadable"),
    ]
    rows = []
    for point, timed in answers.timed:
        if (top1 := top1_of(point)) is None:
            continue
        low, high = interval_of(point)
        interval = text_cell(f"{percent(low)} to {percent(high)}")
        if wide := wide_of(point):
            interval = Cell(f"needs {wide.further}", wide.reason, "no", value="unknown")
        cells = [
            share_cell(top1),
            interval,
            share_cell(timed.figures.get("top5"), _why(point, "top5")),
            decimal_cell(timed.figures.get("loss"), _why(point, "loss")),
            images_of(point),
            _unreadable_cell(point),
        ]
        rows.append((point, cells))
    missing: tuple[tuple[str, str], ...] = ()
    if answers.timed and not rows:
        why = _why(answers.timed[0][0], "top1")
        missing = (("top-1, top-5", f"{why}. Use --weights default and --data imagenet"),)
    return make_chapter(
        charts=answers.charts.get("accuracy", ()),
        tables=(_table("Top-1 and top-5", columns, rows),),
        findings=tuple(sentences.judge_accuracy(answers.points)),
        missing=missing,
    )


def _unreadable(point: InferencePoint) -> list[str]:
    gaps = (gap for run in point.runs[:1] for gap in run.report.gaps)
    return [gap.reason for gap in gaps if gap.quantity == "images" and gap.state == "unreadable"]


def _unreadable_cell(point: InferencePoint) -> Cell:
    """Return the number of images that could not be read, with their names in its title."""
    skipped = point.latency.figures.get("images_skipped") if point.latency is not None else None
    if skipped is None:
        return nothing("no run recorded it")
    return Cell(f"{int(skipped):,}", "; ".join(_unreadable(point)) or None, value=int(skipped))


def kernels_chapter(answers: Answers) -> View:
    """The kernel report of DLProf: kernels, or operators of a CPU, by name."""
    rows = []
    for point, run in answers.profiled:
        for row in name_rows(run)[:NAMES_MAX]:
            tensor = "" if row.tensor is None else "yes" if row.tensor else "no"
            cells = [
                row.name,
                tensor or nothing("neither its name nor an operator says"),
                row.calls,
                row.total,
                row.mean,
                time_cell(row.shortest, "only sums are kept of operators"),
                time_cell(row.longest, "only sums are kept of operators"),
                share_cell(row.share),
            ]
            rows.append((point, cells))
    columns = [
        Column("kernel or operator", style="code"),
        Column("uses tensor cores", style="text"),
        Column("calls"),
        Column("total", base="ns", note="of kernels; of operators self time on the host"),
        *_times("mean", "shortest", "longest"),
        Column("share"),
    ]
    caption = f"Kernels or operators by name, the {NAMES_MAX} slowest of each run"
    why = "no run has kernels or operators; --profiler torch, or dlprof's --reports, gives them"
    missing = () if rows else (("kernel and iteration reports", why),)
    return make_chapter(tables=(_table(caption, columns, rows),), missing=missing)


def iterations_chapter(answers: Answers) -> View:
    """The iteration report of DLProf: each measured step."""
    running = "time with a kernel running; overlapping kernels count once"
    tensor = "share of kernel time in kernels whose names say tensor cores"
    columns = [
        Column("iteration"),
        *_times("step", "loading", "copies", "compute"),
        Column("kernels"),
        Column("kernels run", base="ns", note=running),
        Column("tensor cores", note=tensor),
    ]
    runs = {id(point): point.runs[0] for point, _ in answers.timed}
    runs |= {id(point): run for point, run in answers.profiled}
    rows = []
    for point in (point for point in answers.points if id(point) in runs):
        for row in iteration_rows(runs[id(point)])[:ITERATIONS_MAX]:
            parts = (row.step, row.load, row.copy, row.compute)
            cells = [
                row.number,
                *(time_cell(part, "not timed") for part in parts),
                count(row.kernels, row.tensor.reason),
                time_cell(row.kernel_ns, row.tensor.reason),
                _share(row.tensor),
            ]
            rows.append((point, cells))
    caption = f"Iterations, the first {ITERATIONS_MAX} of each run"
    return make_chapter(folded=(_table(caption, columns, rows),))


def summary_chapter(answers: Answers) -> View:
    """The summary report of DLProf, and its own lines where it ran."""
    columns = [
        Column("profiler", style="text"),
        Column("iterations"),
        *_times("wall clock", "average iteration", "± deviation"),
        Column("GPU busy"),
        Column("tensor cores"),
        Column("loading", note="share of the iterations; likewise the next two"),
        Column("copies"),
        Column("compute"),
        Column("kernels"),
        *_times("kernel time", "with tensor cores"),
    ]
    rows = []
    for point, run in answers.profiled:
        one, none = summary_row(run), "no kernels in the report"
        none = "no kernels: the run was on a CPU" if point.on_cpu else none
        no_steps, shares = "the report has no steps", (one.load_share, one.copy_share)
        cells = [
            run.profiler,
            count(one.iterations, no_steps),
            time_cell(one.wall, no_steps),
            time_cell(one.mean, no_steps),
            time_cell(one.deviation, "needs two steps"),
            _share(point.gpu),
            _share(point.tensor),
            *(share_cell(part, "not divided") for part in (*shares, one.compute_share)),
            count(one.kernels, none),
            time_cell(one.kernel_ns, none),
            time_cell(one.tensor_ns, none),
        ]
        rows.append((point, cells))
    stated = [
        (point, [item.name, stated_cell(run, item), item.unit or nothing("none")])
        for point, run in dlprof_runs(answers.points)
        for item in run.report.summaries
    ]
    words = [Column(name, style="text") for name in ("figure", "value", "unit")]
    return make_chapter(
        tables=(_table("Each profiled run as a whole", columns, rows),),
        folded=(_table("DLProf's own summary, as it states it", words, stated),),
    )


def names_chapter(answers: Answers) -> View:
    """Each figure of DLProf's summary by its label, with what line 15 of that file is."""
    line = Column(
        "line 15 of the file", style="text", note="what a script that counts lines would print"
    )
    columns = [Column("DLProf", style="text"), *(Column(label, "%") for label in LABELS), line]
    rows = []
    for point, run in dlprof_runs(answers.points):
        text = answers.summary_lines.get(run.id)
        values = [
            run.profiler_version or nothing("not stated"),
            *(labelled(run, pattern) for pattern in LABELS.values()),
            text_cell(text) if text else nothing("the file is not there, or no CSV"),
        ]
        rows.append((point, values))
    return make_chapter(
        tables=(_table("Utilisation by its name in DLProf's summary", columns, rows),),
        findings=tuple(sentences.judge_names(answers.points, answers.summary_lines)),
    )


def samples_chapter(answers: Answers) -> View:
    """Readings of the GPU by nvidia-smi, DCGM or NVML, over time."""
    return make_chapter(
        charts=answers.charts.get("samples", ()),
        tables=_by_model(answers, readings_table),
    )


def all_chapter(answers: Answers) -> View:
    """Every model and batch size in a row, failed ones too."""
    columns = [
        *_times("p50", "p95"),
        *map(Column, ("images/s", "GPU busy", "tensor cores", "memory in use")),
        Column("peak memory", base="B"),
        *map(Column, ("top-1", "top-5", "images")),
        Column("unreadable", note="not scored: a blank image took their place"),
        Column("status", style="text"),
    ]
    rows = []
    for point in answers.points:
        timed, none = point.latency, next(iter(point.problems), "no run timed its steps")
        figures = timed.figures if timed is not None else {}
        cells = [
            *(
                time_cell(timed.percentiles[part], timed.why[f"p{part}"])
                if timed
                else nothing(none)
                for part in (50, 95)
            ),
            rate(timed.images_per_second if timed else None, "images/s", none),
            *map(_share, (point.gpu, point.tensor, point.memory)),
            size_cell(point.peak, point.peak_of),
            *(share_cell(figures.get(name), _why(point, name)) for name in ("top1", "top5")),
            count(images_of(point) or None, _why(point, "images")),
            _unreadable_cell(point),
            "; ".join(point.problems) or "ok",
        ]
        rows.append((point, cells))
    unread = [(point, [text]) for point in answers.points for text in _unreadable(point)]
    which = [Column("which and why", style="text")]
    return make_chapter(
        tables=(_table("Every model and batch size", columns, rows, whole=True),),
        folded=(_table("Images that could not be read", which, unread),),
        findings=tuple(sentences.judge_images(answers.points)),
    )


def _missing(answers: Answers) -> Iterable[tuple[str, str]]:
    """Yield what no chapter has, and why."""
    points = answers.points
    if not answers.timed:
        why = (
            "these reports hold no steps that are divided into loading, copies and computation; "
            "perfctl infer records them"
        )
        yield "latency, images/s and accuracy", why
    if not all(point.on_cpu for point in points):
        for what, shares in (
            ("tensor cores", [point.tensor for point in points]),
            ("the GPU's memory in use", [point.memory for point in points]),
        ):
            if all(share.value is None for share in shares):
                yield what, "; ".join(dict.fromkeys(share.reason for share in shares))
        if all(point.gpu_way != "kernels" for point in points):
            yield "the GPU's idle share", "it needs kernels with start and length"
    unsized = sum(point.batch is None for point in points)
    if unsized and len(points) > 1:
        why = "reports do not say theirs; names such as resnet18_b16.csv do"
        yield "batch sizes", f"{unsized} of {len(points)} {why}"
    for point in points:
        for problem in point.problems:
            yield f"{point.model}, batch {point.batch or 'unknown'}", problem


CHAPTERS: dict[str, Callable[[Answers], View]] = {
    "latency": latency_chapter,
    "throughput": throughput_chapter,
    "utilisation": utilisation_chapter,
    "memory": memory_chapter,
    "accuracy": accuracy_chapter,
    "kernels": kernels_chapter,
    "iterations": iterations_chapter,
    "summary": summary_chapter,
    "names": names_chapter,
    "samples": samples_chapter,
    "all": all_chapter,
}
