"""From a run of the store to a point of a bench: which runs count, and every figure of
the point."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfctl.orchestrator.predict.bench import (
    build_unprofiled_bench_point,
    keep_fastest_points,
    list_unprofiled_bench_points,
    sum_forward_and_other_times_by_layer,
)
from perfctl.records.bench import BenchMachine, BenchPoint
from perfctl.records.report import Device, Feature, LayerTime, MemoryFigure, Step
from perfctl.workloads.models.plan import plan_model
from scripts.proof.accuracy.bench_steps import convert_bench_point
from tests.make.synthetic import make_run

FACTS = {"option:model": "mlp:depth=2", "threads": "4", "torch": "2.9.0"}


def steps(*lengths):
    return tuple(Step(number, "step", 0, length) for number, length in enumerate(lengths))


def run_of(**changes):
    fields: dict[str, Any] = {
        "workload": "families",
        "profiler": "none",
        "environment": FACTS,
        "device": Device("EPYC", "cpu"),
        "steps": steps(100, 120, 110, 400),
    }
    return make_run(**(fields | changes))


def layer(name, direction, duration):
    return LayerTime(name, "Linear", direction, duration, duration, duration, 3)


def test_a_point_has_median_and_quartiles_of_its_steps_and_all_that_was_measured():
    more = (
        Step(0, "forward", 0, 40),
        Step(1, "forward", 0, 50),
        Step(0, "backward", 0, 45),
        Step(0, "test", 0, 9),
        Step(1, "backward", 0, None),
        Step(0, "data", 0, 10),
    )
    figures = (
        MemoryFigure("before", "host_resident", 5),
        MemoryFigure("peak", "host_resident", 9),
        MemoryFigure("after", "host_resident", 6),
        MemoryFigure("peak", "allocated", 77),
    )
    run = run_of(
        steps=(*steps(110, 120, 110, 400), *more),
        memory=figures,
        features=(Feature("macs", 3.0, None),),
        layer_times=(
            layer("fc1", "forward", 7),
            layer("fc1", "grad_input", 5),
            layer("fc1", "grad_weight", 6),
        ),
    )
    # The first step waited 10 for its samples: 100, 110, 120, 400; quartiles between
    # neighbours, inclusive.
    assert build_unprofiled_bench_point(run) == BenchPoint(
        "mlp:depth=2",
        64,
        "train",
        "fp32",
        BenchMachine("EPYC", "cpu", 4, "2.9.0"),
        4,
        (115, 108, 190),
        100,
        {"forward": 45, "backward": 45},
        {"before": 5, "peak": 9},
        {"fc1": 7},
        {"fc1": 11},
        {"macs": 3.0},
    )


def test_one_step_is_its_own_spread_and_a_gpu_has_no_threads_and_its_own_memory():
    figures = (MemoryFigure("peak", "host_resident", 9), MemoryFigure("peak", "allocated", 77))
    found = build_unprofiled_bench_point(
        run_of(steps=steps(100), device=Device("Tesla T4", "gpu"), memory=figures)
    )
    assert found is not None
    assert (found.step_ns, found.steps, found.memory_bytes) == ((100,) * 3, 1, {"peak": 77})
    assert found.machine == BenchMachine("Tesla T4", "gpu", None, "2.9.0")
    unknown = build_unprofiled_bench_point(run_of(environment={**FACTS, "threads": "many"}))
    assert unknown is not None and unknown.machine.threads is None


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": "mnist_cnn"},
        {"profiler": "nsys"},
        {"status": "failed"},
        {"status": "partial"},
        {"environment": {}},
        {"batch_size": None},
        {"mode": None},
        {"precision": None},
        {"device": None},
        {"device": Device(None, "cpu")},
        {"steps": ()},
    ],
)
def test_what_is_no_whole_run_of_a_family_without_a_profiler_is_no_point(changes):
    whole, other = run_of(), run_of(**changes)
    assert build_unprofiled_bench_point(other) is None
    assert [point.model for point in list_unprofiled_bench_points([other, whole])] == [
        "mlp:depth=2"
    ]


def test_layers_of_one_name_are_added_forward_and_in_all_other_directions():
    rows = [
        layer("a", "forward", 1),
        layer("a", "forward", 2),
        layer("a", "backward", 4),
        layer("a", "recompute", 8),
        layer("b", "grad_weight", 16),
    ]
    assert sum_forward_and_other_times_by_layer(rows) == ({"a": 3}, {"a": 12, "b": 16})


SECOND = 10**9
POINT = BenchPoint(
    "mlp",
    2,
    "train",
    "fp32",
    BenchMachine("EPYC", "cpu", 1, None),
    3,
    (4 * SECOND, 3 * SECOND, 5 * SECOND),
    1,
    {"forward": SECOND, "backward": 2 * SECOND, "optimizer": SECOND // 2, "inference": 9},
    {"before": 5, "peak": 7},
    {"fc1": SECOND},
    {"fc1": SECOND * 3 // 2},
)


def test_of_equal_medians_the_first_is_taken_and_other_machines_stand_apart():
    other = replace(POINT, machine=replace(POINT.machine, threads=2))
    assert keep_fastest_points([POINT, replace(POINT, fastest_ns=0), other]) == [POINT, other]


def test_in_inference_the_forward_pass_is_the_phase_of_that_name_and_there_is_no_optimizer():
    phases = {"inference": 2 * SECOND}
    found = convert_bench_point(
        replace(POINT, mode="infer", phase_ns=phases, memory_bytes={}, backward_ns={}),
        plan_model("mlp"),
    )
    assert (found.seconds, found.low, found.high) == (4.0, 3.0, 5.0)
    assert (found.forward, found.backward, found.optimizer) == (2.0, None, None)
    assert (found.peak_bytes, found.machine) == (None, "EPYC, 1 thread")
    assert (found.case.training, found.case.optimizer) == (False, "")
    assert found.layer_seconds == {("fc1", "forward"): 1.0}


def test_a_faster_run_takes_the_place_of_a_slower_one_whatever_else_it_was():
    others = [
        replace(POINT, model="vgg"),
        replace(POINT, batch=1),
        replace(POINT, mode="infer"),
        replace(POINT, precision="bf16"),
    ]
    fast = replace(POINT, step_ns=(POINT.step_ns[0] - 1, *POINT.step_ns[1:]))
    assert keep_fastest_points([POINT, *others, fast]) == [fast, *others]


def test_in_training_a_measured_point_has_all_phases_both_directions_of_layers_and_the_plans_optimizer():
    planned = plan_model("mlp")
    found = convert_bench_point(POINT, planned)
    assert (found.forward, found.backward, found.optimizer, found.peak_bytes) == (1.0, 2.0, 0.5, 7)
    assert found.layer_seconds == {("fc1", "forward"): 1.0, ("fc1", "backward"): 1.5}
    case = found.case
    assert (case.model, case.family, case.batch, case.training) == ("mlp", "mlp", 2, True)
    assert (case.optimizer, case.parameters) == (planned.optimizer, planned.parameters)
