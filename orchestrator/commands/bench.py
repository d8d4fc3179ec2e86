"""Measure families of networks point by point, within a time budget, and read back what
was measured."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from perfctl.orchestrator import memory
from perfctl.orchestrator.commands.declare import (
    DEFAULT_STORE,
    Command,
    CommandLine,
    Events,
    Force,
    Group,
    Option,
    Store,
)
from perfctl.orchestrator.errors import PartlyDone, PerfctlError, UsageError
from perfctl.orchestrator.events import SILENT
from perfctl.orchestrator.files import raise_if_output_not_replaceable, replace_when_done
from perfctl.orchestrator.ingest.context import IngestSettings, IngestTask, ReportFailed
from perfctl.orchestrator.ingest.find import ReportSource
from perfctl.orchestrator.ingest.ingest import ingest_run_folders
from perfctl.orchestrator.ingest.sweep import (
    describe_outcome,
    explain_resumability_on_interrupt,
    ingest_finished_run,
)
from perfctl.orchestrator.launch.catalog import require_tools_and_write_annotator
from perfctl.orchestrator.launch.profilers.torch import NoProfiler
from perfctl.orchestrator.launch.sweep.bench import (
    PointToMeasure,
    TimeBudget,
    measure_bench_points_within_budget,
)
from perfctl.orchestrator.launch.sweep.bench_file import (
    BenchSpec,
    SkippedPoint,
    expand_bench_into_points,
    read_bench_file,
    select_points_of_part,
)
from perfctl.orchestrator.launch.sweep.folders import SweepSetting, make_safe_file_name
from perfctl.orchestrator.launch.sweep.options import choose_cpu_or_cuda
from perfctl.orchestrator.launch.sweep.request import (
    RunResult,
    SweepListener,
    SweepRequest,
    format_option_words,
)
from perfctl.orchestrator.options import parse_budget_seconds
from perfctl.orchestrator.predict.bench import (
    TimeCorrelation,
    collect_features_with_batch,
    correlate_features_with_step_time,
    keep_fastest_points,
    list_size_observations,
    list_unprofiled_bench_points,
)
from perfctl.orchestrator.predict.step_parts import sum_layer_call_features
from perfctl.orchestrator.report.charts.files import Picture
from perfctl.orchestrator.report.tables import (
    Column,
    amount_cell,
    build_complete_table,
    text_columns,
)
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.statistics import group_by
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.store.write import SweepFacts
from perfctl.orchestrator.stored_runs import load_readable_runs
from perfctl.parsers.own.bench import format_bench_file, read_bench_points
from perfctl.records.bench import BenchPoint
from perfctl.workloads.models.families import NAME as WORKLOAD

REASONS_MAX = 5
"""Reasons of skipped networks that are printed; --dry-run prints all."""
ROWS_MAX = 12
"""Rows of a table on the terminal; --json has all."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Measure the networks of a file, each point in a separate process.

    Repeat the command to continue after an interruption.

    Raises UsageError and ToolMissing before anything runs, Interrupted when asked to stop,
    StoreError.
    """

    file: Annotated[
        Path,
        Option(
            "TOML file of the networks to measure, like examples/bench/grid.toml.", is_argument=True
        ),
    ]
    _: KW_ONLY
    budget: Annotated[
        float | None,
        Option(
            "Stop after this time: 30m, 2h, 90s. 0 only ingests existing runs. Default: no limit.",
            metavar="TIME",
            parse=parse_budget_seconds,
        ),
    ] = None
    shard: Annotated[
        str | None,
        Option(
            "Measure only part I of N. Default: the task of the Slurm array, if any.",
            metavar="I/N",
        ),
    ] = None
    device: Annotated[str | None, Option("cpu, cuda or auto. Default: as in the file.")] = None
    threads: Annotated[
        int | None, Option("CPU threads per run. Default: as in the file.", least=1)
    ] = None
    steady: Annotated[
        float | None,
        Option(
            "Measure a point again if its quartiles differ by more than this share of the median "
            "(once per call).",
            metavar="PERCENT",
            least=0,
        ),
    ] = None
    timeout: Annotated[
        float | None,
        Option("Stop a batch size after this many seconds.", metavar="SECONDS", least=1),
    ] = None
    out: Annotated[Path, Option("Folder for all runs.", "Output")] = Path("perfctl-runs")
    store: Annotated[
        Path | None, Option("Results database. Default: perfctl.db next to --out.", "Output")
    ] = None
    dry_run: Annotated[bool, Option("Print the planned measurements and exit.", "Output")] = False
    command_line: CommandLine = ""


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What is to be measured; made by :func:`plan_bench`."""

    JSON_KEYS = ("points", "skipped")

    bench: BenchSpec
    points: tuple[PointToMeasure, ...]
    """The design's, or this machine's part of them."""
    skipped: tuple[SkippedPoint, ...]
    """Networks, or batch sizes of one, that are not measured."""
    part: tuple[int, int] | None
    """(number from 1, of how many) when several machines share the work: only run folders are
    written, and no results database."""
    options: BenchOptions

    @property
    def store_path(self) -> Path:
        """Return the named results database, otherwise perfctl.db next to the run folders."""
        return self.options.store or self.options.out.parent / DEFAULT_STORE


