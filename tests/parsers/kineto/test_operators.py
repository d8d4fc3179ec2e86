"""Foreign Kineto traces with shapes: paper and rows from the trace's own operators. All traces here
are synthetic."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.estimate.flops.engine import BACKWARD, estimate, totals
from perfctl.records.report import COVERS, WHOLE_CAPTURE, Report
from tests.parsers.kineto_trace import Event, annotation, kernel, launch, module, operation, read

N, C, K, SIDE, FILTER = 8, 3, 16, 32, 5
OUT = SIDE - FILTER + 1
CONV_MACS = N * OUT * OUT * K * C * FILTER * FILTER
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


def reasons(report: Report, quantity: str) -> str:
    return "; ".join(gap.reason for gap in report.gaps if gap.quantity == quantity)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolutions_output_follows_from_stride_and_padding(tmp_path: Path, stride: int) -> None:
    found = read(tmp_path, conv(10, stride=stride), *launched(1, 12))
    side = (SIDE - FILTER) // stride + 1
    (call,) = estimate(found.ops)
    assert call.macs == N * side * side * K * C * FILTER * FILTER
    assert found.ops[0].outputs == ((N, K, side, side),)


def test_without_concrete_inputs_a_convolution_has_no_paper_but_a_gap(tmp_path: Path) -> None:
    found = read(tmp_path, conv(10, concrete=False), *launched(1, 12))
    (call,) = estimate(found.ops)
    assert call.macs is None and "no stride and padding" in reasons(found, "layer_call.flops")


def test_the_gradient_that_comes_back_tells_the_output_of_an_old_convolution(
    tmp_path: Path,
) -> None:
    """As PyTorch 1.9 wrote it: cuDNN's own backward, and a child for each gradient that
    was computed."""
    shapes = [[N, C, SIDE, SIDE], [N, K, OUT, OUT], [K, C, FILTER, FILTER], *[[]] * 8]
    node = operation("CudnnConvolutionBackward", 200, 50, 2, thread=2, number=7, forward=1)
    whole = operation("aten::cudnn_convolution_backward", 205, 40, 3, thread=2)
    backward = shaped(whole, shapes, [*FLOATS, *["GenericList"] * 8])
    weight = operation("aten::cudnn_convolution_backward_weight", 210, 20, 4, thread=2)
    events = [
        conv(10, concrete=False, number=7),
        *launched(1, 12),
        node,
        backward,
        weight,
        *launched(4, 215, 2),
    ]
    found = read(tmp_path, *events)
    assert totals(estimate(found.ops), ("forward",)).macs == CONV_MACS
    # the first layer's input needs no gradient
    assert totals(estimate(found.ops), BACKWARD).macs == CONV_MACS
    row = f"aten::convolution {N}x{C}x{SIDE}x{SIDE} {K}x{C}x{FILTER}x{FILTER}"
    assert {(one.layer, one.direction) for one in found.kernels} == {
        (row, "forward"),
        (row, "backward"),
    }


def test_of_nested_operators_the_outermost_counts_once(tmp_path: Path) -> None:
    inner = operation("aten::cudnn_convolution", 12, 20, 2)
    dims, values = (
        conv(10)["args"]["Input Dims"],
        ["", "", "[0, 0]", "[1, 1]", "[1, 1]", "1", "False", "False", "True"],
    )
    inner = shaped(inner, dims, [*FLOATS[:2], *["ScalarList"] * 3, *["Scalar"] * 4], values)
    found = read(tmp_path, conv(10), inner, *launched(2, 15))
    assert [op.op for op in found.ops] == ["aten.convolution"]
    assert totals(estimate(found.ops), ("forward",)).macs == CONV_MACS


def test_what_autocast_casts_belongs_to_the_product_inside(tmp_path: Path) -> None:
    """linear in fp32 casts its arguments, then runs linear in half, which runs addmm."""
    outer = shaped(
        operation("aten::linear", 0, 90, 1), [[4, 8], [16, 8], [16]], FLOATS, ["", "", ""]
    )
    cast = operation("aten::copy_", 5, 10, 2)
    half = ["c10::Half"] * 3
    addmm = shaped(operation("aten::addmm", 40, 20, 3), [[16], [4, 8], [8, 16]], half, ["", "", ""])
    found = read(
        tmp_path, outer, cast, addmm, *launched(2, 6, name="cast"), *launched(3, 45, name="gemm")
    )
    assert {one.layer for one in found.kernels} == {"aten::addmm 4x8x16"}
    assert [(op.op, op.dtypes[0]) for op in found.ops] == [("aten.addmm", "float16")]
    assert found.precision == "fp16"


def test_inside_a_module_the_row_is_the_module(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        module("Net_0", 0, 90),
        module("Linear_3", 5, 50),
        mm(10, 2, 3, 4),
        *launched(1, 12),
    )
    assert [(one.layer, one.direction) for one in found.kernels] == [("Linear_3", "forward")]
    (call,) = estimate(found.ops)
    assert (call.layer, call.kind, call.macs) == ("Linear_3", "Linear", prod((2, 3, 4)))


def test_calls_are_those_of_one_step_where_the_steps_are_alike(tmp_path: Path) -> None:
    def step(number: int, products: int) -> list[Event]:
        start, events = number * 1000, [annotation(f"ProfilerStep#{number}", number * 1000, 900)]
        for place in range(products):
            external = 100 * number + place + 1
            at = start + 20 * place + 10
            events += [mm(at, 2, 3, 4, external=external), *launched(external, at + 2)]
        return events

    alike = read(tmp_path, *step(1, 3), *step(2, 3))
    assert [op.calls for op in alike.ops] == [3] and COVERS not in alike.environment
    assert {one.step for one in alike.kernels} == {1, 2}
    unlike = read(tmp_path, *step(1, 3), *step(2, 2))
    assert [op.calls for op in unlike.ops] == [5] and unlike.environment[COVERS] == WHOLE_CAPTURE
    assert "2 steps run different operators" in reasons(unlike, "step")


def test_an_operator_that_launched_nothing_is_not_on_paper(tmp_path: Path) -> None:
    found = read(tmp_path, mm(10, 2, 3, 4), mm(30, 5, 6, 7, external=2), *launched(1, 12))
    assert [op.inputs for op in found.ops] == [((2, 3), (3, 4))]
    assert "1 call of operators launched no recorded kernel" in reasons(found, "op_shape")


def test_a_forward_that_runs_in_backward_is_recomputation(tmp_path: Path) -> None:
    node = operation("CheckpointFunctionBackward", 0, 200, 9, thread=2, number=3, forward=1)
    again = conv(10, 1)
    found = read(tmp_path, node, {**again, "tid": 2}, *launched(1, 12, 2))
    assert [(call.direction, call.macs) for call in estimate(found.ops)] == [
        ("recompute", CONV_MACS)
    ]
    assert [one.direction for one in found.kernels] == ["recompute"]


def test_a_product_of_an_unknown_forward_is_a_row_of_backward_by_itself(tmp_path: Path) -> None:
    """TorchScript's backward runs products whose forward the trace does not tie to them."""
    node = operation(
        "torch::jit::DifferentiableGraphBackward", 0, 200, 9, thread=2, number=3, forward=1
    )
    (call,) = estimate(read(tmp_path, node, mm(10, 2, 3, 4, thread=2), *launched(1, 12, 2)).ops)
    assert (call.layer, call.direction, call.macs) == ("aten::mm 2x3x4", "backward", 24)


def test_perfctls_own_ranges_go_before_operators(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        annotation("conv1:forward", 0, 90),
        conv(10),
        *launched(1, 12),
        mm(200, 2, 3, 4, external=2),
    )
    assert not found.ops and [one.layer for one in found.kernels] == ["conv1"]


@pytest.mark.parametrize("value", ["[0, 0]", "[" * 9999, "[1, 1, 1]", "['a', 1]", "9"])
def test_a_stride_that_makes_no_sense_gives_no_number(tmp_path: Path, value: str) -> None:
    bad = conv(10)
    bad["args"]["Concrete Inputs"][3] = value
    (call,) = estimate(read(tmp_path, bad, *launched(1, 12)).ops)
    assert call.macs is None


def test_a_trace_without_shapes_says_so(tmp_path: Path) -> None:
    found = read(tmp_path, operation("aten::mm", 10, 8, 1), *launched(1, 12))
    assert not found.ops and "record_shapes=True" in reasons(found, "op_shape")


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
