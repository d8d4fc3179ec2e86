"""Measure families of networks point by point, within a time budget, and read back what
was measured."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated

from perfctl.orchestrator import memory
from perfctl.orchestrator.actions.bench_file import (
    Bench,
    Design,
    Skipped,
    design,
    read_bench,
    share,
)
from perfctl.orchestrator.actions.stored_runs import loaded
from perfctl.orchestrator.actions.sweep.request import check_ready
from perfctl.orchestrator.actions.sweep.sweep import storing, take_folder
from perfctl.orchestrator.commands.declare import (
    DEFAULT_STORE,
    Command,
    Events,
    Force,
    Option,
)
from perfctl.orchestrator.errors import PartlyDone, PerfctlError, UsageError
from perfctl.orchestrator.files import check_free, replacing
from perfctl.orchestrator.ingest.context import Failed, Settings, Task
from perfctl.orchestrator.ingest.find import Source
from perfctl.orchestrator.ingest.ingest import take_runs
from perfctl.orchestrator.launch.profilers.torch import NoProfiler
from perfctl.orchestrator.launch.sweep.bench import Budget, Done, Point, run
from perfctl.orchestrator.launch.sweep.folders import file_name
from perfctl.orchestrator.launch.sweep.options import SweepOptions, resolve_device
from perfctl.orchestrator.launch.sweep.request import Listener, RunResult, SweepRequest
from perfctl.orchestrator.options import read_seconds
from perfctl.orchestrator.predict.bench import (
    FLOPS,
    MEMORY,
    TIME,
    Correlation,
    Observation,
    correlations,
    fastest,
    points_of,
)
from perfctl.orchestrator.predict.step_parts import features_of
from perfctl.orchestrator.report.charts.files import Drawn
from perfctl.orchestrator.report.page.bench import BenchShown
from perfctl.orchestrator.report.tables import Column, amount, dense_table
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.store.write import SweepFacts
from perfctl.parsers.own.bench import as_json, read_points
from perfctl.records.bench import BenchPoint
from perfctl.workloads.models.families import NAME as WORKLOAD
from perfctl.workloads.models.plan import plan
from perfctl.workloads.spec import SpecError

_ROWS = 12
"""Rows of a table on the terminal; --json has all."""


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One call of :func:`bench`; made by :func:`bench_request`."""

    JSON_KEYS = ("points", "skipped")

    bench: Bench
    design: Design
    points: tuple[Point, ...]
    """The design's, or this machine's part of them."""
    part: tuple[int, int] | None
    """(number from 1, of how many) when several machines share the work: only run folders are
    written, and no store."""
    budget: float | None
    """Seconds; None for no limit."""
    steady: float | None
    """Percent: points whose steps varied more are measured again. None: none are."""
    timeout: float | None
    """Seconds after which a point is ended; None for no limit."""
    out: Path
    store: Path
    command_line: str
    """What the user typed, ready to paste; it is stored with the runs."""

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Networks, or batch sizes of one, that are not measured."""
        return self.design.skipped


@dataclass(frozen=True, slots=True)
class BenchRun:
    """The run of one point."""

    JSON_INLINED = ("point",)

    point: Point
    status: Annotated[str, ("ok", "partial", "failed")]
    reason: str | None
    """null: it is ok."""
    skipped: bool
    """Whether the point was complete already, and nothing ran."""
    folder: Path


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What became of the points of one call of ``bench run``."""

    JSON_KEYS = ("runs", "left", "skipped")

    request: BenchRequest
    done: Done

    @property
    def runs(self) -> list[BenchRun]:
        """One object a point."""
        return [
            BenchRun(point, run.status, run.reason, run.skipped, run.folder)
            for point, run in self.done.results
        ]

    @property
    def left(self) -> tuple[Point, ...]:
        """Points that the time given was too short for."""
        return self.done.left

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Networks, or batch sizes of one, that are not measured."""
        return self.request.skipped

    @property
    def whole(self) -> int:
        """Points that have a whole run, measured now or before."""
        # some are measured again
        return len({point for point, result in self.done.results if result.status == "ok"})

    @property
    def new(self) -> int:
        """Runs that were measured now."""
        return sum(
            1 for _, result in self.done.results if result.status == "ok" and not result.skipped
        )

    def check(self) -> None:
        """Raises PartlyDone when a point failed, or points are left because the budget was
        used up."""
        failed = [(point, result) for point, result in self.done.results if result.status != "ok"]
        left = self.done.left
        if failed:
            point, result = failed[0]
            untried = f", and {len(left)} are left" if left else ""
            problem = (
                f"{len(failed)} points failed{untried}: {point.model}, batch {point.batch}: "
                f"{result.reason}"
            )
            raise PartlyDone(problem, f"Logs are in {result.folder}")
        if left:
            first = f"{left[0].model}, batch {left[0].batch}"
            problem = f"{len(left)} points are left, from {first} on: the budget is used up"
            raise PartlyDone(problem, "The same command goes on from here")


Listening = Callable[[BenchRequest], AbstractContextManager[Listener]]
"""Gives what is told how each point went while a bench runs."""


def bench_request(
    bench: Bench,
    *,
    device: str | None = None,
    threads: int | None = None,
    part: tuple[int, int] | None = None,
    budget: float | None = None,
    steady: float | None = None,
    timeout: float | None = None,
    out: Path = Path("perfctl-runs"),
    store: Path | None = None,
    command_line: str = "",
) -> BenchRequest:
    """What to measure: the design of ``bench``, or this machine's part of it. Nothing is started.

    device, threads: instead of what the file says. store: None for perfctl.db beside ``out``. The
    other parameters are the fields of :class:`BenchRequest`. Raises UsageError when nothing can be
    measured, or the design is too large.
    """
    asked = replace(
        bench, device=resolve_device(device or bench.device), threads=threads or bench.threads
    )
    made = design(asked)
    points = share(made.points, *part) if part else made.points
    store = store or out.parent / DEFAULT_STORE
    return BenchRequest(
        asked, made, points, part, budget, steady, timeout, out, store, command_line
    )


def bench(
    request: BenchRequest, listening: Listening = lambda request: nullcontext(Listener())
) -> BenchResult:
    """Measure each point in a process of its own, while the budget lasts. The same call goes on
    where it stopped.

    A point that fails does not stop the others; :meth:`BenchResult.check` raises for it. Each run
    goes into the store as soon as it is finished; a part of a shared bench only leaves run folders.

    Raises UsageError and ToolMissing before anything runs, Interrupted when asked to
    stop, StoreError.
    """
    if request.part and request.steady is not None:
        raise UsageError(
            "`steady` reads the store, which parts of a bench do not use",
            "Leave `steady` or `shard` out",
        )
    check_ready(sweep_of(request, request.points[0]))
    with listening(request) as listener:
        if request.part is None:
            return BenchResult(request, _into_store(request, listener))
        request.out.mkdir(parents=True, exist_ok=True)
        return BenchResult(
            request,
            run(request.points, partial(sweep_of, request), Budget(request.budget), listener),
        )


def part_of(
    text: str | None, environment: Mapping[str, str] = os.environ
) -> tuple[int, int] | None:
    """ "2/8", or this task's part of a Slurm array; None when nobody shares the work.
    Raises UsageError."""
    if text is not None:
        found = re.fullmatch(r"(\d+)/(\d+)", text.strip())
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise UsageError(
                f"`shard`: expected I/N, got '{text}'",
                "Use for instance 2/8, the second of eight parts",
            )
        return int(found[1]), int(found[2])
    task, tasks = environment.get("SLURM_ARRAY_TASK_ID"), environment.get("SLURM_ARRAY_TASK_COUNT")
    first = environment.get("SLURM_ARRAY_TASK_MIN", "0")
    if task is None or tasks is None or not (task + tasks + first).isdecimal():
        return None
    step = environment.get("SLURM_ARRAY_TASK_STEP", "1")
    number = (int(task) - int(first)) // max(int(step) if step.isdecimal() else 1, 1) + 1
    if number > int(tasks):
        problem = f"Slurm's array has gaps: task {task} of {tasks} from {first}"
        raise UsageError(problem, "Give the part with `shard` I/N")
    return number, int(tasks)


def sweep_of(request: BenchRequest, point: Point) -> SweepRequest:
    """The sweep of one point: one per network, named after everything that is asked of it, with one
    batch size."""
    bench = request.bench
    names = ("device", "mode", "precision", "steps", "warmup", "threads", "within")
    said = {name: getattr(bench, name) for name in names} | {
        "layer-steps": bench.layer_steps or None
    }
    options = [(f"--{name}", str(value)) for name, value in said.items() if value is not None]
    arguments = (*chain.from_iterable(options), "--model", point.model)
    digest = hashlib.sha256("\0".join(arguments).encode()).hexdigest()[:8]
    return SweepRequest(
        profiler=NoProfiler(),
        workload=WORKLOAD,
        workload_arguments=arguments,
        device=bench.device,
        host=platform.node(),
        options=SweepOptions(
            batches=(point.batch,),
            out=request.out,
            command_line=request.command_line,
            timeout=request.timeout,
            no_store=request.part is not None,
            sweep_name=f"bench-{file_name(point.model.replace('=', ''))}-{digest}",
            sample="off",
        ),
    )


def unsteady(request: BenchRequest) -> frozenset[tuple[str, int]]:
    """(model, batch) of points in the store whose fastest run varied more than
    ``steady`` percent."""
    if request.steady is None:
        return frozenset()
    points = stored_points(request.store)
    return frozenset((one.model, one.batch) for one in points if one.spread * 100 > request.steady)


def _into_store(request: BenchRequest, listener: Listener) -> Done:
    limit = memory.bytes_of(None)
    with storing(request.store, "points"):

        def finished(result: RunResult) -> None:
            facts = SweepFacts(
                result.folder.parent.name, "sweep", request.command_line, platform.node()
            )
            take_folder(
                result.folder, facts, limit, store=request.store, again=False, features=features_of
            )
            listener.finished(result)

        heard = replace(listener, finished=finished)
        return run(
            request.points,
            partial(sweep_of, request),
            Budget(request.budget),
            heard,
            unsteady(request),
        )


def gather(
    runs: Path, store: Path, command_line: str = "", *, memory_limit: str | int | None = None
) -> tuple[str, ...]:
    """Take the run folders that a bench left, its parts too, into a store; runs nothing. Why
    folders could not be read.

    ``memory_limit``: as in ``ingest``.
    """

    tasks = []
    for folder in (place.parent for place in sorted(runs.rglob("run.json"))):
        facts = SweepFacts(folder.parent.name, "sweep", command_line, platform.node())
        tasks.append(Task(Source(folder, folder), facts, features=features_of))
    with storing(store, "points"):
        settings = Settings(store, limit=memory.bytes_of(memory_limit))
        outcomes = [outcome for _, outcome in take_runs(tasks, settings)]
    return tuple(outcome.text for outcome in outcomes if isinstance(outcome, Failed))


def stored_points(store: Path = DEFAULT_STORE) -> list[BenchPoint]:
    """The fastest run of each point in a store, in the order they were first measured."""
    with database.reading(store) as connection:
        return fastest(points_of(loaded(connection, read.bench_run_ids(connection))))


def bench_points(
    store: Path = DEFAULT_STORE, *, file: Path | None = None, family: str | None = None
) -> list[BenchPoint]:
    """The points of a store, or of a file that :func:`export_bench` wrote; ``family``: only those
    of this family.

    Raises PerfctlError when there is no point, UsageError when there is none of the family,
    ReportError for a file of another kind.
    """
    points = list(read_points(file)) if file else stored_points(store)
    if not points:
        raise PerfctlError(
            f"{file or store}: it holds no point of a bench", "Run 'perfctl bench FILE'"
        )
    chosen = [point for point in points if family in (None, point.family)]
    if not chosen:
        there = dict.fromkeys(point.family for point in points)
        raise UsageError(
            f"`family`: there is no point of '{family}'", f"There are {', '.join(there)}"
        )
    return chosen


def observations(points: Iterable[BenchPoint]) -> list[Observation]:
    """Sizes and quantities of each point; a network that this version cannot plan has those of its
    features alone.

    Memory is the peak of what torch allocated on a GPU; on a CPU it is what the process grew by in
    the steps, because its whole also holds Python and torch. FLOPs are those on paper of forward
    and backward.
    """
    return [_observation(point) for point in points]


def _observation(point: BenchPoint) -> Observation:
    settings: Mapping[str, int | str] = {}
    with suppress(SpecError):
        settings = plan(point.model).settings
    said = {
        "depth": settings.get("depth", settings.get("blocks")),
        "width": settings.get("width"),
        "kernel": settings.get("kernel"),
        "input": settings.get("image"),
        "parameters": point.features.get("parameters"),
        "batch": point.batch,
    }
    memory = point.memory_bytes.get("peak")
    if point.machine.kind == "cpu" and memory is not None:
        memory = memory - point.memory_bytes["before"] if "before" in point.memory_bytes else None
    flops = [
        point.features[name]
        for name in ("flops:forward", "flops:backward")
        if name in point.features
    ]
    values = {TIME: point.step_ns[0] / 1e9, MEMORY: memory, FLOPS: sum(flops) if flops else None}
    return Observation(
        point.family,
        point.model,
        point.batch,
        {name: float(value) for name, value in said.items() if value is not None},
        {name: float(value) for name, value in values.items() if value is not None and value > 0},
    )


def bench_charts(store: Path) -> dict[str, Drawn]:
    """Name -> chart: time against each figure, and time, memory and FLOPs against each size; empty
    without a bench."""
    from perfctl.orchestrator.report.charts import relations
    from perfctl.orchestrator.report.charts import relations as charts

    points = stored_points(store)
    return charts.bench_charts(points) | relations.all_relation_charts(observations(points))


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Measure what a file describes, each point in a process of its own. The same command goes on
    where it stopped.

    Raises UsageError and ToolMissing before anything runs, Interrupted when asked to stop,
    StoreError.
    """

    file: Annotated[
        Path,
        Option("What to measure, as TOML, like examples/bench/grid.toml.", is_argument=True),
    ]
    _: KW_ONLY
    budget: Annotated[
        float | None,
        Option(
            "Stop after this time: 30m, 2h, 90s. 0 only takes in what is there. Default: no limit.",
            metavar="TIME",
            parse=read_seconds,
        ),
    ] = None
    shard: Annotated[
        str | None,
        Option(
            "Only part I of N, for one machine of several. Default: this task of a Slurm array.",
            metavar="I/N",
        ),
    ] = None
    device: Annotated[str | None, Option("cpu, cuda or auto. Default: what the file says.")] = None
    threads: Annotated[
        int | None, Option("CPU threads of a run. Default: what the file says.", least=1)
    ] = None
    steady: Annotated[
        float | None,
        Option(
            "Measure points again, once per call, whose quartiles are further apart than this "
            "share of the median.",
            metavar="PERCENT",
            least=0,
        ),
    ] = None
    timeout: Annotated[
        float | None,
        Option("Seconds after which a batch size is ended.", metavar="SECONDS", least=1),
    ] = None
    out: Annotated[Path, Option("Folder that holds all runs.", "Output", names=("--out", "-o"))] = (
        Path("perfctl-runs")
    )
    store: Annotated[
        Path | None, Option("The store. Default: perfctl.db beside the folder of --out.", "Output")
    ] = None
    dry_run: Annotated[
        bool, Option("Print what would be measured, and start nothing.", "Output")
    ] = False


