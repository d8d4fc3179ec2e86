"""Rules about tensor cores: multiply-adds that FFMA does not show, and instructions that only
move constants."""

from __future__ import annotations

import re

from perfctl.orchestrator.ledger.causes.breakdown import SPARSE
from perfctl.orchestrator.ledger.causes.evidence import Kernels, RowEvidence
from perfctl.orchestrator.ledger.causes.rule import (
    COUNTED,
    DEVIATION_MIN,
    UNSTATED,
    Cause,
    Implications,
    RowCase,
)

DONE_SHARE_MIN = 0.1
"""Share of the estimate from which on multiply-adds by FFMA, or on tensor cores, are more than
a side effect."""
COMPLETE_ERROR_MAX = 0.02
"""A ratio no further from 1 has all multiply-adds in it."""
TENSOR_MATH = ("tf32", "fp16", "bf16", "fp8", "fp4", "int8")
NCU_TENSOR_OPERATIONS_YEAR_MIN = 2023
"""Versions of ncu from this year on have counters of tensor operations."""

# CUTLASS's templates contain OpMultiplyAddFastF32. Its library's s1688gemm contains neither word:
# cuBLAS names one TF32 product so, too (tools/library/scripts/gemm_operation.py, core_name).
THRICE = re.compile(
    r"3x_?tf32|tf32x3|fast_?f32|fmha_cutlass[fb]_f32_\w+_sm(?:[89]|1\d)\d", re.IGNORECASE
)


def detect_tensor_cores(case: RowCase) -> Cause | None:
    """Tensor cores did the multiply-adds, or some of them; in TF32 if the layer's type is fp32.

    Evidence  tensor counters, kernel names, and whether the run allows TF32 (``tf32_conv``,
              ``tf32_matmul``).
    Factor    1, because the counters show where the work ran and not how much it should be; none if
              tensor FLOPs were not counted.
    Silent    if FFMA did the work and tensor cores less than a tenth of it.
    Fix       collect the tensor counters; ``--precision fp32`` turns TF32 off.
    """
    evidence, kernels = case.evidence, _find_tensor_core_products(case.evidence)
    ffma = evidence.sum_raw_counter_over_kernels("ffma")
    if ffma is None and evidence.derived and any(kernel.tensor.value for kernel in kernels):
        # no rule derives what a tensor kernel does next to its products; they are not FFMA
        ffma = 0
    if ffma is None or not evidence.estimated_flops or not kernels:
        return None
    plain = 2 * ffma / evidence.estimated_flops
    if plain > DONE_SHARE_MIN:  # forward's kernels that run again are another rule's
        kernels = tuple(kernel for kernel in kernels if kernel in case.breakdown.products)
    done = sum(kernel.tensor.value or 0 for kernel in kernels)
    if plain > DONE_SHARE_MIN and done <= DONE_SHARE_MIN * evidence.estimated_flops:
        return None
    maths = (kernel.algorithm.math for kernel in kernels)
    math = next((math for math in maths if math in TENSOR_MATH), None)
    convolution = "Conv" in (evidence.row.kind or "")
    allowed = evidence.environment.get("tf32_conv" if convolution else "tf32_matmul")
    may_be_tf32 = evidence.precision in ("fp32", "tf32") and allowed == "on"
    tf32 = math == "tf32" or (math is None and may_be_tf32)
    thrice = all(THRICE.search(kernel.name) for kernel in kernels)
    by_program = tf32 and not thrice and allowed == "off"
    error = abs((case.ratio or 0) - 1)
    year = re.match(r"(\d{4})\.", evidence.ncu or "")
    is_short = done < (1 - COMPLETE_ERROR_MAX) * evidence.estimated_flops
    types = {kernel.algorithm.math for kernel in _find_tensor_core_products(evidence)} - {None}
    return case.make_cause_unless_contradicted(
        "TF32" if tf32 else "tensor cores",
        1.0 if done else None,
        kernels,
        UNSTATED if evidence.derived and is_short else COUNTED,
        "executed" if done else "not derived" if evidence.derived else "not counted",
        share=done / evidence.estimated_flops,
        math="TF32" if tf32 else math,
        tf32=tf32 and not thrice and not by_program,  # three products are fp32 already
        allowed=allowed if tf32 and not by_program else None,
        # TF32 was off when the run started, so no option of perfctl turns it off
        by_program=by_program,
        plain=plain,
        ffma=plain if plain > DEVIATION_MIN else None,
        pipe=evidence.sum_raw_counter_over_kernels("pipe"),
        complete=error <= COMPLETE_ERROR_MAX and not evidence.row.executed.lower_bound,
        # this ncu has counters of tensor operations
        newer_ncu=year is not None and int(year[1]) >= NCU_TENSOR_OPERATIONS_YEAR_MIN,
        operand=str(*types) if len(types) == 1 else "",
    )


