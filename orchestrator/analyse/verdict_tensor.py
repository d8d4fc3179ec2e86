"""Rules about tensor cores: the work they did instead of FFMA, and the work they seem to have done."""

from __future__ import annotations

from perfctl.orchestrator.analyse.case import Work
from perfctl.orchestrator.analyse.verdict_records import Verdict
from perfctl.orchestrator.analyse.verdict_scene import Scene, amount, percent, times, verdict

NEAR_ZERO = 0.1
"""Share of paper below which the plain multiply-adds are none to speak of."""
TENSOR_MATH = ("tf32", "fp16", "bf16", "fp8", "fp4", "int8")


def tensor_cores(scene: Scene) -> Verdict | None:
    """Multiply-adds are missing from FFMA because tensor cores did them; TF32 when the layer's type is fp32."""
    case = scene.case
    plain = case.total("ffma")
    works = tuple(work for work in case.mains if _did_tensor_work(work))
    if plain is None or not case.paper or not works or 2 * plain > NEAR_ZERO * case.paper:
        return None
    math = next((work.algorithm.math for work in works if work.algorithm.math in TENSOR_MATH), None)
    allowed = case.environment.get("tf32_conv" if case.row.kind and "Conv" in case.row.kind else "tf32_matmul")
    tf32 = math == "tf32" or (math is None and case.precision in ("fp32", "tf32") and allowed == "on")
    done = sum(work.tensor.value or 0 for work in works)
    share = 2 * plain / case.paper
    start = f"{scene.who} executed {percent(share)} of the multiply-adds on paper as FFMA"
    flags = f" (tf32 is {allowed} in this run)" if tf32 and allowed else ""
    factor: float | None
    if done:
        factor = _beyond_padding(scene, works)
        sentence = f"{start}: tensor cores did {times(done / case.paper)} of paper{' in TF32' if tf32 else ''}{flags}."
        todo = "Nothing is missing: both paths are in the count."
    else:
        factor = None if scene.counted is None else scene.counted / case.paper
        sentence = f"{start}: {_how_known(case.total('pipe'))}, whose FLOPs were not counted{flags}."
        todo = "Collect sm__ops_path_tensor_src_*.sum with a newer ncu than 2022.3, or run once with TF32 off."
    if tf32:
        todo += " --precision fp32 turns TF32 off."
    return verdict(scene, "TF32" if tf32 else "tensor cores", sentence, factor, todo, works)


def _beyond_padding(scene: Scene, works: tuple[Work, ...]) -> float | None:
    """What tensor cores did over what grids predict: padding and work done again have verdicts of their own."""
    budget = scene.budget
    done = sum(work.tensor.value or 0 for work in works if work in budget.products)
    return None if budget.several or not budget.base else done / budget.base


def _did_tensor_work(work: Work) -> bool:
    """By the counters; by name where they were not collected."""
    if work.tensor.value is not None:
        return work.tensor.value > 0
    return bool(work.counts.get("pipe")) or ("pipe" not in work.counts and work.algorithm.tensor_core is True)


def _how_known(pipe: float | None) -> str:
    if pipe:
        return f"it ran {pipe:,.0f} tensor instructions"
    return "its kernels are tensor-core kernels by name"


def constant_moves(scene: Scene) -> Verdict | None:
    """HFMA2 instructions that move constants count as fp16 and, on CC 8.x and 9.x, as tensor work."""
    case = scene.case
    works = tuple(work for work in case.works if work.counts.get("hfma") and "constant" in (work.flops.reason or ""))
    if not works:
        return None
    halves = sum(work.counts["hfma"] for work in works)
    pipe = sum(work.counts.get("pipe", 0) for work in works)
    seeming = 2 * halves + 512 * pipe
    also = f" and {pipe:,.0f} tensor instructions" if pipe else ""
    sentence = (
        f"{scene.who} shows {halves:,.0f} HFMA{also} that move constants: added up they would be "
        f"{amount(seeming)}FLOP, {percent(seeming / case.paper if case.paper else 0)} of paper, that nobody computed."
    )
    todo = "They are left out of the count; leave them out of your own sums too."
    return verdict(scene, "constant moves", sentence, None, todo, works)