def measure(
    asked: BenchOptions, listening: Listening, command_line: str = ""
) -> BenchResult | BenchRequest:
    """Measure the points of a file, or return what would be measured."""
    request = bench_request(
        read_bench(asked.file),
        device=asked.device,
        threads=asked.threads,
        part=part_of(asked.shard),
        budget=asked.budget,
        steady=asked.steady,
        timeout=asked.timeout,
        out=asked.out,
        store=asked.store,
        command_line=command_line,
    )
    return request if asked.dry_run else bench(request, listening)


def bench_view(result: BenchResult | BenchRequest) -> View:
    """Return every point and every network that is skipped, or what was measured."""
    if isinstance(result, BenchRequest):
        return _design_view(result)
    request = result.request
    if request.part:
        wrote = (
            f"Wrote {request.out}. When all parts are done: the same command without --shard, "
            "--budget 0"
        )
    else:
        wrote = f"Wrote {request.store}. Next: perfctl bench show"
    points = len(request.points)
    return View(f"{result.whole} of {points} points measured, {result.new} of them now", (wrote,))


def _design_view(request: BenchRequest) -> View:
    points, skipped = request.points, request.skipped
    models = len({point.model for point in points})
    rows = [(point.model, point.batch, amount(point.flops, "FLOP")) for point in points]
    columns = [
        Column("network", style="text"),
        Column("batch size"),
        Column("per step", unit="FLOP"),
    ]
    return View(
        f"{len(points)} points of {models} networks, {len(skipped)} skipped",
        ("1 multiply-add is 2 FLOPs",),
        (dense_table("Points", columns, rows),),
        notes=tuple(f"skipped: {reason}" for reason in reasons_of(request)),
    )


