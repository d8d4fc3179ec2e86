"""Quantities that a gate compares: estimates for a model, and of recorded runs the counts of a step
and how long each session took.

FLOPs: 1 multiply-add = 2.
Counts are held only where all repeats agree. Where nothing says how many steps a report has, they
are of the whole report.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

from perfctl.orchestrator.compare.gate import (
    SETUP,
    TIME,
    MeasuredQuantities,
    QuantityPlace,
    Value,
    Values,
)
from perfctl.orchestrator.compare.quantities import (
    KERNEL_TIME,
    LAUNCHES,
    PEAK_MEMORY,
    STEP_TIME,
    UNATTRIBUTED,
    observe_memory_and_launches,
    observe_times,
)
from perfctl.orchestrator.compare.sides import (
    FACTS,
    explain_cpu_contention,
    select_newest_repeats_by_profiler,
)
from perfctl.orchestrator.counts.counters.amd import is_amd_run
from perfctl.orchestrator.estimate.flops.engine import BACKWARD, is_fused_kernel_recomputation
from perfctl.orchestrator.estimate.step import Estimate
from perfctl.orchestrator.ledger.ledger import describe_kernel_method_and_tile
from perfctl.orchestrator.ledger.prepared import (
    DerivedRun,
    PreparedRun,
    Study,
    format_study_heading,
    group_into_studies,
    join_gradients_to_backward,
    split_fused_kernels_between_layers,
)
from perfctl.orchestrator.ledger.timing import rank_profiler_clock
from perfctl.records.paper import LayerCall, OpShape
from perfctl.records.report import Kernel
from perfctl.records.run import Run

_PASSES = ("forward", "backward")
"""Directions whose copies are held: an optimizer copies each gradient once, to begin its
state with."""
Counts = Iterator[tuple[QuantityPlace, str, Value]]
Numbers = Iterator[tuple[QuantityPlace, str, int]]
_NO_MODULE = "(model)"
"""Layer of what no module called."""
_NOT_FACTS = ("batch", "host", "origin", "steps", "threads of the host", "seed", "warmup")
"""Of a run, not of a study; or drawn anew each time."""


def collect_model_quantities(estimates: Mapping[int, Estimate]) -> MeasuredQuantities:
    """Batch size -> one estimated step: the whole, then each layer by direction in the
    network's order."""
    places: dict[QuantityPlace, Values] = {}
    unknown: dict[str, str] = {}
    for batch, estimate in estimates.items():
        places |= _sum_quantities_by_location(
            _list_model_quantities(QuantityPlace(batch=batch), estimate)
        )
        for direction, totals in (("forward", estimate.forward), ("backward", estimate.backward)):
            if totals.missing:
                names = ", ".join(dict.fromkeys(name for name, _ in totals.missing))
                reason = f"no formula for {names}: the gate checks the known part only"
                unknown[f"batch {batch}, FLOPs of {direction}"] = reason
    return MeasuredQuantities(places, unknown)


def _list_model_quantities(base: QuantityPlace, estimate: Estimate) -> Numbers:
    trace, casts = estimate.memory_trace, estimate.casts
    yield base, "parameters", estimate.parameters
    if estimate.memory is not None:
        yield base, "memory_peak", estimate.memory.rounded_peak
    for op in estimate.ops:
        yield base._replace(direction=op.direction), "operations", op.calls
        if trace is not None and op.direction in _PASSES:
            yield base._replace(direction=op.direction), "copied_bytes", 0
    yield base, "cast_bytes", casts.read_bytes + casts.write_bytes
    for allocation in trace.allocations if trace is not None else ():
        if allocation.op == "aten.clone" and allocation.direction in _PASSES:
            for layer in ("", allocation.layer or _NO_MODULE):
                location = base._replace(layer=layer, direction=allocation.direction)
                yield location, "copied_bytes", allocation.bytes
    for location, quantity, value in _list_formula_quantities(base, estimate.calls, _NO_MODULE):
        if value or not location.layer:
            yield location, quantity, value


def _list_formula_quantities(
    base: QuantityPlace, calls: Iterable[LayerCall], label_without_layer: str
) -> Numbers:
    """Yield what the formulas give for each call, of its direction and of its layer."""
    for call in calls:
        if is_fused_kernel_recomputation(call):
            continue
        direction = "backward" if call.direction in BACKWARD else call.direction
        of_direction = base._replace(direction=direction)
        moved = None
        if call.read_bytes is not None and call.write_bytes is not None:
            moved = call.read_bytes + call.write_bytes
        for quantity, value in (
            ("flops", call.flops),
            ("elementwise_flops", call.elementwise_flops),
            ("bytes", moved),
        ):
            if value is not None:
                yield of_direction, quantity, value
                yield (
                    of_direction._replace(layer=call.layer or label_without_layer),
                    quantity,
                    value,
                )


