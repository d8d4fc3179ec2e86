"""The study of inference at low batch: models and batch sizes as one page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.analyse.usage.busy import BUSY, Readings, UsageShare, by_device, mean_over_time
from perfctl.orchestrator.analyse.usage.inference import BusyFrom, InferencePoint, busy_from, inference_points
from perfctl.orchestrator.analyse.usage.three_reports import iteration_rows, name_rows, summary_row
from perfctl.orchestrator.report.cells import (
    Cell, count, decimal_cell, name_cell, nothing, rate, share_cell, size_cell, text_cell, time_cell,
)  # fmt: skip
from perfctl.orchestrator.report.charts.charts import Chart
from perfctl.orchestrator.report.charts.inference import all_charts, images_of, interval_of, top1_of
from perfctl.orchestrator.report.numbers import per_second, percent, size, time
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.studies.records import Chapter, StudyPage
from perfctl.orchestrator.report.tables import Column, Table, table
from perfctl.records.report import Summary
from perfctl.records.run import Run

SENTENCE = 140
"""Characters of a finding."""
NAMES, ITERATIONS, ROWS = 15, 20, 3000
"""Names of kernels and iterations of a run in their reports, and rows of a table: nothing else is cut."""
MOST, FEW = 20, 2
"""Findings of a study, and devices of one report that are among them."""
UNEVEN = 1.5
"""p95 over the median, from which answers are uneven."""
_TITLES = {
    "latency": "Latency", "throughput": "Images per second", "utilisation": "Utilisation", "memory": "Memory",
    "accuracy": "Accuracy", "kernels": "Kernel report", "iterations": "Iteration report", "summary": "Summary report",
    "names": "Utilisation by name, from DLProf's summary", "samples": "Readings of nvidia-smi", "all": "All figures",
}  # fmt: skip
_LABELS = {
    "GPU utilisation": r"GPU Utili[sz]ation", "tensor core utilisation": r"Tensor Core (?:Kernel )?Utili[sz]ation",
    "memory": r"Memory Duration", "data loader": r"Dataloader Duration",
}  # fmt: skip
"""Heading of a column -> the label that DLProf's summary has for it, in any version."""


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """What the page says of the study beside its runs."""

    command: str
    line15: Mapping[int, str]
    """Number of a run -> line 15 of its dlprof_summary.csv, where the file is still there."""
    failed: tuple[str, ...] = ()
    """Files that could not be read, one sentence each."""
    links: tuple[tuple[str, str], ...] = ()


def inference_page(runs: Sequence[Run], asked: InferenceRequest) -> StudyPage:
    """The page of these runs; what they do not hold is in ``missing``."""
    points = inference_points(runs)
    busy = busy_from(points)
    charts = all_charts(points)
    tables = dict(_tables(points, busy, asked))
    chapters = []
    for key, title in _TITLES.items():
        shown, folded = tables.get(key, ((), ()))
        drawn: tuple[Chart, ...] = charts.get(key, ())
        if shown or folded or drawn:
            chapters.append(Chapter(key, title, _TEXT.get(key, ()), drawn, shown, folded))
    there = {chapter.key for chapter in chapters}
    origins = {run.origin for run in runs} - {"measured"}
    return StudyPage(
        "inference", "Inference at low batch", tuple(_facts(points)),
        tuple(one for one in _findings(points, busy, asked) if one.evidence in there), tuple(chapters),
        tuple(_missing(points, busy, asked)), ", ".join(sorted(origins)) or None, asked.command, asked.links,
    )  # fmt: skip


