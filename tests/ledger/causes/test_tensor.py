"""Rules about tensor cores with counts made by hand: work they did, and work that they only seem to
have done."""

from dataclasses import replace

from perfctl.orchestrator.counts.figure import Figure, make_missing_figure
from perfctl.orchestrator.ledger.causes.tensor_rules import (
    detect_hfma2_constant_moves,
    detect_tensor_cores,
)
from perfctl.orchestrator.report.ledger.causes import describe_cause, describe_fix
from tests.make.rows import HALF, PAPER, measured, seen_with, work
from tests.make.tables import table

UNKNOWN = replace(HALF, math=None)
TF32 = replace(HALF, math="tf32")


def judged(*kernels, **more):
    return detect_tensor_cores(seen_with(measured(32, *kernels, **more)))


@table(
    "tensor ffma share as_ffma",
    [
        (57_600, 0, "0.900", ""),
        (57_600, 3200, "0.900", ", and 10.0% as FFMA"),
        (32_000, 16_000, "0.500", ", and 50.0% as FFMA"),
        (6401, 32_000, "0.100", ", and 100.0% as FFMA"),
        (6400, 0, "0.100", ""),
    ],
)
def test_tensor_cores_are_named_with_their_share_and_that_of_ffma(tensor, ffma, share, as_ffma):
    cause = judged(work("k", HALF, tensor=tensor, ffma=ffma))
    assert cause is not None
    assert describe_cause(cause) == (
        f"fc forward at batch 32 executed {share} times the estimated multiply-adds on tensor "
        f"cores in fp16{as_ffma}."
    )
    assert (cause.rule, cause.factor, cause.confidence) == ("tensor cores", 1, "observed")
    assert ("Nothing is missing" in describe_fix(cause)) is (tensor + 2 * ffma == PAPER)


@table(
    "kernel",
    {
        "a tenth, next to FFMA": work("k", HALF, tensor=6400, ffma=3201),
        "FFMA only": work("k", HALF, tensor=0, ffma=32_000),
        "no count of multiply-adds": work("k", HALF, tensor=57_600),
        "no work": work("k", HALF, tensor=0, ffma=0),
        "no product": work("k", replace(HALF, role="reduction"), tensor=9, ffma=0),
    },
)
def test_tensor_cores_without_products_are_no_cause(kernel):
    assert judged(kernel) is None


@table(
    "algorithm precision kind environment rule",
    [
        (TF32, "bf16", "Linear", {}, "TF32"),
        (TF32, "fp32", "Linear", {"tf32_matmul": "off"}, "TF32"),
        (UNKNOWN, "fp32", "Linear", {"tf32_matmul": "on", "tf32_conv": "off"}, "TF32"),
        (UNKNOWN, "tf32", "Conv2d", {"tf32_matmul": "off", "tf32_conv": "on"}, "TF32"),
        (UNKNOWN, "fp32", "Conv2d", {"tf32_matmul": "on", "tf32_conv": "off"}, "tensor cores"),
        (UNKNOWN, "fp32", "Linear", {"tf32_matmul": "off", "tf32_conv": "on"}, "tensor cores"),
        (UNKNOWN, "bf16", "Linear", {"tf32_matmul": "on"}, "tensor cores"),
        (HALF, "fp32", "Linear", {"tf32_matmul": "on"}, "tensor cores"),
    ],
)
def test_it_is_tf32_by_name_or_if_the_run_allowed_it(algorithm, precision, kind, environment, rule):
    kernel = work("k", algorithm, tensor=PAPER, ffma=0)
    cause = judged(kernel, kind=kind, precision=precision, environment=environment)
    assert cause is not None and cause.rule == rule
    is_tf32, is_by_program = rule == "TF32", environment == {"tf32_matmul": "off"}
    is_switched = is_tf32 and not is_by_program
    assert ("--precision fp32 turns TF32 off" in describe_fix(cause)) is is_switched
    assert (" in TF32" in describe_cause(cause)) is is_tf32
    assert ("the program itself uses TF32" in describe_cause(cause)) is is_by_program
    is_allowed = is_switched and bool(environment)
    assert ("(TF32 is on in this run)" in describe_cause(cause)) is is_allowed


