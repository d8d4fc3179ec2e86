"""NVTX ranges in ncu's console text, laid out as ncu 2022.3 prints them, read as those of the
CSV are."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import parse
from perfctl.records.report import Kernel
from tests.make.ncu_text import Launch, new_text, old_text, raw_text

STACK = """
    NVTX Start/End Ranges:
      <default domain>
        <5,fc1:backward>
        <6,epoch>

    NVTX Push/Pop Stack for Thread 42:
     <default domain>
        <0,perfctl:step:3>
        <1,conv2:forward>
          Uint64: 42
          RGB: 0xff00ff00
          REGISTERED: conv1:backward
        <2,odd <name>, "x">
     cuBLAS
        <0,cublasSgemm>
"""
TABLE = [("Section", [("Duration", "nsecond", "5.00")])]


def first(folder: Path, text: str) -> list[Kernel]:
    path = folder / "ncu.txt"
    path.write_text(text)
    return list(parse(path).kernels)


@pytest.mark.parametrize("layout", [old_text, new_text, raw_text])
def test_the_stack_below_a_launch_gives_its_layer_direction_and_step(
    tmp_path: Path, layout: object
) -> None:
    launches = [Launch("gemm(int)", sections=TABLE), Launch("relu(int)", sections=TABLE)]
    text = str(layout(launches))  # type: ignore[operator]
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if "gemm(int)" in line)
    kernels = first(
        tmp_path, "\n".join([*lines[: at + 1], *STACK.splitlines(), *lines[at + 1 :]]) + "\n"
    )
    assert [(k.layer, k.direction, k.step, k.layer_source) for k in kernels] == [
        ("conv2", "forward", 3, "range"),
        (None, None, None, None),
    ]
    assert [k.duration_ns for k in kernels] == [5, 5]


def test_start_end_ranges_count_where_no_push_pop_range_names_a_layer(tmp_path: Path) -> None:
    lines = old_text([Launch("gemm(int)", sections=TABLE)]).splitlines()
    stack = STACK.partition("    NVTX Push/Pop")[0].splitlines()
    (kernel,) = first(tmp_path, "\n".join([*lines[:2], *stack, *lines[2:]]) + "\n")
    assert (kernel.layer, kernel.direction) == ("fc1", "backward")
