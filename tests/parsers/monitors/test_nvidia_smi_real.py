"""nvidia-smi's real files, against counts and figures taken from their text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perfctl.parsers import parse
from perfctl.records.report import Report, Sample

MIB = 2**20


def read(path: Path) -> tuple[Report, list[Sample]]:
    report = parse(path)
    return report, list(report.samples)


REAL = {
    "akshay_gpu_usage.csv": r"^2023/",
    "akshay_gpu_usage1.csv": r"^2023/",
    "daspronoy_gpu_stats.csv": r"^03-",
    "openad_gpu_usage.csv": r"^2024/",
    "ratcht_nvidia_smi_log.txt": r"^\d+ %",
}


@pytest.mark.parametrize("name", REAL)
def test_every_row_of_the_real_files_is_a_sample(reports: Path, name: str) -> None:
    path = reports / "nvidia_smi" / name
    lines = [line for line in path.read_text().splitlines() if re.match(REAL[name], line)]
    _, samples = read(path)
    assert len(samples) == len(lines) > 0
    shares = [int(re.findall(r"\b(\d+) %", line)[0]) / 100 for line in lines if " %" in line]
    assert not shares or [sample.gpu_utilisation for sample in samples] == shares
    assert all(sample.memory_used_bytes for sample in samples)


def test_the_real_rows_without_a_header_are_four_gpus_at_one_time(reports: Path) -> None:
    report, samples = read(reports / "nvidia_smi" / "ratcht_nvidia_smi_log.txt")
    assert [(sample.device_index, sample.power_w) for sample in samples] == [
        (0, 82.53),
        (1, 32.15),
        (2, 32.64),
        (3, 23.76),
    ]
    assert {sample.memory_total_bytes for sample in samples} == {46068 * MIB}
    assert report.started_at == "2025-02-26T18:50:18Z"  # 1:50:18 PM EST


def test_the_real_table_has_both_gpus(reports: Path) -> None:
    report, samples = read(reports / "nvidia_smi" / "daisuke_nvidia-smi.log")
    assert [
        (s.power_w, s.temperature_c, s.gpu_utilisation, s.memory_used_bytes) for s in samples
    ] == [
        (73, 33, 0.0, 0),
        (70, 26, 0.0, 0),
    ]
    assert {device.memory_bytes for device in report.devices} == {81559 * MIB}
