"""Chapters of inference at low batch: models and batch sizes next to each other; and the part of
the ordinary page that has the same of all models."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from perfctl.orchestrator.ledger.prepared import Study
from perfctl.orchestrator.ledger.usage.inference import (
    InferenceLatency,
    InferencePoint,
    ModelBusyBatch,
    find_smallest_busy_batch_by_model,
    list_inference_points,
)
from perfctl.orchestrator.ledger.usage.readings import BUSY
from perfctl.orchestrator.ledger.usage.run_usage import RunUsage
from perfctl.orchestrator.ledger.usage.three_reports import (
    list_iteration_rows,
    list_kernel_or_operator_rows,
    summarize_run,
)
from perfctl.orchestrator.report.charts.charts import Chart
from perfctl.orchestrator.report.charts.inference import draw_inference_charts_by_chapter
from perfctl.orchestrator.report.numbers import format_percent
from perfctl.orchestrator.report.page.about import build_run_group_view
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.page.study import build_summary_cell
from perfctl.orchestrator.report.page.usage import (
    build_device_samples_table,
    build_memory_use_table,
)
from perfctl.orchestrator.report.studies.inference_fields import (
    FIELDS,
    build_inference_fields_table,
    build_inference_table,
    build_usage_share_cell,
    describe_accuracy,
    describe_gpu_busy_batches,
    describe_latency,
    describe_throughput,
    describe_unreadable_images,
    explain_missing_figure,
    join_as_many_facts_as_fit,
    judge_unless_cpu_was_busy,
    list_unreadable_images,
)
from perfctl.orchestrator.report.studies.records import (
    StudySubject,
    build_study_chapter,
    collect_run_facts,
)
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    build_table,
    count_cell,
    join_notes,
    missing_cell,
    name_column,
    optional_text_cell,
    share_cell,
    text_cell,
    text_column,
    text_columns,
    time_cell,
    time_column,
)
from perfctl.orchestrator.report.view import Section, View
from perfctl.orchestrator.statistics import group_by
from perfctl.records.run import Run

NAMES_MAX, ITERATIONS_MAX = 15, 20
"""Names of kernels and iterations of a run in their reports."""
TITLES = {
    "throughput": "Images per second",
    "latency": "Latency",
    "utilization": "Utilization",
    "memory": "Memory",
    "accuracy": "Accuracy",
    "all": "All figures",
}
"""Section of the ordinary page -> its title."""
DLPROF_LABELS = {
    "GPU utilization": r"GPU Utili[sz]ation",
    "tensor core utilization": r"Tensor Core (?:Kernel )?Utili[sz]ation",
    "memory": r"Memory Duration",
    "data loader": r"Dataloader Duration",
}
"""Heading of a column -> the label that DLProf's summary has for it, in any version."""


@dataclass(frozen=True)
class InferenceResults:
    """What the chapters are made of."""

    points: tuple[InferencePoint, ...]
    summary_lines: Mapping[int, str]
    """Run -> line 15 of its dlprof_summary.csv, if the file exists."""

    @cached_property
    def busy_batch_by_model(self) -> tuple[ModelBusyBatch, ...]:
        return find_smallest_busy_batch_by_model(self.points)

    @cached_property
    def charts(self) -> Mapping[str, tuple[Chart, ...]]:
        return draw_inference_charts_by_chapter(self.points)

    @property
    def runs(self) -> list[Run]:
        return [run for point in self.points for run in point.runs]

    @property
    def latencies_by_model(self) -> dict[str, list[InferenceLatency]]:
        """Return the timed batch sizes of each model that has some."""
        timed = (p for p in self.points if p.latency is not None and p.latency.is_complete)
        by_model = group_by(timed, lambda point: point.model).items()
        return {name: [p.latency for p in points if p.latency] for name, points in by_model}

    @property
    def points_with_least_profiled_run(self) -> Iterator[tuple[InferencePoint, Run]]:
        """Yield the run that reports are made from: the lightest profiler that left kernels,
        otherwise operators."""
        for point in self.points:
            with_kernels = [run for run in point.runs if any(True for _ in run.report.kernels)]
            with_names = [run for run in point.runs if any(True for _ in run.report.operations)]
            for run in (with_kernels or with_names)[:1]:
                yield point, run

    @property
    def points_with_dlprof_run(self) -> list[tuple[InferencePoint, Run]]:
        """Return the runs under DLProf."""
        runs = [(point, run) for point in self.points for run in point.runs]
        return [(point, run) for point, run in runs if run.profiler == "dlprof"]


