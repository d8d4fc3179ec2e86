"""What a cause implies, against what was recorded: contradicted, not recorded, or as implied."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfctl.orchestrator.ledger.causes.rule import (
    COUNTED,
    UNSTATED,
    Implies,
    RuleInput,
    Same,
    find_confidence,
)
from tests.make.rows import by_place, call, case

MATCHED, PLAUSIBLE = "predicted and matched", "plausible"
GRADIENTS = (call(32, "grad_input"), call(32, "grad_weight"))


@pytest.mark.parametrize(
    ("implies", "recorded", "confidence"),
    [
        (Implies(), {}, MATCHED),
        (COUNTED, {}, "observed"),
        (COUNTED, {"derived": True}, MATCHED),
        (UNSTATED, {}, PLAUSIBLE),
        (Implies(flops=Same(100, 101, 0.02)), {}, MATCHED),
        (Implies(flops=Same(100, 103, 0.02)), {}, None),
        (Implies(flops=Same(0, 103, 0.02)), {}, None),
        (Implies(launches=Same(2, 2)), {}, MATCHED),
        (Implies(launches=Same(2, 1)), {}, None),
        (Implies(is_complete=True), {}, MATCHED),
        (Implies(is_complete=True), {"left_out": "the run is partial"}, None),
        (Implies(trials=True), {}, MATCHED),
        (Implies(trials=True), {"environment": {"cudnn_benchmark": "off"}}, None),
        (Implies(trials=False), {}, PLAUSIBLE),
        (Implies(trials=False), {"environment": {"cudnn_benchmark": "off"}}, MATCHED),
        (Implies(trials=False), {"environment": {"cudnn_benchmark": "on"}}, None),
        (Implies(batches=(32,)), {}, MATCHED),
        (Implies(batches=(32, 64)), {}, PLAUSIBLE),
        (Implies(batches=(32, 64)), {"seen_batch": 64}, MATCHED),
        (Implies(batches=(32,)), {"seen_batch": 64}, None),
    ],
)
def test_one_contradiction_drops_a_cause_and_one_gap_makes_it_plausible(
    implies: Implies, recorded: dict[str, Any], confidence: str | None
) -> None:
    row = replace(case(32), **recorded)
    assert find_confidence(RuleInput(row, by_place(row)), implies) == confidence


@pytest.mark.parametrize(
    ("forward", "factor", "confidence"),
    [(1.0, 1.0, MATCHED), (1.0, 4.0, MATCHED), (0.5, 0.5, None), (0.5, 2.0, MATCHED)],
)
def test_a_factor_of_gradients_is_not_one_that_forward_has_too(
    forward: float, factor: float, confidence: str | None
) -> None:
    rows = case(32, counted=64_000 * forward), case(32, direction="backward", calls=GRADIENTS)
    given = RuleInput(rows[1], by_place(*rows))
    assert find_confidence(given, Implies(gradients_only=factor)) == confidence
