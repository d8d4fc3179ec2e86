"""Take the folder of one of perfctl's own runs into the store: run.json, the workload's record, the
profiler's report.

Of a run over several ranks, rank 0 is the run. The other ranks' records (and torch's traces) become
runs of their own with a variant that names the rank, so that nothing adds them up.

The rank of a report is read from its name; what of a job's communication nothing hides needs the
reports of all ranks.

Derived counts are the instructions of launches that no counter measured. Few reports have them, so
the analysis is loaded where a report does: it takes as long as all else that ingest loads.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl import parsers
from perfctl.orchestrator.actions.ingest.scan_file import sha256
from perfctl.orchestrator.analyse.flops.engine import estimate
from perfctl.orchestrator.analyse.kernels.names import family, recognise
from perfctl.orchestrator.analyse.kernels.repeats import read_first_pass, with_repeats
from perfctl.orchestrator.analyse.usage.ranks import with_exposed
from perfctl.orchestrator.launch.profilers.ncu import LAUNCHES
from perfctl.orchestrator.launch.profilers.replay import RECORD_NAME
from perfctl.orchestrator.launch.sweep.folders import read_json, read_run_record
from perfctl.orchestrator.store.write import RunFacts, SweepFacts, Written, find_artifact, write_run
from perfctl.records.paper import LayerCall
from perfctl.records.report import DerivedCount, Device, Feature, Gap, Report

if TYPE_CHECKING:
    from perfctl.orchestrator.analyse.derived.records import Derived
    from perfctl.records.run import Run


_IN_NAME = re.compile(r"(?<![a-z])rank[-_. ]?(\d{1,6})(?!\d)", re.IGNORECASE)
"""torchrun's own names ("rank3.pt.trace.json", "report.rank3.nsys-rep", "rank-34.Jul_15..."); hosts
and workers are none."""
_RANK = re.compile(r"(workload|report)(?=\.).*?\.rank(\d+)\.")
_ONE_REPORT = ("nsys", "ncu", "dlprof")
"""Profilers that put all ranks into one report, unless each rank was told to start its
own (--under)."""
_LEFT_OVER = (".nsys-rep", ".qdrep", ".qdstrm", ".tmp")
"""What a rank's profiler leaves beside the file that is read."""
_NEEDED = (
    *(
        "profiler",
        "status",
        "origin",
        "workload",
        "batch_size",
        "exit_code",
        "reason",
        "started_at",
        "duration_ns",
    ),
    *("artifact", "commands"),
)
"""Fields that every run.json has."""
_AGAIN = "Run this batch size again"


def derived_rows(run: Run) -> Iterator[DerivedCount]:
    """Derived counts of a run that has kernels and shapes; of a run with counters, those that
    complete a launch."""
    from perfctl.orchestrator.analyse.counters.sums import instructions
    from perfctl.orchestrator.analyse.derived.rules import verified
    from perfctl.orchestrator.analyse.ledger.prepared import PreparedBatch, PreparedRun

    batch = PreparedBatch(run.batch_size, (PreparedRun(run, run.precision),), None)
    counted = batch.counted.values if batch.counted else {}
    found = batch.completed if counted else batch.derived.derived if batch.derived else {}
    names = {kernel.launch: kernel.name for kernel in run.report.kernels}
    counts: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
    """Instruction, value, rule and its error, once for all launches that are alike: they share one
    ``Derived``."""
    for launch, derived in found.items():
        alike = names[launch], id(derived)
        if alike not in counts:
            error = verified().get(derived.family)
            facts = (derived.rule, error.within if error else None)
            counts[alike] = [(*one, *facts) for one in _executed(names[launch], derived)]
        known = instructions(counted[launch]) if launch in counted else ()
        for row in counts[alike]:
            if row[0].lower() not in known:
                yield DerivedCount(launch, *row)


def _executed(name: str, derived: Derived) -> Iterator[tuple[str, float]]:
    """(instruction, how many). FADD, FMUL and FFMA of threads; HMMA of warps, where the name says
    how large one is."""
    from perfctl.orchestrator.analyse.counters.sums import FLOPS_PER_INSTRUCTION
    from perfctl.orchestrator.analyse.derived.records import TENSOR_FLOP

    for instruction in ("FADD", "FMUL", "FFMA"):
        value = getattr(derived, instruction.lower())
        if value is not None:
            yield instruction, value
    if derived.tensor is None:
        return
    algorithm = recognise(name)
    each = FLOPS_PER_INSTRUCTION.get((algorithm.math or "", algorithm.instruction or ""))
    yield ("HMMA", derived.tensor / each) if each else (TENSOR_FLOP, derived.tensor)


