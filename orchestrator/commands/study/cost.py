"""The study of time and cost: families of networks measured, what goes with what, a fit, and the
calculator's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

from perfctl.orchestrator.commands import bench as benches
from perfctl.orchestrator.commands.study.folder import StudyFolder, StudyParts, claim, none_if_empty
from perfctl.orchestrator.errors import PartlyDone, PerfctlError, ToolMissing, UsageError
from perfctl.orchestrator.events import SILENT, Events, Messages, Silent
from perfctl.orchestrator.launch.sweep.bench_file import Bench, read_bench
from perfctl.orchestrator.predict.bench import Observation, observations
from perfctl.orchestrator.predict.prices import load

if TYPE_CHECKING:
    from perfctl.orchestrator.commands.bench import BenchRequest, BenchResult
    from perfctl.orchestrator.predict.fit import LeftOut, StepFitted
    from perfctl.orchestrator.predict.operations import Measured
    from perfctl.orchestrator.predict.prices import Price, PriceTable
    from perfctl.records.bench import BenchPoint

PAGE = "calculator.html"


@dataclass(frozen=True, slots=True)
class CostRequest:
    """What :func:`study_cost` is asked."""

    folder: StudyFolder
    design: Path | None = None
    """A file as of ``perfctl bench``; None for the study's own."""
    quick: bool = False
    device: str | None = None
    threads: int | None = None
    """Of a CPU; None for what the design says."""
    budget: float | None = None
    """Seconds of measuring; None for no limit."""
    models: str = "none"
    """torchvision models in the calculator: all, none, or names."""
    source: Path | None = None
    """Recorded points: a store, a folder with one, or what ``perfctl bench export`` wrote. Nothing
    runs then."""
    command_line: str = ""
    prices: Path | None = None
    """A price table for the calculator in place of the one in use."""


