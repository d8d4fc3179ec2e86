"""Peaks of the roofline: published ones, or measured ones that are kept in a small file beside
the store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.counts.hardware import machines
from perfctl.orchestrator.counts.hardware.machines import Device, DeviceError
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.events import SILENT, Messages
from perfctl.orchestrator.files import write_text
from perfctl.orchestrator.launch.sweep.options import resolve_device

if TYPE_CHECKING:
    from perfctl.orchestrator.counts.hardware.peaks import Peaks
    from perfctl.records.run import Run

ASKED = "threads_asked"
"""Key of a record that was measured with a number of CPU threads that the user gave."""


def roofs(kind: str, store: Path, runs: Sequence[Run], messages: Messages = SILENT) -> list[Peaks]:
    """Measured peaks for the devices of ``runs``, or none when ``kind`` is "published".

    Peaks that are not in the file beside the store are measured now, which takes about 20 s. Raises
    UsageError for another ``kind``, PerfctlError when the file is damaged or the runs are of a GPU
    that is not here.
    """
    if kind not in ("published", "measured"):
        raise UsageError(f"`peaks`: '{kind}' is not known", "Use published or measured")
    if kind == "published":
        return []
    from perfctl.orchestrator.counts.hardware.peaks import read_measured

    everything = records_beside(store)
    kept = [record for record in everything if ASKED not in record]  # peaks of the whole machine
    names = {run.device.name or run.device.kind for run in runs if run.device}
    if not any(record.get("device") in names for record in kept):
        kept.append(_measure(runs, messages))
        _add(file_beside(store), everything, kept[-1], messages)
    with as_peaks(store):
        return [read_measured(record) for record in kept]


@contextmanager
def as_peaks(store: Path) -> Iterator[None]:
    """For what reads a record of the file beside the store: raises PerfctlError where it
    is damaged."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{file_beside(store)}: not what perfctl wrote ({error})"
        raise PerfctlError(problem, "Delete it to measure again") from error


def for_cpu(store: Path, threads: int | None = None, messages: Messages = SILENT) -> dict[str, Any]:
    """Peaks of this machine's CPU, as ``perfctl.workloads.run.peaks`` records them; measured once,
    then kept.

    threads: how many CPU threads; None for as many as torch uses.
    """
    from perfctl.orchestrator.launch.machine.doctor import host_facts
    from perfctl.orchestrator.launch.machine.peaks import measure

    kept = records_beside(store)
    name = host_facts().get("cpu")
    mine = [
        record for record in kept if record.get("kind") == "cpu" and record.get("device") == name
    ]
    alike = [
        one
        for one in mine
        if (ASKED not in one if threads is None else one.get("threads") == threads)
    ]
    if not alike:
        said = f" with {threads} thread{'s' * (threads != 1)}" if threads is not None else ""
        messages.note(f"measuring the peaks of this CPU{said}, about 20 s")
        alike = [
            measure("cpu", threads=threads) | ({ASKED: threads} if threads is not None else {})
        ]
        _add(file_beside(store), kept, alike[0], messages)
    return alike[-1]


def file_beside(store: Path) -> Path:
    """Where the measured peaks of a store are kept."""
    return store.with_suffix(".peaks.json")


def records_beside(store: Path) -> list[dict[str, Any]]:
    """Peaks that were measured beside this store; empty when none were. Raises PerfctlError when
    the file is damaged."""
    file = file_beside(store)
    if not file.exists():
        return []
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise PerfctlError(
            f"{file}: not a whole file ({error})", "Delete it to measure again"
        ) from error
    if not isinstance(found, list) or not all(isinstance(record, dict) for record in found):
        raise PerfctlError(f"{file}: not what perfctl wrote", "Delete it to measure again")
    return found


def _add(
    file: Path, kept: list[dict[str, Any]], record: dict[str, Any], messages: Messages
) -> None:
    """Write the records; the new one replaces an old one of the same device and threads."""
    mine = (record.get("device"), record.get(ASKED))
    now = [*(old for old in kept if (old.get("device"), old.get(ASKED)) != mine), record]
    write_text(file, json.dumps(now, indent=1) + "\n")
    messages.note(f"Wrote {file}: delete it to measure again")


def _measure(runs: Sequence[Run], messages: Messages) -> dict[str, Any]:
    from perfctl.orchestrator.launch.machine.peaks import measure

    on_gpu = any(run.device is not None and run.device.kind == "gpu" for run in runs)
    if on_gpu and resolve_device("auto") != "cuda":
        problem = "`peaks` measured: the runs are of a GPU and there is none here"
        remedy = (
            "Measure on the machine that they ran on, or leave `peaks` out for the published "
            "figures"
        )
        raise PerfctlError(problem, remedy)
    messages.note("measuring peaks, about 20 s")
    return measure("cuda" if on_gpu else "cpu")


def find_device(
    name: str | None,
    spec: str | None,
    store: Path,
    threads: int | None = None,
    messages: Messages = SILENT,
) -> Device:
    """The device with this name or these peaks; "cpu" is this machine's, measured once and kept
    beside the store.

    threads: of a CPU; None for as many as torch uses.

    Raises UsageError for a name that is not known, with the nearest ones.
    """
    if (name is None) == (spec is None):
        said = "no device" if name is None else "`device` and `device_spec` together"
        raise UsageError(
            said, "Use `device` A100, `device` cpu, or `device_spec` name=...,fp32_tflops=..."
        )
    if threads is not None and (name or "").lower() != "cpu":
        raise UsageError("`threads` is for `device` cpu", "Leave it out")
    try:
        if spec is not None:
            return machines.by_hand(spec)
        assert name is not None
        if name.lower() == "cpu":
            import psutil

            record = for_cpu(store, threads, messages)
            with as_peaks(store):
                return machines.of_measured(record, psutil.virtual_memory().total)
        if name.lower() in ("cuda", "gpu"):
            remedy = "Use for instance `device` A100; docs/devices.md lists them"
            raise UsageError(f"`device`: '{name}' does not say which product", remedy)
        return machines.named(name)
    except DeviceError as error:
        raise UsageError(str(error), error.remedy) from error
