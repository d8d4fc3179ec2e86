"""Do a whole study: run the sweeps that are not there yet, or read what is recorded, and write a
page, a summary, tables and charts. A study is a TOML file (``launch.sweep.study``)."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from perfctl.orchestrator.commands.declare import (
    Command,
    CommandLine,
    DeclaredOption,
    Group,
    Option,
    list_declared_options,
)
from perfctl.orchestrator.commands.profile import ProfileOptions
from perfctl.orchestrator.commands.study_subjects import (
    CALCULATOR,
    SUBJECTS,
    StudyMaterial,
    raise_if_unknown_chapter,
)
from perfctl.orchestrator.errors import PartlyDone, PerfctlError, ToolMissing, UsageError
from perfctl.orchestrator.events import SILENT, Events
from perfctl.orchestrator.files import convert_write_errors, write_text
from perfctl.orchestrator.launch.sweep.options import choose_cpu_or_cuda
from perfctl.orchestrator.launch.sweep.study import (
    RUNS,
    SEEDS,
    StudyDefinition,
    StudyParts,
    StudyRequest,
    StudySweep,
    list_study_sweeps,
    raise_if_study_options_invalid,
    read_study_definition,
    split_study_into_parts,
)
from perfctl.orchestrator.report.view import RawLines, View
from perfctl.orchestrator.store import DEFAULT_STORE

if TYPE_CHECKING:
    from perfctl.orchestrator.commands import bench
    from perfctl.orchestrator.ingest.context import Event
    from perfctl.orchestrator.launch.sweep.request import SweepRequest

PROGRAM = {
    option.name: option
    for option in list_declared_options(ProfileOptions)
    if option.option.filled_from in ("rest", "program")
}
"""Options of a study of any program, by name."""
WRITTEN = ("study.html", "summary.md", "report.html", CALCULATOR, "charts", "tables")
"""Files and folders that a study writes and replaces."""
CHART_MM = 140
"""Width of a chart in the Markdown: a page of text."""
NO_GPU = (
    "there is no NVIDIA GPU here; give the same command on a machine that has one, or --from PATH "
    "with its runs"
)


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """Options of every study."""

    quick: Annotated[bool, Option("A small form that takes under 3 minutes on two CPU cores.")] = (
        False
    )
    source: Annotated[
        Path | None,
        Option(
            "Run nothing: take the runs from this folder, report or results database.",
            names=("--from",),
            metavar="PATH",
        ),
    ] = None
    part: Annotated[
        str | None, Option("Run this part only (tasks of a cluster).", "Cluster", metavar="LABEL")
    ] = None
    dry_run: Annotated[
        bool, Option("Run nothing: print the commands of the study's parts, for a batch system.")
    ] = False
    out: Annotated[
        Path | None,
        Option(
            "Folder for runs, database, report, summary, tables and charts. Default: study-NAME.",
            "Output",
            metavar="FOLDER",
        ),
    ] = None
    command_line: CommandLine = ""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Option that the study's file declares -> its value."""


@dataclass(frozen=True, slots=True)
class StudyResult:
    """A study that was written."""

    page: View
    files: tuple[Path, ...]
    problems: tuple[str, ...]
    """Parts that failed, and why."""

    def check(self) -> None:
        """Raises PartlyDone where a part failed."""
        if self.problems:
            raise PartlyDone(
                f"{len(self.problems)} of the parts failed or are partial: {self.problems[0]}",
                "The rest is in the study; the same command tries again",
            )


def run_study(request: StudyRequest, events: Events = SILENT) -> StudyResult:
    """Run what is asked, or read what is recorded, and write the study. The same call goes on
    where it stopped.

    Everything is checked first, and a part that fails leaves the rest: ``StudyResult.check``
    raises for it. Raises UsageError, also for a folder that holds another study; ToolMissing;
    Interrupted; StoreError; PerfctlError if there is no run to show.
    """
    raise_if_study_options_invalid(request)
    raise_if_layer_missing(request)
    raise_if_unknown_chapter(request.study.content["chapters"])
    if (prices := request.values.get("prices")) is not None:
        from perfctl.orchestrator.predict.prices import load_price_table

        load_price_table(prices)
    request, missing = resolve_devices_and_list_missing(request, events)
    failed: list[tuple[str, str]] = []
    store = request.out / DEFAULT_STORE
    if request.source is not None:
        store = _find_or_ingest_source_database(request, failed, events)
    elif is_bench_study(request):
        try:
            create_or_reuse_study_folder(request)
            _run_study_bench(request, events)
        except PartlyDone as problem:
            failed.append(("the bench", str(problem)))
    else:
        failed += _run_sweeps_and_yield_failures(request, events)
    return _write_study_report_files(StudyMaterial(request, store, events), missing, failed)


