"""The operators of the table of ``make accuracy``: each value by hand is right, or the totals say
that they are lower bounds."""

import pytest

from perfctl.orchestrator.estimate.session import estimate
from scripts.proof.accuracy.accuracy_operators import CASES, LEAST, RIGHT, verdict

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.strip())
def test_an_operator_has_the_work_that_was_worked_out_by_hand(case):
    assert verdict(case, estimate(case.make(), case.inputs, device=case.device)) == (
        LEAST if case.at_least else RIGHT
    )


def test_the_table_has_at_least_forty_operators_and_no_name_twice():
    assert len({case.name for case in CASES}) == len(CASES) >= 40
