"""The first sentences of a page, from ledger rows and verdicts made by hand: what is said, in which
order, word for word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfctl.orchestrator.ledger.causes.evidence import Place
from perfctl.orchestrator.ledger.causes.judge import Judgement, RowJudgement, unexplained_share
from perfctl.orchestrator.ledger.causes.rule import Cause
from perfctl.orchestrator.ledger.ledger import Ledger, LedgerRow
from perfctl.orchestrator.report.ledger import causes as words
from perfctl.orchestrator.report.ledger.causes import headlines
from tests.make.rows import case


@pytest.fixture(autouse=True)
def sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each made-up cause brings its sentence."""
    monkeypatch.setattr(words, "describe_cause", lambda cause: cause.row)


def row(layer: str, ratio: float | None, batch: int = 64, **figure: Any) -> LedgerRow:
    made = case(batch, layer=layer, counted=None if ratio is None else 1000 * ratio).row
    return replace(made, ratio=ratio, counted=replace(made.counted, **figure))


def said(rule: str, factor: float | None = None, sentence: str = "A sentence.") -> Cause:
    return Cause(rule, factor, row=sentence)


def judgement(rows: dict[str, RowJudgement], *sweep: Cause, batch: int = 64) -> Judgement:
    return Judgement({(batch, layer, "forward"): judged for layer, judged in rows.items()}, sweep)


def texts(found: Judgement, *rows: LedgerRow) -> list[str]:
    return [item.sentence for item in headlines(found, Ledger(rows, ()))]


@pytest.mark.parametrize(
    ("ratio", "figure", "text"),
    [
        (
            2.0,
            {},
            "fc forward executed 2.00 times the estimated FLOPs at batch 64. No rule explains it.",
        ),
        (
            0.5,
            {},
            "fc forward executed 0.500 times the estimated FLOPs at batch 64. No rule explains it.",
        ),
        (
            1.101,
            {},
            "fc forward executed 1.101 times the estimated FLOPs at batch 64. No rule explains it.",
        ),
        (1.1, {}, None),
        (1.0, {}, None),
        (0.91, {}, None),
        (None, {}, None),
        (
            0.0,
            {},
            "fc forward executed none of the estimated FLOPs at batch 64. No rule explains it.",
        ),
        (
            0.909,
            {},
            "fc forward executed 0.909 times the estimated FLOPs at batch 64. No rule explains it.",
        ),
        (
            2.0,
            {"state": "estimated"},
            (
                "fc forward executed about 2.00 times the estimated FLOPs at batch 64. No rule "
                "explains it."
            ),
        ),
        (
            2.0,
            {"missing": ("tensor",)},
            (
                "fc forward executed at least 2.00 times the estimated FLOPs at batch 64. No "
                "rule explains it."
            ),
        ),
        (
            2.0,
            {"state": "estimated", "missing": ("tensor",)},
            (
                "fc forward executed at least about 2.00 times the estimated FLOPs at batch 64. "
                "No rule explains it."
            ),
        ),
        (0.5, {"missing": ("tensor",)}, None),
    ],
)
def test_a_gap_of_more_than_a_tenth_is_told_and_a_lower_bound_only_where_it_lies_above(
    ratio: float | None, figure: dict[str, Any], text: str | None
) -> None:
    assert texts(Judgement(), row("fc", ratio, **figure)) == ([text] if text else [])


@pytest.mark.parametrize(
    ("verdicts", "left", "text"),
    [
        (
            (said("tile padding", 2.0),),
            0.0,
            "fc forward executed 2.00 times the estimated FLOPs at batch 64. Cause: tile padding "
            "(predicted factor 2.00).",
        ),
        (
            (said("Winograd", 0.444), said("split-K", 1.5)),
            0.02,
            (
                "fc forward executed 2.00 times the estimated FLOPs at batch 64. Causes: "
                "Winograd (predicted factor 0.444), split-K (predicted factor 1.500). 2.0% of the "
                "difference is unexplained."
            ),
        ),
        (
            (said("tile padding", 1.9),),
            0.019,
            "fc forward executed 2.00 times the estimated FLOPs at batch 64. Cause: tile padding "
            "(predicted factor 1.900).",
        ),
        (
            (said("tile padding", 1.5),),
            None,
            "fc forward executed 2.00 times the estimated FLOPs at batch 64. Cause: tile padding "
            "(predicted factor 1.500).",
        ),
        (
            (said("constant moves"), said("split-K", 1.004)),
            1.0,
            (
                "fc forward executed 2.00 times the estimated FLOPs at batch 64. No rule "
                "explains it: 100.0% of the difference is unexplained."
            ),
        ),
    ],
)
def test_a_gap_is_told_with_the_factors_that_explain_it_and_what_is_left(
    verdicts: tuple[Cause, ...], left: float | None, text: str
) -> None:
    found = judgement({"fc": RowJudgement(verdicts, left)})
    first = headlines(found, Ledger((row("fc", 2.0),), ()))[0]
    assert first.sentence == text
    assert (first.place, first.rules) == (
        (64, "fc", "forward"),
        tuple(item.rule for item in verdicts),
    )