def is_bench_study(request: StudyRequest) -> bool:
    """Return whether the study measures the points of a bench, and no sweeps."""
    return "bench" in request.study.content


def run_study_part(request: StudyRequest, events: Events = SILENT) -> None:
    """Run one part next to others, into its run folders only. Raises UsageError for an unknown
    label, PartlyDone if it fails."""
    raise_if_study_options_invalid(request)
    request, _ = resolve_devices_and_list_missing(request, events, runs_on_other_machines=True)
    if is_bench_study(request):
        _run_study_bench(request, events)
        return
    sweeps = {sweep.label: sweep for sweep in list_study_sweeps(request)}
    if request.part not in sweeps:
        raise UsageError(f"`part`: '{request.part}' is not known", f"Use {', '.join(sweeps)}")
    sweep_request = plan_study_sweep(sweeps[request.part], request, events)
    request.out.mkdir(parents=True, exist_ok=True)
    from perfctl.orchestrator.ingest.sweep import run_and_store_sweep

    run_and_store_sweep(sweep_request, events).check()


def plan_study_sweep(
    sweep: StudySweep, request: StudyRequest, events: Events = SILENT
) -> SweepRequest:
    """Return the sweep, checked. Raises UsageError."""
    from perfctl.orchestrator.launch.sweep.plan import (
        make_profiler_by_name,
        plan_sweep,
        plan_torchvision_inference_sweeps,
    )

    if sweep.model is not None:
        requests = plan_torchvision_inference_sweeps(
            [sweep.model],
            sweep.profiler,
            sweep.options,
            arguments=sweep.arguments,
            events=events,
        )
        return requests[sweep.model]
    profiler = make_profiler_by_name(sweep.profiler)
    return plan_sweep(profiler, sweep.options, sweep.arguments, request.program, events=events)


def resolve_devices_and_list_missing(
    request: StudyRequest, events: Events = SILENT, *, runs_on_other_machines: bool = False
) -> tuple[StudyRequest, list[tuple[str, str]]]:
    """Return the request with the devices that it compares, and what this machine lacks for it.

    ``runs_on_other_machines``: other machines will run it. Raises UsageError.
    """
    from perfctl.orchestrator.launch.sweep import ways

    devices = request.values.get("devices")
    if devices is None or request.source is not None:
        return request, []
    requested = (
        ways.choose_default_device_variants(events)
        if devices == "auto"
        else ways.parse_device_precision_variants(devices)
    )
    chosen, missing = list(requested), []
    if not runs_on_other_machines and choose_cpu_or_cuda("auto") != "cuda":
        chosen = [way for way in requested if way.device != "cuda"]
        if len(chosen) < len(requested):
            lost = ", ".join(way.label for way in requested if way not in chosen)
            events.warning(f"{lost}: {NO_GPU}")
            chosen = (
                list(ways.choose_default_device_variants(events)) if len(chosen) < 2 else chosen
            )
        missing = [("a GPU", NO_GPU)]
    labels = ",".join(way.label for way in chosen)
    return replace(request, typed={**request.typed, "devices": labels}), missing


def _run_sweeps_and_yield_failures(
    request: StudyRequest, events: Events
) -> Iterator[tuple[str, str]]:
    """Run the sweeps; yield (part, why it gave nothing or not all)."""
    from perfctl.orchestrator.commands.speedup import run_sweep_and_write_results
    from perfctl.orchestrator.ingest.sweep import run_and_store_sweep
    from perfctl.orchestrator.launch.catalog import require_profiler_tools
    from perfctl.orchestrator.launch.sweep.ways import TrainingWay, raise_if_variant_cannot_run

    planned = []
    for sweep in list_study_sweeps(request):
        sweep_request = plan_study_sweep(sweep, request, events)
        if sweep.has_results:
            also = "compile" if "--compile" in sweep.arguments else None
            raise_if_variant_cannot_run(TrainingWay(sweep_request.device, also), sweep_request)
        if (reason := explain_missing_ncu(sweep_request)) is not None:
            events.note(f"{sweep.label}: {reason}")
            continue
        if request.program is None:
            require_profiler_tools(sweep_request.profiler, sweep_request.device)
        planned.append((sweep, sweep_request))
    create_or_reuse_study_folder(request)
    for sweep, sweep_request in planned:
        events.note(f"{sweep.label}:")
        if sweep.has_results:
            run_sweep_and_write_results(sweep_request, events)
            continue
        for run in run_and_store_sweep(sweep_request, events).failed_or_partial_runs:
            yield sweep.label, f"batch {run.batch_size}: {run.status}, {run.reason}"


