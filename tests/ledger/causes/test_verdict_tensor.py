"""Rules about tensor cores with counts made by hand: work they did, and work that they only seem to
have done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfctl.orchestrator.counts.figure import Figure, missing
from perfctl.orchestrator.counts.kernels.names import Algorithm
from perfctl.orchestrator.ledger.causes.rule import RuleInput
from perfctl.orchestrator.ledger.causes.tensor_rules import constant_moves, tensor_cores
from perfctl.orchestrator.report.ledger.causes import describe_cause, describe_fix
from tests.make.rows import by_place, case, work

PAPER = 64_000
HALF = Algorithm("gemm", "gemm", tensor_core=True, math="fp16")
UNKNOWN = replace(HALF, math=None)


def judged(one: Any, **more: Any) -> Any:
    row = case(32, one, **more)
    return tensor_cores(RuleInput(row, by_place(row)))


@pytest.mark.parametrize(
    ("tensor", "ffma", "told"),
    [
        (57_600, 0, True),
        (57_600, 3200, True),
        (32_000, 16_000, True),
        (6400, 3201, False),
        (6401, 32_000, True),
        (6400, 0, True),
        (0, 32_000, False),
    ],
)
def test_tensor_cores_are_told_with_their_share_and_that_of_ffma(
    tensor: float, ffma: float, told: bool
) -> None:
    said = judged(work("k", HALF, tensor=tensor, ffma=ffma), counted=tensor + 2 * ffma)
    assert (said is not None) is told
    if said is not None:
        beside = {
            0: "",
            3200: ", and 10.0% as FFMA",
            16_000: ", and 50.0% as FFMA",
            32_000: ", and 100.0% as FFMA",
        }[ffma]
        share = "0.900" if tensor == 57_600 else "0.500" if tensor == 32_000 else "0.100"
        assert describe_cause(said) == (
            f"fc forward at batch 32 executed {share} times the estimated multiply-adds on tensor "
            f"cores in fp16{beside}."
        )
        assert (said.rule, said.factor, said.confidence) == ("tensor cores", 1, "observed")
        assert ("Nothing is missing" in describe_fix(said)) is (tensor + 2 * ffma == PAPER)


@pytest.mark.parametrize("times", [0.5, 1.5, 2, 3, 3.56])
def test_a_ratio_that_nothing_predicts_is_not_explained_by_what_was_counted(times: float) -> None:
    """Two steps, a gradient of no layer, a rank of two, padding of an unknown tile: the count is no
    reason of its own."""
    said = judged(work("k", HALF, None, tensor=times * PAPER, ffma=0), counted=times * PAPER)
    assert (said.factor, said.explained) == (1, None)
    assert "Nothing is missing" not in describe_fix(said)


def test_without_a_count_of_multiply_adds_nothing_is_missing_from_it() -> None:
    assert judged(work("k", HALF, tensor=57_600)) is None
    assert judged(work("k", HALF, tensor=0, ffma=0)) is None
    assert judged(work("k", replace(HALF, role="reduction"), tensor=57_600, ffma=0)) is None


@pytest.mark.parametrize(
    ("algorithm", "precision", "kind", "environment", "rule"),
    [
        (replace(HALF, math="tf32"), "bf16", "Linear", {}, "TF32"),
        (UNKNOWN, "fp32", "Linear", {"tf32_matmul": "on", "tf32_conv": "off"}, "TF32"),
        (UNKNOWN, "tf32", "Conv2d", {"tf32_matmul": "off", "tf32_conv": "on"}, "TF32"),
        (UNKNOWN, "fp32", "Conv2d", {"tf32_matmul": "on", "tf32_conv": "off"}, "tensor cores"),
        (UNKNOWN, "fp32", "Linear", {"tf32_matmul": "off", "tf32_conv": "on"}, "tensor cores"),
        (UNKNOWN, "bf16", "Linear", {"tf32_matmul": "on"}, "tensor cores"),
        (HALF, "fp32", "Linear", {"tf32_matmul": "on"}, "tensor cores"),
    ],
)
def test_it_is_tf32_by_name_or_where_the_run_allowed_it(
    algorithm: Algorithm, precision: str, kind: str, environment: dict[str, str], rule: str
) -> None:
    said = judged(
        work("k", algorithm, tensor=PAPER, ffma=0),
        kind=kind,
        precision=precision,
        environment=environment,
    )
    assert said.rule == rule
    assert ("--precision fp32 turns TF32 off" in describe_fix(said)) is (rule == "TF32")
    assert (" in TF32" in describe_cause(said)) is (rule == "TF32")
    assert ("(TF32 is on in this run)" in describe_cause(said)) is (
        rule == "TF32" and bool(environment)
    )


@pytest.mark.parametrize(
    ("pipe", "tensor_core", "how"),
    [
        (1234, None, "ran 1,234 tensor instructions"),
        (None, True, "runs tensor-core kernels (according to their names)"),
        (None, None, None),
        (0, True, None),
    ],
)
def test_work_whose_flops_no_counter_says_is_known_by_instructions_or_by_name(
    pipe: int | None, tensor_core: bool | None, how: str | None
) -> None:
    counts = {"ffma": 320.0} | ({} if pipe is None else {"pipe": float(pipe)})
    seen = replace(
        work("k", replace(HALF, tensor_core=tensor_core), **counts),
        tensor=missing("not_available", "shape"),
    )
    said = judged(seen, counted=640)
    if how is None:
        assert said is None
        return
    assert describe_cause(said) == (
        f"fc forward at batch 32 {how} whose FLOPs the counters do not include; FFMA executed 1.0% of the "
        "estimated multiply-adds."
    )
    assert said.factor is None, "what was not counted has no factor"
    assert "newer ncu than 2022.3" in describe_fix(said)
    later = judged(seen, counted=640, ncu="2025.3.0")
    assert describe_fix(later) == "Collect sm__ops_path_tensor_src_fp16*.sum too."


def test_moves_of_constants_are_added_up_to_what_they_seem_to_be() -> None:
    moved = Figure(0, "counted", "HFMA2 is left out", moves_constants=True)
    works = (
        replace(work("k", hfma=1200, pipe=40), flops=moved),
        replace(work("l", hfma=2000, pipe=60), flops=moved),
        work("m", hfma=999, pipe=9),
        replace(work("n", pipe=9), flops=moved),
    )
    row = case(32, *works)
    said = constant_moves(RuleInput(row, by_place(row)))
    assert said is not None
    # 2 x 3,200 + 512 x 100 = 57,600 of 64,000
    assert describe_cause(said) == (
        "fc forward at batch 32 has 3,200 HFMA and 100 tensor instructions that move constants. "
        "Counted as arithmetic, they would add 57.6 kFLOP, 90.0% of the estimate, although they "
        "compute nothing."
    )
    assert (said.kernels, said.factor) == (("k", "l"), None)
    alone = case(32, replace(work("k", hfma=3200), flops=moved))
    said = constant_moves(RuleInput(alone, by_place(alone)))
    assert said is not None
    assert (
        "has 3,200 HFMA that move constants. Counted as arithmetic, they would add 6.4 kFLOP, 10.0% of the estimate"
        in describe_cause(said)
    )
    doubt = case(
        32,
        replace(
            work("i", hfma=3200, pipe=100),
            flops=missing("refused", "not added", moves_constants=True),
        ),
    )
    said = constant_moves(RuleInput(doubt, by_place(doubt)))
    assert said is not None
    assert (
        "may only move constants. Counted as arithmetic, they would add 57.6 kFLOP, 90.0% of the estimate."
        in describe_cause(said)
    )
    assert said.confidence == "plausible"
    none = case(32, work("m", hfma=999))
    assert constant_moves(RuleInput(none, by_place(none))) is None
