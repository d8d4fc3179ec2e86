"""Rows of ``nsys stats`` tables: where columns are, what is a row, what a printed figure means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pytest

from perfctl.parsers.common.lines import Log
from perfctl.parsers.common.numbers import DecimalStyle, Unit
from perfctl.parsers.nsys import stats
from perfctl.parsers.nsys.stats_tables import (
    Column,
    Source,
    Split,
    Start,
    Trouble,
    find_ruler,
    read_columns,
    read_rows,
    slice_columns,
    split_boxed,
    split_csv,
    split_ruled,
    split_tabs,
)
from perfctl.records.report import Copy, Kernel, Operation, Range

POINT, COMMA, UNDECIDED = DecimalStyle.POINT, DecimalStyle.COMMA, DecimalStyle.UNDECIDED
PLAIN, NS, MS, MB = Unit(None, 1), Unit("ns", 1), Unit("ns", 10**6), Unit("byte", 10**6)
LARGEST = 2**63 - 1


def header(labels: Iterable[str]) -> list[Column]:
    """Columns of these labels; "__" is a blank, and a unit may follow after "_in_"."""
    units = {"ms": MS, "ns": NS, "MB": MB, "byte": Unit("byte", 1)}
    parts = (name.replace("__", " ").partition("_in_") for name in labels)
    return [Column(label, units.get(unit, PLAIN)) for label, _, unit in parts]


def row(fields: Sequence[stats.Field], cells: dict[str, str]) -> dict[str, Any]:
    """The fields of a row whose columns have these labels."""
    return stats.bind_fields(fields, header(cells), POINT).read(list(cells.values()))


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("-- --", ((0, 2), (3, 5))),
        (" ---  --", ((1, 4), (6, 8))),
        ("--", ()),
        ("- --", ()),
        ("  -- --", ()),
        ("-- -- x", ()),
        ("", ()),
        ("-" * 9_999 + " " + "-" * 10_000, ((0, 9_999), (10_000, 20_000))),
        ("-" * 10_000 + " " + "-" * 10_000, ()),
    ],
)
def test_a_ruler_gives_the_columns(text: str, spans: tuple[tuple[int, int], ...]) -> None:
    assert find_ruler(text) == spans


def test_a_box_gives_the_columns_between_its_corners() -> None:
    assert find_ruler("+--+---+") == ((1, 3), (4, 7))
    assert [find_ruler(text) for text in ("+--+", "+--+--", "--+--+", "+==+==+")] == [()] * 4


SUM = "Time (%),Total Time (ns),Instances,Name"


def taken(
    split: Split, *lines: str, report: str = "nvtx_sum", form: str = "CSV"
) -> tuple[list[list[str]], int]:
    """Rows and number of broken rows; names of ranges may hold line breaks."""
    known = read_columns(SUM.split(","))
    assert known is not None
    trouble = Trouble()
    source, start = Source(iter(lines), Log()), Start(report, known, form, 1)
    return list(read_rows(source, start, split, trouble)), trouble.rows


@pytest.mark.parametrize(
    ("lines", "rows", "broken"),
    [
        (["50.0, 7 ,1,a, b\n"], [["50.0", "7", "1", "a, b"]], 0),
        (['50.0,7,1,"say ""x"""\n'], [["50.0", "7", "1", 'say "x"']], 0),
        (['50.0,7,1,"a "b" c"\n'], [["50.0", "7", "1", 'a "b" c']], 0),
        (['"50.0","7","1","a, b"\n'], [["50.0", "7", "1", "a, b"]], 0),
        (["50.0,7,1,a\n", "goes on\n"], [["50.0", "7", "1", "a\ngoes on"]], 0),
        (["50.0,x,1,a\n"], [], 1),
        (["50.0,7,a\n"], [], 1),
        (["50.0,None,,a\n"], [["50.0", "None", "", "a"]], 0),
        (["50.0,1.234,56…,a\n"], [["50.0", "1.234", "56…", "a"]], 0),
        (["1e3,0x1f,-7%,a\n"], [["1e3", "0x1f", "-7%", "a"]], 0),
        # The file ends within the last row: a name with an open bracket or quote has been cut,
        # another may have been.
        (["50.0,7,1,a\n", "50.0,7,1,f(int"], [["50.0", "7", "1", "a"]], 1),
        (["50.0,7,1,f(int)"], [["50.0", "7", "1", "f(int)"]], 0),
        (["50.0,7,1,f[3"], [], 1),
        (['50.0,7,1,a"b'], [], 1),
        (["50.0,7,1,"], [], 1),
        (["50.0,7,1,f(in…"], [["50.0", "7", "1", "f(in…"]], 0),
    ],
)
def test_csv_written_by_hand_is_read_by_its_figures(
    lines: list[str], rows: list[list[str]], broken: int
) -> None:
    assert taken(partial(split_csv, count=4), *lines) == (rows, broken)


