"""Memory of a run by every source that measured it, with the paper figures; and the largest batch size that fits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from perfctl.orchestrator.analyse.usage.busy import is_host
from perfctl.records.run import Run

WEIGHT_BYTES = 4
"""Of an element, also under autocast."""
FITS_WELL = 0.02
"""Measured peaks may lie this far off a straight line over batch sizes for the line to be extended."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """One run, in bytes; None where it is not known."""

    run: Run
    weights: int | None
    """Paper: elements of all parameters, 4 bytes each."""
    outputs: int | None
    """Paper: bytes that the layers and operations of one forward pass write; an upper bound, since some are freed."""
    allocated: int | None
    """torch's allocator, peak of the measured steps."""
    reserved: int | None
    """The allocator's share of the device's memory, peak."""
    process: int | None
    """NVML, the run's processes, CUDA context and libraries included; device: of all processes. Highest reading."""
    device: int | None
    device_total: int | None
    host: int | None
    """Resident memory of the process that computes, highest, as it recorded it about itself."""
    host_all: int | None
    """Resident memory of all the run's processes together, highest reading from outside."""


def memory_use(run: Run) -> MemoryUse:
    figures = {(item.moment, item.quantity): item.bytes for item in run.report.memory}
    total = figures.get(("before", "device_total")) or figures.get(("after", "device_total"))
    gpu = [sample for sample in run.report.samples if not is_host(sample)]
    device = run.device if run.device is not None and run.device.kind == "gpu" else None
    own = [sample for sample in gpu if sample.device_index == (device.index if device else None)] or gpu
    forward = [call for call in run.layer_calls if call.direction == "forward"]
    weights = [call.parameters for call in forward if call.parameters is not None]
    outputs = [call.write_bytes for call in forward if call.write_bytes is not None]
    return MemoryUse(
        run, WEIGHT_BYTES * sum(weights) if weights else None, sum(outputs) if outputs else None,
        figures.get(("peak", "allocated")), figures.get(("peak", "reserved")),
        process=_most(sample.process_memory_bytes for sample in own),
        device=_most(sample.memory_used_bytes for sample in own),
        device_total=total or _most(sample.memory_total_bytes for sample in own) or (device.memory_bytes if device else None),
        host=figures.get(("peak", "host_resident")),
        host_all=_most(sample.host_memory_bytes for sample in run.report.samples),
    )  # fmt: skip


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


@dataclass(frozen=True, slots=True)
class Fits:
    """The largest batch size whose memory stays within a limit."""

    batch: int
    limit: int
    fixed: float
    per_sample: float
    batches: tuple[int, ...]


def fits(uses: Iterable[MemoryUse]) -> Fits | None:
    """What fits on the device, from a straight line through the peaks that torch reserved.

    None on a CPU, with fewer than three batch sizes, where peaks are not on a line (cuDNN chose other algorithms), or
    do not grow.
    """
    known = [item for item in uses if item.run.batch_size is not None and item.reserved is not None]
    peaks = dict(sorted({item.run.batch_size or 0: item.reserved or 0 for item in known}.items()))
    limit = _most(item.device_total for item in known)
    if len(peaks) < 3 or limit is None or not all(peaks.values()):
        return None
    middle, mean = Fraction(sum(peaks), len(peaks)), Fraction(sum(peaks.values()), len(peaks))
    rise = sum(((batch - middle) * (peak - mean) for batch, peak in peaks.items()), Fraction())
    slope = rise / sum(((batch - middle) ** 2 for batch in peaks), Fraction())
    fixed = mean - slope * middle
    off = max(abs(fixed + slope * batch - peak) / peak for batch, peak in peaks.items())
    if slope <= 0 or off > FITS_WELL:
        return None
    return Fits(max(int((limit - fixed) // slope), 0), limit, float(fixed), float(slope), tuple(peaks))
