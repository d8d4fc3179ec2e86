"""Which charts a study gets, and from which numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.analyse.ledger.ledger import Ledger, LedgerRow
from perfctl.orchestrator.analyse.ledger.studies import Study, studies
from perfctl.orchestrator.analyse.ledger.sweep import BatchPoint
from perfctl.orchestrator.analyse.predict.bench import ALL, correlation, figures
from perfctl.orchestrator.analyse.usage.busy import UsageShare, Ways
from perfctl.orchestrator.analyse.usage.memory import MemoryUse
from perfctl.orchestrator.analyse.usage.run_usage import RunUsage
from perfctl.orchestrator.report.charts import charts
from perfctl.orchestrator.report.charts import charts as style
from perfctl.orchestrator.report.charts.files import Drawn, drawn
from perfctl.orchestrator.report.charts.svg import INK, MUTED, SERIES, Hit
from perfctl.orchestrator.report.numbers import ratio, short, si, size, time
from perfctl.records.bench import BenchPoint
from perfctl.records.run import Run

COLOURED = 7
"""Layers with a colour of their own; the rest is "other"."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One drawing with its title (what it shows) and a note on where the numbers come from."""

    title: str
    svg: str
    note: str
    legend: tuple[tuple[str, int], ...] = ()
    """(name, colour number) for parts too narrow to carry their name."""


def chart_views(key: str, ledger: Ledger, points: Sequence[BatchPoint]) -> tuple[Chart, ...]:
    """Charts of one study, the ones that answer most first. ``key`` keeps the drawings' inner names apart."""
    colours = layer_colours(ledger)
    times = _times(key, points)
    first = [*_ratio(key, ledger, colours), *times[:1], *_shares(key, ledger, colours)]
    return (*first, *times[1:], *_memory(key, points))


def layer_colours(ledger: Ledger) -> dict[str, int]:
    """layer -> colour, the same on every chart; the layers that take most time have their own."""
    weight: dict[str, float] = defaultdict(float)
    for row in ledger.rows:
        weight[row.place] += (row.share or 0) + 1e-18 * (row.paper.value or 0)
    top = set(sorted(weight, key=lambda layer: -weight[layer])[:COLOURED])
    order = [layer for layer in dict.fromkeys(row.place for row in ledger.rows) if layer in top]
    return {layer: number for number, layer in enumerate(order)}


def _times(key: str, points: Sequence[BatchPoint]) -> list[Chart]:
    timed = [point for point in points if point.step is not None]
    if len(timed) < 2:
        return []
    batches = tuple(point.batch for point in timed)
    spreads = [point.step for point in timed if point.step is not None]
    note = f"{'; '.join(sorted({point.basis or '' for point in timed}))}; median and range over {_steps(timed)} steps"
    whole = charts.Series(
        "step", batches, tuple(s.median / 1e9 for s in spreads), tuple(s.low / 1e9 for s in spreads),
        tuple(s.high / 1e9 for s in spreads), 0,
    )  # fmt: skip
    each = charts.Series(
        "sample", batches, tuple(s.median / b / 1e9 for s, b in zip(spreads, batches, strict=True)),
        tuple(s.low / b / 1e9 for s, b in zip(spreads, batches, strict=True)),
        tuple(s.high / b / 1e9 for s, b in zip(spreads, batches, strict=True)), 0,
    )  # fmt: skip
    said = "; ".join(f"batch {point.batch}: {time(point.per_sample or 0)}" for point in timed)
    return [
        Chart(
            "Time per sample, by batch size",
            _line(f"{key}-sample", f"Time per sample. {said}", [each], "time per sample"),
            note,
        ),
        Chart(
            "Time per step, by batch size",
            _line(f"{key}-step", "Time per step against batch size", [whole], "time per step"),
            note,
        ),
    ]


def _line(name: str, description: str, lines: Sequence[charts.Series], up: str) -> str:
    return charts.against_batch(name, description, lines, lambda seconds: short(time(seconds * 1e9)), up=up)


def _steps(points: Sequence[BatchPoint]) -> str:
    counts = sorted({point.step.count for point in points if point.step is not None})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _memory(key: str, points: Sequence[BatchPoint]) -> list[Chart]:
    lines: list[charts.Series] = []
    for quantity in dict.fromkeys(name for point in points for name in point.memory):
        at = [(point.batch, float(point.memory[quantity])) for point in points if quantity in point.memory]
        if len(at) >= 2:
            values = tuple(value for _, value in at)
            lines.append(charts.Series(quantity, tuple(batch for batch, _ in at), values, colour=len(lines)))
    if not lines:
        return []
    svg = charts.against_batch(
        f"{key}-memory", "Memory against batch size", lines[:6], lambda b: short(size(b)), up="memory"
    )
    what = lines[0].label.capitalize() if len(lines) == 1 else "Memory"
    return [Chart(f"{what}, by batch size", svg, "figures the workload recorded about itself")]


