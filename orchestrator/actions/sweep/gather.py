"""Take what the tasks of arrays left into one store, and name what is missing.

Each run is one transaction and is recognised by its report, so a gather that was killed, or that runs twice, gives the
same rows. A task that left no run becomes a failed run, which a later whole run replaces.
"""

from __future__ import annotations

import re
import shlex
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from perfctl.orchestrator.actions.ingest import array
from perfctl.orchestrator.actions.ingest.in_child import outcomes
from perfctl.orchestrator.actions.ingest.run import take_run
from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.actions.sweep.slurm import ask_queue
from perfctl.orchestrator.actions.wall import memory
from perfctl.orchestrator.errors import PartlyDone, UsageError
from perfctl.orchestrator.launch.cluster import status
from perfctl.orchestrator.launch.cluster.plan import Plan, is_plan, read_plan
from perfctl.orchestrator.launch.sweep.folders import read_json, read_run_record
from perfctl.orchestrator.store import clean_text, database
from perfctl.orchestrator.store.write import RunFacts, SweepFacts, Written, write_run

_RUN = re.compile(r"b(\d+)(?:\.(\d+))?(\.part)?")
_SAME = """SELECT 1 FROM run JOIN sweep ON sweep.id = run.sweep_id
WHERE sweep.name = :sweep AND sweep.kind = 'sweep'
AND profiler = :profiler AND batch_size = :batch_size AND """
_KNOWN = f"{_SAME} started_at IS :started_at AND status = :status AND reason IS :reason"
"""Query for a run of the sweep that is this very attempt, by its start, status and reason."""
_BETTER = f"{_SAME} (status <> 'failed' OR reason IS :reason)"
"""Query for a run of the sweep that is whole or partial, or that failed for the same reason."""


@dataclass(slots=True)
class Gathered:
    """What has been done so far."""

    new: int = 0
    """Runs that the store did not have."""
    known: int = 0
    """Runs that it had."""
    wrong: list[str] = field(default_factory=list)
    """One line a run that failed, is partial, missing or cannot be read."""
    parts: list[str] = field(default_factory=list)
    """One line for each task of an ingest that did not take in all of its reports."""
    lacking: list[str] = field(default_factory=list)
    """One line for each part of a study that is missing or not complete."""
    under_way: int = 0
    """Tasks that are still queued or running."""
    finish: list[tuple[str, ...]] = field(default_factory=list)
    """Words after perfctl of what makes the page of each study."""
    in_store: bool = True
    """Whether anything was gathered into the store; the parts of a study have stores of their own."""
    repeat_in: Path | None = None
    """An array whose status says how to repeat what is not whole; None where sweeps were gathered without one."""

    def check(self) -> None:
        """Raises PartlyDone when something is missing or not whole."""
        if self.parts and not self.wrong:
            tasks = f"{len(self.parts)} {'task' if len(self.parts) == 1 else 'tasks'}"
            raise PartlyDone(f"{tasks} did not take in all reports; the others are in the store")
        folder = self.repeat_in
        again = f"perfctl slurm status {shlex.quote(str(folder))} says how to repeat it" if folder else None
        if self.wrong:
            runs = f"{len(self.wrong)} runs are" if len(self.wrong) > 1 else "1 run is"
            raise PartlyDone(f"{runs} missing or incomplete; the report names them", again)
        if self.lacking:
            parts = f"{len(self.lacking)} parts are" if len(self.lacking) > 1 else "1 part is"
            raise PartlyDone(f"{parts} missing or incomplete", again)


def gather(
    folders: Iterable[Path], store: Path, messages: Messages = SILENT, *, memory_limit: str | int | None = None
) -> Gathered:
    """Take every run below ``folders`` into ``store``: folders of arrays, of sweeps, or that hold some.

    ``memory_limit``: as in ``ingest``; a run whose report takes more is a failed one.

    Raises UsageError when a folder holds nothing of perfctl's; what is missing or not whole is in the answer.
    """
    folders, limit = list(folders), memory.bytes_of(memory_limit)
    arrays = [folder for folder in folders if array.is_array(folder)]
    plans, sweeps = _found(folder for folder in folders if folder not in arrays)
    done = Gathered(in_store=bool(arrays or sweeps or any(plan.sweeps() for plan in plans)))
    done.finish = [plan.finish for plan in plans if plan.finish]
    done.repeat_in = plans[0].folder if plans else None
    states = {plan.folder: _states(plan, done, messages) for plan in plans}
    if not done.in_store:
        return done
    with database.writing(store) as connection:
        for folder in arrays:
            new, known, wrong = array.merge_parts(connection, folder, store)
            done.new += new
            done.known += known
            done.parts += wrong
    stand_ins = _take_runs([run for folder in sweeps for run in _runs(folder)], store, done, limit)
    with database.writing(store) as connection:
        for facts, failed in stand_ins:
            _put_in_place_of(connection, facts, failed, done)
        for plan in plans:
            _name_missing(connection, plan, states[plan.folder], done)
    return done


