"""--query-gpu's rows: what its header's columns are, which device a row is about, and when it
was read."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.common.tables import Column
from perfctl.parsers.monitors import nvidia_smi
from perfctl.parsers.monitors.nvidia_smi_query import (
    environment_of,
    read_header,
    unknown_units,
)
from perfctl.parsers.monitors.readings import Readings
from perfctl.records.report import Device, Gap, Report, Sample
from tests.parsers.monitor_logs import placed, read

MIB = 2**20
SECOND = 10**9
FULL = (
    "timestamp, index, gpu_name, uuid, utilization.gpu [%], memory.used [MiB], memory.total [MiB], "
    "temperature.gpu, temperature.memory, temperature.gpu.tlimit, clocks.sm [MHz], "
    "power.draw.average [W], power.draw.instant [W]"
)


def said(report: Report, severity: str) -> list[str]:
    return [entry.text for entry in report.diagnostics if entry.severity == severity]


def test_a_header_names_the_quantity_and_unit_of_each_column_and_where_it_stands() -> None:
    layout = read_header("\ufeff" + FULL + "\n")
    assert layout is not None
    assert [layout.places[name] for name in ("timestamp", "index", "uuid")] == [0, 1, 3]
    assert layout.measured[0] == (layout.columns[4], 4), "the cells before it measure nothing"
    assert layout.measured == [
        (Column("utilization.gpu", "%", "gpu_utilisation"), 4),
        (Column("memory.used", "MiB", "memory_used_bytes"), 5),
        (Column("memory.total", "MiB", "memory_total_bytes"), 6),
        (Column("temperature.gpu", "C", "temperature_c"), 7),
        (Column("temperature.memory", "C"), 8),
        (Column("temperature.gpu.tlimit", "C"), 9),
        (Column("clocks.sm", "MHz", "sm_clock_hz"), 10),
        (Column("power.draw.average", "W"), 11),
        (Column("power.draw.instant", "W", "power_w"), 12),
    ]


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ("power.draw.instant [W], power.draw [W], power.draw.average [W]", "power.draw"),
        ("power.draw.average [W], clocks.current.sm [MHz]", "power.draw.average"),
        ("power.limit [W], memory.free [MiB]", None),
    ],
)
def test_one_column_at_most_is_the_power_that_is_drawn(names: str, chosen: str | None) -> None:
    layout = read_header(names)
    assert layout is not None
    assert [column.name for column in layout.columns if column.field == "power_w"] == (
        [chosen] if chosen else []
    )


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
def test_other_lines_are_no_header(line: str) -> None:
    assert read_header(line) is None


@pytest.mark.parametrize(
    "line", ["utilization.gpu [%]", "pstate, index", "aa, pstate", "zz, fan.speed [%]"]
)
def test_one_known_column_and_a_comma_or_a_unit_make_a_header(line: str) -> None:
    assert read_header(line) is not None


def test_of_a_column_that_stands_twice_the_first_counts_as_the_index() -> None:
    layout = read_header("index, pstate, index")
    assert layout is not None
    assert layout.places["index"] == 0


def test_units_in_no_list_are_named_with_their_columns() -> None:
    layout = read_header("index, fan.speed [rpm], power.draw [W], pcie.rx [MB/s]")
    assert layout is not None
    assert [entry.text for entry in unknown_units(layout)] == [
        "not understood and kept as printed: units of fan.speed [rpm]"
    ]


def test_devices_without_an_index_are_numbered_by_uuid_in_the_order_of_the_file(
    tmp_path: Path,
) -> None:
    report = read(
        tmp_path, "uuid, utilization.gpu [%]\nGPU-b, 1 %\nGPU-a, 2 %\nGPU-a, 3 %\nGPU-b, 4 %\n"
    )
    assert placed(report) == [(0, 0), (0, 1), (1, 1), (1, 0)]
    assert "no index column: devices are numbered in the order of their first rows" in said(
        report, "info"
    )
    assert "sample.device_index" not in {gap.quantity for gap in report.gaps}


def test_an_index_goes_before_the_bus_and_one_that_is_none_leaves_the_device_unknown(
    tmp_path: Path,
) -> None:
    head = "index, pci.bus_id, utilization.gpu [%]\n"
    cells = ("5", "99999", "100000", "x", "5")
    rows = "".join(f"{index}, 0000:0{n}:00.0, {n} %\n" for n, index in enumerate(cells))
    report = read(tmp_path, head + rows)
    assert placed(report) == [(0, 5), (0, 99999), (1, None), (2, None), (2, 5)]
    assert not [text for text in said(report, "info") if "numbered in the order" in text]


def test_rows_below_a_date_are_gpu_0_1_and_a_bus_in_some_rows_alone_tells_nothing(
    tmp_path: Path,
) -> None:
    date = "Tue Mar  5 10:00:0{} UTC 2024\n"
    rows = "utilization.gpu [%], memory.used [MiB]\n1 %, 5 MiB\n2 %, 6 MiB\n"
    text = "".join(date.format(second) + rows.partition("\n")[2] for second in (1, 2))
    report = read(tmp_path, rows.partition("\n")[0] + "\n" + text)
    ten = 1709632800 * SECOND
    assert placed(report) == [
        (ten + SECOND, 0),
        (ten + SECOND, 1),
        (ten + 2 * SECOND, 0),
        (ten + 2 * SECOND, 1),
    ]
    assert "no device column: the rows below each date were counted as GPU 0, 1, ..." in said(
        report, "warning"
    )
    assert (report.started_at, report.duration_ns) == ("2024-03-05T10:00:01Z", SECOND)
    some = read(tmp_path, "uuid, utilization.gpu [%]\nGPU-a, 1 %\n, 2 %\nGPU-a, 3 %\n")
    assert placed(some) == [(0, None), (1, None), (2, None)]
    reason = "no column names the device: add index or uuid to --query-gpu"
    assert Gap("sample.device_index", "not_collected", reason) in some.gaps


def test_a_header_below_each_date_leaves_the_first_row_the_first_gpu(tmp_path: Path) -> None:
    rounds = (
        "Tue Mar  5 10:00:0{} UTC 2024\nutilization.gpu [%], memory.used [MiB]\n1 %, 5 MiB\n"
        "2 %, 6 MiB\n"
    )
    report = read(tmp_path, rounds.format(1) + rounds.format(2))
    assert [device for _, device in placed(report)] == [0, 1, 0, 1]


def test_the_rounds_of_a_header_are_counted_even_where_a_device_is_missing_from_one(
    tmp_path: Path,
) -> None:
    head = "index, utilization.gpu [%]\n"
    report = read(tmp_path, f"{head}0, 1 %\n1, 2 %\n{head}1, 3 %\n{head}0, 4 %\n1, 5 %\n0, 6 %\n")
    assert placed(report) == [(0, 0), (0, 1), (1, 1), (2, 0), (2, 1), (3, 0)]


def test_a_row_that_does_not_fit_its_header_is_set_aside(tmp_path: Path) -> None:
    report = read(tmp_path, "index, utilization.gpu [%]\n0, 1 %\n0, 1 %, 7\n5\n\n1, 2 %\n")
    assert placed(report) == [(0, 0), (0, 1)]
    assert "2 of 6 lines are not readings, for example '0, 1 %, 7'; '5'" in said(report, "info")


def test_rows_above_the_first_header_are_of_its_kind_or_set_aside(tmp_path: Path) -> None:
    header = "utilization.gpu [%], memory.used [MiB]\n"
    report = read(tmp_path, f"1 %, 5 MiB, 31.5 W\n2 %, 6 MiB, 7 W\n{header}3 %, 7 MiB\n")
    assert [(sample.gpu_utilisation, sample.memory_used_bytes) for sample in report.samples] == [
        (0.03, 7 * MIB)
    ]
    assert (
        "2 of 4 lines are not readings, for example '1 %, 5 MiB, 31.5 W'; '2 %, 6 MiB, 7 W'"
        in said(report, "info")
    )
    taken = read(tmp_path, f"1 %, 5 MiB\n{header}3 %, 7 MiB\n")
    assert [sample.gpu_utilisation for sample in taken.samples] == [0.01, 0.03]


def test_rows_without_a_header_are_as_wide_as_the_first(tmp_path: Path) -> None:
    rows = "".join(
        f"{n} %, 5 MiB, 9 MiB, 24, 31.5 W\n{more}\n"
        for n, more in ((1, "2 %, 6 MiB"), (3, "4 %, 8 MiB, 9 MiB, 24, 3 W, 1 %"), (5, "Epoch 1"))
    )
    report = read(tmp_path, rows)
    assert [sample.gpu_utilisation for sample in report.samples] == [0.01, 0.03, 0.05]
    assert (
        "3 of 6 lines are not readings, for example '2 %, 6 MiB'; '4 %, 8 MiB, 9 MiB, 24, 3 W, 1 "
        "%'; 'Epoch 1'" in said(report, "info")
    )


@pytest.mark.parametrize(
    ("head", "last", "cut"),
    [
        ("index, temperature.gpu", "0, 4", "temperature.gpu"),
        ("index, utilization.gpu [%]", "0, 4", "utilization.gpu"),
        ("index, utilization.gpu [%]", "0, 4 %", None),
        ("index, utilization.gpu [%]", "0, [N/A]", None),
        ("fan.speed [%], name", "5, GPU 10", None),
        ("index, fan.speed [%], uuid", "0, 5, GPU-01", None),
    ],
)
def test_a_number_at_the_cut_end_is_left_out_unless_its_unit_follows(
    tmp_path: Path, head: str, last: str, cut: str | None
) -> None:
    report = read(tmp_path, f"{head}\n{last}")
    reason = "the file ends inside its last number, which was left out"
    found = [gap for gap in report.gaps if gap.quantity.startswith("sample:")]
    assert found == ([Gap(f"sample:{cut}", "unreadable", reason)] if cut else [])


@pytest.mark.parametrize(
    ("last", "is_kept"),
    [
        # of a device that no row named before, and in full
        ("GPU-01234567-89ab-cdef-0123-456789abcdef", True),
        # known
        ("MIG-01234567-89ab-cdef-0123-456789abcdef", True),
        ("00000000:0A:00.0", True),
        ("GPU-a", True),
        ("GPU-01234567-89ab-cdef-0123-456789abcde", False),
        ("GPU-", False),
        ("00000000:0A:00.", False),
        ("0000", False),
    ],
)
def test_a_last_row_whose_uuid_or_bus_id_is_cut_is_of_no_device(
    tmp_path: Path, last: str, is_kept: bool
) -> None:
    head = "utilization.gpu [%], uuid\n1 %, GPU-a\n"
    report = read(tmp_path, f"{head}2 %, {last}")
    found = [(sample.gpu_utilisation, sample.device_index) for sample in report.samples]
    assert found == [(0.01, 0), (0.02, int(last != "GPU-a"))][: 1 + is_kept]
    reason = "the file ends inside this cell; its row was left out"
    gap = Gap("sample:uuid", "unreadable", reason)
    assert (gap in report.gaps) is not is_kept
    assert len(list(read(tmp_path, f"{head}2 %, {last}\n").samples)) == 2, (
        "a line that ends is whole"
    )
    numbered = read(tmp_path, f"index, utilization.gpu [%], uuid\n5, 1 %, GPU-a\n5, 2 %, {last}")
    assert [sample.device_index for sample in numbered.samples] == [5, 5], (
        "where there is an index it tells the device"
    )


def test_a_last_row_whose_timestamp_is_cut_is_no_reading(tmp_path: Path) -> None:
    head = "index, utilization.gpu [%], timestamp\n"
    rows = "0, 1 %, 2024/03/05 10:00:00.250\n0, 2 %, 2024/03/05 10:00:01.2"
    assert [sample.gpu_utilisation for sample in read(tmp_path, head + rows).samples] == [0.01]
    assert [sample.gpu_utilisation for sample in read(tmp_path, head + rows + "50\n").samples] == [
        0.01,
        0.02,
    ]


def test_a_header_whose_only_row_is_cut_within_its_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="no complete row fits the header"):
        read(tmp_path, "index, utilization.gpu [%], timestamp\n0, 2 %, 2024/03/05 10:00:01.2")


def test_columns_that_became_figures_are_named_forty_at_most(tmp_path: Path) -> None:
    names = [f"extra.c{n}" for n in range(41)]
    report = read(tmp_path, f"pstate, {', '.join(names)}\n{', '.join(['P0', *['1'] * 41])}\n")
    shown = ", ".join(["pstate", *names[:39]])
    assert f"kept as summaries, mean, min and max over the file: {shown}" in said(report, "info")


def sample(device: int | None, total: int | None) -> Sample:
    return Sample(0, None, None, total, None, None, None, device)


def test_a_device_has_the_memory_that_all_its_samples_agree_on() -> None:
    facts: dict[int | None, dict[str, str]] = {
        2: {"name": "B", "driver_version": "9"},
        0: {"gpu_name": "A"},
        1: {},
        3: {},
        None: {"name": "C"},
    }
    samples = [
        sample(0, 5),
        sample(0, None),
        sample(0, 5),
        sample(2, 5),
        sample(2, 6),
        sample(3, 7),
    ]
    readings = Readings()
    readings.samples += samples
    assert readings.describe_devices(facts) == (
        Device("C", "gpu", 0),
        Device("A", "gpu", 0, memory_bytes=5),
        Device("B", "gpu", 2, driver_version="9"),
        Device(None, "gpu", 3, memory_bytes=7),
    )


def test_the_driver_is_a_fact_where_all_devices_have_the_same() -> None:
    same: dict[int | None, dict[str, str]] = {
        0: {"driver_version": "9"},
        1: {"driver_version": "9"},
        2: {},
    }
    assert environment_of(same) == {"driver_version": "9"}
    assert environment_of(same | {3: {"driver_version": "8"}}) == {}
    assert environment_of({0: {}}) == {}


def test_a_line_of_more_than_4096_characters_is_no_row(tmp_path: Path) -> None:
    head = "utilization.gpu [%], name\n1 %, A\n"
    for length, rows in ((4096, 2), (4097, 1)):
        report = read(tmp_path, head + "2 %, ".ljust(length, "x") + "\n")
        assert len(list(report.samples)) == rows


ROW = "1 %, 5 MiB, 9 MiB, 24, 31.5 W\n"


@pytest.mark.parametrize(
    "head",
    [
        (
            "utilization.gpu [%], memory.used [MiB], memory.total [MiB], temperature.gpu, "
            "power.draw [W]\n"
        ),
        "",
    ],
)
def test_day_or_month_first_is_told_from_lines_of_date_with_and_without_a_header(
    tmp_path: Path, head: str
) -> None:
    """12 and 13 March: a day above 12 is a date too, and settles that of the lines above it."""
    text = f"{head}12/03/2026 10:00:00\n{ROW}13/03/2026 10:00:00\n{ROW}"
    report = read(tmp_path, text)
    twelfth = 1773309600 * SECOND
    assert placed(report) == [(twelfth, 0), (twelfth + 86_400 * SECOND, 0)]
    for date in ("03-11-2026", "3/11/2026"):
        undecided = read(tmp_path, f"{head}{date} 10:00:00\n{ROW}")
        reason = (
            "dates such as '03-11-2026' were read with the month first; nothing in the file says "
            "which comes first"
        )
        assert Gap("sample.at_ns", "ambiguous", reason) in undecided.gaps


def test_a_file_without_anything_of_nvidia_smi_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "smi.csv"
    path.write_text("Epoch 1\n")
    with pytest.raises(ReportError, match="it holds no output of nvidia-smi"):
        nvidia_smi.parse(path)
    with pytest.raises(ReportError, match="it cannot be read"):
        nvidia_smi.parse(tmp_path / "absent.csv")
    assert not nvidia_smi.sniff(path, b"Epoch 1\n")
    assert nvidia_smi.sniff(path, b"Epoch 1\n# gpu sm\n")
