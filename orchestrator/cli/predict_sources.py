"""What a prediction rests on beside the model: the device, the runs of the store, and what was fitted to them.

Fits are kept beside the store (``perfctl-fit.json``) under a hash of the runs they were made from, as plain numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.analyse import machines
from perfctl.orchestrator.analyse.boards import meant
from perfctl.orchestrator.analyse.machines import Device, DeviceError
from perfctl.orchestrator.analyse.work_records import Machine, Measured
from perfctl.orchestrator.cli import console
from perfctl.orchestrator.errors import PerfctlError, ToolMissing, UsageError

if TYPE_CHECKING:
    from perfctl.orchestrator.analyse.step_records import StepFitted
    from perfctl.orchestrator.store.read_timed import PowerReading

FORMAT = "perfctl fits 1"
FIT_FILE = "perfctl-fit.json"
FEWEST = 20
"""Steps from which a fit is tried."""
Group = tuple[str, str, bool]
"""(machine, precision, training): what one fit is of."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the store knows."""

    measured: tuple[Measured, ...] = ()
    power: tuple[PowerReading, ...] = ()
    fits: tuple[StepFitted, ...] = ()
    notes: tuple[str, ...] = ()
    """Why there is no fit where there are runs."""


def find_device(name: str | None, spec: str | None, store: Path, threads: int | None = None) -> Device:
    """The device of ``--device`` or ``--device-spec``; ``cpu`` is this machine's, measured once and kept beside the store.

    threads: of a CPU; None for as many as torch takes.

    Raises UsageError for a name that is not known, with the nearest ones.
    """
    if (name is None) == (spec is None):
        said = "no device" if name is None else "--device and --device-spec together"
        raise UsageError(said, "Say --device A100, --device cpu, or --device-spec name=...,fp32_tflops=...")
    if threads is not None and (name or "").lower() != "cpu":
        raise UsageError("--threads without --device cpu: they are a CPU's", "Leave it out")
    try:
        if spec is not None:
            return machines.by_hand(spec)
        assert name is not None
        if name.lower() == "cpu":
            return _this_cpu(store, threads)
        if name.lower() in ("cuda", "gpu"):
            raise UsageError(
                f"--device: '{name}' names no product", "Say which: --device A100; docs/devices.md has them"
            )
        return machines.named(name)
    except DeviceError as error:
        raise UsageError(str(error), error.remedy) from error


def _this_cpu(store: Path, threads: int | None) -> Device:
    import psutil

    from perfctl.orchestrator.cli.peaks import for_cpu

    record = for_cpu(store, threads)
    try:
        return machines.of_measured(record, psutil.virtual_memory().total)
    except (KeyError, TypeError, ValueError) as error:
        raise PerfctlError(
            f"{store.with_suffix('.peaks.json')}: not what perfctl wrote ({error})", "Delete it to measure again"
        ) from error


def known_of(store: Path, device: Device) -> Known:
    """Runs of the store and fits to those of the device's kind; nothing where there is no store."""
    from perfctl.orchestrator.cli.measured import from_store

    there = from_store(store)
    groups: dict[Group, list[Measured]] = defaultdict(list)
    for one in there.measured:
        if there.kinds[one.machine] == device.machine.kind:
            groups[(one.machine, one.case.precision, one.case.training)].append(one)
    worth = {key: group for key, group in groups.items() if len(group) >= FEWEST}
    others = tuple(_other_threads(device.machine.name, {name for name, _, _ in groups}))
    if not worth:
        most = max(map(len, groups.values()), default=0)
        few = (f"{store} has at most {most} timed steps of one device and precision: a fit needs {FEWEST}",)
        return Known(there.measured, there.power, notes=(*others, *few) if most else ())
    fits, notes = _fits(store, worth, there.stamps, device)
    return Known(there.measured, there.power, fits, (*others, *notes))


