"""Run a sweep under a profiler, or replay a recorded one, and store each run as soon as it is
finished. Or sweep inference over models of torchvision: latency, images/s and accuracy, each batch
size a process of its own.

Before ncu, one plain step under torch.profiler says what it launches, and which layers
repeat another.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from perfctl import parsers
from perfctl.orchestrator import memory, pool
from perfctl.orchestrator.actions.sweep.request import check_ready, sweep_request, workload_errors
from perfctl.orchestrator.counts.kernels.replays import (
    FirstPass,
    ReplayCost,
    first_pass,
    read_first_pass,
    replay_cost,
)
from perfctl.orchestrator.errors import (
    Interrupted,
    PartlyDone,
    PerfctlError,
    RunFailed,
    ToolMissing,
    UsageError,
)
from perfctl.orchestrator.events import SILENT, Messages
from perfctl.orchestrator.faults import lost
from perfctl.orchestrator.launch.catalog import PROFILERS
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers import counters
from perfctl.orchestrator.launch.profilers.base import Command, Profiler
from perfctl.orchestrator.launch.profilers.ncu import FIRST_PASS, Ncu
from perfctl.orchestrator.launch.profilers.replay import Replay
from perfctl.orchestrator.launch.profilers.torch import TorchProfiler
from perfctl.orchestrator.launch.sweep import sweep as sweeps
from perfctl.orchestrator.launch.sweep.folders import (
    attempts,
    is_whole,
    read_run_record,
    write_json,
)
from perfctl.orchestrator.launch.sweep.options import DEFAULTS, SweepOptions
from perfctl.orchestrator.launch.sweep.request import Listener, RunResult, SweepRequest
from perfctl.orchestrator.store import DEFAULT_STORE as DEFAULT
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.store.write import SweepFacts, Written
from perfctl.orchestrator.stored_runs import loaded
from perfctl.records.report import Kernel
from perfctl.workloads.run.options import parse_arguments
from perfctl.workloads.spec import SpecError

if TYPE_CHECKING:
    from perfctl.orchestrator.ingest.context import Features
    from perfctl.records.run import Run

WORKLOAD = "torchvision_infer"


@dataclass(frozen=True, slots=True)
class PlainStep:
    """What one plain step at one batch size launched."""

    kernels: tuple[Kernel, ...]
    found: FirstPass


def plain_step(
    request: SweepRequest, batch: int, listener: Listener, plain: Profiler | None = None
) -> PlainStep:
    """Run one step of the request's program without ncu. ``plain``: what records it; None for
    torch.profiler.

    What it leaves is read by a child with a limit on memory. Raises RunFailed when the step does
    not run, or its report cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="perfctl-first-") as folder:
        one = replace(request, profiler=plain or TorchProfiler()).with_options(
            batches=(batch,),
            out=Path(folder),
            sweep_name="first",
            again=False,
            repeat=1,
            no_store=False,
            sample="off",
        )
        result = sweeps.run(one, listener)[0]
        if result.status == "failed":
            raise RunFailed(
                f"the plain step did not run: {result.reason}", "perfctl torch --steps 1 shows why"
            )
        try:
            kernels, found = pool.call(
                "the plain step", partial(_read, result.folder), memory.bytes_of(None)
            )
        except PerfctlError as error:
            raise RunFailed(f"what the plain step left cannot be read: {error}") from error
        return PlainStep(tuple(kernels), read_first_pass(found))


def _read(folder: Path) -> tuple[list[Kernel], dict[str, Any]]:
    """The launches of the run in this folder, and the first pass in its JSON form. Raises
    ReportError."""
    record = read_run_record(folder) or {}
    report = parsers.parse(folder / str(record["artifact"]))
    kernels = list(report.kernels)
    own = folder / "workload.json"
    ops = parsers.parse(own).ops if own.is_file() else ()
    return kernels, first_pass(kernels, ops, report.ranges).as_json()


