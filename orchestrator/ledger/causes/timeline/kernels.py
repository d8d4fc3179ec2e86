"""Kernels that need not be: casts between float types, chains of kernels that each read what the
former wrote, and matrix products and convolutions on the CUDA cores of a GPU whose tensor cores
could do them.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from perfctl.orchestrator.counts.hardware import machines
from perfctl.orchestrator.counts.kernels.names import family, recognise
from perfctl.orchestrator.counts.kernels.short_names import shorten
from perfctl.orchestrator.ledger.causes.rule import amount, percent
from perfctl.orchestrator.ledger.causes.timeline.records import (
    RunVerdict,
    Timeline,
    milliseconds,
    named,
)
from perfctl.records.report import Kernel, OpCall

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
    "Keep weights and activations in the type of the products (model.to(torch.bfloat16), autocast "
    "around the whole step and not around single layers), or let torch.compile fuse casts into "
    "their neighbours"
)

SMALL_NS = 5_000
"""A shorter kernel waits for its launch and not for memory."""
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
_TYPE = re.compile(r"BFloat16|Half|double|float")
CHAIN_TODO = (
    "Let torch.compile fuse them, or use fused operators (F.rms_norm, F.layer_norm, F.gelu, a "
    "fused optimizer)"
)


@lru_cache(maxsize=8192)
def _is_cast(kernel: str) -> bool:
    return _CASTS.search(kernel) is not None


def cast_storm(found: Timeline) -> RunVerdict | None:
    """Casts between float types: by the types and shapes of aten::copy_ where they were recorded,
    else by kernel names.

    A cast reads each element once and writes it once; bytes are known only with shapes.
    """
    calls = [
        call
        for call in found.run.report.waiting_calls
        if call.name == "aten::copy_" and call.device_ns
    ]
    steps = {piece.step for piece in found.pieces}
    mine = [call for call in calls if call.dtypes is not None and call.step in steps]
    casts = [cast for call in mine if (cast := read_cast(call)) is not None]
    kernels = [kernel for kernel in found.kernels if _is_cast(kernel.name)]
    by_name, by_call = (
        sum(kernel.duration_ns or 0 for kernel in kernels),
        sum(cast.took for cast in casts),
    )
    took, often = (by_call, len(casts)) if by_call > by_name else (by_name, len(kernels))
    share = took / found.kernel_ns
    if share < PASSES_SHARE_MIN:
        return None
    text = (
        f"Casts: {percent(share)} of the kernel time ({milliseconds(took)}, {often:,} kernels) "
        "only converts between float types"
    )
    if by_call > by_name:
        text += f" and moves {amount(sum(cast.moved for cast in casts))}B"
        pairs: dict[str, float] = defaultdict(float)
        for cast in casts:
            pairs[f"{cast.source} to {cast.target}"] += cast.took
        text += f", most of it {max(pairs, key=lambda pair: pairs[pair])}"
    names = named([kernel.name for kernel in kernels], {})
    return RunVerdict(
        "dtype casts", f"{text}.", share, "the kernel time", f"{CAST_TODO}.", kernels=names
    )


class Cast(NamedTuple):
    source: str
    target: str
    moved: int
    """Bytes read and written."""
    took: float
    """ns on the GPU."""


def read_cast(call: OpCall) -> Cast | None:
    """What a call of aten::copy_(target, source) converts; None where both have one type, or one is
    no float type."""
    try:
        types, shapes = json.loads(call.dtypes or "[]"), json.loads(call.shapes or "[]")
        target, source = types[:2]
        elements = prod(shapes[0])
    except (ValueError, TypeError, IndexError):
        return None
    if source == target or source not in SIZES or target not in SIZES:
        return None
    before, after = (name.removeprefix("c10::").lower() for name in (source, target))
    return Cast(before, after, elements * (SIZES[source] + SIZES[target]), call.device_ns or 0)


def chains(found: Timeline) -> RunVerdict | None:
    """Consecutive kernels of a stream that are elementwise, casts or normalisation and work on as
    many elements.

    Fused, a chain reads its first input and writes its last output: each kernel but one saves a
    write and a read. The share is an upper bound: all of a chain's time but that of its longest
    kernel, of the kernel time.
    """
    known = list(_chains(found))
    saved = sum(sum(times := _times(chain)) - max(times) for chain in known)
    share = saved / found.kernel_ns
    if share < PASSES_SHARE_MIN:
        return None
    passes, took = (
        sum(len(chain) - 1 for chain in known),
        sum(sum(_times(chain)) for chain in known),
    )
    sizes = [
        size
        for chain in known
        for kernel in chain[:-1]
        if (size := least_bytes(kernel)) is not None
    ]
    text = (
        f"Memory-bound chains: {len(known):,} chains of {passes + len(known):,} elementwise and "
        f"normalisation kernels take {percent(took / found.kernel_ns)} of the kernel time "
        f"({milliseconds(took)}), and each may read what the one before it wrote. Fused, "
        f"{passes:,} passes over memory go"
    )
    if sizes:
        which = "" if len(sizes) == passes else f" ({len(sizes):,} of them known)"
        text += f": at least {amount(2 * sum(sizes))}B less to read and write{which}"
    text += f", and {percent(share)} of the kernel time at most"
    names = [kernel.name for chain in known for kernel in chain]
    sums: dict[str, float] = defaultdict(float)
    for chain in known:
        for kernel in chain:
            sums[kernel.name] += kernel.duration_ns or 0
    return RunVerdict(
        "memory-bound chain",
        f"{text}.",
        share,
        "the kernel time",
        f"{CHAIN_TODO}.",
        "plausible",
        named(names, sums),
    )


def _times(chain: Sequence[Kernel]) -> list[float]:
    return [kernel.duration_ns or 0 for kernel in chain]


def _chains(found: Timeline) -> Iterator[list[Kernel]]:
    for piece in found.pieces:
        streams: dict[int | None, list[Kernel]] = defaultdict(list)
        for kernel in piece.kernels:
            streams[kernel.stream].append(kernel)
        for kernels in streams.values():
            chain: list[Kernel] = []
            for kernel in kernels:
                if chain and not _follows(chain[-1], kernel):
                    if len(chain) > 1:
                        yield chain
                    chain = []
                if (
                    _is_link(kernel.name)
                    and (kernel.duration_ns or 0) >= SMALL_NS
                    and kernel.direction != "optimizer"
                ):
                    chain.append(kernel)
            if len(chain) > 1:
                yield chain


@lru_cache(maxsize=16384)
def _is_link(name: str) -> bool:
    return family(name) in _LINKS and not _NO_LINK.search(name)


def _follows(before: Kernel, after: Kernel) -> bool:
    """Whether ``after`` may read what ``before`` wrote, by their sizes; where a grid says none, by
    their times."""
    if not _is_link(after.name) or (after.duration_ns or 0) < SMALL_NS:
        return False
    low, high = sorted((before.duration_ns or 1, after.duration_ns or 1))
    if high > ALIKE * low:
        return False
    sizes = elements(before), elements(after)
    return None in sizes or sizes[0] == sizes[1]


def elements(kernel: Kernel) -> int | None:
    """Most elements that the blocks of an elementwise kernel of PyTorch hold at 4 a thread (newer
    versions: up to 16); None for other kernels."""
    if kernel.grid_x is None or "elementwise_kernel" not in kernel.name:
        return None
    each = (
        int(match[1]) * int(match[2])
        if (match := _BLOCK.search(kernel.name))
        else 4 * (kernel.block_x or 128)
    )
    return kernel.grid_x * (kernel.grid_y or 1) * (kernel.grid_z or 1) * each


def least_bytes(kernel: Kernel) -> int | None:
    """Bytes that an elementwise kernel of PyTorch writes, at least: whole blocks but the last, in
    the smallest type that its name has; None for other kernels."""
    held, types = elements(kernel), _TYPE.findall(kernel.name)
    if held is None or not types or kernel.grid_x is None:
        return None
    each = held // (kernel.grid_x * (kernel.grid_y or 1) * (kernel.grid_z or 1))
    return (held - each) * min(
        {"BFloat16": 2, "Half": 2, "float": 4, "double": 8}[one] for one in types
    )


class TensorCores(NamedTuple):
    """The tensor cores that a product could use."""

    name: str
    """Of the GPU."""
    kind: str
    """TF32, bf16 or fp16."""
    peak: float | None
    """FLOP/s, dense (1 multiply-add is 2); None where only the architecture is known."""
    plain: float | None
    """FLOP/s of the CUDA cores in the type of the kernels."""
    ratio: float


def unused_tensor_cores(found: Timeline) -> RunVerdict | None:
    """fp32 and fp16 products by kernels whose names say that they run on the CUDA cores, of at
    least 5 us each.

    The share is of the kernel time. What tensor cores would save is at most share x (1 - 1 / ratio
    of the peaks): a product that waits for memory gains less. Not on GPUs whose tensor cores are
    unknown, or have no such type.
    """
    for math in ("fp32", "fp16"):
        kernels = [kernel for kernel in found.kernels if _is_plain(kernel, math)]
        took = sum(one.duration_ns or 0 for one in kernels)
        tensor = tensor_of(found, math) if took / found.kernel_ns >= CUDA_CORES_SHARE_MIN else None
        if tensor is not None:
            return _verdict(found, math, kernels, took, tensor)
    return None


def _is_plain(kernel: Kernel, math: str) -> bool:
    if (kernel.duration_ns or 0) < SMALL_NS:
        return False
    said = recognise(kernel.name)
    is_product = (
        said.family in _FAMILIES
        and said.role == "main"
        and said.tensor_core is False
        and said.math == math
    )
    return is_product and not _BY_MEMORY.search(kernel.name)


def _verdict(
    found: Timeline, math: str, kernels: list[Kernel], took: float, tensor: TensorCores
) -> RunVerdict:
    share = took / found.kernel_ns
    sums: dict[str, float] = defaultdict(float)
    for one in kernels:
        sums[one.name] += one.duration_ns or 0
    names = named(list(sums), sums)
    most, peaks = shorten(names[:1])[names[0]], ""
    if tensor.peak is not None and tensor.plain is not None:
        peaks = f" ({tensor.peak / 1e12:.3g} TFLOP/s against {tensor.plain / 1e12:.3g})"
    text = (
        f"Unused tensor cores: {percent(share)} of the kernel time ({milliseconds(took)}, "
        f"{len(kernels):,} launches) is products in {math} on the CUDA cores of the {tensor.name}, "
        f"most in {most}. Its tensor cores have {tensor.ratio:.3g} times that peak in "
        f"{tensor.kind}{peaks}: {percent(share * (1 - 1 / tensor.ratio))} of the kernel time less, "
        f"at most{_switched_off(found, math)}"
    )
    todo = _HALVES_TODO if math == "fp16" else _TODO[tensor.kind.lower()]
    return RunVerdict(
        "unused tensor cores", f"{text}.", share, "the kernel time", f"{todo}.", kernels=names
    )


def _switched_off(found: Timeline, math: str) -> str:
    flags = [
        name
        for name in ("tf32_matmul", "tf32_conv")
        if found.run.report.environment.get(name) == "off"
    ]
    if math != "fp32" or not flags:
        return ""
    return f". The run recorded {' and '.join(flags)} as off"


def tensor_of(found: Timeline, math: str) -> TensorCores | None:
    """The first of tf32, bf16, fp16 that is faster than the CUDA cores by :data:`FASTER`; None
    without one."""
    device = next(
        (one for one in found.run.devices if one.index == found.device),
        next(iter(found.run.devices), None),
    )
    if device is None or device.name is None:
        return None
    gpu = machines.find(device.name)
    if gpu is not None and not gpu.capability.startswith("gfx"):
        rates = machines.flops_per_second(gpu)
        return _first(
            gpu.name,
            math,
            {kind: rates.get(f"tensor {kind}") for kind in _TODO},
            rates.get(math),
            True,
        )
    capability = device.compute_capability
    chip = machines.architecture(capability)
    if (
        gpu is not None
        or chip is None
        or capability == "7.5"
        or (capability or "").startswith("gfx")
    ):
        return None  # of compute capability 7.5 are chips without tensor cores (GTX 16)
    plain = chip.fp32 if math == "fp32" else chip.fp16
    return _first(device.name, math, {kind: chip.tensor.get(kind) for kind in _TODO}, plain, False)


def _first(
    name: str,
    math: str,
    rates: dict[str, float | None] | dict[str, int | None],
    plain: float | None,
    known: bool,
) -> TensorCores | None:
    kinds = ("fp16",) if math == "fp16" else tuple(_TODO)
    for kind in kinds:
        rate = rates[kind]
        if rate and plain and rate / plain >= FASTER:
            return TensorCores(
                name,
                "TF32" if kind == "tf32" else kind,
                rate if known else None,
                plain if known else None,
                rate / plain,
            )
    return None
