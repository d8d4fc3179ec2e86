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
    from perfctl.orchestrator.counts.hardware.peaks import DevicePeaks
    from perfctl.orchestrator.predict.measurements import StoreMeasurements
    from perfctl.orchestrator.predict.predict import Evidence
    from perfctl.records.run import Run

Note = Callable[[str], None]
"""Hears what is being done."""


def _ignore_note(text: str) -> None: ...


def measure_roofline_peaks_if_selected(
    peaks_source: str, store: Path, runs: Sequence[Run], note: Note = _ignore_note
) -> list[DevicePeaks]:
    """Return measured peaks for the devices of ``runs``, or none if ``peaks_source`` is
    "published".

    Raises UsageError for another ``peaks_source``, PerfctlError if they cannot be measured or read.
    """
    if peaks_source not in ("published", "measured"):
        raise UsageError(
            f"invalid value '{peaks_source}' for `peaks`", "Choose published or measured"
        )
    if peaks_source == "published":
        return []
    from perfctl.orchestrator.counts.hardware.peaks import parse_measured_peaks
    from perfctl.orchestrator.launch.machine.peaks import read_or_measure_run_peaks

    records = read_or_measure_run_peaks(store, runs, note)
    with _convert_damaged_peaks_to_error(store):
        return [parse_measured_peaks(record) for record in records]


def find_or_measure_device(
    name: str | None,
    spec: str | None,
    store: Path,
    threads: int | None = None,
    note: Note = _ignore_note,
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

        from perfctl.orchestrator.launch.machine.peaks import read_or_measure_cpu_peaks

        record = read_or_measure_cpu_peaks(store, threads, note)
        with _convert_damaged_peaks_to_error(store):
            return machines.build_measured_device(record, psutil.virtual_memory().total)
    if name is not None and name.lower() in ("cuda", "gpu"):
        remedy = "For example `device` A100"
        raise UsageError(f"`device`: '{name}' matches several GPU models", remedy)
    try:
        return (
            machines.parse_device_spec(spec)
            if spec is not None
            else machines.find_device(name or "")
        )
    except machines.DeviceError as error:
        raise UsageError(str(error), error.remedy) from error


@contextmanager
def _convert_damaged_peaks_to_error(store: Path) -> Iterator[None]:
    """In the block, a record of the file beside the store that is damaged raises PerfctlError."""
    from perfctl.orchestrator.launch.machine.peaks import get_peaks_file

    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{get_peaks_file(store)}: perfctl did not write this file ({error})"
        raise PerfctlError(problem, "Delete the file to measure again") from error


def read_measurements(store: Path) -> StoreMeasurements:
    """Return what the runs of a store say; nothing if there is no store. Raises StoreError if it is
    damaged."""
    from perfctl.orchestrator.predict.measurements import (
        StoreMeasurements,
        collect_fastest_step_measurements,
    )
    from perfctl.orchestrator.store import database
    from perfctl.orchestrator.store.timed_runs import (
        read_mean_step_power_per_run,
        read_unprofiled_timed_runs,
    )

    if not store.exists():
        return StoreMeasurements()
    with database.open_store_for_reading(store) as connection:
        return collect_fastest_step_measurements(
            read_unprofiled_timed_runs(connection), read_mean_step_power_per_run(connection)
        )


def build_evidence_for_devices(
    store: Path, devices: Sequence[Device], note: Note = _ignore_note
) -> Evidence:
    """Return the runs of the store, and fits to those on the devices."""
    from perfctl.orchestrator.predict.measurements import build_prediction_evidence

    return build_prediction_evidence(read_measurements(store), devices, store, note)


def build_evidence_for_all_devices(store: Path) -> tuple[Evidence, tuple[Device, ...]]:
    """Return what the store knows, and every device: the table's, and this machine's CPU if the
    store has runs on it."""
    from perfctl.orchestrator.counts.hardware import machines
    from perfctl.orchestrator.launch.machine.doctor import collect_host_facts
    from perfctl.orchestrator.predict.measurements import build_prediction_evidence

    devices = [
        machines.Device(
            machines.build_board_machine(board),
            f"published figures of the {board.gpu.name}, dense",
            board,
        )
        for board in machines.BOARDS
    ]
    measurements = read_measurements(store)
    cpu = collect_host_facts().get("cpu") or ""
    threads = Counter(
        number
        for run in measurements.measured
        if (number := machines.parse_machine_name_thread_count(cpu, run.machine)) is not None
    )
    for number, _ in threads.most_common(1):  # as most of its runs had; without any, none measured
        devices.append(find_or_measure_device("cpu", None, store, number))
    return build_prediction_evidence(measurements, devices, store), tuple(devices)
