"""Run a sweep under a profiler, and store each run as soon as it is finished.

Before ncu, one plain step under torch.profiler says what it launches, and which layers repeat
another.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from perfctl import parsers
from perfctl.orchestrator import memory, pool
from perfctl.orchestrator.counts.kernels.replays import (
    FirstPass,
    ReplayCost,
    build_first_pass,
    estimate_replay_cost,
    parse_first_pass,
)
from perfctl.orchestrator.errors import (
    Interrupted,
    PartlyDone,
    PerfctlError,
    RunFailed,
    ToolMissing,
)
from perfctl.orchestrator.events import SILENT, Events
from perfctl.orchestrator.faults import warn_run_or_file_skipped
from perfctl.orchestrator.ingest.context import Features, IngestSettings, IngestTask, ReportFailed
from perfctl.orchestrator.ingest.find import ReportSource
from perfctl.orchestrator.ingest.ingest import ingest_run_folders
from perfctl.orchestrator.launch.catalog import require_tools_and_write_annotator
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers import counters
from perfctl.orchestrator.launch.profilers.base import Command
from perfctl.orchestrator.launch.profilers.ncu import FIRST_PASS, STEPS, Ncu
from perfctl.orchestrator.launch.profilers.torch import TorchProfiler
from perfctl.orchestrator.launch.sweep import sweep as sweeps
from perfctl.orchestrator.launch.sweep.folders import (
    SweepSetting,
    is_run_complete,
    list_run_folders,
    read_json_object,
    read_run_record,
    write_json_atomically,
)
from perfctl.orchestrator.launch.sweep.request import (
    OneSetting,
    RunResult,
    SweepListener,
    SweepRequest,
)
from perfctl.orchestrator.store import database
from perfctl.orchestrator.store.write import SweepFacts, WrittenRun
from perfctl.records.report import INPUT_SHAPE, Kernel
from perfctl.records.run import USE_BATCH_SIZE, find_ignored_batch_sizes

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class Swept:
    """One sweep that has run."""

    JSON_KEYS = ("name", "folder", "store", "runs")
    JSON_NAMES: ClassVar = {"name": "sweep"}

    request: SweepRequest
    store: Path | None
    """None where nothing was written to one."""
    runs: tuple[RunResult, ...]
    """How each setting went, in order; of several repeats each."""

    @property
    def name(self) -> str:
        """Name of the sweep, in the database and of its folder."""
        return self.request.name

    @property
    def folder(self) -> Path:
        """Folder of all that was written."""
        return self.request.folder

    def run_ids(self) -> list[int]:
        """Return its runs in the database."""
        assert self.store is not None
        query = "SELECT run.id FROM run JOIN sweep ON sweep.id = sweep_id WHERE sweep.name = ?"
        with database.open_store_for_reading(self.store) as connection:
            return [number for (number,) in connection.execute(query, (self.name,))]

    @property
    def failed_or_partial_runs(self) -> tuple[RunResult, ...]:
        """The runs that failed or are partial; ``reason`` says why."""
        return tuple(run for run in self.runs if run.status != "ok")

    def check(self) -> None:
        """Raises PartlyDone where a run failed or is partial, and where the user's program did not
        use the batch sizes."""
        failed = self.failed_or_partial_runs
        if failed:
            settings = {result.setting for result in self.runs}
            is_batched = all(setting.batch and not setting.others for setting in settings)
            names = ", ".join(
                str(result.batch_size if is_batched else result.setting) for result in failed
            )
            label = "batch sizes" if is_batched else "runs"
            problem = (
                f"{len(failed)} of {len(settings)} {label} failed or are incomplete ({names}): "
                f"{failed[0].reason}"
            )
            raise PartlyDone(problem, f"Logs are in {failed[0].folder}")
        unused = find_ignored_batch_sizes(
            (run.batch_size, _read_input_shape(run.folder)) for run in self.runs
        )
        if unused is not None and self.request.program is not None:
            raise PartlyDone(f"{self.request.workload} {unused}", USE_BATCH_SIZE)


def _read_input_shape(folder: Path) -> str | None:
    """Return the shape of the model's first input; None if it begins with the batch size."""
    record = read_json_object(folder / "workload.json") or {}
    shape: str | None = record.get("environment", {}).get(INPUT_SHAPE)
    return shape


@dataclass(frozen=True, slots=True)
class ModelResult(Generic[Record]):
    """The result of one model under ``perfctl infer``."""

    JSON_INLINED = ("result",)

    model: str
    result: Record


@dataclass(frozen=True, slots=True)
class ModelSwept(ModelResult[Swept]):
    """The sweep of one model under ``perfctl infer``."""


@dataclass(frozen=True, slots=True)
class PlannedCommand(OneSetting):
    """A command that a sweep would start: --dry-run."""

    JSON_KEYS = ("batch_size", "parameters", "command")
    JSON_INLINED = ("command",)

    command: Command


