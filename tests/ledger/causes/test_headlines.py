"""The first sentences of a report, from ledger rows and causes made by hand: what they say, in
which order, word for word."""

from dataclasses import replace

import pytest

from perfctl.orchestrator.ledger.causes.judge import RowCauses, StudyCauses
from perfctl.orchestrator.ledger.causes.rule import Cause
from perfctl.orchestrator.ledger.ledger import Ledger
from perfctl.orchestrator.report.ledger import causes as report
from perfctl.orchestrator.report.ledger.causes import build_ledger_headlines
from tests.make.rows import case
from tests.make.tables import table


@pytest.fixture(autouse=True)
def sentences(monkeypatch):
    """Each made-up cause brings its sentence."""
    monkeypatch.setattr(report, "describe_cause", lambda cause: cause.row)


def row(layer, ratio, batch=64, **figure):
    entry = case(batch, layer=layer, counted=None if ratio is None else 1000 * ratio).row
    return replace(entry, ratio=ratio, executed=replace(entry.executed, **figure))


def cause(rule, factor=None, sentence="A sentence."):
    return Cause(rule, factor, confidence="observed", row=sentence)


def judgement(rows, *sweep):
    judged = {(64, layer, "forward"): RowCauses(causes) for layer, causes in rows.items()}
    return StudyCauses(judged, sweep)


def lines(judged, *rows):
    return [tuple(line) for line in build_ledger_headlines(judged, Ledger(rows, ()))]


LOWER = {"missing": ("tensor",)}
ABOUT = {"state": "estimated"}


@table(
    "ratio figure number",
    [
        (2.0, {}, "2.00 times"),
        (0.5, {}, "0.500 times"),
        (1.101, {}, "1.101 times"),
        (1.1, {}, None),
        (1.0, {}, None),
        (0.91, {}, None),
        (None, {}, None),
        (0.0, {}, "none of"),
        (0.909, {}, "0.909 times"),
        (2.0, ABOUT, "about 2.00 times"),
        (2.0, LOWER, "at least 2.00 times"),
        (2.0, ABOUT | LOWER, "at least about 2.00 times"),
        (0.5, LOWER, None),
    ],
)
def test_a_gap_of_more_than_a_tenth_is_named_and_a_lower_bound_only_above_the_estimate(
    ratio, figure, number
):
    sentence = f"fc forward executed {number} the estimated FLOPs at batch 64. No rule explains it."
    texts = [line[0] for line in lines(StudyCauses(), row("fc", ratio, **figure))]
    assert texts == ([sentence] if number else [])


@table(
    "causes unexplained text",
    [
        ([("tile padding", 2.0)], 0.0, "Cause: tile padding (predicted factor 2.00)."),
        (
            [("Winograd", 0.444), ("split-K", 1.5)],
            0.02,
            "Causes: Winograd (predicted factor 0.444), split-K (predicted factor 1.500). 2.0% of "
            "the difference is unexplained.",
        ),
        ([("tile padding", 1.9)], 0.019, "Cause: tile padding (predicted factor 1.900)."),
        ([("tile padding", 1.5)], None, "Cause: tile padding (predicted factor 1.500)."),
        (
            [("constant moves", None), ("split-K", 1.004)],
            1.0,
            "No rule explains it: 100.0% of the difference is unexplained.",
        ),
    ],
)
def test_a_gap_has_the_factors_that_explain_it_and_the_unexplained_share(causes, unexplained, text):
    key = (64, "fc", "forward")
    of_row = RowCauses(tuple(cause(*pair) for pair in causes), unexplained)
    line, *_ = lines(StudyCauses({key: of_row}), row("fc", 2.0))
    start = "fc forward executed 2.00 times the estimated FLOPs at batch 64. "
    assert line == (start + text, key, tuple(rule for rule, _ in causes))


def test_a_row_is_named_once_at_its_largest_gap_with_the_other_batches():
    rows = (row("fc", 0.5, 16), row("fc", 3.0, 32), row("fc", 1.05, 64), row("fc", 1.2, 128))
    (line,) = lines(StudyCauses(), *rows)
    assert line[:2] == (
        "fc forward executed 3.00 times the estimated FLOPs at batch 32 (also off by more than "
        "10% at batch 16, 128). No rule explains it.",
        (32, "fc", "forward"),
    )


def test_the_three_largest_gaps_in_either_direction_are_named():
    rows = (row("a", 1.2), row("b", 0.2), row("c", 4.0), row("d", 1.3))
    assert [line[1][1] for line in lines(StudyCauses(), *rows)] == ["b", "c", "d"]


def test_what_holds_for_the_sweep_comes_first_and_is_not_repeated_of_a_row():
    window = cause("wrong window", 2.0)
    rows = {"a": (window,), "b": (window, cause("tile padding", 1.5))}
    sweep = (
        cause("algorithm switch", None, "A switch."),
        cause("wrong window", None, "The count."),
    )
    assert lines(judgement(rows, *sweep), row("a", 2.0), row("b", 3.0)) == [
        ("The count.", None, ("wrong window",)),
        (
            "b forward executed 3.00 times the estimated FLOPs at batch 64. Cause: tile padding "
            "(predicted factor 1.500).",
            (64, "b", "forward"),
            ("wrong window", "tile padding"),
        ),
        ("A switch.", None, ("algorithm switch",)),
    ]


@table(
    "switches more",
    [
        (1, ""),
        (2, " 1 more row changes its algorithm."),
        (3, " 2 more rows change their algorithm."),
    ],
)
def test_the_first_switch_stands_for_all(switches, more):
    sweep = [cause("algorithm switch", None, f"Switch {number}.") for number in range(switches)]
    assert [line[0] for line in lines(judgement({}, *sweep))] == [f"Switch 0.{more}"]


def test_rows_without_a_number_are_named_rule_by_rule_unless_the_sweep_has_the_rule():
    rows = {
        "a": (cause("FADD alone", None, "First."),),
        "b": (cause("FADD alone", None, "Second."),),
        "c": (cause("counter not collected", None, "Third."), cause("shared kernel", None, "No.")),
        "d": (cause("constant moves", 2.0, "No."),),
        "e": (cause("FADD alone", None, "Fourth."),),
    }
    assert lines(judgement(rows)) == [
        ("First. The same in 2 more rows.", (64, "a", "forward"), ("FADD alone",)),
        ("Third.", (64, "c", "forward"), ("counter not collected",)),
    ]
    with_sweep = lines(judgement(rows, cause("FADD alone", None, "Sweep.")))
    assert [line[0] for line in with_sweep] == ["Sweep.", "Third."]
