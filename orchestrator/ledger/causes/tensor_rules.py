"""Rules about tensor cores: multiply-adds that FFMA does not show, and instructions that only
move constants."""

from __future__ import annotations

import re

from perfctl.orchestrator.ledger.causes.evidence import KernelGroup, RowEvidence
from perfctl.orchestrator.ledger.causes.rule import (
    NEWS,
    RuleInput,
    Verdict,
    amount,
    percent,
    times,
    verdict,
)

NEAR_ZERO = 0.1
"""Share of paper above which multiply-adds count as done: below it by FFMA, or on tensor cores,
they are none to speak of."""
TENSOR_MATH = ("tf32", "fp16", "bf16", "fp8", "fp4", "int8")
NEW_NCU = 2023
"""Versions of ncu from this year on have counters of tensor operations."""

THRICE = re.compile(
    r"3x_?tf32|tf32x3|fast_?f32|fmha_cutlass[fb]_f32_\w+_sm(?:[89]|1\d)\d", re.IGNORECASE
)
SPARSE = re.compile(
    r"(?<![a-z])(?:sparse|spgemm|spmma)(?![a-z])|sparse(?:gemm|tensorop)|sptensorop", re.IGNORECASE
)


def tensor_cores(given: RuleInput) -> Verdict | None:
    """Tensor cores did the multiply-adds, or some of them; TF32 when the layer's type is fp32.

    The counters say so, and nothing here predicts how many there are: the factor is 1, and gaps are
    for other rules.
    """
    evidence = given.evidence
    ffma = evidence.total("ffma")
    kernels = _tensor_kernels(evidence)
    if ffma is None and evidence.derived and any(kernel.tensor.value for kernel in kernels):
        # no rule says what a tensor kernel does beside its products, and it is not FFMA for them
        ffma = 0
    if ffma is None or not evidence.paper or not kernels:
        return None
    done = sum(kernel.tensor.value or 0 for kernel in kernels)
    plain = 2 * ffma / evidence.paper
    if plain > NEAR_ZERO:  # a mixture: forward's kernels that run again are told by another rule
        kernels = tuple(one for one in kernels if one in given.breakdown.products)
        done = sum(kernel.tensor.value or 0 for kernel in kernels)
    if plain > NEAR_ZERO and done <= NEAR_ZERO * evidence.paper:
        return None
    math = next(
        (kernel.algorithm.math for kernel in kernels if kernel.algorithm.math in TENSOR_MATH), None
    )
    allowed = evidence.environment.get(
        "tf32_conv" if "Conv" in (evidence.row.kind or "") else "tf32_matmul"
    )
    tf32 = math == "tf32" or (
        math is None and evidence.precision in ("fp32", "tf32") and allowed == "on"
    )
    flags = f" (tf32 is {allowed} in this run)" if tf32 and allowed else ""
    kind = " in TF32" if tf32 else f" in {math}" if math else ""
    if done:
        beside = f", and FFMA {percent(plain)}" if plain > NEWS else ""
        share = (
            f"{times(done / evidence.paper)} of the multiply-adds on paper on tensor "
            f"cores{kind}{beside}"
        )
        sentence = f"{given.who} executed {share}{flags}."
        factor: float | None = 1.0
        near = (
            given.ratio is not None
            and abs(given.ratio - 1) <= 0.02
            and not evidence.row.counted.lower_bound
        )
        todo = (
            "Nothing is missing: both paths are in the count."
            if near
            else "Both paths are in the count."
        )
    elif evidence.derived:
        factor = None
        sentence = (
            f"{given.who} runs tensor-core kernels{kind}, by their names; no rule derives their "
            f"FLOPs{flags}."
        )
        todo = "'perfctl ncu' counts them."
    else:
        factor = None
        pipe = evidence.total("pipe")
        known = (
            f"ran {pipe:,.0f} tensor instructions"
            if pipe
            else "runs tensor-core kernels, by their names,"
        )
        sentence = (
            f"{given.who} {known} whose FLOPs were not counted{flags}; FFMA did {percent(plain)} "
            "of the multiply-adds on paper."
        )
        todo = (
            f"{_collect(evidence)}, or run once with TF32 off."
            if tf32
            else f"{_collect(evidence)}."
        )
    if tf32:
        todo += " --precision fp32 turns TF32 off."
    return verdict(given, "TF32" if tf32 else "tensor cores", sentence, factor, todo, kernels)


