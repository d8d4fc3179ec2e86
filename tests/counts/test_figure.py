"""A sum of figures: what it holds, what is missing from it, and how exact it is."""

from perfctl.orchestrator.counts.figure import Figure, make_missing_figure, sum_figures
from tests.make.tables import table


def test_a_sum_tells_how_many_launches_are_in_it_and_is_a_lower_bound_where_some_are_not():
    found = sum_figures(
        [
            Figure(5, "counted"),
            make_missing_figure("not_collected", "lost", of_launches=2),
            Figure(7, "counted", None, 2, 2),
        ]
    )
    assert found == Figure(12, "counted", None, 3, 5) and found.lower_bound
    assert not sum_figures([Figure(5, "counted"), Figure(7, "counted")]).lower_bound
    assert sum_figures(
        [Figure(5, "counted", missing=("tensor",)), Figure(7, "counted")]
    ).lower_bound


def test_what_is_absent_is_no_lower_bound():
    found = make_missing_figure("refused", "it would be wrong")
    assert found == Figure(None, "refused", "it would be wrong", 0, 1) and not found.lower_bound
    assert not Figure(None, "not_available", missing=("fp64",)).lower_bound
    assert not Figure(0, "counted").lower_bound


def test_without_a_value_the_first_reason_is_that_of_the_sum():
    found = sum_figures(
        [
            make_missing_figure("refused", "first", of_launches=2),
            make_missing_figure("not_collected", "second", of_launches=3),
        ]
    )
    assert found == Figure(None, "refused", "first", 0, 5)
    assert sum_figures([Figure(None, "refused")]).reason == "not collected"
    assert sum_figures([]) == Figure(None, "not_collected", "no launch was profiled", 0, 0)


def test_one_estimate_makes_the_sum_an_estimate_and_gives_its_reasons_once():
    parts = [
        Figure(1, "estimated", "by tile"),
        Figure(2, "counted", "seen"),
        Figure(3, "estimated", "by tile"),
        Figure(4, "estimated", "by grid"),
        Figure(5, "estimated"),
    ]
    found = sum_figures(parts)
    assert (found.value, found.state, found.reason) == (15, "estimated", "by tile; by grid")
    assert sum_figures([parts[1], parts[1]]).reason == "seen"


def test_missing_parts_and_rules_are_named_once_each_in_order():
    found = sum_figures(
        [
            Figure(1, "counted", missing=("tensor", "fp64"), rule="FADD + FMUL; HADD"),
            Figure(2, "counted", missing=("fp64", "fp16"), rule="HADD; DADD"),
            Figure(3, "counted"),
        ]
    )
    assert found.missing == ("tensor", "fp64", "fp16")
    assert found.rule == "FADD + FMUL; HADD; DADD"
    assert sum_figures([Figure(3, "counted")]).rule is None


@table(
    "total by value",
    [
        (12, 3, 4),
        (13, 2, 6.5),
        (2**60 + 3, 1, 2**60 + 3),
        (3 * (2**60 + 1), 3, 2**60 + 1),
        (7.5, 3, 2.5),
    ],
)
def test_whole_numbers_stay_whole_beyond_what_a_float_holds(total, by, value):
    found = sum_figures([Figure(total, "counted")], divide_by=by)
    assert found.value == value
    assert type(found.value) is type(value)
