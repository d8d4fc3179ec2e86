"""--query-gpu's rows: what its header's columns are, which device a row is about, and when it
was read."""

from pathlib import Path

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.monitors import nvidia_smi
from perfctl.parsers.monitors.nvidia_smi import has_dmon_or_pmon_header, has_smi_table_title
from perfctl.parsers.monitors.nvidia_smi_query import (
    infer_layout_without_header,
    is_query_csv_row,
    make_unknown_unit_warnings,
    parse_query_header,
)
from tests.make.files import read, write


@pytest.mark.parametrize(
    "line",
    [
        "",
        "pstate",
        "timestamp, index, name",
        "Utilization.gpu [%], index",
        "utilization.gpu [%], 5",
        "0, 5 %",
        "utilization.gpu [%], memory used [MiB]",
        "`utilization.gpu [%], index",
        "{utilization.gpu [%], index",
    ],
)
def test_other_lines_are_no_header(line):
    assert parse_query_header(line) is None


@pytest.mark.parametrize(
    "line", ["utilization.gpu [%]", "pstate, index", "aa, pstate", "zz, fan.speed [%]"]
)
def test_one_known_column_and_a_comma_or_a_unit_make_a_header(line):
    assert parse_query_header(line) is not None


def test_units_in_no_list_are_named_with_their_columns():
    layout = parse_query_header("index, fan.speed [rpm], power.draw [W], pcie.rx [MB/s]")
    assert layout is not None
    assert [entry.text for entry in make_unknown_unit_warnings(layout)] == [
        "not understood and kept as printed: units of fan.speed [rpm]"
    ]


@pytest.mark.parametrize(
    ("drivers", "fact"), [("9 9", {"driver_version": "9"}), ("9 8", {}), ("9 9 8", {})]
)
def test_the_driver_is_a_fact_where_all_devices_have_the_same(tmp_path, drivers, fact):
    rows = [f"{index}, {driver}, 5 %\n" for index, driver in enumerate(drivers.split())]
    report = read(tmp_path, f"index, driver_version, utilization.gpu [%]\n{''.join(rows)}")
    assert report.environment == fact


def test_a_line_of_more_than_4096_characters_is_no_row(tmp_path):
    head = "utilization.gpu [%], name\n1 %, A\n"
    for length, rows in ((4096, 2), (4097, 1)):
        report = read(tmp_path, head + "2 %, ".ljust(length, "x") + "\n")
        assert len(list(report.samples)) == rows


def test_a_file_without_anything_of_nvidia_smi_is_refused(tmp_path):
    path = write(tmp_path / "smi.csv", "Epoch 1\n")
    with pytest.raises(ReportError, match="it contains no output of nvidia-smi"):
        nvidia_smi.parse(path)
    assert not nvidia_smi.sniff(path, b"Epoch 1\n")
    assert nvidia_smi.sniff(path, b"Epoch 1\n# gpu sm\n")


def test_columns_that_became_figures_are_named_forty_at_most(tmp_path):
    names = [f"extra.c{n}" for n in range(41)]
    report = read(tmp_path, f"pstate, {', '.join(names)}\n{', '.join(['P0', *['1'] * 41])}\n")
    shown = ", ".join(["pstate", *names[:39]])
    assert f"kept as summaries, mean, min and max over the file: {shown}" in [
        entry.text for entry in report.diagnostics
    ]


# The table of plain nvidia-smi: its title, and lines that are neither GPUs nor processes


TITLE = "| NVIDIA-SMI 570.133.20      Driver Version: 570.133.07     CUDA Version: 12.8     |\n"
FIRST = "|   {index}  {name:<22}On  | 00000000:0{index}:00.0 Off | {ecc:>20} |\n"
SECOND = "| {state:<29} | {memory:>20} | {work:>20} |\n"
PAIR = {
    "index": 0,
    "name": "GPU A",
    "ecc": "3",
    "state": "40%   61C    P2   151W / 250W",
    "memory": "1000MiB / 2GiB",
    "work": "87%      Default",
}


def pair(**changed):
    cells = PAIR | changed
    return FIRST.format(**cells) + SECOND.format(**cells)


def process(index, what, memory):
    return f"|  {index}   {what}   {memory} |\n"


def strange(report):
    """What was said not to be understood."""
    return "".join(
        said.text for said in report.diagnostics if "not understood" in said.text
    ).partition("parts ")[2]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("|      |      | Disabled* |\n", ""),
        ("|      |      |   9 l |\n", "9, l"),
        ("|   x  |      |  N/A |\n", "x"),
        ("|      |  y   |  N/A |\n", "y"),
        ("| Processes: Coolant |\n", "Coolant"),
        ("| No running processes found |\n", ""),
        ("|==========|=====+=====|\n", ""),
        ("|    0   N/A  N/A  nothing that is a process |\n", ""),
        ("loose words\n", ""),
        ("~ | x | y | 9 l |\n", ""),
    ],
)
def test_lines_below_a_gpu_are_its_third_or_a_heading_and_other_words_are_named(
    tmp_path, line, named
):
    assert strange(read(tmp_path, TITLE + pair() + line)) == named


