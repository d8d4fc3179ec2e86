"""dmon and pmon: units and quantities of columns, rounds, times of day, and processes added up."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.monitors.nvidia_smi import recognise_lists
from perfctl.records.report import Sample, Summary
from tests.parsers.monitor_logs import placed, read

MIB = 2**20
SECOND = 10**9


def test_every_column_of_dmon_has_its_unit_without_the_line_of_units(tmp_path: Path) -> None:
    units = {
        "pwr": 1,
        "gtemp": 1,
        "mtemp": "C",
        "sm": 1,
        "mem": "%",
        "enc": "%",
        "dec": "%",
        "jpg": "%",
        "ofa": "%",
        "mclk": "Hz",
        "pclk": 1,
        "pviol": "%",
        "tviol": None,
        "fb": 1,
        "bar1": "byte",
        "ccpm": "byte",
        "sbecc": None,
        "dbecc": None,
        "pci": None,
        "rxpci": "byte/s",
        "txpci": "byte/s",
    }
    text = (
        f"# gpu {' '.join(units)}\n    3 {' '.join(str(n) for n in range(10, 10 + len(units)))}\n"
    )
    report = read(tmp_path, text)
    at = {name: n for n, name in enumerate(units, 10)}
    assert list(report.samples) == [
        Sample(
            0, at["sm"] / 100, at["fb"] * MIB, None, at["pwr"], at["gtemp"], at["pclk"] * 10**6, 3
        )
    ]
    scale = {"Hz": 10**6, "byte": MIB, "byte/s": 10**6}
    means = [figure for figure in report.summaries if figure.name.endswith(" mean")]
    assert means == [
        Summary(f"{name} mean", at[name] * scale.get(str(unit), 1), unit)  # type: ignore[arg-type]
        for name, unit in units.items()
        if unit != 1
    ]
    assert report.form == "nvidia-smi dmon"


def test_a_file_that_ends_in_the_number_of_a_gpu_loses_that_row_alone(tmp_path: Path) -> None:
    """A header in which the GPU stands last, as fields may be chosen."""
    whole = "# Time sm gpu\n10:00:01 60 1\n10:00:02 50 1"
    assert [sample.gpu_utilisation for sample in read(tmp_path, whole + "\n").samples] == [0.6, 0.5]
    assert [sample.gpu_utilisation for sample in read(tmp_path, whole).samples] == [0.6]
    with pytest.raises(ReportError, match="no complete row"):
        read(tmp_path, "# Time sm gpu\n10:00:01 60 1")


def test_a_row_whose_second_column_of_the_gpu_is_none_is_set_aside(tmp_path: Path) -> None:
    """Found by the fuzzer."""
    report = read(tmp_path, "# gpu sm gpu\n 1 60 -\n 1 70 1\n")
    assert [(sample.device_index, sample.gpu_utilisation) for sample in report.samples] == [
        (1, 0.7)
    ]


def test_temp_of_older_drivers_is_the_gpu_s(tmp_path: Path) -> None:
    report = read(tmp_path, "# gpu   pwr  temp\n# Idx     W     C\n    0    60    41\n")
    assert [(sample.temperature_c, sample.power_w) for sample in report.samples] == [(41, 60)]


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
def test_a_header_names_the_gpu_and_a_known_column(line: str, is_one: bool) -> None:
    assert recognise_lists(["0 1", line]) is is_one


def test_a_round_ends_where_a_gpu_comes_again_or_one_of_lower_number(tmp_path: Path) -> None:
    gpus = (0, 1, 2, 0, 2, 1, 1, 3)
    report = read(tmp_path, "# gpu sm\n" + "".join(f"{gpu} 5\n" for gpu in gpus))
    assert placed(report) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2), (2, 1), (3, 1), (3, 3)]


def test_rows_of_another_width_or_without_a_gpu_are_set_aside(tmp_path: Path) -> None:
    text = (
        "0 1\n# gpu sm fb\n# Idx % MB\n99999 1 2\n100000 1 2\nx 1 2\n0 1\n0 1 2 3\n# remark\n\n"
        "0 1 -\n"
    )
    report = read(tmp_path, text)
    assert placed(report) == [(0, 99999), (1, 0)]
    assert "5 of 11 lines are not readings" in " ".join(entry.text for entry in report.diagnostics)
    with pytest.raises(ReportError, match="header of dmon or pmon has no complete row below it"):
        read(tmp_path, "# gpu sm fb\n0 1\n")


def test_a_last_number_that_the_end_of_the_file_cuts_is_left_out(tmp_path: Path) -> None:
    cut, whole = (read(tmp_path, f"# gpu sm pwr\n0 5 7\n1 6 -\n2 6 8{end}") for end in ("", "\n"))
    assert [sample.power_w for sample in cut.samples] == [7, None, None]
    assert [sample.power_w for sample in whole.samples] == [7, None, 8]


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        (("01:02:03", "01:02:04"), (3723, 3724)),
        (("23:59:59", "00:00:00", "00:00:01"), (86399, 86400, 86401)),
        (("12:00:01", "00:00:01"), (43201, 1)),  # half a day back to the second is no midnight
        (("12:00:02", "00:00:01"), (43202, 86401)),
        (("10:00:05", "10:00:03"), (36005, 36003)),
        (("23:00:00", "01:00:00", "23:00:00", "01:00:00"), (82800, 90000, 169200, 176400)),
    ],
)
def test_times_of_day_count_from_the_first_midnight_and_pass_midnights(
    tmp_path: Path, times: tuple[str, ...], seconds: tuple[int, ...]
) -> None:
    report = read(tmp_path, "#Time gpu sm\n" + "".join(f"{time} 0 5\n" for time in times))
    assert [sample.at_ns for sample in report.samples] == [second * SECOND for second in seconds]
    assert report.started_at is None
    assert report.duration_ns == (max(seconds) - min(seconds)) * SECOND


def test_a_date_alone_is_its_midnight(tmp_path: Path) -> None:
    report = read(tmp_path, "#Date gpu sm\n20240305 0 5\n20240306 0 5\n")
    assert [sample.at_ns for sample in report.samples] == [1709596800 * SECOND, 1709683200 * SECOND]


def test_processes_of_a_gpu_are_added_up_and_kept_by_name(tmp_path: Path) -> None:
    text = (
        "# gpu pid type sm mem enc dec jpg ofa fb ccpm command\n"
        "# Idx # C/G % % % % % % MB MB name\n"
        "0 11 C 60 5 1 2 3 4 100 6 python train.py -x\n0 12 C 40 - - - - - 50 - b\n"
        "1 - - - - - - - - - - -\n"
        "0 11 C - 7 1 2 3 4 120 6 python train.py -x\n1 13 C 0 - - - - - 5 - c\n"
    )
    report = read(tmp_path, text)
    found = [
        (sample.at_ns, sample.device_index, sample.gpu_utilisation) for sample in report.samples
    ]
    assert found == [(0, 0, 1.0), (0, 1, None), (1, 0, None), (1, 1, 0.0)]
    assert report.form == "nvidia-smi pmon"
    figures = {figure.name: (figure.value, figure.unit) for figure in report.summaries}
    process = "GPU 0: process python train.py -x"
    assert figures[f"{process}: sm mean"] == (60, "%")
    assert figures[f"{process}: sm: not available"] == (1, "reading")
    assert figures[f"{process}: mem mean"] == (6, "%")
    for name, value in (("enc", 1), ("dec", 2), ("jpg", 3), ("ofa", 4)):
        assert figures[f"{process}: {name} mean"] == (value, "%")
    assert figures[f"{process}: fb max"] == (120 * MIB, "byte")
    assert figures[f"{process}: ccpm mean"] == (6 * MIB, "byte")
    assert figures["GPU 0: process b: fb mean"] == (50 * MIB, "byte")
    assert not [name for name in figures if "process -" in name]
    assert any("sum of pmon's sm" in entry.text for entry in report.diagnostics)


def test_a_process_that_ends_before_a_gpu_comes_again_does_not_join_two_rounds(
    tmp_path: Path,
) -> None:
    text = (
        "# gpu pid type sm command\n0 1 C 10 a\n1 2 C 20 b\n0 3 C 30 c\n1 2 C 40 b\n0 3 C 50 c\n"
        "0 4 C 1 d\n0 3 C 2 c\n"
    )
    report = read(tmp_path, text)
    found = [
        (sample.at_ns, sample.device_index, sample.gpu_utilisation) for sample in report.samples
    ]
    assert found == [(0, 0, 0.1), (0, 1, 0.2), (1, 0, 0.3), (1, 1, 0.4), (2, 0, 0.51), (3, 0, 0.02)]


def test_pmon_without_the_sm_column_has_figures_and_no_utilisation(tmp_path: Path) -> None:
    report = read(tmp_path, "# gpu pid type fb command\n0 1 C 10 a\n")
    assert list(report.samples) == []
    assert [figure.value for figure in report.summaries] == [10 * MIB] * 3


def test_shares_of_processes_that_are_more_than_the_whole_mean_nothing(tmp_path: Path) -> None:
    report = read(
        tmp_path, "# gpu  pid  type  sm  mem  command\n  0  1  C  70  1  a\n  0  2  C  60  1  b\n"
    )
    assert [sample.gpu_utilisation for sample in report.samples] == [None]
    assert ("sample.gpu_utilisation", "unreadable") in {
        (gap.quantity, gap.state) for gap in report.gaps
    }


def test_a_line_without_a_process_among_those_of_a_gpu_hides_none(tmp_path: Path) -> None:
    text = "# gpu pid type sm command\n0 1 C 10 a\n0 - - - -\n0 2 C 20 b\n"
    report = read(tmp_path, text)
    assert [(sample.at_ns, sample.gpu_utilisation) for sample in report.samples] == [(0, 0.3)]


def test_a_file_that_ends_behind_a_comma_has_an_empty_last_cell(tmp_path: Path) -> None:
    report = read(tmp_path, "# gpu, sm, fb\n0, 5, 100\n0, 6,")
    assert [sample.memory_used_bytes for sample in report.samples] == [100 * MIB, None]