def with_first_pass(request: SweepRequest, listener: Listener) -> SweepRequest:
    """The request with a file for each batch size of what its plain step launched, where ncu is to
    leave out launches that repeat another; any other request as it is. The files are in the
    sweep's folder."""
    ncu = request.profiler
    if not isinstance(ncu, Ncu) or ncu.launches != "distinct" or request.origin != "measured":
        return request
    request = request.with_options(sweep_name=request.name)
    folder = request.folder.absolute() / FIRST_PASS
    for batch in request.options.batches:
        whole = [path for path in attempts(request.folder, batch) if is_whole(path)]
        if len(whole) >= request.options.repeat and not request.options.again:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        found = plain_step(request, batch, replace(listener, finished=lambda result: None)).found
        write_json(folder / f"b{batch}.json", found.as_json())
        listener.noted(_said(batch, found))
    return replace(request, profiler=replace(ncu, first_pass=folder))


def _said(batch: int, found: FirstPass) -> str:
    return (
        f"batch {batch}: {found.all_launches:,} launches; {found.saved:,} repeat another and are "
        "not replayed"
    )


@dataclass(frozen=True, slots=True)
class SweepListener(Listener):
    """Hears how a sweep goes; the functions of ``launch.Listener``, and more."""

    known: Callable[[RunResult, int], None] = lambda result, run_id: None
    """Called when the run's report is in the store already, as run ``run_id``."""


Listening = Callable[[SweepRequest], AbstractContextManager[SweepListener]]
"""Gives what hears of a request while it runs: a progress bar, for instance, that goes away at
the end."""


@contextmanager
def unheard(request: SweepRequest) -> Iterator[SweepListener]:
    yield SweepListener()


@dataclass(frozen=True, slots=True)
class Swept:
    """One sweep that has run."""

    JSON_KEYS = ("name", "folder", "store", "runs")
    JSON_NAMES: ClassVar = {"name": "sweep"}

    request: SweepRequest
    store: Path | None
    """None where nothing was written to one."""
    runs: tuple[RunResult, ...]
    """How each batch size went, in order; of several repeats each."""

    @property
    def name(self) -> str:
        """Name of the sweep, in the store and of its folder."""
        return self.request.name

    @property
    def folder(self) -> Path:
        """Folder of all that was written."""
        return self.request.folder

    @property
    def not_whole(self) -> tuple[RunResult, ...]:
        """The runs that failed or are partial; ``reason`` says why."""
        return tuple(run for run in self.runs if run.status != "ok")

    def check(self) -> None:
        """Raises PartlyDone where a run failed or is partial."""
        failed = self.not_whole
        if failed:
            sizes = ", ".join(str(result.batch_size) for result in failed)
            asked = len({result.batch_size for result in self.runs})
            problem = (
                f"{len(failed)} of {asked} batch sizes failed or are partial ({sizes}): "
                f"{failed[0].reason}"
            )
            raise PartlyDone(problem, f"Logs are in {failed[0].folder}")


@dataclass(frozen=True, slots=True)
class ModelSwept:
    """The sweep of one model under ``perfctl infer``."""

    JSON_INLINED = ("swept",)

    model: str
    swept: Swept


@dataclass(frozen=True, slots=True)
class PlannedCommand:
    """A command that a sweep would start: --dry-run."""

    JSON_INLINED = ("command",)

    batch_size: int
    command: Command


@dataclass(frozen=True, slots=True)
class ModelCommand:
    """A command that ``perfctl infer`` would start: --dry-run."""

    JSON_INLINED = ("planned",)

    model: str
    planned: PlannedCommand