def explain_missing_ncu(request: SweepRequest) -> str | None:
    """Return why ncu cannot count here; None if it can, and for a sweep that counts nothing."""
    from perfctl.orchestrator.launch.catalog import require_profiler_tools

    if request.profiler.name != "ncu":
        return None
    if request.device != "cuda":
        return "no counts: the runs are on a CPU, and only NVIDIA GPUs count FLOPs"
    try:
        require_profiler_tools(request.profiler, request.device)
    except ToolMissing as missing:
        return f"no counts: {missing}"
    return None


def _run_study_bench(request: StudyRequest, events: Events) -> None:
    """Run the bench of a study, or a part of it. Raises PartlyDone if points failed."""
    from perfctl.orchestrator.commands import bench

    bench.run_bench(plan_study_bench(request), events).check()


def plan_study_bench(request: StudyRequest) -> bench.BenchRequest:
    """Return the bench of a study, whose runs and store are in its folder. Raises UsageError."""
    from importlib import resources

    from perfctl.orchestrator.commands import bench
    from perfctl.orchestrator.launch.sweep.bench_file import read_bench_file

    values = request.values
    name = request.study.content["bench"]["quick" if request.quick else "design"]
    file = values.get("design") or resources.files("perfctl.templates").joinpath(name)
    with resources.as_file(file) as path:
        design = read_bench_file(path)
    options = bench.BenchOptions(
        Path(name),
        budget=values.get("budget"),
        shard=request.part,
        device=values.get("device"),
        threads=values.get("threads"),
        out=request.out / RUNS,
        store=request.out / DEFAULT_STORE,
        command_line=request.command_line,
    )
    return bench.plan_bench(design, options, {})


def raise_if_layer_missing(request: StudyRequest) -> None:
    """Raise UsageError if `layer` or `hand` names a layer that the built-in network does not have.
    The layers of a program, and of reports, are unknown before they are read."""
    values = request.values
    layer_options = {layer: "layer" for layer in (values.get("layer"),) if layer}
    layer_options |= {text.partition("=")[0].strip(): "hand" for text in values.get("hand") or ()}
    if not layer_options or request.program is not None or request.source is not None:
        return
    from perfctl.orchestrator.launch.sweep.plan import DEFAULT_WORKLOAD
    from perfctl.workloads.run.options import find_workload, parse_workload_arguments
    from perfctl.workloads.spec import SpecError, WorkloadError

    workload = values.get("workload") or DEFAULT_WORKLOAD
    try:
        options, model_options = parse_workload_arguments(
            workload, ("--batch", "1", *request.words)
        )
        model = find_workload(workload).build(options, model_options).model
    except (ImportError, SpecError, WorkloadError):  # sweeps report it, or the nodes have it
        return
    names = ["(model)", *(name for name, _ in model.named_modules() if name)]
    for layer, option in layer_options.items():
        if layer not in names:
            alike = get_close_matches(layer, names, 3, 0.4)
            remedy = f"Did you mean {' or '.join(alike)}?" if alike else None
            raise UsageError(f"`{option}`: layer '{layer}' not found in {workload}", remedy)


