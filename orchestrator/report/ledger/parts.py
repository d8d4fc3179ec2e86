"""The parts of one study side by side: which GPU each ran on, what its variants have, and times of
the CPU timer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from perfctl.orchestrator.counts.hardware.peaks import MIB, SeenGpu, fastest, seen_gpu
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.causes.window_rules import Window
from perfctl.orchestrator.ledger.prepared import Study
from perfctl.orchestrator.ledger.timing import HostTime, host_times, macs_of
from perfctl.orchestrator.report.numbers import full, ratio, short, si
from perfctl.orchestrator.report.page.about import device_text, tools
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    amount,
    count,
    listing,
    nothing,
    text_cell,
    time_cell,
)
from perfctl.records.paper import LayerCall
from perfctl.records.run import Run

MOST_VARIANTS, MOST_LAYERS = 4, 12
"""More variants, or variants with more layers that have parameters, are not set side by side."""
NOT_SAID = "not recorded"


def parts_table(parts: Sequence[Study]) -> Table | None:
    """A row a part, with its device; None where all are on the same."""
    if len({device_text(study) for study in parts}) < 2:
        return None
    columns = [
        Column("part", style="text"),
        Column("device", style="text"),
        Column("memory of the GPU", "MiB"),
        Column("tools", style="text"),
        Column("batch", style="text"),
    ]
    rows = []
    for study in parts:
        gpu = _gpu(study)
        memory = gpu.memory_bytes if gpu else None
        named = next(
            (device.name for run in study.runs for device in run.devices if device.name), None
        )
        rows.append(
            [
                text_cell(_part(study)),
                text_cell(named) if named else nothing("not recorded"),
                count(memory // MIB if memory else None, NOT_SAID),
                tools(study.runs),
                " ".join(map(str, study.batches)),
            ]
        )
    return listing("Parts, each with its device", columns, rows, tools=False)


def _gpu(study: Study) -> SeenGpu | None:
    return next((gpu for run in study.runs if (gpu := seen_gpu(run)) is not None), None)


def _part(study: Study) -> str:
    return study.variant or "by default"


def variants_table(found: Analysis) -> Table | None:
    """Parameters, multiply-adds, accuracy and times of up to four variants of one network, a
    column each.

    Each variant's figures are those of its runs at the batch size that all of them have. None for
    one variant, for networks of many or of different layers, and without such a batch size.
    """
    by_variant: dict[str | None, list[Run]] = {}
    for study in found.parts:
        by_variant.setdefault(study.variant, []).extend(study.runs)
    if not 2 <= len(by_variant) <= MOST_VARIANTS:
        return None
    common = set.intersection(
        *({run.batch_size for run in runs if run.layer_calls} for runs in by_variant.values())
    )
    batch = min((size for size in common if size is not None), default=None)
    if batch is None:
        return None
    runs = {
        variant: [run for run in every if run.batch_size == batch]
        for variant, every in by_variant.items()
    }
    calls = {
        variant: _forward(next(run for run in same if run.layer_calls))
        for variant, same in runs.items()
    }
    layers = [
        tuple(call.layer for call in forward if call.parameters) for forward in calls.values()
    ]
    if len(set(layers)) > 1 or not 0 < len(layers[0]) <= MOST_LAYERS:
        return None
    columns = [
        Column("figure", style="text"),
        *(Column(variant or "by default") for variant in runs),
    ]
    weights = _weights(layers[0], runs)
    refused = any(item.rule == "more work in less time" for item in found.judgement.sweep)
    rows = [*weights, *_on_paper(layers[0], calls), *_results(runs, refused)]
    made = listing(f"Variants side by side, batch {batch}", columns, rows, tools=False)
    if made is None:
        return None
    said = ["MAC: multiply-adds of the batch."]
    said += ["Time: CPU timer."] if any(any(host_times(same)) for same in runs.values()) else []
    said += ["Refused: the times cannot be compared (see the findings)."] if refused else []
    return replace(made, notes=(*made.notes, *said))


def _weights(
    layers: Iterable[str], runs: Mapping[str | None, Sequence[Run]]
) -> Iterator[list[Cell]]:
    """Shapes of the weights, of layers whose weights are not the same in every variant."""
    for layer in layers:
        shapes = [_weight(layer, found) for found in runs.values()]
        if len(set(shapes)) > 1 and None not in shapes:
            yield [text_cell(f"{layer} weights"), *map(text_cell, shapes)]


def _weight(layer: str, runs: Sequence[Run]) -> str | None:
    """ "64 x 32 x 3 x 3" of a convolution."""
    ops = (
        op
        for run in runs
        for op in run.report.ops
        if op.layer == layer and op.op == "aten.convolution"
    )
    shapes = (op.inputs[1] for op in ops if len(op.inputs) > 1)
    return next((" x ".join(map(str, shape)) for shape in shapes if shape), None)


def _forward(run: Run) -> tuple[LayerCall, ...]:
    return tuple(call for call in run.layer_calls if call.direction == "forward")


def _on_paper(
    layers: Iterable[str], calls: Mapping[str | None, Sequence[LayerCall]]
) -> Iterator[list[Cell]]:
    def row(name: str, value: Callable[[LayerCall], int | None], layer: str | None) -> list[Cell]:
        cells = []
        for found in calls.values():
            values = [value(call) for call in found if layer is None or call.layer == layer]
            known = None if None in values else sum(one or 0 for one in values)
            cells.append(count(known, "no estimate"))
        return [text_cell(name), *cells]

    for layer in layers:
        yield row(f"{layer} parameters", lambda call: call.parameters, layer)
    yield row("all parameters", lambda call: call.parameters, None)
    for layer in layers:
        yield row(f"{layer} forward, MAC", lambda call: call.macs, layer)
    yield row("all forward, MAC", lambda call: call.macs, None)


def _results(runs: Mapping[str | None, Sequence[Run]], refused: bool) -> Iterator[list[Cell]]:
    """Accuracy and times; a row that no variant has is left out."""
    accuracies = [accuracy(found) for found in runs.values()]
    if any(value is not None for value in accuracies):
        cells = [
            nothing(NOT_SAID) if one is None else Cell(f"{one * 100:.2f}%", value=one)
            for one in accuracies
        ]
        yield [text_cell("last accuracy"), *cells]
    places = dict.fromkeys(
        (one.layer, one.direction) for found in runs.values() for one in host_times(found)
    )
    for place in places:
        own = [_own(place, found) for found in runs.values()]
        gpus = [seen_gpu(one.run) if one else None for one in own]
        yield [text_cell(f"{' '.join(place)}, time"), *map(_clock, own)]
        yield [
            text_cell("time / time of the first variant"),
            *(_against(one, own[0], refused) for one in own),
        ]
        yield [text_cell("FLOP/s from this time"), *map(_rate, own)]
        yield [text_cell("GPU of this time"), *map(_gpu_cell, gpus)]


def _clock(one: HostTime | None) -> Cell:
    """With four digits, as such times are read: "0.1746 ms"."""
    if one is None:
        return nothing(NOT_SAID)
    return Cell(
        f"{one.nanoseconds / 1e6:.4g} ms", full(one.nanoseconds, "ns"), value=one.nanoseconds
    )


def _against(one: HostTime | None, first: HostTime | None, refused: bool) -> Cell:
    if one is None or first is None or not first.nanoseconds:
        return nothing("one of the two times is unknown")
    share = one.nanoseconds / first.nanoseconds
    if refused and one is not first:
        return Cell("refused", f"{ratio(share)}, but these times cannot be compared", "refused")
    return Cell(ratio(share), full(share), value=share)


def _rate(one: HostTime | None) -> Cell:
    rate = one.flops_per_s if one else None
    if rate is None:
        return nothing("no time, or no estimate")
    return Cell(si(rate, "FLOP/s"), full(rate, "FLOP/s"), value=rate)


def _gpu_cell(gpu: SeenGpu | None) -> Cell:
    """Its name; of one without a name its memory."""
    if gpu is None:
        return nothing(NOT_SAID)
    memory = f"{gpu.memory_bytes // MIB:,} MiB" if gpu.memory_bytes else None
    return text_cell(gpu.name or memory or gpu, str(gpu))


def accuracy(runs: Sequence[Run]) -> float | None:
    """Share (0..1) of right answers in the last test; None without one."""
    tests = [
        step
        for run in runs
        for step in run.report.steps
        if step.phase == "test" and step.accuracy is not None
    ]
    return max(tests, key=lambda step: step.number).accuracy if tests else None


def _own(place: tuple[str, str], runs: Sequence[Run]) -> HostTime | None:
    """The time that the run with the variant's results read; else any."""
    found = [one for one in host_times(runs) if (one.layer, one.direction) == place]
    return max(found, key=lambda one: (accuracy([one.run]) is not None, one.run.id), default=None)


