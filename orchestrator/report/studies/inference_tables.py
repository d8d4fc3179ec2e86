"""The tables of the study of inference at low batch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from perfctl.orchestrator.ledger.usage.inference import BusyFrom, InferencePoint
from perfctl.orchestrator.ledger.usage.readings import (
    BUSY,
    UsageShare,
)
from perfctl.orchestrator.ledger.usage.three_reports import iteration_rows, name_rows, summary_row
from perfctl.orchestrator.report import tables
from perfctl.orchestrator.report.charts.inference import images_of, interval_of, top1_of, wide_of
from perfctl.orchestrator.report.numbers import percent
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    count,
    name_cell,
    nothing,
    share_cell,
    size_cell,
    table,
    text_cell,
    time_cell,
)
from perfctl.records.report import Summary
from perfctl.records.run import Run

NAMES, ITERATIONS, ROWS = 15, 20, 3000
"""Names of kernels and iterations of a run in their reports, and rows of a table: nothing else
is cut."""
LABELS = {
    "GPU utilisation": r"GPU Utili[sz]ation",
    "tensor core utilisation": r"Tensor Core (?:Kernel )?Utili[sz]ation",
    "memory": r"Memory Duration",
    "data loader": r"Dataloader Duration",
}
"""Heading of a column -> the label that DLProf's summary has for it, in any version."""

HEADS = (Column("model", style="code"), Column("batch"))


def tables_of(
    points: Sequence[InferencePoint], busy: Sequence[BusyFrom], line15: Mapping[int, str]
) -> Iterator[tuple[str, tuple[tuple[Table, ...], tuple[Table, ...]]]]:
    """(chapter, (its tables, those that are folded))."""
    found: tuple[tuple[str, Sequence[Table | None], Sequence[Table | None]], ...] = (
        ("latency", [_latency_table(points)], []),
        ("throughput", [_throughput_table(points)], []),
        (
            "utilisation",
            [_busy_table([one for one in busy if one.way]), _utilisation_table(points)],
            [],
        ),
        ("memory", [_memory_table(points)], []),
        ("accuracy", [_accuracy_table(points)], []),
        ("kernels", [_slowest_table(points)], [_names_table(points)]),
        ("iterations", [], [_iterations_table(points)]),
        ("summary", [_summary_table(points)], [_stated_table(points)]),
        ("names", [_by_name_table(points, line15)], []),
        ("samples", [_samples_table(points)], []),
        ("all", [_all_table(points)], [_skipped_table(points)]),
    )
    for key, shown, folded in found:
        yield key, (tuple(one for one in shown if one), tuple(one for one in folded if one))


def _heads(point: InferencePoint) -> list[Cell]:
    return [name_cell(point.model), count(point.batch, "the report does not say its batch size")]


def _made(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[object]],
    *,
    whole: bool = False,
) -> Table | None:
    """A table that begins with model and batch size; None where nothing else is known. A column of
    dashes is a note instead, except in one that is ``whole``."""
    made = table(caption, [*HEADS, *columns], rows, limit=ROWS, whole=whole)
    return made if made is not None and len(made.columns) > len(HEADS) else None


def _latency_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("batches", note="full batches that were timed"),
        *(Column(f"p{part}", base="ns") for part in (50, 95, 99)),
        Column("longest", base="ns"),
        Column("p50 per image", base="ns"),
        Column("measured by", style="text"),
    ]
    rows = []
    for point in points:
        if (timed := point.latency) is not None:
            parts = (
                time_cell(timed.percentiles[part], timed.why[f"p{part}"]) for part in (50, 95, 99)
            )
            middle = timed.percentiles[50]
            by = (
                "the run's own clock"
                if timed.profiler == "none"
                else f"its own clock, under {timed.profiler}"
            )
            rows.append(
                [
                    *_heads(point),
                    timed.count,
                    *parts,
                    timed.longest,
                    middle and middle / timed.batch,
                    by,
                ]
            )
    return _made("Latency of a batch: copies and computation, images ready", columns, rows)


def _throughput_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column(
            "images/s",
            note="images of full batches over the time of their steps, waiting for images included",
        ),
        Column("mean step", base="ns", note="loading, copies and computation"),
        Column("loading", base="ns", note="mean wait for images in a step"),
        Column("copies", base="ns", note="mean"),
        Column("compute", base="ns", note="mean"),
    ]
    rows = [
        [
            *_heads(point),
            tables.rate(timed.images_per_second, "images/s"),
            timed.step,
            timed.load,
            timed.copy,
            timed.compute,
        ]
        for point in points
        if (timed := point.latency) is not None
    ]
    return _made("Images per second, and the mean step they follow from", columns, rows)


def _given(share: UsageShare) -> Cell:
    cell = share_cell(share.value, share.reason)
    return cell if share.value is None else Cell(cell.text, share.reason, value=cell.value)