def test_tabs_part_cells_and_the_last_keeps_its_own() -> None:
    assert split_tabs("\ufeff" + SUM.replace(",", "\t")) == SUM.split(",")
    assert taken(
        partial(split_tabs, count=4), "50.0\t 7\t1\ta\tb\r\n", "50.0\t7\n", form="TSV"
    ) == (
        [["50.0", "7", "1", "a\tb\n50.0\t7"]],
        0,
    )


def test_a_column_may_be_wider_than_its_ruler_and_its_end_may_be_cut_off() -> None:
    spans = find_ruler("----  -----  ---  --------")
    assert slice_columns("Time  Total  Num  Name    ", spans) == ["Time", "Total", "Num", "Name"]
    split = partial(split_ruled, spans=spans, has_texts=False, is_padded=True)
    lines = ["50.0      7    1  first   \n", "50.0 1234567 1 second\n", "50.0      7    1  thi"]
    rows = [["50.0", "7", "1", "first"], ["50.0", "1234567", "1", "second"]]
    assert taken(split, *lines, report="cuda_gpu_kern_sum", form="console text") == (rows, 1)


def test_a_row_that_does_not_stand_under_its_ruler_is_split_at_its_blanks() -> None:
    spans = find_ruler(" ----  -----  ---  ------")
    split = partial(split_ruled, spans=spans, has_texts=False, is_padded=True)
    shifted = "50.0      77    1  sgemm \n"  # "0.0" would stand under the first ruler
    found = taken(split, shifted, report="cuda_gpu_kern_sum", form="console text")
    assert found == ([["50.0", "77", "1", "sgemm"]], 0)


def test_a_row_of_a_box_stands_between_its_bars() -> None:
    ruler = "+------+---+---+------+"
    lines = [
        ruler,
        "| 50.0 | 7 | 1 | name |",
        "| 50.0 | 7 | 1 | na",
        "| 50.0 | x | 1 | name |",
        ruler,
    ]
    found = taken(
        partial(split_boxed, count=4),
        *(text + "\n" for text in lines),
        report="cuda_gpu_kern_sum",
        form="console text",
    )
    assert found == ([["50.0", "7", "1", "name"]], 2)


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
def test_a_figure_is_brought_to_base_units_or_not_known(
    text: str, unit: Unit, style: DecimalStyle, expected: float | None
) -> None:
    assert stats.read_figure(stats.Printed(unit, style), text) == expected


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
def test_a_whole_number_fits_64_bits(value: float | None, expected: int | None) -> None:
    assert stats.round_figure(value) == expected


def test_a_size_has_three_printed_digits_or_is_not_known() -> None:
    sizes = {
        "0.12": None,
        "0.123": 123_000,
        "12.345": 12_345_000,
        "012": None,
        "100": 100_000_000,
        "0.001": None,
    }

    def size(label: str, text: str) -> int | None:
        cells = {"Name": "[CUDA memset]", label: text}
        (moved,) = stats.read_copies(iter([row(stats.COPY, cells)]))
        return moved.bytes

    assert {text: size("Bytes_in_MB", text) for text in sizes} == sizes
    assert size("Bytes_in_byte", "4") == 4


@pytest.mark.parametrize(
    ("cells", "sizes"),
    [
        ({"GridXYZ": "1024    2    1"}, [1024, 2, 1]),
        ({"GridXYZ": "1 2"}, [None] * 3),
        ({"GridXYZ": f"1 2 {'9' * 20}"}, [1, 2, None]),
        ({"GrdX": "4", "GrdY": "3", "GrdZ": ""}, [4, 3, None]),
    ],
)
def test_three_dimensions_stand_in_one_cell_or_in_three_columns(
    cells: dict[str, str], sizes: list[int | None]
) -> None:
    found = row(stats.KERNEL, cells)
    assert [found[f"grid_{axis}"] for axis in "xyz"] == sizes


def test_a_sum_is_spent_where_its_report_says() -> None:
    cells = row(stats.SUM, {"Total__Time_in_ms": "1.5", "Instances": "3", "Name": "k"})
    assert stats.read_operation("cuda_gpu_kern_sum", cells) == Operation(
        "k", "cuda_gpu_kern_sum", 3, None, None, 1_500_000, None, None
    )
    assert stats.read_operation("osrt_sum", cells) == Operation(
        "k", "osrt_sum", 3, 1_500_000, None, None, None, None
    )
    assert stats.read_operation("cuda_kern_exec_sum", cells) is None
    uncounted = row(stats.SUM, {"Total__Time_in_ns": "1", "Name": "k"})
    assert stats.read_operation("osrt_sum", uncounted) is None
    for category, times in (("CUDA_API", (5, None)), ("CUDA_KERNEL", (None, 5))):
        mixed = {"Total__Time_in_ns": "5", "Instances": "1", "Category": category, "Operation": "x"}
        found = stats.read_operation("cuda_api_gpu_sum", row(stats.SUM, mixed))
        assert found is not None
        assert (found.name, found.cpu_ns, found.device_ns) == ("x", *times)


