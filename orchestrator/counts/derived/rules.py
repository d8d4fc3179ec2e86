"""Derived counts: what a library kernel executes, from its name, its grid and the shape of what
it computes.

Counted instructions are facts of one launch; derived ones are arithmetic with a rule. A kernel
without a rule has none: nothing is guessed. 1 multiply-add = 2 FLOPs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from perfctl.orchestrator.counts.derived import cuda_convolutions, cuda_products, tensor_cores
from perfctl.orchestrator.counts.derived.records import Derived, Launch, Work
from perfctl.orchestrator.counts.kernels.names import Algorithm, recognise

Rule = Callable[[Launch, Algorithm, Work], Derived | None]
Applies = Callable[[str, Algorithm], bool]
"""Of a kernel's name in lower case and what it says."""


def _name_has(*parts: str) -> Applies:
    """A name with one of these words."""
    return lambda name, _: any(part in name for part in parts)


RULES: tuple[tuple[Applies, Rule], ...] = (
    (_name_has("sgemm_", "xmma_gemm_f32f32"), cuda_products.sgemm),
    (_name_has("splitkreduce"), cuda_products.reduction),
    (_name_has("sgemm_largek"), cuda_products.large_sum),
    (_name_has("globalkernel<"), cuda_products.bias_epilogue),
    (_name_has("gemmsn_"), cuda_products.small_columns),
    (_name_has("gemv2t_kernel_val"), cuda_products.vector),
    (_name_has("dot_kernel<float"), cuda_products.dot),
    (
        _name_has("_scudnn_", "_convolve_sgemm<float", "xmma_fprop_implicit_gemm_f32f32"),
        cuda_convolutions.convolution,
    ),
    (_name_has("engine<float", "stridedb"), cuda_convolutions.input_gradient),
    (lambda _, algorithm: cuda_convolutions.in_tiles(algorithm), cuda_convolutions.weight_gradient),
    (_name_has("simt_s"), cuda_convolutions.simt),
    (lambda _, algorithm: not algorithm.tensor_core, cuda_convolutions.transformed),
    (_name_has("cgemm_", "gemm_cf32cf32"), cuda_convolutions.fourier),
    (_name_has("2d_grouped_direct_kernel", "conv2d_c1_k1_"), cuda_convolutions.direct),
    (_name_has("conv_depthwise2d_"), cuda_convolutions.depthwise),
    (tensor_cores.is_dense, tensor_cores.product),
    (tensor_cores.is_dense, tensor_cores.convolution),
    (
        _name_has("_kernel_traits<", "collectivemainloop", "fmha_cutlass", "native_sdpa_"),
        tensor_cores.attention,
    ),
)
"""Each with the names it may know; it looks more closely itself."""


@lru_cache(maxsize=4096)
def _rules_of(name: str) -> tuple[Rule, ...]:
    """A run launches few kernels many times, and most of them have no rule."""
    lowered, algorithm = name.lower(), recognise(name)
    return tuple(rule for applies, rule in RULES if applies(lowered, algorithm))


def derive(launch: Launch, work: Work) -> Derived | None:
    """The instructions of one launch that does ``work``; None: no rule for this kernel, or its grid
    is not of this work."""
    algorithm = recognise(launch.name)
    return next(
        (
            result
            for rule in _rules_of(launch.name)
            if (result := rule(launch, algorithm, work)) is not None
        ),
        None,
    )


@dataclass(frozen=True, slots=True)
class Verified:
    """How a family's rule did on launches whose counters are known."""

    launches: int
    within: float
    """Largest error of FFMA (or tensor operations) on 95 of 100 launches: 0.01 is 1%."""
    worst: float
    chip: str

    def __str__(self) -> str:
        on = f"{self.launches:,} launches on {self.chip}"
        if not self.worst:
            return f"exact on {on}"
        return f"within {100 * self.within:.2g}% on 95% of {on}, {100 * self.worst:.2g}% at worst"


@lru_cache(maxsize=1)
def verified() -> dict[str, Verified]:
    """Family -> what ``silicon.py`` and ``silicon_aten.py`` (scripts/proof/silicon) measured;
    others are missing."""
    text = Path(__file__).with_name("verified.json").read_text(encoding="utf-8")
    return {family: Verified(**facts) for family, facts in json.loads(text).items()}


def error_of(families: Sequence[str]) -> str:
    """In words, how far derived counts of these families were off on hardware."""
    errors = verified()
    parts = [
        f"{family}: {errors[family]}" if family in errors else f"{family}: not verified on silicon"
        for family in families
    ]
    return "; ".join(parts)