def times_table(found: Analysis) -> Table | None:
    """Every time of the CPU timer beside the least that a kernel needs, by the peak of the
    fastest GPU it may mean."""
    columns = [
        Column("layer", style="text"),
        Column("batch"),
        Column("MAC", note="estimated multiply-adds; 1 multiply-add = 2 FLOPs"),
        Column("CPU timer", base="ns"),
        Column(
            "minimum",
            base="ns",
            note="estimated FLOPs / peak: the minimum time of a kernel that executes the "
            "estimated FLOPs",
        ),
        Column("time / minimum", note="below 1, the timer cannot have measured such a kernel"),
        Column("GPU", is_optional=True, style="text"),
    ]
    rows: list[list[Cell]] = []
    peaks: dict[str, float] = {}
    for study in found.parts:
        times = host_times(study.runs)
        for one in sorted(
            times, key=lambda one: (one.layer, one.direction, one.run.batch_size or 0)
        ):
            named = f"{one.layer} {one.direction}"
            name = f"{named}, {study.variant}" if study.variant else named
            rows.append(_clock_row(name, one.run, one.macs, one.nanoseconds, study, peaks))
        window = found.judgement.window
        if study is found.study and window is not None:
            rows += _seen_rows(study, window, peaks)
    made = listing(
        "CPU-timer times, and the minimum at peak FLOP/s",
        columns,
        rows,
    )
    notes = tuple(f"{name}: {short(si(rate, 'FLOP/s'))}." for name, rate in peaks.items())
    return None if made is None else replace(made, notes=(*made.notes, *notes))


