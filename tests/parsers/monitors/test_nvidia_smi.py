"""nvidia-smi's logs in other encodings, cut anywhere, without a row, and with hostile cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import parse, sniff
from perfctl.parsers.monitors.nvidia_smi import has_list_header
from perfctl.records.report import Report, Sample


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


def test_hostile_cells_stay_data(tmp_path):
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
    assert has_list_header(["0 1", line]) is is_one