def create_or_reuse_study_folder(request: StudyRequest) -> None:
    """Create the folder for this request. If the same request created it before, the study
    continues with the runs in it. A request that only reads these runs leaves the claim as it is.

    Raises UsageError when the folder holds another study, PerfctlError when it cannot be written.
    """
    identity = json.loads(
        json.dumps(
            {"study": request.study.name, **request.options_that_affect_results}, default=str
        )
    )
    file = request.out / "study.json"
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        before = None
    except (OSError, ValueError) as error:
        raise PerfctlError(
            f"{file}: cannot be read ({error})", "Remove it, or choose another `out`"
        ) from error
    reads_own = request.source is not None and request.source.resolve().is_relative_to(
        request.out.resolve()
    )
    foreign = [name for name in WRITTEN if before is None and (request.out / name).exists()]
    if foreign:
        problem = f"{request.out} has {foreign[0]}, but no study.json that names a study"
        raise UsageError(problem, "Choose another `out`, or remove it")
    if before is not None and reads_own and before.get("study") == request.study.name:
        return
    if before is not None and before != identity:
        keys = [key for key in {**identity, **before} if identity.get(key) != before.get(key)]
        was, now = (
            {key: "not set" if settings.get(key) is None else settings[key] for key in keys}
            for settings in (before, identity)
        )
        which = ", ".join(
            f"{key} was {was[key]}, now {now[key]}"
            for key in (["study"] if "study" in keys else keys)
        )
        raise UsageError(
            f"{request.out} holds another study ({which})",
            "Choose another `out`, or remove that folder",
        )
    with convert_write_errors(request.out):
        request.out.mkdir(parents=True, exist_ok=True)
    if before is None:
        write_text(file, json.dumps(identity, indent=1) + "\n")


@contextmanager
def _remove_empty_study_on_failure(folder: Path) -> Iterator[None]:
    """Where the block fails, a folder that holds no more than its request goes again."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            if [path.name for path in folder.iterdir()] == ["study.json"]:
                (folder / "study.json").unlink()
                folder.rmdir()
        raise


def _find_or_ingest_source_database(
    request: StudyRequest, failed: list[tuple[str, str]], events: Events
) -> Path:
    """Return the results database with the recorded runs: the one that was named or that the
    folder has, otherwise the study's own with all reports. Unreadable ones go to ``failed``."""
    from perfctl.orchestrator.commands import bench
    from perfctl.orchestrator.ingest.context import UserHints
    from perfctl.orchestrator.ingest.ingest import ingest_paths
    from perfctl.orchestrator.sides import is_results_database

    source, values = request.source, request.values
    assert source is not None
    create_or_reuse_study_folder(request)
    if is_results_database(source) or (is_bench_study(request) and not source.is_dir()):
        return source
    if (source / DEFAULT_STORE).is_file():
        return source / DEFAULT_STORE
    runs = source / RUNS if (source / RUNS).is_dir() else source
    store = request.out / DEFAULT_STORE
    with _remove_empty_study_on_failure(request.out):
        if is_bench_study(request):
            unread = bench.ingest_bench_runs_returning_errors(runs, store, request.command_line)
        else:
            hints = UserHints(workload=values.get("workload"), precision=values.get("precision"))
            outcome = ingest_paths(
                [runs],
                store,
                hints=hints,
                listener=lambda event: _forward_ingest_event(event, events),
                command_line=request.command_line,
            )
            if outcome.failed and not outcome.taken:
                outcome.check()
            unread = tuple(outcome.failed)
    failed += [("a file that could not be read", text) for text in unread]
    return store


def _forward_ingest_event(event: Event, events: Events) -> None:
    """Print what an ingest reports, without its progress."""
    from perfctl.orchestrator.ingest.context import (
        NoteSent,
        ReportFailed,
        SourcesCounted,
        WarningSent,
    )

    match event:
        case SourcesCounted(total):
            events.note(f"reading {total} reports")
        case NoteSent(text):
            events.note(text)
        case WarningSent(text) | ReportFailed(text):
            events.warning(text)


def _write_study_report_files(
    material: StudyMaterial, missing: Sequence[tuple[str, str]], failed: Sequence[tuple[str, str]]
) -> StudyResult:
    """Write page, summary, tables and charts (PNG); earlier ones are replaced.

    Names of charts begin with the key of their chapter ("time-step" for a chart in "time").
    """
    from perfctl.orchestrator.report.charts import files as charts_files
    from perfctl.orchestrator.report.page.page import render_view_as_html
    from perfctl.orchestrator.report.studies.records import (
        assemble_study_view,
        render_study_markdown,
        render_tables_as_csv_files,
    )

    request, links = material.request, list[tuple[str, str]]()
    content, folder_out = request.study.content, request.out
    names = dict.fromkeys(chapter["show"].partition(".")[0] for chapter in content["chapters"])
    if content.get("report"):
        links = [("Every layer, kernel, operation and run of this study", "report.html")]
    with _remove_empty_study_on_failure(folder_out):
        with charts_files.collect_charts() as drawings:
            subjects = {name: SUBJECTS[name](material) for name in names}
            page = assemble_study_view(
                request.study.kind,
                content,
                subjects,
                missing=[*missing, *failed],
                links=links,
                source=request.source,
                command=request.command_line or None,
            )
        text = render_view_as_html(page)
        if links:
            from perfctl.orchestrator.commands.report import report

            report(material.store, folder_out / "report.html", force=True)
    charts, tables = folder_out / "charts", folder_out / "tables"
    with convert_write_errors(folder_out):
        for folder in (charts, tables):
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.iterdir():
                old.unlink()
        for drawing in drawings:
            charts_files.save_chart(
                drawing, charts / f"{drawing.name}.png", "png", CHART_MM, dpi=150
            )
    for name, lines in render_tables_as_csv_files(page):
        write_text(tables / name, "".join(lines), force=True)
    files = {
        "study.html": text,
        "summary.md": render_study_markdown(page, [f"{drawing.name}.png" for drawing in drawings]),
    }
    for name, text in files.items():
        write_text(folder_out / name, text, force=True)
    problems = [f"{part}: {reason}" for part, reason in failed]
    problems += [problem for subject in subjects.values() for problem in subject.problems]
    extra = [folder_out / file for _, file in page.links if file == CALCULATOR]
    written = (*(folder_out / name for name in files), tables, charts, *extra)
    return StudyResult(page, written, tuple(problems))


