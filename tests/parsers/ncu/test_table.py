"""Launches and figures of small ncu CSV files, long and wide, and the columns of its
console tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError, parse, reports
from perfctl.parsers.ncu import text as ncu_text
from perfctl.parsers.ncu.text import TextTable, spans_of
from perfctl.records.report import Advice, Counter, Diagnostic
from tests.make.ncu_csv import METRIC, line, read

LONG = [
    "ID",
    "Process ID",
    "Kernel Name",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
    "Section Name",
    *METRIC,
]
CUT = "1 rows of the CSV are cut off or broken"
WIDE = [
    "ID",
    "Process ID",
    "Kernel Name",
    "Grid Size",
    "launch__registers_per_thread",
    "dram__bytes.sum",
]


def long(
    number: object,
    metric: str,
    unit: str,
    value: str,
    *,
    grid: str = "(4, 3, 2)",
    stream: str = "7",
) -> str:
    return line(number, 42, "k", stream, "(32, 1, 1)", grid, "0", "8.0", "S", metric, unit, value)


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        ("(16, 8, 1)", (16, 8, 1)),
        ("16,8,1", (16, 8, 1)),
        ("(16, 8)", (None,) * 3),
        ("(1, 2, 3, 4)", (None,) * 3),
        ("(x, 8, 1)", (None,) * 3),
        ("(16, , 1)", (None,) * 3),
        (f"({'9' * 18}, 1, 1)", (10**18 - 1, 1, 1)),
        (f"({'9' * 19}, 1, 1)", (None,) * 3),
        ("", (None,) * 3),
    ],
)
def test_a_grid_has_three_whole_numbers(
    grid: str, expected: tuple[int | None, ...], tmp_path: Path
) -> None:
    (kernel,) = read(tmp_path, line(*LONG), long(0, "a__b.sum", "inst", "1", grid=grid)).kernels
    assert (kernel.grid_x, kernel.grid_y, kernel.grid_z) == expected
    assert (kernel.block_x, kernel.block_y, kernel.block_z, kernel.stream, kernel.device_index) == (
        32,
        1,
        1,
        7,
        0,
    )


@pytest.mark.parametrize("page", ["long", "wide"])
@pytest.mark.parametrize(
    ("number", "is_read"), [("9" * 18, True), ("9" * 19, False), ("x", False), ("-1", False)]
)
def test_an_id_has_at_most_eighteen_digits(
    page: str, number: str, is_read: bool, tmp_path: Path
) -> None:
    if page == "long":
        lines = [line(*LONG), *(long(some, "a__b.sum", "inst", "1") for some in ("0", number))]
    else:
        rows = (line(some, 42, "k", "", 8, 1) for some in ("0", number))
        lines = [line(*WIDE), line("", "", "", "", "", "inst"), *rows]
    report = read(tmp_path, *lines)
    assert len(list(report.kernels)) == 1 + is_read
    said = [gap.reason for gap in report.gaps if gap.state == "unreadable"]
    assert said == ([] if is_read else [CUT])


def test_figures_are_in_base_units_and_launches_in_the_order_of_their_ids(tmp_path: Path) -> None:
    lines = [
        long(3, "gpu__time_duration.sum", "usecond", "1.25"),
        long(3, "dram__bytes.sum", "Kbyte", "2"),
        long(1, "gpu__time_duration.sum", "nsecond", "700"),
        long(1, "sm__x.sum", "", "n/a"),
        long(1, "sm__y", "", "text"),
    ]
    report = read(tmp_path, line(*LONG), *lines)
    assert list(report.counters) == [
        Counter(1, "gpu__time_duration.sum", 1250, "ns", "S"),
        Counter(1, "dram__bytes.sum", 2000, "byte", "S"),
        Counter(0, "gpu__time_duration.sum", 700, "ns", "S"),
        Counter(0, "sm__x.sum", None, None, "S", "n/a"),
        Counter(0, "sm__y", None, None, "S", "text"),
    ]
    assert [(kernel.launch, kernel.duration_ns) for kernel in report.kernels] == [
        (0, 700),
        (1, 1250),
    ]
    said = {gap.quantity: gap.reason for gap in report.gaps}
    assert said["counter:sm__x.sum"].startswith('ncu printed "n/a" in place of 1 values')
    assert "counter:sm__y" not in said
    example = (
        "(for example gpu__time_duration.sum in usecond); export with --print-units base for exact "
        "figures"
    )
    text = f"2 metrics are rounded because ncu printed them in scaled units {example}"
    assert report.diagnostics == (Diagnostic("info", "perfctl", text),)
    assert not any(
        "rounded" in said.text for said in read(tmp_path, line(*LONG), lines[2]).diagnostics
    )


def test_a_wide_row_that_is_cut_off_gives_the_cells_it_has(tmp_path: Path) -> None:
    units = line("", "", "", "", "register/thread", "Mbyte")
    rows = line(0, 42, "k", "(1, 1, 1)", 8, "1.5"), line(1, 42, "k", "(1, 1, 1)", 9)
    report = read(tmp_path, line(*WIDE), units, *rows)
    assert [(one.launch, one.name, one.value, one.unit) for one in report.counters] == [
        (0, "launch__registers_per_thread", 8, "register/thread"),
        (0, "dram__bytes.sum", 1_500_000, "byte"),
        (1, "launch__registers_per_thread", 9, "register/thread"),
    ]
    assert [kernel.registers for kernel in report.kernels] == [8, 9]
    assert [gap.reason for gap in report.gaps if gap.quantity == "counter"] == [CUT]


def test_a_rule_or_a_cut_row_within_a_launch_is_no_figure(tmp_path: Path) -> None:
    metric = long(0, "a__b.sum", "inst", "1")
    identity = (0, 42, "k", "7", "(32, 1, 1)", "(4, 3, 2)", "0", "8.0", "S")
    rule = line(*identity, "", "", "", "Bottleneck", "INF", "few blocks")
    header = line(*LONG, "Rule Name", "Rule Type", "Rule Description")
    report = read(tmp_path, header, metric, rule, line(*identity, "c__d.sum"), metric)
    assert list(report.counters) == [Counter(0, "a__b.sum", 1, "inst", "S")] * 2
    assert [gap.reason for gap in report.gaps if gap.quantity == "counter"] == [CUT]
    assert list(report.advice) == [Advice(0, "Bottleneck", "INF", "few blocks")]
    assert not report.diagnostics


@pytest.mark.parametrize("log", [(), ("==PROF== Connected to process 43 (app)\n", "loss 0.5\n")])
def test_a_further_header_begins_a_further_run_with_what_ncu_said_before_it(
    log: tuple[str, ...], tmp_path: Path
) -> None:
    values = (7, 8, 9)
    outputs = [(*log, line(*LONG), long(0, "a__b.sum", "inst", str(value))) for value in values]
    path = tmp_path / "report.csv"
    path.write_text("".join(text for output in outputs for text in output))
    assert [list(part.report.counters) for part in reports(path) if part.report] == [
        [Counter(0, "a__b.sum", value, "inst", "S")] for value in values
    ]
    with pytest.raises(
        ReportError, match=rf"it holds 3 runs; the second begins at line {len(outputs[0]) + 1}\b"
    ):
        parse(path)


def test_a_further_table_without_its_columns_is_a_run_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "report.csv"
    path.write_text(
        line(*LONG)
        + long(0, "a__b.sum", "inst", "1")
        + line("ID", "Process ID", "Context")
        + line(0, 1, 2)
    )
    first, second = reports(path)
    assert (first.report is not None, first.error, second.report) == (True, None, None)
    assert second.error is not None
    assert second.error.reason.startswith("lines 3 to 4: the CSV has no column Kernel Name")


RULER = "    ------ ---- ---------"
SPANS = ((4, 10), (11, 15), (16, 25))


def table(*lines: str, open_above: bool = False) -> tuple[list[list[str]], int, int, list[bool]]:
    found = TextTable(SPANS, RULER, open_above=open_above)
    took = [found.take(text) for text in lines]
    return found.rows(), found.broken, found.unclosed(), took


def test_a_ruler_of_dashes_gives_the_columns() -> None:
    assert spans_of(RULER) == spans_of(RULER + "  \n") == SPANS
    assert spans_of("--- ---") == ((0, 3), (4, 7))
    assert [spans_of(text) for text in ("---", "--- --", "---  ---", "--- x ---", "")] == [()] * 5
    ruler = "-" * 1999 + " " + "-" * 2000
    assert (len(spans_of(ruler)), spans_of(ruler + "-")) == (2, ())


def rows_of(*lines: str) -> tuple[list[list[str]], int]:
    return table(*(text + "\n" for text in lines))[:2]


def test_names_and_values_that_are_broken_are_put_together() -> None:
    assert table("    Name   inst       123\n", RULER + "\n") == (
        [["Name", "inst", "123"]],
        0,
        0,
        [True, True],
    )
    assert rows_of("    Name   inst    NVIDIA", "                     RTX", RULER) == (
        [["Name", "inst", "NVIDIA"]],
        1,
    )
    whole = ["Name", "inst", "NVIDIA RTX"]
    assert rows_of("    Name   inst    NVIDIA", "                      RTX", RULER) == ([whole], 0)
    assert rows_of("           inst       123", RULER) == ([], 1)


def test_a_name_whose_last_column_is_a_blank_goes_on_and_a_shorter_one_does_not() -> None:
    rest = "    ame"
    assert rows_of("    Long.N inst       123", rest, RULER) == ([["Long.Name", "inst", "123"]], 0)
    assert rows_of("    Long.  inst       123", rest, RULER) == ([["Long.ame", "inst", "123"]], 0)
    assert rows_of("    Long   inst       123", rest, RULER) == (
        [["Long", "inst", "123"], ["ame", "", ""]],
        0,
    )


def test_a_row_that_does_not_fit_its_columns_or_its_edge_is_broken() -> None:
    fits = "    Name   inst       123\n"
    for odd in (
        "Name   inst      123",
        "Name   inst        123",
        "Namexxxinst       123",
        "Name   instx      123",
    ):
        rows, broken, _, took = table(fits, f"    {odd}\n", RULER + "\n")
        assert (rows, broken, took) == ([["Name", "inst", "123"]], 1, [True] * 3), odd


def test_a_table_ends_at_a_second_ruler_a_blank_line_or_a_foreign_one() -> None:
    fits = "    Name   inst       123\n"
    assert table(fits, RULER + "\n", fits)[2:] == (0, [True, True, False])
    assert table(fits, "\n", fits)[2:] == (0, [True, False, False])
    for foreign in ("==PROF== x\n", "  Section: y\n", "text\n"):
        assert table(fits, foreign, fits)[2:] == (0, [True, False, False])
    assert table(fits)[2:] == (1, [True])
    assert table(fits, open_above=True)[2:] == (0, [True])


@pytest.mark.parametrize(("columns", "is_known"), [(2, True), (3, True), (4, False)])
def test_a_table_of_other_columns_than_metrics_or_advice_is_pointed_out(
    columns: int, is_known: bool, tmp_path: Path
) -> None:
    launch = "  k(int) (4, 1, 1)x(32, 1, 1), Context 1, Stream 7, Device 0, CC 8.0"
    metrics = [
        "    Section: S",
        RULER,
        "    Metric Name Metric Unit Metric Value",
        RULER,
        "    Name   inst       123",
        RULER,
    ]
    further = ["", "    " + " ".join(["------"] * columns), ""]
    path = tmp_path / "log.txt"
    path.write_text("\n".join([launch, *metrics, *further]))
    report = ncu_text.parse(path)
    said = [
        one.text
        for one in report.diagnostics
        if f"a table of {columns} columns in section S" in one.text
    ]
    assert bool(said) is not is_known
    assert len(list(report.kernels)) == 1
