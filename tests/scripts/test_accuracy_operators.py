"""The operators of the table of ``make accuracy``: each value by hand is right, or the totals say
that they are lower bounds."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.estimate.session import estimate
from scripts.proof.accuracy.accuracy_operators import CASES, LEAST, RIGHT, Case, verdict

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.strip())
def test_an_operator_has_the_work_that_was_worked_out_by_hand(case: Case) -> None:
    assert verdict(case, estimate(case.make(), case.inputs, device=case.device)) == (
        LEAST if case.at_least else RIGHT
    )


def test_the_table_has_at_least_forty_operators_and_no_name_twice() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 40
