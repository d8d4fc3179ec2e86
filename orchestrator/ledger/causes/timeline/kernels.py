"""Kernels that need not be: casts between float types, chains of kernels that each read what the
former wrote, and matrix products and convolutions on the CUDA cores of a GPU whose tensor cores
could do them.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from operator import attrgetter
from typing import NamedTuple

from perfctl.orchestrator.counts.hardware import machines
from perfctl.orchestrator.counts.kernels.names import recognise_family, recognise_kernel
from perfctl.orchestrator.counts.kernels.short_names import shorten_kernel_names_uniquely
from perfctl.orchestrator.ledger.causes.rule import (
    format_share,
    format_with_si_prefix,
)
from perfctl.orchestrator.ledger.causes.timeline.records import (
    RunVerdict,
    Timeline,
    format_ns,
    sort_names_by_time,
)
from perfctl.orchestrator.ledger.usage.intervals import get_end_ns, get_start_ns, sum_durations_ns
from perfctl.orchestrator.statistics import group_by
from perfctl.records.report import Kernel, OpCall, pluralize_count
from perfctl.records.run import Run

CUDA_CORES_SHARE_MIN = 0.1
"""A smaller share of the kernel time makes no verdict."""
FASTER = 1.5
"""Tensor cores with a smaller multiple of the CUDA cores' peak are not worth the change: TF32 on a
GeForce RTX 3090 has 1."""
_FAMILIES = ("gemm", "conv", "winograd")
_BY_MEMORY = re.compile(r"gemv|gemmsn|gemmk1|dot_kernel", re.IGNORECASE)
"""Products with a vector and with narrow matrices: the time is that of reading the factors."""
_TODO = {
    "tf32": (
        "torch.set_float32_matmul_precision('high') and torch.backends.cudnn.allow_tf32 = True "
        "multiply in TF32: fp32's range, 10 instead of 23 bits of mantissa. Or run the step under "
        "torch.autocast with bf16"
    ),
    "bf16": "Run the step under torch.autocast with bf16 (fp32's range, 7 bits of mantissa)",
    "fp16": "Run the step under torch.autocast with fp16, and training with torch.amp.GradScaler",
}
_HALVES_TODO = (
    "Make rows, columns and channels multiples of 8: tensor kernels of cuBLAS and cuDNN need "
    "factors aligned to 16 bytes"
)

PASSES_SHARE_MIN = 0.05
"""A smaller share of the kernel time makes no verdict."""
SIZES = {
    "float": 4,
    "double": 8,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
    "c10::Float8_e4m3fnuz": 1,
    "c10::Float8_e5m2fnuz": 1,
}
"""Bytes of an element by the names that Kineto writes; float types only."""
_CASTS = re.compile(
    r"(b?float(?:16|8\w*))_copy_kernel|(?:b?float16|float8\w*)tofloat(?:32)?_copy_kernel|"
    r"triton_poi_fused__to_copy_\d+\b",
    re.IGNORECASE,
)
"""Kernels that do nothing but convert between float types."""
CAST_TODO = (
    "Keep weights and activations in the data type of the GEMMs (model.to(torch.bfloat16), "
    "autocast around the whole step and not around single layers), or let torch.compile fuse "
    "casts into their neighbours"
)

SMALL_NS = 5_000
"""A shorter kernel waits for its launch and not for memory."""
WAIT_NS = 100_000
"""Launching the next kernel takes less, also in slow programs."""
ALIKE = 3.0
"""Kernels whose times differ by more cannot both move the same tensor at the memory's rate."""
_LINKS = ("elementwise", "norm", "copy")
_NO_LINK = re.compile(
    "fill|arange|index|gather|scatter|rand|dropout.*backward|foreach|multi_tensor|optimizer|memset",
    re.IGNORECASE,
)
_BLOCK = re.compile(
    r"(?<!vectorized_)(?<!unrolled_)elementwise_kernel<(?:\(int\))?(\d+), ?(?:\(int\))?(\d+)"
)
_TYPE_BYTES = {"BFloat16": 2, "Half": 2, "double": 8, "float": 4}
_TYPE = re.compile("|".join(_TYPE_BYTES))
CHAIN_TODO = (
    "Let torch.compile fuse them, or use fused operators (F.rms_norm, F.layer_norm, F.gelu, a "
    "fused optimizer)"
)


