"""The study of inference at low batch: each model at each batch size, timed by itself and then
under a profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from perfctl.orchestrator.commands.study.folder import StudyFolder, StudyParts, claim, none_if_empty
from perfctl.orchestrator.errors import PartlyDone, PerfctlError, UsageError
from perfctl.orchestrator.events import SILENT, Events
from perfctl.orchestrator.ingest.context import Event, Failed, Found, Note, Warned
from perfctl.orchestrator.launch.sweep.options import SweepOptions, resolve_device
from perfctl.records.sqlite_header import HEADER_BYTES, application_id

if TYPE_CHECKING:
    from perfctl.orchestrator.launch.sweep.request import SweepRequest
    from perfctl.orchestrator.report.studies.records import StudyPage
    from perfctl.records.run import Run

PROFILERS = ("auto", "nsys", "torch", "dlprof", "none")
LINE = 15
"""The line of dlprof_summary.csv that the script of the published study printed."""


@dataclass(frozen=True, slots=True)
class InferenceStudy:
    """What is asked of the study."""

    models: tuple[str, ...] = ()
    """Of torchvision; empty only with ``recorded``."""
    batches: tuple[int, ...] = (1, 5, 10, 15, 20)
    images: int = 3000
    """Of each timed run."""
    weights: str = "default"
    """default, none (random, so no accuracy), or a checkpoint."""
    weights_dir: Path | None = None
    data: str = "synthetic"
    """synthetic, or imagenet with ``data_dir``; accuracy needs imagenet."""
    data_dir: Path | None = None
    dataloader_workers: int = 0
    profiler: str = "auto"
    """What the three reports come from: nsys, torch or dlprof; auto: nsys where it is and a GPU,
    else torch; none."""
    profiled_steps: int = 10
    """Batches of each profiled run."""
    warmup: int | None = None
    device: str = "auto"
    precision: str | None = None
    timeout: float | None = None
    ends_only: bool = False
    """Profile only the smallest and the largest batch size."""
    recorded: Path | None = None
    """Run nothing: a folder, report or store that has the runs."""


def quick(study: InferenceStudy) -> InferenceStudy:
    """The same with few images, random weights and, where none are named, two small models at three
    batch sizes."""
    models = study.models or ("resnet18", "mobilenet_v2")
    batches = (1, 5, 20) if study.batches == InferenceStudy().batches else study.batches
    return replace(
        study,
        models=models,
        batches=batches,
        images=20,
        weights="none",
        profiled_steps=2,
        warmup=1,
        ends_only=True,
    )


@dataclass(frozen=True, slots=True)
class InferenceResult:
    """What became of the study; ``page`` builds it from the runs."""

    folder: StudyFolder
    page: Callable[[], StudyPage]
    problems: tuple[str, ...]
    """Parts that failed, one sentence each."""
    parts: int

    def check(self) -> None:
        """Raises PartlyDone where a part failed."""
        if self.problems:
            raise PartlyDone(
                f"{len(self.problems)} of {self.parts} parts failed or are partial: "
                f"{self.problems[0]}"
            )


def inference_study(
    asked: InferenceStudy,
    out: Path,
    *,
    events: Events = SILENT,
    command_line: str = "perfctl study inference",
) -> InferenceResult:
    """Run what is asked, or read what is recorded, into ``out``. The same call goes on where
    it stopped.

    Everything is checked first. A model or batch size that fails leaves the rest;
    ``InferenceResult.check`` raises for it. Raises UsageError, also where ``out`` holds another
    study; ToolMissing; Interrupted; StoreError.
    """
    folder = StudyFolder(out)
    if asked.recorded is not None:
        return _recorded(asked, folder, events, command_line)
    sweeps = _sweeps(asked, folder, command_line)
    claim(folder, "inference", asdict(asked))
    return _run(sweeps, folder, events, command_line)


def parts(asked: InferenceStudy, out: Path) -> StudyParts:
    """Every sweep of the study as a task of a cluster; the finishing command gathers their runs.
    Raises UsageError."""
    _check(asked)
    folder = StudyFolder(out)
    found = []
    for number, (label, arguments, options, profiler) in enumerate(_asked(asked, folder, "")):
        model, steps = (
            label.partition(" ")[0],
            ["--steps", str(options.steps)] if options.steps is not None else [],
        )
        words = [
            "infer",
            "--models",
            model,
            "--batches",
            ",".join(map(str, options.batches)),
            "--profiler",
            profiler,
        ]
        # a store of its own: two nodes never write the same file
        words += [
            "--device",
            asked.device,
            "--out",
            str(folder.runs),
            "--store",
            str(out / f"part{number}.db"),
        ]
        words += [*steps, *arguments]
        words += ["--warmup", str(asked.warmup)] if asked.warmup is not None else []
        words += ["--precision", asked.precision] if asked.precision is not None else []
        found.append((label, tuple(words)))
    finish = ("study", "inference", "--out", str(out), "--from", str(folder.runs))
    return StudyParts("inference", folder, tuple(found), finish, asked.device)


def _asked(
    asked: InferenceStudy, folder: StudyFolder, command_line: str
) -> Iterator[tuple[str, tuple[str, ...], SweepOptions, str]]:
    """(label, words for the workload, options, profiler) of each sweep: timed, then under
    a profiler."""
    ends = (
        tuple(sorted({min(asked.batches), max(asked.batches)}))
        if asked.ends_only
        else asked.batches
    )
    shared = ["--weights", asked.weights]
    shared += ["--weights-dir", str(asked.weights_dir)] if asked.weights_dir is not None else []
    shared += ["--data", asked.data] if asked.data != "synthetic" else []
    shared += ["--data-dir", str(asked.data_dir)] if asked.data_dir is not None else []
    shared += (
        ["--dataloader-workers", str(asked.dataloader_workers)] if asked.dataloader_workers else []
    )
    plain = SweepOptions(
        batches=asked.batches,
        warmup=asked.warmup,
        precision=asked.precision,
        device=asked.device,
        out=folder.runs,
        store=folder.store,
        timeout=asked.timeout,
        command_line=command_line,
    )
    profiler = _profiler(asked)
    for model in asked.models:
        yield f"{model} timed", ("--images", str(asked.images), *shared), plain, "none"
        if profiler != "none":
            options = replace(plain, batches=ends, steps=asked.profiled_steps)
            yield f"{model} under {profiler}", tuple(shared), options, profiler


def _profiler(asked: InferenceStudy) -> str:
    from perfctl.orchestrator.launch.machine import tools

    if asked.profiler not in PROFILERS:
        raise UsageError(
            f"`profiler`: '{asked.profiler}' is not known", f"Say {', '.join(PROFILERS)}"
        )
    if asked.profiler != "auto":
        return asked.profiler
    return "nsys" if resolve_device(asked.device) == "cuda" and tools.find("nsys") else "torch"


def _sweeps(
    asked: InferenceStudy, folder: StudyFolder, command_line: str
) -> list[tuple[str, SweepRequest]]:
    """(label, request), everything checked. Raises UsageError, ToolMissing."""
    from perfctl.orchestrator.launch.catalog import check_tools
    from perfctl.orchestrator.launch.sweep.plan import plan_inference

    _check(asked)
    found = []
    for label, arguments, options, profiler in _asked(asked, folder, command_line):
        model = label.partition(" ")[0]
        request = plan_inference([model], profiler, options, arguments=arguments)[model]
        check_tools(request.profiler, request.device)
        found.append((label, request))
    return found


def _check(asked: InferenceStudy) -> None:
    """What can be checked on any machine. Raises UsageError."""
    if not asked.models:
        raise UsageError(
            "`models` names no model",
            "Say for instance resnet18,densenet201, or ask for the `quick` form",
        )
    if asked.profiled_steps < 1:
        raise UsageError(f"`profiled_steps` must be at least 1, got {asked.profiled_steps}")
    if asked.images < max(asked.batches, default=1):
        raise UsageError(f"`images` must fill a batch of {max(asked.batches)}, got {asked.images}")
    if len(set(asked.models)) < len(asked.models):
        raise UsageError(f"a model stands twice in {','.join(asked.models)}", "Name each once")


def _run(
    sweeps: Sequence[tuple[str, SweepRequest]],
    folder: StudyFolder,
    events: Events,
    command_line: str,
) -> InferenceResult:
    from perfctl.orchestrator.ingest.sweep import run_sweep
    from perfctl.orchestrator.stored_runs import runs_of_sweeps

    problems = []
    for label, request in sweeps:
        events.note(f"{label}:")
        done = run_sweep(request, events)
        problems += [
            f"{label}, batch {one.batch_size}: {one.status}, {one.reason}" for one in done.not_whole
        ]

    def made() -> StudyPage:
        runs = runs_of_sweeps(folder.store, [one.name for _, one in sweeps])
        return _page(runs, folder.store, command_line)

    return InferenceResult(
        folder, made, tuple(problems), sum(len(one.options.batches) for _, one in sweeps)
    )


def _page(
    runs: Sequence[Run], store: Path, command_line: str, failed: Sequence[str] = ()
) -> StudyPage:
    from perfctl.orchestrator.report.studies.inference import InferenceRequest, inference_page

    lines = {run.id: line for run in runs if (line := _line_of_summary(run, store)) is not None}
    return inference_page(runs, InferenceRequest(command_line, lines, tuple(failed)))


def _line_of_summary(run: Run, store: Path) -> str | None:
    """Line 15 of the run's dlprof_summary.csv; None where there is no such file, or no
    such line."""
    if run.profiler != "dlprof" or run.artifact is None:
        return None
    place = store.resolve().parent / run.artifact
    file = place / "dlprof_summary.csv" if place.is_dir() else place
    if file.suffix != ".csv" or not file.is_file():
        return None
    with file.open(encoding="utf-8", errors="replace") as lines:
        return next((line.strip()[:200] for line in islice(lines, LINE - 1, LINE)), None)


def _recorded(
    asked: InferenceStudy, folder: StudyFolder, events: Events, command_line: str
) -> InferenceResult:
    """The page of a store, or of the reports and run folders at a path, which go into the
    study's store."""
    from perfctl.orchestrator.ingest.ingest import ingest
    from perfctl.orchestrator.store import DEFAULT_STORE as DEFAULT
    from perfctl.orchestrator.stored_runs import newest_runs

    assert asked.recorded is not None
    place = asked.recorded
    failed: tuple[str, ...] = ()
    if not place.exists():
        raise UsageError(
            f"{place}: there is no such file or folder",
            "Name a folder of reports, a report or a store",
        )
    store = place / DEFAULT if place.is_dir() else place
    if not _is_store(store):
        claim(folder, "inference", {"recorded": place.resolve()})
        store = folder.store
        with none_if_empty(folder):
            done = ingest(place, store, listener=partial(_say, events), command_line=command_line)
            if done.failed and not done.taken:
                done.check()
        failed = done.failed
    runs = [run for run in newest_runs(store) if run.mode != "train"]
    if not runs:
        raise PerfctlError(
            f"{place}: it holds no run of inference and no such report",
            "Name the folder that has them",
        )
    bad = tuple(
        f"run {run.id} ({run.profiler}): {run.status}, {run.reason}"
        for run in runs
        if run.status != "ok"
    )
    return InferenceResult(
        folder,
        lambda: _page(runs, store, command_line, failed),
        (*failed, *bad),
        len(runs) + len(failed),
    )


def _is_store(path: Path) -> bool:
    from perfctl.orchestrator.store.database import APPLICATION_ID

    if not path.is_file():
        return False
    with path.open("rb") as file:
        return application_id(file.read(HEADER_BYTES)) == APPLICATION_ID


def _say(events: Events, event: Event) -> None:
    """Say what an ingest says; its progress is not shown."""
    match event:
        case Found(total):
            events.note(f"reading {total} reports")
        case Note(text):
            events.note(text)
        case Warned(text) | Failed(text):
            events.warning(text)