def _found(folders: Iterable[Path]) -> tuple[list[Plan], list[Path]]:
    """The plans at ``folders``, and the folders of all sweeps, those of the plans too; each once."""
    plans: dict[Path, Plan] = {}
    sweeps: dict[Path, Path] = {}
    for given in folders:
        places = list(_places(given)) if given.is_dir() else []
        if not places:
            raise UsageError(f"{given}: nothing of a sweep is there", "Name perfctl-runs, or a folder in it")
        for place in places:
            inside = [place]
            if is_plan(place):
                plan = plans[place.resolve()] = read_plan(place)
                inside = [plan.sweep_folder(name) for name in plan.sweeps()]
            sweeps |= {sweep.resolve(): sweep for sweep in inside if sweep.is_dir()}
    return list(plans.values()), list(sweeps.values())


def _places(folder: Path) -> Iterator[Path]:
    one = is_plan(folder) or _runs(folder)
    for place in [folder] if one else sorted(folder.iterdir()):
        if one or (place.is_dir() and (is_plan(place) or _runs(place))):
            yield place


def _runs(sweep: Path) -> list[Path]:
    """Folders of runs that have a record, by batch size, the oldest attempt first, what was cut off last."""
    named = [(match, path) for path in sweep.iterdir() if (match := _RUN.fullmatch(path.name))]
    kept = [(match, path) for match, path in named if read_run_record(path) is not None]
    return [path for _, path in sorted(kept, key=lambda one: (int(one[0][1]), bool(one[0][3]), int(one[0][2] or 1)))]


def _take_runs(runs: Sequence[Path], store: Path, done: Gathered, limit: int) -> list[tuple[SweepFacts, RunFacts]]:
    """Take runs into the store, in a child; a failed run to put in the place of each that cannot be read."""
    records = {run: read_run_record(run) or {} for run in runs}

    def taken(connection: sqlite3.Connection, run: Path, messages: Messages) -> Written | None:
        facts, record = _facts(run.parent), records[run]
        if record.get("status") != "ok" and _is_stored(connection, _KNOWN, facts, record):
            return None
        return take_run(connection, run, facts, store=store, again=False)

    stand_ins: list[tuple[SweepFacts, RunFacts]] = []
    for outcome in outcomes(runs, taken, store, limit, name=str):
        record = records[outcome.item]
        label = f"{record.get('profiler')} at batch {record.get('batch_size')}"
        if record.get("status") != "ok":
            done.wrong.append(f"{label} is {record.get('status')}: {record.get('reason')}")
        if outcome.why is None:
            is_new = outcome.written is not None and outcome.written.new
            done.new += is_new
            done.known += not is_new
            continue
        done.wrong.append(f"{label}: {outcome.why}")
        profiler, origin = str(record.get("profiler") or "unknown"), str(record.get("origin") or "measured")
        workload, batch = record.get("workload"), record.get("batch_size")
        failed = RunFacts(profiler, "failed", origin, workload, batch, reason=outcome.why)
        stand_ins.append((_facts(outcome.item.parent), failed))
    return stand_ins


def _facts(sweep: Path) -> SweepFacts:
    said = read_json(sweep / "sweep.json") or {}
    return SweepFacts(str(said.get("name") or sweep.name), "sweep", said.get("command"), said.get("host"))


def _is_stored(connection: sqlite3.Connection, query: str, sweep: SweepFacts, run: Mapping[str, Any]) -> bool:
    asked = dict.fromkeys(("profiler", "batch_size", "started_at", "status", "reason")) | clean_text.of_row(run)
    return connection.execute(query, {**asked, "sweep": sweep.name}).fetchone() is not None


def _states(plan: Plan, done: Gathered, messages: Messages) -> list[status.TaskState]:
    """How far the plan's tasks are. Parts of a study that are not complete are named, what is under way is counted."""
    found = status.states(plan, ask_queue(plan, messages))
    done.under_way += sum(state.state in (status.WAITING, status.RUNNING) for state in found)
    done.lacking += [
        f"{state.task}: {state.said}" for state in found if state.task.runs is None and state.state != status.WHOLE
    ]
    return found


def _name_missing(
    connection: sqlite3.Connection, plan: Plan, states: Sequence[status.TaskState], done: Gathered
) -> None:
    """A failed run for each task of a sweep that left none, with the reason; none where the store has something better."""
    for task, reason in status.reasons(states).items():
        runs = task.runs
        if runs is None or any(read_run_record(run) is not None for run in plan.runs(task)):
            continue
        done.wrong.append(reason)
        folder = plan.sweep_folder(runs.sweep)
        said = read_json(folder / "sweep.json") or {}
        profiler = str(said.get("profiler") or runs.profiler)
        origin = "recorded" if runs.profiler == "replay" else "measured"
        run = RunFacts(profiler, "failed", origin, plan.workload, runs.batch_size, reason=reason)
        _put_in_place_of(connection, _facts(folder), run, done)


def _put_in_place_of(connection: sqlite3.Connection, facts: SweepFacts, run: RunFacts, done: Gathered) -> None:
    """A failed run that only says why there is no other, unless the store has something better."""
    if not _is_stored(connection, _BETTER, facts, asdict(run)):
        write_run(connection, facts, run, None, family=lambda name: None)
        done.new += 1