@dataclass(frozen=True, slots=True)
class BenchRun:
    """The run of one point."""

    JSON_INLINED = ("point",)

    point: PointToMeasure
    status: Annotated[str, ("ok", "partial", "failed")]
    reason: str | None
    """null: it is ok."""
    skipped: bool
    """Whether the point was complete already, and nothing ran."""
    folder: Path


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What became of the points of one call of ``bench run``."""

    JSON_KEYS = ("runs", "remaining", "skipped")

    request: BenchRequest
    runs: tuple[BenchRun, ...]
    remaining: tuple[PointToMeasure, ...]
    """Points that the budget was too short for."""

    @property
    def skipped(self) -> tuple[SkippedPoint, ...]:
        """Return networks, or batch sizes of one, that are not measured."""
        return self.request.skipped

    def check(self) -> None:
        """Raises PartlyDone when a point failed, or points remain because the budget was
        used up."""
        failed = [run for run in self.runs if run.status != "ok"]
        remaining = self.remaining
        if failed:
            first = failed[0]
            remainder = f"; {len(remaining)} remain" if remaining else ""
            problem = (
                f"{len(failed)} points failed{remainder}: {first.point.model}, batch "
                f"{first.point.batch}: {first.reason}"
            )
            raise PartlyDone(problem, f"Logs are in {first.folder}")
        if remaining:
            start = f"{remaining[0].model}, batch {remaining[0].batch}"
            problem = (
                f"{len(remaining)} points remain, from {start} on, because the budget is spent"
            )
            raise PartlyDone(problem, "Repeat the same command to continue")


def plan_bench(
    bench: BenchSpec, options: BenchOptions, environment: Mapping[str, str] = os.environ
) -> BenchRequest:
    """Return the design of ``bench``, or this machine's part of it. Nothing is started.

    Device and threads that were asked for replace those of ``bench``. Raises UsageError when
    nothing can be measured, or the design is too large.
    """
    device = choose_cpu_or_cuda(options.device or bench.device)
    bench = replace(bench, device=device, threads=options.threads or bench.threads)
    planned, part = (
        expand_bench_into_points(bench),
        parse_shard_or_slurm_task(options.shard, environment),
    )
    points = select_points_of_part(planned.points, *part) if part else planned.points
    return BenchRequest(bench, points, planned.skipped, part, options)


def run_bench(request: BenchRequest, events: Events = SILENT) -> BenchResult:
    """Measure each point in a separate process, while the budget lasts. The same call goes on
    where it stopped.

    A point that fails does not stop the others; :meth:`BenchResult.check` raises for it. Each run
    goes into the results database as soon as it is finished; a part of a shared bench only leaves
    run folders.

    Raises UsageError and ToolMissing before anything runs, Interrupted when asked to
    stop, StoreError.
    """
    options, store, steady = request.options, request.store_path, request.options.steady
    if request.part and steady is not None:
        raise UsageError(
            "`steady` needs the results database, which the parts of a bench do not use",
            "Omit `steady` or `shard`",
        )
    require_tools_and_write_annotator(plan_point_sweep(request, request.points[0]))
    reasons = list_skip_reasons(request)
    for reason in reasons[:REASONS_MAX]:
        events.note(f"skipped: {reason}")
    if len(reasons) > REASONS_MAX:
        events.note(
            f"skipped: for {len(reasons) - REASONS_MAX} more reasons (--dry-run lists them)"
        )
    listener, limit = make_progress_listener(request, events), memory.parse_memory_limit(None)

    def ingest_and_report_finished_run(result: RunResult) -> None:
        if request.part is None:
            ingest_finished_run(
                result.folder,
                _build_sweep_facts(result.folder, options.command_line),
                limit,
                store=store,
                again=False,
                compute_features=sum_layer_call_features,
            )
        listener.finished(result)

    if request.part is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    with nullcontext() if request.part else explain_resumability_on_interrupt(store, "points"):
        points = load_fastest_run_per_point(store) if steady is not None else ()
        unsteady = (
            point for point in points if point.interquartile_over_median * 100 > (steady or 0.0)
        )
        done = measure_bench_points_within_budget(
            request.points,
            partial(plan_point_sweep, request),
            TimeBudget(options.budget),
            replace(listener, finished=ingest_and_report_finished_run),
            frozenset((point.model, point.batch) for point in unsteady),
        )
    runs = (
        BenchRun(point, result.status, result.reason, result.skipped, result.folder)
        for point, result in done.results
    )
    return BenchResult(request, tuple(runs), done.left)


def _build_sweep_facts(folder: Path, command_line: str) -> SweepFacts:
    return SweepFacts(folder.parent.name, "sweep", command_line, platform.node())


def make_progress_listener(request: BenchRequest, events: Events) -> SweepListener:
    """Return what tells ``events`` how each point went; of complete ones only a part of a bench
    does, whose lines are the log of a job."""
    finished: list[RunResult] = []

    def report_start(setting: SweepSetting, stage: str) -> None:
        events.progress(str(setting), len(finished), len(request.points))

    def report_outcome(result: RunResult) -> None:
        finished.append(result)
        name = f"{result.folder.parent.name}/{result.folder.name}"
        if not result.skipped:
            events.note(f"{name}: {describe_outcome(result)}")
        elif request.part is not None:
            events.note(f"{name}: already complete, skipped")

    return SweepListener(started=report_start, finished=report_outcome, stopped=report_outcome)


def parse_shard_or_slurm_task(
    text: str | None, environment: Mapping[str, str] = os.environ
) -> tuple[int, int] | None:
    """Return (2, 8) for "2/8", or this task's part of a Slurm array; None if no other task shares
    the work. Raises UsageError."""
    if text is not None:
        match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UsageError(
                f"`shard`: expected I/N, got '{text}'",
                "Use for example 2/8 for the second of eight parts",
            )
        return int(match[1]), int(match[2])
    names = {"ID": "", "COUNT": "", "MIN": "0", "STEP": "1"}
    values = [environment.get(f"SLURM_ARRAY_TASK_{name}", names[name]) for name in names]
    if not all(value.isdecimal() for value in values):
        return None
    task, tasks, first, step = map(int, values)
    number = (task - first) // max(step, 1) + 1
    if number > tasks:
        problem = (
            f"the task numbers of the Slurm array have gaps: task {task} of {tasks} from {first}"
        )
        raise UsageError(problem, "Set the part with `shard` I/N")
    return number, tasks


def plan_point_sweep(request: BenchRequest, point: PointToMeasure) -> SweepRequest:
    """Return the sweep of one point: one per network, named after everything that is asked of it,
    with one batch size."""
    bench = request.bench
    names = ("device", "mode", "precision", "steps", "warmup", "threads", "within")
    options = {f"--{name}": getattr(bench, name) for name in names}
    options |= {"--layer-steps": bench.layer_steps or None, "--model": point.model}
    arguments = format_option_words(options)
    digest = hashlib.sha256("\0".join(arguments).encode()).hexdigest()[:8]
    return SweepRequest(
        profiler=NoProfiler(),
        workload=WORKLOAD,
        workload_arguments=arguments,
        device=bench.device,
        host=platform.node(),
        batches=(point.batch,),
        out=request.options.out,
        command_line=request.options.command_line,
        timeout=request.options.timeout,
        no_store=request.part is not None,
        sweep_name=f"bench-{make_safe_file_name(point.model.replace('=', ''))}-{digest}",
        sample="off",
    )


def ingest_bench_runs_returning_errors(
    runs_folder: Path, store: Path, command_line: str
) -> tuple[str, ...]:
    """Ingest the run folders that a bench left, its parts too; runs nothing. Return why folders
    could not be read."""
    tasks = [
        IngestTask(
            ReportSource(folder, folder),
            _build_sweep_facts(folder, command_line),
            features=sum_layer_call_features,
        )
        for folder in (path.parent for path in sorted(runs_folder.rglob("run.json")))
    ]
    with explain_resumability_on_interrupt(store, "points"):
        settings = IngestSettings(store, limit=memory.parse_memory_limit(None))
        outcomes = [outcome for _, outcome in ingest_run_folders(tasks, settings)]
    return tuple(outcome.text for outcome in outcomes if isinstance(outcome, ReportFailed))


def load_fastest_run_per_point(store: Path = DEFAULT_STORE) -> list[BenchPoint]:
    """The fastest run of each point in a store, in the order they were first measured."""
    with database.open_store_for_reading(store) as connection:
        return keep_fastest_points(
            list_unprofiled_bench_points(
                load_readable_runs(connection, read.list_bench_run_ids(connection))
            )
        )


def load_bench_points(
    store: Path = DEFAULT_STORE, *, file: Path | None = None, family: str | None = None
) -> list[BenchPoint]:
    """The points of a store, or of a file of 'perfctl bench export'; ``family``: only those
    of this family.

    Raises PerfctlError when there is no point, UsageError when there is none of the family,
    ReportError for a file of another kind.
    """
    points = list(read_bench_points(file)) if file else load_fastest_run_per_point(store)
    if not points:
        raise PerfctlError(
            f"{file or store}: no benchmark measurements found", "Run 'perfctl bench FILE' first"
        )
    chosen = [point for point in points if family in (None, point.family)]
    if not chosen:
        there = dict.fromkeys(point.family for point in points)
        raise UsageError(
            f"no measurements of the family '{family}' (`family`)", f"Available: {', '.join(there)}"
        )
    return chosen


def draw_bench_charts(store: Path) -> dict[str, Picture]:
    """Name -> chart: time against each figure, and time, memory and FLOPs against each size; empty
    without a bench."""
    from perfctl.orchestrator.report.charts import relations

    points = load_fastest_run_per_point(store)
    return relations.draw_step_time_against_features(
        points
    ) | relations.draw_all_quantity_size_charts(list_size_observations(points))


def run_or_plan_bench(options: BenchOptions, events: Events) -> BenchResult | BenchRequest:
    """Measure the points of a file, or return what would be measured."""
    request = plan_bench(read_bench_file(options.file), options)
    return request if options.dry_run else run_bench(request, events)


def build_bench_view(result: BenchResult | BenchRequest) -> View:
    """Return every point and every network that is skipped, or what was measured."""
    if isinstance(result, BenchRequest):
        return _build_planned_points_view(result)
    request = result.request
    wrote = f"Wrote {request.store_path}. Next: perfctl bench show"
    if request.part:
        done = "When all parts are done: the same command without --shard, --budget 0"
        wrote = f"Wrote {request.options.out}. {done}"
    complete = [run for run in result.runs if run.status == "ok"]
    title = (
        f"{len({run.point for run in complete})} of {len(request.points)} points measured, "
        f"{sum(not run.skipped for run in complete)} of them now"
    )
    return View(title, lines=(wrote,))


def _build_planned_points_view(request: BenchRequest) -> View:
    points, models = request.points, {point.model for point in request.points}
    rows = [(point.model, point.batch, amount_cell(point.flops, "FLOP")) for point in points]
    columns = [*text_columns("network"), Column("batch size"), Column("per step", unit="FLOP")]
    return View(
        f"{len(points)} points of {len(models)} networks, {len(request.skipped)} skipped",
        ("1 multiply-add is 2 FLOPs",),
        (build_complete_table("Points", columns, rows, is_dense=True),),
        notes=tuple(f"skipped: {reason}" for reason in list_skip_reasons(request)),
    )


def list_skip_reasons(request: BenchRequest) -> list[str]:
    """Return why networks are skipped, each reason once, with the number of networks if there are
    several."""
    counts = Counter(skipped.reason for skipped in request.skipped)
    return [
        f"{reason} ({count} networks)" if count > 1 else reason for reason, count in counts.items()
    ]


@dataclass(frozen=True, slots=True)
class BenchShowOptions:
    """Show the measured networks, and what their times depend on.

    For each family, it lists the estimated values that correlate with the step time.
    """

    file: Annotated[
        Path | None,
        Option(
            "File that perfctl bench export wrote. Default: the results database.", is_argument=True
        ),
    ] = None
    _: KW_ONLY
    family: Annotated[str | None, Option("Only this family: vgg, resnet, inception or mlp.")] = None
    store: Store = DEFAULT_STORE


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One point that was measured."""

    JSON_INLINED = ("point",)

    point: BenchPoint
    features: Mapping[str, float]
    """Estimated figure -> its value for one step."""


