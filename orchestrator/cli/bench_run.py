"""What perfctl bench does with its file: check, measure point by point, store, tell what is left."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.cli.bench_design import Design
from perfctl.orchestrator.cli.bench_file import Bench
from perfctl.orchestrator.cli.sweep_request import check_ready
from perfctl.orchestrator.errors import Interrupted, PartlyDone, UsageError
from perfctl.orchestrator.launch.bench import Budget, Done, Point, run
from perfctl.orchestrator.launch.paths import file_name
from perfctl.orchestrator.launch.plain import NoProfiler
from perfctl.orchestrator.launch.sweep_records import Listener, RunResult, SweepRequest
from perfctl.workloads.families import NAME as WORKLOAD

_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
_SHOWN = 5
"""Skipped networks that are named one by one; --dry-run names all."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One call of ``perfctl bench FILE``."""

    bench: Bench
    design: Design
    points: tuple[Point, ...]
    """The design's, or this part of them."""
    part: tuple[int, int] | None
    """(number from 1, of how many) where several machines share the work: folders are left, and no store is touched."""
    budget: float | None
    steady: float | None
    """Percent; points whose steps varied more are measured again. None: no point is."""
    timeout: float | None
    out: Path
    store: Path


def settle(bench: Bench, device: str | None, threads: int | None) -> Bench:
    """The file with what the command line says otherwise."""
    return replace(bench, device=options.device(device or bench.device), threads=threads or bench.threads)


