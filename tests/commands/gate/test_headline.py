"""The first line of a gate's answer. Synthetic."""

import pytest

from perfctl.orchestrator.compare.gate import (
    NEW,
    NOT_JUDGED,
    SAME,
    WORSE,
    GateOutcome,
    JudgedQuantity,
    QuantityPlace,
)
from perfctl.orchestrator.report.gate import build_gate_outcomes_view, write_gate_headline


def rows(verdict, count):
    return [
        JudgedQuantity(
            QuantityPlace(layer=f"{verdict}{at}"),
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
    worse, same, unjudged, said
):
    outcome = GateOutcome(
        "net", (*rows(WORSE, worse), *rows(SAME, same), *rows(NOT_JUDGED, unjudged))
    )
    assert write_gate_headline([outcome]).startswith(said)


def test_a_new_layer_is_listed_once_with_its_value():
    step = JudgedQuantity(
        QuantityPlace("s", 16, "", "forward"), 100, 300, result=WORSE, quantity="flops"
    )
    layers = [
        JudgedQuantity(
            QuantityPlace("s", batch, "extra", "forward"),
            None,
            batch * 20,
            reason="not in the baseline",
            result=NEW,
            quantity="flops",
        )
        for batch in (16, 8)
    ]
    outcome = GateOutcome("net", (step, *layers))
    (table,) = build_gate_outcomes_view([outcome]).tables
    (row,) = table.rows
    assert row[1].text.startswith("s, batch 16, extra forward, flops: 320, not in the baseline")
    assert write_gate_headline([outcome]).endswith(
        "net: s, batch 16, extra forward, flops: 320, not in the baseline"
    )