@dataclass(frozen=True, slots=True)
class MeasuredPoints:
    """Every point and every coefficient."""

    JSON_KEYS = ("points", "correlations")

    points: list[BenchRow]
    correlations: list[TimeCorrelation]
    is_stored: bool
    """Whether they are those of a results database, of which charts can be drawn."""


def load_points_and_correlations(options: BenchShowOptions, events: Events) -> MeasuredPoints:
    """Return the points and the correlations of each family."""
    points = load_bench_points(options.store, file=options.file, family=options.family)
    rows = [BenchRow(point, collect_features_with_batch(point)) for point in points]
    return MeasuredPoints(rows, correlate_features_with_step_time(points), options.file is None)


def build_points_view(measured: MeasuredPoints) -> View:
    """Return the points, and a table of correlations for each family."""
    from perfctl.orchestrator.report.studies import cost

    by_family = group_by(measured.correlations, lambda row: row.family)
    tables = [cost.build_bench_points_table([row.point for row in measured.points])]
    tables += [cost.build_time_correlation_table(*family) for family in by_family.items()]
    chart = "Charts: perfctl plot bench-flops-forward; perfctl plot --list lists all"
    return View(
        "",
        tables=tuple(table for table in tables if table is not None),
        notes=(chart,) if measured.is_stored else (),
        rows_on_terminal=ROWS_MAX,
    )