_TEXT = {
    "latency": (
        "The time of an answer: copies and computation of one full batch, with its images ready. p50 is the median; p95 and "
        "p99 are the times that 95 % and 99 % of the batches do not exceed (nearest rank).",
    ),
    "throughput": ("Images of full batches over the time of their whole steps, waiting for images included.",),
    "utilisation": (
        f"The GPU counts as busy where a kernel runs for {BUSY:.0%} of the time or more. Waiting for images is idle time.".replace(
            "%", " %"
        ),
    ),
    "accuracy": (
        "The interval says how far top-1 may be off because only so many images were scored: 95 %, after Wilson. It does not "
        "cover whether these images are typical.",
    ),
    "kernels": (
        "As DLProf's kernel report: launches by kernel name, with the use of tensor cores read off the name. A run on a CPU "
        "has no kernels; its operators by self time stand in their place.",
    ),
    "iterations": ("As DLProf's iteration report: each measured step, and the kernels that it launched.",),
    "summary": ("As DLProf's summary report: each profiled run as a whole. A profiler slows a run; times without one are above.",),
    "names": (
        "DLProf's summary has no fixed order of lines: each figure is found by its label. Line 15 is what a script prints that "
        "counts lines instead.",
    ),
}  # fmt: skip


def _facts(points: Sequence[InferencePoint]) -> Iterator[tuple[str, str]]:
    runs = [run for point in points for run in point.runs]
    batches = sorted({point.batch for point in points if point.batch is not None})
    weights = {weights for run in runs if (weights := run.report.environment.get("weights"))}
    images = sorted({images_of(point) for point in points} - {0})
    devices = dict.fromkeys(one.name or one.kind for run in runs for one in run.devices[:1])
    given = {
        "models" if any(point.batch for point in points) else "reports": ", ".join(_models(points)),
        "batch sizes": ", ".join(map(str, batches)),
        "device": ", ".join(devices),
        "weights": "random" if weights == {"none"} else ", ".join(sorted(weights)),
        "images": f"{images[0]:,}" if len(images) == 1 else f"{images[0]:,} to {images[-1]:,}" if images else "",
        "profilers": ", ".join(dict.fromkeys(run.profiler for run in runs if run.profiler not in ("none", "workload"))),
    }
    yield from ((name, value) for name, value in given.items() if value)


def _models(points: Sequence[InferencePoint]) -> list[str]:
    return list(dict.fromkeys(point.model for point in points))


def _tables(
    points: Sequence[InferencePoint], busy: Sequence[BusyFrom], asked: InferenceRequest
) -> Iterator[tuple[str, tuple[tuple[Table, ...], tuple[Table, ...]]]]:
    """(chapter, (its tables, those that are folded))."""
    found: tuple[tuple[str, Sequence[Table | None], Sequence[Table | None]], ...] = (
        ("latency", [_latency_table(points)], []),
        ("throughput", [_throughput_table(points)], []),
        ("utilisation", [_busy_table([one for one in busy if one.way]), _utilisation_table(points)], []),
        ("memory", [_memory_table(points)], []),
        ("accuracy", [_accuracy_table(points)], []),
        ("kernels", [_slowest_table(points)], [_names_table(points)]),
        ("iterations", [], [_iterations_table(points)]),
        ("summary", [_summary_table(points)], [_stated_table(points)]),
        ("names", [_by_name_table(points, asked.line15)], []),
        ("samples", [_samples_table(points)], []),
        ("all", [_all_table(points)], [_skipped_table(points)]),
    )
    for key, shown, folded in found:
        yield key, (tuple(one for one in shown if one), tuple(one for one in folded if one))


HEADS = (Column("model", style="code"), Column("batch"))


def _heads(point: InferencePoint) -> list[Cell]:
    return [name_cell(point.model), count(point.batch, "the report does not say its batch size")]


def _made(caption: str, columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> Table | None:
    return table(caption, [*HEADS, *columns], rows, limit=ROWS)


def _latency_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("batches", note="full batches that were timed"), *(Column(f"p{part}", base="ns") for part in (50, 95, 99)),
        Column("longest", base="ns"), Column("p50 per image", base="ns"), Column("measured by", style="text"),
    ]  # fmt: skip
    rows = []
    for point in points:
        if (timed := point.latency) is not None:
            parts = (time_cell(timed.percentiles[part], timed.why[f"p{part}"]) for part in (50, 95, 99))
            middle = timed.percentiles[50]
            by = "the run's own clock" if timed.profiler == "none" else f"its own clock, under {timed.profiler}"
            rows.append([*_heads(point), timed.count, *parts, timed.longest, middle and middle / timed.batch, by])
    return _made("Latency of a batch: copies and computation, images ready", columns, rows)


