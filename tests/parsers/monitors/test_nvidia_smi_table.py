"""The table of plain nvidia-smi: its title, and lines that are neither GPUs nor processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.monitors.nvidia_smi import recognise_table
from perfctl.records.report import Report
from tests.make.monitors import read

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


def test_a_second_line_without_a_first_is_no_reading(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="has no complete row of a GPU"):
        read(tmp_path, TITLE + SECOND.format(**PAIR))
    report = read(tmp_path, TITLE + pair() + SECOND.format(**PAIR))
    assert len(list(report.samples)) == 1
    report = read(tmp_path, SECOND.format(**PAIR) + pair() + TITLE + pair(index=2))
    assert [sample.device_index for sample in report.samples] == [2]


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
    assert f"1 of {lines} lines are not samples, such as 'Epoch 1'" in [
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
