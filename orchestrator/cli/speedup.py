"""perfctl speedup"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfctl.orchestrator.actions import peaks
from perfctl.orchestrator.actions.sweep_options import SweepOptions
from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.cli.report import Peaks
from perfctl.orchestrator.cli.speedup_study import ALLOWED, Way, default_ways, ways_of
from perfctl.orchestrator.errors import PartlyDone, PerfctlError, UsageError

if TYPE_CHECKING:
    from perfctl.orchestrator.analyse.speedup_records import Arm, Speedup
    from perfctl.parsers.stored import Run

_SET_HERE = ("mode", "precision", "device", "batch_env", "step_marker", "sweep_name", "no_store", "dry_run")
"""Options of sweeps that have no sense here, or that this command sets itself."""
_COLUMN_MM = 84
"""Width of a chart for a paper: one column."""
ASKED = frozenset({"precision", "compile"})
"""What stands in --devices may differ."""
_DEFAULTS = {"batches": "16", "workload": "unet", "out": Path("runs")}
_OWN_HELP = {"workload": Annotated[str, typer.Option("--workload", "-w", help="Built-in workload that trains.")]}

Ways = Annotated[
    str,
    typer.Option(
        "--devices",
        metavar="LIST",
        help="What to set against the first: cpu, cuda, each with :tf32 (cuda), :bf16, :fp16 (cuda) or :compile. "
        "auto: cpu and cuda; without a GPU cpu, cpu:bf16 and cpu:compile.",
    ),
]
Epochs = Annotated[int, typer.Option("--epochs", min=0, help="Whole epochs after the measured steps.")]
OfRuns = Annotated[
    str | None,
    typer.Option("--runs", metavar="A,B,...", help="Run nothing: set these sweeps, runs or reports against A."),
]
Page = Annotated[Path | None, typer.Option("--page", help="The page. Default: OUT/WORKLOAD_speedup.html.")]
Charts = Annotated[
    Path | None, typer.Option("--charts", metavar="DIR", help="Write the page's charts as PDF for a paper, too.")
]
Allow = Annotated[
    str | None,
    typer.Option("--allow", metavar="LIST", help=f"Facts that may differ all the same: {', '.join(ALLOWED)}."),
]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is made of the runs."""

    allowed: frozenset[str]
    page: Path | None
    charts: Path | None
    peak: str
    store: Path
    as_json: bool


def _command() -> Callable[..., None]:
    def speedup(
        context: typer.Context, devices: str, epochs: int, runs: str | None, page: Path | None, allow: str | None,
        charts: Path | None, peak: str, **given: Any,
    ) -> None:  # fmt: skip
        """Train on each device and precision, a process each, and say how many times faster each is, and where.

        Options that are not listed here go to the workload: --base-width, --image-size (unet), --hidden, --length
        (lstm), --seed, --data. Runs of other machines are added with --runs, or ingested and named there.
        """
        asked, output, _ = options.sweep_options(given)
        store = asked.store or asked.out / "perfctl.db"
        wanted = _Wanted(allowed(allow), page, charts, peak, store, output.as_json)
        if runs is not None:
            if page is None and not output.as_json:
                console.note("no page is written without --page FILE")
            _finish(named_arms(runs, store), wanted)
            return
        ways = default_ways(told=console.note) if devices == "auto" else ways_of(devices)
        _run(ways, epochs, asked, tuple(context.args), wanted)

    kind = inspect.Parameter.KEYWORD_ONLY
    shared = [one for one in options.sweep_parameters(placement=False) if one.name not in _SET_HERE]
    parameters = [
        inspect.Parameter("context", kind, annotation=typer.Context),
        inspect.Parameter("devices", kind, annotation=Ways, default="auto"),
        inspect.Parameter("epochs", kind, annotation=Epochs, default=5),
        inspect.Parameter("runs", kind, annotation=OfRuns, default=None),
        inspect.Parameter("page", kind, annotation=Page, default=None),
        inspect.Parameter("allow", kind, annotation=Allow, default=None),
        inspect.Parameter("charts", kind, annotation=Charts, default=None),
        inspect.Parameter("peak", kind, annotation=Peaks, default="published"),
        *(
            one.replace(
                default=_DEFAULTS.get(one.name, one.default), annotation=_OWN_HELP.get(one.name, one.annotation)
            )
            for one in shared
        ),
    ]
    speedup.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    speedup.__annotations__ = {one.name: one.annotation for one in parameters}
    return speedup


speedup = _command()


def allowed(text: str | None) -> frozenset[str]:
    """Facts that --allow names. Raises UsageError for one that is not known."""
    names = {name.strip() for name in (text or "").split(",") if name.strip()}
    for name in sorted(names - set(ALLOWED)):
        raise UsageError(f"--allow: '{name}' is not known", f"Say {', '.join(ALLOWED)}")
    return frozenset(names)