def _throughput_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("images/s", note="images of full batches over the time of their steps, waiting for images included"),
        Column("mean step", base="ns", note="loading, copies and computation"),
        Column("loading", base="ns", note="mean wait for images in a step"), Column("copies", base="ns", note="mean"),
        Column("compute", base="ns", note="mean"),
    ]  # fmt: skip
    rows = [
        [*_heads(point), rate(timed.images_per_second, "images/s"), timed.step, timed.load, timed.copy, timed.compute]
        for point in points if (timed := point.latency) is not None
    ]  # fmt: skip
    return _made("Images per second, and the mean step they follow from", columns, rows)


def _given(share: UsageShare) -> Cell:
    cell = share_cell(share.value, share.reason)
    return cell if share.value is None else Cell(cell.text, share.reason, value=cell.value)


def _busy_table(busy: Sequence[BusyFrom]) -> Table | None:
    columns = [
        Column("model", style="code"), Column("busy from batch", style="text"), Column("found by", style="text"),
        Column("busy share at each batch size", style="text"),
    ]  # fmt: skip
    rows = []
    for one in busy:
        most = f"none of these; at most {percent(max(share for _, share in one.measured))}"
        shares = "; ".join(f"{batch}: {percent(share)}" for batch, share in one.measured)
        rows.append([one.model, most if one.batch is None else str(one.batch), text_cell(one.way, one.reason), shares])
    return table(f"Batch size from which the GPU is busy ({BUSY * 100:.0f} % of the time or more)", columns, rows)


def _utilisation_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("GPU busy"), Column("GPU idle", note="1 - busy, by kernels only: sampling does not tell"),
        Column("by", style="text", note="kernels; sampled: the driver's figure, an estimate; DLProf: its summary"),
        Column("over", style="text", note="the time that the share is of: shares over different times differ"),
        Column("tensor cores"), Column("memory in use", note="highest reading over all of the GPU's memory"),
        Column("host cores busy"),
    ]  # fmt: skip
    rows = []
    for point in points:
        exact = point.gpu.value is not None and point.gpu_way == "kernels"
        idle = (
            UsageShare(1 - (point.gpu.value or 0), point.gpu.reason)
            if exact
            else UsageShare(
                None,
                point.gpu.reason
                if point.gpu.value is None
                else "no kernels with start times: an idle share needs them",
            )
        )
        cores = next((use.ways.host_cores for use in point.uses if use.ways.host_cores is not None), None)
        host = nothing(point.uses[0].ways.host_reason) if cores is None else Cell(f"{cores:.3g}", value=round(cores, 4))
        rows.append([*_heads(point), _given(point.gpu), _given(idle), point.gpu_way or nothing(point.gpu.reason),
                     _over(point), _given(point.tensor), _given(point.memory), host])  # fmt: skip
    return _made("GPU, memory and tensor cores", columns, rows)


def _over(point: InferencePoint) -> Cell:
    if point.gpu.value is None:
        return nothing(point.gpu.reason)
    return text_cell("DLProf's wall clock" if point.gpu_way == "DLProf" else point.gpu.reason)


def _memory_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("peak", base="B"), Column("of", style="text"),
        Column("allocated by torch", base="B"), Column("reserved by torch", base="B"),
        Column("process on the GPU", base="B"), Column("everybody on the GPU", base="B"),
        Column("GPU's memory", base="B"), Column("host resident", base="B"),
    ]  # fmt: skip
    rows = []
    for point in points:
        if point.peak is not None:
            uses = [use.memory for use in point.uses]
            parts = (next((value for use in uses if (value := getattr(use, field)) is not None), None)
                     for field in ("allocated", "reserved", "process", "device", "device_total", "host"))  # fmt: skip
            rows.append(
                [*_heads(point), point.peak, point.peak_of, *(size_cell(part, "not recorded") for part in parts)]
            )
    return _made("Peak memory", columns, rows)


