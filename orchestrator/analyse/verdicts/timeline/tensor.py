"""Unused tensor cores: matrix products and convolutions on the CUDA cores of a GPU whose tensor cores could do them."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import NamedTuple

from perfctl.orchestrator.analyse.hardware import gpus
from perfctl.orchestrator.analyse.kernels.names import recognise
from perfctl.orchestrator.analyse.kernels.short_names import shorten
from perfctl.orchestrator.analyse.verdicts.rule import percent
from perfctl.orchestrator.analyse.verdicts.timeline.passes import SMALL_NS
from perfctl.orchestrator.analyse.verdicts.timeline.records import RunVerdict, Timeline, milliseconds, named
from perfctl.records.report import Kernel

WORTH = 0.1
"""A smaller share of the kernel time makes no verdict."""
FASTER = 1.5
"""Tensor cores with a smaller multiple of the CUDA cores' peak are not worth the change: TF32 on a GeForce RTX 3090 has 1."""
_FAMILIES = ("gemm", "conv", "winograd")
_BY_MEMORY = re.compile(r"gemv|gemmsn|gemmk1|dot_kernel", re.IGNORECASE)
"""Products with a vector and with narrow matrices: the time is that of reading the factors."""
_TODO = {
    "tf32": "torch.set_float32_matmul_precision('high') and torch.backends.cudnn.allow_tf32 = True multiply in TF32: fp32's range, "
            "10 instead of 23 bits of mantissa. Or run the step under torch.autocast with bf16",
    "bf16": "Run the step under torch.autocast with bf16 (fp32's range, 7 bits of mantissa)",
    "fp16": "Run the step under torch.autocast with fp16, and training with torch.amp.GradScaler",
}  # fmt: skip
_HALVES_TODO = "Make rows, columns and channels multiples of 8: tensor kernels of cuBLAS and cuDNN need factors aligned to 16 bytes"


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
    """fp32 and fp16 products by kernels whose names say that they run on the CUDA cores, of at least 5 us each.

    The share is of the kernel time. What tensor cores would save is at most share x (1 - 1 / ratio of the peaks): a product
    that waits for memory gains less. Not on GPUs whose tensor cores are unknown, or have no such type.
    """
    for math in ("fp32", "fp16"):
        kernels = [one for piece in found.pieces for one in piece.kernels if _is_plain(one, math)]
        took = sum(one.duration_ns or 0 for one in kernels)
        tensor = tensor_of(found, math) if took / found.kernel_ns >= WORTH else None
        if tensor is not None:
            return _verdict(found, math, kernels, took, tensor)
    return None


def _is_plain(kernel: Kernel, math: str) -> bool:
    if (kernel.duration_ns or 0) < SMALL_NS:
        return False
    said = recognise(kernel.name)
    is_product = said.family in _FAMILIES and said.role == "main" and said.tensor_core is False and said.math == math
    return is_product and not _BY_MEMORY.search(kernel.name)


def _verdict(found: Timeline, math: str, kernels: list[Kernel], took: float, tensor: TensorCores) -> RunVerdict:
    share = took / found.kernel_ns
    sums: dict[str, float] = defaultdict(float)
    for one in kernels:
        sums[one.name] += one.duration_ns or 0
    names = named(list(sums), sums)
    most, peaks = shorten(names[:1])[names[0]], ""
    if tensor.peak is not None and tensor.plain is not None:
        peaks = f" ({tensor.peak / 1e12:.3g} TFLOP/s against {tensor.plain / 1e12:.3g})"
    text = (
        f"Unused tensor cores: {percent(share)} of the kernel time ({milliseconds(took)}, {len(kernels):,} launches) is products in "
        f"{math} on the CUDA cores of the {tensor.name}, most in {most}. Its tensor cores have {tensor.ratio:.3g} times that peak in "
        f"{tensor.kind}{peaks}: {percent(share * (1 - 1 / tensor.ratio))} of the kernel time less, at "
        f"most{_switched_off(found, math)}"
    )
    todo = _HALVES_TODO if math == "fp16" else _TODO[tensor.kind.lower()]
    return RunVerdict("unused tensor cores", f"{text}.", share, "the kernel time", f"{todo}.", kernels=names)


def _switched_off(found: Timeline, math: str) -> str:
    flags = [name for name in ("tf32_matmul", "tf32_conv") if found.run.report.environment.get(name) == "off"]
    if math != "fp32" or not flags:
        return ""
    return f". The run recorded {' and '.join(flags)} as off"


def tensor_of(found: Timeline, math: str) -> TensorCores | None:
    """The first of tf32, bf16, fp16 that is faster than the CUDA cores by :data:`FASTER`; None without one."""
    device = next((one for one in found.run.devices if one.index == found.device), next(iter(found.run.devices), None))
    if device is None or device.name is None:
        return None
    gpu = gpus.find(device.name)
    if gpu is not None and not gpu.capability.startswith("gfx"):
        rates = gpus.flops_per_second(gpu)
        return _first(gpu.name, math, {kind: rates.get(f"tensor {kind}") for kind in _TODO}, rates.get(math), True)
    capability = device.compute_capability
    chip = gpus.architecture(capability)
    if gpu is not None or chip is None or capability == "7.5" or (capability or "").startswith("gfx"):
        return None  # of compute capability 7.5 are chips without tensor cores (GTX 16)
    plain = chip.fp32 if math == "fp32" else chip.fp16
    return _first(device.name, math, {kind: chip.tensor.get(kind) for kind in _TODO}, plain, False)


def _first(
    name: str, math: str, rates: dict[str, float | None] | dict[str, int | None], plain: float | None, known: bool
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
