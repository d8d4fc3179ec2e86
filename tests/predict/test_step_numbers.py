"""Every part and feature of a step, worked out by hand for one operation of each group."""

from dataclasses import replace

import pytest

from perfctl.orchestrator.counts.hardware.machines import (
    BOARDS,
    Machine,
    build_board_machine,
)
from perfctl.orchestrator.predict.operations import get_activation_element_bytes
from perfctl.orchestrator.predict.step_parts import (
    CLASS_OF,
    FEATURES,
    INCREASING,
    LIMIT_OF,
    PARTS,
    classify_operation,
    compute_step_features,
    compute_step_floor_seconds,
    get_peak_flops_or_raise,
    merge_equal_operations,
    sum_step_part_seconds,
)
from tests.make.made_fits import CONV, CPU, case_of
from tests.make.steps import network, with_batch
from tests.make.works import by_part, moving, product


def seen(case, machine=CPU):
    """Parts that are not 0, apart from the step's own millisecond."""
    found = by_part(sum_step_part_seconds(case, machine))
    assert found.pop("step forward") == 1e-3
    return {name: seconds for name, seconds in found.items() if seconds}


def features_of(case):
    return dict(
        zip(FEATURES, compute_step_features(case, sum_step_part_seconds(case, CPU)), strict=True)
    )


ARITHMETIC = 2 * 2 * 360000 / 100e9
"""Seconds of CONV's multiply-adds at the peak: 2 samples, 2 FLOPs each."""


def test_every_part_of_a_convolution_in_training_and_what_inference_has_of_it():
    calls = 3
    twice_backward = {
        "conv": ARITHMETIC,
        "narrow": ARITHMETIC * 64 / 8,
        "shallow": ARITHMETIC * 64 / 36,
        "conv bytes": 2 * 1200 * 4 / 20e9,
        "weights": 3600 * 4 / 20e9,
        "operations": 1e-6,
    }
    forward = {f"{name} forward": calls * each for name, each in twice_backward.items()}
    training = {
        **forward,
        **{f"{name} backward": 2 * calls * each for name, each in twice_backward.items()},
        "tensors optimizer": calls * 1e-6,
        "bytes optimizer": 1000 * (3 + 2) * 4 / 20e9,
    }
    work = CONV._replace(calls=calls)
    assert seen(case_of(work)) == pytest.approx(training)
    assert seen(case_of(work, training=False)) == pytest.approx(forward)


@pytest.mark.parametrize(
    ("work", "products"),
    [
        (CONV._replace(first=True), 1),
        (CONV, 2),
        (CONV._replace(kind="matmul", weights=0.0), 2),
        (CONV._replace(kind="attention", weights=0.0), 2),
        (CONV._replace(kind="linear", weights=0.0), 1),
        (CONV._replace(kind="matmul", weights=0.0, first=True), 1),
    ],
)
def test_backward_has_one_product_for_each_input_that_needs_a_gradient(work, products):
    found = seen(case_of(work))
    group = classify_operation(work)
    assert found[f"{group} backward"] == pytest.approx(products * found[f"{group} forward"])
    assert found["operations backward"] == pytest.approx(products * 1e-6)
    assert ("tensors optimizer" in found) == (work.weights > 0)


def test_what_moves_bytes_alone_moves_them_once_more_backward_except_copies():
    norm = moving("norm", 100, 100, 16, calls=2)
    moved = 2 * 2 * 200 * 4 / 20e9
    assert seen(case_of(norm)) == pytest.approx(
        {
            "norm bytes forward": moved,
            "norm bytes backward": moved,
            "operations forward": 2e-6,
            "operations backward": 2e-6,
            "tensors optimizer": 2e-6,
            "bytes optimizer": 1e-6,
        }
    )
    copy = seen(case_of(norm._replace(kind="memory", weights=0)))
    assert "operations backward" not in copy and copy["memory bytes backward"] == pytest.approx(
        moved
    )


POOL = moving("pool", 400, 100, kernel=9)


def test_a_pools_window_is_read_forward_and_backward():
    found, window = seen(case_of(POOL)), pytest.approx(2 * 100 * 9 * 4 / 20e9)
    assert found["window forward"] == found["window backward"] == window
    assert "window backward" not in seen(case_of(POOL, training=False))
    for kind in ("softmax", "norm"):  # nothing else has a window
        assert "window forward" not in seen(case_of(POOL._replace(kind=kind)))


