"""Foreign Kineto traces with shapes: paper and rows from the trace's own operators. All traces here
are synthetic."""

import pytest

from perfctl.orchestrator.estimate.flops.engine import build_layer_calls_with_flops
from perfctl.parsers.kineto.fused import (
    compute_template_flops_or_reason,
    estimate_elementwise_flops,
)
from perfctl.records.report import CompiledKernel
from tests.make.kineto import kernel, launch, operation, read

N, C, K, SIDE, FILTER = 8, 3, 16, 32, 5
FLOATS = ["float", "float", "float"]


def shaped(event, dims, types, values=None):
    """The operation as record_shapes=True has it; before 2022 without ``values``
    (Concrete Inputs)."""
    args = {**event["args"], "Input Dims": dims, "Input type": types}
    return {**event, "args": args if values is None else {**args, "Concrete Inputs": values}}


def mm(ts, m, k, n, *, external=1, **more):
    return shaped(
        operation("aten::mm", ts, 8, external, **more),
        [[m, k], [k, n]],
        ["c10::Half", "c10::Half"],
        ["", ""],
    )


def conv(ts, external=1, *, concrete=True, stride=1, number=None):
    dims = [[N, C, SIDE, SIDE], [K, C, FILTER, FILTER], [K], [], [], [], [], [], []]
    types = [*FLOATS, "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"]
    values = ["", "", "", f"[{stride}, {stride}]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
    made = operation("aten::convolution", ts, 30, external, number=number)
    return shaped(made, dims, types, values if concrete else None)


def launched(external, ts, thread=1, name="k"):
    """One launch at ``ts`` and its kernel of 5 microseconds."""
    return [launch(ts, external, thread=thread), kernel(name, ts + 100, 5, external, external)]


@pytest.mark.parametrize("value", ["[0, 0]", "[" * 9999, "[1, 1, 1]", "['a', 1]", "9"])
def test_a_stride_that_makes_no_sense_gives_no_number(tmp_path, value):
    bad = conv(10)
    bad["args"]["Concrete Inputs"][3] = value
    (call,) = build_layer_calls_with_flops(read(tmp_path, bad, *launched(1, 12)).ops)
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
def test_arguments_that_do_not_fit_are_a_gap_and_never_a_number(tmp_path, dims):
    good, bad = mm(10, 2, 3, 4), mm(30, 2, 3, 4, external=2)
    bad["args"]["Input Dims"] = dims
    calls = build_layer_calls_with_flops(
        read(tmp_path, good, bad, *launched(1, 12), *launched(2, 32)).ops
    )
    assert sum(call.macs or 0 for call in calls) == 24 and any(call.macs is None for call in calls)


# Work of the kernels that Inductor wrote, from the arguments of their calls


B, M, COLUMNS, DEPTH = 3, 48, 40, 24
WORK = 2 * M * COLUMNS * DEPTH


@pytest.mark.parametrize(
    ("name", "shapes", "work"),
    [
        ("mm", [(6, 6), (6, 6), (6, 6), (6, 6)], 2 * 6**3),  # two pairs, one product
        ("mm", [(M, DEPTH), (DEPTH, COLUMNS), (M, COLUMNS)], WORK),
        (
            "mm",
            [(M, DEPTH), (COLUMNS, DEPTH), (M, COLUMNS)],
            WORK,
        ),  # a weight as it lies in memory
        (
            "addmm_gelu",
            [(COLUMNS,), (M, DEPTH), (COLUMNS, DEPTH), (M, COLUMNS)],
            WORK,
        ),  # the bias comes first
        # a residual behind them
        (
            "add_addmm",
            [(COLUMNS,), (M, DEPTH), (COLUMNS, DEPTH), (M, COLUMNS), (M, COLUMNS)],
            WORK,
        ),
        # rows in two dimensions
        (
            "addmm",
            [(COLUMNS,), (4, M // 4, DEPTH), (COLUMNS, DEPTH), (4, M // 4, COLUMNS)],
            WORK,
        ),
        (
            "t_mm",
            [(M, 2, DEPTH // 2), (DEPTH, COLUMNS), (M, COLUMNS)],
            WORK,
        ),  # heads and their width
        (
            "bmm",
            [(B, M, DEPTH), (B, DEPTH, COLUMNS), (B, M, COLUMNS)],
            2 * B * M * COLUMNS * DEPTH,
        ),
        (
            "convolution",
            [(2, 8, 9, 9), (16, 4, 3, 3), (2, 16, 7, 7)],
            2 * (2 * 16 * 7 * 7) * (4 * 3 * 3),
        ),
        ("mm", [(M, DEPTH), (DEPTH + 1, COLUMNS), (M, COLUMNS)], "no product"),
        ("mm", [(M, DEPTH), (M, COLUMNS)], "fewer than three"),
        ("mm", [(0, DEPTH), (DEPTH, COLUMNS), (0, COLUMNS)], "no product"),
        # the bias could be a factor: 4 = 1 x 4
        ("addmm", [(4,), (4, 16), (4, 16), (4, 4)], "more than one"),
        ("flex_attention", [(B, M, DEPTH)] * 4, "flex_attention does not follow"),
        ("relu", [(M, DEPTH), (DEPTH, COLUMNS), (M, COLUMNS)], "no operator that multiplies"),
        ("convolution", [(2, 8, 9, 9), (16, 3, 3, 3), (2, 16, 7, 7)], "no product"),
    ],
)
def test_a_template_s_product_follows_from_its_tensors_or_a_reason_says_why_not(name, shapes, work):
    flops, reason = compute_template_flops_or_reason(f"triton_tem_fused_{name}_0", shapes)
    assert flops == (work if isinstance(work, int) else None)
    assert reason is None if flops else str(work) in str(reason)


@pytest.mark.parametrize(
    ("origins", "expected"),
    [
        ("add", 1),
        ("_to_copy_add_mean_mul_pow_rsqrt", 5),
        ("add_view_gelu", 2),
        ("leaky_relu_add", 2),
        ("cat_mul", None),
        ("native_layer_norm_add", None),
        ("clone", None),
        ("index_add", None),
    ],
)
def test_operators_of_a_name_that_compute_are_listed_once_an_element(origins, expected):
    assert estimate_elementwise_flops(origins, 100) == (
        None if expected is None else expected * 100
    )
    assert estimate_elementwise_flops(origins, None) is None


@pytest.mark.parametrize("strange", [None, "x", -1, [1], {"a": 1}, "nan", 1e300])
def test_strange_arguments_are_not_stated(strange, tmp_path):
    name, call = "triton_poi_fused_add_0", operation("triton_poi_fused_add_0", 0, 8, 1)
    states = ("kernel_num_gb", "kernel_kwargs", "Input Dims", "Input type", "Concrete Inputs")
    call["args"] |= dict.fromkeys(states, strange) | {"kernel_hash": "c0"}
    (found,) = read(tmp_path, call, launch(1, 5), kernel(name, 50, 4, 1, 5)).compiled_kernels
    assert found == CompiledKernel(name, None, "c0", None, "add", calls=1, device_ns=4_000)
