"""Runs of the store as the predictor takes them: a case, a machine's name, and how long a step took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, NamedTuple

from perfctl.orchestrator.analyse.formulas_optimizer import state_values
from perfctl.orchestrator.analyse.machines import machine_name
from perfctl.orchestrator.analyse.plan_work import operations_of_plan
from perfctl.orchestrator.analyse.step_lengths import computed_ns
from perfctl.orchestrator.analyse.work_records import Measured, Operation, StepSpec
from perfctl.orchestrator.analyse.work_trace import operations_of
from perfctl.workloads.plan import plan
from perfctl.workloads.spec import SpecError

if TYPE_CHECKING:
    from perfctl.orchestrator.store.read_timed import PowerReading, TimedRun
    from perfctl.parsers.paper import OpShape
    from perfctl.parsers.records import Step

SECOND = 1e-9
BY_STATE = ("sgd", "momentum", "adam")
"""Values of state for each parameter -> the optimizer that stands for all with as many."""


class FromStore(NamedTuple):
    """What the runs of a store say about times and power."""

    measured: tuple[Measured, ...] = ()
    """Of several runs of one step on one machine the fastest: what disturbs a run makes it slower, never faster."""
    kinds: Mapping[str, str] = {}
    """Name of a machine -> gpu or cpu."""
    power: tuple[PowerReading, ...] = ()
    stamps: tuple[str, ...] = ()
    """One of each run that was read: equal ones, equal runs."""


def from_store(store: Path) -> FromStore:
    """Nothing where there is no store. Raises StoreError when it is damaged."""
    if not store.exists():
        return FromStore()
    from perfctl.orchestrator.store import database
    from perfctl.orchestrator.store.read_timed import power_readings, timed_runs

    best: dict[tuple[object, ...], Measured] = {}
    kinds, stamps = {}, []
    with database.reading(store) as connection:
        for run in timed_runs(connection):
            measured = measured_of(run)
            if measured is None:
                continue
            stamps.append(run.stamp)
            kinds[measured.machine] = run.device_kind
            case = measured.case
            key = (case.model, case.batch, case.training, case.precision, case.optimizer, measured.machine)
            if key not in best or measured.seconds < best[key].seconds:
                best[key] = measured
        readings = power_readings(connection)
    return FromStore(tuple(best.values()), kinds, tuple(readings), tuple(stamps))


def measured_of(run: TimedRun) -> Measured | None:
    """None where no step was timed, the shapes are not known, or torch.compile made other operations of them."""
    seconds = [length * SECOND for length in computed_ns(run.steps)]
    if not seconds or not run.ops or min(seconds) <= 0 or "compile=True" in (run.variant or "").split(" "):
        return None
    low, middle, high = quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    phase = {name: _phase(run.steps, name) for name in ("forward", "backward", "optimizer")}
    return Measured(
        case=case_of(run),
        machine=machine_name(run.device, run.device_kind, run.threads),
        seconds=middle,
        low=low,
        high=high,
        **phase,
        peak_bytes=run.peak_bytes,
        layer_seconds={key: value * SECOND for key, value in run.layer_ns.items()},
    )


def case_of(run: TimedRun) -> StepSpec:
    """What ran, under the name by which ``perfctl predict --model`` knows it."""
    name = model_name(run.workload, run.variant)
    training = run.mode == "train"
    return StepSpec(
        model=name,
        family=name.partition(":")[0],
        works=_works(name, run),
        batch=run.batch_size,
        training=training,
        precision=run.precision,
        optimizer=optimizer_of(run.ops) if training else "",
        parameters=_parameters(run.ops),
    )


def _works(name: str, run: TimedRun) -> tuple[Operation, ...]:
    """A family's point by its plan, as it is predicted; everything else by what was seen."""
    if run.workload == "families":
        with suppress(SpecError):
            return operations_of_plan(plan(name))
    return operations_of(run.ops, run.batch_size)


def model_name(workload: str, variant: str | None) -> str:
    """ "families" and its --model are the specification alone, torchvision's have their prefix; else workload and variant."""
    options = dict(word.partition("=")[::2] for word in (variant or "").split(" "))
    if workload == "families":
        from perfctl.workloads.families import MODEL

        options.setdefault("model", MODEL)
    if workload in ("families", "torchvision_infer") and set(options) <= {"model", ""} and "model" in options:
        return _in_full(options["model"]) if workload == "families" else f"torchvision:{options['model']}"
    return f"{workload} {variant}" if variant else workload


def _in_full(spec: str) -> str:
    """As the plan writes it, so that equal networks have equal names; one that this version does not know as it is."""
    try:
        return plan(spec).spec
    except SpecError:
        return spec


def optimizer_of(ops: Iterable[OpShape]) -> str:
    """ "sgd", "momentum" or "adam" by how many values it keeps for each parameter; "" without one."""
    states = [state_values(op) for op in ops if op.direction == "optimizer" and op.op.startswith("optim.")]
    return BY_STATE[min(max(states), 2)] if states else ""


def _parameters(ops: Sequence[OpShape]) -> int:
    """Elements that the optimizer steps; without one those of every layer."""
    stepped = sum(prod(shape) for op in ops if op.direction == "optimizer" for shape in op.outputs[:1] if shape)
    return stepped or sum({op.layer: op.parameters for op in ops if op.parameters}.values())


def _phase(steps: Sequence[Step], name: str) -> float | None:
    lengths = [step.duration_ns * SECOND for step in steps if step.phase == name and step.duration_ns is not None]
    return median(lengths) if lengths else None