def _busy_table(busy: Sequence[BusyFrom]) -> Table | None:
    columns = [
        Column("model", style="code"),
        Column("busy from batch", style="text"),
        Column("found by", style="text"),
        Column("busy share at each batch size", style="text"),
    ]
    rows = []
    for one in busy:
        most = f"none of these; at most {percent(max(share for _, share in one.measured))}"
        shares = "; ".join(f"{batch}: {percent(share)}" for batch, share in one.measured)
        rows.append(
            [
                one.model,
                most if one.batch is None else str(one.batch),
                text_cell(one.way, one.reason),
                shares,
            ]
        )
    return table(
        f"Batch size from which the GPU is busy ({BUSY * 100:.0f}% of the time or more)",
        columns,
        rows,
    )


def _utilisation_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("GPU busy"),
        Column("GPU idle", note="1 - busy, by kernels only: sampling does not tell"),
        Column(
            "by",
            style="text",
            note="kernels; sampled: the driver's figure, an estimate; DLProf: its summary",
        ),
        Column(
            "over",
            style="text",
            note="the time that the share is of: shares over different times differ",
        ),
        Column("tensor cores"),
        Column("memory in use", note="highest reading over all of the GPU's memory"),
        Column("host cores busy"),
    ]
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
        cores = next(
            (use.ways.host_cores for use in point.uses if use.ways.host_cores is not None), None
        )
        host = (
            nothing(point.uses[0].ways.host_reason)
            if cores is None
            else Cell(f"{cores:.3g}", value=round(cores, 4))
        )
        rows.append(
            [
                *_heads(point),
                _given(point.gpu),
                _given(idle),
                point.gpu_way or nothing(point.gpu.reason),
                _over(point),
                _given(point.tensor),
                _given(point.memory),
                host,
            ]
        )
    return _made("GPU, memory and tensor cores", columns, rows)


def _over(point: InferencePoint) -> Cell:
    if point.gpu.value is None:
        return nothing(point.gpu.reason)
    return text_cell("DLProf's wall clock" if point.gpu_way == "DLProf" else point.gpu.reason)


def _memory_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("peak", base="B"),
        Column("of", style="text"),
        Column("allocated by torch", base="B"),
        Column("reserved by torch", base="B"),
        Column("process on the GPU", base="B"),
        Column("everybody on the GPU", base="B"),
        Column("GPU's memory", base="B"),
        Column("host resident", base="B"),
    ]
    rows = []
    for point in points:
        if point.peak is not None:
            uses = [use.memory for use in point.uses]
            parts = (
                next((value for use in uses if (value := getattr(use, field)) is not None), None)
                for field in ("allocated", "reserved", "process", "device", "device_total", "host")
            )
            rows.append(
                [
                    *_heads(point),
                    point.peak,
                    point.peak_of,
                    *(size_cell(part, "not recorded") for part in parts),
                ]
            )
    return _made("Peak memory", columns, rows)


def why(point: InferencePoint, figure: str) -> str:
    return (
        point.latency.why.get(figure, "no run recorded it")
        if point.latency is not None
        else "no run recorded it"
    )


def _accuracy_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("top-1"),
        Column("95% interval", style="text", note="Wilson, for this many images"),
        Column("top-5"),
        Column("loss", note="mean cross-entropy in nats"),
        Column("images", note="that were read and scored"),
        Column("unreadable"),
    ]
    rows = []
    for point in points:
        if point.latency is None or top1_of(point) is None:
            continue
        figures = point.latency.figures
        low, high = interval_of(point)
        wide = wide_of(point)
        ends = (
            Cell(f"needs {wide.further}", wide.reason, "no", value="unknown")
            if wide
            else f"{percent(low)} to {percent(high)}"
        )
        rows.append(
            [
                *_heads(point),
                share_cell(top1_of(point)),
                ends,
                share_cell(figures.get("top5"), why(point, "top5")),
                tables.decimal_cell(figures.get("loss"), why(point, "loss")),
                images_of(point),
                _skipped(point),
            ]
        )
    return _made("Top-1 and top-5", columns, rows)


def _skipped(point: InferencePoint) -> Cell:
    """Images that could not be read, with their names."""
    skipped = point.latency.figures.get("images_skipped") if point.latency is not None else None
    named = "; ".join(_unreadable(point)) or None
    return (
        count(None, "no run recorded it")
        if skipped is None
        else Cell(f"{int(skipped):,}", named, value=int(skipped))
    )


def _unreadable(point: InferencePoint) -> list[str]:
    gaps = (gap for run in point.runs[:1] for gap in run.report.gaps)
    return [gap.reason for gap in gaps if gap.quantity == "images" and gap.state == "unreadable"]