def sweep(
    profiler: Profiler | str,
    options: SweepOptions,
    *,
    arguments: Sequence[str] = (),
    program: Sequence[str] | None = None,
    listening: Listening = unheard,
    messages: Messages = SILENT,
) -> Swept:
    """Check everything, then run each batch size in a process of its own under ``profiler``, and
    store what it left.

    ``profiler``: nsys, ncu, torch, dlprof or none, or one with options of its own. ``arguments``
    are words for the built-in workload; ``program`` is the command of a program of the user's, with
    {batch} where the batch size goes. A batch size that fails does not stop the others: see
    ``Swept.not_whole``. The same call goes on where it stopped.

    Raises UsageError and ToolMissing before anything runs, Interrupted when asked to
    stop, StoreError.
    """
    made = profiler_named(profiler) if isinstance(profiler, str) else profiler
    options = _with_command_line(options, f"perfctl.sweep({made.name!r}, ")
    command = tuple(program) if program is not None else None
    request = sweep_request(made, options, tuple(arguments), command, messages=messages)
    return run_request(request, options.store, listening)


def _with_command_line(options: SweepOptions, call: str) -> SweepOptions:
    """For the store, the Python call in the place of a command line; of the options those that are
    not at their default."""
    if options.command_line:
        return options
    said = {one.name: getattr(options, one.name) for one in fields(options)}
    changed = (
        f"{one.name}={said[one.name]!r}" for one in fields(options) if said[one.name] != one.default
    )
    return replace(options, command_line=f"{call}SweepOptions({', '.join(changed)}))")


def profiler_named(
    name: str, known: Sequence[str] = ("nsys", "ncu", "torch", "dlprof", "none")
) -> Profiler:
    """A profiler by its name, which is one of ``known``. Raises UsageError for another."""
    if name not in known:
        raise UsageError(f"`profiler`: '{name}' is not known", f"Say {', '.join(known)}")
    return cast(Callable[[], Profiler], PROFILERS[name])()


def replay(
    folder: Path | str,
    options: SweepOptions = DEFAULTS,
    *,
    all_batches: bool = True,
    listening: Listening = unheard,
) -> Swept:
    """Replay a recorded sweep of any profiler: needs no GPU and no tool, and is marked as
    recorded everywhere.

    ``folder`` holds b16, b32 and so on. ``all_batches``: those that were recorded, instead of
    ``options.batches``. Raises UsageError where ``folder`` is not a recorded sweep.
    """
    options = _with_command_line(options, f"perfctl.replay({str(folder)!r}, ")
    return run_request(
        replay_request(folder, options, all_batches=all_batches), options.store, listening
    )


def replay_request(
    folder: Path | str, options: SweepOptions, *, all_batches: bool = True
) -> SweepRequest:
    """The request of a replay, checked. Raises UsageError."""
    recorded = Replay(Path(folder))
    sizes = recorded.batches() if all_batches else options.batches
    options = replace(options, batches=sizes, repeat=recorded.repeats(sizes))
    options = replace(options, workload=recorded.workload(), device=recorded.device())
    return sweep_request(recorded, options, (), None, origin="recorded")


def planned(request: SweepRequest, store: Path | None = None) -> list[PlannedCommand]:
    """Return every command that the sweep would start, in order; ``store`` as for
    :func:`run_request`.

    Raises StoreError where that would find no folder for the store.
    """
    if not request.options.no_store:
        database.check_folder(_store_of(request, store))
    return [PlannedCommand(*command) for command in sweeps.commands(request)]


def _store_of(request: SweepRequest, store: Path | None) -> Path:
    return store or request.options.out.parent / DEFAULT


def run_request(request: SweepRequest, store: Path | None, listening: Listening = unheard) -> Swept:
    """Run a request and store its runs; ``store`` None stands for perfctl.db beside ``out``.

    Raises ToolMissing before anything runs, Interrupted when asked to stop.
    """
    request = check_ready(request)
    if request.profiler.name == "ncu":
        with listening(request) as listener:
            request = with_first_pass(request, listener)
    if (
        request.options.no_store
    ):  # others may be running other batch sizes of this sweep on other machines
        with listening(request) as listener:
            return Swept(request, None, tuple(sweeps.run(request, listener)))
    store = _store_of(request, store)
    facts = SweepFacts(request.name, "sweep", request.options.command_line, request.host)
    limit = memory.bytes_of(None)
    with storing(store, "batch sizes"), listening(request) as listener:

        def finished(result: RunResult) -> None:
            again = request.options.again and not result.skipped
            written = take_folder(result.folder, facts, limit, store=store, again=again)
            if written is not None and not written.new and not result.skipped:
                listener.known(result, written.run_id)
            listener.finished(result)

        return Swept(
            request, store, tuple(sweeps.run(request, replace(listener, finished=finished)))
        )


