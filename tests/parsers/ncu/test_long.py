"""ncu's long CSV: where the columns of its headers are, launches that a rule names first, and
rules counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers.ncu.builder import Launch
from perfctl.parsers.ncu.csv import Columns, is_header
from perfctl.records.report import Counter
from tests.make.ncu_csv import METRIC, NVTX, line, read

IDENTITY = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name"]
FULL = [
    *IDENTITY[:4],
    *NVTX,
    "Kernel Name",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
    "Section Name",
    "Body Item Label",
    *METRIC,
    "Rule Name",
    "Rule Type",
    "Rule Description",
]
BARE = ["ID", "Process ID", "Kernel Name", *METRIC]


def test_every_cell_of_a_launch_comes_from_its_own_column() -> None:
    cells = [
        "5",
        "42",
        "app",
        "host",
        '"D:outer:none:none:none:none:none:none"',
        '"D:beside:none:none:none:none:none:none"',
        "gemm",
        "1",
        "7",
        "(32, 1, 1)",
        "(4, 1, 1)",
        "0",
        "8.0",
    ]
    expected = Launch(
        order=5,
        name="gemm",
        stream="7",
        block="(32, 1, 1)",
        grid="(4, 1, 1)",
        device="0",
        capability="8.0",
        process="42",
        context="1",
        push_pop=("outer",),
        start_end=("beside",),
    )
    assert Columns(FULL).launch(cells) == expected
    short = expected._replace(block="", grid="", device="", capability="")
    assert Columns(FULL).launch(cells[:9]) == short, "a row that ends early has no further cells"


def test_a_column_that_a_header_does_not_have_is_no_other_one_and_of_two_the_first_counts() -> None:
    row = ["5", "42", "gemm", "a__b.sum", "inst", "7"]
    assert Columns(BARE).launch(row) == Launch(order=5, name="gemm", process="42")
    assert Columns([]).last == Columns([])["ID"] == -1
    columns = Columns(["ID", "Process ID", "Kernel Name", "Stream", *METRIC, "Stream", "ID"])
    assert (columns["ID"], columns["Stream"], columns["Metric Value"], columns.last) == (0, 3, 6, 6)


@pytest.mark.parametrize(
    ("header", "missing"),
    [
        (BARE, []),
        (["ID", "Process ID", "Kernel Name"], []),
        (FULL, []),
        (BARE[1:], ["ID"]),
        (["ID", *BARE[2:]], ["Process ID"]),
        ([*BARE[:2], *METRIC], ["Kernel Name"]),
        (BARE[:5], ["Metric Value"]),
        (BARE[:4], ["Metric Unit", "Metric Value"]),
        ([*BARE[:3], "Metric Value"], ["Metric Name", "Metric Unit"]),
        ([], ["ID", "Process ID", "Kernel Name"]),
        (["Metric Name", "ID"], ["Process ID", "Kernel Name", *METRIC[1:]]),
        (["Metric Value", "ID"], ["Process ID", "Kernel Name", *METRIC[:2]]),
    ],
)
def test_columns_without_which_a_row_means_nothing_are_named(
    header: list[str], missing: list[str]
) -> None:
    assert Columns(header).missing() == missing


@pytest.mark.parametrize(
    ("header", "at"),
    [
        (FULL, 13),
        (BARE, 3),
        (["ID", "Process ID", "Kernel Name", "Section Name", *METRIC], 3),
        # one column of the launch comes later
        (["ID", "Process ID", "Section Name", "Kernel Name", *METRIC], 0),
        ([*BARE, "CC"], 0),
        ([*BARE, "Device"], 0),
        ([*BARE, NVTX[0]], 0),
        ([*BARE, NVTX[1]], 0),
        ([*BARE, "Stream"], 0),
        ([*BARE, "Block Size"], 0),
        ([*BARE, "Grid Size"], 0),
        ([*BARE, "Context"], 0),
        ([*BARE, "Host Name"], 3),
        (["Metric Unit", *BARE[:3], "Metric Name", "Metric Value"], 0),
    ],
)
def test_rows_of_a_launch_begin_alike_where_the_columns_of_the_metric_come_last(
    header: list[str], at: int
) -> None:
    assert Columns(header).first_of_metric() == at


@pytest.mark.parametrize("header", [FULL, BARE, [*BARE, "CC"], [*BARE[:2], *METRIC, BARE[2]]])
def test_the_order_of_the_columns_changes_nothing(header: list[str], tmp_path: Path) -> None:
    rows = [
        ("a__b.sum", "inst", "1"),
        ("c__d.sum", "Kbyte", "2"),
        ("a__b.sum", "inst", "3"),
        ("c__d.sum", "Kbyte", "1"),
    ]
    cells = {"Kernel Name": "gemm", "Process ID": "42"}
    text = line(*header)
    for number, row in enumerate(rows):
        named = cells | {"ID": str(number // 2)} | dict(zip(METRIC, row, strict=True))
        text += line(*(named.get(name, "") for name in header))
    report = read(tmp_path, text)
    section = "" if "Section Name" in header else None
    assert list(report.counters) == [
        Counter(0, "a__b.sum", 1, "inst", section),
        Counter(0, "c__d.sum", 2000, "byte", section),
        Counter(1, "a__b.sum", 3, "inst", section),
        Counter(1, "c__d.sum", 1000, "byte", section),
    ]
    assert [kernel.name for kernel in report.kernels] == ["gemm"] * 2


def test_a_launch_that_a_rule_names_first_gets_its_stream_from_its_first_metric(
    tmp_path: Path,
) -> None:
    """Rows of rules carry the stream of the rule engine."""
    header = [
        "ID",
        "Process ID",
        "Kernel Name",
        "Stream",
        *METRIC,
        "Rule Name",
        "Rule Type",
        "Rule Description",
    ]
    text = line(*header)
    for number, stream in ((0, "7"), (1, "13")):
        text += line(number, 42, "k", "1", "", "", "", "Bottleneck", "INF", f"launch {number}")
        text += line(number, 42, "k", stream, "a__b.sum", "inst", "5")
        text += line(number, 42, "k", "1", "", "", "", "Bottleneck", "INF", f"again {number}")
    for number in (2, 3, 2):  # these two have rules alone
        text += line(number, 42, "k", "1", "", "", "", "Bottleneck", "OPT", "alone")
    text += line(2, 42, "k", "1", "", "", "", "Bottleneck", "WRN")  # without its text
    report = read(tmp_path, text)
    assert [kernel.stream for kernel in report.kernels] == [7, 13, None, None]
    assert [counter.launch for counter in report.counters] == [0, 1]
    assert [one[:4] for one in report.advice] == [
        *(
            (number, "Bottleneck", "INF", f"{word} {number}")
            for number in (0, 1)
            for word in ("launch", "again")
        ),
        *((number, "Bottleneck", "OPT", "alone") for number in (2, 2, 3)),
    ]


@pytest.mark.parametrize(
    ("row", "is_one"),
    [
        (["ID", "Process ID", "Kernel Name"], True),
        (["Process ID", "Process Name", "x"], True),
        (["ID", "Process ID"], True),
        (["ID"], False),
        (["Process ID", "ID"], False),
        (["0", "42", "Process ID"], False),
        (["ID", "Process Name"], False),
    ],
)
def test_a_header_is_told_by_its_first_two_columns(row: list[str], is_one: bool) -> None:
    assert is_header(row) is is_one