def _skipped_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("model", style="code"),
        Column("batch"),
        Column("which and why", style="text"),
    ]
    rows = [[*_heads(point), text] for point in points for text in _unreadable(point)]
    return table("Images that could not be read", columns, rows, limit=ROWS)


def _profiled(point: InferencePoint) -> Run | None:
    """The run that its reports are made from: the lightest profiler that left kernels,
    else operators."""
    for field in ("kernels", "operations"):
        for run in point.runs:
            if any(True for _ in getattr(run.report, field)):
                return run
    return None


def _yes(tensor: bool | None) -> Cell:
    return (
        nothing("its name does not say") if tensor is None else text_cell("yes" if tensor else "no")
    )


def _slowest_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("profiler", style="text"),
        Column("slowest kernel or operator", style="code"),
        Column("calls"),
        Column("total", base="ns"),
        Column("share"),
        Column("different names"),
    ]
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
        Column("kernel or operator", style="code"),
        Column("uses tensor cores", style="text"),
        Column("calls"),
        Column(
            "total", base="ns", note="of kernels on the GPU; of operators self time on the host"
        ),
        Column("mean", base="ns"),
        Column("shortest", base="ns"),
        Column("longest", base="ns"),
        Column("share"),
    ]
    rows: list[list[object]] = []
    for point in points:
        run = _profiled(point)
        named = name_rows(run) if run is not None else ()
        each = "only sums are kept of operators"
        rows += [
            [
                *_heads(point),
                one.name,
                nothing("operators do not say") if one.shortest is None else _yes(one.tensor),
                one.calls,
                one.total,
                one.mean,
                time_cell(one.shortest, each),
                time_cell(one.longest, each),
                share_cell(one.share),
            ]
            for one in named[:NAMES]
        ]
        if rest := named[NAMES:]:
            calls, took, share = (
                sum(one.calls for one in rest),
                sum(one.total for one in rest),
                sum(one.share for one in rest),
            )
            of_many = nothing("of several names")
            rows.append(
                [
                    *_heads(point),
                    text_cell(f"all {len(rest)} others"),
                    of_many,
                    calls,
                    took,
                    took / calls if calls else None,
                    of_many,
                    of_many,
                    share_cell(share),
                ]
            )
    return _made(f"Kernels or operators by name, the {NAMES} slowest of each run", columns, rows)


def _iterations_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("iteration"),
        Column("step", base="ns"),
        Column("loading", base="ns"),
        Column("copies", base="ns"),
        Column("compute", base="ns"),
        Column("kernels"),
        Column(
            "kernels run",
            base="ns",
            note="time with a kernel running; overlapping kernels count once",
        ),
        Column("tensor cores", note="share of kernel time in kernels whose names say tensor cores"),
    ]
    rows = []
    for point in points:
        run = _profiled(point) or (point.runs[0] if point.latency is not None else None)
        for one in iteration_rows(run)[:ITERATIONS] if run is not None else ():
            parts = (
                time_cell(part, "not timed") for part in (one.step, one.load, one.copy, one.compute)
            )
            rows.append(
                [
                    *_heads(point),
                    one.number,
                    *parts,
                    count(one.kernels, one.tensor.reason),
                    time_cell(one.kernel_ns, one.tensor.reason),
                    _given(one.tensor),
                ]
            )
    return _made(f"Iterations, the first {ITERATIONS} of each run", columns, rows)


def _summary_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("profiler", style="text"),
        Column("iterations"),
        Column("wall clock", base="ns", note="of its iterations"),
        Column("average iteration", base="ns"),
        Column("± deviation", base="ns", note="standard deviation"),
        Column("GPU busy"),
        Column("tensor cores"),
        Column("loading", note="share of the iterations; likewise the next two"),
        Column("copies"),
        Column("compute"),
        Column("kernels"),
        Column("kernel time", base="ns"),
        Column("with tensor cores", base="ns", note="by kernel names"),
    ]
    rows = []
    for point in points:
        if (run := _profiled(point)) is None:
            continue
        one, none = (
            summary_row(run),
            "no kernels: the run was on a CPU" if point.on_cpu else "no kernels in the report",
        )
        rows.append(
            [
                *_heads(point),
                run.profiler,
                count(one.iterations, "the report has no steps"),
                *(time_cell(part, "the report has no steps") for part in (one.wall, one.mean)),
                time_cell(one.deviation, "needs two steps"),
                _given(point.gpu),
                _given(point.tensor),
                *(
                    share_cell(part, "steps are not divided")
                    for part in (one.load_share, one.copy_share, one.compute_share)
                ),
                count(one.kernels, none),
                time_cell(one.kernel_ns, none),
                time_cell(one.tensor_ns, none),
            ]
        )
    return _made("Each profiled run as a whole", columns, rows)


