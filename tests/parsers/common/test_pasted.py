"""What was put around the lines of a tool is taken off, wherever in the text it begins."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfctl.parsers.common.lines import unwrap
from perfctl.parsers.common.pasted import wrapping_of

NCU = """\
==PROF== Connected to process 7 (/bin/a)
  gemm(float *) (8, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 8.0
    Section: GPU Speed Of Light Throughput
    OPT   This kernel exhibits low throughput.
          See the section below.
    Section: Launch Statistics
    Grid Size                 8
"""
TABLE = '==PROF== Connected\nID;Kernel Name;Metric Value\n0;"k(int, int)";{}\n1;k;{}\n'


def before_lines(prefix: str) -> Callable[[str], str]:
    return lambda text: "".join(prefix + line for line in text.splitlines(keepends=True))


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(before_lines("[rank0]: "), id="torch's rank"),
        pytest.param(before_lines("[default0]: "), id="torchrun's rank"),
        pytest.param(before_lines("[1,0]<stdout>: "), id="mpirun's rank"),
        pytest.param(before_lines("[2026-11-20 21:06:57] "), id="a timestamp in brackets"),
        pytest.param(before_lines("    "), id="a block of code"),
        pytest.param(before_lines(" " * 10), id="a block of code in a list"),
        pytest.param(before_lines(">     "), id="a quoted block of code"),
    ],
)
def test_ncus_text_is_as_it_was_printed(wrap: Callable[[str], str]) -> None:
    assert unwrap(wrap(NCU), wrapping_of(wrap(NCU))) == NCU


def test_semicolons_below_the_lines_of_a_tool_become_commas() -> None:
    text = TABLE.format("1.024,5", "8,25")
    expected = '==PROF== Connected\nID,Kernel Name,Metric Value\n0,"k(int, int)",1024.5\n1,k,8.25\n'
    assert unwrap(text, wrapping_of(text)) == expected


@pytest.mark.parametrize("text", ['[\n{"name": "a; b; c",\n "ph": "X; d; e"}]', '[1,0,"x"]\n'])
def test_json_is_left_as_it_is(text: str) -> None:
    assert wrapping_of(text) == ()
