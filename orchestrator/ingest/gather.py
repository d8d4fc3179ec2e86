"""Take what the tasks of arrays left into one database.

Each run is one transaction and is recognised by its report, so a gather that was killed, or that
runs twice, gives the same rows. A task that left no run becomes a failed run, which a later whole
run replaces.
"""

from __future__ import annotations

import shlex
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import starmap
from pathlib import Path
from typing import Any

from perfctl.orchestrator import memory
from perfctl.orchestrator.errors import PartlyDone, UsageError
from perfctl.orchestrator.ingest import array
from perfctl.orchestrator.ingest.context import IngestSettings, ReportFailed
from perfctl.orchestrator.ingest.context import IngestTask as IngestTask
from perfctl.orchestrator.ingest.expect import (
    parse_formulas_and_formula_files,
    store_expectations_and_yield_problems,
)
from perfctl.orchestrator.ingest.find import ReportSource
from perfctl.orchestrator.ingest.ingest import ingest_run_folders
from perfctl.orchestrator.launch.cluster import status
from perfctl.orchestrator.launch.cluster.plan import (
    JobArrayPlan,
    holds_job_array,
    read_job_array_plan,
)
from perfctl.orchestrator.launch.sweep.folders import (
    SweepSetting,
    parse_run_folder_name,
    read_json_object,
    read_run_record,
    read_sweep_setting,
)
from perfctl.orchestrator.store import database
from perfctl.orchestrator.store.read import PARAMETERS
from perfctl.orchestrator.store.write import RunFacts, SweepFacts, write_run
from perfctl.records.run import make_parameter
from perfctl.redact import mask_and_truncate_row

_SAME = f"""SELECT 1 FROM run JOIN sweep ON sweep.id = run.sweep_id
WHERE sweep.name = :sweep AND sweep.kind = 'sweep'
AND profiler = :profiler AND {PARAMETERS} IS :parameters AND """
_KNOWN = f"{_SAME} started_at IS :started_at AND status = :status AND reason IS :reason"
"""Query for a run of the sweep that is this very attempt, by its start, status and reason."""
_BETTER = f"{_SAME} (status <> 'failed' OR reason IS :reason)"
"""Query for a run of the sweep that is whole or partial, or that failed for the same reason."""

_MEASURED = """SELECT run.id FROM run JOIN sweep ON sweep.id = run.sweep_id
WHERE sweep.name = ? AND status <> 'failed'"""
"""Query for the runs of a sweep that have a report."""


@dataclass(slots=True)
class Gathered:
    """What has been done so far."""

    store: Path
    report: Path | None = None
    """The page of the database; null: nothing was gathered into it."""
    new_runs: int = 0
    """Runs that the database did not have."""
    existing_runs: int = 0
    """Runs that it had."""
    problems: list[str] = field(default_factory=list)
    """One line a run that failed, is partial, missing or cannot be read."""
    incomplete_ingests: list[str] = field(default_factory=list)
    """One line for each task of an ingest that did not take in all of its reports."""
    incomplete_parts: list[str] = field(default_factory=list)
    """One line for each part of a study that is missing or not complete."""
    unfinished: int = 0
    """Tasks that are still queued or running."""
    finish: list[tuple[str, ...]] = field(default_factory=list)
    """Words after perfctl of what makes the page of each study."""
    is_stored: bool = True
    """Whether anything was gathered into the database; the parts of a study have stores of
    their own."""
    repeat_folder: Path | None = None
    """An array whose status says how to repeat what is not whole; None if sweeps were gathered
    without one."""

    def check(self) -> None:
        """Raises PartlyDone when something is missing or not whole."""
        if self.incomplete_ingests and not self.problems:
            count = len(self.incomplete_ingests)
            tasks = f"{count} {'task' if count == 1 else 'tasks'}"
            raise PartlyDone(
                f"{tasks} did not ingest all reports; the other reports are in the database"
            )
        remedy = None
        if self.repeat_folder is not None:
            folder = shlex.quote(str(self.repeat_folder))
            remedy = f"perfctl slurm status {folder} shows how to repeat it"
        if self.problems:
            runs = f"{len(self.problems)} runs are" if len(self.problems) > 1 else "1 run is"
            raise PartlyDone(f"{runs} missing or incomplete; the report lists them", remedy)
        if self.incomplete_parts:
            parts = (
                f"{len(self.incomplete_parts)} parts are"
                if len(self.incomplete_parts) > 1
                else "1 part is"
            )
            raise PartlyDone(f"{parts} missing or incomplete", remedy)


