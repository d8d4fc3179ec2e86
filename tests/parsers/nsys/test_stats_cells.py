"""Rows of ``nsys stats`` tables: where columns are, what is a row, what a printed figure means."""

from functools import partial

import pytest

from perfctl.parsers.common.lines import SurroundingLines
from perfctl.parsers.common.numbers import DecimalStyle, Unit
from perfctl.parsers.nsys import stats
from perfctl.parsers.nsys.stats_tables import (
    LineSource,
    StatsColumn,
    TableStart,
    find_ruler_columns,
    parse_header,
    read_table_rows,
    slice_cells,
    split_boxed_line,
    split_csv_line,
    split_ruled_line,
    split_tsv_line,
)
from perfctl.records.report import Operation

POINT, COMMA, UNDECIDED = DecimalStyle.POINT, DecimalStyle.COMMA, DecimalStyle.UNDECIDED
PLAIN, NS, MS, MB = Unit(None, 1), Unit("ns", 1), Unit("ns", 10**6), Unit("byte", 10**6)
LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("-- --", ((0, 2), (3, 5))),
        (" ---  --", ((1, 4), (6, 8))),
        *((text, ()) for text in ("--", "- --", "  -- --", "-- -- x", "")),
        ("-" * 9_999 + " " + "-" * 10_000, ((0, 9_999), (10_000, 20_000))),
        ("-" * 10_000 + " " + "-" * 10_000, ()),
        ("+--+---+", ((1, 3), (4, 7))),
        *((text, ()) for text in ("+--+", "+--+--", "--+--+", "+==+==+")),
    ],
)
def test_a_ruler_or_the_corners_of_a_box_give_the_columns(text, spans):
    assert find_ruler_columns(text) == spans


SUM = "Time (%),Total Time (ns),Instances,Name"
BOX = "+------+---+---+------+"
CSV, TABS, BARS = (
    partial(split, column_count=4) for split in (split_csv_line, split_tsv_line, split_boxed_line)
)
WIDE, SHIFTED = (
    partial(split_ruled_line, spans=find_ruler_columns(ruler), has_texts=False, is_padded=True)
    for ruler in ("----  -----  ---  --------", " ----  -----  ---  ------")
)


@pytest.mark.parametrize(
    ("split", "lines", "rows", "broken"),
    [
        (CSV, ["50.0, 7 ,1,a, b"], [["50.0", "7", "1", "a, b"]], 0),
        (CSV, ['50.0,7,1,"say ""x"""'], [["50.0", "7", "1", 'say "x"']], 0),
        (CSV, ['50.0,7,1,"a "b" c"'], [["50.0", "7", "1", 'a "b" c']], 0),
        (CSV, ['"50.0","7","1","a, b"'], [["50.0", "7", "1", "a, b"]], 0),
        (CSV, ["50.0,7,1,a", "goes on"], [["50.0", "7", "1", "a\ngoes on"]], 0),
        (CSV, ["50.0,x,1,a"], [], 1),
        (CSV, ["50.0,7,a"], [], 1),
        (CSV, ["50.0,None,,a"], [["50.0", "None", "", "a"]], 0),
        (CSV, ["50.0,1.234,56…,a"], [["50.0", "1.234", "56…", "a"]], 0),
        (CSV, ["1e3,0x1f,-7%,a"], [["1e3", "0x1f", "-7%", "a"]], 0),
        (TABS, ["50.0\t 7\t1\ta\tb\r", "50.0\t7"], [["50.0", "7", "1", "a\tb\n50.0\t7"]], 0),
        (WIDE, ["50.0      7    1  first   "], [["50.0", "7", "1", "first"]], 0),
        (WIDE, ["50.0 1234567 1 second"], [["50.0", "1234567", "1", "second"]], 0),
        # "0.0" would stand under the first ruler
        (SHIFTED, ["50.0      77    1  sgemm "], [["50.0", "77", "1", "sgemm"]], 0),
        (BARS, [BOX, "| 50.0 | 7 | 1 | name |", BOX], [["50.0", "7", "1", "name"]], 0),
        (BARS, ["| 50.0 | 7 | 1 | na", "| 50.0 | x | 1 | name |"], [], 2),
    ],
)
def test_a_row_is_read_by_its_figures_in_every_form(split, lines, rows, broken):
    assert read(split, *(line + "\n" for line in lines)) == (rows, broken)


@pytest.mark.parametrize(
    ("split", "line", "name"),
    [
        (CSV, "50.0,7,1,f(int)", "f(int)"),
        (CSV, "50.0,7,1,f(in…", "f(in…"),
        *((CSV, f"50.0,7,1,{cut}", None) for cut in ("f(int", "f[3", 'a"b', "")),
        (WIDE, "50.0      7    1  thi", None),
    ],
)
def test_a_last_row_without_a_line_end_counts_unless_its_name_is_cut(split, line, name):
    assert read(split, line) == (([["50.0", "7", "1", name]], 0) if name else ([], 1))


def read(split, *lines):
    """Return the rows and the number of broken ones."""
    columns = parse_header(SUM.split(","))
    assert columns is not None
    forms = {split_csv_line: "CSV", split_tsv_line: "TSV"}
    form = forms.get(split.func, "console text")  # type: ignore[attr-defined]
    # names of ranges may go on in the next line
    report = "cuda_gpu_kern_sum" if form == "console text" else "nvtx_sum"
    source = LineSource(iter(lines), SurroundingLines())
    return list(
        read_table_rows(source, TableStart(report, columns, form, 1), split)
    ), source.log.broken_rows