def _run(ways: tuple[Way, ...], epochs: int, asked: SweepOptions, rest: tuple[str, ...], wanted: _Wanted) -> None:
    """Everything is checked before anything runs; an arm that fails does not stop those after it."""
    from perfctl.orchestrator.cli.speedup_study import arms_of, check, request_of, run_way

    requests = [(way, request_of(way, epochs, asked, rest)) for way in ways]
    for way, request in requests:
        check(way, request)
    for way, request in requests:
        console.note(f"{way.label}:")
        run_way(request, wanted.store)
    page = wanted.page or asked.out / f"{asked.workload}_speedup.html"
    _finish(arms_of(requests, wanted.store), replace(wanted, page=page, allowed=wanted.allowed | ASKED))


def named_arms(text: str, store: Path) -> dict[int | None, list[Arm]]:
    """Batch size -> arms, of sweeps, runs and reports that are there."""
    from perfctl.orchestrator.actions.compare import side
    from perfctl.orchestrator.analyse.speedup_records import Arm

    names = [name.strip() for name in text.split(",") if name.strip()]
    if len(names) < 2:
        raise UsageError("--runs needs two or more", "Say for instance --runs unet_cpu,unet_cuda")
    sides = [side(name, store) for name in names]
    batches = dict.fromkeys(run.batch_size for run in sides[0].runs)
    return {
        batch: [
            Arm(label, _of_batch(one.runs, batch, alone=len(batches) == 1))
            for label, one in zip(_told_apart([one.label for one in sides], names), sides, strict=True)
        ]
        for batch in batches
    }


def _of_batch(runs: Sequence[Run], batch: int | None, *, alone: bool) -> tuple[Run, ...]:
    """Those of the batch size; of a side with one other size all, where one was asked for: that it differs is said."""
    found = tuple(run for run in runs if run.batch_size == batch)
    other = alone and len({run.batch_size for run in runs}) == 1
    return found or (tuple(runs) if other else ())


def _told_apart(labels: list[str], names: list[str]) -> list[str]:
    """Labels, as typed where two sides have the same one (b16 of two folders), and numbered where that is the same."""
    found = [name if labels.count(label) > 1 else label for label, name in zip(labels, names, strict=True)]
    return [
        f"{one} ({found[: place + 1].count(one)})" if found.count(one) > 1 else one for place, one in enumerate(found)
    ]


def _finish(studies: dict[int | None, list[Arm]], wanted: _Wanted) -> None:
    from perfctl.orchestrator.analyse import speedup as analysis
    from perfctl.orchestrator.cli.speedup_paper import with_paper

    found: list[Speedup] = []
    for batch, arms in studies.items():
        roofs = [roof for arm in arms for roof in peaks.roofs(wanted.peak, wanted.store, arm.runs)]
        try:
            found.append(with_paper(analysis.speedup(arms, allowed=wanted.allowed, peaks=roofs), arms))
        except ValueError as error:
            console.warning(f"batch {batch}: nothing to set against anything: {error}")
    if not found:
        raise PerfctlError("no batch size ran on two devices", "The reasons stand above; logs lie in the run folders")
    _tell(found, wanted)
    failed = [f"{label}: {why}" for one in found for label, why in one.failed]
    refused = [f"{one.label}: {why}" for study in found for one in study.against for why in one.refused]
    if failed:
        raise PartlyDone(f"{len(failed)} of the devices failed: {failed[0]}")
    if refused:
        raise PerfctlError(f"no speed-up: {refused[0]}", "--allow NAME compares all the same, and says so")


def _tell(found: list[Speedup], wanted: _Wanted) -> None:
    from perfctl.orchestrator.report import speedup_text

    if wanted.as_json:
        console.as_json([speedup_text.as_json(one) for one in found])
    else:
        for one in found:
            for part in speedup_text.terminal(one):
                console.show(part)
    for path in _written(found, wanted):
        (console.note if wanted.as_json else console.result)(f"Wrote {path}")


def _written(found: list[Speedup], wanted: _Wanted) -> list[Path]:
    """Page and charts, where they are wanted."""
    from perfctl.orchestrator.actions.files import write_text
    from perfctl.orchestrator.report import chart_files
    from perfctl.orchestrator.report.page import render_speedup

    written = []
    with chart_files.drawn() as drawings:
        page = render_speedup(found) if wanted.page or wanted.charts else ""
    if wanted.charts is not None:
        wanted.charts.mkdir(parents=True, exist_ok=True)
        for drawing in drawings:
            chart_files.save(drawing, wanted.charts / f"{drawing.name}.pdf", "pdf", _COLUMN_MM)
        written.append(wanted.charts)
    if wanted.page is not None:
        write_text(wanted.page, page)
        written.append(wanted.page)
    return written
