"""Take the folder of one of perfctl's own runs (run.json, the workload's record, the profiler's
report) into the database, like a report: see ``reports``.

Of a run over several ranks, rank 0 is the run. The other ranks' records (and torch's traces) become
runs of their own with a variant that names the rank, so that nothing adds them up.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from perfctl import parsers
from perfctl.orchestrator.counts.kernels.replays import (
    add_unreplayed_repeats_to_report,
    list_exclusion_gaps,
    parse_first_pass,
)
from perfctl.orchestrator.ingest.context import IngestSettings, IngestTask, RunStored
from perfctl.orchestrator.ingest.find import hash_file_or_folder
from perfctl.orchestrator.ingest.reports import (
    add_rank_to_variant,
    make_path_relative_to_store,
    write_run_and_derive,
)
from perfctl.orchestrator.launch.profilers.ncu import find_user_launch_filters
from perfctl.orchestrator.launch.sweep.folders import (
    LAUNCHES,
    RECORD_NAME,
    read_json_object,
    read_run_record,
)
from perfctl.orchestrator.pool import Tell
from perfctl.orchestrator.store.write import RunFacts, WrittenRun
from perfctl.parsers import ReportError
from perfctl.records.report import Device, Gap, Report
from perfctl.records.run import make_parameter

_RANK = re.compile(r"(workload|report)(?=\.).*?\.rank(\d+)\.")
_ONE_REPORT = ("nsys", "ncu", "dlprof")
"""Profilers that put all ranks into one report, unless each rank was told to start its
own (--under)."""
_LEFT_OVER = (".nsys-rep", ".qdrep", ".qdstrm", ".tmp")
"""What a rank's profiler leaves beside the file that is read."""
_FACTS = (
    "profiler",
    "status",
    "workload",
    "batch_size",
    "exit_code",
    "reason",
    "started_at",
    "duration_ns",
)
"""Fields of run.json that are columns of run."""
_AGAIN = "Run this batch size again"


@dataclass(frozen=True, slots=True)
class _RankFiles:
    """What a rank left; ``report`` only where each rank has one of its own (torch)."""

    number: int
    record: Path | None = None
    report: Path | None = None


def ingest_run_folder(
    connection: sqlite3.Connection, task: IngestTask, settings: IngestSettings, tell: Tell
) -> None:
    """Take what run.json, the workload's record and the profiler's report say together, and each
    other rank as a run beside it.

    A report that cannot be read makes the run partial (its workload's own record is kept) or
    failed. Raises ReportError.
    """
    folder = task.source.path
    record = _read_run_record_or_raise(folder)
    # The record of the run that a replay put in place: transcribed and synthetic figures stay so
    # when they are replayed.
    first = (
        (read_json_object(folder / RECORD_NAME) or {}) if record["origin"] == "recorded" else record
    )
    is_made_up = first.get("origin") in ("transcribed", "synthetic")
    other_ranks = _find_files_of_other_ranks(folder)
    facts = RunFacts(
        **{name: record[name] for name in _FACTS},
        origin=str(first["origin"] if is_made_up else record["origin"]),
        command=tuple(record["commands"][0]) if record["commands"] else (),
        variant=record.get("variant"),
        parameters=tuple(
            make_parameter(name, value)
            for name, value in _get_dict_or_empty(record, "parameters").items()
        ),
        world_size=other_ranks[-1].number + 1 if other_ranks else None,
    )
    workload, report = folder / "workload.json", record["artifact"]
    rank = _RankFiles(
        0, workload if workload.is_file() else None, folder / report if report else None
    )
    rank_facts = _add_report_path_and_hash(facts, rank, settings.store)
    known_run = settings.known.get(rank_facts.artifact_sha256 or "")
    if known_run is None:
        first_rank = _read_rank_zero(folder, rank, rank_facts, record, first)
        written = write_run_and_derive(
            connection, task, settings, *first_rank, rank.record or folder, keep_other_runs=False
        )
        other_ranks = other_ranks if written.new else []
    else:
        written = WrittenRun(known_run, new=False)
        stored = settings.ranks.get(known_run)
        other_ranks = [
            other_rank
            for other_rank in other_ranks
            if stored is not None and other_rank.number not in stored.runs
        ]
        task = replace(task, sweep=stored.sweep if stored is not None else task.sweep)
    ranks = []
    for other in other_ranks:
        first_rank = _read_nonzero_rank(
            other, _add_report_path_and_hash(facts, other, settings.store), record
        )
        path = other.record or folder
        ranks.append(write_run_and_derive(connection, task, settings, *first_rank, path).run_id)
    tell(RunStored(task.source.shown, written, ranks=tuple(ranks)))