def ranks_in_names(paths: Iterable[Path]) -> dict[Path, tuple[int, int | None]]:
    """(rank, world size) of each file whose name gives a rank, where several files of one folder
    differ by it.

    The world size is known where the ranks from 0 on are all there; else None.
    """
    groups: dict[tuple[Path, str], list[tuple[Path, int]]] = defaultdict(list)
    for path in paths:
        if (match := _IN_NAME.search(path.name)) is not None:
            # what follows the rank is mostly a time, which differs between ranks
            groups[path.parent, path.name[: match.start()]].append((path, int(match[1])))
    found: dict[Path, tuple[int, int | None]] = {}
    for files in groups.values():
        numbers = [number for _, number in files]
        if len(files) < 2 or len(set(numbers)) < len(files):
            continue
        world = len(files) if sorted(numbers) == list(range(len(files))) else None
        found |= {path: (number, world) for path, number in files}
    return found


def numbered(report: Report, rank: int | None = None, world: int | None = None) -> Report:
    """The report with its rank: its own, else ``rank`` of ``world`` processes, as its name says.
    Its variant keeps it apart from the other ranks."""
    if report.rank is None and rank is not None:
        report = replace(report, rank=rank, world_size=report.world_size or world)
    if report.rank is None:
        return report
    mark = rank_mark(report.rank, report.world_size)
    return replace(report, variant=f"{report.variant}, {mark}" if report.variant else mark)


def rank_mark(rank: int, world: int | None) -> str:
    """ "rank 0 of 8"."""
    return f"rank {rank}" if world is None else f"rank {rank} of {world}"


def of_job(report: Report) -> Report:
    """The report with what of each collective's time no other kernel covers, where its kernels can
    be read again."""
    collectives = list(report.collectives)
    if not collectives or not isinstance(report.kernels, Sequence):
        return replace(report, collectives=collectives)
    return replace(report, collectives=with_exposed(collectives, report.kernels))


@dataclass(frozen=True, slots=True)
class Rank:
    """What a rank other than 0 left; ``trace`` only where each rank has a report of its
    own (torch)."""

    number: int
    record: Path | None
    trace: Path | None


def take_run(
    connection: sqlite3.Connection,
    folder: Path,
    sweep: SweepFacts,
    *,
    store: Path,
    again: bool,
    features: Callable[[Sequence[LayerCall]], tuple[Feature, ...]] | None = None,
    stored: sqlite3.Connection | None = None,
) -> Written:
    """Store what run.json, the workload's record and the profiler's report say together. Raises
    ReportError.

    A report that cannot be read makes the run partial (its workload's own record is kept) or
    failed. ``features`` works out what is stored about the estimate of the run beside its rows.
    ``stored`` is looked into for the same artifact; None for ``connection``.
    """
    record = run_record(folder)
    artifact = folder / str(record["artifact"]) if record["artifact"] else None
    digest = sha256(artifact) if artifact else None
    if digest and not again and (known := find_artifact(stored or connection, digest)) is not None:
        return Written(known, new=False)
    # The record of the run that a replay put in place: transcribed and synthetic figures stay so
    # when they are replayed.
    first = (read_json(folder / RECORD_NAME) or {}) if record["origin"] == "recorded" else record
    facts = RunFacts(
        **{
            name: record[name] for name in _NEEDED if name not in ("artifact", "commands", "origin")
        },
        origin=str(
            first["origin"]
            if first.get("origin") in ("transcribed", "synthetic")
            else record["origin"]
        ),
        artifact=relative(artifact, store) if artifact else None,
        artifact_sha256=digest,
        command=tuple(record["commands"][0]) if record["commands"] else (),
        variant=record.get("variant"),
    )
    others = _ranks(folder)
    world = others[-1].number + 1 if others else 1
    report, own = _whole_report(
        folder, record, _dictionary(first.get("profiler_options")), artifact, facts
    )
    # a profiler for each rank
    each_its_own = any("--under" in command for command in record["commands"][:1])
    shared = record["profiler"] in _ONE_REPORT and not each_its_own
    only_first = any("--under-rank" in command for command in record["commands"][:1])
    if others:
        report, own = _as_rank(report, own, 0, world, shared)
    calls = estimate_shapes(folder, report) if report else ()
    if report is not None and features is not None:
        report = replace(report, features=features(calls))
    again = again or stored is not None
    written = write_run(
        connection, sweep, own, report, calls, family=family, again=again, derive=derived_rows
    )
    for rank in others if written.new else ():
        _take_rank(connection, rank, world, facts, sweep, store, shared, only_first)
    return written


