"""The option --peaks: published roofs, or measured ones kept in a small file beside the store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.errors import PerfctlError, UsageError

if TYPE_CHECKING:
    from perfctl.orchestrator.analyse.peaks import Peaks
    from perfctl.parsers.stored import Run

Option = Annotated[
    str,
    typer.Option("--peaks", help="Roofs: published, or measured (once on this machine, then kept beside the store)."),
]


def roofs(asked: str, store: Path, runs: Sequence[Run]) -> list[Peaks]:
    """Measured peaks for the devices of ``runs``; none for ``published``. Measures where the file has none of them."""
    if asked not in ("published", "measured"):
        raise UsageError(f"--peaks: '{asked}' is not known", "Say published or measured")
    if asked == "published":
        return []
    from perfctl.orchestrator.analyse.peaks import read_measured

    file = store.with_suffix(".peaks.json")
    kept = _kept(file)
    names = {run.device.name or run.device.kind for run in runs if run.device}
    if not any(record.get("device") in names for record in kept):
        kept = _add(file, kept, _measure(runs))
    try:
        return [read_measured(record) for record in kept]
    except (KeyError, TypeError, ValueError) as error:
        raise PerfctlError(f"{file}: not what perfctl wrote ({error})", "Delete it to measure again") from error


def for_cpu(store: Path) -> dict[str, Any]:
    """What this machine's CPU reaches, as ``perfctl.workloads.peaks`` says it. Measured once and kept beside the store."""
    from perfctl.orchestrator.launch.environment import host_facts
    from perfctl.orchestrator.launch.peaks import measure

    file = store.with_suffix(".peaks.json")
    kept = _kept(file)
    name = host_facts().get("cpu")
    mine = [record for record in kept if record.get("kind") == "cpu" and record.get("device") == name]
    if not mine:
        console.note("measuring what this CPU reaches, about 20 s")
        mine = [measure("cpu")]
        _add(file, kept, mine[0])
    return mine[-1]


def records_beside(store: Path) -> list[dict[str, Any]]:
    """What was measured beside this store; none where nothing was. Raises PerfctlError for a damaged file."""
    return _kept(store.with_suffix(".peaks.json"))


def _add(file: Path, kept: list[dict[str, Any]], record: dict[str, Any]) -> list[dict[str, Any]]:
    """The records with a new one in the place of an old one of its device, written."""
    from perfctl.orchestrator.cli.report import write_whole

    now = [*(old for old in kept if old.get("device") != record.get("device")), record]
    write_whole(file, json.dumps(now, indent=1) + "\n")
    console.note(f"Wrote {file}: delete it to measure again")
    return now


def _measure(runs: Sequence[Run]) -> dict[str, Any]:
    from perfctl.orchestrator.launch.peaks import measure

    on_gpu = any(run.device is not None and run.device.kind == "gpu" for run in runs)
    device = options.device("auto") if on_gpu else "cpu"
    if on_gpu and device == "cpu":
        raise PerfctlError(
            "--peaks measured: the runs are of a GPU and there is none here",
            "Run it on the machine they were measured on, or leave --peaks out for the published figures",
        )
    console.note("measuring peaks, about 20 s")
    return measure(device)


def _kept(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise PerfctlError(f"{file}: not a whole file ({error})", "Delete it to measure again") from error
    if not isinstance(found, list) or not all(isinstance(record, dict) for record in found):
        raise PerfctlError(f"{file}: not what perfctl wrote", "Delete it to measure again")
    return found