def _why(point: InferencePoint, figure: str) -> str:
    return point.latency.why.get(figure, "no run recorded it") if point.latency is not None else "no run recorded it"


def _accuracy_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("top-1"), Column("95 % interval", style="text", note="Wilson, for this many images"), Column("top-5"),
        Column("loss", note="mean cross-entropy in nats"), Column("images", note="that were read and scored"),
        Column("unreadable"),
    ]  # fmt: skip
    rows = []
    for point in points:
        if point.latency is None or top1_of(point) is None:
            continue
        figures = point.latency.figures
        low, high = interval_of(point)
        rows.append([
            *_heads(point), share_cell(top1_of(point)), f"{percent(low)} to {percent(high)}",
            share_cell(figures.get("top5"), _why(point, "top5")), decimal_cell(figures.get("loss"), _why(point, "loss")),
            images_of(point), _skipped(point),
        ])  # fmt: skip
    return _made("Top-1 and top-5", columns, rows)


def _skipped(point: InferencePoint) -> Cell:
    """Images that could not be read, with their names."""
    skipped = point.latency.figures.get("images_skipped") if point.latency is not None else None
    named = "; ".join(_unreadable(point)) or None
    return (
        count(None, "no run recorded it") if skipped is None else Cell(f"{int(skipped):,}", named, value=int(skipped))
    )


def _unreadable(point: InferencePoint) -> list[str]:
    gaps = (gap for run in point.runs[:1] for gap in run.report.gaps)
    return [gap.reason for gap in gaps if gap.quantity == "images" and gap.state == "unreadable"]


def _skipped_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [Column("model", style="code"), Column("batch"), Column("which and why", style="text")]
    rows = [[*_heads(point), text] for point in points for text in _unreadable(point)]
    return table("Images that could not be read", columns, rows, limit=ROWS)


def _profiled(point: InferencePoint) -> Run | None:
    """The run that its reports are made from: the lightest profiler that left kernels, else operators."""
    for field in ("kernels", "operations"):
        for run in point.runs:
            if any(True for _ in getattr(run.report, field)):
                return run
    return None


def _yes(tensor: bool | None) -> Cell:
    return nothing("its name does not say") if tensor is None else text_cell("yes" if tensor else "no")


def _slowest_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("profiler", style="text"), Column("slowest kernel or operator", style="code"), Column("calls"),
        Column("total", base="ns"), Column("share"), Column("different names"),
    ]  # fmt: skip
    rows = []
    for point in points:
        run = _profiled(point)
        if run is not None and (named := name_rows(run)):
            first = named[0]
            rows.append(
                [
                    *_heads(point),
                    run.profiler,
                    first.name,
                    first.calls,
                    first.total,
                    share_cell(first.share),
                    len(named),
                ]
            )
    return _made("The slowest of each run", columns, rows)


def _names_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("kernel or operator", style="code"), Column("uses tensor cores", style="text"), Column("calls"),
        Column("total", base="ns", note="of kernels on the GPU; of operators self time on the host"),
        Column("mean", base="ns"), Column("shortest", base="ns"), Column("longest", base="ns"), Column("share"),
    ]  # fmt: skip
    rows: list[list[object]] = []
    for point in points:
        run = _profiled(point)
        named = name_rows(run) if run is not None else ()
        each = "only sums are kept of operators"
        rows += [
            [*_heads(point), one.name, nothing("operators do not say") if one.shortest is None else _yes(one.tensor),
             one.calls, one.total, one.mean, time_cell(one.shortest, each), time_cell(one.longest, each), share_cell(one.share)]
            for one in named[:NAMES]
        ]  # fmt: skip
        if rest := named[NAMES:]:
            calls, took, share = (
                sum(one.calls for one in rest),
                sum(one.total for one in rest),
                sum(one.share for one in rest),
            )
            of_many = nothing("of several names")
            rows.append([*_heads(point), text_cell(f"all {len(rest)} others"), of_many, calls, took, took / calls if calls else None,
                         of_many, of_many, share_cell(share)])  # fmt: skip
    return _made(f"Kernels or operators by name, the {NAMES} slowest of each run", columns, rows)