@pytest.mark.parametrize(
    ("line", "is_title"),
    [
        (TITLE, True),
        ("| NVIDIA-SMI 390.77                 Driver Version: 390.77                    |", True),
        ("| NVIDIA-SMI 580.1   KMD Version: 580.2   CUDA UMD Version: 13.0 |", True),
        ("| NVIDIA-SMI has failed |", False),
        (TITLE.rstrip().ljust(299), True),
        (TITLE.rstrip().ljust(300), False),
    ],
)
def test_the_title_tells_the_table(line, is_title):
    assert has_smi_table_title(["x", line]) is is_title


# Rows without a header: read in the one form whose units name the columns, refused in


PATH = Path("smi.csv")


def test_units_of_all_rows_name_the_columns_and_a_warning_says_so():
    layout, warning = infer_layout_without_header(
        [["1 %", "5 MiB", "9 MiB", "24", "50.5 W"], ["[N/A]", "9 MiB", "9 MiB", "25", "[N/A]"]],
        PATH,
    )
    names = ["utilization.gpu", "memory.used", "memory.total", "temperature.gpu", "power.draw"]
    assert [column.name for column in layout.columns] == names
    assert [column.unit for column in layout.columns] == ["%", "MiB", "MiB", "C", "W"]
    assert warning.severity == "warning"
    assert all(name in warning.text for name in names)


@pytest.mark.parametrize(
    "row",
    [
        "1 %, 9 MiB, 5 MiB, 24, 50.5 W",  # more used than there is: the columns are others
        "1 %, 5 MiB, 9 MiB, 24 W, 50.5 W",
        "1 %, 2 %, 9 MiB, 24, 50.5 W",
        "1, 5 MiB, 9 MiB, 24, 50.5 W",
        "1 %, 5 MiB, 9 MiB, 24",
        "1 %, 5 MiB, 9 MiB, 24, 50.5 W, 60.5 W",
        "50.5 W, 1 %",
        "2024/03/05 10:00:00.250, 1 %, 5 MiB, 9 MiB, 24, 50.5 W",
    ],
)
def test_any_other_row_is_refused_with_what_to_do(row):
    with pytest.raises(ReportError, match="no header that names their columns") as raised:
        infer_layout_without_header(
            [["1 %", "5 MiB", "9 MiB", "24", "50.5 W"], row.split(", ")], PATH
        )
    assert "Put the header line above the rows" in raised.value.remedy


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("1 %, 5 MiB", True),
        ("1 %, 5", False),
        ("x, 1 %, y, -5.5 W", True),
        ("2024/03/05 10:00:00.250, 5", True),
        ("2024/03/05 10:00:00.250", False),
        ("2024-03-05 10:00:00, 5", False),
        ("5, 2024/03/05 10:00:00.250", False),
        ("1 %,5 MiB", False),
        ("1%, 5MiB", False),
    ],
)
def test_a_row_has_two_units_or_nvidia_smi_s_own_timestamp_and_another_cell(line, is_one):
    assert is_query_csv_row(line) is is_one


def test_hostile_cells_stay_data(tmp_path):
    head = "timestamp, index, name, utilization.gpu [%], memory.used [MiB]\n"
    nasty = "2024/03/05 10:00:00.500, 0, <b>\"\u202ex\u202c'; DROP TABLE, 40 %, 1 MiB\n"
    huge = "9999/03/05 10:00:00.500, 99999999999999999999, x, 1e99 %, 99999999999999999999 MiB\n"
    nul = "2024/03/05 10:00:00.500, 0, a\0b, 40 %, 1 MiB\n"
    long = "x" * (5 * 2**20) + "\n"
    report = read(tmp_path, head + nasty + huge + nul + long + nasty)
    samples = list(report.samples)
    assert [sample.gpu_utilisation for sample in samples] == [0.4, None, 0.4]
    assert samples[1].memory_used_bytes is None
    assert all(sample.at_ns < 2**63 for sample in samples)
    assert report.devices[-1].name == "<b>\"\u202ex\u202c'; DROP TABLE"
    assert any("longer than" in entry.text for entry in report.diagnostics)


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("# gpu sm", True),
        ("#Date Time gpu fb", True),
        ("#Time, gpu, mclk", True),
        ("  # GPU PWR", True),
        ("# gpu", False),
        ("# time sm", False),
        ("gpu sm", False),
        ("# gpu name", False),
        ("# gpus sm", False),
        ("# gpu sm".ljust(4096), True),
        ("# gpu sm".ljust(4097), False),
    ],
)
def test_a_header_names_the_gpu_and_a_known_column(line, is_one):
    assert has_dmon_or_pmon_header(["0 1", line]) is is_one
