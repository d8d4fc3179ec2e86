"""Time per step by layer and direction, and the clock it was read from.

On a GPU only kernel times count, because the CPU timer sees the launch and not the kernel. On a
CPU the ranges around the layers are timed; of a range that holds other layers only the self
time counts.

Times that a program read off the CPU timer are summaries named "host_time:LAYER:DIRECTION", in
nanoseconds.
"""

from __future__ import annotations

import bisect
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from perfctl.records.report import COVERS, WHOLE_CAPTURE, Range, Step
from perfctl.records.run import Run

HOST_TIME = "host_time"
Key = tuple[str, str]
"""(layer, direction); the optimizer's own work is ("", "optimizer")."""
OPTIMIZER: Key = ("", "optimizer")

KERNELS_OF_STEPS, KERNELS_OF_CAPTURE, ALL_STEPS = (
    "kernel time of all steps",
    "kernel time of the capture",
    "time of all steps",
)
"""What shares are of."""
KERNEL_BASIS = {
    "nsys": "kernels, nsys",
    "torch": "kernels, torch (CUPTI)",
    "jax": "kernels, JAX (CUPTI or ROCm)",
    "dlprof": "kernels, DLProf",
    "ncu": "kernels under ncu at locked clocks: not a realistic time",
    "rocprofv3": "kernels, rocprofv3",
    "rocprof": "kernels, rocprof",
    "rocprof-compute": "kernels, rocprof-compute",
}

GRADIENTS = ("grad_input", "grad_weight", "grad_bias")
"""Directions that are part of "backward"."""


@dataclass(frozen=True, slots=True)
class HostTime:
    """One such time."""

    layer: str
    direction: str
    run: Run
    nanoseconds: float
    macs: int | None
    """Estimated multiply-adds of the layer, in that direction at that batch size; None where no
    formula gives them."""

    @property
    def flops_per_s(self) -> float | None:
        """What the time would mean if it were a kernel's. 1 multiply-add = 2 FLOPs."""
        return 2 * self.macs / self.nanoseconds * 1e9 if self.macs and self.nanoseconds else None


def list_reported_layer_host_times(runs: Iterable[Run]) -> Iterator[HostTime]:
    """Every time of the CPU timer that came with the runs."""
    for run in runs:
        for item in run.report.summaries:
            head, _, row_name = item.name.partition(":")
            layer, _, direction = row_name.rpartition(":")
            if head == HOST_TIME and layer and item.value is not None:
                yield HostTime(
                    layer,
                    direction,
                    run,
                    item.value,
                    count_estimated_macs_of_layer(run, layer, direction),
                )


def count_estimated_macs_of_layer(run: Run, layer: str, direction: str = "forward") -> int | None:
    """Estimated multiply-adds of a layer; None where a formula is missing, or the layer."""
    calls = [call for call in run.layer_calls if (call.layer, call.direction) == (layer, direction)]
    macs = [call.macs for call in calls if call.macs is not None]
    return sum(macs) if macs and len(macs) == len(calls) else None


@dataclass(frozen=True, slots=True)
class TimeSpread:
    """Median over steps, with the smallest and the largest, in nanoseconds."""

    median: float
    low: float
    high: float
    count: int
    mean: float
    """Shares are made of means: means of parts add up to the mean of the whole, medians do not."""
    values: tuple[float, ...] = field(default=(), compare=False, repr=False)
    over: int = 1
    """Steps that each value is the mean of: above 1 where no launch says its step."""

    @property
    def median_absolute_deviation_ns(self) -> float:
        """Median deviation from the median, in nanoseconds; 0 for a single value."""
        values = self.values or (self.low, self.median, self.high)
        return statistics.median(abs(value - self.median) for value in values)


@dataclass(frozen=True, slots=True)
class TimesByLayer:
    """Time per step of every layer and direction in one run."""

    basis: str
    trusted: bool
    """False under ncu: clocks are locked, caches flushed, launches serialised."""
    whole: str
    """What shares refer to: KERNELS_OF_STEPS, KERNELS_OF_CAPTURE or ALL_STEPS."""
    rows: Mapping[Key, TimeSpread]
    total: TimeSpread
    unattributed: TimeSpread


def compute_time_spread(values: Sequence[float], steps_per_value: int = 1) -> TimeSpread:
    """Spread of at least one value; ``steps_per_value``: steps that each is the mean of."""
    median, mean = statistics.median(values), statistics.fmean(values)
    return TimeSpread(
        median, min(values), max(values), len(values), mean, tuple(values), steps_per_value
    )


