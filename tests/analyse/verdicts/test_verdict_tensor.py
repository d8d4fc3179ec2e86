"""Rules about tensor cores with counts made by hand: work they did, and work that they only seem to have done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfctl.orchestrator.analyse.figure import Figure, missing
from perfctl.orchestrator.analyse.kernels.names import Algorithm
from perfctl.orchestrator.analyse.verdicts.row_rules import constant_moves, tensor_cores
from perfctl.orchestrator.analyse.verdicts.rule import RuleInput
from tests.analyse.rows import by_place, case, work

PAPER = 64_000
HALF = Algorithm("gemm", "gemm", tensor_core=True, math="fp16")
UNKNOWN = replace(HALF, math=None)


def judged(one: Any, **more: Any) -> Any:
    row = case(32, one, **more)
    return tensor_cores(RuleInput(row, by_place(row)))


@pytest.mark.parametrize(("ffma", "told"), [(0, True), (3200, True), (3201, False), (32_000, False)])
def test_plain_multiply_adds_up_to_a_tenth_of_paper_are_none_to_speak_of(ffma: float, told: bool) -> None:
    said = judged(work("k", HALF, tensor=57_600, ffma=ffma), counted=57_600 + 2 * ffma)
    assert (said is not None) is told
    if ffma == 3200:
        assert said.sentence == (
            "fc forward at batch 32 executed 10 % of the multiply-adds on paper as FFMA: tensor cores did 0.900 of paper."
        )
        assert (said.rule, said.factor, said.todo) == (
            "tensor cores",
            0.9,
            "Nothing is missing: both paths are in the count.",
        )


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
    said = judged(work("k", algorithm, tensor=PAPER, ffma=0), kind=kind, precision=precision, environment=environment)
    assert said.rule == rule
    assert ("--precision fp32 turns TF32 off" in said.todo) is (rule == "TF32")
    assert (" in TF32" in said.sentence) is (rule == "TF32")
    assert ("(tf32 is on in this run)" in said.sentence) is (rule == "TF32" and bool(environment))


@pytest.mark.parametrize(
    ("pipe", "tensor_core", "how"),
    [
        (1234, None, "it ran 1,234 tensor instructions"), (None, True, "its kernels are tensor-core kernels by name"),
        (None, None, None), (0, True, None),
    ],
)  # fmt: skip
def test_work_whose_flops_no_counter_says_is_known_by_instructions_or_by_name(
    pipe: int | None, tensor_core: bool | None, how: str | None
) -> None:
    counts = {"ffma": 320.0} | ({} if pipe is None else {"pipe": float(pipe)})
    seen = replace(
        work("k", replace(HALF, tensor_core=tensor_core), **counts), tensor=missing("not_available", "shape")
    )
    said = judged(seen, counted=640)
    if how is None:
        assert said is None
        return
    assert said.sentence == (
        f"fc forward at batch 32 executed 1 % of the multiply-adds on paper as FFMA: {how}, whose FLOPs were not counted."
    )
    assert said.factor == 0.01
    assert judged(seen).factor is None


def test_moves_of_constants_are_added_up_to_what_they_seem_to_be() -> None:
    moved = Figure(0, "counted", "HFMA2 moved constants and is left out")
    works = (replace(work("k", hfma=1200, pipe=40), flops=moved), replace(work("l", hfma=2000, pipe=60), flops=moved),
             work("m", hfma=999, pipe=9), replace(work("n", pipe=9), flops=moved))  # fmt: skip
    row = case(32, *works)
    said = constant_moves(RuleInput(row, by_place(row)))
    assert said is not None
    # 2 x 3,200 + 512 x 100 = 57,600 of 64,000
    assert said.sentence == (
        "fc forward at batch 32 shows 3,200 HFMA and 100 tensor instructions that move constants: added up they would be "
        "57.6 kFLOP, 90 % of paper, that nobody computed."
    )
    assert (said.kernels, said.factor) == (("k", "l"), None)
    alone = case(32, replace(work("k", hfma=3200), flops=moved))
    said = constant_moves(RuleInput(alone, by_place(alone)))
    assert said is not None
    assert "shows 3,200 HFMA that move constants: added up they would be 6.4 kFLOP, 10 % of paper" in said.sentence
    none = case(32, work("m", hfma=999))
    assert constant_moves(RuleInput(none, by_place(none))) is None