def detect_cast_storm(timeline: Timeline) -> RunVerdict | None:
    """Return casts between floating-point types: from the types and shapes of aten::copy_ if the
    run recorded them, otherwise from kernel names.

    A cast reads each element once and writes it once; bytes are known only with shapes.
    """
    steps = {piece.step for piece in timeline.pieces}
    casts = [
        cast
        for call in timeline.run.report.waiting_calls
        if call.name == "aten::copy_" and call.device_ns and call.step in steps
        if (cast := parse_float_cast(call)) is not None
    ]
    names = tuple(
        name
        for name in dict.fromkeys(kernel.name for kernel in timeline.kernels)
        if _CASTS.search(name)
    )
    kernels = [kernel for kernel in timeline.kernels if kernel.name in names]
    by_name = sum_durations_ns(kernels)
    by_call = sum(cast.took for cast in casts)
    took, count = (by_call, len(casts)) if by_call > by_name else (by_name, len(kernels))
    share = took / timeline.kernel_time_sum_ns
    if share < PASSES_SHARE_MIN:
        return None
    text = (
        f"Casts: {format_share(share)} of the kernel time ({format_ns(took)}, "
        f"{pluralize_count(count, 'kernel')}) "
        "only converts between floating-point types"
    )
    if by_call > by_name:
        pairs: dict[str, float] = defaultdict(float)
        for cast in casts:
            pairs[f"{cast.source} to {cast.target}"] += cast.took
        text += (
            f" and moves {format_with_si_prefix(sum(cast.moved for cast in casts))}B, most of it "
            f"{max(pairs, key=lambda pair: pairs[pair])}"
        )
    return RunVerdict(
        "dtype casts",
        text,
        share,
        "the kernel time",
        f"{CAST_TODO}.",
        kernels=names,
        step_share=took / timeline.measured_wall_ns,
    )


class TypeCast(NamedTuple):
    source: str
    target: str
    moved: int
    """Bytes read and written."""
    took: float
    """ns on the GPU."""


def parse_float_cast(call: OpCall) -> TypeCast | None:
    """Return what a call of aten::copy_(target, source) converts; None if both have one type, or
    one is no float type."""
    try:
        types, shapes = json.loads(call.dtypes or "[]"), json.loads(call.shapes or "[]")
        target, source = types[:2]
        elements = prod(shapes[0])
    except (ValueError, TypeError, IndexError):
        return None
    if source == target or source not in SIZES or target not in SIZES:
        return None
    before, after = (name.removeprefix("c10::").lower() for name in (source, target))
    return TypeCast(before, after, elements * (SIZES[source] + SIZES[target]), call.device_ns or 0)


def detect_fusable_kernel_chains(timeline: Timeline) -> RunVerdict | None:
    """Return consecutive kernels of a stream that are elementwise, casts or normalization and work
    on the same number of elements.

    A fused chain reads its first input and writes its last output: each kernel but one saves a
    write and a read. The share is an upper bound: the time of a chain without its longest kernel,
    over the kernel time.
    """
    fused = list(_list_fusable_kernel_chains(timeline))
    kernels = [kernel for chain in fused for kernel in chain]
    longest = sum(max(kernel.duration_ns or 0 for kernel in chain) for chain in fused)
    took = sum_durations_ns(kernels)
    share = (took - longest) / timeline.kernel_time_sum_ns
    if share < PASSES_SHARE_MIN:
        return None
    passes = len(kernels) - len(fused)
    sizes = [
        size
        for chain in fused
        for kernel in chain[:-1]
        if (size := compute_min_elementwise_write_bytes(kernel)) is not None
    ]
    text = (
        f"Memory-bound chains: {pluralize_count(len(fused), 'chain')} of {len(kernels):,} "
        "elementwise and "
        f"normalization kernels take {format_share(took / timeline.kernel_time_sum_ns)} of "
        f"the kernel time "
        f"({format_ns(took)}). Each kernel may read the output of the previous one. Fusion "
        f"would save {pluralize_count(passes, 'pass')} over memory"
    )
    if sizes:
        which = "" if len(sizes) == passes else f" ({len(sizes):,} of known size)"
        text += f": at least {format_with_si_prefix(2 * sum(sizes))}B less traffic{which}"
    return RunVerdict(
        "memory-bound chain",
        f"{text}, and at most {format_share(share)} of the kernel time",
        share,
        "the kernel time",
        f"{CHAIN_TODO}.",
        "plausible",
        sort_names_by_time(kernels),
        (took - longest) / timeline.measured_wall_ns,
    )