@pytest.mark.parametrize(
    ("elements", "spilled", "overflow"),
    [
        (2**19, 0, 0),  # 2 MiB exactly
        (2**19 + 2, 8, 0),
        (2**23, 30 * 2**20, 0),  # 32 MiB
        (2**23 + 2, 30 * 2**20 + 8, 8),
    ],
)
def test_bytes_beyond_2_and_32_mib_are_spilled_and_overflow(elements, spilled, overflow):
    found = seen(case_of(moving("activation", elements / 2, elements / 2), batch=1))
    for name, beyond in (("spilled", spilled), ("overflow", overflow)):
        for phase in ("forward", "backward"):
            assert found.get(f"{name} {phase}", 0.0) == pytest.approx(beyond / 20e9)


def test_gradients_of_weights_beyond_32_mib_are_memory_that_is_mapped_anew_and_so_is_what_adam_makes_of_them():
    def one(weights, optimizer, *, training=True):
        work = product("linear", 100, 10, 1, 10, 10, weights, calls=3)
        found = seen(replace(case_of(work, training=training), optimizer=optimizer, batch=1))
        return {name: seconds for name, seconds in found.items() if name.startswith("fresh")}

    exactly, more = 8.0 * 2**20, 8.0 * 2**20 + 1  # values of 4 bytes
    assert one(exactly, "adam") == {}
    seconds = 3 * more * 4 / 20e9  # of all three calls
    assert one(more, "sgd") == one(more, "momentum") == {"fresh backward": pytest.approx(seconds)}
    assert one(more, "adam") == pytest.approx(
        {"fresh backward": seconds, "fresh optimizer": seconds}
    )
    assert one(more, "adam", training=False) == {}


@pytest.mark.parametrize(("optimizer", "values"), [("sgd", 3), ("momentum", 5), ("adam", 7)])
def test_an_optimizer_reads_and_writes_each_of_its_values(optimizer, values):
    case = replace(case_of(CONV, optimizer=optimizer), parameters=10_000_000)
    found = seen(case)
    assert found["bytes optimizer"] == pytest.approx(10_000_000 * values * 4 / 20e9)
    assert found.get("adam optimizer", 0.0) == (
        found["bytes optimizer"] if optimizer == "adam" else 0.0
    )
    assert found["overflow optimizer"] == pytest.approx(
        (10_000_000 * values * 4 - 32 * 2**20) / 20e9
    )


@pytest.mark.parametrize(
    ("kind", "kernel", "depth", "group"),
    [
        ("conv", 9, 36, "conv"),
        ("conv", 1, 36, "pointwise"),
        ("conv", 2, 36, "conv"),
        ("grouped_conv", 9, 18, "grouped"),
        ("grouped_conv", 9, 9, "depthwise"),
        ("transposed_conv", 1, 4, "conv"),
        ("rnn", 1, 4, "linear"),
        ("attention", 1, 4, "matmul"),
        ("loss", 1, 0, "softmax"),
        ("other", 1, 0, "memory"),
        ("pool", 4, 0, "pool"),
    ],
)
def test_the_group_of_an_operation(kind, kernel, depth, group):
    assert classify_operation(product(kind, 1, 1, depth, 0, 0, kernel=kernel)) == group


TENSOR = Machine(
    "Test GPU", "gpu", {"fp32": 10e12, "tensor fp16": 80e12, "tensor tf32": 40e12}, 800e9
)


def test_a_depthwise_convolution_is_neither_narrow_nor_shallow_and_off_the_tensor_cores():
    case = case_of(CONV._replace(kind="grouped_conv", depth=9.0), precision="fp16")
    found = seen(case, TENSOR)
    assert found["depthwise forward"] == pytest.approx(2 * 2 * 360000 / 10e12)
    assert "narrow forward" not in found and "shallow backward" not in found
    # fp16: two bytes
    assert found["depthwise bytes forward"] == pytest.approx(2 * 1200 * 2 / 800e9)


def chip(**peaks):
    return Machine("G", "gpu", {name.replace("_", " "): peak for name, peak in peaks.items()}, 1.0)


@pytest.mark.parametrize(
    ("machine", "precision", "peak", "depthwise"),
    [
        (TENSOR, "tf32", 40e12, 10e12),
        (CPU, "fp32", 100e9, 100e9),
        (chip(fp64=5.0, fp32=9.0), "fp64", 5.0, 5.0),
        (chip(fp32=9.0, fp16=18.0), "fp16", 18.0, 9.0),
        (chip(fp32=9.0, tensor_fp32=18.0), "fp32", 18.0, 9.0),
        (chip(fp32=9.0, tensor_int8=70.0), "int8", 70.0, 9.0),
    ],
)
def test_a_precision_runs_on_its_own_path_and_a_depthwise_convolution_off_the_tensor_cores(
    machine, precision, peak, depthwise
):
    assert get_peak_flops_or_raise(machine, precision) == peak
    assert get_peak_flops_or_raise(machine, precision, is_depthwise=True) == depthwise