def reasons_of(request: BenchRequest) -> list[str]:
    """Return why networks are skipped, each reason once, with the number of networks if there are
    several."""
    counts: dict[str, int] = {}
    for skipped in request.skipped:
        counts[skipped.reason] = counts.get(skipped.reason, 0) + 1
    return [
        f"{reason} ({count} networks)" if count > 1 else reason for reason, count in counts.items()
    ]


def _check(result: BenchResult | BenchRequest, events: Events) -> None:
    if isinstance(result, BenchResult):
        result.check()


def _measure_silently(asked: BenchOptions, events: Events) -> BenchResult | BenchRequest:
    return measure(asked, lambda request: nullcontext(Listener()))


@dataclass(frozen=True, slots=True)
class BenchShowOptions:
    """Show what was measured and, by family, which estimated figures the time of a step goes
    with."""

    file: Annotated[
        Path | None,
        Option("What perfctl bench export wrote. Default: the store.", is_argument=True),
    ] = None
    _: KW_ONLY
    family: Annotated[str | None, Option("Only this family: vgg, resnet, inception or mlp.")] = None
    store: Annotated[Path, Option("The store.")] = DEFAULT_STORE


@dataclass(frozen=True, slots=True)
class MeasuredPoints:
    """The points of a store or file, and what their times go with."""

    points: list[BenchPoint]
    correlations: list[Correlation]
    is_stored: bool
    """Whether they are those of a store, of which charts can be drawn."""