def build_inference_study(
    runs: Sequence[Run], dlprof_summary_lines: Mapping[int, str]
) -> StudySubject:
    """Return what the chapters are made of."""
    answers = InferenceResults(list_inference_points(runs), dlprof_summary_lines)
    origins = sorted({run.origin for run in runs} - {"measured"})
    failed = [run for run in runs if run.status != "ok"]
    return StudySubject(
        {name: partial(_build_chapter_with_charts, name, answers) for name in CHAPTERS},
        tuple(_collect_run_facts(answers.points).items()),
        missing=tuple(_list_missing_figures(answers)),
        origins=(", ".join(origins),) if origins else (),
        problems=tuple(
            f"run {run.id} ({run.profiler}): {run.status}, {run.reason}" for run in failed
        ),
    )


def _build_chapter_with_charts(chapter_key: str, answers: InferenceResults) -> View:
    return replace(CHAPTERS[chapter_key](answers), charts=answers.charts.get(chapter_key, ()))


def build_inference_summary_view(runs: Sequence[Run]) -> View:
    """Return latency, images per second and accuracy of runs, with what is missing; empty if no run
    is inference over images."""
    answers = InferenceResults(list_inference_points(runs), {})
    chapters = [CHAPTERS[key](answers) for key in ("latency", "throughput", "accuracy")]
    return View(
        tables=tuple(table for chapter in chapters for table in chapter.tables),
        findings=tuple(dict.fromkeys(text for chapter in chapters for text in chapter.findings)),
        notes=tuple(
            f"No {quantity}: {reason}."
            for chapter in chapters
            for quantity, reason in chapter.missing
        ),
    )


def _list_models_of_points(points: Iterable[InferencePoint]) -> list[str]:
    return list(dict.fromkeys(point.model for point in points))


def _collect_run_facts(points: Sequence[InferencePoint]) -> dict[str, str]:
    images = sorted({point.latency.scored_images for point in points if point.latency} - {0})
    ends = dict.fromkeys((*images[:1], *images[-1:]))
    facts = {
        "models" if any(point.batch for point in points) else "reports": ", ".join(
            _list_models_of_points(points)
        )
    }
    facts |= collect_run_facts([run for point in points for run in point.runs])
    return facts | ({"images": " to ".join(f"{number:,}" for number in ends)} if images else {})


def build_all_models_inference_view(studies: Sequence[Study]) -> View:
    """Return all models and batch sizes as one part of the page: the answer first, then a chart and
    a table per quantity.

    ``studies``: of inference over images.
    """
    runs = [run for study in studies for run in study.runs]
    answers = InferenceResults(list_inference_points(runs), {})
    points, sections = answers.points, []
    findings: dict[str, Finding] = {}
    for key, title in TITLES.items():
        chapter = _build_chapter_with_charts(key, answers)
        tables, folded = chapter.tables, chapter.folded
        if key == "all":
            tables, folded = (), (*tables, *folded)
        note = " ".join(f"No {label}: {reason}." for label, reason in chapter.missing)
        if tables or folded or chapter.charts or note:
            charts, facts = chapter.charts, (note,) if note else ()
            section = Section(title, facts, tables, key=key, charts=charts, folded=folded)
            sections.append(section)
            for text in map(str, chapter.findings):
                findings.setdefault(text, Finding(text, key))
    models = _list_models_of_points(points)
    title = ", ".join(models) if len(models) <= 3 else f"{len(models)} models"
    warnings = tuple(
        Finding(f"{point.model} at batch {point.batch}: {problem}.", "all", warning=True)
        for point in points
        for problem in point.problems
    )
    title, stated = f"Inference: {title}", (*findings.values(), *warnings)
    return build_run_group_view("infer", title, runs, _collect_run_facts(points), stated, sections)


def build_latency_chapter(answers: InferenceResults) -> View:
    """Return times of full batches whose images are ready."""
    points = [point for point in answers.points if point.latency is not None]
    caption = "Latency of a batch: copies and computation, images ready"
    labels = ("batches", "p50", "p95", "p99", "longest", "p50 per image", "measured by")
    reason = "it needs 20 full batches, so 20 times the batch size in --images"
    items = [item for items in answers.latencies_by_model.values() for item in items]
    has_none = items and all(item.percentiles[95] is None for item in items)
    return build_study_chapter(
        tables=(build_inference_fields_table(caption, points, *labels),),
        findings=judge_unless_cpu_was_busy(
            describe_latency, answers.latencies_by_model, answers.runs
        ),
        missing={"p95": reason} if has_none else None,
    )