def test_operations_that_differ_in_more_than_their_layer_are_not_merged():
    alike = (CONV, CONV._replace(layer="d", calls=4), CONV._replace(stride=2))
    assert merge_equal_operations(alike) == (
        CONV._replace(layer="", calls=5),
        CONV._replace(layer="", stride=2),
    )


def test_features_are_shares_means_and_counts_of_the_step():
    grouped = product("grouped_conv", 50.0, 2.0, 18.0, 10.0, 10.0, 9.0, kernel=9)
    depthwise = grouped._replace(depth=9.0, macs=500.0)
    linear = product("linear", 5.0, 20.0, 40.0, 40.0, 60.0, 7.0, calls=2)
    norm, activation = moving("norm", 30.0, 20.0), moving("activation", 5.0, 5.0, calls=3)
    works = (CONV, grouped, depthwise, linear, norm, activation)
    case = case_of(*works, batch=3)
    macs = 360000 + 1800 + 500 + 2 * 4000
    elements = 1200 + 20 + 20 + 2 * 100 + 50 + 3 * 10
    operations = 1 + 1 + 1 + 2 + 1 + 3
    moved = sum(seconds for name, seconds in seen(case).items() if " bytes " in name)

    def mean(size):
        """Harmonic, by multiply-adds."""
        parts = (work.calls * work.macs / getattr(work, size) for work in works if work.macs)
        return macs / sum(parts)

    assert features_of(case) == pytest.approx(
        {
            "arithmetic": 3 * 2 * 3 * macs / 100e9,
            "bytes": moved,
            "batch": 3.0,
            "bytes per operation": moved / operations,
            "operations": operations,
            "parameters": 1000.0,
            "columns": mean("columns"),
            "depth": mean("depth"),
            "rows": mean("rows"),
            "intensity": macs / elements,
            "window share": 360000 / macs,
            "grouped share": (1800 + 500) / macs,
            "matrix share": 2 * 4000 / macs,
            "norm share": 50 / elements,
            "activation share": 30 / elements,
            "weights per operation": 1000 / operations,
        }
    )


def test_the_roofline_adds_the_larger_of_arithmetic_and_bytes_of_each_operation_and_direction():
    norm = moving("norm", 100, 100)
    moved = (2 * 1200 + 3600) * 4 / 20e9
    assert moved < ARITHMETIC
    assert compute_step_floor_seconds(case_of(CONV, norm), CPU) == pytest.approx(
        3 * ARITHMETIC + 2 * (2 * 200 * 4 / 20e9) + 1000 * (3 + 2) * 4 / 20e9
    )
    slow = Machine("S", "cpu", {"fp32": 100e12}, 20e9)
    assert compute_step_floor_seconds(case_of(CONV, training=False), slow) == pytest.approx(moved)


@pytest.mark.parametrize(
    ("size", "names"),
    [(8, ["fp64"]), (4, ["fp32", "tf32"]), (2, ["fp16", "bf16"]), (1, ["int8", "fp8"])],
)
def test_the_bytes_of_an_element(size, names):
    assert {get_activation_element_bytes(name) for name in names} == {size}


def test_sizes_that_are_not_known_or_below_one_count_as_one():
    work = CONV._replace(kind="rnn", columns=0.0, depth=0.0, rows=0.0)
    found = seen(case_of(work))
    assert found["narrow forward"] == found["shallow forward"] == pytest.approx(64 * ARITHMETIC)
    shape = features_of(case_of(work))
    assert {shape[name] for name in ("columns", "depth", "rows", "matrix share")} == {1.0}


def test_features_of_a_network_without_products_and_of_next_to_nothing():
    case = case_of(moving("norm", 0.25, 0.25), training=False)
    assert features_of(case) == pytest.approx(
        {
            "arithmetic": 0.0,
            "bytes": 2 * 0.5 * 4 / 20e9,
            "batch": 2.0,
            "bytes per operation": 2 * 0.5 * 4 / 20e9,
            "operations": 1.0,
            "parameters": 1000.0,
            "columns": 1.0,
            "depth": 1.0,
            "rows": 1.0,
            "intensity": 1.0,
            "window share": 0.0,
            "grouped share": 0.0,
            "matrix share": 0.0,
            "norm share": 0.5,
            "activation share": 0.0,
            "weights per operation": 1000.0,
        }
    )


