"""Derived counts: what a library kernel executes, from its name, its grid and the shape of what
it computes.

Counted instructions are facts of one launch; derived ones are arithmetic with a rule. A kernel
without a rule has none: nothing is guessed. 1 multiply-add = 2 FLOPs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from perfctl.orchestrator.counts.derived import cuda_convolutions, cuda_products, tensor_cores
from perfctl.orchestrator.counts.derived.records import DerivedInstructions, Launch, LaunchWork
from perfctl.orchestrator.counts.kernels.names import Algorithm, recognise_kernel

Rule = Callable[[Launch, Algorithm, LaunchWork], DerivedInstructions | None]
Applies = Callable[[str, Algorithm], bool]
"""Of a kernel's name in lower case and what it says."""


def _make_name_matcher(*parts: str) -> Applies:
    """A name with one of these words."""
    return lambda name, _: any(part in name for part in parts)


RULES: tuple[tuple[Applies, Rule], ...] = (
    (_make_name_matcher("sgemm_", "xmma_gemm_f32f32"), cuda_products.derive_sgemm),
    (_make_name_matcher("splitkreduce"), cuda_products.derive_split_k_reduction),
    (_make_name_matcher("sgemm_largek"), cuda_products.derive_large_k_gemm),
    (_make_name_matcher("globalkernel<"), cuda_products.derive_bias_epilogue),
    (_make_name_matcher("gemmsn_"), cuda_products.derive_small_gemm),
    (_make_name_matcher("gemv2t_kernel_val"), cuda_products.derive_gemv),
    (_make_name_matcher("dot_kernel<float"), cuda_products.derive_dot_product),
    (
        _make_name_matcher("_scudnn_", "_convolve_sgemm<float", "xmma_fprop_implicit_gemm_f32f32"),
        cuda_convolutions.derive_cuda_core_gemm_convolution,
    ),
    (_make_name_matcher("engine<float", "stridedb"), cuda_convolutions.derive_input_gradient),
    (
        lambda _, algorithm: algorithm.tile is not None and not algorithm.tensor_core,
        cuda_convolutions.derive_weight_gradient,
    ),
    (_make_name_matcher("simt_s"), cuda_convolutions.derive_simt_convolution),
    (lambda _, algorithm: not algorithm.tensor_core, cuda_convolutions.derive_winograd_products),
    (_make_name_matcher("cgemm_", "gemm_cf32cf32"), cuda_convolutions.derive_fft_products),
    (
        _make_name_matcher("2d_grouped_direct_kernel", "conv2d_c1_k1_"),
        cuda_convolutions.derive_direct_convolution,
    ),
    (_make_name_matcher("conv_depthwise2d_"), cuda_convolutions.derive_depthwise_convolution),
    (tensor_cores.is_dense_tensor_kernel, tensor_cores.derive_tensor_core_gemm),
    (tensor_cores.is_dense_tensor_kernel, tensor_cores.derive_tensor_convolution),
    (
        _make_name_matcher("_kernel_traits<", "collectivemainloop", "fmha_cutlass", "native_sdpa_"),
        tensor_cores.derive_attention,
    ),
)
"""Each with the names it may know; it looks more closely itself."""


@lru_cache(maxsize=4096)
def _find_rules(name: str) -> tuple[Rule, ...]:
    """A run launches few kernels many times, and most of them have no rule."""
    lowered, algorithm = name.lower(), recognise_kernel(name)
    return tuple(rule for applies, rule in RULES if applies(lowered, algorithm))


def derive_instructions(launch: Launch, work: LaunchWork) -> DerivedInstructions | None:
    """The instructions of one launch that does ``work``; None: no rule for this kernel, or its grid
    is not of this work."""
    algorithm = recognise_kernel(launch.name)
    return next(
        (
            result
            for rule in _find_rules(launch.name)
            if (result := rule(launch, algorithm, work)) is not None
        ),
        None,
    )


@dataclass(frozen=True, slots=True)
class RuleVerification:
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
def read_rule_verifications() -> dict[str, RuleVerification]:
    """Family -> what ``silicon.py`` and ``silicon_aten.py`` (scripts/proof/silicon) measured;
    others are missing."""
    text = Path(__file__).with_name("verified.json").read_text(encoding="utf-8")
    return {family: RuleVerification(**facts) for family, facts in json.loads(text).items()}


def describe_rule_error(family: str) -> str:
    """Return in words how far the derived counts of a family were off on hardware."""
    return f"{family}: {read_rule_verifications().get(family, 'not verified on silicon')}"