def _find_tensor_core_products(evidence: RowEvidence) -> Kernels:
    """Return products on tensor cores by their counters; by name if none were collected."""
    return tuple(
        kernel
        for kernel in evidence.product_kernels
        if (
            kernel.counts.get("pipe", kernel.algorithm.tensor_core)
            if kernel.tensor.value is None
            else kernel.tensor.value > 0
        )
    )


def detect_fp32_emulated_by_3xtf32(case: RowCase) -> Cause | None:
    """Three TF32 products emulate one in fp32.

    Evidence  the names of all products (``3xtf32``, ``fastf32``).
    Factor    3.
    Silent    if any product has another name.
    Fix       none; three products keep the precision of fp32.
    """
    return _propose_if_kernel_names_match(case, "3xTF32", 3.0, THRICE)


def detect_structured_sparsity(case: RowCase) -> Cause | None:
    """Tensor cores with 2:4 sparsity do half of the multiplies.

    Evidence  the names of all products (``sparse``, ``spgemm``, ``sptensor``).
    Factor    0.5.
    Silent    if any product has another name.
    Fix       none; two of four weights are zero.
    """
    return _propose_if_kernel_names_match(case, "2:4 sparsity", 0.5, SPARSE)


def _propose_if_kernel_names_match(
    case: RowCase, rule: str, factor: float, pattern: re.Pattern[str]
) -> Cause | None:
    matching = [
        kernel
        for kernel in _find_tensor_core_products(case.evidence)
        if pattern.search(kernel.name)
    ]
    if (
        case.executed_flops is None
        or not matching
        or len(matching) != len(case.evidence.product_kernels)
    ):
        return None
    return case.make_cause_unless_contradicted(rule, factor, matching, Implications())


def detect_hfma2_constant_moves(case: RowCase) -> Cause | None:
    """HFMA2 instructions that move constants count as fp16 and, on CC 8.x and 9.x, as tensor work.

    Evidence  HFMA counts of kernels whose fp16 figure was left out for this reason.
    Factor    none; the instructions are not in the count. The sentence says what they would have
              added.
    Silent    if no kernel has such instructions.
    Fix       leave them out of your own sums.
    """
    evidence = case.evidence
    kernels = tuple(
        kernel
        for kernel in evidence.kernels
        if kernel.counts.get("hfma") and kernel.flops.moves_constants
    )
    if not kernels:
        return None
    halves = sum(kernel.counts["hfma"] for kernel in kernels)
    pipe = sum(kernel.counts.get("pipe", 0) for kernel in kernels)
    seeming = 2 * halves + 512 * pipe
    certain = all(
        kernel.flops.value is not None and not any("fp16" in part for part in kernel.flops.missing)
        for kernel in kernels
    )
    return case.make_cause_unless_contradicted(
        "constant moves",
        None,
        kernels,
        Implications(is_counted=True, is_stated=certain),
        halves=halves,
        pipe=pipe,
        seeming=seeming,
        share=seeming / evidence.estimated_flops if evidence.estimated_flops else 0,
        certain=certain,
    )
