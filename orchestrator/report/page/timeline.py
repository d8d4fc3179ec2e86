"""Everything that a run recorded on a clock, as tracks: host ranges by thread, ranges on the GPU,
kernels and copies by stream; and where the time of a step goes, as an icicle: step, layers by their
dotted names, direction, kernels.

Numbers travel as LEB128 integers in base64, names once each: about 9 bytes a bar, so that 100,000
kernels take 0.9 MB.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, count
from statistics import fmean, median
from typing import Any, NamedTuple

from perfctl.orchestrator.counts.kernels.names import recognise_kernel
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.ledger import OUTSIDE
from perfctl.orchestrator.ledger.prepared import PreparedBatch, PreparedRun
from perfctl.orchestrator.ledger.timing import TimeSpread
from perfctl.orchestrator.ledger.usage.counters import (
    compute_median_sample_period_ns,
    convert_counter_samples_to_rates,
    get_counter_display_unit,
)
from perfctl.orchestrator.ledger.usage.intervals import (
    Timed,
    get_end_ns,
    get_start_ns,
    has_start_and_duration,
)
from perfctl.orchestrator.ledger.usage.run_usage import project_ranges_on_gpus
from perfctl.orchestrator.report.charts.charts import Colours
from perfctl.orchestrator.report.charts.study import list_counters_to_chart
from perfctl.orchestrator.report.ledger import build_row_evidence_trail_key
from perfctl.orchestrator.report.numbers import format_bytes, format_time
from perfctl.orchestrator.report.tables import (
    JsonObject,
    ShortNames,
    encode_integers_as_base64,
    run_label,
)
from perfctl.orchestrator.statistics import group_by
from perfctl.records.report import Kernel, Range
from perfctl.records.run import Run, format_sweep_point

MOST = 250_000
"""Bars of all runs of a study together; beyond it, a view ends early, and says so."""
CALLS_MAX = 20_000
"""Operators and synchronizing calls of a run, the longest."""
COUNTERS_MAX = 6
"""Hardware counters of a run that are drawn, those of SM, tensor cores and DRAM first."""
LANES = 16
"""Rows of a track; bars nested deeper are left out and counted."""
NEARLY_ALL = 0.8
"""A view that would open on more of the recording than this opens on all of it."""
OTHER, NO_LAYER = 7, 8
"""Numbers of colors."""

_Place = tuple[str, str | None]
"""Layer and direction; the layer is "" for the optimizer's own work."""
KERNELS_MAX = 8
"""Kernels below one layer and direction; the others are one part."""
FAMILIES = 30
"""Kernels below one family, where no layer is known."""
UNKNOWN = "not attributed"


class TimelineBar(NamedTuple):
    """One thing that took time on a track."""

    start: int
    length: int
    name: str
    place: _Place | None
    text: str = ""
    range: int | None = None
    """``Range.number`` of the range itself, or of the one that launched it."""
    height: int = 100
    """Of a counter: percent of the scale."""

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(slots=True)
class _TimelineTrack:
    title: str
    kind: str
    """range, gpu (a range on the GPU's time line), kernel, copy or counter."""
    device: int | None
    bars: list[TimelineBar]
    lanes: list[int] = field(default_factory=list)
    """Row of each bar."""


KeyNumbers = defaultdict[Any, int]
"""Name, text or place -> its number in a view; a new key gets the next."""


def find_time_origin(run: Run) -> int:
    """Return when the first event of a run was recorded: times on the page count from there."""
    report = run.report
    timed: Iterable[Timed] = chain(report.ranges, report.kernels, report.copies, report.op_calls)
    starts = [item.start_ns for item in timed if item.start_ns is not None]
    return min([*starts, *(sample.at_ns for sample in report.counter_samples)], default=0)