def _add_report_path_and_hash(facts: RunFacts, rank: _RankFiles, store: Path) -> RunFacts:
    if rank.report is None:
        return facts
    path, digest = make_path_relative_to_store(rank.report, store), hash_file_or_folder(rank.report)
    return replace(facts, artifact=path, artifact_sha256=digest)


def _read_run_record_or_raise(folder: Path) -> dict[str, Any]:
    """Return run.json, checked: anybody may have written it. Raises ReportError where a field
    is missing."""
    record = read_run_record(folder)
    if record is None:
        raise ReportError(folder, "perfctl", "run.json is missing or incomplete", _AGAIN)
    for name in (*_FACTS, "origin", "artifact", "commands"):
        if name not in record:
            raise ReportError(folder, "perfctl", f"run.json lacks {name}", _AGAIN)
    return record


def _find_files_of_other_ranks(folder: Path) -> list[_RankFiles]:
    """Return the ranks beside the first, by the files that carry their number: workload.rank1.json,
    report.rank1.pt.trace.json.gz."""
    ranks: dict[int, _RankFiles] = {}
    for path in sorted(folder.iterdir()):
        if (match := _RANK.match(path.name)) is None or not path.is_file():
            continue
        number = int(match[2])
        rank = ranks.setdefault(number, _RankFiles(number))
        is_source = path.suffix == ".ncu-rep" and path.with_suffix(".csv").exists()
        if match[1] == "workload":
            ranks[number] = replace(rank, record=path)
        elif path.suffix not in _LEFT_OVER and not is_source:
            ranks[number] = replace(rank, report=path)
    return [ranks[number] for number in sorted(ranks)]


def _read_rank_zero(
    folder: Path,
    rank: _RankFiles,
    facts: RunFacts,
    record: Mapping[str, Any],
    original_record: Mapping[str, Any],
) -> tuple[RunFacts, Report | None]:
    """Read rank 0, or the only one, with what lies beside its report. Raises ReportError."""
    facts, report = _parse_and_merge_rank_files(rank, facts)
    if report is None:
        return facts, None
    if report.batch_size not in (None, facts.batch_size):
        sizes = f"batch size {facts.batch_size}, but the workload ran {report.batch_size}"
        raise ReportError(folder, "perfctl", f"run.json says {sizes}", _AGAIN)
    report = add_samples_environment_and_gaps(report, folder, record, original_record)
    if facts.rank is not None and _has_shared_rank_report(record):
        reason = (
            f"{facts.profiler} wrote one report for all {facts.world_size} ranks, so times and "
            "counts of a layer are sums over the ranks. perfctl torch separates ranks"
        )
        report = replace(report, gaps=(*report.gaps, Gap("rank", "ambiguous", reason)))
        if facts.status == "ok":
            facts = replace(facts, status="partial", reason=reason)
    return facts, report


