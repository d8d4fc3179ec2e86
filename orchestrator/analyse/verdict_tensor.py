"""Rules about tensor cores: the work they did instead of FFMA, and the work they seem to have done."""

from __future__ import annotations

from perfctl.orchestrator.analyse.case import KernelGroup
from perfctl.orchestrator.analyse.verdict_records import Verdict
from perfctl.orchestrator.analyse.verdict_scene import RuleInput, amount, percent, times, verdict

NEAR_ZERO = 0.1
"""Share of paper below which the plain multiply-adds are none to speak of."""
TENSOR_MATH = ("tf32", "fp16", "bf16", "fp8", "fp4", "int8")


def tensor_cores(given: RuleInput) -> Verdict | None:
    """Multiply-adds are missing from FFMA because tensor cores did them; TF32 when the layer's type is fp32."""
    evidence = given.evidence
    plain = evidence.total("ffma")
    kernels = tuple(kernel for kernel in evidence.product_kernels if _did_tensor_work(kernel))
    if plain is None or not evidence.paper or not kernels or 2 * plain > NEAR_ZERO * evidence.paper:
        return None
    math = next((kernel.algorithm.math for kernel in kernels if kernel.algorithm.math in TENSOR_MATH), None)
    allowed = evidence.environment.get(
        "tf32_conv" if evidence.row.kind and "Conv" in evidence.row.kind else "tf32_matmul"
    )
    tf32 = math == "tf32" or (math is None and evidence.precision in ("fp32", "tf32") and allowed == "on")
    done = sum(kernel.tensor.value or 0 for kernel in kernels)
    share = 2 * plain / evidence.paper
    start = f"{given.who} executed {percent(share)} of the multiply-adds on paper as FFMA"
    flags = f" (tf32 is {allowed} in this run)" if tf32 and allowed else ""
    factor: float | None
    if done:
        factor = _beyond_padding(given, kernels)
        sentence = (
            f"{start}: tensor cores did {times(done / evidence.paper)} of paper{' in TF32' if tf32 else ''}{flags}."
        )
        todo = "Nothing is missing: both paths are in the count."
    else:
        factor = None if given.counted is None else given.counted / evidence.paper
        sentence = f"{start}: {_how_known(evidence.total('pipe'))}, whose FLOPs were not counted{flags}."
        todo = "Collect sm__ops_path_tensor_src_*.sum with a newer ncu than 2022.3, or run once with TF32 off."
    if tf32:
        todo += " --precision fp32 turns TF32 off."
    return verdict(given, "TF32" if tf32 else "tensor cores", sentence, factor, todo, kernels)


def _beyond_padding(given: RuleInput, kernels: tuple[KernelGroup, ...]) -> float | None:
    """What tensor cores did over what grids predict: padding and work done again have verdicts of their own."""
    breakdown = given.breakdown
    done = sum(kernel.tensor.value or 0 for kernel in kernels if kernel in breakdown.products)
    return None if breakdown.several or not breakdown.base else done / breakdown.base


def _did_tensor_work(kernel: KernelGroup) -> bool:
    """By the counters; by name where they were not collected."""
    if kernel.tensor.value is not None:
        return kernel.tensor.value > 0
    return bool(kernel.counts.get("pipe")) or ("pipe" not in kernel.counts and kernel.algorithm.tensor_core is True)


def _how_known(pipe: float | None) -> str:
    if pipe:
        return f"it ran {pipe:,.0f} tensor instructions"
    return "its kernels are tensor-core kernels by name"


def constant_moves(given: RuleInput) -> Verdict | None:
    """HFMA2 instructions that move constants count as fp16 and, on CC 8.x and 9.x, as tensor work."""
    evidence = given.evidence
    kernels = tuple(
        kernel for kernel in evidence.kernels if kernel.counts.get("hfma") and "constant" in (kernel.flops.reason or "")
    )
    if not kernels:
        return None
    halves = sum(kernel.counts["hfma"] for kernel in kernels)
    pipe = sum(kernel.counts.get("pipe", 0) for kernel in kernels)
    seeming = 2 * halves + 512 * pipe
    also = f" and {pipe:,.0f} tensor instructions" if pipe else ""
    sentence = (
        f"{given.who} shows {halves:,.0f} HFMA{also} that move constants: added up they would be "
        f"{amount(seeming)}FLOP, {percent(seeming / evidence.paper if evidence.paper else 0)} of paper, that nobody computed."
    )
    todo = "They are left out of the count; leave them out of your own sums too."
    return verdict(given, "constant moves", sentence, None, todo, kernels)
