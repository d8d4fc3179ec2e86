"""--query-gpu's rows: what its header's columns are, which device a row is about, and when it
was read."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.common.tables import Column
from perfctl.parsers.monitors import nvidia_smi
from perfctl.parsers.monitors.nvidia_smi_query import (
    read_header,
    unknown_units,
)
from perfctl.records.report import Gap
from tests.make.monitors import read

FULL = (
    "timestamp, index, gpu_name, uuid, utilization.gpu [%], memory.used [MiB], memory.total [MiB], "
    "temperature.gpu, temperature.memory, temperature.gpu.tlimit, clocks.sm [MHz], "
    "power.draw.average [W], power.draw.instant [W]"
)


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
    reason = "the file ends inside this cell; its row was skipped"
    gap = Gap("sample:uuid", "unreadable", reason)
    assert (gap in report.gaps) is not is_kept
    assert len(list(read(tmp_path, f"{head}2 %, {last}\n").samples)) == 2, (
        "a line that ends is whole"
    )
    numbered = read(tmp_path, f"index, utilization.gpu [%], uuid\n5, 1 %, GPU-a\n5, 2 %, {last}")
    assert [sample.device_index for sample in numbered.samples] == [5, 5], (
        "where there is an index it tells the device"
    )


@pytest.mark.parametrize(
    ("drivers", "fact"), [("9 9", {"driver_version": "9"}), ("9 8", {}), ("9 9 8", {})]
)
def test_the_driver_is_a_fact_where_all_devices_have_the_same(
    tmp_path: Path, drivers: str, fact: dict[str, str]
) -> None:
    rows = [f"{index}, {driver}, 5 %\n" for index, driver in enumerate(drivers.split())]
    report = read(tmp_path, f"index, driver_version, utilization.gpu [%]\n{''.join(rows)}")
    assert report.environment == fact


def test_a_line_of_more_than_4096_characters_is_no_row(tmp_path: Path) -> None:
    head = "utilization.gpu [%], name\n1 %, A\n"
    for length, rows in ((4096, 2), (4097, 1)):
        report = read(tmp_path, head + "2 %, ".ljust(length, "x") + "\n")
        assert len(list(report.samples)) == rows


def test_a_file_without_anything_of_nvidia_smi_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "smi.csv"
    path.write_text("Epoch 1\n")
    with pytest.raises(ReportError, match="it contains no output of nvidia-smi"):
        nvidia_smi.parse(path)
    with pytest.raises(ReportError, match="it cannot be read"):
        nvidia_smi.parse(tmp_path / "absent.csv")
    assert not nvidia_smi.sniff(path, b"Epoch 1\n")
    assert nvidia_smi.sniff(path, b"Epoch 1\n# gpu sm\n")


def test_columns_that_became_figures_are_named_forty_at_most(tmp_path: Path) -> None:
    names = [f"extra.c{n}" for n in range(41)]
    report = read(tmp_path, f"pstate, {', '.join(names)}\n{', '.join(['P0', *['1'] * 41])}\n")
    shown = ", ".join(["pstate", *names[:39]])
    assert f"kept as summaries, mean, min and max over the file: {shown}" in [
        entry.text for entry in report.diagnostics
    ]
