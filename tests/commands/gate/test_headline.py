"""The first line of a gate's answer. Synthetic."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.compare.gate import NOT_JUDGED, SAME, WORSE, Judged, Outcome, Place
from perfctl.orchestrator.report.gate import headline


def rows(verdict: str, count: int) -> list[Judged]:
    return [
        Judged(
            Place(layer=f"{verdict}{at}"),
            100 + at,
            200 + 3 * at,
            result=verdict,
            quantity="flops",
        )
        for at in range(count)
    ]


@pytest.mark.parametrize(
    ("worse", "same", "unjudged", "said"),
    [
        (1, 0, 81, "1 quantity is worse or changed, 81 were not judged; net: "),
        (1, 411, 1, "1 of 412 quantities is worse or changed, 1 was not judged; net: "),
        (12, 400, 0, "12 of 412 quantities are worse or changed; net: "),
        (2, 0, 0, "2 quantities are worse or changed; net: "),
    ],
)
def test_the_headline_says_how_many_are_worse_and_how_many_were_not_judged(
    worse: int, same: int, unjudged: int, said: str
) -> None:
    outcome = Outcome("net", (*rows(WORSE, worse), *rows(SAME, same), *rows(NOT_JUDGED, unjudged)))
    assert headline([outcome]).startswith(said)
