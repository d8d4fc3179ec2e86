"""Which GPU a run saw, whether two runs can have seen the same one, and what none of its kind
can exceed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfctl.orchestrator.counts.hardware import machines
from perfctl.orchestrator.counts.hardware.machines import Gpu
from perfctl.orchestrator.counts.hardware.peaks import PATH_OF
from perfctl.records.run import Run

SAME_MEMORY = 0.875
"""Two figures of one GPU's memory lie at least this near: smaller / larger. ECC takes up to 1/16,
the driver and the CUDA context some more (40,536 and 40,960 MiB; a T4 shows 15,109 to 15,360 of its
16,384 MiB); products differ by 1/6 or more."""
MIB = 1 << 20
GB = 1 << 30


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """What the records of a run say about its GPU. What is None, no record says."""

    name: str | None
    memory_bytes: int | None
    capability: str | None
    """CUDA compute capability, "7.0"."""

    @property
    def known(self) -> bool:
        return any((self.name, self.memory_bytes, self.capability))

    def __str__(self) -> str:
        """ "Tesla V100 of 16,384 MiB", "a GPU of 40,960 MiB"."""
        size = f" of {self.memory_bytes // MIB:,} MiB" if self.memory_bytes else ""
        chip = f" of CC {self.capability}" if not (self.name or size) and self.capability else ""
        return f"{self.name or 'a GPU'}{size or chip}"

    def joined(self, other: SeenGpu) -> SeenGpu:
        """Both, where they are the same GPU: what either knows."""
        return SeenGpu(
            self.name or other.name,
            self.memory_bytes or other.memory_bytes,
            self.capability or other.capability,
        )


def seen_gpu(run: Run) -> SeenGpu | None:
    """The GPU of the run; None for a CPU, and where no record names a device or its memory."""
    device = next((item for item in run.devices if item.kind == "gpu"), None)
    if run.device is not None and run.device.kind != "gpu":
        return None
    totals = [item.bytes for item in run.report.memory if item.quantity == "device_total"]
    totals += [item.memory_total_bytes for item in run.report.samples if item.memory_total_bytes]
    memory = (device.memory_bytes if device else None) or max(totals, default=None)
    found = SeenGpu(
        device.name if device else None, memory, device.compute_capability if device else None
    )
    return found if found.known else None


def contradict(one: SeenGpu, other: SeenGpu) -> bool:
    """True where the records rule out that both are the same product: by memory, compute capability
    or name.

    What either does not know contradicts nothing.
    """
    sizes = sorted(gpu.memory_bytes for gpu in (one, other) if gpu.memory_bytes)
    if len(sizes) == 2 and sizes[0] < SAME_MEMORY * sizes[1]:
        return True
    if one.capability and other.capability and one.capability != other.capability:
        return True
    return bool(one.name and other.name) and _other_names(one.name or "", other.name or "")


def _other_names(one: str, other: str) -> bool:
    if machines.is_sliced(one) != machines.is_sliced(other):
        return True
    mine, theirs = _products(one), _products(other)
    if mine and theirs:
        return not {gpu.name for gpu in mine} & {gpu.name for gpu in theirs}
    words = [machines.words(name) for name in (one, other)]
    return not (words[0] <= words[1] or words[1] <= words[0])


def _products(name: str) -> Sequence[Gpu]:
    found = machines.find(name)
    return (found,) if found is not None else machines.candidates(name)


def fastest(seen: SeenGpu | None, precision: str | None) -> tuple[Gpu, float] | None:
    """(product, FLOP/s) of the fastest that the name and memory may mean, at the published peak of
    ``precision``.

    fp32 may also run as TF32 where the chip has it, and on AMD's matrix cores. None where no record
    names a product of the table, or for a precision without a path. A kernel that is said to be
    faster than this was not timed.
    """
    path = PATH_OF.get(precision or "")
    if seen is None or not seen.name or path is None:
        return None
    paths = (path, "tensor tf32", "tensor fp32") if path == "fp32" else (path,)
    rates = []
    for gpu in (gpu for gpu in _products(seen.name) if _fits(gpu, seen.memory_bytes)):
        flops = machines.flops_per_second(gpu)
        if known := [flops[one] for one in paths if one in flops]:
            rates.append((gpu, max(known)))
    return max(rates, key=lambda rate: rate[1], default=None)


def _fits(gpu: Gpu, memory: int | None) -> bool:
    return memory is None or any(
        min(memory, size * GB) >= SAME_MEMORY * max(memory, size * GB) for size in gpu.memory_gb
    )