def _read_nonzero_rank(
    rank: _RankFiles, facts: RunFacts, record: Mapping[str, Any]
) -> tuple[RunFacts, Report | None]:
    """Read a rank that is a run of its own, partial where its record or its trace cannot be
    read."""
    gaps = []
    if rank.report is None and facts.profiler in _ONE_REPORT:
        only_first = any("--under-rank" in command for command in record["commands"][:1])
        reason = f"{facts.profiler} wrote one report for all ranks; rank 0 has it"
        if only_first:
            reason = (
                f"only rank 0 ran under {facts.profiler}, the default (use --ranks all to count "
                "every rank)"
            )
        elif not _has_shared_rank_report(record):
            reason = f"{facts.profiler} left no report for this rank; see stderr.log"
            facts = replace(facts, status="partial", reason=facts.reason or reason)
        state = "not_collected" if only_first else "not_available"
        gaps.append(Gap("kernel", state, reason))
    try:
        facts, report = _parse_and_merge_rank_files(rank, facts)
    except ReportError as error:
        variant = add_rank_to_variant(facts.variant, rank.number, facts.world_size)
        failed = replace(
            facts, status="failed", reason=str(error), variant=variant, rank=rank.number
        )
        return failed, None
    return facts, report and replace(report, gaps=(*report.gaps, *gaps))


def _parse_and_merge_rank_files(
    rank: _RankFiles, facts: RunFacts
) -> tuple[RunFacts, Report | None]:
    """Parse and merge the files of a rank; the facts with its number, and with what went wrong.
    Raises ReportError."""
    record = parsers.parse(rank.record) if rank.record is not None else None
    report = None
    if rank.report is not None and rank.report != rank.record:
        try:
            report = parsers.parse(rank.report, single_operators=False)
        except ReportError as error:
            reason = f"{facts.reason}; {error}" if facts.reason else str(error)
            facts = replace(facts, status="partial" if record else "failed", reason=reason)
    merged = (
        _merge_profiler_report_with_record(report, record)
        if report and record
        else report or record
    )
    if merged is not None and (report is None or record is None):
        merged = replace(merged, tool=facts.profiler)
    if facts.world_size is not None:
        variant = facts.variant or (record or report or facts).variant
        variant = add_rank_to_variant(variant, rank.number, facts.world_size)
        facts = replace(facts, variant=variant, rank=rank.number)
        numbers = {"rank": str(rank.number), "world_size": str(facts.world_size)}
        merged = merged and replace(merged, environment={**merged.environment, **numbers})
    return facts, merged


def _merge_profiler_report_with_record(report: Report, workload_record: Report) -> Report:
    """Return a profiler's report completed by what the profiled process itself recorded."""
    version = workload_record.environment.get("torch") if report.tool == "torch" else None
    facts = ("workload", "variant", "batch_size", "mode", "precision")
    field_names = ("rank", "world_size", "host", "phase", "effective_batch")
    return replace(
        report,
        tool_version=report.tool_version or version,
        devices=_merge_devices(report.devices, workload_record.devices),
        environment={**report.environment, **workload_record.environment},
        steps=workload_record.steps or report.steps,
        memory=(*report.memory, *workload_record.memory),
        summaries=(*report.summaries, *workload_record.summaries),
        ops=workload_record.ops,
        gaps=(*report.gaps, *workload_record.gaps),
        **{name: getattr(workload_record, name) for name in facts},
        **{
            name: value
            for name in field_names
            if (value := getattr(workload_record, name)) is not None
        },
    )


