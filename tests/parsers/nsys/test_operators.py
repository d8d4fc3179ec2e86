"""nsys reports of PyTorch's emit_nvtx with shapes: the paper side and the rows come from the
ranges' texts."""

from math import prod

import pytest

from perfctl.orchestrator.estimate.flops.engine import (
    BACKWARD,
    build_layer_calls_with_flops,
    sum_layer_call_work,
)
from perfctl.records.report import COVERS, WHOLE_CAPTURE
from tests.make.nsys_sqlite import NsysBuilder, gap, read

BATCH, WIDE, OUT = 64, 9216, 128


def linear_step(*, op_ids=True):
    """Forward and backward of fc1 on two threads; a ReLU between, as emit_nvtx(record_shapes=True)
    writes them."""
    number = iter(range(1, 99))

    def named(name, seq=None, sizes=None):
        text = name if seq is None else f"{name}, seq = {seq}"
        text += f", op_id = {next(number)}" if op_ids else ""
        return text if sizes is None else f"{text}, sizes = {sizes}"

    made = NsysBuilder()
    addmm = f"[[{OUT}], [{BATCH}, {WIDE}], [{WIDE}, {OUT}], [], []]"
    made.range(named("aten::linear", 4, f"[[{BATCH}, {WIDE}], [{OUT}, {WIDE}], [{OUT}]]"), 10, 100)
    made.range(named("aten::addmm", 5, addmm), 20, 90)
    made.launch(30, name="ampere_sgemm_128x64_tn")
    made.range(named("aten::relu", 6, f"[[{BATCH}, {OUT}]]"), 110, 130)
    made.launch(115, name="relu_kernel")
    made.range(named("autograd::engine::evaluate_function: AddmmBackward0"), 500, 600, thread=8)
    made.range(named("AddmmBackward0", 5, f"[[{BATCH}, {OUT}]]"), 505, 590, thread=8)
    made.range(named("aten::mm", None, f"[[{BATCH}, {OUT}], [{OUT}, {WIDE}]]"), 510, 530, thread=8)
    made.launch(515, thread=8, name="ampere_sgemm_128x64_nn")
    made.range(
        named("aten::mm", None, f"[[{OUT}, {BATCH}], [{BATCH}, {WIDE}]]"), 540, 560, thread=8
    )
    made.launch(545, thread=8, name="ampere_sgemm_128x64_nt")
    return made


@pytest.fixture(params=[True, False], ids=["op_id", "without op_id"])
def report(request, tmp_path):
    return read(linear_step(op_ids=request.param), tmp_path)


def test_paper_follows_from_the_sizes_in_the_ranges(report):
    calls = build_layer_calls_with_flops(report.ops)
    assert sum_layer_call_work(calls, ("forward",)).macs == prod((BATCH, WIDE, OUT))
    # of the input and of the weight
    assert sum_layer_call_work(calls, BACKWARD).macs == 2 * prod((BATCH, WIDE, OUT))


def test_kernels_of_both_directions_stand_in_the_row_of_the_forward_operator(report):
    row = f"aten::addmm {BATCH}x{WIDE}x{OUT}"
    kernels = [(kernel.layer, kernel.direction) for kernel in report.kernels]
    assert kernels == [(row, "forward"), (None, None), (row, "backward"), (row, "backward")]
    assert {(op.layer, op.direction) for op in report.ops} == {(row, "forward"), (row, "backward")}


def test_a_report_without_steps_is_taken_as_a_whole_and_says_so(report):
    assert report.environment[COVERS] == WHOLE_CAPTURE
    assert "whole capture" in gap(report, "step")


