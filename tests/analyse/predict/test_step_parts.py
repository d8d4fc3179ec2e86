"""What a step is made of: sums worked out from the dimensions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfctl.orchestrator.analyse.predict.operations import StepSpec
from perfctl.orchestrator.analyse.predict.step_parts import (
    FEATURES,
    INCREASING,
    PARTS,
    features,
    merged,
    parts,
    peak_of,
    roofline,
)
from tests.analyse.steps import CPU, GPU, conv, linear, network, plain, with_batch


def case_of(*works: object, batch: int = 2, training: bool = True, precision: str = "fp32") -> StepSpec:
    return StepSpec("m", "f", works, batch, training, precision, "momentum" if training else "", 1000)  # type: ignore[arg-type]


def part(case: StepSpec, name: str) -> float:
    return parts(case, CPU)[PARTS.index(name)]


def test_a_convolutions_arithmetic_is_two_flops_a_multiply_add_over_the_peak() -> None:
    case = case_of(conv("c", 4, 8, 10), batch=3)
    macs = 10 * 10 * 8 * 4 * 9
    assert part(case, "conv forward") == pytest.approx(2 * 3 * macs / 100e9)
    assert part(case, "conv backward") == pytest.approx(2 * 2 * 3 * macs / 100e9)


def test_the_first_layer_has_one_product_in_backward_and_inference_none() -> None:
    first = conv("c", 4, 8, 10, first=True)
    assert part(case_of(first), "conv backward") == part(case_of(first), "conv forward")
    assert part(case_of(first, training=False), "conv backward") == 0
    assert part(case_of(first, training=False), "bytes optimizer") == 0


def test_bytes_are_inputs_and_outputs_over_the_bandwidth_and_weights_are_apart() -> None:
    case = case_of(linear("fc", 100, 10), batch=5)
    assert part(case, "linear bytes forward") == pytest.approx(5 * 110 * 4 / 20e9)
    assert part(case, "weights forward") == pytest.approx(1000 * 4 / 20e9)


def test_an_optimizer_with_momentum_moves_five_values_a_parameter() -> None:
    assert part(case_of(linear("fc", 10, 10)), "bytes optimizer") == pytest.approx(1000 * 5 * 4 / 20e9)


def test_a_pool_looks_at_its_whole_window() -> None:
    pool = replace(plain("p", "pool", 400), outputs=100, kernel=9)
    assert part(case_of(pool, batch=1), "window forward") == pytest.approx(100 * 9 * 4 / 20e9)


def test_only_bytes_that_caches_do_not_hold_are_spilled() -> None:
    small, large = plain("a", "activation", 1000), plain("a", "activation", 2**20)
    assert part(case_of(small), "spilled forward") == 0
    assert part(case_of(large, batch=1), "spilled forward") == pytest.approx((2 * 4 - 2) * 2**20 / 20e9)


def test_equal_operations_of_several_layers_cost_as_much_as_one_called_as_often() -> None:
    twice = case_of(plain("a", "norm", 64), plain("b", "norm", 64))
    assert len(merged(twice.works)) == 1
    assert merged(twice.works)[0].calls == 2
    assert part(twice, "norm bytes forward") == 2 * part(case_of(plain("a", "norm", 64)), "norm bytes forward")


def test_no_part_and_no_increasing_feature_falls_when_batch_grows() -> None:
    case = network(16, 3, 1)
    before = parts(case, CPU)
    for batch in (2, 3, 8, 50, 1000):
        now = parts(with_batch(case, batch), CPU)
        rows = features(with_batch(case, 1), before), features(with_batch(case, batch), now)
        assert all(later >= earlier for earlier, later in zip(before, now, strict=True))
        for name, earlier, later in zip(FEATURES, *rows, strict=True):
            assert later >= earlier if name in INCREASING else later == earlier, name


def test_half_precision_runs_on_tensor_cores_and_depthwise_does_not() -> None:
    assert peak_of(GPU, "fp16") == 80e12
    assert peak_of(GPU, "fp16", depthwise=True) == 10e12


def test_a_machine_without_the_precisions_peak_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="Test CPU: no peak is known for bf16"):
        parts(replace(network(8, 2, 1), precision="bf16"), CPU)


def test_the_roofline_is_the_larger_of_arithmetic_and_bytes_of_each_operation() -> None:
    work = linear("fc", 1000, 1000)
    case = case_of(work, batch=1, training=False)
    arithmetic, moved = 2 * 1e6 / 100e9, (2000 + 1e6) * 4 / 20e9
    assert roofline(case, CPU) == pytest.approx(max(arithmetic, moved))


def test_every_part_names_its_phase() -> None:
    assert {name.rpartition(" ")[2] for name in PARTS} == {"forward", "backward", "optimizer"}