@dataclass(frozen=True, slots=True)
class ModelCommand(ModelResult[PlannedCommand]):
    """A command that ``perfctl infer`` would start: --dry-run."""


@dataclass(frozen=True, slots=True)
class NcuCost(OneSetting):
    """What ncu would replay at the first setting of a sweep."""

    JSON_KEYS = ("batch_size", "layers", "cost")
    JSON_INLINED = ("cost",)

    layers: tuple[str, ...]
    """Layers that were asked for; empty for all."""
    cost: ReplayCost


def list_planned_commands(request: SweepRequest) -> list[PlannedCommand]:
    """Return every command that the sweep would start, in order. Raises StoreError if there is no
    folder for its database."""
    if not request.no_store:
        database.raise_if_store_folder_missing(request.store_path)
    return [PlannedCommand(*command) for command in sweeps.list_sweep_commands(request)]


def run_and_store_sweep(request: SweepRequest, events: Events = SILENT) -> Swept:
    """Run a request and store each of its runs.

    Raises ToolMissing before anything runs, Interrupted when asked to stop.
    """
    request = require_tools_and_write_annotator(request)
    if request.profiler.name == "ncu":
        request = run_first_pass_to_find_repeated_launches(request, events)
    listener = make_sweep_listener(request, events)
    if request.no_store:  # others may be running other settings on other machines
        return Swept(request, None, tuple(sweeps.run_incomplete_settings(request, listener)))
    store, limit = request.store_path, memory.parse_memory_limit(None)
    facts = SweepFacts(request.name, "sweep", request.command_line, request.host)
    with explain_resumability_on_interrupt(store, "runs"):

        def store_run(result: RunResult) -> None:
            again = request.again and not result.skipped
            written = ingest_finished_run(result.folder, facts, limit, store=store, again=again)
            if written is not None and not written.new and not result.skipped:
                events.note(
                    f"{result.setting}: the same profiler report is already stored as run "
                    f"{written.run_id}"
                )
            listener.finished(result)

        results = sweeps.run_incomplete_settings(request, replace(listener, finished=store_run))
    return Swept(request, store, tuple(results))


def make_sweep_listener(request: SweepRequest, events: Events) -> SweepListener:
    """Return what tells ``events`` how the runs of a sweep go."""
    total = len(request.settings) * request.repeat
    finished: list[RunResult] = []

    def on_run_started(setting: SweepSetting, stage: str) -> None:
        if request.no_store:  # its output is the log of a job
            events.note(f"{setting}: {stage}")
        events.progress(f"{setting}: {stage}", len(finished), total)

    def on_run_finished(result: RunResult) -> None:
        finished.append(result)
        events.note(describe_result(result, request.repeat))

    def on_run_stopped(result: RunResult) -> None:
        if request.no_store:
            on_run_finished(result)

    return SweepListener(
        started=on_run_started, noted=events.note, finished=on_run_finished, stopped=on_run_stopped
    )


def describe_result(result: RunResult, repeats: int) -> str:
    """Return "batch 64: ok in 3.2 s"."""
    repeat = f", repeat {result.repeat} of {repeats}" if repeats > 1 else ""
    if result.skipped:
        return f"{result.setting}{repeat}: already complete, skipped (use --again to repeat it)"
    return f"{result.setting}{repeat}: {describe_outcome(result)}"


def describe_outcome(result: RunResult) -> str:
    """Return "ok in 3.2 s"."""
    seconds = f" in {result.duration_ns / 1e9:.1f} s" if result.duration_ns is not None else ""
    return f"{result.status}{seconds}" + (f": {result.reason}" if result.reason else "")


def ingest_finished_run(
    folder: Path,
    facts: SweepFacts,
    memory_limit_bytes: int,
    *,
    store: Path,
    again: bool,
    compute_features: Features | None = None,
) -> WrittenRun | None:
    """Take a run that has ended into the database, in a worker with ``memory_limit_bytes`` of
    memory; ``compute_features`` works out what is stored about its estimate.

    None if its folder cannot be read: that is said, and costs this run alone.
    """
    task = IngestTask(ReportSource(folder, folder), facts, features=compute_features)
    ((_, outcome),) = ingest_run_folders(
        [task], IngestSettings(store, again=again, limit=memory_limit_bytes)
    )
    if isinstance(outcome, ReportFailed):
        warn_run_or_file_skipped(outcome.text)
        return None
    return outcome.written


@contextmanager
def explain_resumability_on_interrupt(store: Path, label: str) -> Iterator[None]:
    """Check that the database can be written to, so that each finished run can go into it. When a
    signal stops the block, the error says that the complete ``label`` ("runs") stay."""
    with database.open_store_for_writing(store):
        pass
    try:
        yield
    except Interrupted as stop:
        message = f"stopped; perfctl keeps the complete {label}"
        raise Interrupted(
            message, stop.signal_number, "Repeat the same command to continue"
        ) from stop