def gather_runs_into_store(
    folders: Iterable[Path],
    store: Path,
    report_progress: Callable[[str], None] = lambda text: None,
    *,
    memory_limit: str | int | None = None,
) -> Gathered:
    """Take every run below ``folders`` into ``store``: folders of arrays, of sweeps, or that
    hold some.

    ``memory_limit``: as in ``ingest``; a run whose report takes more is a failed one.

    Raises UsageError when a folder holds nothing of perfctl's; what is missing or not whole is in
    the answer.
    """
    folders, limit = list(folders), memory.parse_memory_limit(memory_limit)
    arrays = [folder for folder in folders if array.is_ingest_array_folder(folder)]
    plans, sweeps = _find_array_plans_and_sweeps(
        folder for folder in folders if folder not in arrays
    )
    done = Gathered(store, is_stored=bool(arrays or sweeps or any(plan.sweeps() for plan in plans)))
    done.finish = [plan.finish for plan in plans if plan.finish]
    done.repeat_folder = plans[0].folder if plans else None
    states = [(plan, status.collect_array_status(plan, report_progress).tasks) for plan in plans]
    for state in (state for _, tasks in states for state in tasks):
        done.unfinished += state.state in (status.WAITING, status.RUNNING)
        if state.task.runs is None and state.state != status.COMPLETE:
            done.incomplete_parts.append(f"{state.task}: {state.reason}")
    if not done.is_stored:
        return done
    with database.open_store_for_writing(store) as connection:
        for folder in arrays:
            new, existing, wrong = array.merge_task_databases(connection, folder, store)
            done.new_runs += new
            done.existing_runs += existing
            done.incomplete_ingests += wrong
    stand_ins = _ingest_runs_and_list_unreadable(
        [run for folder in sweeps for run in _list_run_folders(folder)], store, done, limit
    )
    with database.open_store_for_writing(store) as connection:
        for plan, tasks in states:
            stand_ins += _make_failed_runs_for_missing(plan, tasks, done)
        for facts, failed in stand_ins:  # unless the store has something better
            setting = SweepSetting(
                failed.batch_size, tuple(parameter[:2] for parameter in failed.parameters)
            )
            if not _has_stored_run_matching_query(
                connection, _BETTER, facts, asdict(failed), setting
            ):
                write_run(connection, facts, failed, None)
                done.new_runs += 1
    for plan in (plan for plan in plans if plan.expect):
        with database.open_store_for_writing(store) as connection:
            rows = [row for name in plan.sweeps() for row in connection.execute(_MEASURED, [name])]
        formulas = parse_formulas_and_formula_files(plan.expect)
        for line in store_expectations_and_yield_problems(
            store, [run_id for (run_id,) in rows], formulas
        ):
            report_progress(line)
    return done


def _find_array_plans_and_sweeps(folders: Iterable[Path]) -> tuple[list[JobArrayPlan], list[Path]]:
    """Return the plans at ``folders``, and the folders of all sweeps, those of the plans too;
    each once."""
    plans: dict[Path, JobArrayPlan] = {}
    sweeps: dict[Path, Path] = {}
    for folder in folders:
        inside = list(_list_array_and_sweep_folders(folder)) if folder.is_dir() else []
        if not inside:
            raise UsageError(f"{folder}: no sweep found", "Name perfctl-runs, or a folder in it")
        for path in inside:
            sweep_folders = [path]
            if holds_job_array(path):
                plan = plans[path.resolve()] = read_job_array_plan(path)
                sweep_folders = [plan.get_sweep_folder(name) for name in plan.sweeps()]
            sweeps |= {sweep.resolve(): sweep for sweep in sweep_folders if sweep.is_dir()}
    return list(plans.values()), list(sweeps.values())


def _list_array_and_sweep_folders(folder: Path) -> Iterator[Path]:
    """Yield the folder if it is that of an array or a sweep, else those of them in it."""
    if holds_job_array(folder) or _list_run_folders(folder):
        yield folder
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir() and (holds_job_array(path) or _list_run_folders(path)):
            yield path