def _sum_quantities_by_location(
    numbers: Iterable[tuple[QuantityPlace, str, int]],
) -> dict[QuantityPlace, Values]:
    counters: dict[QuantityPlace, Counter[str]] = defaultdict(Counter)
    for location, quantity, value in numbers:
        counters[location][quantity] += value
    return {**counters}


def collect_run_quantities(runs: Sequence[Run]) -> MeasuredQuantities:
    """The newest sweep of each study and batch size: its repeats show which counts are exact; its
    median time is one session."""
    places: dict[QuantityPlace, dict[str, Value]] = {}
    unknown: dict[str, str] = {}
    environment: dict[str, dict[str, str]] = {}
    for name, study in _name_studies_uniquely(group_into_studies(runs)):
        environment[name] = _collect_study_environment(study)
        for batch in study.points or (None,):
            base = QuantityPlace(name, batch)
            of_batch = [run for run in study.runs if run.point == batch]
            repeats = select_newest_repeats_by_profiler(of_batch)
            complete = [run for runs in repeats.values() for run in runs]
            if of_batch and not complete:
                reason = of_batch[-1].reason or "no reason was recorded"
                unknown[base.name] = f"the run is {of_batch[-1].status}: {reason}"
            ops = next((run.report.ops for run in complete if run.report.ops), ())
            if any(run.report.counters for run in complete):
                ops = ()
            for profiler in sorted(repeats, key=rank_profiler_clock):
                _add_quantities_equal_in_repeats(base, repeats[profiler], ops, places, unknown)
    return MeasuredQuantities(places, unknown, environment)


def _name_studies_uniquely(studies: Sequence[Study]) -> Iterator[tuple[str, Study]]:
    """Yield each study with its heading; with its device, folder or number where several have one
    heading."""
    headings = Counter(format_study_heading(study) for study in studies)
    uses: Counter[str] = Counter()
    for study in studies:
        name = format_study_heading(study)
        if headings[name] > 1 and study.workload is not None:
            name = f"{name}, {study.device or 'no device'}"
        elif headings[name] > 1 and study.runs[0].artifact:
            name = "/".join(PurePath(study.runs[0].artifact).parts[-2:])
        uses[name] += 1
        yield (f"{name} ({uses[name]})" if uses[name] > 1 else name), study


def _collect_study_environment(study: Study) -> dict[str, str]:
    complete = [run for run in study.runs if run.status == "ok"]
    facts = {
        fact.name: ", ".join(fact.values(complete)) for fact in FACTS if fact.name not in _NOT_FACTS
    }
    if study.is_foreign:
        facts["workload"] = ""
    facts["profilers"] = ", ".join(sorted({run.profiler for run in complete}))
    return {name: text for name, text in facts.items() if text}


def _add_quantities_equal_in_repeats(
    base: QuantityPlace,
    runs: Sequence[Run],
    ops: Sequence[OpShape],
    places: dict[QuantityPlace, dict[str, Value]],
    unknown: dict[str, str],
) -> None:
    """Add the quantities of one profiler's repeats that no profiler before it gave."""
    prepared = join_gradients_to_backward(
        [
            split_fused_kernels_between_layers(
                PreparedRun(run, run.precision if run.workload else None)
            )
            for run in runs
        ]
    )
    counts_of_runs = [
        {
            (location, quantity): value
            for location, quantity, value in _list_run_quantities(base, run, ops, unknown)
        }
        for run in prepared
    ]
    for location, quantity in dict.fromkeys(key for counts in counts_of_runs for key in counts):
        if quantity in places.get(location, {}):
            continue
        first, *other_values = (counts.get((location, quantity)) for counts in counts_of_runs)
        if first is None or any(value != first for value in other_values):
            unknown[f"{location.name}: {quantity}"] = (
                "it differs between repeats, so it is not exact"
            )
            continue
        places.setdefault(location, {})[quantity] = first
    times = [time for run in prepared if (time := _compute_median_step_ns(run)) is not None]
    if TIME in places.get(base, {}) or not times or len(times) < len(prepared):
        return
    if (busy := explain_cpu_contention(runs)) is not None:
        unknown[f"{base.name}: {TIME}"] = busy
    else:
        places.setdefault(base, {})[TIME] = (float(f"{statistics.median(times):.5g}"),)


