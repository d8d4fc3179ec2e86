"""The charts of a study, and of several studies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice

from perfctl.orchestrator.counts.counters.sums import instructions
from perfctl.orchestrator.counts.hardware.peaks import fastest, seen_gpu
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.ledger import Ledger, LedgerRow
from perfctl.orchestrator.ledger.prepared import PreparedBatch, PreparedRun, Study, studies
from perfctl.orchestrator.ledger.sweep import BatchPoint
from perfctl.orchestrator.ledger.timing import host_times
from perfctl.orchestrator.ledger.usage.run_usage import (
    COMMUNICATION,
    COMPUTE,
    COPIES,
    IDLE,
    Breakdown,
    RunUsage,
)
from perfctl.orchestrator.report.charts.charts import Chart, Series, against_batch, shares
from perfctl.orchestrator.report.numbers import ratio, short, si, size, time
from perfctl.records.run import Run

COLOURED = 7
"""Layers with a colour of their own; the rest is "other"."""
Line = tuple[str, str, dict[int, float]]
"""(model, quantity, batch size -> value)."""
DOING = {COMPUTE: 2, COMMUNICATION: 0, COPIES: 1, IDLE: 8}
"""Part of the time -> colour."""
PAPER = "multiply-adds, estimated"


def chart_views(key: str, found: Analysis, *, timed: bool = True) -> tuple[Chart, ...]:
    """Charts of one study, the ones that answer most first. ``key`` keeps the drawings' inner
    names apart.

    timed: with times and memory by batch size, which inference has in the part of all models.
    """
    ledger, colours = found.ledger, layer_colours(found.ledger)
    points = found.points if timed else ()
    times, parts = _times(key, points), [*_breakdown(key, found), *_shares(key, ledger, colours)]
    first = [*counts_charts(key, found), *clock_charts(key, found), *times[:1], *parts[:1]]
    return (*first, *_ratio(key, ledger, colours), *parts[1:], *times[1:], *_memory(key, points))


def layer_colours(ledger: Ledger) -> dict[str, int]:
    """layer -> colour, the same on every chart; the layers that take most time have their own."""
    weight: dict[str, float] = defaultdict(float)
    for row in ledger.rows:
        weight[row.place] += (row.share or 0) + 1e-18 * (row.paper.value or 0)
    top = set(sorted(weight, key=lambda layer: -weight[layer])[:COLOURED])
    order = [layer for layer in dict.fromkeys(row.place for row in ledger.rows) if layer in top]
    return {layer: number for number, layer in enumerate(order)}


def _times(key: str, points: Sequence[BatchPoint]) -> list[Chart]:
    timed = [(point, point.step) for point in points if point.step is not None]
    if len(timed) < 2:
        return []
    counts = sorted({step.count for _, step in timed})
    steps = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    note = (
        f"{'; '.join(sorted({point.basis or '' for point, _ in timed}))}; median and range over "
        f"{steps} steps"
    )
    said = "; ".join(
        f"batch {point.batch}: {time(point.per_sample)}" for point, _ in timed if point.per_sample
    )
    found = []
    for what, description in (
        ("sample", f"Time per sample. {said}"),
        ("step", "Time per step over batch size"),
    ):
        seconds = {
            point.batch: [length / parts / 1e9 for length in (step.median, step.low, step.high)]
            for point, step in timed
            if (parts := point.samples if what == "sample" else 1)
        }
        if len(seconds) < 2:
            continue
        middle, lows, highs = zip(*seconds.values(), strict=True)
        line = Series(what, tuple(seconds), middle, lows, highs)
        svg = against_batch(
            f"{key}-{what}",
            description,
            [line],
            lambda s: short(time(s * 1e9)),
            up=f"time per {what}",
        )
        found.append(Chart(f"Time per {what}, by batch size", svg, note))
    return found


def _memory(key: str, points: Sequence[BatchPoint]) -> list[Chart]:
    lines: list[Series] = []
    for quantity in dict.fromkeys(name for point in points for name in point.memory):
        at = {
            point.batch: float(point.memory[quantity])
            for point in points
            if quantity in point.memory
        }
        if len(at) >= 2:
            lines.append(Series(quantity, tuple(at), tuple(at.values()), colour=len(lines)))
    if not lines:
        return []
    svg = against_batch(
        f"{key}-memory",
        "Memory over batch size",
        lines[:6],
        lambda b: short(size(b)),
        up="memory",
    )
    what = lines[0].label.capitalize() if len(lines) == 1 else "Memory"
    return [Chart(f"{what}, by batch size", svg, "values that the workload recorded about itself")]


def _shares(key: str, ledger: Ledger, colours: Mapping[str, int]) -> list[Chart]:
    timed = [row for row in ledger.rows if row.share is not None]
    if not timed:
        return []
    parts: dict[int | None, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in timed:
        parts[row.batch][row.place if row.place in colours else "other layers"] += row.share or 0
    for item in ledger.unattributed:
        parts[item.batch]["not attributed"] += item.share
    legend = dict(colours) | {"other layers": 7, "not attributed": 8}
    rows = [
        ("" if batch is None else str(batch), parts[batch])
        for batch in sorted(parts, key=lambda size: size or 0)
    ]
    svg = shares(f"{key}-shares", "Share of time by layer, one bar per batch size", rows, legend)
    seen = {part for found in parts.values() for part, share in found.items() if share > 0}
    by_batch = ", by batch size" if len(rows) > 1 else ""
    title = f"Share of the {timed[0].whole} by layer, all passes{by_batch}"
    note = "; ".join(sorted({row.basis for row in timed if row.basis}))
    return [
        Chart(
            title,
            svg,
            note,
            tuple((part, colour) for part, colour in legend.items() if part in seen),
        )
    ]


def _breakdown(key: str, found: Analysis) -> list[Chart]:
    """What the GPU did with its time, a bar a batch size: of the run whose layer times are read,
    else of any."""
    known: dict[int | None, Breakdown] = {}
    groups = [(at.batch, (at.timing, *at.runs)) for at in found.study.prepared_batches] or [
        (None, found.study.prepared_runs)
    ]
    for batch, runs in groups:
        parts = next(
            (
                one
                for item in runs
                if item is not None and (one := item.usage.breakdown) is not None
            ),
            None,
        )
        if parts is not None:
            known[batch] = parts
    if not known:
        return []
    rows = [("" if batch is None else str(batch), one.shares) for batch, one in known.items()]
    what = "Step breakdown, by batch size" if len(rows) > 1 else "GPU activity"
    svg = shares(
        f"{key}-breakdown",
        "Share of the time that the GPU computed, communicated, copied, idled",
        rows,
        DOING,
    )
    spans = "; ".join(dict.fromkeys(one.window for one in known.values()))
    gpus = max(one.gpus for one in known.values())
    over = f", mean of {gpus} GPUs" if gpus > 1 else ""
    note = f"{spans}{over}; communication and copies only if no computation hides them"
    seen = {part for one in known.values() for part, share in one.shares.items() if share > 0}
    return [
        Chart(
            what, svg, note, tuple((part, colour) for part, colour in DOING.items() if part in seen)
        )
    ]


def clock_charts(key: str, found: Analysis) -> tuple[Chart, ...]:
    """Times of the CPU timer that a verdict calls flat, beside the least that the peak of the
    GPU allows."""
    if not any(item.rule == "time does not follow" for item in found.judgement.sweep):
        return ()
    read: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    least: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for one in host_times(found.study.runs):
        if one.run.batch_size is None:
            continue
        place = one.layer, one.direction
        read[place][one.run.batch_size] = one.nanoseconds
        best = fastest(seen_gpu(one.run), found.study.precision)
        if best is not None and one.macs:
            least[place][one.run.batch_size] = 2 * one.macs / best[1] * 1e9
    place, at = max(read.items(), key=lambda pair: len(pair[1]), default=(("", ""), {}))
    if len(at) < 2:
        return ()
    drawn_lines = [
        ("CPU timer", at),
        *([("minimum at peak", least[place])] if len(least[place]) > 1 else []),
    ]
    series = [
        Series(
            name,
            tuple(sorted(values)),
            tuple(values[batch] / 1e9 for batch in sorted(values)),
            colour=colour,
        )
        for colour, (name, values) in enumerate(drawn_lines)
    ]
    said = "; ".join(
        f"{line.label} {time(line.values[0] * 1e9)} to {time(line.values[-1] * 1e9)}"
        for line in series
    )
    svg = against_batch(
        f"{key}-clock",
        f"Time of {' '.join(place)}. {said}",
        series,
        lambda s: short(time(s * 1e9)),
        decades=True,
        up="time, log axis",
    )
    note = (
        "minimum: estimated FLOPs / peak of the fastest GPU that fits the records"
        if len(series) > 1
        else ""
    )
    return (
        Chart(
            f"Time of {' '.join(place)}, CPU timer",
            svg,
            note or "from the report",
        ),
    )


def counts_charts(key: str, found: Analysis) -> tuple[Chart, ...]:
    """Instructions of the kernels that executed the same at every batch size, and the multiply-adds
    of their layer.

    Empty without such kernels, or where no layer fits them.
    """
    window = found.judgement.window
    if window is None or window.row is None:
        return ()
    layer, direction = window.row
    lines: dict[str, dict[int, float]] = defaultdict(dict)
    for row in found.ledger.rows:
        if (row.layer, row.direction) == window.row and row.whole_paper and row.batch is not None:
            lines[PAPER][row.batch] = row.whole_paper / 2
    for at in found.study.prepared_batches:
        if at.counted is None or at.batch is None:
            continue
        for name in ("fadd", "ffma"):
            value, state = _executed(at, at.counted, window.kernels, name)
            if value:
                lines[f"{name.upper()}, {state}"][at.batch] = value
    paper, counted = lines.pop(PAPER, {}), {name: at for name, at in lines.items() if len(at) > 1}
    if len(paper) < 2 or not counted:
        return ()
    grows = max(paper.values()) / min(paper.values())
    drawn = [(PAPER, paper), *counted.items()]
    series = [
        Series(name, tuple(at), tuple(at.values()), colour=place)
        for place, (name, at) in enumerate(drawn)
    ]
    said = "; ".join(
        f"{line.label} {si(line.values[0])} to {si(line.values[-1])}" for line in series
    )
    description = (
        f"Estimated multiply-adds of {layer} {direction}, and instructions of its kernels. {said}"
    )
    svg = against_batch(
        f"{key}-counts",
        description,
        series,
        lambda n: short(si(n)),
        decades=True,
        up="number, log axis",
    )
    kernels = ", ".join(found.names.get(name, name) for name in window.kernels)
    note = f"estimated multiply-adds of {layer} {direction}; instructions of {kernels}"
    return (Chart(f"Executed: constant; estimated: {grows:.3g}-fold", svg, note),)


def _executed(
    at: PreparedBatch, counted: PreparedRun, kernels: Collection[str], name: str
) -> tuple[float, str]:
    """(sum over the launches of these kernels in a step, counted or derived) of one instruction."""
    total, state = 0.0, "counted"
    for kernel, _ in counted.launches:
        if kernel.name in kernels:
            value = instructions(counted.values.get(kernel.launch, {})).get(name)
            rule = at.completed.get(kernel.launch)
            if value is None and rule is not None:
                value, state = getattr(rule, name), "derived"
            total += value or 0
    return total / (counted.steps or 1), state


def _ratio(key: str, ledger: Ledger, colours: Mapping[str, int]) -> list[Chart]:
    groups: dict[str, list[LedgerRow]] = defaultdict(list)
    for row in ledger.rows:
        if row.ratio and row.batch is not None:
            groups[row.name].append(row)
    if not groups:
        return []
    off = {name: max(abs((row.ratio or 1) - 1) for row in rows) for name, rows in groups.items()}
    news = [name for name in groups if off[name] > 0.02] or list(groups)
    far = sorted(news, key=lambda name: -off[name])[:6]
    lines = [
        Series(
            name,
            tuple(row.size for row in rows),
            tuple(row.ratio or 1 for row in rows),
            colour=colours.get(rows[0].place, 7),
        )
        for name, rows in groups.items()
        if name in far
    ]
    said = "; ".join(
        f"{line.label} {line.values[-1]:.2f} at batch {line.batches[-1]}" for line in lines
    )
    description = f"Executed / estimated FLOPs. {said}"
    svg = against_batch(
        f"{key}-ratio", description, lines, ratio, log=True, up="executed / estimated"
    )
    near = sum(difference <= 0.02 for name, difference in off.items() if name not in far)
    states = {row.counted.state for rows in groups.values() for row in rows}
    source = (
        "derived from kernel names, grids and shapes"
        if states == {"derived"}
        else "measured by ncu"
    )
    note = f"{source}{f'; {near} more within 2% of 1' if near else ''}"
    if len(news) > len(far):
        note += f"; the {len(far)} furthest of {len(news)}"
    return [Chart("Executed / estimated FLOPs, by batch size", svg, note)]


def across(runs: Sequence[Run]) -> tuple[Chart, ...]:
    """Both drawings with all studies of ``runs`` in them."""
    named = [
        (label(study), [RunUsage(run) for run in study.runs])
        for study in studies(runs)
        if not study.foreign
    ]
    found = (utilisation_chart("all-utilisation", named), memory_chart("all-memory", named))
    return tuple(chart for chart in found if chart is not None)


def label(study: Study) -> str:
    """The model's name where the workload has one, else the workload's with its own options."""
    model = study.runs[0].report.environment.get("option:model")
    return model or ", ".join(part for part in (study.workload, study.variant) if part)


def utilisation_chart(name: str, studies: Sequence[tuple[str, Sequence[RunUsage]]]) -> Chart | None:
    """Busy share against batch size: a line a tool, and a line a model where there are several. On
    a CPU, cores busy."""
    lines: list[Line] = []
    for model, runs in studies:
        ways = [run.ways for run in runs]
        shares = {
            "kernels": [way.kernels for way in ways],
            "NVML": [way.nvml for way in ways],
            "DLProf": [way.dlprof for way in ways],
        }
        lines += [
            (model, tool, _points(runs, [one.value for one in found]))
            for tool, found in shares.items()
        ]
    note = (
        "kernels: start and duration of each; NVML: driver value, mean over time; DLProf: its "
        "summary"
    )
    drawn = _chart(
        name, "Share of time with a busy GPU", lines, lambda share: f"{share * 100:.3g}%", note
    )
    if drawn is not None:
        return drawn
    hosts = [
        (model, "host", _points(runs, [run.ways.host_cores for run in runs]))
        for model, runs in studies
    ]
    note = "cores that the run's processes kept busy in its steps, mean over time"
    return _chart(name, "Host cores busy", hosts, lambda cores: f"{cores:.3g}", note)


def memory_chart(name: str, studies: Sequence[tuple[str, Sequence[RunUsage]]]) -> Chart | None:
    """Memory against batch size, a line a model: by NVML where it was read, else the allocator's,
    else the host's."""
    lines: list[Line] = []
    for model, runs in studies:
        used = [run.memory for run in runs]
        read = {
            "process, NVML": [item.process for item in used],
            "device in use": [item.device for item in used],
            "reserved": [item.reserved for item in used],
            "host, all processes": [item.host_all for item in used],
            "host resident": [item.host for item in used],
        }
        known = (
            (model, what, points)
            for what, values in read.items()
            if (points := _points(runs, values))
        )
        lines += islice(known, 1)
    note = (
        "maximum of each run: process or device (NVML), reserved (torch allocator), or resident "
        "memory of the host"
    )
    return _chart(name, "Memory", lines, lambda value: short(size(value)), note)