def _merge_devices(reported: tuple[Device, ...], used: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return the device that the workload used, with facts that only the profiler knew, and the
    others behind it."""
    if not used or not reported:
        return used or reported
    first = used[0]
    same = next(
        (device for device in reported if (device.kind, device.index) == (first.kind, first.index)),
        None,
    )
    if same is None:
        return used
    missing = {
        field: value for field, value in asdict(same).items() if getattr(first, field) is None
    }
    return (replace(first, **missing), *(device for device in reported if device is not same))


def add_samples_environment_and_gaps(
    report: Report, folder: Path, record: Mapping[str, Any], original_record: Mapping[str, Any]
) -> Report:
    """Return the report with the samples and the environment of its folder, and with gaps for
    launches that the profiler's filters excluded. ``record``: run.json; ``original_record``: that
    of the replayed run."""
    gaps = []
    if (path := folder / "samples.csv").is_file():
        try:
            samples = parsers.parse(path)
        except ReportError as error:
            gaps.append(Gap("sample", "unreadable", str(error)))
        else:
            report = replace(
                report,
                samples=samples.samples,
                summaries=(*report.summaries, *samples.summaries),
                gaps=(*report.gaps, *samples.gaps),
                diagnostics=(*report.diagnostics, *samples.diagnostics),
            )
    if record["profiler"] == "ncu":
        report, gap = _add_ncu_repeated_launches(report, folder / LAUNCHES, original_record)
        gaps += [gap] if gap is not None else []
    recorded_environment = {
        str(name): str(value) for name, value in _get_dict_or_empty(record, "environment").items()
    }
    if recorded_environment.get("ncu:not_replayed"):
        reason = (
            "ncu skipped kernels that wait for other GPUs (such as NCCL), because their replay "
            "would never end"
        )
        gaps.append(Gap("collective", "not_collected", reason))
    if layers := ", ".join(
        map(str, _get_dict_or_empty(original_record, "profiler_options").get("layers") or ())
    ):
        recorded_environment["ncu:layers"] = layers
        # launches that the profiler was told to leave out are not zero
        reason = f"ncu counted only in the layers of --layer: {layers}"
        gaps.append(Gap("kernel", "not_collected", reason))
    environment = {**report.environment, **recorded_environment}
    return replace(report, environment=environment, gaps=(*report.gaps, *gaps))


def _add_ncu_repeated_launches(
    report: Report, first_pass_file: Path, original_record: Mapping[str, Any]
) -> tuple[Report, Gap | None]:
    """Return ncu's report with the launches that repeat another, and with a note of the filters
    that left launches out which it still lacks."""
    gap, has_all, is_planned = None, False, False
    if first_pass_file.is_file():
        try:
            added = add_unreplayed_repeats_to_report(
                report, parse_first_pass(read_json_object(first_pass_file) or {})
            )
        except (KeyError, TypeError, ValueError):
            reason = (
                f"{first_pass_file.name} cannot be read, so perfctl omits the launches "
                f"that repeat another one"
            )
            gap = Gap("counter", "unreadable", reason)
        else:
            has_all = added.gaps == report.gaps
            report, is_planned = added, True
    argv = _get_first_command(original_record)
    options, filters = (
        _get_dict_or_empty(original_record, "profiler_options"),
        find_user_launch_filters(argv),
    )
    excluded = "--nvtx-exclude"
    if options.get("launches") == "distinct" and excluded not in str(options.get("extra")):
        note = f"{excluded} of --launches distinct"
        filters = tuple(
            note if option == excluded else option
            for option in filters
            if not (option == excluded and has_all)
        )
        if not is_planned:
            ranges = (value for argument, value in pairwise(argv) if argument == excluded)
            report = replace(report, gaps=(*report.gaps, *list_exclusion_gaps(ranges)))
    if filters:
        environment = {**report.environment, "ncu:left_out": ", ".join(filters)}
        report = replace(report, environment=environment)
    return report, gap


def _get_first_command(record: Mapping[str, Any]) -> list[str]:
    commands = record.get("commands")
    arguments = commands[0] if isinstance(commands, list) and commands else ()
    return list(map(str, arguments)) if isinstance(arguments, list) else []


def _get_dict_or_empty(record: Mapping[str, Any], field: str) -> dict[str, Any]:
    value = record.get(field)
    return value if isinstance(value, dict) else {}


def _has_shared_rank_report(record: Mapping[str, Any]) -> bool:
    """Return whether the profiler put all ranks into one report."""
    is_own = any("--under" in command for command in record["commands"][:1])
    return record["profiler"] in _ONE_REPORT and not is_own