def _list_fusable_kernel_chains(timeline: Timeline) -> Iterator[list[Kernel]]:
    copied: dict[int | None, list[int]] = {}
    for piece in timeline.pieces:
        for stream, kernels in group_by(piece.kernels, attrgetter("stream")).items():
            chain: list[Kernel] = []
            if stream not in copied:
                copies = (copy for copy in timeline.copies if copy.stream in (None, stream))
                copied[stream] = sorted(map(get_start_ns, copies))
            for kernel in kernels:
                if chain and not _may_consume_kernel_output(chain[-1], kernel, copied[stream]):
                    if len(chain) > 1:
                        yield chain
                    chain = []
                is_long = (kernel.duration_ns or 0) >= SMALL_NS
                if (
                    is_long
                    and _is_fusable_kernel_name(kernel.name)
                    and kernel.direction != "optimizer"
                ):
                    chain.append(kernel)
            if len(chain) > 1:
                yield chain


@lru_cache(maxsize=16384)
def _is_fusable_kernel_name(name: str) -> bool:
    return recognise_family(name) in _LINKS and not _NO_LINK.search(name)


def _may_consume_kernel_output(
    before: Kernel, after: Kernel, copy_starts_ns: Sequence[int]
) -> bool:
    """Return whether ``after`` may read what ``before`` wrote, by their sizes; if a grid states
    none, by their times. Not if the stream waited longer than a launch takes, or a copy started in
    between. ``copy_starts_ns``: when those of the stream started, ascending."""
    if not _is_fusable_kernel_name(after.name) or (after.duration_ns or 0) < SMALL_NS:
        return False
    end, start = get_end_ns(before), get_start_ns(after)
    if start - end > WAIT_NS or bisect_left(copy_starts_ns, end) < bisect_left(
        copy_starts_ns, start
    ):
        return False
    low, high = sorted((before.duration_ns or 1, after.duration_ns or 1))
    if high > ALIKE * low:
        return False
    sizes = compute_max_elementwise_elements(before), compute_max_elementwise_elements(after)
    return None in sizes or sizes[0] == sizes[1]


def compute_max_elementwise_elements(kernel: Kernel) -> int | None:
    """Return the most elements that the blocks of an elementwise kernel of PyTorch hold at 4 per
    thread (newer versions: up to 16); None for other kernels."""
    if kernel.grid_x is None or "elementwise_kernel" not in kernel.name:
        return None
    match = _BLOCK.search(kernel.name)
    of_block = int(match[1]) * int(match[2]) if match else 4 * (kernel.block_x or 128)
    return kernel.grid_x * (kernel.grid_y or 1) * (kernel.grid_z or 1) * of_block


def compute_min_elementwise_write_bytes(kernel: Kernel) -> int | None:
    """Return the bytes that an elementwise kernel of PyTorch writes, at least: all blocks but the
    last, in the smallest type that its name has; None for other kernels."""
    elements, types = compute_max_elementwise_elements(kernel), _TYPE.findall(kernel.name)
    if elements is None or not types or kernel.grid_x is None:
        return None
    of_block = elements // (kernel.grid_x * (kernel.grid_y or 1) * (kernel.grid_z or 1))
    return (elements - of_block) * min(_TYPE_BYTES[name] for name in types)


class TensorCoreGain(NamedTuple):
    """The tensor cores that a product could use."""

    device: str
    """Name of the GPU, as the report has it."""
    precision: str
    """tf32, bf16 or fp16."""
    ratio: float
    """Of their peak to that of the CUDA cores in the type of the kernels."""
    peaks: tuple[float, float] | None
    """Both peaks in FLOP/s, dense (1 multiply-add is 2); None where only the architecture is
    known."""


def detect_unused_tensor_cores(timeline: Timeline) -> RunVerdict | None:
    """Return fp32 and fp16 GEMMs of at least 5 µs whose kernel names show that they run on the CUDA
    cores.

    The share is that of the kernel time. Tensor cores would save at most share x (1 - 1 / ratio of
    the peaks): a GEMM that waits for memory gains less. None on GPUs whose tensor cores are
    unknown, or lack the data type.
    """
    for math in ("fp32", "fp16"):
        kernels = [
            kernel
            for kernel in timeline.kernels
            if (kernel.duration_ns or 0) >= SMALL_NS
            and _is_cuda_core_gemm_or_conv(kernel.name, math)
        ]
        took = sum_durations_ns(kernels)
        if took / timeline.kernel_time_sum_ns >= CUDA_CORES_SHARE_MIN:
            tensor = find_faster_tensor_core_precision(timeline.run, timeline.device, math)
            if tensor is not None:
                return _build_unused_tensor_cores_verdict(timeline, math, kernels, took, tensor)
    return None