def take_folder(
    folder: Path,
    facts: SweepFacts,
    limit: int,
    *,
    store: Path,
    again: bool,
    features: Features | None = None,
) -> Written | None:
    """Take a run that has ended into the store, in a worker with ``limit`` bytes of memory;
    ``features`` works out what is stored about its estimate.

    None where its folder cannot be read: that is said, and costs this run alone.
    """
    from perfctl.orchestrator.ingest.context import Failed, Settings, Task
    from perfctl.orchestrator.ingest.find import Source
    from perfctl.orchestrator.ingest.ingest import take_runs

    task = Task(Source(folder, folder), facts, features=features)
    ((_, outcome),) = take_runs([task], Settings(store, again=again, limit=limit))
    if isinstance(outcome, Failed):
        lost(outcome.text)
        return None
    return outcome.written


@contextmanager
def storing(store: Path, what: str) -> Iterator[None]:
    """The store can be written to, so that each run may go into it as soon as it is finished.
    ``what`` was whole is kept when a signal stops the block."""
    with database.writing(store):
        pass
    try:
        yield
    except Interrupted as stop:
        said = f"stopped; the {what} that were whole are kept"
        raise Interrupted(said, stop.signal_number, "The same command goes on from here") from stop


def stored_runs(store: Path, names: Sequence[str], *, latest_of_each: bool = True) -> list[Run]:
    """The newest run of each kind, or every run, of these sweeps, whole, oldest sweep first.

    A sweep has no runs of its own where all its reports are in the store already, as runs of
    another sweep.
    """
    with database.reading(store) as connection:
        numbers = {row["name"]: row["id"] for row in reversed(read.sweeps(connection))}
        chosen = sorted(numbers[name] for name in names if name in numbers)
        ids = (
            read.run_ids(connection, sweep=number, latest_of_each=latest_of_each)
            for number in chosen
        )
        return loaded(connection, chain.from_iterable(ids))


@dataclass(frozen=True, slots=True)
class NcuCost:
    """What ncu would replay at one batch size."""

    JSON_INLINED = ("cost",)

    batch_size: int
    layers: tuple[str, ...]
    """Layers that were asked for; empty for all."""
    cost: ReplayCost


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """``perfctl ncu --estimate-cost``: stands in ncu's place; nothing is counted, and nothing goes
    into the store."""

    ncu: Ncu
    plain: Profiler = field(default_factory=TorchProfiler)
    """What records the step."""

    def run(
        self,
        options: SweepOptions,
        arguments: tuple[str, ...] = (),
        program: tuple[str, ...] | None = None,
        messages: Messages = SILENT,
    ) -> NcuCost:
        """Run one plain step at the first batch size, and estimate from its launches how long ncu
        would take.

        Raises ToolMissing without a GPU, where there are no launches to count; RunFailed when the
        step does not run.
        """
        request = sweep_request(self.ncu, options, arguments, program, messages=messages)
        if request.device != "cuda" or not tools.has_gpu_driver():
            problem = (
                "`estimate_cost` counts the launches of one step on an NVIDIA GPU, and this run "
                "has none"
            )
            raise ToolMissing(
                problem, "Run it on the machine where ncu will count, with `device` cuda"
            )
        batch = request.options.batches[0]
        one = sweep_request(
            self.plain,
            replace(options, batches=(batch,), steps=1),
            arguments,
            program,
            messages=messages,
        )
        heard = Listener(
            started=lambda batch, stage: messages.note(f"batch {batch}: one plain step")
        )
        step = plain_step(check_ready(one), batch, heard, self.plain)
        return self._cost(request, step, options.steps or Ncu.steps)

    def _cost(self, request: SweepRequest, step: PlainStep, steps: int) -> NcuCost:
        layers, kernels = self.ncu.layers, step.kernels
        asked = counters.choose(self.ncu.metrics, request.visible).names
        repeated = step.found.saved if not layers else 0
        cost = replay_cost(
            kernels, layers=layers, steps=steps, counters=len(asked), repeated=repeated
        )
        if not cost.launches:
            names = (
                ", ".join(sorted({kernel.layer for kernel in kernels if kernel.layer})) or "none"
            )
            nowhere = f"`layer`: no launch of the step is in {', '.join(layers)}"
            problem = nowhere if layers else "the step launched no kernel"
            raise RunFailed(problem, f"Layers that launched kernels: {names}")
        return NcuCost(request.options.batches[0], layers, cost)


