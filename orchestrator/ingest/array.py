"""Many reports as an array of Slurm jobs: each task takes a part of the files into a database of
its own, gather merges them.

The folder holds array.sbatch, gather.sbatch, ingest.json, and for each task files-N.txt, task-N.db,
task-N.log, and task-N.code when it has ended.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from perfctl.orchestrator import memory
from perfctl.orchestrator.errors import StoreError, UsageError
from perfctl.orchestrator.faults import isolate_unexpected_exception
from perfctl.orchestrator.ingest.context import NO_HINTS, UserHints
from perfctl.orchestrator.ingest.find import find_report_sources
from perfctl.orchestrator.ingest.ingest import find_name_batches_and_ranks
from perfctl.orchestrator.ingest.reports import make_path_relative_to_store
from perfctl.orchestrator.launch.cluster import script
from perfctl.orchestrator.launch.cluster.plan import JobArrayPlan, SlurmSiteSettings, Task
from perfctl.orchestrator.launch.sweep.folders import read_json_object, write_json_atomically
from perfctl.orchestrator.store import bulk, database, merge
from perfctl.orchestrator.store.write import SweepFacts, format_utc_now

_RECORD = "ingest.json"
_VERSION = 1
_FILES_A_TASK = 64
_MOST_TASKS = 32
"""By default."""


@dataclass(frozen=True, slots=True)
class RenderedArray:
    """Scripts and lists that were written."""

    plan: JobArrayPlan
    files: int


def write_ingest_job_array(
    paths: Sequence[Path],
    store: Path,
    site: SlurmSiteSettings,
    command: str,
    warn: Callable[[str], None],
    *,
    task_count: int | None = None,
    ingest_options: Sequence[str] = (),
    hints: UserHints = NO_HINTS,
) -> RenderedArray:
    """Write the scripts of an array below perfctl-runs. Needs no Slurm.

    ``ingest_options`` are words for each ``perfctl ingest``, ``hints`` their values. Raises
    UsageError where no report is found, where a name may say several batch sizes, and for an option
    of ``site`` that an ingest cannot have.
    """
    if site.image is not None or site.template is not None:
        raise UsageError("`image` and `template` work only for arrays of profilers", "Omit them")
    with find_report_sources(paths, memory.parse_memory_limit(None)) as findings:
        for entry in findings.entries:
            if isinstance(entry, str):
                warn(entry)
        sources = findings.list_report_sources()
        find_name_batches_and_ranks(sources, hints, None)
    names = [source.shown for source in sources]
    files = list(dict.fromkeys(_find_file_or_containing_archive(name).absolute() for name in names))
    if not files:
        raise UsageError(
            "no report was found", "Name report files, or folders and archives that contain them"
        )
    if strange := [file for file in files if "\n" in str(file)]:
        raise UsageError(f"the name of {strange[0].name!r} contains a line break", "Rename it")
    parts = _split_files_by_bytes(
        files, task_count or min(_MOST_TASKS, -(-len(files) // _FILES_A_TASK))
    )
    begun, host = format_utc_now(), os.uname().nodename
    digest = hashlib.sha256(os.fsencode("\n".join(map(str, files)) + begun)).hexdigest()[:8]
    folder = Path("perfctl-runs").absolute() / f"ingest-{digest}"
    numbered = tuple(
        Task(
            number,
            f"{len(part)} reports",
            ("ingest", "--files-from", str(folder / f"files-{number}.txt"), *ingest_options),
        )
        for number, part in enumerate(parts)
    )
    plan = JobArrayPlan(folder, f"{len(files)} reports", numbered, command, host)
    outputs = (store.absolute(), store.absolute().with_name("perfctl-report.html"))
    setting = script.JobScriptContext(outputs=outputs)
    texts = {
        plan.array_script: script.render_ingest_array_script(plan, site, setting, ingest_options),
        plan.gather_script: script.render_gather_script(plan, site, setting),
    }
    folder.mkdir(parents=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        path.chmod(0o755)
    for number, part in enumerate(parts):
        (folder / f"files-{number}.txt").write_bytes(
            b"".join(os.fsencode(file) + b"\n" for file in part)
        )
    sweep = SweepFacts(f"ingest {begun} {digest}", "ingest", command, host, begun)
    write_json_atomically(
        folder / _RECORD, {"perfctl_ingest": _VERSION, "tasks": len(parts), "sweep": asdict(sweep)}
    )
    return RenderedArray(plan, len(files))


def _find_file_or_containing_archive(name: Path) -> Path:
    """Return the archive that holds it, if there is one. Raises UsageError for what does not
    exist."""
    file = name
    while not file.exists():
        file = file.parent
    if file != name and file.is_dir():
        raise UsageError(f"{name}: file not found", "Check the path")
    return file


def _split_files_by_bytes(files: Sequence[Path], max_parts: int) -> list[list[Path]]:
    """Consecutive files, so that the parts in their order are all files in theirs; about equal
    in bytes."""
    sizes = [
        sum(file.stat().st_size for file in path.rglob("*"))
        if path.is_dir()
        else path.stat().st_size
        for path in files
    ]
    total, done = sum(sizes) + len(files), 0
    parts: list[list[Path]] = [[] for _ in range(min(max_parts, len(files)))]
    for file, size in zip(files, sizes, strict=True):
        parts[min(len(parts) - 1, done * len(parts) // total)].append(file)
        done += size + 1
    return [part for part in parts if part]


def is_ingest_array_folder(folder: Path) -> bool:
    """Whether the folder is that of an array of ingests."""
    return (folder / _RECORD).is_file()


def merge_task_databases(
    connection: sqlite3.Connection, folder: Path, store: Path
) -> tuple[int, int, list[str]]:
    """Merge the databases of all tasks that have ended; (new runs, runs that were there, what
    is missing).

    Each run is one transaction, and is recognised: a merge that was killed, or runs twice, gives
    the same rows.
    """
    record = read_json_object(folder / _RECORD)
    if record is None or record.get("perfctl_ingest") != _VERSION:
        raise UsageError(
            f"{folder / _RECORD} is damaged, or another version of perfctl wrote it",
            "Render the scripts again",
        )
    sweep, new, existing, wrong = SweepFacts(**record["sweep"]), 0, 0, []
    for task in range(int(record["tasks"])):
        part, code, log = (folder / f"task-{task}.{end}" for end in ("db", "code", "log"))
        exit_text = code.read_text().strip() if code.is_file() else None
        if exit_text is None or not part.is_file():
            wrong.append(
                f"task {task} has not finished or was killed: its reports are missing. See {log}"
            )
            continue
        if exit_text != "0":
            problem = (
                "some of its reports could not be read"
                if exit_text == "4"
                else f"the task ended with exit code {exit_text}"
            )
            wrong.append(f"task {task}: {problem}. See {log}")
        try:
            with database.open_store_for_writing(
                part
            ):  # of an older version, or not closed properly
                pass
        except StoreError as error:
            wrong.append(f"task {task}: {error}")
            continue
        damaged = partial(database.is_store_damaged, connection)
        with (
            isolate_unexpected_exception(part, wrong.append, is_store_damaged=damaged),
            bulk.attach_read_only(connection, part, merge.PART),
        ):
            for run in merge.list_attached_run_ids(connection):
                _, is_new = merge.copy_run_from_attached_database(
                    connection,
                    run,
                    sweep,
                    keep_failed_runs=True,
                    map_artifact_path=lambda name: make_path_relative_to_store(
                        folder / name, store
                    ),
                )
                new, existing = new + is_new, existing + (not is_new)
    return new, existing, wrong