def _list_run_folders(sweep: Path) -> list[Path]:
    """Return the folders of runs that have a record, by setting, the oldest attempt first, what
    was cut off last."""
    runs = [
        (name[0].sort_key, name[1] == "part", int(name[1].replace("part", "") or 1), path)
        for path in sweep.iterdir()
        if (name := parse_run_folder_name(path.name)) and read_run_record(path) is not None
    ]
    return [path for *_, path in sorted(runs)]


def _ingest_runs_and_list_unreadable(
    runs: Sequence[Path], store: Path, gathered: Gathered, memory_limit_bytes: int
) -> list[tuple[SweepFacts, RunFacts]]:
    """Take runs into the database, in workers. Return a failed run to put in the place of each that
    cannot be read."""
    records = {run: read_run_record(run) or {} for run in runs}
    tasks = []
    with database.open_store_for_writing(store) as connection:
        for run, record in records.items():
            facts = _read_sweep_facts(run.parent)
            is_known = _has_stored_run_matching_query(
                connection, _KNOWN, facts, record, read_sweep_setting(record)
            )
            if record.get("status") == "ok" or not is_known:
                tasks.append(IngestTask(ReportSource(run, run), facts))
    outcomes = {
        task.source.path: outcome
        for task, outcome in ingest_run_folders(
            tasks, IngestSettings(store, limit=memory_limit_bytes)
        )
    }
    stand_ins: list[tuple[SweepFacts, RunFacts]] = []
    for run, record in records.items():
        label = f"{record.get('profiler')} at {read_sweep_setting(record)}"
        if record.get("status") != "ok":
            gathered.problems.append(f"{label} is {record.get('status')}: {record.get('reason')}")
        outcome = outcomes.get(run)
        if not isinstance(outcome, ReportFailed):
            is_new = outcome is not None and outcome.written.new
            gathered.new_runs += is_new
            gathered.existing_runs += not is_new
            continue
        gathered.problems.append(f"{label}: {outcome.text}")
        failed = RunFacts(
            profiler=str(record.get("profiler") or "unknown"),
            status="failed",
            origin=str(record.get("origin") or "measured"),
            workload=record.get("workload"),
            batch_size=record.get("batch_size"),
            reason=outcome.text,
            parameters=tuple(starmap(make_parameter, read_sweep_setting(record).others)),
        )
        stand_ins.append((_read_sweep_facts(run.parent), failed))
    return stand_ins


def _make_failed_runs_for_missing(
    plan: JobArrayPlan, states: Sequence[status.TaskState], gathered: Gathered
) -> Iterator[tuple[SweepFacts, RunFacts]]:
    """Yield a failed run for each task of a sweep that left none, with the reason."""
    for task, reason in status.explain_failed_and_missing_tasks(states).items():
        runs = task.runs
        if runs is None or any(read_run_record(run) is not None for run in plan.runs(task)):
            continue
        gathered.problems.append(reason)
        folder = plan.get_sweep_folder(runs.sweep)
        profiler = str(
            (read_json_object(folder / "sweep.json") or {}).get("profiler") or runs.profiler
        )
        origin = "recorded" if runs.profiler == "replay" else "measured"
        failed = RunFacts(
            profiler,
            "failed",
            origin,
            plan.workload,
            runs.setting.batch,
            reason=reason,
            parameters=tuple(starmap(make_parameter, runs.setting.others)),
        )
        yield _read_sweep_facts(folder), failed


def _read_sweep_facts(sweep: Path) -> SweepFacts:
    record = read_json_object(sweep / "sweep.json") or {}
    name = str(record.get("name") or sweep.name)
    return SweepFacts(name, "sweep", record.get("command"), record.get("host"))


def _has_stored_run_matching_query(
    connection: sqlite3.Connection,
    query: str,
    sweep: SweepFacts,
    run: Mapping[str, Any],
    setting: SweepSetting,
) -> bool:
    keys = dict.fromkeys(("profiler", "started_at", "status", "reason"))
    parameters = ", ".join(map("=".join, sorted(setting.parameters.items()))) or None
    values = {name: value for name, value in mask_and_truncate_row(run).items() if name in keys}
    values = keys | values | {"sweep": sweep.name, "parameters": parameters}
    return connection.execute(query, values).fetchone() is not None