def show_points(asked: BenchShowOptions, events: Events) -> MeasuredPoints:
    """Return the points and the correlations of each family."""
    points = bench_points(asked.store, file=asked.file, family=asked.family)
    return MeasuredPoints(points, correlations(points), asked.file is None)


def points_view(measured: MeasuredPoints) -> View:
    """Return the points, and a table of correlations for each family."""
    from perfctl.orchestrator.report.page import bench as page_bench

    by_family: dict[str, list[Correlation]] = {}
    for correlation in measured.correlations:
        by_family.setdefault(correlation.family, []).append(correlation)
    tables = [page_bench.points_table(measured.points)]
    tables += [page_bench.correlation_table(*family) for family in by_family.items()]
    chart = "Drawings: perfctl plot bench-flops-forward; perfctl plot --list names them all"
    return View(
        "",
        tables=tuple(table for table in tables if table is not None),
        notes=(chart,) if measured.is_stored else (),
        rows_on_terminal=_ROWS,
    )


def points_output(measured: MeasuredPoints) -> BenchShown:
    """Return what ``--json`` prints."""
    from perfctl.orchestrator.report.page.bench import bench_shown

    return bench_shown(measured.points, measured.correlations)


@dataclass(frozen=True, slots=True)
class BenchExportOptions:
    """Write all points of the store into one JSON file: steps, phases, layers, figures, device.

    Raises UsageError if the file exists and ``force`` is false, PerfctlError without a point.
    """

    out: Annotated[Path, Option("FILE.json.", "Output", names=("--out", "-o"))] = Path("bench.json")
    _: KW_ONLY
    force: Force = False
    store: Annotated[Path, Option("The store.")] = DEFAULT_STORE


@dataclass(frozen=True, slots=True)
class ExportedPoints:
    """The file that was written."""

    path: Path
    points: int
    networks: int


def export_points(asked: BenchExportOptions, events: Events) -> ExportedPoints:
    """Write all points of a store into one JSON file."""
    check_free(asked.out, force=asked.force)
    points = bench_points(asked.store)
    with replacing(asked.out, force=asked.force) as partial_file:
        partial_file.write_text(as_json(points), encoding="utf-8")
    return ExportedPoints(asked.out, len(points), len({point.model for point in points}))


def exported_view(exported: ExportedPoints) -> View:
    """Return what was written."""
    return View(f"Wrote {exported.path}: {exported.points} points of {exported.networks} networks")


RUN = Command(BenchOptions, _measure_silently, bench_view, check=_check, has_own_progress=True)
SHOW = Command(BenchShowOptions, show_points, points_view, points_output)
EXPORT = Command(BenchExportOptions, export_points, exported_view, has_document=False)