def test_rows_of_one_name_are_added_up_unless_the_name_is_clipped() -> None:
    def one(
        name: str, calls: int, host: int | None, device: int | None, category: str = "c"
    ) -> Operation:
        return Operation(name, category, calls, host, None, device, None, None)

    rows = [
        one("a", 2, None, 30),
        one("b", 1, 5, None),
        one("a", 3, None, 4),
        one("b", 1, None, None),
        one("a", 1, None, 1, "d"),
    ]
    assert stats.merge_operations(rows) == [
        one("a", 5, None, 34),
        one("b", 1, 5, None),
        one("b", 1, None, None),
        one("a", 1, None, 1, "d"),
    ]
    assert stats.merge_operations([one("f…", 1, 1, None)] * 2) == [one("f…", 1, 1, None)] * 2
    assert stats.merge_operations([one("a", LARGEST, 1, None), one("a", 1, LARGEST, None)]) == [
        one("a", LARGEST, None, None)
    ]


def test_summaries_name_row_and_column_and_leave_out_the_share() -> None:
    cells = {
        "Time": "50.0",
        "Total__Time_in_ms": "0.000",
        "Instances": "3",
        "Name": "k",
        "GridXYZ": "2  1  1",
        "Style": "PushPop",
        "Med_in_ns": "",
    }
    about = "r:k (grid 2 1 1) (Style PushPop)"
    read = stats.read_summaries("r", header(cells), list(cells.values()), POINT)
    assert [(one.name, one.value, one.unit, one.text) for one in read] == [
        (f"{about}:Total Time", None, "ns", "0.000"),
        (f"{about}:Instances", 3, None, None),
    ]


def test_a_trace_row_is_a_kernel_or_a_copy() -> None:
    place = {"Start_in_ns": "7", "Duration_in_ns": "5", "Device": "Tesla T4 (1)", "Strm": "14"}
    grid = {
        "GrdX": "4",
        "GrdY": "3",
        "GrdZ": "2",
        "BlkX": "32",
        "BlkY": "6",
        "BlkZ": "1",
        "Reg/Trd": "40",
    }
    shared = {"StcSMem_in_MB": "0.123", "DymSMem_in_byte": "16"}
    launched = {"Name": "gemm", **place, **grid, **shared}
    kernels = [row(stats.KERNEL, launched) for _ in range(2)]
    assert list(stats.read_kernels(iter(kernels)))[1] == Kernel(
        1, "gemm", None, None, None, None, None, None, 1, 14, 4, 3, 2, 32, 6, 1, 40, None, 16, 7, 5
    )
    assert list(stats.read_copies(iter([row(stats.COPY, launched)]))) == []
    kinds = {
        "memcpy HtoD": "HtoD",
        "memcpy Device-to-Host": "DtoH",
        "memset": "memset",
        "memcpy": "memcpy",
    }
    for name, kind in kinds.items():
        moved = {"Name": f"[CUDA {name}]", "Bytes_in_MB": "1.25", "GrdX": "", **place}
        assert list(stats.read_kernels(iter([row(stats.KERNEL, moved)]))) == []
        assert list(stats.read_copies(iter([row(stats.COPY, moved)]))) == [
            Copy(kind, 1_250_000, 7, 5, None, 1, 14)
        ]


@pytest.mark.parametrize(
    ("text", "index"),
    [("Tesla T4 (3)", 3), ("2", 2), (f"T4 ({'1' * 8})", 11_111_111), (f"T4 ({'1' * 9})", None)],
)
def test_a_device_is_read_from_its_text_or_its_number(text: str, index: int | None) -> None:
    assert stats.read_device(stats.Printed(PLAIN, POINT), text) == index


def test_ranges_of_a_trace_know_their_parent_and_their_layer() -> None:
    common = {"TID": "7", "Lvl": "0"}
    nested = {"Start_in_ns": "6", "Name": "x", "RangeId": "12", "ParentId": "11"}
    rows = [
        {"Start_in_ns": "5", "Duration_in_ns": "9", "Name": "fc:forward", "RangeId": "11"} | common,
        nested | {"Style": "StartEnd"} | common,
        {"Start_in_ns": "", "Name": "x"},
    ]
    assert list(stats.read_ranges(row(stats.RANGE, cells) for cells in rows)) == [
        Range(0, "fc:forward", None, 5, 9, 7, 0, None, "push_pop", "fc", "forward", None, None),
        Range(1, "x", None, 6, None, 7, None, 0, "start_end", None, None, None, None),
    ]
