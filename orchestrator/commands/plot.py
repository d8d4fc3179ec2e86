"""Draw the charts of a store's page as files for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from perfctl.orchestrator import evidence
from perfctl.orchestrator.commands.declare import (
    DEFAULT_STORE,
    Command,
    Events,
    Force,
    Option,
    PeaksOf,
    Store,
    api,
    words,
)
from perfctl.orchestrator.commands.speedup import named_arms, roofs_of
from perfctl.orchestrator.compare.speedup import ARMS, ASKED, ArmsByBatch, allowed_facts
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.events import SILENT
from perfctl.orchestrator.files import check_free, replacing
from perfctl.orchestrator.report.tables import Column, table
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.stored_runs import analysed, newest_runs

if TYPE_CHECKING:
    from perfctl.orchestrator.compare.speedup import Speedup
    from perfctl.orchestrator.report.charts.files import Drawn, Picture
    from perfctl.records.run import Run

_PARTS = ("work", "operations")
"""Charts of parts of a whole, which can be drawn as pies."""


@dataclass(frozen=True, slots=True)
class PlotOptions:
    """Write one chart of the report for a publication. The same database gives the same bytes.

    Raises UsageError for a chart that the store does not give, PerfctlError if there is nothing to
    draw, StoreError.
    """

    name: Annotated[str | None, Option("Name of the chart; see --list.", is_argument=True)] = None
    _: KW_ONLY
    listed: Annotated[
        bool, Option("List the charts of the results database.", names=("--list",))
    ] = False
    out: Annotated[
        Path | None,
        Option(
            "Output file: .pdf, .png or .svg. Default: NAME.pdf.",
            group="Output",
            names=("--out", "-o"),
        ),
    ] = None
    width_mm: Annotated[
        float, Option("Width of the chart; 84 mm is one column of a paper.", least=40, most=400)
    ] = 84
    height_mm: Annotated[
        float | None, Option("Height of the chart. Default: as needed.", least=20, most=600)
    ] = None
    dpi: Annotated[int, Option("Dots per inch of a .png.", least=50, most=1200)] = 300
    sweep: Annotated[
        int | None, Option("Only this sweep. Default: the newest run of each kind.")
    ] = None
    runs: Annotated[
        tuple[str, ...],
        Option(
            "Speedups of these sweeps, runs or reports over the first one.",
            metavar="A,B,...",
            parse=words,
        ),
    ] = ()
    allow: Annotated[
        tuple[str, ...],
        Option("Facts that may differ between --runs.", metavar="LIST", parse=words),
    ] = ()
    pie: Annotated[bool, Option("Draw the kinds of work of a speedup as pie charts.")] = False
    peaks: PeaksOf = "published"
    force: Force = False
    store: Store = DEFAULT_STORE


@dataclass(frozen=True, slots=True)
class Plotted:
    """A chart that was written."""

    JSON_NAMES: ClassVar = {"name": "chart"}

    path: Path
    name: str
    description: str


@dataclass(frozen=True, slots=True)
class ChartName:
    """One object a chart."""

    name: str
    description: str


def run(asked: PlotOptions, events: Events) -> Plotted | list[ChartName]:
    """Write the chart, or list those that there are."""
    events.progress("looking for charts" if asked.listed else f"drawing {asked.name}", 0, 1)
    if asked.listed:
        return [
            ChartName(name, chart.description) for name, chart in drawings(asked, events).items()
        ]
    if asked.name is None:
        raise UsageError(
            "no chart was named",
            f"Available charts: {', '.join(drawings(asked, events))}. Run 'perfctl plot --list' to "
            "see what they show",
        )
    return _plot(asked.name, asked, events)


def view(done: Plotted | list[ChartName]) -> View:
    """Return what was written, or the charts that there are."""
    if isinstance(done, Plotted):
        return View(f"Wrote {done.path}")
    columns = (Column("name", style="text"), Column("shows", style="text"))
    rows = [(one.name, one.description.partition(". ")[0]) for one in done]
    listed = table("Charts of this store", columns, sorted(rows), tools=False)
    first = next((f"perfctl plot {chart.name} --out {chart.name}.pdf" for chart in done), "")
    note = f"Draw one: {first}"
    return View("", tables=(listed,) if listed is not None else (), notes=(note,) if first else ())


def _plot(name: str, asked: PlotOptions, events: Events) -> Plotted:
    from perfctl.orchestrator.report.charts import files as charts_files

    target = asked.out or Path(f"{name}.pdf")
    form = target.suffix.lower().removeprefix(".")
    if form not in charts_files.FORMATS:
        raise UsageError(
            f"invalid file name '{target}' for `out`",
            "Use a name that ends with .pdf, .png or .svg",
        )
    check_free(target, force=asked.force)
    if asked.pie and not set(_PARTS) & set(name.split("-")):
        problem = f"`pie` does not apply to the chart '{name}'"
        raise UsageError(problem, f"It applies to charts whose names contain {' or '.join(_PARTS)}")
    # without the page of each of its networks
    of_bench = not asked.runs and name.startswith("bench-")
    found = _of_bench(asked, events) if of_bench else drawings(asked, events)
    if name not in found:
        close = get_close_matches(name, found, 3)
        remedy = f"Close: {', '.join(close)}. " if close else ""
        raise UsageError(
            f"chart '{name}' is not available", f"{remedy}Available charts: {', '.join(found)}"
        )
    chart = found[name]
    if chart.warning:
        events.warning(chart.warning)
    with replacing(target, force=asked.force) as partial:
        charts_files.save(chart, partial, form, asked.width_mm, asked.height_mm, asked.dpi)
    return Plotted(target, chart.name, chart.description)


def charts(
    source: Path | str = DEFAULT_STORE, *, pie: bool = False, messages: Events = SILENT
) -> dict[str, Picture]:
    """Name -> chart, for a notebook: the charts of the page, drawn with matplotlib.

    source: a store, or the JSON of a speed-up (results.json of ``perfctl study speedup``,
    ``perfctl speedup --json``).
    pie: kinds of work and operations of a speed-up as pies.

    Raises PerfctlError when there is nothing to draw or the JSON is of another kind, StoreError
    when there is no store.
    """
    from perfctl.orchestrator.report.charts.files import Picture

    path = Path(source)
    speedups = path.suffix == ".json"
    found = (
        _of_json(path, pie=pie)
        if speedups
        else drawings(PlotOptions(store=path, pie=pie), messages)
    )
    return {name: Picture(chart) for name, chart in found.items()}


def _of_json(path: Path, *, pie: bool) -> dict[str, Drawn]:
    from perfctl.orchestrator.compare.speedup import read_speedups

    try:
        studies = read_speedups(path.read_bytes())
    except OSError as error:
        raise PerfctlError(
            f"{path}: cannot be read ({error.strerror})", "Run 'perfctl study speedup' to write one"
        ) from error
    except ValueError as error:
        raise PerfctlError(
            f"{path}: not a file that perfctl speedup --json wrote", "Name such a file, or a store"
        ) from error
    several = [one.workload for one in studies]
    found: dict[str, Drawn] = {}
    for one in studies:
        size = f"b{one.batch}-" if several.count(one.workload) > 1 else ""
        found |= _charts_of(one, f"{one.workload or 'program'}-{size}", pie=pie)
    return found


def drawings(source: PlotOptions, messages: Events = SILENT) -> dict[str, Drawn]:
    """Name -> chart, in the page's order; the study's number comes before the name where there
    are several.

    Raises PerfctlError when there is nothing to draw, StoreError when there is no store.
    """
    if source.runs:
        arms = named_arms(source.runs, source.store, messages)
        found = _drawn("", arms, source, allowed_facts(source.allow), messages)
        what, remedy = (
            f"`runs` {','.join(source.runs)}",
            "A chart needs complete runs on two devices",
        )
    else:
        found = _of_page(source, messages) | _speedups_of_store(source, messages)
        found |= _of_bench(source, messages) if source.sweep is None else {}
        what, remedy = (
            str(source.store),
            "A chart needs a workload at several batch sizes, counters, or a speedup",
        )
    if not found:
        raise PerfctlError(f"{what}: no data for a chart", remedy)
    return found


def _of_bench(source: PlotOptions, messages: Events) -> dict[str, Drawn]:
    """Those of a bench and of ``perfctl study cost``; empty without a bench."""
    from perfctl.orchestrator.commands.bench import bench_charts
    from perfctl.orchestrator.commands.study_subjects import leave_out
    from perfctl.orchestrator.report.charts import files as charts_files
    from perfctl.orchestrator.report.studies.cost import left_out_chart

    found = bench_charts(source.store)
    if not found:
        return {}
    with charts_files.drawn(later=True) as errors:
        for place, one in enumerate(leave_out(source.store, [], messages), 1):
            families = list(dict.fromkeys(measured.case.family for measured, _ in one.rows))
            left_out_chart(f"bench-fit-left-out-{place}", one, families)
    return found | {chart.name: chart for chart in errors}


def _of_page(source: PlotOptions, messages: Events) -> dict[str, Drawn]:
    from perfctl.orchestrator.ledger.network import networks_of
    from perfctl.orchestrator.ledger.usage.inference import inference_points
    from perfctl.orchestrator.report.charts import files as charts_files
    from perfctl.orchestrator.report.charts import study as charts_study
    from perfctl.orchestrator.report.charts.inference import all_charts
    from perfctl.orchestrator.report.page.sections import page_view
    from perfctl.orchestrator.report.studies import flops as studies_flops

    def draw(runs: Sequence[Run]) -> dict[str, Drawn]:
        with charts_files.drawn(later=True) as found:
            roofs = evidence.roofs(source.peaks, source.store, runs, messages.note)
            page_view(runs, generated_at="", title=None, peaks=roofs)
        with charts_files.drawn(later=True) as across:
            charts_study.across(runs)
        with charts_files.drawn(later=True) as compared:
            if networks := networks_of(runs):
                studies_flops.draw(networks)
        with charts_files.drawn(later=True) as answers:
            all_charts(inference_points(runs))
        joint = {chart.name for chart in answers}  # the page's part of all models has the same
        found = [chart for chart in found if chart.name not in joint]
        several = len({chart.name.partition("-")[0] for chart in found}) > 1
        # all models in one drawing
        named = {chart.name.partition("-")[2]: chart for chart in across}
        named |= {chart.name: chart for chart in (*answers, *compared)}
        return named | {
            chart.name if several else chart.name.partition("-")[2]: chart for chart in found
        }

    return analysed(newest_runs(source.store, source.sweep), draw)


def _speedups_of_store(source: PlotOptions, messages: Events) -> dict[str, Drawn]:
    """Charts of every study that perfctl speedup left in the store; names begin with
    the workload."""
    found: dict[str, Drawn] = {}
    for workload, ways in _studies(source.store).items() if source.sweep is None else ():
        arms = named_arms(list(ways.values()), source.store, messages)
        study = {
            batch: [replace(arm, label=label) for arm, label in zip(row, ways, strict=True)]
            for batch, row in arms.items()
        }
        found |= _drawn(f"{workload}-", study, source, ASKED, messages)
    return found


def _studies(store: Path) -> dict[str, dict[str, str]]:
    """Workload -> device -> sweep: the sweeps that perfctl speedup made, named after both
    ("lstm_cpu_bf16" for cpu:bf16)."""
    found: dict[str, dict[str, str]] = {}
    with database.reading(store) as connection:
        whole = [row for row in read.run_rows(connection) if row["status"] == "ok"]
    for row in whole:
        for label in ARMS:
            if (
                row["workload"]
                and row["sweep_name"] == f"{row['workload']}_{label.replace(':', '_')}"
            ):
                found.setdefault(row["workload"], {})[label] = row["sweep_name"]
    return {workload: ways for workload, ways in found.items() if len(ways) > 1}


def _drawn(
    before: str,
    study: ArmsByBatch,
    source: PlotOptions,
    allowed: frozenset[str],
    messages: Events,
) -> dict[str, Drawn]:
    from perfctl.orchestrator.compare import speedup as analysis

    found: dict[str, Drawn] = {}
    for batch, arms in study.items():
        try:
            one = analysis.speedup(
                arms, allowed=allowed, peaks=roofs_of(arms, source.store, source.peaks, messages)
            )
        except ValueError:  # fewer than two arms with a whole run: no speed-up to draw
            continue
        for other in one.against:
            for why in other.refused:
                messages.warning(f"{other.label} has no speedup: {why} (`allow`)")
        size = f"b{batch}-" if len(study) > 1 else ""
        found |= _charts_of(one, before + size, pie=source.pie)
    return found


def _charts_of(one: Speedup, before: str, *, pie: bool) -> dict[str, Drawn]:
    from perfctl.orchestrator.report.charts import files as charts_files
    from perfctl.orchestrator.report.charts import speedup

    with charts_files.drawn(later=True) as made:
        speedup.charts(one, "s1", pie=pie)
    return {before + drawing.name.partition("-")[2]: drawing for drawing in made}


COMMAND = Command(PlotOptions, run, view)
plot = api(PlotOptions, run)