def _iterations_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("iteration"), Column("step", base="ns"), Column("loading", base="ns"), Column("copies", base="ns"),
        Column("compute", base="ns"), Column("kernels"),
        Column("kernels run", base="ns", note="time with a kernel running; overlapping kernels count once"),
        Column("tensor cores", note="share of kernel time in kernels whose names say tensor cores"),
    ]  # fmt: skip
    rows = []
    for point in points:
        run = _profiled(point) or (point.runs[0] if point.latency is not None else None)
        for one in iteration_rows(run)[:ITERATIONS] if run is not None else ():
            parts = (time_cell(part, "not timed") for part in (one.step, one.load, one.copy, one.compute))
            rows.append([*_heads(point), one.number, *parts, count(one.kernels, one.tensor.reason),
                         time_cell(one.kernel_ns, one.tensor.reason), _given(one.tensor)])  # fmt: skip
    return _made(f"Iterations, the first {ITERATIONS} of each run", columns, rows)


def _summary_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("profiler", style="text"), Column("iterations"), Column("wall clock", base="ns", note="of its iterations"),
        Column("average iteration", base="ns"), Column("± deviation", base="ns", note="standard deviation"),
        Column("GPU busy"), Column("tensor cores"), Column("loading", note="share of the iterations; likewise the next two"),
        Column("copies"), Column("compute"), Column("kernels"), Column("kernel time", base="ns"),
        Column("with tensor cores", base="ns", note="by kernel names"),
    ]  # fmt: skip
    rows = []
    for point in points:
        if (run := _profiled(point)) is None:
            continue
        one, none = summary_row(run), "no kernels: the run was on a CPU" if point.on_cpu else "no kernels in the report"
        rows.append([
            *_heads(point), run.profiler, count(one.iterations, "the report has no steps"),
            *(time_cell(part, "the report has no steps") for part in (one.wall, one.mean)),
            time_cell(one.deviation, "needs two steps"), _given(point.gpu), _given(point.tensor),
            *(share_cell(part, "steps are not divided") for part in (one.load_share, one.copy_share, one.compute_share)),
            count(one.kernels, none), time_cell(one.kernel_ns, none), time_cell(one.tensor_ns, none),
        ])  # fmt: skip
    return _made("Each profiled run as a whole", columns, rows)


def _dlprof(points: Sequence[InferencePoint]) -> Iterator[tuple[InferencePoint, Run]]:
    return ((point, run) for point in points for run in point.runs if run.profiler == "dlprof")


def _stated_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [Column("figure", style="text"), Column("value", style="text"), Column("unit", style="text")]
    rows = [[*_heads(point), one.name, _as_stated(run, one), one.unit or nothing("none")]
            for point, run in _dlprof(points) for one in run.report.summaries]  # fmt: skip
    return _made("DLProf's own summary, as it states it", columns, rows)


def _as_stated(run: Run, one: Summary) -> Cell:
    if one.value is None:
        return text_cell(one.text) if one.text else nothing("the report does not say")
    if _rounded_to_nothing(run, one):
        return Cell("< 0.05", "DLProf's CSV rounds: 0.0 % is anything below 0.05 %", value="< 0.05")
    return Cell(f"{one.value:,.10g}", value=one.value)


def _rounded_to_nothing(run: Run, one: Summary) -> bool:
    return not one.value and one.unit == "%" and run.report.form.startswith("DLProf CSV")


def _by_name_table(points: Sequence[InferencePoint], line15: Mapping[int, str]) -> Table | None:
    columns = [
        Column("DLProf", style="text"), *(Column(heading, "%") for heading in _LABELS),
        Column("line 15 of the file", style="text", note="what a script that counts lines would print"),
    ]  # fmt: skip
    rows = []
    for point, run in _dlprof(points):
        values = [_labelled(run, pattern) for pattern in _LABELS.values()]
        line = text_cell(line15[run.id]) if run.id in line15 else nothing("the file is not there, or no CSV")
        rows.append([*_heads(point), run.profiler_version or nothing("not stated"), *values, line])
    return _made("Utilisation by its name in DLProf's summary", columns, rows)