def list_study_options(study: StudyDefinition) -> dict[str, DeclaredOption]:
    """Return the options that the file of a study declares, with those of programs."""
    return {**study.options, **(PROGRAM if study.content.get("takes_program") else {})}


def build_study_request(study: StudyDefinition, options: StudyOptions) -> StudyRequest:
    """Return what the options ask of a study."""
    own_values = options.own
    return StudyRequest(
        study,
        {
            name: own_values[name]
            for name, field in study.options.items()
            if own_values[name] != field.default
        },
        options.out or Path(f"study-{study.kind}"),
        options.quick,
        options.source,
        options.part,
        tuple(own_values.get("arguments", ())),
        own_values.get("program"),
        options.command_line,
    )


def plan_study_parts(request: StudyRequest) -> StudyParts:
    """Return the parts of a study that other machines will run. Raises UsageError."""
    request, _ = resolve_devices_and_list_missing(request, runs_on_other_machines=True)
    return split_study_into_parts(request)


def build_study_view(result: StudyResult | StudyParts | None) -> View | RawLines:
    """Return the findings and the names of what was written; or the commands of the parts."""
    if isinstance(result, StudyParts):
        commands = (*(commands for _, commands in result.parts), result.finish)
        return RawLines(
            (f"{shlex.join(['perfctl', *command])}\n" for command in commands), "--dry-run"
        )
    if result is None:
        return View("")
    findings, warnings = result.page.finding_and_warning_sentences
    numbered = (f"{number}  {text}" for number, text in enumerate(findings, 1))
    marked = (f"!  {text}" for text in warnings)
    return View(lines=(*numbered, *marked, *(f"Wrote {path}" for path in result.files)))


def _print_missing_raise_if_failed(result: StudyResult | StudyParts | None, events: Events) -> None:
    """Say what is not in the study. Raises PartlyDone where a part failed."""
    if isinstance(result, StudyResult):
        for part, reason in result.page.missing:
            events.note(f"not in this study: {part}: {reason}")
        result.check()


def declare_study_command(study: StudyDefinition) -> Command[StudyOptions, Any]:
    """Return the command of a study."""

    def run_or_plan_study(options: StudyOptions, events: Events) -> StudyResult | StudyParts | None:
        request = build_study_request(study, options)
        if options.dry_run:
            return plan_study_parts(request)
        if request.part is None:
            return run_study(request, events)
        run_study_part(request, events)
        return None

    line = study.content.get("line", "")
    return Command(
        StudyOptions,
        run_or_plan_study,
        build_study_view,
        has_document=False,
        has_json=False,
        check=_print_missing_raise_if_failed,
        line=line,
        help=inspect.cleandoc(study.content.get("help", line)),
        own=list_study_options(study),
    )


def find_study_file_command(name: str) -> Command[StudyOptions, Any] | None:
    """Return the command of a user's TOML file; None for a word that names none. Raises UsageError
    for a file that is no study."""
    return declare_study_command(read_study_definition(name)) if name.endswith(".toml") else None


GROUP = Group(
    "Do a complete study: measure, compare, and write an HTML report and a summary. "
    "perfctl study FILE.toml does one of your own.",
    {name: declare_study_command(read_study_definition(name)) for name in SEEDS},
    find=find_study_file_command,
)