def build_throughput_chapter(answers: InferenceResults) -> View:
    """Return images per second, and the mean step that they follow from."""
    points = [point for point in answers.points if point.latency is not None]
    caption = "Images per second, and the mean step they follow from"
    labels = (
        "images/s",
        "mean step",
        "slowest to fastest",
        "batches",
        "loading",
        "copies",
        "compute",
    )
    return build_study_chapter(
        tables=(build_inference_fields_table(caption, points, *labels),),
        findings=judge_unless_cpu_was_busy(
            describe_throughput, answers.latencies_by_model, answers.runs
        ),
    )


def build_utilization_chapter(answers: InferenceResults) -> View:
    """Return how busy GPU, tensor cores and host are, and from which batch size on."""
    points = answers.points
    busy_rows = []
    for busy in (busy for busy in answers.busy_batch_by_model if busy.way):
        most = f"none of these; at most {format_percent(max(share for _, share in busy.measured))}"
        shares = "; ".join(f"{batch}: {format_percent(share)}" for batch, share in busy.measured)
        since = most if busy.batch is None else str(busy.batch)
        busy_rows.append([busy.model, since, text_cell(busy.way, busy.reason), shares])
    names = ("busy from batch", "measured by", "busy share at each batch size")
    heads = [name_column("model"), *text_columns(*names)]
    caption = f"Batch size from which the GPU is busy ({BUSY * 100:.0f}% of the time or more)"
    labels = ("GPU busy", "GPU idle", "by", "tensor cores", "memory in use", "host cores busy")
    missing = {}
    if points and all(point.on_cpu for point in points):
        label = "GPU utilization, tensor cores, memory of the GPU, batch size that keeps it busy"
        reason = "the runs were on a CPU; on a machine with an NVIDIA GPU the same command has them"
        missing[label] = reason
    elif points and all(point.gpu.value is None for point in points):
        missing["GPU utilization"] = points[0].gpu.reason
    return build_study_chapter(
        tables=(
            build_table(caption, heads, busy_rows),
            build_inference_fields_table("GPU, memory and tensor cores", points, *labels),
        ),
        findings=describe_gpu_busy_batches(points, answers.busy_batch_by_model),
        missing=missing,
    )


def build_usage_by_model_chapter(
    build_usage_table: Callable[[Sequence[RunUsage]], Table | None], answers: InferenceResults
) -> View:
    """Return a table of the runs of each model, which its caption names."""
    tables = []
    for model, points in group_by(answers.points, lambda point: point.model).items():
        if drawn := build_usage_table([use for point in points for use in point.uses]):
            tables.append(replace(drawn, caption=f"{model}: {drawn.caption.lower()}"))
    return build_study_chapter(tables=tables)


def build_accuracy_chapter(answers: InferenceResults) -> View:
    """Return top-1 with its interval, top-5 and loss."""
    timed = [(point, point.latency) for point in answers.points if point.latency is not None]
    scored = [point for point, item in timed if item.top1 is not None]
    missing = {}
    if timed and not scored:
        reason = (
            f"{explain_missing_figure(timed[0][1], 'top1')}. Use --weights default and --data "
            "imagenet"
        )
        missing["top-1, top-5"] = reason
    labels = ("top-1", "95% interval", "top-5", "loss", "images", "unreadable")
    return build_study_chapter(
        tables=(build_inference_fields_table("Top-1 and top-5", scored, *labels),),
        findings=describe_accuracy(answers.latencies_by_model),
        missing=missing,
    )


def build_kernels_chapter(answers: InferenceResults) -> View:
    """Return the kernel report of DLProf: kernels, or operators of a CPU, by name."""
    columns = [
        name_column("kernel or operator"),
        text_column("uses tensor cores"),
        Column("calls"),
        time_column("total", "of kernels; of operators self time on the host"),
        *map(time_column, ("mean", "shortest", "longest")),
        Column("share"),
    ]
    unknown = missing_cell("neither its name nor an operator states it")
    tensor = {None: unknown, True: "yes", False: "no"}
    rows = [
        (
            point,
            [
                row.name,
                tensor[row.tensor],
                row.calls,
                row.total,
                row.mean_ns,
                time_cell(row.shortest, "operators have sums only"),
                time_cell(row.longest, "operators have sums only"),
                share_cell(row.share),
            ],
        )
        for point, run in answers.points_with_least_profiled_run
        for row in list_kernel_or_operator_rows(run)[:NAMES_MAX]
    ]
    caption = f"Kernels or operators by name, the {NAMES_MAX} slowest of each run"
    reason = "no run has kernels or operators; --profiler torch, or dlprof's --reports, gives them"
    missing = None if rows else {"kernel and iteration reports": reason}
    return build_study_chapter(
        tables=(build_inference_table(caption, columns, rows),), missing=missing
    )


