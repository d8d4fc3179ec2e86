"""Which GPU a run saw and whether two runs can have seen the same one; peaks of a device, FLOP/s by
path and bytes/s, from the table of devices, its own record, or measured; and what none of its kind
can exceed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perfctl.orchestrator.counts.hardware import machines
from perfctl.orchestrator.counts.hardware.machines import Gpu
from perfctl.records.report import Device
from perfctl.records.run import Run

MEASURE = "'--peaks measured' benchmarks this machine"


PATH_OF = {
    "fp32": "fp32",
    "fp64": "fp64",
    "tf32": "tensor tf32",
    "bf16": "tensor bf16",
    "fp16": "tensor fp16",
}
"""Precision of a run -> path of its peak."""
SAME_MEMORY = 0.875
"""Two figures of one GPU's memory lie at least this near: smaller / larger. ECC takes up to 1/16,
the driver and the CUDA context some more (40,536 and 40,960 MiB; a T4 shows 15,109 to 15,360 of its
16,384 MiB); products differ by 1/6 or more."""
MIB = 1 << 20
GB = 1 << 30


@dataclass(frozen=True, slots=True)
class CachePeak:
    """Bytes/s of one cache."""

    bandwidth: float
    source: str
    """In words: "128 B x 108 SMs x 1410 MHz"."""


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """FLOP/s (1 multiply-add = 2) and bytes/s of one device, with their source."""

    device: str
    source: str
    """In words: "published figures of the A100 SXM4 80 GB", "measured on 2026-11-20"."""
    kind: str
    """published, derived (units x clock of the device's own record), measured, or none."""
    flops: Mapping[str, float] = field(default_factory=dict)
    """path ("fp32", "fp64", "fp16", "tensor tf32", ...) -> FLOP/s, dense. Unknown paths
    are missing."""
    bandwidth: float | None = None
    reason: str | None = None
    """Why there are no peaks, and what helps; None if there are."""
    caches: Mapping[str, CachePeak] = field(default_factory=dict)
    """Counter of L1's or L2's bytes -> its roof; "L1" and "L2" for any other counter of
    that level."""

    def find_cache_peak(self, level: str, counter: str | None) -> CachePeak | None:
        """The roof of a level for bytes that ``counter`` counted: the report's own, else the
        table's; None if unknown."""
        return self.caches.get(counter or "") or self.caches.get(level)

    @property
    def has_flop_peaks(self) -> bool:
        return bool(self.flops)

    def compute_ridge_point(self, math_path: str) -> float | None:
        """FLOPs per byte at which the roofs of ``math_path`` and memory meet; None if one is
        not known."""
        peak = self.flops.get(math_path)
        return peak / self.bandwidth if peak and self.bandwidth else None


def find_peaks(device: Device | None, measured: Sequence[DevicePeaks] = ()) -> DevicePeaks:
    """Peaks of a run's device: measured ones of the same name, else from the table, else from its
    own record."""
    name = (device.name or device.kind) if device else "a device without a recorded name"
    by_device = {item.device: item for item in measured}
    if name in by_device:
        return by_device[name]
    if by_device:
        return DevicePeaks(
            name, "", "none", reason=f"peaks were measured on {', '.join(by_device)}, not on {name}"
        )
    if device is None:
        return DevicePeaks(name, "", "none", reason="no record names the device")
    if device.kind == "cpu":
        return DevicePeaks(
            name, "", "none", reason=f"perfctl has no published peaks for CPUs; {MEASURE}"
        )
    if (gpu := machines.find_gpu_product(device.name)) is not None:
        source = f"published values of the {gpu.name}, dense"
        return DevicePeaks(
            name, source, "published", machines.compute_peak_flops(gpu), gpu.bandwidth_gbs * 1e9
        )
    return _compute_peaks_from_recorded_clock(name, device)


def add_cache_and_rescale_peaks(
    peaks: DevicePeaks,
    device: Device | None,
    bytes_per_cycle_by_counter: Mapping[str, float],
    recorded_hz: float | None = None,
) -> DevicePeaks:
    """``peaks`` with the roofs of L1 and L2: bytes in a cycle x clock, at the clock that the FLOP
    peaks are for.

    bytes_per_cycle_by_counter: counter -> bytes that the chip moves in a cycle, as its report
    states. Where it does not: L1 from the compute capability, L2 from the product (both in
    gpus.json). Empty where the clock is not known, and for CPUs. ``recorded_hz``: the clock of the
    SMs while all of the work ran; peaks at the boost clock are scaled to it, and those of memory
    are not.
    """
    gpu = machines.find_gpu_product(device.name) if device is not None else None
    clock = (
        gpu.boost_mhz * 1e6
        if gpu
        else device.clock_hz
        if device is not None and device.kind == "gpu"
        else None
    )
    if not peaks.has_flop_peaks or not clock or device is None:
        return peaks
    if recorded_hz and recorded_hz < clock and peaks.kind in ("published", "derived"):
        flops = {path: peak * recorded_hz / clock for path, peak in peaks.flops.items()}
        source = f"{peaks.source}, scaled to the recorded {recorded_hz / 1e6:,.0f} MHz"
        peaks, clock = replace(peaks, flops=flops, source=source), recorded_hz
    clock_text = f"{clock / 1e6:.0f} MHz"
    caches = {
        counter: CachePeak(most * clock, f"{most:,.0f} B per cycle from the report x {clock_text}")
        for counter, most in bytes_per_cycle_by_counter.items()
    }
    chip = machines.find_architecture_by_capability(
        gpu.capability if gpu else device.compute_capability
    )
    sms = gpu.sms if gpu else device.sm_count
    if chip is not None and chip.l1_bytes and sms:
        caches["L1"] = CachePeak(
            chip.l1_bytes * sms * clock, f"{chip.l1_bytes} B x {sms} SMs x {clock_text}"
        )
    if gpu is not None and gpu.l2_bytes_per_cycle:
        most = gpu.l2_bytes_per_cycle
        caches["L2"] = CachePeak(most * clock, f"{most:,} B per cycle, reads x {clock_text}")
    return replace(peaks, caches=caches)


def _compute_peaks_from_recorded_clock(name: str, device: Device) -> DevicePeaks:
    """From SMs x clock of the record, for the paths that all chips of the compute capability share.

    No roof is chosen among several products that the name may mean: they differ by up to a third.
    """
    chip = machines.find_architecture_by_capability(device.compute_capability)
    sliced = machines.is_slice_or_laptop(device.name)
    if chip is None or not device.sm_count or not device.clock_hz or sliced:
        may_be = [gpu.name for gpu in machines.list_ambiguous_gpu_candidates(device.name)]
        part = (
            "a laptop GPU, whose vendor sets its clock,"
            if machines.is_laptop_gpu(device.name)
            else "a slice of a GPU,"
        )
        reason = (
            f"{name} is "
            f"{f'{part} so its peaks are unknown' if sliced else 'not in the table of devices'}"
        )
        if device.name is None:
            reason = "no record names the GPU"
        if may_be:
            reason = f'"{name}" may be {", ".join(may_be[:-1])} or {may_be[-1]}, whose peaks differ'
        return DevicePeaks(name, "", "none", reason=f"{reason}; {MEASURE}")
    flops = chip.compute_non_tensor_peak_flops(device.sm_count * device.clock_hz)
    is_amd = chip.capability.startswith("gfx")
    units, kind = (
        ("CUs", device.compute_capability) if is_amd else ("SMs", f"CC {device.compute_capability}")
    )
    source = (
        f"{device.sm_count} {units} x {device.clock_hz / 1e6:.0f} MHz from the record of the run, "
        f"{kind}"
    )
    return DevicePeaks(
        name, f"{source}; tensor peaks are unknown", "derived", flops, device.memory_bandwidth_bps
    )


def parse_measured_peaks(record: Mapping[str, Any]) -> DevicePeaks:
    """From the JSON of ``python -m perfctl.workloads.run.peaks``. Raises KeyError or TypeError."""
    flops = {str(path): float(value) for path, value in record["flops"].items()}
    day, threads = str(record["at"])[:10], record.get("threads")
    how = f"measured on {day}: large GEMMs and a triad" + (
        f", {threads} threads" if threads else ""
    )
    return DevicePeaks(
        str(record["device"]), how, "measured", flops, float(record["bandwidth_bps"])
    )


@dataclass(frozen=True, slots=True)
class RecordedGpu:
    """What the records of a run say about its GPU. What is None, no record says."""

    name: str | None
    memory_bytes: int | None
    capability: str | None
    """CUDA compute capability, "7.0"."""

    def __str__(self) -> str:
        """ "Tesla V100 of 16,384 MiB", "a GPU of 40,960 MiB"."""
        size = f" of {self.memory_bytes // MIB:,} MiB" if self.memory_bytes else ""
        chip = f" of CC {self.capability}" if not (self.name or size) and self.capability else ""
        return f"{self.name or 'a GPU'}{size or chip}"

    def merge_facts(self, other: RecordedGpu) -> RecordedGpu:
        """Both, where they are the same GPU: what either knows."""
        return RecordedGpu(
            self.name or other.name,
            self.memory_bytes or other.memory_bytes,
            self.capability or other.capability,
        )


def find_recorded_gpu(run: Run) -> RecordedGpu | None:
    """The GPU of the run; None for a CPU, and where no record names a device or its memory."""
    device = next((item for item in run.devices if item.kind == "gpu"), None)
    if run.device is not None and run.device.kind != "gpu":
        return None
    totals = [item.bytes for item in run.report.memory if item.quantity == "device_total"]
    totals += [item.memory_total_bytes for item in run.report.samples if item.memory_total_bytes]
    memory = (device.memory_bytes if device else None) or max(totals, default=None)
    gpu = RecordedGpu(
        device.name if device else None, memory, device.compute_capability if device else None
    )
    return gpu if any((gpu.name, gpu.memory_bytes, gpu.capability)) else None


def has_contradicting_records(gpu_a: RecordedGpu, other: RecordedGpu) -> bool:
    """True where the records rule out that both are the same product: by memory, compute capability
    or name.

    What either does not know contradicts nothing.
    """
    sizes = sorted(gpu.memory_bytes for gpu in (gpu_a, other) if gpu.memory_bytes)
    if len(sizes) == 2 and sizes[0] < SAME_MEMORY * sizes[1]:
        return True
    if gpu_a.capability and other.capability and gpu_a.capability != other.capability:
        return True
    return bool(gpu_a.name and other.name) and _has_contradicting_names(
        gpu_a.name or "", other.name or ""
    )


def _has_contradicting_names(name_a: str, other: str) -> bool:
    if machines.is_slice_or_laptop(name_a) != machines.is_slice_or_laptop(other):
        return True
    ours, theirs = _list_possible_gpus(name_a), _list_possible_gpus(other)
    if ours and theirs:
        return not {gpu.name for gpu in ours} & {gpu.name for gpu in theirs}
    name_parts = [machines.extract_device_name_tokens(name) for name in (name_a, other)]
    return not (name_parts[0] <= name_parts[1] or name_parts[1] <= name_parts[0])


def _list_possible_gpus(name: str) -> Sequence[Gpu]:
    gpu = machines.find_gpu_product(name)
    return (gpu,) if gpu is not None else machines.list_ambiguous_gpu_candidates(name)


def find_fastest_gpu_and_flop_rate(
    observed_gpu: RecordedGpu | None, precision: str | None
) -> tuple[Gpu, float] | None:
    """(product, FLOP/s) of the fastest that the name and memory may mean, at the published peak of
    ``precision``.

    fp32 may also run as TF32 where the chip has it, and on AMD's matrix cores. None where no record
    names a product of the table, or for a precision without a path. A kernel that is said to be
    faster than this was not timed.
    """
    path = PATH_OF.get(precision or "")
    if observed_gpu is None or not observed_gpu.name or path is None:
        return None
    paths = (path, "tensor tf32", "tensor fp32") if path == "fp32" else (path,)
    rates = []
    for gpu in (
        gpu
        for gpu in _list_possible_gpus(observed_gpu.name)
        if _has_fitting_memory(gpu, observed_gpu.memory_bytes)
    ):
        flops = machines.compute_peak_flops(gpu)
        if path_rates := [flops[key] for key in paths if key in flops]:
            rates.append((gpu, max(path_rates)))
    return max(rates, key=lambda rate: rate[1], default=None)


def _has_fitting_memory(gpu: Gpu, memory: int | None) -> bool:
    return memory is None or any(
        min(memory, size * GB) >= SAME_MEMORY * max(memory, size * GB) for size in gpu.memory_gb
    )