def _whole_report(
    folder: Path,
    record: dict[str, Any],
    options: dict[str, Any],
    artifact: Path | None,
    facts: RunFacts,
) -> tuple[Report | None, RunFacts]:
    """The report with what was recorded beside it, and the facts with what went wrong. Raises
    ReportError."""
    workload = folder / "workload.json"
    report, own = _read_files(workload if workload.is_file() else None, artifact, facts)
    if report is None:
        return None, own
    if report.batch_size not in (None, own.batch_size):
        problem = f"run.json says batch size {own.batch_size}, the workload ran {report.batch_size}"
        raise parsers.ReportError(folder, "perfctl", problem, _AGAIN)
    report = with_samples(report, folder / "samples.csv")
    container = {
        str(name): str(value) for name, value in _dictionary(record.get("environment")).items()
    }
    report = replace(report, environment={**report.environment, **container})
    if (folder / LAUNCHES).is_file() and record["profiler"] == "ncu":
        report = _with_repeats(report, folder / LAUNCHES)
    if report.environment.get("ncu:not_replayed"):
        why = (
            "kernels that wait for other GPUs (NCCL and the like) were left out: a replay of one "
            "would never end"
        )
        report = replace(report, gaps=(*report.gaps, Gap("collective", "not_collected", why)))
    if not (layers := options.get("layers")):
        return report, own
    # launches that the profiler was told to leave out are not zero
    names = ", ".join(map(str, layers))
    gap = Gap("kernel", "not_collected", f"ncu was told to count only in these layers: {names}")
    return replace(
        report, environment={**report.environment, "ncu:layers": names}, gaps=(*report.gaps, gap)
    ), own


def _with_repeats(report: Report, path: Path) -> Report:
    try:
        return with_repeats(report, read_first_pass(read_json(path) or {}))
    except (KeyError, TypeError, ValueError):
        why = f"{path.name} cannot be read: the launches that repeat another are left out"
        return replace(report, gaps=(*report.gaps, Gap("counter", "unreadable", why)))