def test_an_optimizer_that_is_not_known_keeps_nothing_and_a_few_parameters_overflow_no_cache():
    found = seen(case_of(CONV, optimizer="other"))
    assert found["bytes optimizer"] == pytest.approx(1000 * 3 * 4 / 20e9)
    assert "overflow optimizer" not in found and "adam optimizer" not in found


NO_FASTER = r"\(matrix multiplications would {} fp32, no faster\)"
UNKNOWN = r"\(its peak is unknown\)"


@pytest.mark.parametrize(
    ("precision", "said"),
    [
        ("tf32", f"TF32 {NO_FASTER.format('run in')}"),
        ("bf16", f"fast bf16 {NO_FASTER.format('be converted to')}"),
        ("fp16", r"fast fp16 \(it runs slower than fp32.*"),
        ("fp64", f"fast fp64 {UNKNOWN}"),
    ],
)
def test_a_precision_without_a_path_is_refused_with_those_the_chip_has(precision, said):
    gpu = chip(fp32=9.0, tensor_fp16=0.0, fp16=0.2, tensor_int8=70.0)
    assert get_peak_flops_or_raise(gpu, "fp32") == 9.0
    with pytest.raises(ValueError, match=rf"^G has no {said}\. Available precisions: fp32$"):
        get_peak_flops_or_raise(gpu, precision)


def test_a_cpu_has_no_tf32():
    said = rf"^Test CPU has no TF32 {UNKNOWN}\. Available precisions: fp32$"
    with pytest.raises(ValueError, match=said):
        get_peak_flops_or_raise(CPU, "tf32")


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_tf32_is_refused_where_the_chip_has_none_and_is_no_slower_than_fp32_where_it_has(board):
    machine = build_board_machine(board)
    if "tensor tf32" in machine.flops_per_second:
        assert get_peak_flops_or_raise(machine, "tf32") >= get_peak_flops_or_raise(machine, "fp32")
    else:
        with pytest.raises(ValueError, match="has no TF32"):
            get_peak_flops_or_raise(machine, "tf32")


def test_a_roofline_leaves_out_what_is_no_floor_and_adds_the_optimizer_in_training_alone():
    large = moving("activation", 2**24, 2**24, calls=2)
    moved = (2 * 2 * 2**25 + 2 * 500) * 4 / 20e9
    assert compute_step_floor_seconds(case_of(large, POOL, training=False), CPU) == pytest.approx(
        moved
    )
    assert compute_step_floor_seconds(case_of(large, POOL, optimizer="adam"), CPU) == pytest.approx(
        2 * moved + 1000 * 7 * 4 / 20e9
    )


def test_no_part_and_no_increasing_feature_falls_when_batch_grows():
    case = network(16, 3, 1)
    before = sum_step_part_seconds(case, CPU)
    for batch in (2, 3, 8, 50, 1000):
        now = sum_step_part_seconds(with_batch(case, batch), CPU)
        rows = (
            compute_step_features(with_batch(case, 1), before),
            compute_step_features(with_batch(case, batch), now),
        )
        assert all(later >= earlier for earlier, later in zip(before, now, strict=True))
        for name, earlier, later in zip(FEATURES, *rows, strict=True):
            assert later >= earlier if name in INCREASING else later == earlier, name


@pytest.mark.parametrize(
    ("kind", "limit", "names"),
    [
        ("arithmetic", "arithmetic", ["conv forward", "narrow backward", "shallow forward"]),
        ("bytes", "bytes", ["conv bytes forward", "norm bytes backward", "weights forward"]),
        ("bytes", "bytes", ["window forward", "spilled forward", "overflow optimizer"]),
        ("bytes", "bytes", ["adam optimizer", "fresh backward", "bytes optimizer"]),
        ("operations", "operations", ["operations forward", "tensors optimizer"]),
        ("step", "operations", ["step forward"]),
    ],
)
def test_the_class_of_a_part_and_what_limits_it(kind, limit, names):
    assert [CLASS_OF[name] for name in names] == [kind] * len(names)
    assert [LIMIT_OF[name] for name in names] == [limit] * len(names)


def test_every_part_names_its_phase():
    assert {name.rpartition(" ")[2] for name in PARTS} == {"forward", "backward", "optimizer"}