@dataclass(frozen=True, slots=True)
class CostStudy:
    """What the study came to."""

    points: tuple[BenchPoint, ...]
    observations: tuple[Observation, ...]
    fits: tuple[LeftOut, ...]
    calculator: str | None
    """Name of the page in the study's folder; None where it was not made."""
    missing: tuple[tuple[str, str], ...]
    result: BenchResult | None
    """Of what was measured now; None with recorded points."""
    failed: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises PartlyDone when points failed or are left, or a part of the study could not
        be made."""
        if self.result is not None:
            self.result.check()
        if self.failed:
            raise PartlyDone(
                f"a part of the study failed: {self.failed[0]}", "The rest is in the study"
            )


def study_cost(request: CostRequest, events: Events = SILENT) -> CostStudy:
    """Measure the design or read what is recorded; relate, fit, leave each network out, write
    the calculator.

    Everything is checked before anything runs. Raises UsageError for what makes no sense and for a
    folder of another study, ToolMissing without torch, PerfctlError when there is no point,
    Interrupted.
    """
    missing: list[tuple[str, str]] = []
    failed: list[str] = []
    result = None
    load(request.prices)
    if request.source is None:
        asked = bench_of(request)
        claim(request.folder, "cost", _asked(asked, request))
        result = benches.bench(asked, events)
        points, store = benches.bench_points(request.folder.store), request.folder.store
    else:
        if not request.source.exists():
            problem = f"`source`: {request.source} does not exist"
            raise UsageError(
                problem, "Name a store, a folder of runs, or what perfctl bench export wrote"
            )
        claim(request.folder, "cost", {"from": str(request.source.resolve())})
        with none_if_empty(request.folder):
            points, found = recorded(
                request.source, request.folder.store, missing, request.command_line
            )
        if found is None:
            why = (
                "it needs a store: a file of perfctl bench export has no peaks of the machine; "
                "--from STORE"
            )
            missing += [("the fit and the calculator", why)]
            return CostStudy(
                tuple(points), tuple(observations(points)), (), None, tuple(missing), None
            )
        store = found
    fits: tuple[LeftOut, ...] = ()
    page = None
    try:
        fits = leave_out(store, missing, events)
        page = _calculator(request, store, events)
    except PerfctlError as error:
        missing.append(("the calculator's page", str(error)))
        failed.append(str(error))
    return CostStudy(
        tuple(points),
        tuple(observations(points)),
        fits,
        page,
        tuple(missing),
        result,
        tuple(failed),
    )


def bench_of(request: CostRequest) -> BenchRequest:
    """The bench of the study, whose runs and store are in its folder. Raises UsageError."""
    asked = benches.BenchOptions(
        request.design or Path(),
        device=request.device,
        threads=request.threads,
        budget=request.budget,
        out=request.folder.runs,
        store=request.folder.store,
        command_line=request.command_line,
    )
    return benches.bench_request(design_of(request), asked)


def design_of(request: CostRequest) -> Bench:
    """Raises UsageError for a file that is not a design."""
    if request.quick and request.design is not None:
        raise UsageError("`quick` has a design of its own", "Leave `quick` or `design` out")
    if request.design is not None:
        return read_bench(request.design)
    with resources.as_file(_own_design(request)) as path:
        return read_bench(path)


def _own_design(request: CostRequest) -> Traversable:
    return resources.files("perfctl.templates").joinpath(
        "cost-quick.toml" if request.quick else "cost.toml"
    )


def parts(request: CostRequest, number: int = 4) -> StudyParts:
    """``number`` commands that share the design, as tasks of a cluster; the finishing command
    gathers their runs.

    A design of perfctl's own goes into the study's folder, because the commands name it.
    Raises UsageError.
    """
    design_of(request)
    file = request.design or request.folder.path / "design.toml"
    files = () if request.design else ((file, _own_design(request).read_text(encoding="utf-8")),)
    shared = ["--device", request.device] if request.device else []
    shared += ["--threads", str(request.threads)] if request.threads else []
    shared += ["--budget", f"{request.budget:g}s"] if request.budget is not None else []
    made = []
    for one in range(1, number + 1):
        words = (
            "bench",
            str(file),
            "--shard",
            f"{one}/{number}",
            "--out",
            str(request.folder.runs),
            *shared,
        )
        made.append((f"part {one} of {number}", words))
    finish = (
        "study",
        "cost",
        "--out",
        str(request.folder.path),
        "--from",
        str(request.folder.runs),
        "--models",
        request.models,
        *(["--prices", str(request.prices)] if request.prices is not None else []),
    )
    return StudyParts("cost", request.folder, tuple(made), finish, request.device or "cpu", files)


def _asked(asked: BenchRequest, request: CostRequest) -> dict[str, object]:
    """What decides which numbers come out."""
    bench = asked.bench
    return {
        "networks": list(asked.design.models),
        "points": len(asked.points),
        "device": bench.device,
        "threads": bench.threads,
        "mode": bench.mode,
        "precision": bench.precision,
        "steps": bench.steps,
        "design": str(request.design) if request.design else "quick" if request.quick else "own",
    }


def recorded(
    source: Path, own: Path, missing: list[tuple[str, str]], command_line: str = ""
) -> tuple[list[BenchPoint], Path | None]:
    """(points, their store; None for a file that perfctl bench export wrote). own: the store that a
    folder of runs goes into; runs that cannot be read go to ``missing``.

    Raises PerfctlError without a point, StoreError, ReportError.
    """
    if source.is_dir():
        store = StudyFolder(source).store
        if not store.is_file():
            missing += [("a run", problem) for problem in benches.gather(source, own, command_line)]
            store = own
        source = store
    if source.suffix == ".json":
        return benches.bench_points(file=source), None
    return benches.bench_points(source), source


def leave_out(
    store: Path, missing: list[tuple[str, str]], messages: Messages = SILENT
) -> tuple[LeftOut, ...]:
    """Fits of the store, each with the error of networks that it did not see; what cannot be fitted
    goes to ``missing``."""
    from perfctl.orchestrator.evidence import store_and_devices
    from perfctl.orchestrator.predict.fit import left_out

    learned, _ = store_and_devices(store)
    made = []
    for fit in learned.fits:
        mine = [
            one for one in learned.measured if one.machine == fit.machine.name and _alike(one, fit)
        ]
        messages.note(f"leaving out each of {len({one.case.model for one in mine})} networks")
        try:
            made.append(left_out(fit, mine))
        except (UsageError, ToolMissing) as error:
            missing.append(("the error of a network left out", str(error)))
    notes: Sequence[str] = learned.notes
    if not made and not notes:
        notes = ("the store has no 20 measured steps of one device",)
    missing += [("a fit", note) for note in dict.fromkeys(notes)]
    return tuple(made)


def _alike(one: Measured, fit: StepFitted) -> bool:
    return (one.case.precision, one.case.training) == (fit.precision, fit.training)


@dataclass(frozen=True, slots=True)
class _EveryTwentieth(Silent):
    """Tells of every twentieth model that is worked out."""

    messages: Messages

    def note(self, text: str) -> None:
        self.messages.note(text)

    def warning(self, text: str) -> None:
        self.messages.warning(text)

    def progress(self, what: str, done: int, total: int, path: Path | None = None) -> None:
        if done % 20 == 1:
            self.messages.note(f"{what} ({done} of {total})")


def _calculator(request: CostRequest, store: Path, messages: Messages) -> str:
    from perfctl.orchestrator.commands.calculator import CalculatorOptions, write_page

    options = CalculatorOptions(
        request.folder.path / PAGE,
        models=request.models,
        store=store,
        prices=request.prices,
        force=True,
    )
    known = write_page(options, _EveryTwentieth(messages))
    if request.prices is not None:
        messages.note(_priced(load(request.prices), known.prices))
    return PAGE


def _priced(table: PriceTable, used: Sequence[Price]) -> str:
    """How many of a table's prices the calculator uses, of which dates, and why not all."""
    from perfctl.orchestrator.report.prices import days

    of = f", of {days(used)}" if used else ""
    unused = len(table.prices) - len(used)
    why = (
        f"; {unused} not used: they state no date, or not which form of the GPU it is ('perfctl "
        "predict --list-prices --prices')"
    )
    return (
        f"the calculator has {len(used)} of the {len(table.prices)} prices in "
        f"{table.where}{of}{why if unused else ''}"
    )