def test_a_row_is_told_once_at_its_largest_gap_with_the_other_batches() -> None:
    rows = (row("fc", 0.5, 16), row("fc", 3.0, 32), row("fc", 1.05, 64), row("fc", 1.2, 128))
    (found,) = headlines(Judgement(), Ledger(rows, ()))
    assert found.sentence == (
        "fc forward executed 3.00 times the estimated FLOPs at batch 32 (also off by more than "
        "10% at batch 16, 128). No rule explains it."
    )
    assert found.place == (32, "fc", "forward")


def test_the_three_largest_gaps_in_either_direction_are_told() -> None:
    rows = (row("a", 1.2), row("b", 0.2), row("c", 4.0), row("d", 1.3))
    assert [text.split()[0] for text in texts(Judgement(), *rows)] == ["b", "c", "d"]


def test_what_holds_for_the_sweep_comes_first_and_is_not_repeated_of_a_row() -> None:
    window, switch = (
        said("wrong window", None, "The count."),
        said("algorithm switch", None, "A switch."),
    )
    rows = {
        "a": RowJudgement((said("wrong window", 2.0),)),
        "b": RowJudgement((said("wrong window", 2.0), said("tile padding", 1.5))),
    }
    found = headlines(judgement(rows, switch, window), Ledger((row("a", 2.0), row("b", 3.0)), ()))
    assert [(item.sentence, item.place, item.rules) for item in found] == [
        ("The count.", None, ("wrong window",)),
        (
            (
                "b forward executed 3.00 times the estimated FLOPs at batch 64. Cause: tile "
                "padding (predicted factor 1.500)."
            ),
            (64, "b", "forward"),
            ("wrong window", "tile padding"),
        ),
        ("A switch.", None, ("algorithm switch",)),
    ]


@pytest.mark.parametrize(
    ("switches", "text"),
    [
        (1, "Switch 0."),
        (2, "Switch 0. 1 more row changes its algorithm."),
        (3, "Switch 0. 2 more rows change their algorithm."),
    ],
)
def test_the_first_switch_stands_for_all(switches: int, text: str) -> None:
    sweep = [said("algorithm switch", None, f"Switch {number}.") for number in range(switches)]
    assert texts(Judgement({}, tuple(sweep))) == [text]


def test_rows_without_a_number_are_told_rule_by_rule_unless_the_sweep_says_so() -> None:
    rows = {
        "a": RowJudgement((said("FADD alone", None, "First."),)),
        "b": RowJudgement((said("FADD alone", None, "Second."),)),
        "c": RowJudgement(
            (said("counter not collected", None, "Third."), said("shared kernel", None, "No."))
        ),
        "d": RowJudgement((said("constant moves", 2.0, "No."),)),
        "e": RowJudgement((said("FADD alone", None, "Fourth."),)),
    }
    found = headlines(judgement(rows), Ledger((), ()))
    assert [(item.sentence, item.place, item.rules) for item in found] == [
        ("First. The same in 2 more rows.", (64, "a", "forward"), ("FADD alone",)),
        ("Third.", (64, "c", "forward"), ("counter not collected",)),
    ]
    told = headlines(judgement(rows, said("FADD alone", None, "Sweep.")), Ledger((), ()))
    assert [item.sentence for item in told] == ["Sweep.", "Third."]


def test_an_unknown_row_has_no_verdicts() -> None:
    found = judgement({"a": RowJudgement((said("split-K", 2.0),), 0.5)})
    place: Place = (64, "b", "forward")
    assert found.at(*place) == RowJudgement()
    assert found.at(64, "a", "forward").unexplained == 0.5


@pytest.mark.parametrize(
    ("ratio", "factors", "left"),
    [
        (4.0, (2.0, 2.0), 0.0),
        (4.0, (2.0,), 0.5),
        (4.0, (2.0, None), 0.5),
        (4.0, (), 1.0),
        (4.0, (0.5,), 1.0),
        (1.004, (2.0,), None),
        (None, (2.0,), None),
        (0.0, (2.0,), 1.0),
        (0.0, (), 1.0),
    ],
)
def test_what_all_factors_together_leave_of_a_gap(
    ratio: float | None, factors: tuple[float | None, ...], left: float | None
) -> None:
    found = unexplained_share(ratio, [said("x", factor) for factor in factors])
    assert found == (None if left is None else pytest.approx(left))
