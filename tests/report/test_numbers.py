"""How numbers look."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.analyse.figure import Figure, missing
from perfctl.orchestrator.report import cells, numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7, "7"), (999, "999"), (1000, "1.00 k"), (999.6, "1.00 k"), (2 * 64 * 64 * 24 * 24 * 288, "1.36 G"),
     (0.04, "40.0 m"), (24_700_000, "24.7 M"), (-1500, "-1.50 k"), (0.99999, "1.00")],
)  # fmt: skip
def test_three_significant_digits_with_a_prefix(value: float, text: str) -> None:
    assert numbers.si(value) == text


@pytest.mark.parametrize(
    ("ns", "text"), [(0, "0 s"), (412, "412 ns"), (41_234, "41.2 µs"), (1.36e6, "1.36 ms"), (2.5e9, "2.50 s")]
)
def test_times_have_their_unit(ns: float, text: str) -> None:
    assert numbers.time(ns) == text


def test_decimal_points_and_units_stand_below_each_other() -> None:
    padded = [cells.scaled(text, None, 0) for text in ("1.36 G", "24.7 M", "105 k", "0")]
    texts = [cell.text for cell in padded]
    assert [cell.unit for cell in padded] == ["G", "M", "k", ""]
    assert [len(text) - len(text.partition(".")[0].rstrip("\u2007\u2008")) for text in texts] == [3] * 4
    assert texts[2] == "105\u2008\u2007\u2007" and texts[1] == "24.7\u2007"


def test_the_full_value_keeps_every_digit() -> None:
    assert numbers.full(1_358_954_496, "FLOP") == "1\u202f358\u202f954\u202f496 FLOP"


def test_the_four_states_have_four_looks() -> None:
    looks = [
        cells.figure_cell(figure, "FLOP")
        for figure in (Figure(5, "counted"), Figure(5, "estimated", "a rule"), missing("not_collected", "nobody asked"),
                       missing("refused", "would be wrong"))
    ]  # fmt: skip
    assert [cell.style for cell in looks] == ["", "est", "no", "refused"]
    assert looks[1].text.startswith("~ ")
    assert looks[2].text == numbers.DASH and "nobody asked" in (looks[2].title or "")
    assert "would be wrong" in (looks[3].title or "")


def test_a_lower_bound_says_so() -> None:
    cell = cells.figure_cell(Figure(5, "counted", launches=2, of_launches=3), "FLOP")
    assert cell.text.startswith("≥ ") and "2 of 3 launches" in (cell.title or "")


def test_a_share_that_rounds_to_nothing_is_not_shown_as_zero() -> None:
    assert numbers.percent(0.0001) == "< 0.1 %"
    assert numbers.percent(0.0) == "0.0 %"
    assert numbers.percent(0.99985) == "> 99.9 %" and numbers.percent(1) == "100.0 %"


def test_a_tiny_ratio_is_not_shown_as_zero() -> None:
    assert numbers.ratio(6e-7) == "< 0.01"
    assert numbers.ratio(0) == "0.00"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.5078, "0.508"), (0.0123, "0.0123"), (0.9996, "1.00"), (30.8, "30.8"), (1360, "1.36 k")],
)
def test_so_many_a_second_never_has_a_prefix_below_one(value: float, text: str) -> None:
    assert numbers.per_second(value) == text
    cell = cells.rate(value, "1/s")
    assert (f"{cell.text.strip()} {cell.unit}".replace("\u2007", "").replace("\u2008", "").strip(), cell.value) == (
        text,
        value,
    )
    assert cells.rate(None, "1/s", "not timed") == cells.nothing("not timed")


def test_a_rate_is_not_given_more_digits_than_it_has() -> None:
    assert numbers.full(279720279720279.75) == "279\u202f720\u202f000\u202f000\u202f000"
    assert numbers.full(41234) == "41\u202f234"
