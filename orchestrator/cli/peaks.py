"""The option --peaks: published roofs, or measured ones kept in a small file beside the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfctl.orchestrator.cli import console
from perfctl.orchestrator.errors import PerfctlError, UsageError

if TYPE_CHECKING:
    from perfctl.orchestrator.analyse.peaks import Peaks
    from perfctl.parsers.stored import Run

Option = Annotated[
    str,
    typer.Option("--peaks", help="Roofs: published, or measured (once on this machine, then kept beside the store)."),
]


ASKED = "threads_asked"
"""Field of a record that was measured with a number of CPU threads that somebody named."""


def roofs(asked: str, store: Path, runs: Sequence[Run]) -> list[Peaks]:
    """Measured peaks for the devices of ``runs``; none for ``published``. Measures where the file has none of them."""
    if asked not in ("published", "measured"):
        raise UsageError(f"--peaks: '{asked}' is not known", "Say published or measured")
    if asked == "published":
        return []
    from perfctl.orchestrator.analyse.peaks import read_measured

    file = store.with_suffix(".peaks.json")
    everything = _kept(file)
    kept = [record for record in everything if ASKED not in record]  # roofs of the whole machine
    names = {run.device.name or run.device.kind for run in runs if run.device}
    if not any(record.get("device") in names for record in kept):
        measured = _measure(runs)
        _add(file, everything, measured)
        kept = [*kept, measured]
    try:
        return [read_measured(record) for record in kept]
    except (KeyError, TypeError, ValueError) as error:
        raise PerfctlError(f"{file}: not what perfctl wrote ({error})", "Delete it to measure again") from error


def for_cpu(store: Path, threads: int | None = None) -> dict[str, Any]:
    """What this machine's CPU reaches with so many threads (None: as many as torch takes), as ``perfctl.workloads.peaks``
    says it. Measured once and kept beside the store."""
    from perfctl.orchestrator.launch.environment import host_facts
    from perfctl.orchestrator.launch.peaks import measure

    file = store.with_suffix(".peaks.json")
    kept = _kept(file)
    name = host_facts().get("cpu")
    mine = [record for record in kept if record.get("kind") == "cpu" and record.get("device") == name]
    alike = [one for one in mine if (ASKED not in one if threads is None else one.get("threads") == threads)]
    if not alike:
        said = f" with {threads} thread{'s' * (threads != 1)}" if threads is not None else ""
        console.note(f"measuring what this CPU reaches{said}, about 20 s")
        alike = [measure("cpu", threads=threads) | ({ASKED: threads} if threads is not None else {})]
        _add(file, kept, alike[0])
    return alike[-1]


def records_beside(store: Path) -> list[dict[str, Any]]:
    """What was measured beside this store; none where nothing was. Raises PerfctlError for a damaged file."""
    return _kept(store.with_suffix(".peaks.json"))


def _add(file: Path, kept: list[dict[str, Any]], record: dict[str, Any]) -> None:
    """Write the records with a new one in the place of an old one of its device and threads."""
    import json

    from perfctl.orchestrator.cli.report import write_whole

    mine = (record.get("device"), record.get(ASKED))
    now = [*(old for old in kept if (old.get("device"), old.get(ASKED)) != mine), record]
    write_whole(file, json.dumps(now, indent=1) + "\n")
    console.note(f"Wrote {file}: delete it to measure again")


def _measure(runs: Sequence[Run]) -> dict[str, Any]:
    from perfctl.orchestrator.actions.sweep_options import resolve_device
    from perfctl.orchestrator.launch.peaks import measure

    on_gpu = any(run.device is not None and run.device.kind == "gpu" for run in runs)
    device = resolve_device("auto") if on_gpu else "cpu"
    if on_gpu and device == "cpu":
        raise PerfctlError(
            "--peaks measured: the runs are of a GPU and there is none here",
            "Run it on the machine they were measured on, or leave --peaks out for the published figures",
        )
    console.note("measuring peaks, about 20 s")
    return measure(device)


def _kept(file: Path) -> list[dict[str, Any]]:
    import json

    if not file.exists():
        return []
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise PerfctlError(f"{file}: not a whole file ({error})", "Delete it to measure again") from error
    if not isinstance(found, list) or not all(isinstance(record, dict) for record in found):
        raise PerfctlError(f"{file}: not what perfctl wrote", "Delete it to measure again")
    return found
