"""Foreign Kineto traces with shapes: paper and rows from the trace's own operators. All traces here
are synthetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.estimate.flops.engine import estimate
from tests.make.kineto import Event, kernel, launch, operation, read

N, C, K, SIDE, FILTER = 8, 3, 16, 32, 5
FLOATS = ["float", "float", "float"]


def shaped(
    event: Event, dims: list[Any], types: list[str], values: list[str] | None = None
) -> Event:
    """The operation as record_shapes=True has it; before 2022 without ``values``
    (Concrete Inputs)."""
    args = {**event["args"], "Input Dims": dims, "Input type": types}
    return {**event, "args": args if values is None else {**args, "Concrete Inputs": values}}


def mm(ts: int, m: int, k: int, n: int, *, external: int = 1, **more: Any) -> Event:
    return shaped(
        operation("aten::mm", ts, 8, external, **more),
        [[m, k], [k, n]],
        ["c10::Half", "c10::Half"],
        ["", ""],
    )


def conv(
    ts: int, external: int = 1, *, concrete: bool = True, stride: int = 1, number: int | None = None
) -> Event:
    dims = [[N, C, SIDE, SIDE], [K, C, FILTER, FILTER], [K], [], [], [], [], [], []]
    types = [*FLOATS, "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"]
    values = ["", "", "", f"[{stride}, {stride}]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
    made = operation("aten::convolution", ts, 30, external, number=number)
    return shaped(made, dims, types, values if concrete else None)


def launched(external: int, ts: int, thread: int = 1, name: str = "k") -> list[Event]:
    """One launch at ``ts`` and its kernel of 5 microseconds."""
    return [launch(ts, external, thread=thread), kernel(name, ts + 100, 5, external, external)]


@pytest.mark.parametrize("value", ["[0, 0]", "[" * 9999, "[1, 1, 1]", "['a', 1]", "9"])
def test_a_stride_that_makes_no_sense_gives_no_number(tmp_path: Path, value: str) -> None:
    bad = conv(10)
    bad["args"]["Concrete Inputs"][3] = value
    (call,) = estimate(read(tmp_path, bad, *launched(1, 12)).ops)
    assert call.macs is None


@pytest.mark.parametrize(
    "dims",
    [
        [[2, 3], [4, 5]],
        [[2, 3]],
        [["2", 3], [3, 4]],
        [[2, 3], None],
        "no",
        [[], []],
        [[2, -3], [-3, 4]],
        [[2, 1 << 62], [1 << 62, 4]],
        [[1] * 99, [1] * 99],
    ],
)
def test_arguments_that_do_not_fit_are_a_gap_and_never_a_number(tmp_path: Path, dims: Any) -> None:
    good, bad = mm(10, 2, 3, 4), mm(30, 2, 3, 4, external=2)
    bad["args"]["Input Dims"] = dims
    calls = estimate(read(tmp_path, good, bad, *launched(1, 12), *launched(2, 32)).ops)
    assert sum(call.macs or 0 for call in calls) == 24 and any(call.macs is None for call in calls)
