"""How numbers that are missing and readings that pause are said."""

from perfctl.parsers.common.doubts import make_missing_numbers_warning
from perfctl.parsers.monitors.readings import describe_missing_readings

SECOND = 10**9


def texts(found):
    return " | ".join(said.text for said in found)  # type: ignore[attr-defined]


def test_numbers_that_are_left_out_are_named_as_stretches():
    numbers = [*range(17), *range(20, 25), 26]
    said = texts(make_missing_numbers_warning("launches with the IDs", numbers, expected_first=0))
    assert said.startswith(
        "launches with the IDs 17 to 19, 25 are missing (4 in all): excluded from the export"
    )


def test_the_first_numbers_count_as_missing_only_where_a_report_begins_with_a_known_one():
    assert texts(make_missing_numbers_warning("IDs", [2, 3], expected_first=0)).startswith(
        "IDs 0 to 1 are missing"
    )
    assert (
        make_missing_numbers_warning("IDs", [2, 3])
        == make_missing_numbers_warning("IDs", [])
        == make_missing_numbers_warning("IDs", range(9), expected_first=0)
        == ()
    )


def test_where_most_numbers_are_missing_a_filter_chose_the_others():
    assert [said.severity for said in make_missing_numbers_warning("IDs", [1, 50])] == ["info"]
    assert [said.severity for said in make_missing_numbers_warning("IDs", [1, 2, 4])] == ["warning"]


def test_a_pause_in_a_regular_log_is_counted_in_readings():
    times = [second * SECOND for second in (*range(10), *range(22, 30))]
    assert describe_missing_readings(times).startswith(
        "12 samples are missing between 9.0 s and 22.0 s (one is usual every 1 s)"
    )


def test_a_late_reading_is_no_missing_one_and_an_uneven_log_has_no_rhythm():
    assert (
        describe_missing_readings(
            [at * SECOND for at in (0, 1, 2, 3.2, 4, 5, 6.5, 7, 8, 9, 10, 11)]
        )
        == ""
    )  # type: ignore[misc]
    assert describe_missing_readings([at * SECOND for at in (0, 1, 5, 6, 20, 21, 22, 40, 44)]) == ""
    assert describe_missing_readings([0, SECOND, 9 * SECOND]) == "", "three readings have no rhythm"
