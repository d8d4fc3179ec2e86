"""Measure this machine's peaks in a separate process, which loads torch, and keep them in a small
file beside the store."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from perfctl.orchestrator.errors import PerfctlError
from perfctl.orchestrator.files import write_text
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.machine.doctor import collect_host_facts
from perfctl.orchestrator.launch.sweep.options import choose_cpu_or_cuda
from perfctl.records.run import Run

ASKED = "threads_asked"
"""Key of a record that was measured with a number of CPU threads that the user gave."""


def run_peaks_measurement(device: str, *, threads: int | None = None) -> dict[str, Any]:
    """Return the record that ``perfctl.workloads.run.peaks`` prints for ``device`` (cpu or cuda).
    ``threads``: of a CPU; None for torch's default. Raises PerfctlError with the last line of
    its stderr."""
    argv = [sys.executable, "-m", "perfctl.workloads.run.peaks", "--device", device, "--json"]
    remedy = "Use the published peaks instead"
    try:
        code, output, err = tools.run_with_time_limit(
            argv if threads is None else [*argv, "--threads", str(threads)], 300.0
        )
        if code == 0:
            return msgspec.json.decode("\n".join(output), type=dict[str, Any])
    except subprocess.TimeoutExpired as error:
        raise PerfctlError("measuring the peaks took longer than 300 s", remedy) from error
    except msgspec.MsgspecError as error:
        raise PerfctlError("measuring the peaks printed no result", remedy) from error
    reason = err[-1] if err else f"exit code {code}"
    raise PerfctlError(f"measuring the peaks failed: {reason}", remedy)


def read_or_measure_run_peaks(
    store: Path, runs: Sequence[Run], note: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return the records of peaks that are kept beside the store, with those of the devices of
    ``runs``, which are measured now if need be (about 20 s).

    Raises PerfctlError if the file is damaged, or if the runs are of a GPU that is not here.
    """
    records = read_stored_peaks(store)
    of_machine = [record for record in records if ASKED not in record]  # peaks of the whole machine
    names = {run.device.name or run.device.kind for run in runs if run.device}
    if any(record.get("device") in names for record in of_machine):
        return of_machine
    on_gpu = any(run.device is not None and run.device.kind == "gpu" for run in runs)
    if on_gpu and choose_cpu_or_cuda("auto") != "cuda":
        raise PerfctlError(
            "`peaks` measured: the runs used a GPU, and this machine has no GPU",
            "Measure on the machine of the runs, or omit `peaks` to use the published peaks",
        )
    note("measuring peaks, about 20 s")
    device = "cuda" if on_gpu else "cpu"
    return [*of_machine, _measure_and_store_peaks(store, records, device, None, note)]


def read_or_measure_cpu_peaks(
    store: Path, threads: int | None, note: Callable[[str], None]
) -> dict[str, Any]:
    """Return the record of this machine's CPU with so many threads (None: as many as torch uses),
    measured once and then kept beside the store."""
    records = read_stored_peaks(store)
    name = collect_host_facts().get("cpu")
    alike = [
        record
        for record in records
        if (record.get("kind"), record.get("device")) == ("cpu", name)
        and (ASKED not in record if threads is None else record.get("threads") == threads)
    ]
    if alike:
        return alike[-1]
    how = f" with {threads} thread{'s' * (threads != 1)}" if threads is not None else ""
    note(f"measuring the peaks of this CPU{how}, about 20 s")
    return _measure_and_store_peaks(store, records, "cpu", threads, note)


def get_peaks_file(store: Path) -> Path:
    """Return where the measured peaks of a store are kept."""
    return store.with_suffix(".peaks.json")


def read_stored_peaks(store: Path) -> list[dict[str, Any]]:
    """Return the peaks that were measured beside this store. Raises PerfctlError if the file is
    damaged."""
    file = get_peaks_file(store)
    if not file.exists():
        return []
    remedy = "Delete the file to measure again"
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[dict[str, Any]])
    except msgspec.ValidationError as error:
        raise PerfctlError(f"{file}: perfctl did not write this file", remedy) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise PerfctlError(f"{file}: incomplete file ({error})", remedy) from error


def _measure_and_store_peaks(
    store: Path,
    stored_records: list[dict[str, Any]],
    device: str,
    threads: int | None,
    note: Callable[[str], None],
) -> dict[str, Any]:
    """Return a new record, which replaces one of the same device and threads beside the store."""
    record = run_peaks_measurement(device, threads=threads)
    if threads is not None:
        record[ASKED] = threads
    key = (record.get("device"), threads)
    other_records = [old for old in stored_records if (old.get("device"), old.get(ASKED)) != key]
    file = get_peaks_file(store)
    write_text(file, json.dumps([*other_records, record], indent=1) + "\n", force=True)
    note(f"Wrote {file}: delete it to measure again")
    return record
