"""Steps that ``perfctl bench`` measured, as a predictor is fitted on them."""

from __future__ import annotations

from perfctl.orchestrator.counts.hardware.machines import format_machine_name
from perfctl.orchestrator.predict.operations import (
    StepMeasurement,
    StepSpec,
    list_plan_forward_operations,
)
from perfctl.records.bench import BenchPoint
from perfctl.records.paper import Plan


def convert_bench_point(point: BenchPoint, plan: Plan) -> StepMeasurement:
    """Return what a predictor is fitted on; ``plan`` is the point's model's. Seconds."""
    training = point.mode == "train"
    median, low, high = (nanoseconds / 1e9 for nanoseconds in point.step_ns)
    phases = {name: nanoseconds / 1e9 for name, nanoseconds in point.phase_ns.items()}
    layers = (("forward", point.forward_ns), ("backward", point.backward_ns))
    by_layer = {
        (layer, phase): nanoseconds / 1e9
        for phase, times in layers
        for layer, nanoseconds in times.items()
    }
    return StepMeasurement(
        case=StepSpec(
            model=point.model,
            family=point.family,
            works=list_plan_forward_operations(plan),
            batch=point.batch,
            training=training,
            precision=point.precision,
            optimizer=plan.optimizer if training else "",
            parameters=plan.parameters,
        ),
        machine=format_machine_name(
            point.machine.device, point.machine.kind, point.machine.threads
        ),
        seconds=median,
        low=low,
        high=high,
        forward=phases.get("forward" if training else "inference"),
        backward=phases.get("backward"),
        optimizer=phases.get("optimizer"),
        peak_bytes=point.memory_bytes.get("peak"),
        layer_seconds=by_layer,
    )