@dataclass(frozen=True, slots=True)
class BenchExportOptions:
    """Write all points of the results database into one JSON file.

    The file has the steps, phases, layers, values and device of each point.

    Raises UsageError if the file exists and ``force`` is false, PerfctlError without a point.
    """

    out: Annotated[Path, Option("FILE.json.", "Output")] = Path("bench.json")
    _: KW_ONLY
    force: Force = False
    store: Store = DEFAULT_STORE


@dataclass(frozen=True, slots=True)
class ExportedPoints:
    """The file that was written."""

    path: Path
    points: int
    networks: int


def write_points_file(options: BenchExportOptions, events: Events) -> ExportedPoints:
    """Write all points of a store into one JSON file."""
    raise_if_output_not_replaceable(options.out, force=options.force)
    points = load_bench_points(options.store)
    with replace_when_done(options.out, force=options.force) as partial_file:
        partial_file.write_text(format_bench_file(points), encoding="utf-8")
    return ExportedPoints(options.out, len(points), len({point.model for point in points}))


def build_export_view(exported: ExportedPoints) -> View:
    """Return what was written."""
    return View(f"Wrote {exported.path}: {exported.points} points of {exported.networks} networks")


def _insert_run_subcommand(arguments: list[str]) -> list[str]:
    """Return the words with "run" before a file: ``perfctl bench grid.toml`` measures it."""
    is_file = arguments and arguments[0] not in (*GROUP.commands, "--help")
    return ["run", *arguments] if is_file else arguments


GROUP = Group(
    "Benchmark families of networks, and show what their time depends on. perfctl bench FILE is "
    "short for bench run FILE.",
    {
        "run": Command(BenchOptions, run_or_plan_bench, build_bench_view),
        "show": Command(BenchShowOptions, load_points_and_correlations, build_points_view),
        "export": Command(
            BenchExportOptions, write_points_file, build_export_view, has_document=False
        ),
    },
    _insert_run_subcommand,
)
