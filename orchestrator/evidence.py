"""What commands look up before they predict or draw a roofline: devices, peaks, and what the runs
of a store say about time and power."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from perfctl.orchestrator.errors import PerfctlError, UsageError

if TYPE_CHECKING:
    from perfctl.orchestrator.counts.hardware.machines import Device
    from perfctl.orchestrator.counts.hardware.peaks import Peaks
    from perfctl.orchestrator.predict.measurements import Measurements
    from perfctl.orchestrator.predict.predict import Evidence
    from perfctl.records.run import Run

Note = Callable[[str], None]
"""Hears what is being done."""


def _drop(text: str) -> None: ...


def roofs(kind: str, store: Path, runs: Sequence[Run], note: Note = _drop) -> list[Peaks]:
    """Return measured peaks for the devices of ``runs``, or none if ``kind`` is "published".

    Raises UsageError for another ``kind``, PerfctlError if they cannot be measured or read.
    """
    if kind not in ("published", "measured"):
        raise UsageError(f"invalid value '{kind}' for `peaks`", "Choose published or measured")
    if kind == "published":
        return []
    from perfctl.orchestrator.counts.hardware.peaks import read_measured
    from perfctl.orchestrator.launch.machine.peaks import measured_on_devices

    records = measured_on_devices(store, runs, note)
    with _as_perfctl_error(store):
        return [read_measured(record) for record in records]


def find_device(
    name: str | None,
    spec: str | None,
    store: Path,
    threads: int | None = None,
    note: Note = _drop,
) -> Device:
    """Return the device with this name or these peaks; "cpu" is this machine's, measured once with
    so many ``threads`` (None: as many as torch uses) and kept beside the store.

    Raises UsageError for a name that is not known, with the nearest ones.
    """
    from perfctl.orchestrator.counts.hardware import machines

    if (name is None) == (spec is None):
        problem = "no device" if name is None else "`device` and `device_spec` exclude each other"
        raise UsageError(
            problem, "Use `device` A100, `device` cpu, or `device_spec` name=...,fp32_tflops=..."
        )
    is_cpu = name is not None and name.lower() == "cpu"
    if threads is not None and not is_cpu:
        raise UsageError("`threads` needs `device` cpu", "Omit it")
    if is_cpu:
        import psutil

        from perfctl.orchestrator.launch.machine.peaks import measured_on_cpu

        record = measured_on_cpu(store, threads, note)
        with _as_perfctl_error(store):
            return machines.of_measured(record, psutil.virtual_memory().total)
    if name is not None and name.lower() in ("cuda", "gpu"):
        remedy = "For example `device` A100"
        raise UsageError(f"`device`: '{name}' matches several GPU models", remedy)
    try:
        return machines.by_hand(spec) if spec is not None else machines.find_device(name or "")
    except machines.DeviceError as error:
        raise UsageError(str(error), error.remedy) from error


@contextmanager
def _as_perfctl_error(store: Path) -> Iterator[None]:
    """In the block, a record of the file beside the store that is damaged raises PerfctlError."""
    from perfctl.orchestrator.launch.machine.peaks import file_beside

    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{file_beside(store)}: perfctl did not write this file ({error})"
        raise PerfctlError(problem, "Delete the file to measure again") from error


def read_measurements(store: Path) -> Measurements:
    """Return what the runs of a store say; nothing if there is no store. Raises StoreError if it is
    damaged."""
    from perfctl.orchestrator.predict.measurements import Measurements, measurements_of
    from perfctl.orchestrator.store import database
    from perfctl.orchestrator.store.timed_runs import power_readings, timed_runs

    if not store.exists():
        return Measurements()
    with database.reading(store) as connection:
        return measurements_of(timed_runs(connection), power_readings(connection))


def find_evidence(store: Path, devices: Sequence[Device], note: Note = _drop) -> Evidence:
    """Return the runs of the store, and fits to those on the devices."""
    from perfctl.orchestrator.predict.measurements import evidence_of

    return evidence_of(read_measurements(store), devices, store, note)


def store_and_devices(store: Path) -> tuple[Evidence, tuple[Device, ...]]:
    """Return what the store knows, and every device: the table's, and this machine's CPU if the
    store has runs on it."""
    from perfctl.orchestrator.counts.hardware import machines
    from perfctl.orchestrator.launch.machine.doctor import host_facts
    from perfctl.orchestrator.predict.measurements import evidence_of

    devices = [
        machines.Device(
            machines.of_board(board), f"published figures of the {board.gpu.name}, dense", board
        )
        for board in machines.BOARDS
    ]
    measurements = read_measurements(store)
    cpu = host_facts().get("cpu") or ""
    threads = Counter(
        number
        for run in measurements.measured
        if (number := machines.threads_of(cpu, run.machine)) is not None
    )
    for number, _ in threads.most_common(1):  # as most of its runs had; without any, none measured
        devices.append(find_device("cpu", None, store, number))
    return evidence_of(measurements, devices, store), tuple(devices)