@lru_cache(maxsize=16384)
def _is_cuda_core_gemm_or_conv(kernel_name: str, math_dtype: str) -> bool:
    """Return whether a kernel computes a product of that type on the CUDA cores, by its name."""
    name = recognise_kernel(kernel_name)
    return (
        name.family in _FAMILIES
        and name.role == "main"
        and name.tensor_core is False
        and name.math == math_dtype
        and not _BY_MEMORY.search(kernel_name)
    )


def _build_unused_tensor_cores_verdict(
    timeline: Timeline,
    math_dtype: str,
    kernels: Sequence[Kernel],
    kernels_ns: float,
    tensor_core_gain: TensorCoreGain,
) -> RunVerdict:
    share = kernels_ns / timeline.kernel_time_sum_ns
    names = sort_names_by_time(kernels)
    kind = "TF32" if tensor_core_gain.precision == "tf32" else tensor_core_gain.precision
    peaks = ""
    if tensor_core_gain.peaks is not None:
        fast, plain = tensor_core_gain.peaks
        peaks = f" ({fast / 1e12:.3g} TFLOP/s against {plain / 1e12:.3g})"
    text = (
        f"Unused tensor cores: convolutions and GEMMs in {math_dtype} on the CUDA cores of the "
        f"{tensor_core_gain.device} take "
        f"{format_share(share)} of the kernel time ({format_ns(kernels_ns)}, "
        f"{pluralize_count(len(kernels), 'launch')}), "
        f"mostly in {shorten_kernel_names_uniquely(names[:1])[names[0]]}. Its tensor cores have "
        f"{tensor_core_gain.ratio:.3g} times that peak in {kind}{peaks}, which would save at most "
        f"{format_share(share * (1 - 1 / tensor_core_gain.ratio))} of the kernel time"
    )
    environment = timeline.run.report.environment
    flags = [name for name in ("tf32_matmul", "tf32_conv") if environment.get(name) == "off"]
    if math_dtype == "fp32" and flags:
        text += f". The run recorded {' and '.join(flags)} as off"
    todo = _HALVES_TODO if math_dtype == "fp16" else _TODO[tensor_core_gain.precision]
    return RunVerdict(
        "unused tensor cores",
        text,
        share,
        "the kernel time",
        f"{todo}.",
        kernels=names,
        step_share=kernels_ns * (1 - 1 / tensor_core_gain.ratio) / timeline.measured_wall_ns,
    )


def find_faster_tensor_core_precision(
    run: Run, device_index: int, math_dtype: str
) -> TensorCoreGain | None:
    """Return the first of tf32, bf16, fp16 that is faster than the CUDA cores of the device by
    ``FASTER``; None without one."""
    device = next(
        (device for device in run.devices if device.index == device_index),
        next(iter(run.devices), None),
    )
    if device is None or device.name is None:
        return None
    gpu = machines.find_gpu_product(device.name)
    rates: Mapping[str, float | None]
    if gpu is not None and not gpu.capability.startswith("gfx"):
        by_path = machines.compute_peak_flops(gpu)
        plain = by_path.get(math_dtype)
        rates = {precision: by_path.get(f"tensor {precision}") for precision in _TODO}
    else:
        capability = device.compute_capability or ""
        chip = machines.find_architecture_by_capability(device.compute_capability)
        # of compute capability 7.5 are chips without tensor cores (GTX 16)
        if gpu is not None or chip is None or capability == "7.5" or capability.startswith("gfx"):
            return None
        plain = chip.fp32 if math_dtype == "fp32" else chip.fp16
        rates = {precision: chip.tensor.get(precision) for precision in _TODO}
    for precision in ("fp16",) if math_dtype == "fp16" else tuple(_TODO):
        rate = rates[precision]
        if rate and plain and rate / plain >= FASTER:
            peaks = (rate, plain) if gpu is not None else None
            return TensorCoreGain(device.name, precision, rate / plain, peaks)
    return None
