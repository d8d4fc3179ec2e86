"""What causes are found from: one ledger row, its kernels with their raw counts, and its shape."""

from dataclasses import replace

from perfctl.orchestrator.counts.figure import Figure, make_missing_figure
from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape
from perfctl.orchestrator.counts.kernels.names import Algorithm
from perfctl.orchestrator.ledger.causes.evidence import (
    collect_row_evidence_and_unattributed,
    group_kernels_by_row,
)
from perfctl.orchestrator.ledger.causes.layer_shapes import read_single_product_layer_shapes
from perfctl.orchestrator.ledger.ledger import build_ledger
from perfctl.orchestrator.ledger.prepared import PreparedRun, group_into_studies
from perfctl.records.paper import LayerCall
from perfctl.records.report import Counter, Kernel, Step
from tests.make import synthetic
from tests.make.rows import BOTH, backward, case, work
from tests.make.shapes import op
from tests.make.synthetic import with_report
from tests.make.tables import table

CONV = "aten.convolution"
CONV2 = op(
    CONV,
    ((64, 32, 26, 26), (64, 32, 3, 3), (64,)),
    ((64, 64, 24, 24),),
    layer="conv2",
    stride=[1, 1],
)
FC1 = op("aten.addmm", ((128,), (64, 9216), (9216, 128)), ((64, 128),), layer="fc1")


def shapes_of(*ops):
    return {
        layer: facts.forward
        for layer, facts in read_single_product_layer_shapes(ops).items()
        if facts.forward
    }


def evidence_of(*runs):
    (study,) = group_into_studies(runs)
    return collect_row_evidence_and_unattributed(study, build_ledger(study))


def estimated(layer, direction, flops):
    macs = None if flops is None else flops // 2
    return LayerCall(layer, "Linear", direction, macs, flops, 0, 0, 0, 0, None)


def test_rows_with_estimated_products_and_those_computed_again_have_evidence_and_no_others():
    calls = (
        estimated("fc", "forward", 10),
        estimated("fc", "recompute", 0),
        estimated("fc", "grad_weight", 0),
        estimated("odd", "forward", None),
        estimated("odd", "recompute", None),
        estimated("", "forward", 10),
        estimated("", "recompute", 10),
        estimated("fc", "optimizer", 4),
    )
    table, loose = evidence_of(synthetic.make_run(layer_calls=calls))
    assert set(table) == {(64, "fc", "forward"), (64, "fc", "recompute"), (64, "odd", "recompute")}
    assert loose == {64: ()}
    assert all(
        (row.kernels, row.forward, row.profiled) == ((), None, False) for row in table.values()
    )
    assert table[64, "odd", "recompute"].estimated_flops == 0, "no formula"


def test_evidence_has_the_kernels_with_counts_per_step_and_the_shape():
    nsys, ncu = synthetic.gpu_pair(1, 64)
    table, loose = evidence_of(nsys, with_report(ncu, ops=(CONV2, FC1)))
    row = table[64, "conv2", "forward"]
    half = 64 * 24 * 24 * 64 * 288 // 2
    (kernel,) = row.kernels
    assert (kernel.grid, kernel.launches, kernel.is_main_product_kernel) == (
        (64, 4, 1),
        1,
        True,
    )
    assert kernel.algorithm.family == "conv"
    assert [kernel.counts[name] for name in ("ffma", "fadd", "pipe")] == [half, 0, 0]
    assert (kernel.multiply_add_flops, kernel.executed_flops, kernel.tensor.value) == (
        2 * half,
        2 * half,
        0,
    )
    assert [row.sum_raw_counter_over_kernels(name) for name in ("ffma", "fmul", "ops_path")] == [
        half,
        0,
        None,
    ]
    assert row.product_kernels == (kernel,)
    assert (row.estimated_flops, row.row_key) == (4 * half, (64, "conv2", "forward"))
    assert (row.precision, row.profiled, row.left_out) == ("fp32", True, None)
    assert row.forward == ConvShape(64, 32, 64, 24, 24, 3, 3)
    assert table[64, "fc1", "backward"].forward == GemmShape(64, 128, 9216)
    assert table[64, "fc2", "forward"].forward is None, "its operation was not seen"
    ((copy,),) = loose.values()
    assert (copy.name, copy.launches, copy.grid) == ("void copy_kernel<float>(float*)", 1, None)


@table("origin is_ours", [("ingested", False), ("measured", True)])
def test_a_run_of_perfctl_ncu_is_ours(origin, is_ours):
    runs = [replace(run, origin=origin) for run in synthetic.gpu_pair(1, 64)]
    assert evidence_of(*runs)[0][64, "conv2", "forward"].ours is is_ours


def groups_of(kernels, counters, **more):
    run = synthetic.make_run(
        profiler="ncu",
        **{"device": synthetic.V100, **more},
        kernels=kernels,
        counters=counters,
    )
    (groups,) = group_kernels_by_row(PreparedRun(run)).values()
    return groups