def _labelled(run: Run, pattern: str) -> Cell:
    label = re.compile(rf"(?:.*: )?{pattern}(?: ?%)?\Z", re.IGNORECASE)
    found = [one for one in run.report.summaries if label.match(one.name)]
    if not found:
        return nothing("this summary has no such line")
    cell = _as_stated(run, found[0])
    return Cell(cell.text, "; ".join(filter(None, (f"its line {found[0].name}", cell.title))), cell.style, cell.value)


def _samples_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("device"), Column("readings"), Column("utilisation", note="mean over time of all readings"),
        Column("memory used", base="B", note="highest"), Column("memory", base="B"), Column("power", "W", note="mean"),
        Column("temperature", "°C", note="highest"),
    ]  # fmt: skip
    rows = []
    for point in points:
        for one in (one for use in point.uses for one in use.readings):
            power, heat = (nothing("not sampled") if value is None else Cell(f"{value:.3g}", value=round(value, 3))
                           for value in (one.power, one.temperature))  # fmt: skip
            rows.append([*_heads(point), count(one.device, "the readings do not say"), one.count,
                         share_cell(_mean_use(one), "not sampled"), size_cell(one.memory_used, "not sampled"),
                         size_cell(one.memory_total, "not sampled"), power, heat])  # fmt: skip
    return _made("Readings of the GPU", columns, rows)


def _mean_use(one: Readings) -> float | None:
    samples = by_device(one.run)[one.device]
    points = [(sample.at_ns, sample.gpu_utilisation) for sample in samples if sample.gpu_utilisation is not None]
    return mean_over_time(points) if points else None


def _all_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("p50", base="ns"), Column("p95", base="ns"), Column("images/s"), Column("GPU busy"), Column("tensor cores"),
        Column("memory in use"), Column("peak memory", base="B"), Column("top-1"), Column("top-5"), Column("images"),
        Column("unreadable", note="images that could not be read: not scored, a blank one took their place"),
        Column("status", style="text"),
    ]  # fmt: skip
    rows = []
    for point in points:
        timed, none = point.latency, point.problems[0] if point.problems else "no run timed its steps"
        figures = timed.figures if timed is not None else {}
        p50, p95 = (
            time_cell(timed.percentiles[part], timed.why[f"p{part}"]) if timed else nothing(none) for part in (50, 95)
        )
        rows.append([
            *_heads(point), p50, p95, rate(timed.images_per_second if timed else None, "images/s", none),
            _given(point.gpu), _given(point.tensor), _given(point.memory), size_cell(point.peak, point.peak_of),
            share_cell(figures.get("top1"), _why(point, "top1")), share_cell(figures.get("top5"), _why(point, "top5")),
            count(images_of(point) or None, _why(point, "images")), _skipped(point),
            "; ".join(point.problems) or "ok",
        ])  # fmt: skip
    return _made("Every model and batch size", columns, rows)


def _findings(points: Sequence[InferencePoint], busy: Sequence[BusyFrom], asked: InferenceRequest) -> Iterator[Finding]:
    parts = (
        *_on_speed(points), *_on_busy(points, busy), *_on_accuracy(points), *_on_images(points), *_on_lines(points, asked.line15),
        *_on_states(points),
    )  # fmt: skip
    for text, evidence in parts[:MOST]:
        yield Finding(text if len(text) <= SENTENCE else f"{text[: SENTENCE - 2].rstrip()} …", evidence)


def _by_model(points: Sequence[InferencePoint]) -> Iterator[tuple[str, list[InferencePoint]]]:
    for model in _models(points):
        timed = [point for point in points if point.model == model and point.latency is not None]
        if timed:
            yield model, timed