def has_kernel_times(run: Run) -> bool:
    """True when kernels with durations tell the run's time by layer."""
    return run.profiler in KERNEL_BASIS and any(
        kernel.duration_ns is not None for kernel in run.report.kernels
    )


def rank_profiler_clock(profiler: str, preferred_profiler: str | None = None) -> int:
    """Rank of a profiler as a clock, smaller is better: ``preferred_profiler`` (timed the whole
    sweep), nsys, torch, others, ncu."""
    return (
        -1
        if profiler == preferred_profiler and profiler != "ncu"
        else {"nsys": 0, "torch": 1, "ncu": 9}.get(profiler, 2)
    )


def is_capture_treated_as_single_step(run: Run) -> bool:
    """True where the whole capture counts as one step: no range names steps, or they run
    different operators, or nothing says steps of a run with formulas of the user's."""
    return run.report.environment.get(COVERS) == WHOLE_CAPTURE or bool(
        run.expectations and not _count_recorded_steps(run)
    )


def has_kernel_step_numbers(run: Run) -> bool:
    """True when kernels say which step they belong to."""
    return not is_capture_treated_as_single_step(run) and any(
        kernel.step is not None for kernel in run.report.kernels
    )


def count_kernel_steps(run: Run) -> int | None:
    """Steps that the run's kernels are spread over; None when nothing says so.

    A profiler may record fewer steps than the workload measured, so step numbers on the kernels
    come before the workload's own count.
    """
    return 1 if is_capture_treated_as_single_step(run) else _count_recorded_steps(run)


def _count_recorded_steps(run: Run) -> int | None:
    numbers = {kernel.step for kernel in run.report.kernels if kernel.step is not None}
    # DLProf also records warm-up and epochs
    if numbers or run.profiler not in ("nsys", "ncu", "torch"):
        return len(numbers) or None
    steps = {step.number for step in run.report.steps if step.phase == "step"}
    return (
        len(steps or {item.step for item in run.report.ranges if is_step_range_of_perfctl(item)})
        or None
    )


def read_step_time_and_clock(run: Run) -> tuple[TimeSpread, str] | None:
    """(time of a whole step, which clock); None when steps were not timed, and always under ncu."""
    if run.profiler == "ncu":
        return None
    if timed := list_complete_step_durations_ns(run.report.steps):
        watched = (
            "with no profiler" if run.profiler == "none" else f"while {run.profiler} was recording"
        )
        return compute_time_spread(timed), f"CPU timer around each step, {watched}"
    ranges = [last - first for first, last in find_perfctl_step_spans(run.report.ranges).values()]
    return (compute_time_spread(ranges), f"step ranges, {run.profiler}") if ranges else None


def list_complete_step_durations_ns(steps: Iterable[Step]) -> list[int]:
    """Return the durations of the complete steps in ns, without phases and steps that lack one."""
    return [
        step.duration_ns for step in steps if step.phase == "step" and step.duration_ns is not None
    ]


def walk_enclosing_ranges(range_number: int | None, ranges: Mapping[int, Range]) -> Iterator[Range]:
    """Yield the range with this number and those around it."""
    visited: set[int] = set()
    while range_number is not None and range_number in ranges and range_number not in visited:
        visited.add(range_number)
        yield ranges[range_number]
        range_number = ranges[range_number].parent


def compute_range_self_times_ns(
    ranges: Mapping[int, Range], range_numbers: Iterable[int]
) -> dict[int, float]:
    """Return the time of each of these ranges without those of them that lie inside of it."""
    own_ns = {number: float(ranges[number].duration_ns or 0) for number in range_numbers}
    for number in own_ns:
        above = (item.number for item in walk_enclosing_ranges(ranges[number].parent, ranges))
        holder = next((outer for outer in above if outer in own_ns), None)
        if holder is not None:
            own_ns[holder] -= ranges[number].duration_ns or 0
    return own_ns


def is_step_range_of_perfctl(item: Range) -> bool:
    """Return True for the range of a measured step that perfctl opened."""
    return item.step is not None and item.name.startswith("perfctl:step:")


def find_perfctl_step_spans(ranges: Iterable[Range]) -> dict[int | None, tuple[int, int]]:
    """Return start and end of each step that perfctl measured. A step has several ranges if it
    continued in another thread, as in a server."""
    spans: dict[int | None, tuple[int, int]] = {}
    for item in ranges:
        if is_step_range_of_perfctl(item) and item.duration_ns is not None:
            end_ns = item.start_ns + item.duration_ns
            first_ns, last_ns = spans.get(item.step, (item.start_ns, end_ns))
            spans[item.step] = min(first_ns, item.start_ns), max(last_ns, end_ns)
    return spans


