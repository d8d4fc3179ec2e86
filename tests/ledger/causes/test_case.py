"""What verdicts look at: one ledger row, its kernels with their raw counts, and its shape."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape
from perfctl.orchestrator.counts.kernels.names import Algorithm
from perfctl.orchestrator.ledger.causes.evidence import (
    RowEvidence,
    facts_by_layer,
    kernels_by_key,
    row_evidence,
)
from perfctl.orchestrator.ledger.ledger import ledger
from perfctl.orchestrator.ledger.prepared import PreparedRun, studies
from perfctl.records.paper import LayerCall, OpShape
from perfctl.records.report import Counter, Kernel, Step
from perfctl.records.run import Run
from tests.make import rows
from tests.make.shapes import op

CONV2 = op(
    "aten.convolution",
    ((64, 32, 26, 26), (64, 32, 3, 3), (64,)),
    ((64, 64, 24, 24),),
    layer="conv2",
    stride=[1, 1],
)
FC1 = op("aten.addmm", ((128,), (64, 9216), (9216, 128)), ((64, 128),), layer="fc1")


def _shapes(ops: Any) -> Any:
    return {layer: facts.forward for layer, facts in facts_by_layer(ops).items() if facts.forward}


def of(*runs: Run) -> tuple[dict[tuple[int, str, str], RowEvidence], Any]:
    (study,) = studies(runs)
    return row_evidence(study, ledger(study))


def with_ops(run: Run, *ops: OpShape) -> Run:
    return replace(run, report=replace(run.report, ops=ops))


def paper(layer: str, direction: str, flops: int | None, position: int = 0) -> LayerCall:
    return LayerCall(
        layer,
        "Linear",
        direction,
        None if flops is None else flops // 2,
        flops,
        0,
        0,
        0,
        0,
        None,
        position=position,
    )


def test_rows_with_products_on_paper_and_those_computed_again_have_a_case_and_no_others(
    synthetic: ModuleType,
) -> None:
    calls = (
        paper("fc", "forward", 10),
        paper("fc", "recompute", 0),
        paper("fc", "grad_weight", 0),
        paper("odd", "forward", None),
        paper("odd", "recompute", None),
        paper("", "forward", 10),
        paper("", "recompute", 10),
        paper("fc", "optimizer", 4),
    )
    found, loose = of(synthetic.make_run(layer_calls=calls))
    assert set(found) == {(64, "fc", "forward"), (64, "fc", "recompute"), (64, "odd", "recompute")}
    assert loose == {64: ()}
    assert all(
        one.kernels == () and one.forward is None and not one.profiled for one in found.values()
    )
    assert found[64, "odd", "recompute"].paper == 0, "no formula"


def test_a_case_has_its_kernels_counts_per_step_and_its_shape(synthetic: ModuleType) -> None:
    nsys, ncu = synthetic.gpu_pair(1, 64)
    found, loose = of(nsys, with_ops(ncu, CONV2, FC1))
    one = found[64, "conv2", "forward"]
    half = 64 * 24 * 24 * 64 * 288 // 2
    (work,) = one.kernels
    assert (work.grid, work.launches, work.main, work.algorithm.family) == (
        (64, 4, 1),
        1,
        True,
        "conv",
    )
    assert (work.counts["ffma"], work.counts["fadd"], work.counts["pipe"]) == (half, 0, 0)
    assert (work.products, work.executed, work.tensor.value) == (2 * half, 2 * half, 0)
    assert (one.total("ffma"), one.total("fmul"), one.total("ops_path")) == (half, 0, None)
    assert one.product_kernels == (work,)
    assert (one.paper, one.place) == (4 * half, (64, "conv2", "forward"))
    assert (one.precision, one.profiled, one.left_out) == ("fp32", True, None)
    assert one.forward == ConvShape(64, 32, 64, 24, 24, 3, 3)
    assert found[64, "fc1", "backward"].forward == GemmShape(64, 128, 9216)
    assert found[64, "fc2", "forward"].forward is None, "its operation was not seen"
    ((copy,),) = loose.values()
    assert (copy.name, copy.launches, copy.grid) == ("void copy_kernel<float>(float*)", 1, None)


def test_launches_of_one_name_and_grid_are_one_work_and_those_outside_of_steps_none(
    synthetic: ModuleType,
) -> None:
    def kernel(launch: int, step: int | None, **grid: int) -> Kernel:
        return Kernel(
            launch, "k", layer="fc", direction="forward", step=step, duration_ns=5, **grid
        )

    kernels = [
        kernel(0, 0, grid_x=4),
        kernel(1, 0, grid_x=4, grid_y=1),
        kernel(2, 1, grid_x=4, grid_z=1),
        kernel(3, 1, grid_x=4, grid_y=2),
        kernel(4, 0),
        kernel(5, None, grid_x=4),
        kernel(6, 1, grid_x=4, grid_y=3, grid_z=2),
    ]
    counters = [
        counter
        for launch in range(7)
        for counter in synthetic.fp_counters(launch, 10, 1, 100 * 2**launch)
    ]
    run = synthetic.make_run(
        profiler="ncu", device=synthetic.V100, kernels=kernels, counters=counters
    )
    (works,) = kernels_by_key(PreparedRun(run)).values()
    assert [
        (work.grid, work.launches, work.counts["fadd"], work.counts["ffma"]) for work in works
    ] == [
        ((4, 1, 1), 1.5, 15, (100 + 200 + 400) / 2),
        ((4, 2, 1), 0.5, 5, 800 / 2),
        (None, 0.5, 5, 1600 / 2),
        ((4, 3, 2), 0.5, 5, 6400 / 2),
    ]
    assert [work.flops.value for work in works] == [716.5, 405.5 + 400, 1605.5, 6405.5]
    bare = [kernel._replace(step=None) for kernel in kernels]
    (together,) = kernels_by_key(
        PreparedRun(replace(run, report=replace(run.report, kernels=bare)))
    ).values()
    assert together[0].launches == 4, "without steps, of the complete report"
    steps = tuple(Step(number, "step", None, 5) for number in range(8))
    (spread,) = kernels_by_key(
        PreparedRun(replace(run, report=replace(run.report, kernels=bare, steps=steps)))
    ).values()
    assert (spread[0].launches, spread[0].counts["fadd"]) == (4 / 8, 40 / 8)


def test_counters_are_read_in_either_form_and_those_without_a_value_are_not_there(
    synthetic: ModuleType,
) -> None:
    names = {
        "sm__sass_thread_inst_executed_op_ffma_pred_on.sum": 8.0,
        "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum": None,
        "sm__sass_thread_inst_executed_op_fadd_pred_off.sum": 9.0,
        "smsp__inst_executed_op_hfma_pred_on.sum": 7.0,
        "smsp__inst_executed_pipe_tensor.sum": 6.0,
        "sm__ops_path_tensor_src_fp16.sum": 4096.0,
    }
    run = synthetic.make_run(
        profiler="ncu",
        device=synthetic.V100,
        kernels=[Kernel(0, "k", layer="fc", direction="forward", step=0, duration_ns=5)],
        counters=[Counter(0, name, value, "inst") for name, value in names.items()],
    )
    ((work,),) = kernels_by_key(PreparedRun(run)).values()
    assert dict(work.counts) == {"ffma": 8, "pipe": 6, "ops_path": 4096}


@pytest.mark.parametrize("own", [True, False])
def test_averages_are_made_counts_with_the_chips_sms(own: bool, synthetic: ModuleType) -> None:
    """80 SMs of 4 partitions: an average over SMs stands for 80 times as much, over partitions for
    320 times."""
    names = {
        "sm__sass_thread_inst_executed_op_fadd_pred_on.avg": 3.0,
        "smsp__sass_thread_inst_executed_op_ffma_pred_on.avg": 5.0,
        "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum": 7.0,
    }
    run = synthetic.make_run(
        profiler="ncu",
        device=synthetic.V100 if own else replace(synthetic.V100, sm_count=None),
        devices=(synthetic.V100,),
        kernels=[Kernel(0, "k", layer="fc", direction="forward", step=0, duration_ns=5)],
        counters=[Counter(0, name, value, "inst") for name, value in names.items()],
    )
    ((work,),) = kernels_by_key(PreparedRun(run)).values()
    assert dict(work.counts) == {"fadd": 3 * 80, "ffma": 5 * 320, "fmul": 7}


def test_which_kernels_do_multiply_adds_and_how_many() -> None:
    made = rows.work(ffma=5, dfma=3, hfma=2, fadd=90, tensor=1000)
    assert (made.main, made.products) == (True, 2 * 10 + 1000)
    constant = replace(made, flops=Figure(7, "estimated", "fp16", moves_constants=True))
    assert (constant.products, constant.executed) == (2 * 8 + 1000, 7), (
        "HFMA that moves a constant is no product"
    )
    unknown = replace(
        made, counts={}, flops=Figure(None, "not_collected"), tensor=Figure(None, "not_collected")
    )
    assert (unknown.products, unknown.executed) == (0, 0)
    for family in ("winograd", None, "attention", "reduce", "elementwise"):
        assert replace(made, algorithm=Algorithm(family, "x")).main is (
            family not in ("reduce", "elementwise")
        )
    assert not replace(made, algorithm=Algorithm("gemm", "x", role="transform")).main


def test_sums_over_a_row_are_of_the_kernels_that_have_the_count() -> None:
    one = rows.case(64, rows.work(ffma=5), rows.work(ffma=7, fadd=2), rows.work())
    assert (one.total("ffma"), one.total("fadd"), one.total("fmul")) == (12, 2, None)


def test_profiled_at_another_batch_paper_and_shapes_are_of_that_batch() -> None:
    linear = rows.case(64, forward=GemmShape(m=64 * 7, n=10, k=100))
    assert linear.paper == 64 * 2000
    other = linear.with_batch(16)
    assert (other.paper, other.seen_batch, other.forward) == (
        16 * 2000,
        16,
        GemmShape(16 * 7, 10, 100),
    )
    conv = rows.case(64, forward=ConvShape(64, 3, 8, 5, 5, 3, 3)).with_batch(128)
    assert (conv.paper, conv.forward) == (128 * 2000, ConvShape(128, 3, 8, 5, 5, 3, 3))
    assert rows.case(64).with_batch(2).forward is None


def test_a_linear_layers_gradients_are_products_of_the_same_three_sizes() -> None:
    forward = GemmShape(m=64, n=10, k=100)
    inner, weight = rows.call(64, "grad_input"), rows.call(64, "grad_weight")
    given = GemmShape(64, 100, 10)
    weights = GemmShape(10, 100, 64)
    assert rows.case(64, forward=forward).shapes == (forward,)
    assert rows.case(64, direction="backward", calls=(inner, weight), forward=forward).shapes == (
        given,
        weights,
    )
    assert rows.case(64, direction="backward", calls=(weight,), forward=forward).shapes == (
        weights,
    )
    assert rows.case(64, direction="grad_input", calls=(inner,), forward=forward).shapes == (given,)
    for direction in ("forward", "backward"):
        assert rows.case(64, direction=direction).shapes == ()
        assert (
            rows.case(64, direction=direction, calls=(inner,), forward=forward).unverified_shapes
            == ()
        )


def test_a_convolutions_input_gradient_has_its_channels_changed_over_and_no_verified_grid() -> None:
    forward = ConvShape(64, 3, 8, 5, 6, 3, 3, same_size=True)
    inner, weight = rows.call(64, "grad_input"), rows.call(64, "grad_weight")

    def made(
        shape: ConvShape = forward, direction: str = "backward", *calls: LayerCall
    ) -> RowEvidence:
        return rows.case(64, direction=direction, calls=calls or (inner, weight), forward=shape)

    assert (made().shapes, made(direction="forward").shapes) == ((), (forward,))
    assert made().unverified_shapes == (ConvShape(64, 8, 3, 5, 6, 3, 3, same_size=True),)
    assert made(replace(forward, same_size=False)).unverified_shapes == ()
    assert made(direction="forward").unverified_shapes == ()
    assert made(forward, "backward", weight).unverified_shapes == ()
    assert made(forward, "backward", inner._replace(flops=0), weight).unverified_shapes == (), (
        "the first layer needs none"
    )


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        (CONV2, ConvShape(64, 32, 64, 24, 24, 3, 3)),
        (
            op(
                "aten._convolution",
                ((2, 6, 5, 7), (8, 3, 3, 1), None),
                ((2, 8, 5, 7),),
                groups=2,
                stride=(1, 1),
            ),
            ConvShape(2, 6, 8, 5, 7, 3, 1, 2, same_size=True),
        ),
        (
            op(
                "aten.convolution",
                ((2, 6, 5, 7), (8, 6, 3, 3), None),
                ((2, 8, 5, 7),),
                stride=[1, 2],
            ),
            ConvShape(2, 6, 8, 5, 7, 3, 3),
        ),
        (
            op("aten.convolution", ((2, 6, 5, 7), (8, 6, 3, 3), None), ((2, 8, 5, 7),)),
            ConvShape(2, 6, 8, 5, 7, 3, 3),
        ),
        (
            op(
                "aten.convolution",
                ((2, 6, 5, 7), (6, 8, 3, 3), None),
                ((2, 8, 5, 7),),
                transposed=True,
            ),
            None,
        ),
        (op("aten.convolution", ((2, 6, 5), (8, 6, 3), None), ((2, 8, 5),)), None),
        (op("aten.convolution", ((6, 5, 7), (8, 6, 3, 3), None), ((8, 5, 7),)), None),
        (FC1, GemmShape(64, 128, 9216)),
        (op("aten._addmm_activation", ((5,), (14, 3), (3, 5)), ((14, 5),)), GemmShape(14, 5, 3)),
        # What is added may be a matrix as large as the result.
        (op("aten.addmm", ((14, 5), (14, 3), (3, 5)), ((14, 5),)), GemmShape(14, 5, 3)),
        (op("aten.mm", ((14, 3), (3, 5)), ((14, 5),)), GemmShape(14, 5, 3)),
        (op("aten.linear", ((2, 7, 3), (5, 3), None), ((2, 7, 5),)), GemmShape(14, 5, 3)),
        (op("aten.mm", ((14, 3), (3, 5)), (None,)), None),
        (op("aten.mm", (), ((14, 5),)), None),
        (replace(FC1, calls=2), GemmShape(64, 128, 9216)),
        (replace(FC1, direction="backward"), None),
        (op("aten.bmm", ((2, 3, 4), (2, 4, 5)), ((2, 3, 5),)), None),
    ],
)
def test_the_shape_of_a_layers_one_product(
    shape: OpShape, found: ConvShape | GemmShape | None
) -> None:
    assert _shapes([shape]) == ({shape.layer: found} if found else {})


def test_a_layer_of_two_products_has_no_shape_of_its_own() -> None:
    assert _shapes([FC1, FC1, CONV2]) == {"conv2": ConvShape(64, 32, 64, 24, 24, 3, 3)}
    relu = op("aten.relu", ((64, 128),), ((64, 128),), layer="fc1")
    assert _shapes([FC1, relu]) == {"fc1": GemmShape(64, 128, 9216)}


def test_what_ncu_was_told_to_leave_out_or_could_not_finish_is_said(synthetic: ModuleType) -> None:
    _, ncu = synthetic.gpu_pair(1, 64)

    def said(**changes: Any) -> str | None:
        return of(replace(ncu, **changes))[0][64, "conv2", "forward"].left_out

    told = replace(ncu.report, environment={"ncu:left_out": "--launch-skip, --kernel-name"})
    assert said(report=told) == "ncu excluded launches (--launch-skip, --kernel-name)"
    assert said(status="partial", reason="out of time.") == "the ncu run is partial: out of time"
    assert said(status="partial", reason=None, report=told) == "the ncu run is partial"
    nsys, _ = synthetic.gpu_pair(1, 64)
    assert of(nsys)[0][64, "conv2", "forward"].left_out is None


def test_a_layer_that_ncu_was_not_to_count_in_is_not_profiled(synthetic: ModuleType) -> None:
    nsys, ncu = synthetic.gpu_pair(1, 64)
    narrowed = replace(ncu, report=replace(ncu.report, environment={"ncu:layers": "conv2, fc1"}))
    found, _ = of(nsys, narrowed)
    assert {
        layer: found[64, layer, "forward"].profiled for layer in ("conv1", "conv2", "fc1", "fc2")
    } == {
        "conv1": False,
        "conv2": True,
        "fc1": True,
        "fc2": False,
    }
    assert found[64, "conv2", "forward"].environment == {"ncu:layers": "conv2, fc1"}
    bare = [kernel._replace(layer=None) for kernel in ncu.report.kernels]
    nameless, loose = of(nsys, replace(ncu, report=replace(ncu.report, kernels=bare)))
    assert not nameless[64, "conv2", "forward"].profiled, "kernels of no layer say nothing of one"
    assert sum(work.launches for work in loose[64]) == 4 * 2 + 1
    alone, _ = of(nsys)
    assert not alone[64, "conv2", "forward"].profiled