@dataclass(frozen=True, slots=True)
class PlainStep:
    """What one plain step at one batch size launched."""

    kernels: tuple[Kernel, ...]
    first_pass: FirstPass


def run_step_without_ncu(request: SweepRequest, setting: SweepSetting, events: Events) -> PlainStep:
    """Run one step of the request's program under its profiler, which is not ncu.

    What it leaves is read by a child with a limit on memory. Raises RunFailed when the step does
    not run, or its report cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="perfctl-first-") as folder:
        step = replace(
            request,
            chosen=(setting,),
            out=Path(folder),
            sweep_name="first",
            again=False,
            repeat=1,
            to_end=False,
            no_store=False,
            sample="off",
        )
        events.progress(f"{setting}: one step without ncu", 0, 1)
        result = sweeps.run_incomplete_settings(step, SweepListener())[0]
        if result.status == "failed":
            raise RunFailed(
                f"the step without ncu failed: {result.reason}",
                "Run 'perfctl torch --steps 1' to see the reason",
            )
        try:
            kernels, launches = pool.call_in_worker(
                "the step without ncu",
                partial(_read_launches_and_repeats, result.folder),
                memory.parse_memory_limit(None),
            )
        except PerfctlError as error:
            raise RunFailed(
                f"the output of the step without ncu cannot be read: {error}"
            ) from error
        return PlainStep(tuple(kernels), parse_first_pass(launches))


def _read_launches_and_repeats(folder: Path) -> tuple[list[Kernel], dict[str, Any]]:
    """Return the launches of the run in this folder, and the first pass in its JSON form. Raises
    ReportError."""
    record = read_run_record(folder) or {}
    report = parsers.parse(folder / str(record["artifact"]))
    kernels = list(report.kernels)
    workload_record = folder / "workload.json"
    ops = parsers.parse(workload_record).ops if workload_record.is_file() else ()
    return kernels, build_first_pass(kernels, ops, report.ranges).as_json()


def run_first_pass_to_find_repeated_launches(request: SweepRequest, events: Events) -> SweepRequest:
    """Return the request with a file for each setting of what its plain step launched, if ncu
    is to leave out launches that repeat another; any other request as it is. The files are in the
    sweep's folder."""
    ncu = request.profiler
    if not isinstance(ncu, Ncu) or ncu.launches != "distinct" or request.origin != "measured":
        return request
    request = replace(request, sweep_name=request.name)
    folder = request.folder.absolute() / FIRST_PASS
    for setting in request.settings:
        complete_runs = [
            path for path in list_run_folders(request.folder, setting) if is_run_complete(path)
        ]
        if len(complete_runs) >= request.repeat and not request.again:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        plain = replace(request, profiler=TorchProfiler())
        launches = run_step_without_ncu(plain, setting, events).first_pass
        write_json_atomically(folder / f"{setting.file_name}.json", launches.as_json())
        events.note(
            f"{setting}: {launches.all_launches:,} launches; "
            f"{launches.launches_without_replay:,} repeat another launch and are not replayed"
        )
    return replace(request, profiler=replace(ncu, first_pass=folder))


def estimate_ncu_replay_cost(
    request: SweepRequest, plain_step_request: SweepRequest, events: Events = SILENT
) -> NcuCost:
    """Run one plain step at the first batch size, and estimate from its launches how long ncu would
    take. Nothing is counted, and nothing goes into the database.

    ``plain_step_request``: the request of the step. Raises ToolMissing without a GPU, where there
    are no launches to count; RunFailed when the step does not run.
    """
    ncu, setting = request.profiler, request.setting
    assert isinstance(ncu, Ncu)
    if request.device != "cuda" or not tools.has_gpu_driver():
        raise ToolMissing(
            "`estimate_cost` needs an NVIDIA GPU, and this run has none",
            "Run it on the machine on which ncu will count, with `device` cuda",
        )
    step = run_step_without_ncu(
        require_tools_and_write_annotator(plain_step_request), setting, events
    )
    layers, kernels = ncu.layers, step.kernels
    cost = estimate_replay_cost(
        kernels,
        layers=layers,
        steps=request.steps or STEPS,
        counter_count=len(counters.choose_counters(ncu.metrics, request.visible_devices).names),
        repeated_launches=0 if layers else step.first_pass.launches_without_replay,
    )
    if not cost.launches:
        names = ", ".join(sorted({kernel.layer for kernel in kernels if kernel.layer})) or "none"
        nowhere = f"`layer`: the step has no launch in {', '.join(layers)}"
        problem = nowhere if layers else "the step launched no kernel"
        raise RunFailed(problem, f"Layers that launched kernels: {names}")
    return NcuCost(setting, layers, cost)