def test_headers_are_split_as_their_rows():
    assert split_tsv_line("\ufeff" + SUM.replace(",", "\t")) == SUM.split(",")
    spans = find_ruler_columns("----  -----  ---  --------")
    assert slice_cells("Time  Total  Num  Name    ", spans) == ["Time", "Total", "Num", "Name"]


@pytest.mark.parametrize(
    ("text", "unit", "style", "expected"),
    [
        ("7", NS, UNDECIDED, 7),
        ("1.5", MS, POINT, 1_500_000),
        ("1,5", MS, COMMA, 1_500_000),
        ("1.234", NS, UNDECIDED, None),
        ("0", MS, POINT, 0),
        ("0.000", MS, POINT, None),
        ("0.000", NS, POINT, 0),
        ("0.001", MS, POINT, 1_000),
        ("", NS, POINT, None),
        ("None", NS, POINT, None),
        ("x", NS, POINT, None),
        ("7", PLAIN, POINT, 7),
        ("2", MB, POINT, 2_000_000),
        ("9" * 18, NS, UNDECIDED, 10**18 - 1),
    ],
)
def test_a_figure_is_brought_to_base_units_or_not_known(text, unit, style, expected):
    assert stats.parse_number_in_base_unit(stats.PrintedFormat(unit, style), text) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (1.4, 1),
        (-1.6, -2),
        (LARGEST - 1, LARGEST - 1),
        (LARGEST, None),
        (1e300, None),
        (-LARGEST, None),
    ],
)
def test_a_whole_number_fits_64_bits(value, expected):
    assert stats.round_to_int64(value) == expected


@pytest.mark.parametrize(
    ("unit", "text", "size"),
    [
        *((MB, text, None) for text in ("0.12", "012", "0.001")),
        (MB, "0.123", 123_000),
        (MB, "12.345", 12_345_000),
        (MB, "100", 100_000_000),
        (Unit("byte", 1), "4", 4),
    ],
)
def test_a_size_in_a_larger_unit_has_three_printed_digits_or_is_not_known(unit, text, size):
    assert stats.parse_size_if_precise(stats.PrintedFormat(unit, POINT), text) == size


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1024    2    1", [1024, 2, 1]),
        ("1 2", [None] * 3),
        (f"1 2 {'9' * 20}", [1, 2, None]),
        ("4", [4] * 3),
    ],
)
def test_three_dimensions_stand_in_one_cell_or_each_in_its_own(text, sizes):
    assert [
        stats.parse_launch_dimension(at, stats.PrintedFormat(PLAIN, POINT), text) for at in range(3)
    ] == sizes


def test_a_sum_without_a_count_is_no_operation():
    row = {"name": "k", "calls": None, "time_ns": 1, "category": None}
    assert stats.make_summed_operation("osrt_sum", row) is None


def test_sums_of_one_name_are_unknown_with_an_unknown_one_and_beyond_64_bits():
    def add(*calls):
        rows = [Operation("a", "c", *call, None, None, None, None) for call in calls]
        return [(row.calls, row.cpu_ns) for row in stats.merge_operations_by_name(rows)]

    assert add((2, 30), (3, 4)) == [(5, 34)]
    assert add((1, 5), (1, None)) == [(1, 5), (1, None)]  # on the host, and on the device
    assert add((LARGEST, 1), (1, LARGEST)) == [(LARGEST, None)]


@pytest.mark.parametrize(
    ("text", "index"),
    [("Tesla T4 (3)", 3), ("2", 2), (f"T4 ({'1' * 8})", 11_111_111), (f"T4 ({'1' * 9})", None)],
)
def test_a_device_is_read_from_its_text_or_its_number(text, index):
    assert stats.parse_device_ordinal(stats.PrintedFormat(PLAIN, POINT), text) == index


def test_a_start_end_range_of_a_trace_has_no_depth_and_a_range_without_a_start_is_left_out():
    times = {"start_ns": 6, "duration_ns": None}
    row = {"name": "x", **times, "thread": 7, "depth": 0, "kind": "StartEnd"}
    rows = [{**row, "id": "12", "parent": "11"}, {**row, "start_ns": None}]
    (found,) = stats.make_ranges_from_trace_rows(iter(rows))
    assert (found.kind, found.depth, found.parent) == ("start_end", None, None)


# Titles, columns, units and report names of ``nsys stats`` in the spellings of all years


def test_columns_have_the_unit_of_their_header_of_their_total_or_of_the_title():
    assert parse_header(["Time(%)", "Total Time (ms)", "Average", "Name"]) == [
        StatsColumn("Time", Unit("%", 1)),
        StatsColumn("Total Time", MS),
        StatsColumn("Avg", MS),
        StatsColumn("Name"),
    ]
    assert parse_header(["Total", "Operations", "Operation"], "KiB") == [
        StatsColumn("Total", Unit("byte", 1024)),
        StatsColumn("Operations"),
        StatsColumn("Operation"),
    ]
    assert parse_header(["Total Time", "Name"]) is None, "two known columns are no table"
    assert parse_header(["Total Time", "Calls", "Name", "a", "b", "c"]) is not None, "three of six"
    assert parse_header(["Total Time", "Calls", "Name", "a", "b", "c", "d"]) is None
    assert parse_header(["Name", "Range", "PID"]) is None, "no figure"
    assert parse_header(["Metric Name", "Minimum", "Maximum", "Average"]) is None, (
        "a summary of ncu"
    )