@table(
    "name is_advised",
    [("sm80_xmma_gemm_tf32f32", True), ("cutlass_3xtf32_gemm", False), ("fmha_fastf32", False)],
)
def test_fp32_is_no_advice_for_three_tf32_products(name, is_advised):
    cause = judged(work(name, TF32, tensor=PAPER, ffma=0))
    assert cause is not None and cause.rule == "TF32"
    assert ("--precision fp32" in describe_fix(cause)) is is_advised


@table(
    "executed derived confidence",
    [
        (PAPER, True, "predicted and matched"),
        (3_600, True, "plausible"),
        (PAPER, False, "observed"),
    ],
)
def test_a_derived_count_far_from_the_estimate_does_not_match_what_tf32_predicts(
    executed, derived, confidence
):
    cause = judged(work("s1688gemm", TF32, tensor=executed, ffma=0), derived=derived)
    assert cause is not None and cause.confidence == confidence


def uncounted(tensor_core, **counts):
    kernel = work("k", replace(HALF, tensor_core=tensor_core), ffma=320, **counts)
    return replace(kernel, tensor=make_missing_figure("not_available", "shape"))


@table(
    "kernel evidence",
    [
        (uncounted(None, pipe=1234), "ran 1,234 tensor instructions"),
        (uncounted(True), "runs tensor-core kernels (according to their names)"),
        (uncounted(None), None),
        (uncounted(True, pipe=0), None),
    ],
)
def test_work_without_a_count_is_known_by_instructions_or_by_name(kernel, evidence):
    old, new = judged(kernel), judged(kernel, ncu="2025.3.0")
    if evidence is None:
        assert old is None
        return
    assert old is not None and new is not None
    assert describe_cause(old) == (
        f"fc forward at batch 32 {evidence} whose FLOPs the counters do not include; FFMA executed "
        "1.0% of the estimated multiply-adds."
    )
    assert old.factor is None, "what was not counted has no factor"
    assert "newer ncu than 2022.3" in describe_fix(old)
    assert describe_fix(new) == "Collect sm__ops_path_tensor_src_fp16*.sum too."


MOVED = Figure(0, "counted", "HFMA2 is left out", moves_constants=True)
DOUBT = make_missing_figure("refused", "not added", moves_constants=True)


def moving(name, figure=MOVED, **counts):
    return replace(work(name, **counts), flops=figure)


@table(
    "kernels confidence sentence",
    [
        # 2 x 3,200 + 512 x 100 = 57,600 of 64,000
        (
            (
                moving("k", hfma=1200, pipe=40),
                moving("l", hfma=2000, pipe=60),
                work("m", hfma=999, pipe=9),
                moving("n", pipe=9),
            ),
            "observed",
            "has 3,200 HFMA and 100 tensor instructions that move constants. Counted as "
            "arithmetic, they would add 57.6 kFLOP, 90.0% of the estimate, although they compute "
            "nothing.",
        ),
        (
            (moving("k", hfma=3200),),
            "observed",
            "has 3,200 HFMA that move constants. Counted as arithmetic, they would add 6.4 "
            "kFLOP, 10.0% of the estimate, although they compute nothing.",
        ),
        (
            (moving("k", DOUBT, hfma=3200, pipe=100),),
            "plausible",
            "has 3,200 HFMA and 100 tensor instructions that may only move constants. Counted as "
            "arithmetic, they would add 57.6 kFLOP, 90.0% of the estimate.",
        ),
    ],
)
def test_moves_of_constants_are_added_up_to_what_they_seem_to_be(kernels, confidence, sentence):
    cause = detect_hfma2_constant_moves(seen_with(measured(32, *kernels)))
    assert cause is not None
    assert describe_cause(cause) == f"fc forward at batch 32 {sentence}"
    assert (cause.factor, cause.confidence) == (None, confidence)
    assert cause.kernels == tuple(kernel.name for kernel in kernels if kernel.name in "kl")


def test_halves_that_were_counted_move_no_constants():
    assert detect_hfma2_constant_moves(seen_with(measured(32, work("m", hfma=999)))) is None