def _points(runs: Sequence[RunUsage], values: Sequence[float | None]) -> dict[int, float]:
    """batch size -> value, of the run that its profiler slows least."""
    order = {"none": 0, "nsys": 1, "torch": 2}
    points: dict[int, float] = {}
    for item, value in sorted(
        zip(runs, values, strict=True), key=lambda pair: order.get(pair[0].run.profiler, 3)
    ):
        if item.run.batch_size is not None and value is not None:
            points.setdefault(item.run.batch_size, value)
    return points


def _chart(
    name: str, title: str, lines: Sequence[Line], show: Callable[[float], str], note: str
) -> Chart | None:
    """A line is named after its model, and after its quantity where lines differ in it."""
    kept = [line for line in lines if len(line[2]) > 1]
    if not kept:
        return None
    kinds = {what for _, what, _ in kept}
    if len(kinds) == 1 and title != "Host cores busy":
        title += f" ({next(iter(kinds))})"
    series = []
    for number, (model, what, points) in enumerate(kept):
        label = ", ".join(
            part for part in (model, what if len(kinds) > 1 or not model else "") if part
        )
        batches = tuple(sorted(points))
        series.append(
            Series(label, batches, tuple(points[batch] for batch in batches), colour=number)
        )
    said = "; ".join(
        f"{line.label} batch {batch}: {show(value)}"
        for line in series
        for batch, value in zip(line.batches, line.values, strict=True)
    )
    up = title.partition(" (")[0].lower()
    svg = against_batch(name, f"{title} over batch size. {said}", series, show, up=up)
    return Chart(f"{title}, by batch size", svg, note)