def _shares(key: str, ledger: Ledger, colours: Mapping[str, int]) -> list[Chart]:
    """Share of time by layer (all directions together), one bar a batch size."""
    timed = [row for row in ledger.rows if row.share is not None]
    if not timed:
        return []
    parts: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in timed:
        layer = row.place
        parts[row.batch][layer if layer in colours else "other layers"] += row.share or 0
    for item in ledger.unattributed:
        parts[item.batch]["not attributed"] += item.share
    legend = dict(colours) | {"other layers": 7, "not attributed": 8}
    rows = [(str(batch), found) for batch, found in sorted(parts.items())]
    svg = charts.shares(f"{key}-shares", "Share of time by layer, one bar a batch size", rows, legend)
    seen = {part for found in parts.values() for part, share in found.items() if share > 0}
    basis = sorted({row.basis for row in timed if row.basis})
    title = f"Share of the {timed[0].whole} by layer, all directions"
    if len(rows) > 1:
        title += ", by batch size"
    note = f"{'; '.join(basis)}; all measured steps together"
    return [Chart(title, svg, note, tuple((part, colour) for part, colour in legend.items() if part in seen))]


def _ratio(key: str, ledger: Ledger, colours: Mapping[str, int]) -> list[Chart]:
    """Counted / paper: the rows furthest from 1 as dots, everything on a log2 axis with a line at 1."""
    groups: dict[str, list[LedgerRow]] = defaultdict(list)
    for row in ledger.rows:
        if row.ratio:
            groups[row.name].append(row)
    if not groups:
        return []
    off = {name: max(abs((row.ratio or 1) - 1) for row in rows) for name, rows in groups.items()}
    news = [name for name in groups if off[name] > 0.02] or list(groups)
    far = sorted(news, key=lambda name: -off[name])[:6]
    lines = [
        charts.Series(
            name, tuple(row.batch for row in groups[name]), tuple(row.ratio or 1 for row in groups[name]),
            colour=colours.get(groups[name][0].place, 7),
        )
        for name in groups if name in far
    ]  # fmt: skip
    said = "; ".join(f"{line.label} {line.values[-1]:.2f} at batch {line.batches[-1]}" for line in lines)
    svg = charts.against_batch(
        f"{key}-ratio", f"Counted over paper FLOPs. {said}", lines, ratio, log=True, up="counted / paper"
    )
    near = sum(difference <= 0.02 for name, difference in off.items() if name not in far)
    note = "counted by ncu"
    if near:
        note += f"; {near} more within 2 % of 1"
    if len(news) > len(far):
        note += f"; the {len(far)} furthest of {len(news)}"
    return [Chart("Counted / paper FLOPs, by batch size", svg, note)]


_WAYS: tuple[tuple[str, Callable[[Ways], UsageShare]], ...] = (
    ("kernels", lambda item: item.kernels),
    ("NVML", lambda item: item.nvml),
    ("DLProf", lambda item: item.dlprof),
)

Line = tuple[str, str, dict[int, float]]
"""(model, what was read, batch size -> value)."""


def across(runs: Sequence[Run]) -> tuple[Chart, ...]:
    """Both drawings with all studies of ``runs`` in them."""
    named = [(label(study), [RunUsage(run) for run in study.runs]) for study in studies(runs) if not study.foreign]
    found = (utilisation_chart("all-utilisation", named), memory_chart("all-memory", named))
    return tuple(chart for chart in found if chart is not None)


def label(study: Study) -> str:
    """The model's name where the workload takes one, else the workload's, with what is not at its default."""
    model = study.runs[0].report.environment.get("option:model")
    return model or ", ".join(part for part in (study.workload, study.variant) if part)


def utilisation_chart(name: str, studies: Sequence[tuple[str, Sequence[RunUsage]]]) -> Chart | None:
    """Busy share against batch size: a line a way, and a line a model where there are several. On a CPU, cores busy."""
    lines: list[Line] = []
    for model, runs in studies:
        for way, share in _WAYS:
            lines.append((model, way, _points(runs, lambda run, share=share: share(run.ways).value)))  # type: ignore[misc]
    note = "kernels: start and length of each; NVML: the driver's figure, mean over time; DLProf: its summary"
    drawn = _chart(name, "Share of time with the GPU busy", lines, lambda share: f"{share * 100:.3g} %", note)
    if drawn is not None:
        return drawn
    hosts = [(model, "host", _points(runs, lambda run: run.ways.host_cores)) for model, runs in studies]
    note = "cores that the run's processes kept busy in its steps, mean over time"
    return _chart(name, "Host cores busy", hosts, lambda cores: f"{cores:.3g}", note)


def memory_chart(name: str, studies: Sequence[tuple[str, Sequence[RunUsage]]]) -> Chart | None:
    """Memory against batch size, a line a model: by NVML where it was read, else the allocator's, else the host's."""
    lines: list[Line] = []
    for model, runs in studies:
        for what, read in _MEMORIES:
            points = _points(runs, lambda run, read=read: read(run.memory))  # type: ignore[misc]
            if points:
                lines.append((model, what, points))
                break
    note = (
        "highest in each run: process or device by NVML, reserved by torch's allocator, or the host's resident memory"
    )
    return _chart(name, "Memory", lines, lambda value: short(size(value)), note)


