"""What a step is, and what a machine is called, wherever times are learned from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfctl.orchestrator.counts.hardware.machines import build_measured_device
from perfctl.orchestrator.predict.fit import list_step_ns_without_data_loading
from perfctl.records.bench import BenchMachine, BenchPoint
from perfctl.records.report import Step
from perfctl.workloads.models.plan import plan_model
from scripts.proof.accuracy.bench_steps import convert_bench_point

POINT = BenchPoint(
    "mlp", 4, "train", "fp32", BenchMachine("AMD EPYC", "cpu", 2, None), 3, (3, 2, 4)
)


def test_a_step_is_without_the_phases_that_bring_its_samples():
    steps = [
        Step(0, "step", 0, 100),
        Step(0, "data", 0, 30),
        Step(0, "copy", 30, 5),
        Step(0, "forward", 35, 65),
        Step(1, "data", 100, 7),
        Step(1, "step", 100, 90),
        Step(2, "step", 200, None),
        Step(3, "data", 300, 9),
    ]
    assert list_step_ns_without_data_loading(steps) == [65, 83]


def test_a_bench_file_and_peaks_call_a_cpu_alike():
    record: dict[str, Any] = {
        "device": "AMD EPYC",
        "kind": "cpu",
        "at": "2026-11-20",
        "threads": 2,
        "flops": {"fp32": 9e10},
        "bandwidth_bps": 2e10,
    }
    assert (
        convert_bench_point(POINT, plan_model("mlp")).machine
        == build_measured_device(record).machine.name
    )
    other = replace(POINT, machine=BenchMachine("AMD EPYC", "cpu", 1, None))
    assert (
        convert_bench_point(other, plan_model("mlp")).machine
        != build_measured_device(record).machine.name
    )


def test_a_step_of_no_length_is_none():
    assert list_step_ns_without_data_loading(
        [Step(0, "step", 0, 0), Step(1, "step", 0, 1), Step(2, "warmup", 0, 9)]
    ) == [1]
    assert list_step_ns_without_data_loading([]) == []