def _compute_median_step_ns(run: PreparedRun) -> float | None:
    """Return the median of a step in ns; of its kernels where no clock was around the steps."""
    observed = observe_times(run) if run.step_count != 0 else {}
    times = (observed[key] for key in (STEP_TIME, KERNEL_TIME) if key in observed)
    medians = (
        statistics.median(time.values) for time in times if time.trusted and any(time.values)
    )
    return next(medians, None)


def _build_ledger_key_position(base: QuantityPlace, key: tuple[str, str] | None) -> QuantityPlace:
    layer, direction = key or ("", "")
    return base._replace(
        layer=layer or ("" if direction == "optimizer" else UNATTRIBUTED), direction=direction
    )


def _list_run_quantities(
    base: QuantityPlace, item: PreparedRun, ops: Sequence[OpShape], unknown: dict[str, str]
) -> Counts:
    run = item.run
    formulas = _list_formula_quantities(base, run.layer_calls, UNATTRIBUTED)
    numbers = [number for number in formulas if number[-1] != 0]
    for op in run.report.ops:
        numbers.append((base._replace(direction=op.direction), "operations", op.calls))
    for location, sums in _sum_quantities_by_location(numbers).items():
        yield from ((location, quantity, value) for quantity, value in sums.items())
    if item.step_count:
        yield base, "steps", item.step_count
    elif run.report.kernels:
        yield base, SETUP, "counts cover the complete report, whose number of steps is unknown"
    recorded = observe_memory_and_launches(item)
    if LAUNCHES in recorded:
        yield base, "launches", _convert_to_integer_if_integral(recorded[LAUNCHES].values[0])
    yield from _list_kernel_quantities(base, item)
    if run.report.counters:
        yield from _list_executed_flops_and_dram(base, item, "counted", unknown)
    elif ops and run.report.kernels and not is_amd_run(run):  # the rules are of NVIDIA's kernels
        derived_run = DerivedRun(run, item.precision, item.recorded, tuple(ops))
        if any(count.ffma or count.tensor for count in derived_run.instructions_by_launch.values()):
            yield from _list_executed_flops_and_dram(base, derived_run, "derived", unknown)
    if PEAK_MEMORY in recorded:
        yield base, "allocated", _convert_to_integer_if_integral(recorded[PEAK_MEMORY].values[0])


def _list_kernel_quantities(base: QuantityPlace, item: PreparedRun) -> Counts:
    by_place: dict[QuantityPlace, list[Kernel]] = defaultdict(list)
    for kernel, key in item.measured_launches:
        by_place[_build_ledger_key_position(base, key)].append(kernel)
    steps = item.step_count or 1
    for location, kernels in by_place.items():
        names = Counter(kernel.name for kernel in kernels)
        yield location, "launches", _convert_to_integer_if_integral(len(kernels) / steps)
        yield (
            location,
            "kernels",
            {name: _convert_to_integer_if_integral(names[name] / steps) for name in sorted(names)},
        )
        shapes = [(k.grid_x, k.grid_y, k.grid_z, k.block_x, k.block_y, k.block_z) for k in kernels]
        if not any(None in shape for shape in shapes):
            threads = sum(math.prod(side or 0 for side in shape) for shape in shapes)
            yield location, "threads", _convert_to_integer_if_integral(threads / steps)
        if ways := sorted(
            {way for name in names if (way := describe_kernel_method_and_tile(name)) is not None}
        ):
            yield location, "algorithm", "; ".join(ways)


def _convert_to_integer_if_integral(value: float) -> float:
    """Return a whole number as an integer."""
    return int(value) if value.is_integer() else value


def _list_executed_flops_and_dram(
    base: QuantityPlace, run: PreparedRun, figure_state: str, unknown: dict[str, str]
) -> Counts:
    """``figure_state``: "counted" or "derived"; only sums that lack nothing."""
    works = [(base, run.counted_step_work)]
    works += [
        (_build_ledger_key_position(base, key), work)
        for key, work in run.counted_work_by_layer_direction.items()
    ]
    for location, work in works:
        if work is None:
            continue
        for quantity, figure in ((f"{figure_state}_flops", work.total), ("dram_bytes", work.dram)):
            is_exact = figure.state == figure_state and not figure.lower_bound
            name = f"{location.name}: {quantity}"
            if figure.value is not None and is_exact:
                yield location, quantity, figure.value
            elif figure.value is not None:
                state = "a lower bound" if figure.lower_bound else figure.state
                reason = figure.reason or "some launches have no value"
                unknown[name] = f"{state}: {reason}"
            elif figure_state == "counted":
                unknown[name] = figure.reason or figure.state
            elif quantity != "dram_bytes":  # nothing derives bytes of DRAM
                unknown[name] = (
                    "no rule for one of these kernels, or its grid does not match this work"
                )
