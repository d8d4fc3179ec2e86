"""The table of plain nvidia-smi: cells of a GPU, rows of processes, and lines that are neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.monitors.nvidia_smi import recognise_table
from perfctl.records.report import Device, Gap, Report, Sample, Summary
from tests.parsers.monitor_logs import read

MIB = 2**20
TEN = 1709632800 * 10**9
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


def pair(**changed: object) -> str:
    cells = PAIR | changed
    return FIRST.format(**cells) + SECOND.format(**cells)


def process(index: int, what: str, memory: str) -> str:
    return f"|  {index}   {what}   {memory} |\n"


def strange(report: Report) -> str:
    """What was said not to be understood."""
    return "".join(
        said.text for said in report.diagnostics if "not understood" in said.text
    ).partition("parts ")[2]


def test_a_gpu_s_cells_are_its_sample_its_figures_and_its_device(tmp_path: Path) -> None:
    report = read(
        tmp_path,
        TITLE + pair() + pair(index=1, name="GPU B", ecc="0", memory="5MiB / 4GiB", work="0%  E."),
    )
    assert list(report.samples) == [
        Sample(0, 0.87, 1000 * MIB, 2048 * MIB, 151, 61, None, 0),
        Sample(0, 0.0, 5 * MIB, 4096 * MIB, 151, 61, None, 1),
    ]
    assert report.devices == (
        Device("GPU A", "gpu", 0, memory_bytes=2048 * MIB, driver_version="570.133.07"),
        Device("GPU B", "gpu", 1, memory_bytes=4096 * MIB, driver_version="570.133.07"),
    )
    assert report.environment == {"driver_version": "570.133.07", "cuda_driver": "12.8"}
    assert report.tool_version == "570.133.20"
    found = {figure.name: (figure.value, figure.unit, figure.text) for figure in report.summaries}
    assert found["GPU 0: fan.speed mean"] == (40, "%", None)
    assert found["GPU 0: power.limit mean"] == (250, "W", None)
    assert found["GPU 0: pstate"] == (None, None, "P2")
    assert found["GPU 0: compute_mode"] == (None, None, "Default")
    assert found["GPU 1: compute_mode"] == (None, None, "E.")
    assert found["GPU 0: ecc.errors.uncorrected.volatile mean"] == (3, None, None)
    assert (report.started_at, report.duration_ns) == (None, None)
    assert "sample.clocks" not in {gap.quantity for gap in report.gaps}
    assert ("sample.sm_clock_hz", "not_collected") in {
        (gap.quantity, gap.state) for gap in report.gaps
    }
    assert strange(report) == ""


def test_rows_of_processes_are_memory_by_name(tmp_path: Path) -> None:
    rows = [
        process(0, "N/A  N/A      4321      C   python train.py -x", "990MiB"),
        process(0, "   77    C+G   Xorg", "10MiB"),
        process(0, "1   2   78   M+C   python train.py -x", "1010MiB"),
        process(0, "N/A  N/A   79   G   hidden", "N/A"),
    ]
    report = read(tmp_path, TITLE + pair() + "".join(rows))
    found = [figure for figure in report.summaries if figure.name.startswith("process")]
    assert found == [
        Summary("process python train.py -x: memory mean", 1000 * MIB, "byte"),
        Summary("process python train.py -x: memory min", 990 * MIB, "byte"),
        Summary("process python train.py -x: memory max", 1010 * MIB, "byte"),
        *(
            Summary(f"process Xorg: memory {part}", 10 * MIB, "byte")
            for part in ("mean", "min", "max")
        ),
        Summary("process hidden: memory", None, None, "not available"),
    ]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"state": "N/A   61C    P8     N/A /  N/A"},
            Sample(0, 0.87, 1000 * MIB, 2048 * MIB, None, 61, None, 0),
        ),
        (
            {"state": "ERR!  ERR! ERR!  ERR! / ERR!"},
            Sample(0, 0.87, 1000 * MIB, 2048 * MIB, None, None, None, 0),
        ),
        ({"memory": "Not Supported"}, Sample(0, 0.87, None, None, 151, 61, None, 0)),
        ({"memory": "512KiB / 1GiB"}, Sample(0, 0.87, 2**19, 2**30, 151, 61, None, 0)),
        ({"work": "N/A      Default"}, Sample(0, None, 1000 * MIB, 2048 * MIB, 151, 61, None, 0)),
        ({"work": "100%     Default"}, Sample(0, 1.0, 1000 * MIB, 2048 * MIB, 151, 61, None, 0)),
    ],
)
def test_a_cell_without_a_figure_leaves_its_field_alone_empty(
    tmp_path: Path, changed: dict[str, object], expected: Sample
) -> None:
    assert list(read(tmp_path, TITLE + pair(**changed)).samples) == [expected]


def test_gpus_whose_second_line_cannot_be_read_are_counted(tmp_path: Path) -> None:
    broken = FIRST.format(**PAIR)
    lost = pair(index=1, state="gone")
    for text, count in (
        (TITLE + pair() + broken, 1),
        (TITLE + broken + pair(index=1), 1),
        (TITLE + broken + TITLE + pair(), 1),
        (TITLE + broken + "Tue Mar  5 10:00:00 2024\n" + TITLE + pair(), 1),
        (TITLE + broken + lost + broken + pair(index=2), 3),
    ):
        report = read(tmp_path, text)
        assert len(list(report.samples)) == 1
        assert (
            Gap("sample", "unreadable", f"{count} GPUs have lines that could not be read")
            in report.gaps
        )
    assert "sample" not in {gap.quantity for gap in read(tmp_path, TITLE + pair()).gaps}


def test_a_second_line_without_a_first_is_no_reading(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="has no complete row of a GPU"):
        read(tmp_path, TITLE + SECOND.format(**PAIR))
    report = read(tmp_path, TITLE + pair() + SECOND.format(**PAIR))
    assert len(list(report.samples)) == 1
    report = read(tmp_path, SECOND.format(**PAIR) + pair() + TITLE + pair(index=2))
    assert [sample.device_index for sample in report.samples] == [2]


def test_tables_without_a_time_are_counted_and_those_with_one_have_a_length(tmp_path: Path) -> None:
    twice = read(tmp_path, TITLE + pair() + TITLE + pair(memory="1000MiB / 3GiB"))
    assert [sample.at_ns for sample in twice.samples] == [0, 1]
    assert (twice.duration_ns, twice.devices[0].memory_bytes) == (None, None)
    date = "Tue Mar  5 10:00:0{} UTC 2024\n"
    timed = read(tmp_path, date.format(0) + TITLE + pair() + date.format(5) + TITLE + pair())
    assert [sample.at_ns for sample in timed.samples] == [TEN, TEN + 5 * 10**9]
    assert (timed.started_at, timed.duration_ns) == ("2024-03-05T10:00:00Z", 5 * 10**9)
    assert read(tmp_path, date.format(0) + TITLE + pair()).duration_ns is None


def test_a_name_that_was_cut_is_a_gap_of_its_gpu(tmp_path: Path) -> None:
    report = read(tmp_path, TITLE + pair() + pair(index=3, name="Quadro P4000 M..."))
    found = [gap for gap in report.gaps if gap.quantity == "device.name"]
    assert found == [
        Gap(
            "device.name", "unreadable", "nvidia-smi cut off the name: 'Quadro P4000 M...'", "GPU 3"
        )
    ]


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
    tmp_path: Path, line: str, named: str
) -> None:
    assert strange(read(tmp_path, TITLE + pair() + line)) == named


def test_words_above_the_first_gpu_are_those_of_headings(tmp_path: Path) -> None:
    assert (
        strange(read(tmp_path, TITLE + "| Fan  Temp | Flow  Usage | GPU-Util |\n" + pair()))
        == "Flow"
    )


def test_lines_outside_of_the_table_are_set_aside(tmp_path: Path) -> None:
    report = read(tmp_path, TITLE + pair() + "Epoch 1\n+-----+\n\n")
    lines = (TITLE + pair()).count("\n") + 3
    assert f"1 of {lines} lines are not readings, for example 'Epoch 1'" in [
        said.text for said in report.diagnostics
    ]
    assert "nvidia-smi's table rounds to whole watts, percent and degrees" in [
        said.text for said in report.diagnostics
    ]


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
def test_the_title_tells_the_table(line: str, is_title: bool) -> None:
    assert recognise_table(["x", line]) is is_title