def _on_speed(points: Sequence[InferencePoint]) -> Iterator[tuple[str, str]]:
    for model, timed in _by_model(points):
        rates = {one.latency.batch: one.latency.images_per_second for one in timed if one.latency is not None}
        first, best = min(rates), max(rates, key=lambda batch: rates[batch])
        text = f"{model} runs {per_second(rates[best])} images/s at batch {best}"
        if best != first:
            text += f", {rates[best] / rates[first]:.1f} times as many as at batch {first}"
        yield f"{text}.", "throughput"
    for model, timed in _by_model(points):
        middles = {one.latency.batch: one.latency.percentiles[50] or 0 for one in timed if one.latency is not None}
        said = ", ".join(
            f"{time(middles[batch])} at batch {batch}" for batch in dict.fromkeys((min(middles), max(middles)))
        )
        yield f"{model} answers in {said} (median, images ready).", "latency"
    for model, timed in _by_model(points):
        for one in (point.latency for point in timed):
            middle, high = (one.percentiles[part] for part in (50, 95)) if one is not None else (None, None)
            if one is not None and middle and high and high / middle >= UNEVEN:
                text = f"Answers of {model} are uneven at batch {one.batch}: p95 {time(high)} is {high / middle:.1f} times the median."
                yield text, "latency"
                break


def _on_busy(points: Sequence[InferencePoint], busy: Sequence[BusyFrom]) -> Iterator[tuple[str, str]]:
    for one in busy:
        if not one.way:
            continue
        sampled = {"sampled": ", by sampling only", "DLProf": ", by DLProf's summary"}.get(one.way, "")
        top, share = one.measured[-1]
        reason = next(point.gpu.reason for point in points if (point.model, point.batch) == (one.model, top))
        sampled += f", {reason[place:]}" if (place := reason.find("mean of ")) >= 0 and "GPUs" in reason else ""
        if one.batch is None:
            yield (
                f"{one.model} does not keep the GPU busy up to batch {top}: {percent(share)} there{sampled}.",
                "utilisation",
            )
        elif len(one.measured) == 1:
            yield (
                f"{one.model} keeps the GPU busy for {percent(share)} at batch {top}, the only one measured{sampled}.",
                "utilisation",
            )
        else:
            yield (
                f"{one.model} keeps the GPU busy from batch {one.batch} on ({BUSY * 100:.0f} % or more){sampled}.",
                "utilisation",
            )


def _on_accuracy(points: Sequence[InferencePoint]) -> Iterator[tuple[str, str]]:
    for model in _models(points):
        scored = [point for point in points if point.model == model and top1_of(point) is not None]
        if scored:
            (low, high), first = interval_of(scored[0]), scored[0]
            top5 = first.latency.figures.get("top5") if first.latency is not None else None
            also = f", top-5 {percent(top5)}" if top5 is not None else ""
            top1 = f"{percent(top1_of(first) or 0)} ({percent(low)} to {percent(high)})"
            yield f"{model}: top-1 {top1} of {images_of(first):,} images{also}.", "accuracy"
            kinds = {(top1_of(point), images_of(point)) for point in scored}
            if len(kinds) > 1 and len({images for _, images in kinds}) == 1:
                yield (
                    f"Top-1 of {model} differs between batch sizes on the same images: other kernels round differently.",
                    "accuracy",
                )


def _on_images(points: Sequence[InferencePoint]) -> Iterator[tuple[str, str]]:
    skipped = {int(point.latency.figures.get("images_skipped") or 0) for point in points if point.latency is not None}
    if most := max(skipped, default=0):
        what = "1 image" if most == 1 else f"{most:,} images"
        yield (
            f"{what} could not be read and {'was' if most == 1 else 'were'} not scored; the last table names them.",
            "all",
        )


