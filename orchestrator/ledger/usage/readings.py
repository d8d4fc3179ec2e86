"""The figures that a device, the host and the profilers state about a run: utilization by every
source, readings of the device, and memory, with the paper figures next to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple, TypeVar

from perfctl.orchestrator.ledger.usage.intervals import Intervals
from perfctl.orchestrator.statistics import group_by
from perfctl.records.report import CounterSample, Sample
from perfctl.records.run import Run

N = TypeVar("N", int, float)
BUSY = 0.9
"""Share of time from which a GPU counts as busy."""
SENSOR_WINDOW_MAX_NS = 1_000_000_000
"""Time that one reading of a GPU's utilization is the mean of, at most: 1/6 s to 1 s by the GPU
model (NVIDIA's documentation of nvmlUtilization_t)."""
OCCUPANCY = ("sm__warps_active.avg.pct_of_peak_sustained_active",)
TENSOR_PIPE = (
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_subpipe_hmma_cycles_active.avg.pct_of_peak_sustained_active",
)
"""The last is of Blackwell: all types but int8 and fp64."""
WEIGHT_BYTES = 4
"""Of an element, also under autocast."""
LINE_ERROR_MAX = 0.02
"""Measured peaks may lie this far off a straight line over batch sizes for the line to
be extended."""


@dataclass(frozen=True, slots=True)
class UsageShare:
    """A share, 0..1, or why there is none."""

    value: float | None
    reason: str
    gpus: int = 1
    """GPUs that the value is the plain mean of."""


@dataclass(frozen=True, slots=True)
class DeviceReadings:
    """Samples of one device in one run: means over time of utilization and power (W), largest
    memory (bytes) and temperature, smallest clock (Hz). None: not in any sample, or in none of the
    measured steps for a mean."""

    run: Run
    device: int | None
    count: int
    utilisation: float | None
    """Mean over time, 0..1; the tool's own: share of time with any kernel, sampled."""
    memory_used: int | None
    memory_total: int | None
    power: float | None
    temperature: float | None
    """Largest, degrees Celsius."""
    clock: int | None
    span: str
    """What the mean utilization is over, or why there is none."""


@dataclass(frozen=True, slots=True)
class UtilizationBySource:
    """Utilization of one run by every source."""

    run: Run
    kernels: UsageShare
    nvml: UsageShare
    dlprof: UsageShare
    dlprof_tensor: UsageShare
    """Share of kernel time in kernels that use tensor cores, as DLProf has it."""
    occupancy: UsageShare
    """Warps on an SM over the most it can hold, mean by time of kernels (ncu)."""
    tensor_pipe: UsageShare
    """Cycles with the tensor pipe at work, mean by time of kernels (ncu)."""
    host_cores: float | None
    """Cores that the run's processes kept busy in its steps, mean by time."""
    host_reason: str

    @property
    def has_any_share(self) -> bool:
        shares = (
            self.kernels,
            self.nvml,
            self.dlprof,
            self.dlprof_tensor,
            self.occupancy,
            self.tensor_pipe,
        )
        return self.host_cores is not None or any(share.value is not None for share in shares)


def group_gpu_samples_by_device(run: Run) -> dict[int | None, list[Sample]]:
    """Return the samples of each device, without those of the host and of PyTorch's allocator."""
    samples = (
        sample
        for sample in run.report.samples
        if not is_host_sample(sample)
        and sample.allocated_bytes is None
        and sample.reserved_bytes is None
    )
    return group_by(samples, lambda sample: sample.device_index)


def group_gpu_samples_by_working_device(run: Run) -> dict[int | None, list[Sample]]:
    """Return the samples of the device that did the work of perfctl's own run, if samples tell
    devices apart; otherwise those of each device."""
    devices = group_gpu_samples_by_device(run)
    index = run.device.index if run.device is not None else 0
    return {index: devices[index]} if run.workload and index in devices else devices


def is_host_sample(sample: Sample) -> bool:
    """Return True for a reading of the run's processes, and of no GPU."""
    return sample.host_cpu is not None or sample.host_memory_bytes is not None


def summarize_readings_by_device(run: Run) -> tuple[DeviceReadings, ...]:
    """Return the readings of each device of the run."""
    return tuple(
        _summarize_device_readings(run, device, samples)
        for device, samples in group_gpu_samples_by_device(run).items()
    )


def _summarize_device_readings(
    run: Run, device: int | None, samples: list[Sample]
) -> DeviceReadings:
    temperatures = [item.temperature_c for item in samples if item.temperature_c is not None]
    clocks = [item.sm_clock_hz for item in samples if item.sm_clock_hz is not None]
    utilisation = _compute_mean_gpu_utilization(run, samples)
    return DeviceReadings(
        run=run,
        device=device,
        count=len({item.at_ns for item in samples}),
        utilisation=utilisation.value,
        memory_used=compute_max_ignoring_none(item.memory_used_bytes for item in samples),
        memory_total=compute_max_ignoring_none(item.memory_total_bytes for item in samples),
        power=_average_field_over_measured_steps(run, samples, "power_w").value,
        temperature=max(temperatures, default=None),
        clock=min(clocks, default=None),
        span=utilisation.reason,
    )


def compute_utilization_by_source(run: Run, kernel_busy_share: UsageShare) -> UtilizationBySource:
    """Return the utilization of one run by every source; ``kernel_busy_share`` is that of its
    kernels."""
    host = _average_field_over_measured_steps(
        run, [sample for sample in run.report.samples if is_host_sample(sample)], "host_cpu"
    )
    utilisation = _average_dlprof_summary_lines(run, "GPU Utili[sz]ation")
    idle = _average_dlprof_summary_lines(run, "GPU Idle").value
    if utilisation.value is None and idle is not None:
        utilisation = UsageShare(1 - idle, "1 - GPU Idle")
    return UtilizationBySource(
        run=run,
        kernels=kernel_busy_share,
        nvml=_compute_sampled_gpu_utilization(run),
        dlprof=_drop_share_rounded_to_zero(run, utilisation),
        dlprof_tensor=_drop_share_rounded_to_zero(
            run, _average_dlprof_summary_lines(run, "Tensor Core (?:Kernel )?Utili[sz]ation")
        ),
        occupancy=_average_ncu_percent_by_kernel_time(run, OCCUPANCY),
        tensor_pipe=_average_ncu_percent_by_kernel_time(run, TENSOR_PIPE),
        host_cores=host.value,
        host_reason=host.reason,
    )


def _compute_sampled_gpu_utilization(run: Run) -> UsageShare:
    """Return the mean utilization of the devices that did the work."""
    means = [
        _compute_mean_gpu_utilization(run, group)
        for group in group_gpu_samples_by_working_device(run).values() or [[]]
    ]
    known_means = [mean.value for mean in means if mean.value is not None]
    over = f", mean of {len(known_means)} GPUs" if len(known_means) > 1 else ""
    sampled = "GR Active as nsys sampled it, " if known_means and _is_sampled_by_nsys(run) else ""
    return UsageShare(
        sum(known_means) / len(known_means) if known_means else None,
        f"{sampled}{means[0].reason}{over}",
        len(known_means) or 1,
    )


def _is_sampled_by_nsys(run: Run) -> bool:
    return run.profiler == "nsys" and run.origin == "ingested"


def _compute_mean_gpu_utilization(run: Run, samples: Sequence[Sample]) -> UsageShare:
    """Return the mean utilization of the GPU; no value if the samples do not describe the program:
    ncu replays every kernel with idle time between, a failed run has samples of what went wrong,
    and a sample of steps that are shorter than the sensor's window is mostly of other time."""
    mean, window = (
        _average_field_over_measured_steps(run, samples, "gpu_utilisation"),
        find_measured_steps_window_ns(run),
    )
    length = window[1] - window[0] if window else SENSOR_WINDOW_MAX_NS
    if mean.value is None:
        return mean
    if run.profiler == "ncu":
        return UsageShare(None, "ncu replays every kernel, so the samples do not show the program")
    if run.status == "failed":
        return UsageShare(None, "the run failed, so the samples do not show its steps")
    if length < SENSOR_WINDOW_MAX_NS and not _is_sampled_by_nsys(run):
        reason = (
            f"the steps take {format_ns_as_s_or_ms(length)} in total, and a sample is the "
            f"mean of up to "
            f"{format_ns_as_s_or_ms(SENSOR_WINDOW_MAX_NS)}"
        )
        return UsageShare(None, reason)
    return mean


def format_ns_as_s_or_ms(nanoseconds: float) -> str:
    """2100000000 -> "2.1 s", 249000000 -> "249 ms"."""
    return f"{nanoseconds / 1e9:.3g} s" if nanoseconds >= 1e9 else f"{nanoseconds / 1e6:.3g} ms"


def _average_field_over_measured_steps(
    run: Run, samples: Sequence[Sample], field: str
) -> UsageShare:
    """Return the mean of a field over the time of the measured steps, and what it is over."""
    points = list_ns_and_value_of_field(samples, field)
    if not points:
        reasons = (gap.reason for gap in run.report.gaps if gap.quantity == f"sample.{field}")
        return UsageShare(None, next(reasons, "not sampled"))
    window = find_measured_steps_window_ns(run)
    value = compute_time_weighted_mean(points, window)
    if window is None:
        span = f"mean over time of {len(points)} samples, from the first to the last"
    elif value is None:
        span = f"none of {len(points)} samples covers the measured steps"
    else:
        span = "mean over time, from the first measured step to the end of the last"
    return UsageShare(value, span)


def list_ns_and_value_of_field(
    samples: Iterable[Sample | CounterSample], field: str
) -> list[tuple[int, float]]:
    """Return (ns, value) of a field by time; of several samples at one time the last counts."""
    pairs = ((sample.at_ns, getattr(sample, field)) for sample in samples)
    return sorted({moment: float(value) for moment, value in pairs if value is not None}.items())


def find_measured_steps_window_ns(run: Run) -> tuple[int, int] | None:
    """Return the time from the first measured step to the end of the last, on the steps' clock;
    None if steps have no times."""
    steps = Intervals.make_from_items(step for step in run.report.steps if step.phase == "step")
    return steps.first_start_and_last_end if steps.pairs else None


def compute_time_weighted_mean(
    points: Iterable[tuple[int, float]], window: tuple[int, int] | None = None
) -> float | None:
    """Return the mean of readings, each of which covers the time since the one before, as samplers
    report it.

    None where no reading covers any of the window. Without a window, from the first reading to the
    last; of several readings at one time the last counts.
    """
    means = sorted(dict(points).items())
    if window is None and len(means) == 1:
        return means[0][1]
    low, high = window if window is not None else (means[0][0], means[-1][0])
    weight = total = 0.0
    for (before, _), (moment, mean) in pairwise(means):
        part = max(min(moment, high) - max(before, low), 0)
        weight += part
        total += part * mean
    return total / weight if weight else None


def _drop_share_rounded_to_zero(run: Run, share: UsageShare) -> UsageShare:
    """Return no value if DLProf's CSV, which rounds to a tenth of a percent, rounded it to
    nothing."""
    if share.value is None or share.value >= 0.0005 or not run.report.form.startswith("DLProf CSV"):
        return share
    return UsageShare(
        None,
        "DLProf's CSV rounds: 0.0% is anything below 0.05%. Its database (dlprof_dldb.sqlite) "
        "has it",
    )


def _average_dlprof_summary_lines(run: Run, label: str) -> UsageShare:
    """Return the mean of DLProf's lines of that label over its domains."""
    pattern = re.compile(rf"(?:.*: )?{label}(?: ?%)?\Z", re.IGNORECASE)
    lines = [
        item for item in run.report.summaries if item.value is not None and pattern.match(item.name)
    ]
    if not lines:
        reason = (
            "DLProf has no line for it" if run.profiler == "dlprof" else "not a report of DLProf"
        )
        return UsageShare(None, reason)
    mean = sum(line.value or 0 for line in lines) / len(lines) / 100
    return UsageShare(mean, f"DLProf: {lines[0].name}")


def _average_ncu_percent_by_kernel_time(run: Run, metrics: Sequence[str]) -> UsageShare:
    """Return the mean by time of the first of ``metrics`` that was counted."""
    if not any(True for _ in run.report.counters):
        return UsageShare(None, "the run collected no counters")
    times = {
        kernel.launch: kernel.duration_ns for kernel in run.report.kernels if kernel.duration_ns
    }
    for metric in metrics:
        weighted_values = [
            (times[counter.launch], counter.value)
            for counter in run.report.counters
            if counter.name == metric and counter.value is not None and counter.launch in times
        ]
        if weighted_values:
            weighted = sum(time * value for time, value in weighted_values)
            share = weighted / sum(time for time, _ in weighted_values) / 100
            return UsageShare(share, f"{metric}, {len(weighted_values)} launches")
    return UsageShare(None, f"{metrics[0]} was not collected")


def find_smallest_busy_batch(busy_share_by_batch: Mapping[int, float]) -> int | None:
    """Return the smallest batch size from which on no busy share (by batch size) is below BUSY;
    None without one."""
    idle = max((batch for batch, share in busy_share_by_batch.items() if share < BUSY), default=0)
    return min((batch for batch in busy_share_by_batch if batch > idle), default=None)


class BusyBatch(NamedTuple):
    """The smallest batch size from which on a GPU is busy, or the largest measured one."""

    batch: int
    is_busy: bool
    share: UsageShare
    """At that batch size."""


def find_smallest_busy_batch_across_runs(runs: Sequence[UtilizationBySource]) -> BusyBatch | None:
    """Return from which batch size on the GPU is busy, by kernels if they are known of any, and
    otherwise by NVML; None if no share is known."""
    for pairs in (
        [(item.run.batch_size, item.kernels) for item in runs],
        [(item.run.batch_size, item.nvml) for item in runs],
    ):
        shares = {
            batch: share
            for batch, share in reversed(pairs)
            if batch is not None and share.value is not None
        }
        if shares:
            batch = find_smallest_busy_batch(
                {size: share.value or 0.0 for size, share in shares.items()}
            )
            last = max(shares) if batch is None else batch
            return BusyBatch(last, batch is not None, shares[last])
    return None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """One run, in bytes; None where it is not known."""

    run: Run
    weights: int | None
    """Paper: elements of all parameters, 4 bytes each."""
    outputs: int | None
    """Paper: bytes that the layers and operations of one forward pass write; an upper bound, since
    some are freed."""
    allocated: int | None
    """torch's allocator, peak of the measured steps."""
    reserved: int | None
    """The allocator's share of the device's memory, peak."""
    process: int | None
    """NVML, the run's processes, CUDA context and libraries included; device: of all processes.
    Highest reading."""
    device: int | None
    device_total: int | None
    host: int | None
    """Resident memory of the process that computes, highest, as it recorded it about itself."""
    host_all: int | None
    """Resident memory of all the run's processes together, highest reading from outside."""


def collect_memory_use(run: Run) -> MemoryUse:
    """Return the memory that the run used, by every source."""
    figures = {(item.moment, item.quantity): item.bytes for item in run.report.memory}
    gpu = [sample for sample in run.report.samples if not is_host_sample(sample)]
    device = run.device if run.device is not None and run.device.kind == "gpu" else None
    index = device.index if device else None
    samples = [sample for sample in gpu if sample.device_index == index] or gpu
    forward = [call for call in run.layer_calls if call.direction == "forward"]
    weights = [call.parameters for call in forward if call.parameters is not None]
    outputs = [call.write_bytes for call in forward if call.write_bytes is not None]
    return MemoryUse(
        run=run,
        weights=WEIGHT_BYTES * sum(weights) if weights else None,
        outputs=sum(outputs) if outputs else None,
        allocated=figures.get(("peak", "allocated")),
        reserved=figures.get(("peak", "reserved")),
        process=compute_max_ignoring_none(sample.process_memory_bytes for sample in samples),
        device=compute_max_ignoring_none(sample.memory_used_bytes for sample in samples),
        device_total=figures.get(("before", "device_total"))
        or figures.get(("after", "device_total"))
        or compute_max_ignoring_none(sample.memory_total_bytes for sample in samples)
        or (device.memory_bytes if device else None),
        host=figures.get(("peak", "host_resident")),
        host_all=compute_max_ignoring_none(
            sample.host_memory_bytes for sample in run.report.samples
        ),
    )


def compute_max_ignoring_none(values: Iterable[int | None]) -> int | None:
    """Return the largest number that is known; None without any."""
    return max((value for value in values if value is not None), default=None)


def sum_if_all_known(numbers: Iterable[N | None]) -> N | None:
    """Return the sum; None if one of the numbers is not known."""
    values = list(numbers)
    return None if None in values else sum(number for number in values if number is not None)


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """The largest batch size whose memory stays within a limit."""

    batch: int
    limit: int
    fixed: float
    per_sample: float
    batches: tuple[int, ...]


def extrapolate_largest_fitting_batch(uses: Iterable[MemoryUse]) -> MemoryFit | None:
    """Return what fits on the device, from a straight line through the peaks that torch reserved.

    None on a CPU, with fewer than three batch sizes, where peaks are not on a line (cuDNN chose
    other algorithms), or do not grow.
    """
    complete_uses = [
        use for use in uses if use.run.batch_size is not None and use.reserved is not None
    ]
    peaks = dict(
        sorted({use.run.batch_size or 0: use.reserved or 0 for use in complete_uses}.items())
    )
    limit = compute_max_ignoring_none(use.device_total for use in complete_uses)
    if len(peaks) < 3 or limit is None or not all(peaks.values()):
        return None
    middle, mean = Fraction(sum(peaks), len(peaks)), Fraction(sum(peaks.values()), len(peaks))
    rise = sum(((batch - middle) * (peak - mean) for batch, peak in peaks.items()), Fraction())
    slope = rise / sum(((batch - middle) ** 2 for batch in peaks), Fraction())
    fixed = mean - slope * middle
    error = max(abs(fixed + slope * batch - peak) / peak for batch, peak in peaks.items())
    if slope <= 0 or error > LINE_ERROR_MAX:
        return None
    largest = max(int((limit - fixed) // slope), 0)
    return MemoryFit(largest, limit, float(fixed), float(slope), tuple(peaks))