def build_iterations_chapter(answers: InferenceResults) -> View:
    """Return the iteration report of DLProf: each measured step."""
    columns = [
        Column("iteration"),
        *map(time_column, ("step", "loading", "copies", "compute")),
        Column("kernels"),
        time_column("kernels run", "time with a kernel; overlapping ones count once"),
        Column("tensor cores", note="share of kernel time, by kernel names"),
    ]
    runs = {id(point): point.runs[0] for point in answers.points if point.latency is not None}
    runs |= {id(point): run for point, run in answers.points_with_least_profiled_run}
    rows = [
        (
            point,
            [
                row.number,
                *(time_cell(ns, "not timed") for ns in (row.step, row.load, row.copy, row.compute)),
                count_cell(row.kernels, row.tensor.reason),
                time_cell(row.kernel_ns, row.tensor.reason),
                build_usage_share_cell(row.tensor),
            ],
        )
        for point in answers.points
        if id(point) in runs
        for row in list_iteration_rows(runs[id(point)])[:ITERATIONS_MAX]
    ]
    caption = f"Iterations, the first {ITERATIONS_MAX} of each run"
    return build_study_chapter(folded=(build_inference_table(caption, columns, rows),))


def build_dlprof_summary_chapter(answers: InferenceResults) -> View:
    """Return the summary report of DLProf, and its own lines if it ran."""
    columns = [
        text_column("profiler"),
        Column("iterations"),
        *map(time_column, ("wall clock", "average iteration", "± deviation")),
        FIELDS["GPU busy"].column,
        FIELDS["tensor cores"].column,
        Column("loading", note="share of the iterations; likewise the next two"),
        *map(Column, ("copies", "compute", "kernels")),
        *map(time_column, ("kernel time", "with tensor cores")),
    ]
    no_steps, rows = "the report has no steps", []
    for point, run in answers.points_with_least_profiled_run:
        row = summarize_run(run)
        no_kernels = (
            "no kernels: the run was on a CPU" if point.on_cpu else "no kernels in the report"
        )
        cells = [
            run.profiler,
            count_cell(row.iterations, no_steps),
            time_cell(row.wall, no_steps),
            time_cell(row.mean, no_steps),
            time_cell(row.deviation, "needs two steps"),
            build_usage_share_cell(point.gpu),
            build_usage_share_cell(point.tensor),
            *(
                share_cell(part, "not divided")
                for part in (row.load_share, row.copy_share, row.compute_share)
            ),
            count_cell(row.kernels, no_kernels),
            time_cell(row.kernel_ns, no_kernels),
            time_cell(row.tensor_ns, no_kernels),
        ]
        rows.append((point, cells))
    stated = [
        (
            point,
            [
                item.name,
                build_summary_cell(item, run, is_rounded=False),
                item.unit or missing_cell("none"),
            ],
        )
        for point, run in answers.points_with_dlprof_run
        for item in run.report.summaries
    ]
    text_fields = text_columns("figure", "value", "unit")
    return build_study_chapter(
        tables=(build_inference_table("Each complete profiled run", columns, rows),),
        folded=(
            build_inference_table("DLProf's own summary, as it states it", text_fields, stated),
        ),
    )


def build_dlprof_utilization_by_label_chapter(answers: InferenceResults) -> View:
    """Return each figure of DLProf's summary by its label, with what line 15 of that file is."""
    note = "what a script that counts lines would print"
    columns = [
        text_column("DLProf"),
        *(Column(label, "%") for label in DLPROF_LABELS),
        text_column("line 15 of the file", note),
    ]
    rows = []
    for point, run in answers.points_with_dlprof_run:
        text = answers.summary_lines.get(run.id)
        values = [
            run.profiler_version or missing_cell("not stated"),
            *(
                _build_dlprof_figure_cell_by_label(run, pattern)
                for pattern in DLPROF_LABELS.values()
            ),
            optional_text_cell(text, "the file does not exist, or is no CSV"),
        ]
        rows.append((point, values))
    return build_study_chapter(
        tables=(
            build_inference_table("Utilization by its name in DLProf's summary", columns, rows),
        ),
        findings=_describe_dlprof_line_15_by_version(answers),
    )