def _on_lines(points: Sequence[InferencePoint], line15: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    seen: dict[str, list[str]] = {}
    for _, run in _dlprof(points):
        label = line15.get(run.id, "").split(",")[0].removesuffix("%").strip()
        if label:
            version = (run.profiler_version or "unknown").split()[0]
            seen.setdefault(label, [])
            if version not in seen[label]:
                seen[label].append(version)
    if len(seen) > 1:
        said = ", ".join(f"{label} (DLProf {' and '.join(versions)})" for label, versions in seen.items())
        yield f"Line 15 of dlprof_summary.csv is not one figure: {said}.", "names"


def _on_states(points: Sequence[InferencePoint]) -> Iterator[tuple[str, str]]:
    """What reports made elsewhere hold, where no run was timed."""
    if any(point.latency is not None for point in points):
        return
    for point, run in _dlprof(points):
        cells = [(heading, _labelled(run, _LABELS[heading])) for heading in list(_LABELS)[:2]]
        if said := " and ".join(f"{heading} {cell.text} %" for heading, cell in cells if cell.style != "no"):
            yield f"{_named(point)}: DLProf states {said}.", "names"
    for point in points:
        for one in [one for use in point.uses for one in use.readings][:FEW]:
            mean = _mean_use(one)
            parts = [f"GPU utilisation {percent(mean)} (mean)"] if mean is not None else []
            parts += [f"memory up to {size(one.memory_used)}"] if one.memory_used is not None else []
            device = "" if one.device is None else f" GPU {one.device}"
            if parts:
                yield f"{_named(point)}{device}: {', '.join(parts)}, in {one.count:,} readings.", "samples"


def _named(point: InferencePoint) -> str:
    return f"{point.model} at batch {point.batch}" if point.batch is not None else point.model


def _missing(
    points: Sequence[InferencePoint], busy: Sequence[BusyFrom], asked: InferenceRequest
) -> Iterator[tuple[str, str]]:
    runs = [run for point in points for run in point.runs]
    timed = [point for point in points if point.latency is not None]
    cpu = bool(points) and all(point.on_cpu for point in points)
    if not timed:
        yield (
            "latency, images/s and accuracy",
            "these reports hold no steps that are divided into loading, copies and computation; perfctl infer records them",
        )
    elif not any(top1_of(point) is not None for point in points):
        yield "top-1, top-5", f"{_why(timed[0], 'top1')}. Use --weights default and --data imagenet --data-dir DIR"
    if timed and all(point.latency is not None and point.latency.percentiles[95] is None for point in timed):
        yield "p95", "too few batches: a p95 takes 20, and so 20 times the batch size in --images"
    if cpu:
        what = (
            "GPU utilisation, idle share, tensor cores, the GPU's memory, and the batch size from which the GPU is busy"
        )
        yield what, "the runs were on a CPU; on a machine with an NVIDIA GPU the same command measures them"
    else:
        for what, none in (
            ("GPU utilisation", all(point.gpu.value is None for point in points)),
            ("tensor cores", all(point.tensor.value is None for point in points)),
            ("the GPU's memory in use", all(point.memory.value is None for point in points)),
        ):
            if none and points:
                field = {"GPU utilisation": "gpu", "tensor cores": "tensor"}.get(what, "memory")
                yield what, "; ".join(dict.fromkeys(getattr(point, field).reason for point in points))
        unknown = dict.fromkeys(one.reason for one in busy if not one.way)
        if unknown and not all(point.gpu.value is None for point in points):
            yield "the batch size from which the GPU is busy", "; ".join(unknown)
    if not any(run.profiler == "dlprof" for run in runs):
        yield (
            "DLProf's own figures",
            "no report of DLProf is among the runs; the three reports are made from the other profilers",
        )
    if any(one.readings for point in points for one in point.uses) or not cpu:
        yield (
            "load of the GPU's memory interface",
            "perfctl keeps no readings of utilization.memory; memory in use is shown",
        )
    unsized = sum(point.batch is None for point in points)
    if unsized and len(points) > 1:
        yield "batch sizes", f"{unsized} of {len(points)} reports do not say theirs; names such as resnet18_b16.csv do"
    for point in points:
        for problem in point.problems:
            yield f"{point.model}, batch {point.batch or 'unknown'}", problem
    for text in asked.failed:
        yield "a file that could not be read", text
