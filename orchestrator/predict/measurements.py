"""What the runs of a store tell a prediction: measured steps, measured power, and fits to
the steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from math import prod
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, NamedTuple

from perfctl.orchestrator.counts.hardware import machines
from perfctl.orchestrator.counts.hardware.machines import Device, Machine, format_machine_name
from perfctl.orchestrator.errors import ToolMissing, UsageError
from perfctl.orchestrator.estimate.flops.formulas import count_parameter_sized_states
from perfctl.orchestrator.predict.fit import fit_step_time_model, list_step_ns_without_data_loading
from perfctl.orchestrator.predict.operations import (
    StepMeasurement,
    StepSpec,
    list_forward_operations_per_sample,
    list_plan_forward_operations,
)
from perfctl.orchestrator.predict.predict import Evidence, PowerDraw
from perfctl.records.timed_run import PowerReading, TimedRun
from perfctl.workloads.models.plan import plan_model
from perfctl.workloads.spec import SpecError

if TYPE_CHECKING:
    from perfctl.orchestrator.predict.fit import StepFit
    from perfctl.records.paper import OpShape

FEWEST = 20
"""Steps from which a fit is tried."""
Group = tuple[str, str, bool]
"""(machine, precision, training): what one fit is of."""


SECOND = 1e-9
BY_STATE = ("sgd", "momentum", "adam")
"""By how many values an optimizer keeps for each parameter: the one that stands for all that keep
as many."""


class StoreMeasurements(NamedTuple):
    """What the runs of a store say about time and power."""

    measured: tuple[StepMeasurement, ...] = ()
    """Of several runs of one step on one machine only the fastest: a disturbance makes a run
    slower, never faster."""
    kinds: Mapping[str, str] = {}
    """Name of a machine -> gpu or cpu."""
    power: tuple[PowerReading, ...] = ()


def collect_fastest_step_measurements(
    runs: Iterable[TimedRun], power: Sequence[PowerReading]
) -> StoreMeasurements:
    """Return what these runs say, the fastest run of each step on each machine."""
    best: dict[tuple[object, ...], StepMeasurement] = {}
    kinds = {}
    for run in runs:
        measured = convert_run_to_step_measurement(run)
        if measured is None:
            continue
        kinds[measured.machine] = run.device_kind
        case = measured.case
        key = (
            case.model,
            case.batch,
            case.training,
            case.precision,
            case.optimizer,
            measured.machine,
        )
        best[key] = min(best.get(key, measured), measured, key=lambda step: step.seconds)
    return StoreMeasurements(tuple(best.values()), kinds, tuple(power))


def convert_run_to_step_measurement(run: TimedRun) -> StepMeasurement | None:
    """None when no step was timed, the shapes are not known, or torch.compile replaced
    the operations."""
    seconds = [length * SECOND for length in list_step_ns_without_data_loading(run.steps)]
    if (
        not seconds
        or not run.ops
        or min(seconds) <= 0
        or "compile=True" in (run.variant or "").split(" ")
    ):
        return None
    low, middle, high = (
        quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    )
    phases: dict[str, list[float]] = {"forward": [], "backward": [], "optimizer": []}
    for step in run.steps:
        if step.phase in phases and step.duration_ns is not None:
            phases[step.phase].append(step.duration_ns * SECOND)
    name, works = format_run_model_name(run.workload, run.variant), None
    # from its plan, as it is predicted; every other model from what was traced
    if run.workload == "families":
        with suppress(SpecError):
            works = list_plan_forward_operations(plan_model(name))
    stepped = sum(
        prod(shape)
        for op in run.ops
        if op.direction == "optimizer"
        for shape in op.outputs[:1]
        if shape
    )
    training = run.mode == "train"
    return StepMeasurement(
        case=StepSpec(
            model=name,
            family=name.partition(":")[0],
            works=works
            if works is not None
            else list_forward_operations_per_sample(run.ops, run.batch_size),
            batch=run.batch_size,
            training=training,
            precision=run.precision,
            optimizer=infer_optimizer_name(run.ops) if training else "",
            # What the optimizer updates; without an optimizer, those of every layer.
            parameters=stepped
            or sum({op.layer: op.parameters for op in run.ops if op.parameters}.values()),
        ),
        machine=format_machine_name(run.device, run.device_kind, run.threads),
        seconds=middle,
        low=low,
        high=high,
        **{phase: median(lengths) if lengths else None for phase, lengths in phases.items()},
        peak_bytes=run.peak_bytes,
        layer_seconds={key: value * SECOND for key, value in run.layer_ns.items()},
    )


def format_run_model_name(workload: str, variant: str | None) -> str:
    """Return the specification for a family's network, "torchvision:NAME" for torchvision, else
    workload and variant."""
    options = dict(part.partition("=")[::2] for part in (variant or "").split(" "))
    if workload == "families":
        from perfctl.workloads.models.families import MODEL

        options.setdefault("model", MODEL)
    if workload not in ("families", "torchvision_infer") or not {"model"} <= options.keys() <= {
        "model",
        "",
    }:
        return f"{workload} {variant}" if variant else workload
    if workload == "torchvision_infer":
        return f"torchvision:{options['model']}"
    with suppress(SpecError):  # as the plan writes it, so that equal networks have equal names
        return plan_model(options["model"]).spec
    return options["model"]


def infer_optimizer_name(ops: Iterable[OpShape]) -> str:
    """ "sgd", "momentum" or "adam" by how many values it keeps for each parameter; ""
    without one."""
    states = [
        count_parameter_sized_states(op)
        for op in ops
        if op.direction == "optimizer" and op.op.startswith("optim.")
    ]
    return BY_STATE[min(max(states), 2)] if states else ""


def build_prediction_evidence(
    store_measurements: StoreMeasurements,
    devices: Sequence[Device],
    store_path: Path,
    report_progress: Callable[[str], None] = lambda text: None,
) -> Evidence:
    """Return the runs of the store, and fits to those on the devices; ``report_progress`` hears of
    each fit."""
    machine_of = {device.machine.name: device.machine for device in devices}
    groups: dict[Group, list[StepMeasurement]] = defaultdict(list)
    for record in store_measurements.measured:
        if record.machine in machine_of:
            groups[record.machine, record.case.precision, record.case.training].append(record)
    cpus = {name for name, kind in store_measurements.kinds.items() if kind == "cpu"}
    notes = [
        note
        for name, machine in machine_of.items()
        if machine.kind == "cpu"
        for note in _list_thread_mismatch_notes(name, cpus)
    ]
    large = {key: group for key, group in groups.items() if len(group) >= FEWEST}
    fits, reasons = _fit_machine_groups(large, machine_of, report_progress)
    if groups and not large:
        most = max(map(len, groups.values()))
        notes.append(
            f"{store_path} has at most {most} timed steps for one device and precision; a fit "
            f"needs "
            f"{FEWEST}"
        )
    power = tuple(
        PowerDraw(
            format_machine_name(reading.device, "gpu"),
            format_run_model_name(reading.workload, reading.variant)
            if reading.workload is not None
            else None,
            reading.watts,
            reading.readings,
        )
        for reading in store_measurements.power
    )
    return Evidence(store_measurements.measured, fits, power=power, notes=(*notes, *reasons))


def _list_thread_mismatch_notes(requested: str, cpu_machine_names: Set[str]) -> Iterator[str]:
    cpu = requested.rpartition(", ")[0]
    for name in sorted(cpu_machine_names - {requested}):
        if machines.parse_machine_name_thread_count(cpu, requested) and (
            threads := machines.parse_machine_name_thread_count(cpu, name)
        ):
            yield (
                f"the results database has runs on {name}, which counts as another machine. Run "
                f"'perfctl predict --threads {threads}' to use them"
            )


def _fit_machine_groups(
    groups: Mapping[Group, list[StepMeasurement]],
    machine_of: Mapping[str, Machine],
    report_progress: Callable[[str], None],
) -> tuple[tuple[StepFit, ...], tuple[str, ...]]:
    """Return (fits, why there is none of a group)."""
    fits, notes = [], []
    for (name, precision, training), group in groups.items():
        label = (
            f"{len(group)} steps measured on {name}, {precision}, "
            f"{'training' if training else 'inference'}"
        )
        report_progress(f"fitting {label}")
        try:
            fits.append(fit_step_time_model(label, group, machine_of[name]))
        except UsageError as error:
            notes.append(f"{label}: {error}")
        except ToolMissing as error:
            return (), (str(error),)
    return tuple(fits), tuple(notes)
