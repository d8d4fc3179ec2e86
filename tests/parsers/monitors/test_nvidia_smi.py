"""nvidia-smi in all its forms: tests/data/nvidia-smi-synthetic (made up)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from perfctl.parsers import ReportError, parse, sniff
from perfctl.parsers.monitors import nvidia_smi
from perfctl.records.report import Report, Sample

DATA = Path(__file__).resolve().parents[2] / "data" / "nvidia-smi-synthetic"
MIB = 2**20
TEN = int(datetime(2024, 3, 5, 10, tzinfo=UTC).timestamp()) * 10**9
SECOND = 10**9


def read(path: Path) -> tuple[Report, list[Sample]]:
    found = sniff(path)
    assert found is not None
    assert found.name == "nvidia-smi"
    report = parse(path)
    return report, list(report.samples)


def written(tmp_path: Path, text: str, encoding: str = "utf-8") -> Path:
    path = tmp_path / "smi.txt"
    path.write_bytes(text.encode(encoding))
    return path


def gaps(report: Report) -> dict[str, str]:
    return {gap.quantity: gap.state for gap in report.gaps}


def figures(report: Report) -> dict[str, float | None]:
    return {figure.name: figure.value for figure in report.summaries}


def test_a_report_says_which_form_it_is_of() -> None:
    forms = {
        "query.csv": "CSV",
        "noheader.txt": "CSV, no header",
        "table.txt": "table",
        "dmon.txt": "dmon",
        "pmon.txt": "pmon",
    }
    for name, form in forms.items():
        report, _ = read(DATA / name)
        assert (report.tool, report.form) == ("nvidia-smi", f"nvidia-smi {form}")


def test_query_rows_become_samples_in_base_units() -> None:
    report, samples = read(DATA / "query.csv")
    assert samples[0] == Sample(
        TEN + SECOND // 2, 0.4, 100 * MIB, 1000 * MIB, 50.25, 41, 1_200_000_000, 0
    )
    assert [sample.device_index for sample in samples] == [0, 1, 0, 1]
    assert [
        (device.name, device.memory_bytes, device.driver_version) for device in report.devices
    ] == [
        ("Synthetic GPU A", 1000 * MIB, "555.10"),
        ("Synthetic GPU B", 2000 * MIB, "555.10"),
    ]
    assert report.duration_ns == SECOND + 2_000_000


def test_what_the_tool_could_not_say_is_unknown_with_one_gap_a_quantity() -> None:
    report, samples = read(DATA / "query.csv")
    assert [sample.power_w for sample in samples] == [50.25, None, 75.75, None]
    assert [sample.gpu_utilisation for sample in samples] == [0.4, 0.0, 1.0, None]
    assert [gap.quantity for gap in report.gaps] == ["sample.gpu_utilisation", "sample.power_w"]


def test_a_time_without_a_zone_says_so_and_gives_no_start() -> None:
    report, _ = read(DATA / "query.csv")
    assert report.started_at is None
    assert any("time zone" in entry.text for entry in report.diagnostics)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_encodings_and_line_ends_change_nothing(tmp_path: Path, encoding: str, end: str) -> None:
    path = written(tmp_path, (DATA / "query.csv").read_text().replace("\n", end), encoding)
    assert read(path)[1] == read(DATA / "query.csv")[1]


def test_rows_without_a_header_are_told_by_their_units() -> None:
    report, samples = read(DATA / "noheader.txt")
    nine = TEN - 3600 * SECOND  # 10 o'clock in CET
    assert samples[0] == Sample(nine, 0.5, 700 * MIB, 9000 * MIB, 101.5, 61, None, 0)
    assert [(sample.at_ns - nine, sample.device_index) for sample in samples] == [
        (0, 0),
        (0, 1),
        (60 * SECOND, 0),
        (60 * SECOND, 1),
    ]
    assert report.started_at == "2024-03-05T09:00:00Z"
    assert any("power.draw [W]" in entry.text for entry in report.diagnostics)


def test_rows_without_header_and_units_are_refused_with_the_remedy(tmp_path: Path) -> None:
    path = written(tmp_path, "2024/03/05 10:00:00.500, 40, 100, 1000\n")
    with pytest.raises(ReportError, match="header line above the rows"):
        parse(path)


def test_month_and_day_are_told_by_what_keeps_the_rows_in_order(tmp_path: Path) -> None:
    head = "timestamp, utilization.gpu [%]\n"
    month_first, _ = read(
        written(tmp_path, head + "03-11-2026 23:59:00, 1 %\n03-12-2026 00:01:00, 2 %\n")
    )
    assert month_first.duration_ns == 120 * SECOND
    day_first, samples = read(
        written(tmp_path, head + "11-03-2026 23:59:00, 1 %\n12-03-2026 00:01:00, 2 %\n")
    )
    assert day_first.duration_ns == 120 * SECOND
    assert datetime.fromtimestamp(samples[0].at_ns / 1e9, UTC).month == 3
    undecided, _ = read(written(tmp_path, head + "03-11-2026 10:00:00, 1 %\n"))
    assert gaps(undecided)["sample.at_ns"] == "ambiguous"


def test_readings_without_times_are_numbered_and_say_so(tmp_path: Path) -> None:
    text = "index, utilization.gpu [%]\n0, 1 %\n1, 2 %\n0, 3 %\n1, 4 %\n"
    report, samples = read(written(tmp_path, text))
    assert [(sample.at_ns, sample.device_index) for sample in samples] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert gaps(report)["sample.at_ns"] == "not_available"
    assert report.duration_ns is None


def test_a_stated_interval_is_the_clock_of_readings_without_times(tmp_path: Path) -> None:
    text = (
        "$ nvidia-smi --query-gpu=utilization.gpu --format=csv -lms 200\nutilization.gpu [%]\n1 %\n"
        "2 %\n"
    )
    _, samples = read(written(tmp_path, text))
    assert [sample.at_ns for sample in samples] == [0, 200_000_000]


@pytest.mark.parametrize("name", ["query.csv", "dmon.txt", "table.txt", "noheader.txt"])
def test_a_cut_file_gives_no_reading_that_the_whole_one_does_not(tmp_path: Path, name: str) -> None:
    whole = (DATA / name).read_bytes()
    good = read(DATA / name)[1]
    path = tmp_path / name
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        try:
            samples = list(nvidia_smi.parse(path).samples)
        except ReportError:
            continue
        for known, sample in zip(good, samples, strict=False):
            for field, value in zip(known, sample, strict=True):
                assert value in (field, None), (size, known, sample)
        assert len(samples) <= len(good)


def test_the_table_is_read_in_old_and_new_layouts() -> None:
    report, samples = read(DATA / "table.txt")
    assert samples == [
        Sample(TEN, 0.87, 1000 * MIB, 12000 * MIB, 151, 61, None, 0),
        Sample(TEN, None, None, None, None, 30, None, 1),
        Sample(TEN + 5 * SECOND, 0.99, 2000 * MIB, 12000 * MIB, 200, 65, None, 0),
    ]
    assert (report.tool_version, report.environment["cuda_driver"]) == ("545.23.08", "12.3")
    assert figures(report)["GPU 0: process python train.py: memory mean"] == 990 * MIB
    assert ("device.name", "unreadable") in gaps(report).items()


@pytest.mark.parametrize(
    "text",
    [
        "timestamp, index, name, utilization.gpu [%]\n",
        "# gpu   pwr    sm\n# Idx     W     %\n",
        "| NVIDIA-SMI 545.23.08   Driver Version: 545.23.08   CUDA Version: 12.3     |\n",
    ],
)
def test_a_header_without_a_reading_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(ReportError) as caught:
        parse(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_hostile_cells_stay_data(tmp_path: Path) -> None:
    head = "timestamp, index, name, utilization.gpu [%], memory.used [MiB]\n"
    nasty = "2024/03/05 10:00:00.500, 0, <b>\"\u202ex\u202c'; DROP TABLE, 40 %, 1 MiB\n"
    huge = "9999/03/05 10:00:00.500, 99999999999999999999, x, 1e99 %, 99999999999999999999 MiB\n"
    nul = "2024/03/05 10:00:00.500, 0, a\0b, 40 %, 1 MiB\n"
    long = "x" * (5 * 2**20) + "\n"
    report, samples = read(written(tmp_path, head + nasty + huge + nul + long + nasty))
    assert [sample.gpu_utilisation for sample in samples] == [0.4, None, 0.4]
    assert samples[1].memory_used_bytes is None
    assert all(sample.at_ns < 2**63 for sample in samples)
    assert report.devices[-1].name == "<b>\"\u202ex\u202c'; DROP TABLE"
    assert any("longer than" in entry.text for entry in report.diagnostics)