def test_launches_of_one_name_and_grid_are_one_group_and_those_outside_of_steps_none():
    def kernel(launch, step, **grid):
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
    groups = groups_of(kernels, counters)
    assert [
        (group.grid, group.launches, group.counts["fadd"], group.counts["ffma"]) for group in groups
    ] == [
        ((4, 1, 1), 1.5, 15, (100 + 200 + 400) / 2),
        ((4, 2, 1), 0.5, 5, 800 / 2),
        (None, 0.5, 5, 1600 / 2),
        ((4, 3, 2), 0.5, 5, 6400 / 2),
    ]
    assert [group.flops.value for group in groups] == [716.5, 405.5 + 400, 1605.5, 6405.5]
    bare = [kernel._replace(step=None) for kernel in kernels]
    assert groups_of(bare, counters)[0].launches == 4, "of the complete report"
    steps = tuple(Step(number, "step", None, 5) for number in range(8))
    spread = groups_of(bare, counters, steps=steps)[0]
    assert (spread.launches, spread.counts["fadd"]) == (4 / 8, 40 / 8)


FORMS = {
    "sm__sass_thread_inst_executed_op_ffma_pred_on.sum": 8.0,
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum": None,
    "sm__sass_thread_inst_executed_op_fadd_pred_off.sum": 9.0,
    "smsp__inst_executed_op_hfma_pred_on.sum": 7.0,
    "smsp__inst_executed_pipe_tensor.sum": 6.0,
    "sm__ops_path_tensor_src_fp16.sum": 4096.0,
    # parts of the form without them
    "sm__ops_path_tensor_src_fp16_sparsity_off.sum": 4096.0,
    "sm__ops_path_tensor_op_hmma_src_fp16_dst_fp32_sparsity_off.sum": 4096.0,
}
AVERAGES = {
    "sm__sass_thread_inst_executed_op_fadd_pred_on.avg": 3.0,
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.avg": 5.0,
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum": 7.0,
}


@table(
    "values sms counts",
    [
        (FORMS, 80, {"ffma": 8, "pipe": 6, "ops_path": 4096}),
        # 80 SMs of 4 partitions; None: of another device of the run
        *((AVERAGES, sms, {"fadd": 3 * 80, "ffma": 5 * 320, "fmul": 7}) for sms in (80, None)),
    ],
)
def test_counters_are_read_in_every_form_if_they_have_a_value(values, sms, counts):
    (group,) = groups_of(
        [Kernel(0, "k", layer="fc", direction="forward", step=0, duration_ns=5)],
        [Counter(0, name, value, "inst") for name, value in values.items()],
        device=replace(synthetic.V100, sm_count=sms),
        devices=(synthetic.V100,),
    )
    assert group.counts == counts


def test_which_kernels_do_multiply_adds_and_how_many():
    kernel = work(ffma=5, dfma=3, hfma=2, fadd=90, tensor=1000)
    assert (kernel.is_main_product_kernel, kernel.multiply_add_flops) == (True, 2 * 10 + 1000)
    constant = replace(kernel, flops=Figure(7, "estimated", "fp16", moves_constants=True))
    assert (constant.multiply_add_flops, constant.executed_flops) == (2 * 8 + 1000, 7)
    nothing = make_missing_figure("not_collected", "x")
    unknown = replace(kernel, counts={}, flops=nothing, tensor=nothing)
    assert (unknown.multiply_add_flops, unknown.executed_flops) == (0, 0)
    families = ("winograd", None, "attention", "reduce", "elementwise")
    mains = [
        replace(kernel, algorithm=Algorithm(family, "x")).is_main_product_kernel
        for family in families
    ]
    assert mains == [True, True, True, False, False]
    assert not replace(
        kernel, algorithm=Algorithm("gemm", "x", role="transform")
    ).is_main_product_kernel


@table(
    "batch forward shape",
    [
        (16, GemmShape(m=64 * 7, n=10, k=100), GemmShape(16 * 7, 10, 100)),
        (128, ConvShape(64, 3, 8, 5, 5, 3, 3), ConvShape(128, 3, 8, 5, 5, 3, 3)),
        (2, None, None),
    ],
)
def test_profiled_at_another_batch_estimate_and_shapes_are_of_that_batch(batch, forward, shape):
    row = case(64, forward=forward).replace_profiled_batch(batch)
    assert (row.estimated_flops, row.seen_batch, row.forward) == (batch * 2000, batch, shape)


LINEAR = GemmShape(64, 10, 100)
GIVEN, WEIGHTS = GemmShape(64, 100, 10), GemmShape(10, 100, 64)
SAME = ConvShape(64, 3, 8, 5, 6, 3, 3, same_size=True)
EXCHANGED = ConvShape(64, 8, 3, 5, 6, 3, 3, same_size=True)