def map_gradients_to_backward(keys: Iterable[Key | None]) -> dict[Key, Key]:
    """(layer, gradient) -> (layer, "backward") for the layers among ``keys`` where one kernel
    computes both gradients.

    An autograd node that computes both cannot be split, and the node that accumulates the
    parameter's gradient then belongs to the same row.
    """
    whole_layers = {key[0] for key in keys if key is not None and key[1] == "backward"}
    return {(layer, part): (layer, "backward") for layer in whole_layers for part in GRADIENTS}


def assign_kernels_to_layers(run: Run) -> list[Key | None]:
    """(layer, direction) of each kernel, in order; None where it is not attributed.

    A layer's gradients are one "backward" where some kernel of it computes them together.
    """
    optimizer = {item.number for item in run.report.ranges if item.phase == "optimizer"}
    keys = [
        (kernel.layer, kernel.direction)
        if kernel.layer and kernel.direction
        else OPTIMIZER
        if kernel.direction == "optimizer" or kernel.range_number in optimizer
        else None
        for kernel in run.report.kernels
    ]
    folded_keys = map_gradients_to_backward(keys)
    return [folded_keys.get(key, key) if key is not None else None for key in keys]


def build_layer_times_from_kernels(
    run: Run, keys: Sequence[Key | None], step_count: int | None
) -> TimesByLayer | None:
    if step_count is None:
        return None
    in_steps = has_kernel_step_numbers(run)
    sums: dict[Key | None, dict[int | None, float]] = defaultdict(lambda: defaultdict(float))
    steps: dict[int | None, None] = {}
    for kernel, key in zip(run.report.kernels, keys, strict=True):
        if kernel.duration_ns is not None and (kernel.step is not None or not in_steps):
            step = kernel.step if in_steps else None
            sums[key][step] += kernel.duration_ns / (1 if in_steps else step_count)
            steps[step] = None
    totals = {step: sum(by_step.get(step, 0) for by_step in sums.values()) for step in steps}
    return _summarize_layer_times_over_steps(
        sums,
        totals,
        KERNEL_BASIS[run.profiler],
        run.profiler != "ncu",
        KERNELS_OF_CAPTURE if is_capture_treated_as_single_step(run) else KERNELS_OF_STEPS,
        1 if in_steps else step_count,
    )


def build_layer_times_from_ranges(run: Run) -> TimesByLayer | None:
    ranges = {item.number: item for item in run.report.ranges if item.duration_ns is not None}
    steps = find_perfctl_step_spans(ranges.values())
    if not steps:
        return None
    bounds = sorted((*span, number) for number, span in steps.items())
    keys: dict[int, Key] = {}
    for number, item in ranges.items():
        if item.layer and item.direction:
            keys[number] = (item.layer, item.direction)
        elif item.name == "perfctl:phase:optimizer":
            keys[number] = OPTIMIZER
    folded_keys = map_gradients_to_backward(keys.values())
    every = {item.number: item for item in run.report.ranges}
    sums: dict[Key | None, dict[int | None, float]] = defaultdict(lambda: defaultdict(float))
    for number, own_ns in compute_range_self_times_ns(every, keys).items():
        start = ranges[number].start_ns
        index = bisect.bisect_right(bounds, (start, float("inf"), 0)) - 1
        if index >= 0 and start < bounds[index][1]:  # on any thread
            sums[folded_keys.get(keys[number], keys[number])][bounds[index][2]] += own_ns
    totals: dict[int | None, float] = {step: last - first for step, (first, last) in steps.items()}
    return _summarize_layer_times_over_steps(
        sums, totals, f"host ranges, {run.profiler} on the CPU", True, ALL_STEPS
    )


def _summarize_layer_times_over_steps(
    sums: Mapping[Key | None, Mapping[int | None, float]],
    totals: Mapping[int | None, float],
    basis: str,
    trusted: bool,
    total_name: str,
    steps_per_value: int = 1,
) -> TimesByLayer | None:
    """Medians over the steps of ``totals``. A layer that did not run in a step took 0 in it."""
    if not totals:
        return None
    rows = {
        key: compute_time_spread([by_step.get(step, 0) for step in totals], steps_per_value)
        for key, by_step in sums.items()
        if key is not None
    }
    unattributed = [
        max(total - sum(sums[key].get(step, 0) for key in rows), 0)
        for step, total in totals.items()
    ]
    total, unattributed_ns = (
        compute_time_spread([*totals.values()], steps_per_value),
        compute_time_spread(unattributed, steps_per_value),
    )
    return TimesByLayer(basis, trusted, total_name, rows, total, unattributed_ns)