def _describe_dlprof_line_15_by_version(answers: InferenceResults) -> Iterator[str]:
    """Yield what line 15 of DLProf's summary is, and what it states if no run was timed."""
    versions: dict[str, dict[str, None]] = {}
    for _, run in answers.points_with_dlprof_run:
        label = answers.summary_lines.get(run.id, "").split(",")[0].removesuffix("%").strip()
        if label:
            version = (run.profiler_version or "unknown").split()[0]
            versions.setdefault(label, {})[version] = None
    if len(versions) > 1:
        listed = ", ".join(
            f"{label} (DLProf {' and '.join(versions_of_label)})"
            for label, versions_of_label in versions.items()
        )
        yield f"Line 15 of dlprof_summary.csv differs by version: {listed}."
    for heading, pattern in (
        list(DLPROF_LABELS.items())[:2] if not answers.latencies_by_model else ()
    ):
        stated: dict[str, list[str]] = {}
        for point, run in answers.points_with_dlprof_run:
            if (cell := _build_dlprof_figure_cell_by_label(run, pattern)).style != "no":
                at_batch_text = "" if point.batch is None else f" at {point.batch}"
                stated.setdefault(point.model, []).append(f"{cell.text}%{at_batch_text}")
        ends = [
            f"{model} {', '.join(dict.fromkeys((values[0], values[-1])))}"
            for model, values in stated.items()
        ]
        yield from join_as_many_facts_as_fit(
            f"DLProf states this {heading} for the first and last batch:", ends
        )


def _build_dlprof_figure_cell_by_label(run: Run, label_regex: str) -> Cell:
    """Return the figure of DLProf's summary with this label."""
    label = re.compile(rf"(?:.*: )?{label_regex}(?: ?%)?\Z", re.IGNORECASE)
    item = next((item for item in run.report.summaries if label.match(item.name)), None)
    if item is None:
        return missing_cell("this summary has no such line")
    cell = build_summary_cell(item, run, is_rounded=False)
    return replace(cell, title=join_notes(f"its line {item.name}", cell.title))


def build_all_points_chapter(answers: InferenceResults) -> View:
    """Return every model and batch size in a row, failed ones too."""
    points = answers.points
    busy = ("GPU busy", "tensor cores", "memory in use", "peak memory")
    labels = ("p50", "p95", "images/s", *busy, "top-1", "top-5", "images", "unreadable", "status")
    unread = [(point, [text]) for point in points for text in list_unreadable_images(point)]
    which = text_columns("which and why")
    return build_study_chapter(
        tables=(
            build_inference_fields_table(
                "Every model and batch size", points, *labels, keep_empty_columns=True
            ),
        ),
        folded=(build_inference_table("Images that could not be read", which, unread),),
        findings=describe_unreadable_images(answers.latencies_by_model),
    )


def _list_missing_figures(answers: InferenceResults) -> Iterator[tuple[str, str]]:
    """Yield what no chapter has, and why."""
    points = answers.points
    if not answers.latencies_by_model:
        reason = (
            "these reports hold no steps that are divided into loading, copies and computation; "
            "perfctl infer records them"
        )
        yield "latency, images/s and accuracy", reason
    if not all(point.on_cpu for point in points):
        for label, shares in (
            ("tensor cores", [point.tensor for point in points]),
            ("the GPU's memory in use", [point.memory for point in points]),
        ):
            if all(share.value is None for share in shares):
                yield label, "; ".join(dict.fromkeys(share.reason for share in shares))
        if all(point.gpu_way != "kernels" for point in points):
            yield "the GPU's idle share", "it needs kernels with start and duration"
    unsized = sum(point.batch is None for point in points)
    if unsized and len(points) > 1:
        reason = "reports do not state theirs; names such as resnet18_b16.csv do"
        yield "batch sizes", f"{unsized} of {len(points)} {reason}"
    for point in points:
        for problem in point.problems:
            yield f"{point.model}, batch {point.batch or 'unknown'}", problem


CHAPTERS: dict[str, Callable[[InferenceResults], View]] = {
    "latency": build_latency_chapter,
    "throughput": build_throughput_chapter,
    "utilization": build_utilization_chapter,
    "memory": partial(build_usage_by_model_chapter, build_memory_use_table),
    "accuracy": build_accuracy_chapter,
    "kernels": build_kernels_chapter,
    "iterations": build_iterations_chapter,
    "summary": build_dlprof_summary_chapter,
    "names": build_dlprof_utilization_by_label_chapter,
    "samples": partial(build_usage_by_model_chapter, build_device_samples_table),
    "all": build_all_points_chapter,
}