def test_a_convolution_takes_its_output_from_the_gradient_that_comes_back(tmp_path):
    """emit_nvtx does not write stride and padding: 26x26 with a 3x3 filter gives 24x24, as
    grad_output says."""
    made = NsysBuilder()
    sizes = "[[16, 32, 26, 26], [64, 32, 3, 3], [64], [], [], [], [], [], []]"
    made.range(f"aten::convolution, seq = 2, op_id = 1, sizes = {sizes}", 10, 90)
    made.launch(20)
    alone = read(made, tmp_path)
    assert build_layer_calls_with_flops(alone.ops)[0].macs is None and "stride" in gap(
        alone, "layer_call.flops"
    )
    made.range("ConvolutionBackward0, seq = 2, op_id = 5", 200, 300, thread=8)
    sizes = "[[16, 64, 24, 24], [16, 32, 26, 26], [64, 32, 3, 3], [], [], [], [], [], [], [], []]"
    made.range(f"aten::convolution_backward, op_id = 6, sizes = {sizes}", 210, 290, thread=8)
    made.launch(220, thread=8)
    calls = build_layer_calls_with_flops(read(made, tmp_path).ops)
    assert [call.macs for call in calls if call.direction == "forward"] == [
        16 * 24 * 24 * 64 * 32 * 9
    ]
    # which gradients is not said
    assert [call.macs for call in calls if call.direction != "forward"] == [None]


def test_ranges_without_sizes_give_no_paper_but_the_reason(tmp_path):
    made = NsysBuilder()
    made.range("aten::mm, seq = 5, op_id = 9", 10, 90)
    made.launch(20)
    found = read(made, tmp_path)
    assert not found.ops and COVERS not in found.environment
    assert "record_shapes=True" in gap(found, "op_shape")


@pytest.mark.parametrize(
    "sizes", ["[[2, 3], [3", "[[2, 3], [4, 5]]", "[]", "[2, 3]", '[["2"]]', "[[2, 3]]"]
)
def test_broken_sizes_are_a_gap_and_never_a_number(tmp_path, sizes):
    made = NsysBuilder()
    made.range(f"aten::mm, op_id = 9, sizes = {sizes}", 10, 90)
    made.range("aten::mm, op_id = 10, sizes = [[2, 3], [3, 4]]", 110, 190)
    made.launch(20)
    made.launch(120)
    calls = build_layer_calls_with_flops(read(made, tmp_path).ops)
    assert sorted(call.macs or 0 for call in calls) == [0, 24] and any(
        call.macs is None for call in calls
    )


def pyprof(op, *shapes):
    """As PyProf and DLProf's plugin name the range of a function: its tensors, and nothing of its
    other arguments."""
    tensors = [
        {"name": "", "type": "tensor", "shape": shape, "dtype": "float32"} for shape in shapes
    ]
    return str({"mod": "torch.nn.functional", "op": op, "args": tensors})


def pyprof_step(after):
    """A convolution, with PyTorch's own ranges inside, and the function that takes its output."""
    made = NsysBuilder()
    made.range(pyprof("conv2d", (8, 3, 32, 32), (6, 3, 5, 5), (6,)), 10, 100)
    made.range("aten::conv2d, seq = 1", 20, 90)
    made.range("aten::cudnn_convolution, seq = 1", 30, 80)
    made.launch(40, name="implicit_convolve_sgemm")
    made.range(pyprof("relu", after), 110, 130)
    made.launch(115, name="relu_kernel")
    return made


@pytest.mark.parametrize(
    ("after", "macs"),
    [
        ((8, 6, 28, 28), prod((8, 6, 28, 28)) * prod((3, 5, 5))),
        ((8, 6 * 28 * 28), 0),  # flattened: height and width are not known
    ],
)
def test_a_function_of_pyprof_has_an_estimate_if_the_next_one_states_its_output(
    after, macs, tmp_path
):
    report = read(pyprof_step(after), tmp_path)
    (op,) = report.ops
    assert op.layer == "torch.nn.functional.conv2d 8x3x32x32 6x3x5x5"
    assert sum_layer_call_work(build_layer_calls_with_flops(report.ops), ("forward",)).macs == macs
    assert ("missed" in op.attributes) is (macs == 0)
    kernels = [(kernel.layer, kernel.direction) for kernel in report.kernels]
    assert kernels == [(op.layer, "forward"), (None, None)]