def build_timelines(
    runs: Sequence[Run], colours: Colours, short_names: ShortNames
) -> tuple[JsonObject, ...]:
    """Return a view for each run with start times, in order; ncu has none (it runs kernels one by
    one, many times each).

    ``short_names``: kernel names of the report. A view has the complete names of those that are
    shortened, for the hover.
    """
    timed = [run for run in runs if run.profiler != "ncu"]
    every = [
        (
            run,
            [
                *_make_host_thread_tracks(run),
                *_make_gpu_projected_range_tracks(run),
                *_make_stream_tracks(run, short_names),
                *_make_counter_tracks(run),
            ],
        )
        for run in timed
    ]
    tracks_of = [(run, tracks) for run, tracks in every if tracks]
    times: dict[str, float] = defaultdict(float)
    for kernel in (kernel for run in runs for kernel in run.report.kernels if not colours):
        times[short_names.get(kernel.name, kernel.name)] += kernel.duration_ns or 0
    # if no layer has a colour, the names that take most time have one
    names = sorted(times, key=lambda name: -times[name])[:OTHER]
    hues = {name: number for number, name in enumerate(names)}
    complete = {brief: name[:1000] for name, brief in short_names.items() if brief != name}
    room = MOST // max(len(tracks_of), 1)
    return tuple(
        _build_timeline(run, tracks, room, colours, hues, complete) for run, tracks in tracks_of
    )


def _build_timeline(
    run: Run,
    tracks: Sequence[_TimelineTrack],
    max_bars: int,
    colours: Colours,
    kernel_colours: Colours,
    full_names_by_short: ShortNames,
) -> JsonObject:
    opened, part_name = _find_initial_view_span_and_name(run)
    notes = [
        _drop_bars_over_limit(tracks, max_bars, opened[0] if opened else 0),
        *map(_assign_lanes_and_drop_deep_bars, tracks),
    ]
    if len(tuple(run.report.op_calls)) == CALLS_MAX:
        notes.append(f"of operators and calls, only the {CALLS_MAX:,} longest are drawn")
    if untimed := sum(not has_start_and_duration(kernel) for kernel in run.report.kernels):
        notes.append(f"{untimed:,} kernels without start or duration are not drawn")
    bars = [bar for track in tracks for bar in track.bars]
    begin, end = find_time_origin(run), max(bar.end for bar in bars)
    if opened is None or opened[1] - opened[0] > NEARLY_ALL * (end - begin):
        opened, part_name = (begin, end), "all of it"
    names, texts, places = (KeyNumbers(count(1).__next__, {first: 0}) for first in ("", "", None))
    ranges = [bar.range for track in tracks if track.kind == "range" for bar in track.bars]
    of_range = {number: index for index, number in enumerate(ranges, 1)}
    packed = [_pack_track(track, begin, names, texts, places, of_range) for track in tracks]
    of_place = [
        NO_LAYER
        if layer_pass is None
        else colours.get(layer_pass[0] or "optimizer", OTHER if layer_pass[0] else NO_LAYER)
        for layer_pass in places
    ]
    layers = {layer_pass[0] or "optimizer" for layer_pass in places if layer_pass}
    legend: list[Any] = [
        (number, layer, layer) for layer, number in colours.items() if layer in layers
    ]
    other_name, has_others = "other layers", OTHER in of_place
    if kernel_colours:
        legend = [(number, name, None) for name, number in kernel_colours.items() if name in names]
        has_others = len({kernel.name for kernel in run.report.kernels}) > len(legend)
        other_name = "other kernels"
    return {
        "label": run_label(run),
        "length": end - begin,
        "open": [opened[0] - begin, opened[1] - begin],
        "opened": part_name,
        "notes": list(filter(None, notes)),
        "tracks": packed,
        "names": list(names),
        "texts": list(texts),
        "places": [list(layer_pass or ("", None)) for layer_pass in places],
        "colours": of_place,
        "hues": {names[name]: number for name, number in kernel_colours.items() if name in names},
        "legend": [*legend, *[(OTHER, other_name, None)] * has_others],
        "whole": {brief: name for brief, name in full_names_by_short.items() if brief in names},
    }


def _drop_bars_over_limit(
    tracks: Sequence[_TimelineTrack], max_bars: int, begin_ns: int
) -> str | None:
    """Leave the bars from ``begin_ns`` on for which there is room, if there is none for all; a
    sentence about the others."""
    total = sum(len(track.bars) for track in tracks)
    if total <= max_bars:
        return None
    starts = sorted(bar.start for track in tracks for bar in track.bars if bar.end >= begin_ns)
    end = starts[min(max_bars, len(starts) - 1)]
    for track in tracks:
        track.bars = [bar for bar in track.bars if bar.end >= begin_ns and bar.start <= end]
    drawn = sum(len(track.bars) for track in tracks)
    return (
        f"the drawing has {drawn:,} of {total:,} bars, those in {format_time(end - begin_ns)}, to "
        "limit the file size; 'perfctl trace RUN --whole' has all"
    )