_MEMORIES: tuple[tuple[str, Callable[[MemoryUse], int | None]], ...] = (
    ("process, NVML", lambda item: item.process),
    ("device in use", lambda item: item.device),
    ("reserved", lambda item: item.reserved),
    ("host resident", lambda item: item.host),
)


def _points(runs: Sequence[RunUsage], read: Callable[[RunUsage], float | None]) -> dict[int, float]:
    """batch size -> value, of runs that nothing slows before others."""
    order = {"none": 0, "nsys": 1, "torch": 2}
    points: dict[int, float] = {}
    for item in sorted(runs, key=lambda item: order.get(item.run.profiler, 3)):
        value, batch = read(item), item.run.batch_size
        if batch is not None and value is not None:
            points.setdefault(batch, value)
    return points


def _chart(name: str, title: str, lines: Sequence[Line], show: Callable[[float], str], note: str) -> Chart | None:
    """A line is named after its model, and after what was read where lines differ in it."""
    kept = [line for line in lines if len(line[2]) > 1]
    if not kept:
        return None
    kinds = {what for _, what, _ in kept}
    if len(kinds) == 1 and title != "Host cores busy":
        title += f" ({next(iter(kinds))})"
    named = [
        (", ".join(part for part in (model, what if len(kinds) > 1 or not model else "") if part), points)
        for model, what, points in kept
    ]
    series = [
        charts.Series(label, tuple(sorted(points)), tuple(points[batch] for batch in sorted(points)), colour=number)
        for number, (label, points) in enumerate(named)
    ]
    said = "; ".join(
        f"{label} batch {batch}: {show(points[batch])}" for label, points in named for batch in sorted(points)
    )
    svg = charts.against_batch(
        name, f"{title} against batch size. {said}", series, show, up=title.partition(" (")[0].lower()
    )
    return Chart(f"{title}, by batch size", svg, note)


PREFIX = "bench-"
"""What the names of these charts begin with."""


def bench_charts(points: Sequence[BenchPoint]) -> dict[str, Drawn]:
    """name -> chart, for each figure that differs between points: "bench-flops-forward"."""
    names = sorted({name for point in points for name in figures(point)})
    with drawn() as found:
        for name in names:
            scatter(chart_name(name), name, points)
    return {chart.name: chart for chart in found}


def chart_name(feature: str) -> str:
    """ "flops:forward" as part of a file's name."""
    return PREFIX + "".join(letter if letter.isalnum() else "-" for letter in feature)


def bench_label(feature: str) -> str:
    """ "flops:forward" in words: "FLOPs, forward"."""
    kind, _, part = feature.partition(":")
    words = {"flops": "FLOPs", "calls": "operations", "elementwise": "element-wise FLOPs"}.get(kind, kind)
    return f"{words}, {part}" if part else words


def scatter(name: str, feature: str, points: Sequence[BenchPoint]) -> str | None:
    """One drawing as SVG; None where fewer than three values of the figure are there."""
    shown = [point for point in points if figures(point).get(feature, 0) > 0]
    if len({figures(point)[feature] for point in shown}) < 3:
        return None
    figure, axes = style._new(height=3.6)
    axes.set_xscale("log")
    axes.set_yscale("log")
    hits = []
    for place, family in enumerate(dict.fromkeys(point.family for point in points)):
        mine = [point for point in shown if point.family == family]
        xs, ys = [figures(point)[feature] for point in mine], [float(point.step_ns[0]) for point in mine]
        axes.plot(xs, ys, "o", color=SERIES[place], markersize=4, alpha=0.8)
        its = correlation(family, feature, mine).spearman
        axes.annotate(
            f"● {family}" + (f" {its:.2f}" if its is not None else ""), (0.02, 0.97 - 0.075 * place),
            xycoords="axes fraction", va="top", fontsize=9.5, color=SERIES[place], parse_math=False,
        )  # fmt: skip
        hits += [
            Hit(f"{point.model}, batch {point.batch}: {si(x)}, {time(y)}", x, y)
            for point, x, y in zip(mine, xs, ys, strict=True)
        ]
    axes.xaxis.set_major_formatter(style._formatter(lambda value: short(si(value))))
    axes.yaxis.set_major_formatter(style._formatter(lambda value: short(time(value))))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(style._formatter(lambda value: ""))
    axes.tick_params(which="minor", length=0)
    axes.set_xlabel(bench_label(feature), color=MUTED, fontsize=10, parse_math=False)
    axes.set_ylabel("time of a step", color=MUTED, fontsize=10)
    found = correlation(ALL, feature, shown)
    said = f"Spearman, all: {found.spearman:.2f}" if found.spearman is not None else "no rank correlation"
    axes.annotate(said, (0.98, 0.04), xycoords="axes fraction", ha="right", fontsize=9.5, color=INK)
    description = f"Time of a step against {bench_label(feature)}. {said} over {len(shown)} points"
    return style._svg(figure, name, description, hits)