@table(
    "direction calls forward shapes unverified",
    [
        ("forward", BOTH, LINEAR, (LINEAR,), ()),
        ("backward", BOTH, LINEAR, (GIVEN, WEIGHTS), ()),
        ("backward", BOTH[1:], LINEAR, (WEIGHTS,), ()),
        ("grad_input", BOTH[:1], LINEAR, (GIVEN,), ()),
        ("forward", BOTH, None, (), ()),
        ("backward", BOTH, None, (), ()),
        ("forward", BOTH, SAME, (SAME,), ()),
        ("backward", BOTH, SAME, (), (EXCHANGED,)),
        ("backward", BOTH, replace(SAME, same_size=False), (), ()),
        ("backward", BOTH[1:], SAME, (), ()),
        # the first layer needs none
        ("backward", (BOTH[0]._replace(flops=0), BOTH[1]), SAME, (), ()),
    ],
)
def test_gradients_are_products_of_the_same_sizes_and_those_of_a_convolution_unverified(
    direction, calls, forward, shapes, unverified
):
    row = backward(direction=direction, calls=calls, forward=forward)
    assert (row.verified_product_shapes, row.unverified_input_gradient_shapes) == (
        shapes,
        unverified,
    )


GROUPED = op(
    "aten._convolution",
    ((2, 6, 5, 7), (8, 3, 3, 1), None),
    ((2, 8, 5, 7),),
    groups=2,
    stride=(1, 1),
)
PLAIN = ((2, 6, 5, 7), (8, 6, 3, 3), None), ((2, 8, 5, 7),)
TRANSPOSED = ((2, 6, 5, 7), (6, 8, 3, 3), None), ((2, 8, 5, 7),)


@table(
    "shape product",
    [
        (CONV2, ConvShape(64, 32, 64, 24, 24, 3, 3)),
        (GROUPED, ConvShape(2, 6, 8, 5, 7, 3, 1, 2, same_size=True)),
        (op(CONV, *PLAIN, stride=[1, 2]), ConvShape(2, 6, 8, 5, 7, 3, 3)),
        (op(CONV, *PLAIN), ConvShape(2, 6, 8, 5, 7, 3, 3)),
        (op(CONV, *TRANSPOSED, transposed=True), None),
        (op(CONV, ((2, 6, 5), (8, 6, 3), None), ((2, 8, 5),)), None),
        (op(CONV, ((6, 5, 7), (8, 6, 3, 3), None), ((8, 5, 7),)), None),
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
def test_the_shape_of_a_layers_one_product(shape, product):
    assert shapes_of(shape) == ({shape.layer: product} if product else {})


def test_a_layer_of_two_products_has_no_shape_of_its_own():
    assert shapes_of(FC1, FC1, CONV2) == {"conv2": ConvShape(64, 32, 64, 24, 24, 3, 3)}
    relu = op("aten.relu", ((64, 128),), ((64, 128),), layer="fc1")
    assert shapes_of(FC1, relu) == {"fc1": GemmShape(64, 128, 9216)}


SKIPPED = {"ncu:left_out": "--launch-skip, --kernel-name"}


@table(
    "environment changes left_out",
    [
        ({}, {}, None),
        (SKIPPED, {}, "ncu excluded launches (--launch-skip, --kernel-name)"),
        ({}, {"status": "partial", "reason": "late."}, "the ncu run is partial: late"),
        (SKIPPED, {"status": "partial", "reason": None}, "the ncu run is partial"),
    ],
)
def test_why_launches_may_be_missing_is_known_from_options_and_status(
    environment, changes, left_out
):
    _, ncu = synthetic.gpu_pair(1, 64)
    run = replace(with_report(ncu, environment=environment), **changes)
    assert evidence_of(run)[0][64, "conv2", "forward"].left_out == left_out


def test_a_layer_that_ncu_was_not_to_count_in_is_not_profiled():
    nsys, ncu = synthetic.gpu_pair(1, 64)
    narrowed = with_report(ncu, environment={"ncu:layers": "conv2, fc1"})
    table, _ = evidence_of(nsys, narrowed)
    layers = ("conv1", "conv2", "fc1", "fc2")
    profiled = [table[64, layer, "forward"].profiled for layer in layers]
    assert profiled == [False, True, True, False]
    assert table[64, "conv2", "forward"].environment == {"ncu:layers": "conv2, fc1"}
    bare = [kernel._replace(layer=None) for kernel in ncu.report.kernels]
    nameless, loose = evidence_of(nsys, with_report(ncu, kernels=bare))
    assert not nameless[64, "conv2", "forward"].profiled, "kernels of no layer belong to no row"
    assert sum(kernel.launches for kernel in loose[64]) == 4 * 2 + 1
    assert not evidence_of(nsys)[0][64, "conv2", "forward"].profiled