def _tensor_kernels(evidence: RowEvidence) -> tuple[KernelGroup, ...]:
    """By the counters; by name where they were not collected."""
    return tuple(
        one
        for one in evidence.product_kernels
        if (
            one.counts.get("pipe", one.algorithm.tensor_core)
            if one.tensor.value is None
            else one.tensor.value > 0
        )
    )


def _collect(evidence: RowEvidence) -> str:
    found = re.match(r"(\d{4})\.", evidence.ncu or "")
    if found and int(found[1]) >= NEW_NCU:
        types = {kernel.algorithm.math for kernel in _tensor_kernels(evidence)} - {None}
        named = sorted(str(math) for math in types)
        return (
            f"Collect sm__ops_path_tensor_src_{named[0] if len(named) == 1 else '*'}*.sum too"
        ).replace("**", "*")
    return "Collect sm__ops_path_tensor_src_*.sum with a newer ncu than 2022.3"


# CUTLASS's templates say OpMultiplyAddFastF32. Its library's s1688gemm says neither: cuBLAS names
# one TF32 product so, too (tools/library/scripts/gemm_operation.py, core_name). 2:4: s16832spgemm,
# SparseGemm, cutlass3x_sm100_sptensorop.


def three_tf32(given: RuleInput) -> Verdict | None:
    """fp32 emulated by three TF32 products."""
    if given.counted is None:
        return None
    kernels = tuple(
        kernel for kernel in _tensor_kernels(given.evidence) if THRICE.search(kernel.name)
    )
    if not kernels or len(kernels) != len(given.evidence.product_kernels):
        return None
    sentence = (
        f"{given.who} multiplies fp32 as 3 TF32 products (3xTF32, by the kernel's name): 3.00 "
        "times the FLOPs on paper."
    )
    todo = "Expected: three products keep fp32's precision on tensor cores."
    return verdict(given, "3xTF32", sentence, 3.0, todo, kernels, "predicted and matched")


def sparsity(given: RuleInput) -> Verdict | None:
    """2:4 sparse tensor cores do half of the multiplies."""
    if given.counted is None:
        return None
    kernels = tuple(
        kernel for kernel in _tensor_kernels(given.evidence) if SPARSE.search(kernel.name)
    )
    if not kernels or len(kernels) != len(given.evidence.product_kernels):
        return None
    sentence = (
        f"{given.who} runs a sparse tensor-core kernel, by its name: 2:4 sparsity does 0.500 of "
        "the multiply-adds on paper."
    )
    todo = "Expected: two of four weights are zero, and paper counts all four."
    return verdict(given, "2:4 sparsity", sentence, 0.5, todo, kernels, "predicted and matched")


def constant_moves(given: RuleInput) -> Verdict | None:
    """HFMA2 instructions that move constants count as fp16 and, on CC 8.x and 9.x, as
    tensor work."""
    evidence = given.evidence
    kernels = tuple(
        kernel
        for kernel in evidence.kernels
        if kernel.counts.get("hfma") and "constant" in (kernel.flops.reason or "")
    )
    if not kernels:
        return None
    halves = sum(kernel.counts["hfma"] for kernel in kernels)
    pipe = sum(kernel.counts.get("pipe", 0) for kernel in kernels)
    seeming = 2 * halves + 512 * pipe
    also = f" and {pipe:,.0f} tensor instructions" if pipe else ""
    share = percent(seeming / evidence.paper if evidence.paper else 0)
    sure = all(
        one.flops.value is not None and not any("fp16" in part for part in one.flops.missing)
        for one in kernels
    )
    added = (
        f"added up they would be {amount(seeming)}FLOP, {share} of "
        f"paper{', that nobody computed' if sure else ''}"
    )
    sentence = (
        f"{given.who} shows {halves:,.0f} HFMA{also} that {'' if sure else 'may only '}move "
        f"constants: {added}."
    )
    todo = "They are left out of the count; leave them out of your own sums too."
    return verdict(
        given, "constant moves", sentence, None, todo, kernels, "observed" if sure else "plausible"
    )