def _find_initial_view_span_and_name(run: Run) -> tuple[tuple[int, int] | None, str]:
    """Return (the part that a view shows first, its name): a step of median length, or from the
    first kernel to the last."""
    steps = [
        item
        for item in run.report.ranges
        if item.step is not None
        and item.name.startswith("perfctl:step:")
        and has_start_and_duration(item)
    ]
    timed = [kernel for kernel in run.report.kernels if has_start_and_duration(kernel)]
    if steps:
        middle = median(item.duration_ns or 0 for item in steps)
        step = min(steps, key=lambda item: (abs((item.duration_ns or 0) - middle), item.start_ns))
        kernels = [kernel for kernel in timed if kernel.step == step.step]
        among = f", of median length among {len(steps)}" if len(steps) > 1 else ""
        end = max(get_end_ns(step), *map(get_end_ns, kernels), 0)
        return (step.start_ns, end), f"step {step.step}{among}"
    part_name = "the time from the first kernel to the end of the last"
    if numbers := sorted({kernel.step for kernel in timed if kernel.step is not None}):
        middle_step = numbers[len(numbers) // 2]
        timed = [kernel for kernel in timed if kernel.step == middle_step]
        part_name = f"the kernels of step {middle_step}"
    span = (min(map(get_start_ns, timed)), max(map(get_end_ns, timed))) if timed else None
    return span, part_name


def _make_host_thread_tracks(run: Run) -> Iterator[_TimelineTrack]:
    """Yield a track for each thread of the host: its ranges, operators and synchronizing calls,
    which enclose each other."""
    threads = defaultdict(list)
    for item in run.report.ranges:
        if item.duration_ns is not None:
            domain = "" if item.domain is None else f"domain {item.domain}"
            bar = TimelineBar(
                item.start_ns,
                item.duration_ns,
                _format_range_name(item),
                _get_layer_and_direction(item),
                domain,
                item.number,
            )
            threads[item.thread].append(bar)
    # of some reports a range is the operator
    ranges = {(item.thread, item.start_ns) for item in run.report.ranges}
    calls = [
        call
        for call in run.report.op_calls
        if has_start_and_duration(call) and (call.thread, call.start_ns) not in ranges
    ]
    for call in calls:
        row_key = None if call.layer is None else (call.layer, call.direction)
        bar = TimelineBar(get_start_ns(call), call.duration_ns or 0, call.name[:1000], row_key)
        threads[call.thread].append(bar)
    kinds = [name for name, rows in (("ranges", ranges), ("calls", calls)) if rows]
    for number, bars in enumerate(
        sorted(threads.values(), key=lambda bars: min(bar.start for bar in bars)), 1
    ):
        title = f"host {' and '.join(kinds)}"
        title = title if len(threads) == 1 else f"{title}, thread {number}"
        yield _TimelineTrack(title, "range", None, bars)


def _make_gpu_projected_range_tracks(run: Run) -> Iterator[_TimelineTrack]:
    devices = defaultdict(list)
    for projection in project_ranges_on_gpus(run):
        item, length = projection.range, projection.end_ns - projection.start_ns
        text = (
            "" if item.gpu_ns is None else f"its kernels and copies took {format_time(item.gpu_ns)}"
        )
        devices[projection.device].append(
            TimelineBar(
                projection.start_ns,
                length,
                _format_range_name(item),
                _get_layer_and_direction(item),
                text,
                item.number,
            )
        )
    for device, bars in sorted(devices.items()):
        on = f"GPU {device}" if len(devices) > 1 else "the GPU"
        yield _TimelineTrack(
            f"ranges projected to {on}: first to last kernel launched inside", "gpu", device, bars
        )


def _make_stream_tracks(run: Run, short_names: ShortNames) -> Iterator[_TimelineTrack]:
    streams = defaultdict(list)
    for kernel in (kernel for kernel in run.report.kernels if has_start_and_duration(kernel)):
        shapes = (
            ("grid", format_sides(kernel.grid_x, kernel.grid_y, kernel.grid_z)),
            ("block", format_sides(kernel.block_x, kernel.block_y, kernel.block_z)),
        )
        bar = TimelineBar(
            get_start_ns(kernel),
            round(kernel.duration_ns or 0),
            short_names.get(kernel.name, kernel.name)[:1000],
            _get_layer_and_direction(kernel),
            "; ".join(f"{name} {shape}" for name, shape in shapes if shape),
            kernel.range_number,
        )
        stream = -1 if kernel.stream is None else kernel.stream
        streams["kernel", kernel.device_index or 0, stream].append(bar)
    for copy in run.report.copies:
        if has_start_and_duration(copy):
            moved = format_bytes(copy.bytes) if copy.bytes is not None else "size not recorded"
            start, length = get_start_ns(copy), copy.duration_ns or 0
            bar = TimelineBar(start, length, f"copy {copy.kind}", None, moved)
            stream = -1 if copy.stream is None else copy.stream
            streams["copy", copy.device_index or 0, stream].append(bar)
    has_several = len({device for _, device, _ in streams}) > 1
    ordered = sorted(streams.items(), key=lambda item: (item[0][0] == "copy", *item[0][1:]))
    for (kind, device, stream), bars in ordered:
        name = "kernels" if kind == "kernel" else "copies"
        gpu = f"GPU {device} " if has_several else ""
        number = stream if stream >= 0 else "not recorded"
        yield _TimelineTrack(f"{name}, {gpu}stream {number}", kind, device, bars)


def _make_counter_tracks(run: Run) -> Iterator[_TimelineTrack]:
    """Yield a track for each sampled hardware counter of each GPU; a bar is as high as its sample
    on a scale to 100%, or to the largest sample."""
    groups = group_by(run.report.counter_samples, lambda item: (item.name, item.device_index))
    counters = list_counters_to_chart([run])
    for (name, device), samples in groups.items():
        period, points = (
            compute_median_sample_period_ns(samples),
            convert_counter_samples_to_rates(samples),
        )
        if name not in list(counters)[:COUNTERS_MAX] or period is None or not points:
            continue
        _, _, show = counters[name]
        unit, largest = get_counter_display_unit(samples[0]), max(value for _, value in points)
        scale = 100 if unit == "%" else largest
        percent = (scale or 1) / 100
        bars = [
            TimelineBar(
                begin, round(period), name, None, show(value), height=round(value / percent)
            )
            for begin, value in points
        ]
        yield _TimelineTrack(
            f"{name}, GPU {device or 0}, up to {show(scale)}", "counter", device, bars
        )


@lru_cache(maxsize=4096)
def format_sides(x: int | None, y: int | None, z: int | None) -> str | None:
    """Return "18×256", without trailing sides of 1; None if not even x is known."""
    sides = (x, y, z) if z not in (None, 1) else (x, y) if y not in (None, 1) else (x,)
    return None if x is None else "×".join(map(str, sides))


def _format_range_name(item: Range) -> str:
    """perfctl's own names in words ("conv1 forward", "step 3"), those of others as they are
    ("aten::add")."""
    is_own = item.name.startswith("perfctl:") or item.name == f"{item.layer}:{item.direction}"
    return (item.name.removeprefix("perfctl:").replace(":", " ") if is_own else item.name)[:1000]


def _get_layer_and_direction(item: Kernel | Range) -> _Place | None:
    if item.layer is not None:
        return item.layer, item.direction
    working = item.direction == "optimizer" or (
        isinstance(item, Range) and item.name == "perfctl:phase:optimizer"
    )
    return ("", "optimizer") if working else None


def _assign_lanes_and_drop_deep_bars(track: _TimelineTrack) -> str | None:
    """Put the bars in order, outer before inner, each on its row; a sentence about those below the
    last row."""
    track.bars.sort(key=lambda bar: (bar.start, -bar.length))
    ends: list[int] = []
    drawn = []
    for bar in track.bars:
        lane = next((index for index, end in enumerate(ends) if end <= bar.start), len(ends))
        if lane < LANES:
            ends[lane : lane + 1] = [bar.end]
            track.lanes.append(lane)
            drawn.append(bar)
    omitted, track.bars = len(track.bars) - len(drawn), drawn
    return f"{track.title}: {omitted:,} bars below row {LANES} are omitted" if omitted else None


def _pack_track(
    track: _TimelineTrack,
    begin_ns: int,
    name_numbers: KeyNumbers,
    text_numbers: KeyNumbers,
    layer_pass_numbers: KeyNumbers,
    range_indices: Mapping[int | None, int],
) -> JsonObject:
    """s start (differences), d length, n name, t text, y place, l row, h height, r range, from 1
    (differences)."""
    bars = track.bars
    ranges = [0 if bar.range is None else range_indices.get(bar.range, 0) for bar in bars]
    return {
        "title": track.title,
        "kind": track.kind,
        "device": track.device,
        "lanes": max(track.lanes, default=0) + 1,
        "count": len(bars),
        "s": encode_integers_as_base64([bar.start - begin_ns for bar in bars], as_differences=True),
        "d": encode_integers_as_base64([bar.length for bar in bars]),
        "n": encode_integers_as_base64([name_numbers[bar.name] for bar in bars]),
        "t": encode_integers_as_base64([text_numbers[bar.text] for bar in bars]),
        "y": encode_integers_as_base64([layer_pass_numbers[bar.place] for bar in bars]),
        "l": encode_integers_as_base64(track.lanes),
        "h": encode_integers_as_base64([bar.height for bar in bars])
        if track.kind == "counter"
        else "",
        "r": ""
        if track.kind == "range"
        else encode_integers_as_base64(ranges, as_differences=True),
    }


@dataclass(slots=True)
class IcicleNode:
    """One part of the time; its children take at most as long."""

    name: str
    colour: int = OTHER
    own: float = 0.0
    """Nanoseconds a step that belong to no child."""
    trail: str = ""
    layer: str = ""
    """Dotted path of the layer or of the group of layers that it is; "" for what is of none, or of
    its parent's."""
    direction: str = ""
    children: dict[str, IcicleNode] = field(default_factory=dict)

    def get_or_add_child(self, name: str) -> IcicleNode:
        return self.children.setdefault(name, IcicleNode(name))

    @property
    def total(self) -> float:
        return self.own + sum(child.total for child in self.children.values())


def build_time_breakdown_icicles(analysis: Analysis, colours: Colours) -> tuple[JsonObject, ...]:
    """Return one view for each batch size whose layers were timed; for reports without layers, one
    a run by kernel family.

    A view: ``label``, ``basis``, and lists with one entry a node, parents before children:
    ``name``, ``parent`` (its index, -1 for the root), ``value`` (nanoseconds a step), ``colour``,
    ``trail`` (key of the ledger row, "" where there is none), ``layer`` and ``direction`` ("" where
    they are its parent's, or it has none).
    """
    batches = [
        batch
        for batch in analysis.study.prepared_batches
        if batch.layer_times and batch.layer_times.rows
    ]
    if batches:
        return tuple(_build_layer_icicle(batch, colours, analysis.names) for batch in batches)
    timed = [
        run
        for run in analysis.study.prepared_runs
        if run.run.profiler != "ncu"
        and any(kernel.duration_ns is not None for kernel in run.run.report.kernels)
    ]
    return tuple(_build_kernel_family_icicle(run, analysis.names) for run in timed)


def _build_layer_icicle(batch: PreparedBatch, colours: Colours, names: ShortNames) -> JsonObject:
    times, timing = batch.layer_times, batch.timing_run
    assert times is not None and timing is not None
    total = times.total
    # the step of median time; of an even number the two whose mean is the median
    ordered = sorted(range(total.count), key=total.values.__getitem__)
    middle = ordered[(total.count - 1) // 2 : total.count // 2 + 1]
    step = "the median step" if total.over == 1 else "a mean step"
    root = IcicleNode(times.whole.replace("of all steps", f"of {step}"))
    launches = timing.measured_launches if times.basis.startswith("kernels") else ()
    steps = timing.step_count or 1
    if timing.has_numbered_steps:  # the values are in the order in which the steps begin
        numbers = dict.fromkeys(
            kernel.step for kernel, _ in launches if kernel.duration_ns is not None
        )
        chosen = [number for index, number in enumerate(numbers) if index in middle]
        launches = [launch for launch in launches if launch[0].step in chosen]
        steps = len(middle)
    by_key = group_by(launches, lambda launch: launch[1])
    patterns = {call.layer for call in batch.user_formula_work.calls}
    for (layer, direction), spent in times.rows.items():
        path = layer or ("optimizer" if direction == "optimizer" else OUTSIDE)
        node = root
        for part in path.split(".") if layer and " " not in layer else [path]:
            above = node.layer
            node = node.get_or_add_child(part)
            node.layer = f"{above}.{part}" if above else part
        if path != direction and path not in patterns:
            node = node.get_or_add_child(direction)
            node.direction = direction
        node.trail = build_row_evidence_trail_key(path, direction, batch.batch)
        kernels = (kernel for kernel, _ in by_key.get((layer, direction), ()))
        _add_longest_kernel_nodes(
            node,
            _average_selected_steps_ns(spent, middle),
            _sum_kernel_ns_per_step(kernels, names, steps),
        )
    if (unknown := _average_selected_steps_ns(times.unattributed, middle)) > 0:
        root.get_or_add_child(UNKNOWN).own += unknown
    _colour_children(root, colours)
    label = format_sweep_point(batch.batch)
    among = {1: "1 step"}.get(total.count, f"the step of median time among {total.count}")
    among = among if total.over == 1 else f"mean of {total.over} steps"
    return _convert_icicle_to_columns(root, label, f"{times.basis}; {among}")


def _average_selected_steps_ns(spread: TimeSpread, step_indices: Sequence[int]) -> float:
    return fmean(spread.values[step] for step in step_indices)


def _build_kernel_family_icicle(prepared: PreparedRun, names: ShortNames) -> JsonObject:
    root = IcicleNode("kernel time")
    families = group_by(
        prepared.run.report.kernels,
        lambda kernel: recognise_kernel(kernel.name).family or "other kernels",
    )
    for family, kernels in families.items():
        if times := _sum_kernel_ns_per_step(kernels, names):
            _add_longest_kernel_nodes(
                root.get_or_add_child(family), sum(times.values()), times, FAMILIES
            )
    _colour_children(root, {})
    return _convert_icicle_to_columns(
        root, run_label(prepared.run), "sums over all launches of the report"
    )


def _sum_kernel_ns_per_step(
    kernels: Iterable[Kernel], names: ShortNames, step_count: int = 1
) -> dict[str, float]:
    """Return kernel -> nanoseconds a step."""
    times: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        if kernel.duration_ns is not None:
            times[names.get(kernel.name, kernel.name)] += kernel.duration_ns / step_count
    return times


def _colour_children(root: IcicleNode, colours: Colours) -> None:
    """The parts of a step in the colours of the other charts; where they have none, the longest
    seven in one each."""
    ordered = sorted(root.children.values(), key=lambda node: -node.total)
    has_colours = any(node.name in colours for node in ordered)
    for number, node in enumerate(ordered):
        colour = colours.get(node.name, OTHER) if has_colours else min(number, OTHER)
        _colour_subtree(node, NO_LAYER if node.name == UNKNOWN else colour)


def _colour_subtree(node: IcicleNode, colour: int) -> None:
    node.colour = colour
    for child in node.children.values():
        _colour_subtree(child, colour)


def _add_longest_kernel_nodes(
    node: IcicleNode,
    total_ns: float,
    ns_by_kernel: Mapping[str, float],
    max_kernels: int = KERNELS_MAX,
) -> None:
    """Kernels below a node, the longest first; time that is no kernel's stays the node's own."""
    ordered = sorted(ns_by_kernel.items(), key=lambda pair: -pair[1])
    for name, spent in ordered[:max_kernels]:
        node.get_or_add_child(name).own += spent
    if remaining := ordered[max_kernels:]:
        node.get_or_add_child(f"{len(remaining)} other kernels").own += sum(
            spent for _, spent in remaining
        )
    node.own += max(total_ns - sum(ns_by_kernel.values()), 0.0)


def _convert_icicle_to_columns(root: IcicleNode, label: str, basis: str) -> JsonObject:
    rows: list[tuple[Any, ...]] = []

    def add_node(node: IcicleNode, parent: int) -> None:
        index = len(rows)
        attributes = (node.colour, node.trail, node.layer, node.direction)
        rows.append((node.name[:300], parent, round(node.total), *attributes))
        for child in sorted(node.children.values(), key=lambda child: -child.total):
            add_node(child, index)

    add_node(root, -1)
    names = ("name", "parent", "value", "colour", "trail", "layer", "direction")
    columns = map(list, zip(*rows, strict=True))
    return {"label": label, "basis": basis} | dict(zip(names, columns, strict=True))