def _clock_row(
    name: str,
    run: Run,
    macs: int | None,
    nanoseconds: float | None,
    study: Study,
    peaks: dict[str, float],
    batch: int | None = None,
) -> list[Cell]:
    """Return a time beside the least that the peak allows. ``batch``: where it is not the run's."""
    gpu = seen_gpu(run)
    least = _least(macs, gpu, study.precision, peaks)
    share = nothing("no time" if nanoseconds is None else _no_peak(gpu))
    if least is not None and nanoseconds is not None:
        ratio_of = nanoseconds / least
        share = Cell(ratio(ratio_of), full(ratio_of), "bad" if ratio_of < 1 else "", ratio_of)
    return [
        text_cell(name),
        count(batch or run.batch_size, NOT_SAID),
        amount(macs, "", "no estimate"),
        time_cell(nanoseconds, "this batch size has no time"),
        time_cell(least, _no_peak(gpu)),
        share,
        text_cell(gpu) if gpu else nothing(NOT_SAID),
    ]


def _seen_rows(study: Study, window: Window, peaks: dict[str, float]) -> Iterator[list[Cell]]:
    """Yield the batch that the counters saw, where it is none of those that were asked for."""
    if window.batch is None or window.row is None or window.batch in study.batches:
        return
    layer, direction = window.row
    run = next((run for run in study.runs if run.batch_size and macs_of(run, *window.row)), None)
    is_timed = any((one.layer, one.direction) == window.row for one in host_times(study.runs))
    if run is not None and is_timed:
        macs = (macs_of(run, layer, direction) or 0) * window.batch // (run.batch_size or 1)
        name = f"{layer} {direction}, executed"
        yield _clock_row(name, run, macs, None, study, peaks, window.batch)


def _least(
    macs: int | None, gpu: SeenGpu | None, precision: str | None, peaks: dict[str, float]
) -> float | None:
    """Nanoseconds at the peak; the GPU's sentence goes into ``peaks``."""
    best = fastest(gpu, precision)
    if best is None or gpu is None or not macs:
        return None
    product, rate = best
    peaks[f"Peak of {gpu}, assumed to be a {product.name}, the fastest candidate"] = rate
    return 2 * macs / rate * 1e9


def _no_peak(gpu: SeenGpu | None) -> str:
    return (
        "not recorded which GPU it was"
        if gpu is None or not gpu.name
        else f"the device table has no peak of {gpu.name}"
    )