def dlprof_runs(points: Sequence[InferencePoint]) -> Iterator[tuple[InferencePoint, Run]]:
    return ((point, run) for point in points for run in point.runs if run.profiler == "dlprof")


def _stated_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("figure", style="text"),
        Column("value", style="text"),
        Column("unit", style="text"),
    ]
    rows = [
        [*_heads(point), one.name, _as_stated(run, one), one.unit or nothing("none")]
        for point, run in dlprof_runs(points)
        for one in run.report.summaries
    ]
    return _made("DLProf's own summary, as it states it", columns, rows)


def _as_stated(run: Run, one: Summary) -> Cell:
    if one.value is None:
        return text_cell(one.text) if one.text else nothing("the report does not say")
    if _rounded_to_nothing(run, one):
        return Cell("< 0.05", "DLProf's CSV rounds: 0.0% is anything below 0.05%", value="< 0.05")
    return Cell(f"{one.value:,.10g}", value=one.value)


def _rounded_to_nothing(run: Run, one: Summary) -> bool:
    return not one.value and one.unit == "%" and run.report.form.startswith("DLProf CSV")


def _by_name_table(points: Sequence[InferencePoint], line15: Mapping[int, str]) -> Table | None:
    columns = [
        Column("DLProf", style="text"),
        *(Column(heading, "%") for heading in LABELS),
        Column(
            "line 15 of the file", style="text", note="what a script that counts lines would print"
        ),
    ]
    rows = []
    for point, run in dlprof_runs(points):
        values = [labelled(run, pattern) for pattern in LABELS.values()]
        line = (
            text_cell(line15[run.id])
            if run.id in line15
            else nothing("the file is not there, or no CSV")
        )
        rows.append([*_heads(point), run.profiler_version or nothing("not stated"), *values, line])
    return _made("Utilisation by its name in DLProf's summary", columns, rows)


def labelled(run: Run, pattern: str) -> Cell:
    label = re.compile(rf"(?:.*: )?{pattern}(?: ?%)?\Z", re.IGNORECASE)
    found = [one for one in run.report.summaries if label.match(one.name)]
    if not found:
        return nothing("this summary has no such line")
    cell = _as_stated(run, found[0])
    return Cell(
        cell.text,
        "; ".join(filter(None, (f"its line {found[0].name}", cell.title))),
        cell.style,
        cell.value,
    )


def _samples_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("device"),
        Column("readings"),
        Column("utilisation", note="mean over time, of the measured steps where they are known"),
        Column("memory used", base="B", note="highest"),
        Column("memory", base="B"),
        Column("power", "W", note="mean"),
        Column("temperature", "°C", note="highest"),
    ]
    rows = []
    for point in points:
        for one in (one for use in point.uses for one in use.readings):
            power, heat = (
                nothing("not sampled")
                if value is None
                else Cell(f"{value:.3g}", value=round(value, 3))
                for value in (one.power, one.temperature)
            )
            rows.append(
                [
                    *_heads(point),
                    count(one.device, "the readings do not say"),
                    one.count,
                    share_cell(one.utilisation, one.span),
                    size_cell(one.memory_used, "not sampled"),
                    size_cell(one.memory_total, "not sampled"),
                    power,
                    heat,
                ]
            )
    return _made("Readings of the GPU", columns, rows)


def _all_table(points: Sequence[InferencePoint]) -> Table | None:
    columns = [
        Column("p50", base="ns"),
        Column("p95", base="ns"),
        Column("images/s"),
        Column("GPU busy"),
        Column("tensor cores"),
        Column("memory in use"),
        Column("peak memory", base="B"),
        Column("top-1"),
        Column("top-5"),
        Column("images"),
        Column(
            "unreadable",
            note="images that could not be read: not scored, a blank one took their place",
        ),
        Column("status", style="text"),
    ]
    rows = []
    for point in points:
        timed, none = (
            point.latency,
            point.problems[0] if point.problems else "no run timed its steps",
        )
        figures = timed.figures if timed is not None else {}
        p50, p95 = (
            time_cell(timed.percentiles[part], timed.why[f"p{part}"]) if timed else nothing(none)
            for part in (50, 95)
        )
        rows.append(
            [
                *_heads(point),
                p50,
                p95,
                tables.rate(timed.images_per_second if timed else None, "images/s", none),
                _given(point.gpu),
                _given(point.tensor),
                _given(point.memory),
                size_cell(point.peak, point.peak_of),
                share_cell(figures.get("top1"), why(point, "top1")),
                share_cell(figures.get("top5"), why(point, "top5")),
                count(images_of(point) or None, why(point, "images")),
                _skipped(point),
                "; ".join(point.problems) or "ok",
            ]
        )
    return _made("Every model and batch size", columns, rows, whole=True)
