"""Templates of causes: parts without a fact are left out, and every sentence has its fix."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.ledger.causes.row_rules import WorkFacts
from perfctl.orchestrator.ledger.causes.rule import Cause
from perfctl.orchestrator.ledger.causes.tensor_rules import TensorFacts
from perfctl.orchestrator.ledger.causes.window_rules import WindowFacts
from perfctl.orchestrator.report.ledger.causes import (
    FIXES,
    SENTENCES,
    describe_cause,
    describe_fix,
)


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (
            WorkFacts(640, 0.01, "sum", slices=4),
            "conv splits its K dimension into 4 slices and adds the slices up in sum: 640 FLOP "
            "more, 1.0%.",
        ),
        (
            WorkFacts(640, 0.01),
            "conv splits its K dimension and adds the slices up itself: 640 FLOP more, 1.0%.",
        ),
    ],
)
def test_a_part_whose_fact_is_missing_is_left_out(facts: WorkFacts, sentence: str) -> None:
    cause = Cause("split-K", 1.01, facts, row="conv")
    assert describe_cause(cause) == sentence


def test_brackets_in_the_name_of_a_kernel_stay() -> None:
    facts = WorkFacts(kernel="f<a[2]>{}")
    cause = Cause("split-K", None, facts, variant="by its name", row="conv")
    assert "according to the name of f<a[2]>{}. The counters" in describe_cause(cause)


@pytest.mark.parametrize(("ours", "advised"), [(False, True), (True, False)])
def test_perfctl_ncu_is_advice_unless_it_made_the_run(ours: bool, advised: bool) -> None:
    cause = Cause("wrong window", 2.0, WindowFacts(32), row="conv", ours=ours)
    assert ("'perfctl ncu' does" in describe_fix(cause)) is advised


@pytest.mark.parametrize("rule", ["TF32", "tensor cores"])
def test_tensor_kernels_whose_flops_no_rule_derives_are_named(rule: str) -> None:
    facts = TensorFacts(math="fp16", allowed=None, tf32=False)
    cause = Cause(rule, None, facts, variant="not derived", row="conv")
    assert describe_cause(cause) == (
        "conv runs tensor-core kernels in fp16, according to their names; perfctl has no rule "
        "for their FLOPs."
    )
    assert describe_fix(cause) == "Run 'perfctl ncu' to measure them."


def test_every_rule_with_a_sentence_has_a_fix_and_no_other_rule() -> None:
    rules = {key.partition(": ")[0] for key in SENTENCES}
    assert rules == {key.partition(": ")[0] for key in FIXES}


def test_optional_parts_are_closed_and_not_nested() -> None:
    for text in (*SENTENCES.values(), *FIXES.values()):
        depth = 0
        for letter in text:
            depth += {"[": 1, "]": -1}.get(letter, 0)
            assert depth in (0, 1), text
        assert depth == 0, text