def _dictionary(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _ranks(folder: Path) -> list[Rank]:
    """Ranks beside the first, by the files that carry their number: workload.rank1.json,
    report.rank1.pt.trace.json.gz."""
    found: dict[int, Rank] = {}
    for path in sorted(folder.iterdir()):
        named = _RANK.match(path.name)
        if named is None or not path.is_file():
            continue
        number = int(named[2])
        rank = found.setdefault(number, Rank(number, None, None))
        if named[1] == "workload":
            found[number] = replace(rank, record=path)
        elif path.suffix not in _LEFT_OVER and not (
            path.suffix == ".ncu-rep" and path.with_suffix(".csv").exists()
        ):
            found[number] = replace(rank, trace=path)
    return [found[number] for number in sorted(found)]


def _take_rank(
    connection: sqlite3.Connection,
    rank: Rank,
    world: int,
    facts: RunFacts,
    sweep: SweepFacts,
    store: Path,
    shared: bool,
    only_first: bool,
) -> None:
    """A run of its own; partial where its record or its trace cannot be read. ``only_first``: only
    rank 0 was to be measured, the others ran as usual."""
    place, digest = (
        (relative(rank.trace, store), sha256(rank.trace)) if rank.trace else (None, None)
    )
    own = replace(facts, artifact=place, artifact_sha256=digest)
    try:
        report, own = _read_files(rank.record, rank.trace, own)
    except parsers.ReportError as error:
        report, own = None, replace(own, status="failed", reason=str(error))
    if report is not None and rank.trace is None and facts.profiler in _ONE_REPORT:
        why = f"{facts.profiler} wrote one report of all ranks: it is with rank 0"
        if only_first:
            why = (
                f"only rank 0 ran under {facts.profiler}, which is its default (--ranks all counts "
                "every rank)"
            )
        elif not shared:
            why = (
                f"{facts.profiler} left no report of this rank; stderr.log says what it and the "
                "script said"
            )
            own = replace(own, status="partial", reason=own.reason or why)
        state = "not_collected" if only_first else "not_available"
        report = replace(report, gaps=(*report.gaps, Gap("kernel", state, why)))
    marked, own = _as_rank(report, own, rank.number, world, shared)
    calls = estimate_shapes(rank.record or Path(), marked) if marked else ()
    write_run(
        connection, sweep, own, marked, calls, family=family, beside=True, derive=derived_rows
    )


def _as_rank(
    report: Report | None, facts: RunFacts, rank: int, world: int, shared: bool
) -> tuple[Report | None, RunFacts]:
    """Report and facts with the rank in them; the variant keeps ranks apart from each other and
    from one-process runs."""
    variant = facts.variant or (report.variant if report else None)
    mark = rank_mark(rank, world)
    facts = replace(
        facts, variant=f"{variant}, {mark}" if variant else mark, rank=rank, world_size=world
    )
    if report is None:
        return None, facts
    gaps = report.gaps
    if rank == 0 and shared:
        sums = (
            "so that times and counts of a layer are sums over them; perfctl torch keeps ranks "
            "apart"
        )
        reason = f"{facts.profiler} wrote one report of all {world} ranks, {sums}"
        gaps = (*gaps, Gap("rank", "ambiguous", reason))
        if facts.status == "ok":
            facts = replace(facts, status="partial", reason=reason)
    environment = {**report.environment, "rank": str(rank), "world_size": str(world)}
    return replace(report, environment=environment, gaps=gaps), facts


def _read_files(
    own: Path | None, artifact: Path | None, facts: RunFacts
) -> tuple[Report | None, RunFacts]:
    workload = parsers.parse(own) if own is not None else None
    report = None
    if artifact is not None and artifact != own:
        try:
            report = parsers.parse(artifact, single_operators=False)
        except parsers.ReportError as error:
            status = "partial" if workload else "failed"
            facts = replace(
                facts,
                status=status,
                reason=f"{facts.reason}; {error}" if facts.reason else str(error),
            )
    if report is not None and workload is not None:
        return of_job(merge(report, workload)), facts
    one = report or workload
    return (replace(one, tool=facts.profiler) if one else None), facts


def merge(report: Report, workload: Report) -> Report:
    """A profiler's report completed by what the profiled process itself recorded."""
    version = workload.environment.get("torch") if report.tool == "torch" else None
    own = {
        name: getattr(workload, name)
        for name in ("rank", "world_size", "host", "phase", "effective_batch")
    }
    return replace(
        report,
        tool_version=report.tool_version or version,
        devices=_devices(report.devices, workload.devices),
        environment={**report.environment, **workload.environment},
        steps=workload.steps or report.steps,
        memory=(*report.memory, *workload.memory),
        summaries=(*report.summaries, *workload.summaries),
        ops=workload.ops,
        gaps=(*report.gaps, *workload.gaps),
        **{
            name: getattr(workload, name)
            for name in ("workload", "variant", "batch_size", "mode", "precision")
        },
        **{name: value for name, value in own.items() if value is not None},
    )


def with_samples(report: Report, path: Path) -> Report:
    """The report with the run's samples, where there are some; a gap where they cannot be read."""
    if not path.is_file():
        return report
    try:
        read = parsers.parse(path)
    except parsers.ReportError as error:
        return replace(report, gaps=(*report.gaps, Gap("sample", "unreadable", str(error))))
    return replace(
        report,
        samples=read.samples,
        summaries=(*report.summaries, *read.summaries),
        gaps=(*report.gaps, *read.gaps),
        diagnostics=(*report.diagnostics, *read.diagnostics),
    )


def _devices(seen: tuple[Device, ...], used: tuple[Device, ...]) -> tuple[Device, ...]:
    """The device the workload used comes first, with facts that only the profiler knew
    filled in."""
    if not used or not seen:
        return used or seen
    first = used[0]
    same = next(
        (device for device in seen if device.kind == first.kind and device.index == first.index),
        None,
    )
    if same is None:
        return used
    missing = {
        field: value for field, value in asdict(same).items() if getattr(first, field) is None
    }
    return (replace(first, **missing), *(device for device in seen if device is not same))


def run_record(folder: Path) -> dict[str, Any]:
    """run.json, checked: anybody may have written it. Raises ReportError where a field
    is missing."""
    record = read_run_record(folder)
    if record is None:
        raise parsers.ReportError(folder, "perfctl", "run.json is missing or not whole", _AGAIN)
    if missing := [name for name in _NEEDED if name not in record]:
        raise parsers.ReportError(folder, "perfctl", f"run.json lacks {missing[0]}", _AGAIN)
    return record


def estimate_shapes(place: Path, report: Report) -> tuple[LayerCall, ...]:
    """The FLOPs on paper of the shapes in a record. Raises ReportError where the shapes make
    no sense."""
    try:
        return estimate(report.ops)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = (
            f"the shapes in the workload's record make no sense ({type(error).__name__}: {error})"
        )
        raise parsers.ReportError(place, "perfctl", reason, _AGAIN) from error


def relative(path: Path, store: Path) -> str:
    """Relative to the store's folder where it lies below it, so that both can be moved together."""
    full, home = path.resolve(), store.resolve().parent
    return os.path.relpath(full, home) if full.is_relative_to(home) else str(full)
