"""Draw the charts of the HTML report as files for a paper."""

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
    make_api_function,
    split_at_commas,
)
from perfctl.orchestrator.commands.speedup import load_arm_device_peaks, load_named_arms
from perfctl.orchestrator.compare.speedup import (
    ARMS,
    ASKED,
    ArmsByBatch,
    validate_allowed_fact_names,
)
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.events import SILENT
from perfctl.orchestrator.files import raise_if_output_not_replaceable, replace_when_done
from perfctl.orchestrator.report.charts import files as charts_files
from perfctl.orchestrator.report.charts.files import Picture
from perfctl.orchestrator.report.tables import build_table, text_columns
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.stored_runs import (
    load_latest_runs_per_configuration,
    run_work_without_failing_runs,
)

if TYPE_CHECKING:
    from perfctl.orchestrator.compare.speedup import NetworkSpeedup
    from perfctl.records.run import Run

PIE_PARTS = {"work", "operations"}
"""Charts of parts of a whole, which can be drawn as pies."""


@dataclass(frozen=True, slots=True)
class PlotOptions:
    """Write one chart of the report for a publication. The same database gives the same bytes.

    Raises UsageError for a chart that the database does not give, PerfctlError if there is nothing
    to draw, StoreError.
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
            parse=split_at_commas,
        ),
    ] = ()
    allow: Annotated[
        tuple[str, ...],
        Option("Facts that may differ between --runs.", metavar="LIST", parse=split_at_commas),
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


def plot_or_list_charts(options: PlotOptions, events: Events) -> Plotted | list[ChartName]:
    """Write the chart, or list those that exist."""
    events.progress("looking for charts" if options.listed else f"drawing {options.name}", 0, 1)
    if options.listed:
        charts = draw_available_charts(options, events)
        return [ChartName(name, chart.description) for name, chart in charts.items()]
    if options.name is None:
        names = ", ".join(draw_available_charts(options, events))
        remedy = f"Available charts: {names}. 'perfctl plot --list' describes them"
        raise UsageError("no chart was named", remedy)
    return _write_chart(options.name, options, events)


def build_plot_view(result: Plotted | list[ChartName]) -> View:
    """Return what was written, or the charts that exist."""
    if isinstance(result, Plotted):
        return View(f"Wrote {result.path}")
    rows = sorted((chart.name, chart.description.partition(". ")[0]) for chart in result)
    listed = build_table("Charts of this results database", text_columns("name", "shows"), rows)
    notes = [f"Draw one: perfctl plot {chart.name} --out {chart.name}.pdf" for chart in result[:1]]
    return View("", tables=(listed,) if listed is not None else (), notes=tuple(notes))


def _write_chart(name: str, options: PlotOptions, events: Events) -> Plotted:
    target = options.out or Path(f"{name}.pdf")
    form = target.suffix.lower().removeprefix(".")
    if form not in charts_files.FORMATS:
        raise UsageError(
            f"invalid file name '{target}' for `out`",
            "Use a name that ends with .pdf, .png or .svg",
        )
    raise_if_output_not_replaceable(target, force=options.force)
    if options.pie and not PIE_PARTS & set(name.split("-")):
        raise UsageError(
            f"`pie` does not apply to the chart '{name}'",
            f"It applies to charts whose names contain {' or '.join(sorted(PIE_PARTS))}",
        )
    # the charts of a bench need no page of each of its networks
    is_of_bench = not options.runs and name.startswith("bench-")
    charts = (
        _draw_bench_charts(options, events)
        if is_of_bench
        else draw_available_charts(options, events)
    )
    if name not in charts:
        close = get_close_matches(name, charts, 3)
        fix = f"Close: {', '.join(close)}. " if close else ""
        raise UsageError(
            f"chart '{name}' is not available", f"{fix}Available charts: {', '.join(charts)}"
        )
    chart = charts[name]
    if chart.warning:
        events.warning(chart.warning)
    with replace_when_done(target, force=options.force) as partial_file:
        charts_files.save_chart(
            chart, partial_file, form, options.width_mm, options.height_mm, options.dpi
        )
    return Plotted(target, chart.name, chart.description)


def charts(
    source: Path | str = DEFAULT_STORE, *, pie: bool = False, messages: Events = SILENT
) -> dict[str, Picture]:
    """Return name -> chart, for a notebook: the charts of the HTML report, drawn with matplotlib.

    - ``source``: a results database, or the JSON of a speedup (results.json of ``perfctl study
      speedup``, ``perfctl speedup --json``).
    - ``pie``: draw the kinds of work and the operations of a speedup as pie charts.

    Raises PerfctlError if there is nothing to draw or the JSON is of another kind, StoreError if
    there is no results database.
    """
    path = Path(source)
    if path.suffix == ".json":
        return _draw_speedups_of_json(path, pie=pie)
    return draw_available_charts(PlotOptions(store=path, pie=pie), messages)


def _draw_speedups_of_json(path: Path, *, pie: bool) -> dict[str, Picture]:
    from perfctl.orchestrator.compare.speedup import parse_speedups_json

    try:
        speedups = parse_speedups_json(path.read_bytes())
    except OSError as error:
        raise PerfctlError(
            f"{path}: cannot be read ({error.strerror})", "Run 'perfctl study speedup' to write one"
        ) from error
    except ValueError as error:
        raise PerfctlError(
            f"{path}: not a file that perfctl speedup --json wrote",
            "Name such a file, or a results database",
        ) from error
    workloads = [speedup.workload for speedup in speedups]
    charts: dict[str, Picture] = {}
    for speedup in speedups:
        size = f"b{speedup.batch}-" if workloads.count(speedup.workload) > 1 else ""
        charts |= _draw_speedup(speedup, f"{speedup.workload or 'program'}-{size}", pie=pie)
    return charts


def draw_available_charts(source: PlotOptions, messages: Events = SILENT) -> dict[str, Picture]:
    """Return name -> chart, in the order of the HTML report; the study's number comes before the
    name if there are several.

    Raises PerfctlError when there is nothing to draw, StoreError when there is no results
    database.
    """
    if source.runs:
        arms = load_named_arms(source.runs, source.store, messages)
        charts = _draw_speedups_of_arms(
            "", arms, source, validate_allowed_fact_names(source.allow), messages
        )
        subject = f"`runs` {','.join(source.runs)}"
        fix = "A chart needs complete runs on two devices"
    else:
        charts = _draw_report_charts(source, messages)
        if source.sweep is None:
            charts |= _draw_stored_speedups(source, messages) | _draw_bench_charts(source, messages)
        subject = str(source.store)
        fix = "A chart needs a workload at several batch sizes, counters, or a speedup"
    if not charts:
        raise PerfctlError(f"{subject}: no data for a chart", fix)
    return charts


def _draw_bench_charts(source: PlotOptions, messages: Events) -> dict[str, Picture]:
    """Return the charts of a bench and of ``perfctl study cost``; empty without a bench."""
    from perfctl.orchestrator.commands.bench import draw_bench_charts
    from perfctl.orchestrator.commands.study_subjects import cross_validate_by_network
    from perfctl.orchestrator.report.studies.cost import draw_predicted_vs_measured_chart

    charts = draw_bench_charts(source.store)
    if not charts:
        return {}
    with charts_files.collect_charts(defers_drawing=True) as errors:
        for number, left_out in enumerate(cross_validate_by_network(source.store, [], messages), 1):
            draw_predicted_vs_measured_chart(f"bench-fit-left-out-{number}", left_out)
    return charts | {chart.name: chart for chart in errors}


def _draw_report_charts(source: PlotOptions, messages: Events) -> dict[str, Picture]:
    """Return the charts of the HTML report, and those that compare models and networks."""
    from perfctl.orchestrator.ledger.usage.inference import list_inference_points
    from perfctl.orchestrator.report.charts.inference import draw_inference_charts_by_chapter
    from perfctl.orchestrator.report.charts.study import draw_utilization_and_memory_charts
    from perfctl.orchestrator.report.page.sections import build_report_view
    from perfctl.orchestrator.report.studies import flops

    def draw_charts_of_runs(runs: Sequence[Run]) -> dict[str, Picture]:
        with charts_files.collect_charts(defers_drawing=True) as of_page:
            roofs = evidence.measure_roofline_peaks_if_selected(
                source.peaks, source.store, runs, messages.note
            )
            page = build_report_view(runs, peaks=roofs)
            titles = {chapter.key: chapter.title for chapter in page.chapters}
        with charts_files.collect_charts(defers_drawing=True) as of_models:
            draw_utilization_and_memory_charts(runs)
        with charts_files.collect_charts(defers_drawing=True) as answers:
            draw_inference_charts_by_chapter(list_inference_points(runs))
        with charts_files.collect_charts(defers_drawing=True) as compared:
            flops.draw_and_register_flops_charts(runs)
        joint = {chart.name for chart in answers}  # the page's part of all models has the same
        of_page = [chart for chart in of_page if chart.name not in joint]
        several = len({chart.name.partition("-")[0] for chart in of_page}) > 1
        by_name = {_get_name_without_study_key(chart): chart for chart in of_models}
        by_name |= {chart.name: chart for chart in (*answers, *compared)}
        if not several:
            return by_name | {_get_name_without_study_key(chart): chart for chart in of_page}
        for chart in of_page:
            title = titles.get(chart.name.partition("-")[0])
            text = ": ".join(filter(None, (title, chart.description)))
            by_name[chart.name] = replace(chart, description=text)
        return by_name

    return run_work_without_failing_runs(
        load_latest_runs_per_configuration(source.store, source.sweep), draw_charts_of_runs
    )


def _get_name_without_study_key(chart: Picture) -> str:
    """Return the name without the key of its study: "s1-ratio" -> "ratio"."""
    return chart.name.partition("-")[2]


def _draw_stored_speedups(source: PlotOptions, messages: Events) -> dict[str, Picture]:
    """Return the charts of every study that perfctl speedup left, whose sweeps are named after
    network and device ("lstm_cpu_bf16" for cpu:bf16); names begin with the network."""
    sweeps: dict[str, dict[str, str]] = {}
    with database.open_store_for_reading(source.store) as connection:
        rows = [row for row in read.list_run_summaries(connection) if row["status"] == "ok"]
    for row in rows:
        for label in ARMS:
            name = f"{row['workload']}_{label.replace(':', '_')}"
            if row["workload"] and row["sweep_name"] == name:
                sweeps.setdefault(row["workload"], {})[label] = name
    charts: dict[str, Picture] = {}
    for workload, ways in sweeps.items():
        if len(ways) > 1:
            batches = {
                batch: [replace(arm, label=label) for arm, label in zip(arms, ways, strict=True)]
                for batch, arms in load_named_arms([*ways.values()], source.store, messages).items()
            }
            charts |= _draw_speedups_of_arms(f"{workload}-", batches, source, ASKED, messages)
    return charts


def _draw_speedups_of_arms(
    prefix: str,
    batches: ArmsByBatch,
    source: PlotOptions,
    allowed: frozenset[str],
    messages: Events,
) -> dict[str, Picture]:
    from perfctl.orchestrator.compare.speedup import compare_all_arms_with_first

    charts: dict[str, Picture] = {}
    for batch, arms in batches.items():
        peaks = load_arm_device_peaks(arms, source.store, source.peaks, messages)
        try:
            compared = compare_all_arms_with_first(arms, allowed=allowed, peaks=peaks)
        except ValueError:  # fewer than two arms with a complete run: no speedup to draw
            continue
        for other in compared.comparisons:
            for reason in other.reasons:
                messages.warning(f"{other.label} has no speedup: {reason} (`allow`)")
        size = f"b{batch}-" if len(batches) > 1 else ""
        charts |= _draw_speedup(compared, prefix + size, pie=source.pie)
    return charts


def _draw_speedup(speedup: NetworkSpeedup, prefix: str, *, pie: bool) -> dict[str, Picture]:
    from perfctl.orchestrator.report.charts.comparison import draw_speedup_charts as draw_charts

    with charts_files.collect_charts(defers_drawing=True) as drawn:
        draw_charts(speedup, "s1", uses_pies=pie)
    return {prefix + _get_name_without_study_key(chart): chart for chart in drawn}


COMMAND = Command(PlotOptions, plot_or_list_charts, build_plot_view)
plot = make_api_function(PlotOptions, plot_or_list_charts)