def infer(
    requests: dict[str, SweepRequest],
    store: Path | None = None,
    *,
    listening: Listening = unheard,
    began: Callable[[str], None] = lambda model: None,
    ended: Callable[[str, Swept], None] = lambda model, done: None,
) -> dict[str, Swept]:
    """Run the sweep of each model (from ``infer_requests``), one after the other; one that fails
    does not stop the others.

    ``store`` None stands for perfctl.db beside the sweeps' folder. Raises ToolMissing before
    anything runs, Interrupted.
    """
    done = {}
    for model, request in requests.items():
        began(model)
        done[model] = run_request(request, store, listening)
        ended(model, done[model])
    return done


def infer_requests(
    models: Sequence[str],
    profiler: str,
    options: SweepOptions,
    *,
    arguments: Sequence[str] = (),
    only_planned: bool = False,
    messages: Messages = SILENT,
) -> dict[str, SweepRequest]:
    """Model -> its sweep, everything checked before anything runs.

    ``arguments`` are words for the workload torchvision_infer. ``only_planned``: do not ask
    torchvision for the models. Raises UsageError.
    """
    if not models:
        raise UsageError("`models` names no model", "Say for instance resnet18,densenet201")
    if len(set(models)) < len(models):
        raise UsageError(f"a model stands twice in {','.join(models)}", "Name each once")
    made = profiler_named(profiler, ("none", "nsys", "torch", "dlprof"))
    asked = replace(options, workload=WORKLOAD)
    requests = {
        model: sweep_request(made, asked, ("--model", model, *arguments), None, messages=messages)
        for model in models
    }
    _check_workload(
        models,
        asked,
        tuple(arguments),
        inside=asked.image is not None,
        only_planned=only_planned,
    )
    return requests


def _check_workload(
    models: Sequence[str],
    asked: SweepOptions,
    arguments: tuple[str, ...],
    *,
    inside: bool,
    only_planned: bool,
) -> None:
    """Raises UsageError for batch sizes that the workload refuses, and for files and models that
    are not there.

    ``inside`` an image there may be other files and models than here, so only the workload itself
    can look.
    """
    with workload_errors(WORKLOAD):
        for batch in asked.batches:
            options, own = parse_arguments(
                WORKLOAD, ["--batch", str(batch), "--model", models[0], *arguments]
            )
            if inside:
                continue
            if own.weights not in ("default", "none") and not Path(own.weights).is_file():
                raise SpecError(
                    f"`weights` {own.weights}: there is no such file; use default, none, or a "
                    "checkpoint"
                )
            if options.data_dir is not None and not options.data_dir.is_dir():
                raise SpecError(f"`data_dir` {options.data_dir}: there is no such folder")
        if only_planned or inside:
            return
        from perfctl.workloads.models.torchvision import family_of

        for model in models:
            family_of(model)