def seconds(text: str | None) -> float | None:
    """ "30m" in seconds. Raises UsageError."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in _UNITS:
        raise UsageError(f"--budget: '{text}' is no time", "Say for instance 30m, 2h or 90s; 0 measures nothing new")
    return float(found[1]) * _UNITS[found[2]]


def part_of(text: str | None, environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """ "2/8", or what a Slurm array says of this task; None where nobody shares the work. Raises UsageError."""
    if text is not None:
        found = re.fullmatch(r"(\d+)/(\d+)", text.strip())
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise UsageError(f"--shard: '{text}' is no part", "Say for instance 2/8, the second of eight parts")
        return int(found[1]), int(found[2])
    task, tasks = environment.get("SLURM_ARRAY_TASK_ID"), environment.get("SLURM_ARRAY_TASK_COUNT")
    first = environment.get("SLURM_ARRAY_TASK_MIN", "0")
    if task is None or tasks is None or not (task + tasks + first).isdecimal():
        return None
    step = environment.get("SLURM_ARRAY_TASK_STEP", "1")
    number = (int(task) - int(first)) // max(int(step) if step.isdecimal() else 1, 1) + 1
    if number > int(tasks):
        raise UsageError(
            f"Slurm's array has gaps: task {task} of {tasks} from {first}", "Say which part it is with --shard I/N"
        )
    return number, int(tasks)


def show_design(made: Design, points: tuple[Point, ...], as_json: bool) -> None:
    """Every point, and every network that cannot be."""
    if as_json:
        console.as_json({"points": [asdict(one) for one in points], "skipped": [asdict(one) for one in made.skipped]})
        return
    for point in points:
        console.result(f"{point.model}, batch {point.batch}: {point.flops / 1e9:.3g} GFLOP a step")
    for reason in _reasons(made):
        console.result(f"skipped: {reason}")
    models = len({point.model for point in points})
    console.note(f"{len(points)} points of {models} networks, {len(made.skipped)} skipped; FLOPs: 1 multiply-add is 2")


def _reasons(made: Design) -> list[str]:
    """Each once, with how many networks it keeps out where these are several."""
    counts: dict[str, int] = {}
    for one in made.skipped:
        counts[one.reason] = counts.get(one.reason, 0) + 1
    return [f"{reason} ({count} networks)" if count > 1 else reason for reason, count in counts.items()]


def measure(wanted: Wanted, as_json: bool) -> None:
    """Raises PartlyDone where a point failed, or the budget was used up."""
    if wanted.part and wanted.steady is not None:
        raise UsageError("--steady looks into the store, which parts of a bench do not touch", "Say it without --shard")
    check_ready(request_of(wanted, wanted.points[0]))
    reasons = _reasons(wanted.design)
    for reason in reasons[:_SHOWN]:
        console.note(f"skipped: {reason}")
    if len(reasons) > _SHOWN:
        console.note(f"skipped: for {len(reasons) - _SHOWN} more reasons (--dry-run names them)")
    done = _into_folders(wanted) if wanted.part else _into_store(wanted)
    _tell(wanted, done, as_json)


def request_of(wanted: Wanted, point: Point) -> SweepRequest:
    """A sweep for each network, under a name made of all that is asked of it; one batch size of it at a time."""
    bench = wanted.bench
    words: list[str] = []
    for name in ("device", "mode", "precision", "steps", "warmup", "threads", "within"):
        if getattr(bench, name) is not None:
            words += [f"--{name}", str(getattr(bench, name))]
    words += ["--layer-steps", str(bench.layer_steps)] if bench.layer_steps else []
    arguments = (*words, "--model", point.model)
    digest = hashlib.sha256("\0".join(arguments).encode()).hexdigest()[:8]
    return SweepRequest(
        profiler=NoProfiler(),
        workload=WORKLOAD,
        workload_arguments=arguments,
        batches=(point.batch,),
        device=bench.device,
        out=wanted.out,
        command_line=shlex.join(["perfctl", *sys.argv[1:]]),
        host=platform.node(),
        timeout_s=wanted.timeout,
        alongside=wanted.part is not None,
        given_name=f"bench-{file_name(point.model.replace('=', ''))}-{digest}",
    )


def unsteady(wanted: Wanted) -> frozenset[tuple[str, int]]:
    """(model, batch) of points in the store whose fastest run varied more than asked for."""
    from perfctl.orchestrator.cli.bench_results import load

    if wanted.steady is None:
        return frozenset()
    return frozenset((one.model, one.batch) for one in load(wanted.store) if one.spread * 100 > wanted.steady)


def _into_folders(wanted: Wanted) -> Done:
    listener = Listener(
        started=lambda batch, stage: None, finished=lambda result: console.note(_line(result)),
        stopped=lambda result: console.note(_line(result)),
    )  # fmt: skip
    wanted.out.mkdir(parents=True, exist_ok=True)
    return run(wanted.points, lambda point: request_of(wanted, point), Budget(wanted.budget), listener)


def _into_store(wanted: Wanted) -> Done:
    """Each point goes into the store as soon as it is finished; what is whole on disk goes in if it is not there yet."""
    from perfctl.orchestrator.analyse.features import features_of
    from perfctl.orchestrator.cli.run_intake import take_run
    from perfctl.orchestrator.store import database
    from perfctl.orchestrator.store.write import SweepFacts

    command = shlex.join(["perfctl", *sys.argv[1:]])
    with database.writing(wanted.store) as connection, console.progress(len(wanted.points)) as bar:

        def finished(result: RunResult) -> None:
            facts = SweepFacts(result.folder.parent.name, "sweep", command, platform.node())
            take_run(connection, result.folder, facts, store=wanted.store, again=False, features=features_of)
            if result.skipped:
                bar.done("", ran=False) if sys.stderr.isatty() else None
            else:
                bar.done(_line(result))

        listener = Listener(
            started=lambda batch, stage: bar.stage(f"batch {batch}") if sys.stderr.isatty() else None,
            tick=bar.tick, finished=finished,
        )  # fmt: skip
        try:
            return run(
                wanted.points,
                lambda point: request_of(wanted, point),
                Budget(wanted.budget),
                listener,
                unsteady(wanted),
            )
        except Interrupted as stop:
            raise Interrupted(
                "stopped; the points that were whole are kept", stop.signal_number, "The same command goes on from here"
            ) from stop


def _line(result: RunResult) -> str:
    name = f"{result.folder.parent.name}/{result.folder.name}"
    if result.skipped:
        return f"{name}: whole already, skipped"
    spent = f" in {result.duration_ns / 1e9:.1f} s" if result.duration_ns is not None else ""
    return f"{name}: {result.status}{spent}" + (f": {result.reason}" if result.reason else "")


def _untried(done: Done) -> str:
    return f", and {len(done.left)} are left" if done.left else ""


def _tell(wanted: Wanted, done: Done, as_json: bool) -> None:
    failed = [(point, result) for point, result in done.results if result.status != "ok"]
    whole = len({point for point, result in done.results if result.status == "ok"})  # some are measured again
    new = sum(1 for _, result in done.results if result.status == "ok" and not result.skipped)
    if as_json:
        runs = [{**asdict(point), "status": result.status, "reason": result.reason, "skipped": result.skipped,
                 "folder": str(result.folder)} for point, result in done.results]  # fmt: skip
        console.as_json({"runs": runs, "left": [asdict(point) for point in done.left],
                         "skipped": [asdict(one) for one in wanted.design.skipped]})  # fmt: skip
    else:
        console.result(f"{whole} of {len(wanted.points)} points measured, {new} of them now")
        if wanted.part:
            console.result(f"Wrote {wanted.out}. When all parts are done: the same command without --shard, --budget 0")
        else:
            console.result(f"Wrote {wanted.store}. Next: perfctl bench show")
    if failed:
        point, result = failed[0]
        raise PartlyDone(
            f"{len(failed)} points failed{_untried(done)}: {point.model}, batch {point.batch}: {result.reason}",
            f"Logs are in {result.folder}",
        )
    if done.left:
        first = done.left[0]
        raise PartlyDone(
            f"{len(done.left)} points are left, from {first.model}, batch {first.batch} on: the budget is used up",
            "The same command goes on from here",
        )