def _other_threads(asked: str, names: Set[str]) -> Iterator[str]:
    """That runs of the store are of this very CPU with another number of threads, and how to ask for these."""
    cpu = asked.rpartition(", ")[0]
    for name in sorted(names - {asked}):
        if machines.threads_of(cpu, asked) and (threads := machines.threads_of(cpu, name)):
            yield f"the store has runs on {name}, which is another machine here: --threads {threads} asks for it"


def _fits(
    store: Path, groups: Mapping[Group, list[Measured]], stamps: Sequence[str], device: Device
) -> tuple[tuple[StepFitted, ...], tuple[str, ...]]:
    """From the file beside the store where its runs are the same, else made anew and kept."""
    from perfctl import __version__

    machine_of = {key: _machine(key[0], device, store) for key in groups}
    token = hashlib.sha256(
        json.dumps(
            [__version__, sorted(stamps), [repr(item) for item in sorted(machine_of.items(), key=repr)]]
        ).encode()
    ).hexdigest()
    file = store.parent / FIT_FILE
    kept = _kept(file, token)
    if kept is not None:
        return kept
    fits, notes = [], []
    for key, machine in machine_of.items():
        name, precision, training = key
        said = f"{len(groups[key])} steps measured on {name}, {precision}, {'training' if training else 'inference'}"
        if machine is None:
            notes.append(
                f"{said}: not fitted, for its peaks are not known here (--device cpu --threads N measures a CPU's)"
            )
            continue
        try:
            fits.append(_fit(said, groups[key], machine))
        except (UsageError, ToolMissing) as error:
            notes.append(f"{said}: {error}")
    _keep(file, token, fits, notes)
    return tuple(fits), tuple(notes)


def _fit(name: str, records: Sequence[Measured], machine: Machine) -> StepFitted:
    from perfctl.orchestrator.analyse.step_fit import fit_steps

    console.note(f"fitting {name}")
    return fit_steps(name, records, machine)


def _machine(name: str, device: Device, store: Path) -> Machine | None:
    """Of a device that runs were measured on: the one that is asked for, a board of the table, or one measured before."""
    from perfctl.orchestrator.cli.peaks import records_beside

    if name == device.machine.name:
        return device.machine
    boards = meant(name)
    if len(boards) == 1:
        return machines.of_board(boards[0])
    measured = (machines.of_measured(record).machine for record in records_beside(store))
    return next((machine for machine in measured if machine.name == name), None)


def _kept(file: Path, token: str) -> tuple[tuple[StepFitted, ...], tuple[str, ...]] | None:
    """None where there is no file, or one of other runs, or one that cannot be read: then it is made anew."""
    from perfctl.orchestrator.analyse.step_records import from_json

    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["format"] != FORMAT or found["runs"] != token:
            return None
        return tuple(map(from_json, found["fits"])), tuple(map(str, found["notes"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _keep(file: Path, token: str, fits: Sequence[StepFitted], notes: Sequence[str]) -> None:
    from perfctl.orchestrator.analyse.step_records import to_json
    from perfctl.orchestrator.cli.report import write_whole

    record: dict[str, Any] = {
        "format": FORMAT,
        "runs": token,
        "fits": [to_json(fit) for fit in fits],
        "notes": list(notes),
    }
    try:
        write_whole(file, json.dumps(record) + "\n")
    except PerfctlError as error:
        console.warning(f"{error.message}; the fit is made again next time")


def power_of(known: Known, device: Device, model: str, said: float | None) -> tuple[float, str] | None:
    """(W of one GPU, where that comes from): said, measured with this model, measured with others, the data sheet's."""
    from perfctl.orchestrator.cli.measured import model_name

    if said is not None:
        return said, "as said"
    mine = [one for one in known.power if machines.machine_name(one.device, "gpu") == device.machine.name]
    same = [one for one in mine if one.workload is not None and model_name(one.workload, one.variant) == model]
    chosen = same or mine
    if chosen:
        watts = sum(one.watts * one.readings for one in chosen) / sum(one.readings for one in chosen)
        what = "of this model" if same else "of other models"
        return watts, f"measured in {len(chosen)} runs {what}"
    if device.power_w is not None:
        return device.power_w, "board power of the data sheet, which is the most it draws"
    return None
