"""From runs of the store to the points of a bench, and from these to what a predictor is fitted on."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from perfctl.orchestrator.analyse.machines import machine_name
from perfctl.orchestrator.analyse.plan_work import operations_of_plan
from perfctl.orchestrator.analyse.step_lengths import computed_ns
from perfctl.orchestrator.analyse.work_records import Measured, StepSpec
from perfctl.parsers.bench_points import BenchMachine, BenchPoint
from perfctl.parsers.layer_times import LayerTime
from perfctl.parsers.planned import Plan
from perfctl.parsers.stored import Run

WORKLOAD = "families"
_PHASES = ("forward", "backward", "optimizer", "inference")


def points_of(runs: Iterable[Run]) -> list[BenchPoint]:
    """The whole runs of networks of the families without a profiler, in order; others are passed over."""
    return [point for run in runs if (point := point_of(run)) is not None]


def fastest(points: Iterable[BenchPoint]) -> list[BenchPoint]:
    """Of several runs of one point on one machine the one with the least median, in the order they first stand.

    What disturbs a run (another program on the machine) makes it slower, never faster.
    """
    best: dict[tuple[object, ...], BenchPoint] = {}
    for point in points:
        key = (point.model, point.batch, point.mode, point.precision, point.machine)
        if key not in best or point.step_ns[0] < best[key].step_ns[0]:
            best[key] = point
    return list(best.values())


def point_of(run: Run) -> BenchPoint | None:
    """None where the run is no whole one, of another workload, or profiled."""
    facts = run.report.environment
    model = facts.get("option:model")
    times = computed_ns(run.report.steps)
    known = model and run.batch_size and run.mode and run.precision and run.device and run.device.name and times
    if run.workload != WORKLOAD or run.profiler != "none" or run.status != "ok" or not known:
        return None
    assert model and run.batch_size and run.mode and run.precision and run.device and run.device.name
    on_cpu = run.device.kind == "cpu"
    threads = facts.get("threads", "")
    forward, backward = layer_times(run.report.layer_times)
    return BenchPoint(
        model=model,
        batch=run.batch_size,
        mode=run.mode,
        precision=run.precision,
        machine=BenchMachine(
            run.device.name,
            run.device.kind,
            int(threads) if on_cpu and threads.isdecimal() else None,
            facts.get("torch"),
        ),
        steps=len(times),
        step_ns=_spread(times),
        fastest_ns=min(times),
        phase_ns=_phases(run),
        memory_bytes={
            one.moment: one.bytes
            for one in run.report.memory
            if one.quantity == ("host_resident" if on_cpu else "allocated") and one.moment in ("before", "peak")
        },
        forward_ns=forward,
        backward_ns=backward,
        features={one.name: one.value for one in run.report.features},
    )


def layer_times(rows: Iterable[LayerTime]) -> tuple[dict[str, int], dict[str, int]]:
    """Layer -> nanoseconds forward, and of all its other directions together."""
    forward: dict[str, int] = {}
    backward: dict[str, int] = {}
    for row in rows:
        into = forward if row.direction == "forward" else backward
        into[row.layer] = into.get(row.layer, 0) + row.duration_ns
    return forward, backward


def measured_of(point: BenchPoint, plan: Plan) -> Measured:
    """What a predictor is fitted on; ``plan`` is the point's model's. Seconds."""
    training = point.mode == "train"
    median, low, high = (one / 1e9 for one in point.step_ns)
    phases: Mapping[str, float] = {name: one / 1e9 for name, one in point.phase_ns.items()}
    by_layer = {(layer, "forward"): one / 1e9 for layer, one in point.forward_ns.items()}
    by_layer |= {(layer, "backward"): one / 1e9 for layer, one in point.backward_ns.items()}
    return Measured(
        case=StepSpec(
            model=point.model,
            family=point.family,
            works=operations_of_plan(plan),
            batch=point.batch,
            training=training,
            precision=point.precision,
            optimizer=plan.optimizer if training else "",
            parameters=plan.parameters,
        ),
        machine=machine_name(point.machine.device, point.machine.kind, point.machine.threads),
        seconds=median,
        low=low,
        high=high,
        forward=phases.get("forward" if training else "inference"),
        backward=phases.get("backward"),
        optimizer=phases.get("optimizer"),
        peak_bytes=point.memory_bytes.get("peak"),
        layer_seconds=by_layer,
    )


def _spread(times: list[int]) -> tuple[int, int, int]:
    if len(times) == 1:
        return times[0], times[0], times[0]
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return round(median), round(low), round(high)


def _phases(run: Run) -> dict[str, int]:
    found: dict[str, list[int]] = {}
    for row in run.report.steps:
        if row.phase in _PHASES and row.duration_ns is not None:
            found.setdefault(row.phase, []).append(row.duration_ns)
    return {name: round(statistics.median(times)) for name, times in found.items()}
