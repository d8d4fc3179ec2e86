"""samples.csv, which perfctl writes beside a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.parsers import ReportError
from perfctl.parsers.records import Sample

HEAD = "# perfctl samples 1\n# gpu: NVML, driver 550.54.15\n# every_s: 0.05\n"
COLUMNS = (
    "at_ns,device_index,gpu_utilisation,memory_used_bytes,memory_total_bytes,power_w,temperature_c,sm_clock_hz,"
    "memory_clock_hz,energy_j,throttle_reasons,process_memory_bytes,process_utilisation,host_cpu,host_memory_bytes\n"
)
GPU = "1000,1,0.5,10,100,70.5,41,1410000000,1215000000,99.5,idle,7,0.4,,\n"
HOST = "1000,,,,,,,,,,,,,1.25,4096\n"
END = "# readings: 2\n# cost_ns: 1500000\n"


def put(folder: Path, text: str) -> Path:
    path = folder / "samples.csv"
    path.write_text(text)
    return path


def test_readings_of_gpus_and_of_the_host_are_told_apart(tmp_path: Path) -> None:
    report = parsers.parse(put(tmp_path, HEAD + COLUMNS + HOST + GPU + END))
    assert list(report.samples) == [
        Sample(1000, None, None, None, None, None, None, host_cpu=1.25, host_memory_bytes=4096),
        Sample(1000, 0.5, 10, 100, 70.5, 41, 1_410_000_000, 1, 1_215_000_000, 99.5, "idle", 7, 0.4),
    ]
    assert {item.name: item.value for item in report.summaries} == {
        "sampling: readings": 2, "sampling: CPU time": 1_500_000,
    }  # fmt: skip
    assert report.gaps == ()


def test_a_run_that_was_killed_keeps_its_whole_rows_and_says_so(tmp_path: Path) -> None:
    report = parsers.parse(put(tmp_path, HEAD + COLUMNS + HOST + GPU[:20]))
    assert len(list(report.samples)) == 1
    assert [gap.state for gap in report.gaps] == ["unreadable"]


def test_what_the_driver_does_not_give_becomes_a_gap_with_its_reason(tmp_path: Path) -> None:
    report = parsers.parse(put(tmp_path, HEAD + COLUMNS + HOST + END + "# missing energy_j: Not Supported\n"))
    assert [(gap.quantity, gap.reason) for gap in report.gaps] == [("sample.energy_j", "Not Supported")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("# perfctl samples 9\n", "version 9, this perfctl reads 1"),
        (HEAD + "device_index\n", "no column at_ns"),
        (HEAD + COLUMNS + "1,2\n", "line 5: 2 cells for 15 columns"),
        (HEAD + COLUMNS + HOST.replace("1.25", "many"), "line 5: could not convert"),
        (HEAD + COLUMNS + HOST.replace("1.25", "nan"), "line 5: nan is no number"),
        (HEAD + COLUMNS + HOST.replace("1000", ""), "without a time"),
    ],
)
def test_a_broken_file_is_refused_with_the_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ReportError, match=reason):
        parsers.parse(put(tmp_path, text))


def test_nvidia_smi_s_log_without_a_moment_to_hang_it_on_is_left_out_and_said(tmp_path: Path) -> None:
    (tmp_path / "samples.nvidia-smi.csv").write_text(
        "timestamp, index, utilization.gpu [%], memory.used [MiB]\n2024/11/23 12:23:29.950, 0, 92 %, 5 MiB\n"
    )
    report = parsers.parse(put(tmp_path, HEAD.replace("NVML,", "nvidia-smi,") + COLUMNS + HOST + END))
    assert len(list(report.samples)) == 1
    assert "cannot be put on the run's clock" in " ".join(gap.reason for gap in report.gaps)
