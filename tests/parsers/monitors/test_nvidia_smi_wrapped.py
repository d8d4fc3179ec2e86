"""nvidia-smi's CSV as programs around it write it: another name for the GPU's number, and
no units."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.records.report import Report
from tests.make.monitors import read

MIB = 2**20
HEADER = "timestamp,gpu,index,memory.used,memory.total,power.draw,temperature.gpu"


def warnings(report: Report) -> list[str]:
    return [entry.text for entry in report.diagnostics if entry.severity == "warning"]


def test_the_column_gpu_numbers_the_gpus_where_index_is_the_same_in_all_rows(
    tmp_path: Path,
) -> None:
    gpus, rounds = 8, 3
    rows = [
        f"2025-09-08T17:26:{second:02d}+08:00,{gpu}, 0, {gpu + 4}, 81559, 7{gpu}.5, 3{gpu}"
        for second in range(rounds)
        for gpu in range(gpus)
    ]
    report = read(tmp_path, "\n".join([HEADER, *rows, ""]))
    samples = list(report.samples)
    assert [sample.device_index for sample in samples] == [*range(gpus)] * rounds
    assert len({sample.at_ns for sample in samples}) == rounds, (
        "the rows of one second are one round"
    )
    assert {sample.memory_used_bytes for sample in samples} == {
        (gpu + 4) * MIB for gpu in range(gpus)
    }
    assert samples[3].power_w == 73.5
    assert not [figure for figure in report.summaries if figure.name.split()[0] in ("gpu", "index")]
    assert any(
        text.startswith("the GPUs are numbered by the column gpu") for text in warnings(report)
    )


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        # index numbers them; gpu, which varies freely, is somebody's name for the utilisation
        ("index, gpu, power.draw [W]", ["0, 97, 70 W", "1, 3, 71 W", "0, 88, 70 W", "1, 12, 71 W"]),
        # no column numbers them: these are no numbers of GPUs that are read in turn
        ("gpu, power.draw [W]", ["0, 70 W", "97, 70 W", "98, 70 W", "99, 70 W", "100, 70 W"]),
    ],
)
def test_a_column_gpu_that_holds_a_utilisation_numbers_nothing(
    tmp_path: Path, header: str, rows: list[str]
) -> None:
    report = read(tmp_path, "\n".join([header, *rows, ""]))
    numbered = {sample.device_index for sample in report.samples}
    assert numbered == ({0, 1} if header.startswith("index") else {None})
    assert any(figure.name.endswith("gpu mean") for figure in report.summaries)


def test_values_without_any_unit_have_nvidia_smis_own_and_a_warning_says_so(tmp_path: Path) -> None:
    header = "index, utilization.gpu, memory.used, memory.total, power.draw, clocks.sm"
    bare = read(tmp_path, f"{header}\n0, 50, 4, 81559, 74.01, 1980\n")
    printed = read(tmp_path, f"{header}\n0, 50 %, 4 MiB, 81559 MiB, 74.01 W, 1980 MHz\n")
    (sample,) = bare.samples
    assert (sample.gpu_utilisation, sample.memory_used_bytes, sample.power_w) == (
        0.5,
        4 * MIB,
        74.01,
    )
    assert (sample.memory_total_bytes, sample.sm_clock_hz) == (81559 * MIB, 1980 * 10**6)
    assert list(printed.samples) == [sample]
    assert [text for text in warnings(bare) if "no unit stands in the header" in text]
    assert not [text for text in warnings(printed) if "no unit" in text], (
        "the cells have their units"
    )
