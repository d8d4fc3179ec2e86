"""Train one workload on several devices and precisions, and say how many times faster each is than
the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from perfctl.orchestrator.commands.declare import (
    Command,
    Events,
    Force,
    Option,
    PeaksOf,
    WorkloadWords,
    split_at_commas,
)
from perfctl.orchestrator.compare.speedup import (
    ALLOWED,
    ASKED,
    Arm,
    ArmsByBatch,
    NetworkSpeedup,
    validate_allowed_fact_names,
)
from perfctl.orchestrator.compare.speedup import compare_all_arms_with_first as compare_speed
from perfctl.orchestrator.errors import PartlyDone, PerfctlError, UsageError
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.evidence import measure_roofline_peaks_if_selected
from perfctl.orchestrator.files import (
    raise_if_output_not_replaceable,
    replace_when_done,
    write_text,
)
from perfctl.orchestrator.ingest.sweep import run_and_store_sweep
from perfctl.orchestrator.launch.sweep.folders import write_json_atomically
from perfctl.orchestrator.launch.sweep.options import MEASURE, OUTPUT, SweepOptions
from perfctl.orchestrator.launch.sweep.ways import (
    RECORD,
    TrainingWay,
    choose_default_device_variants,
    compute_default_sweep_name,
    parse_device_precision_variants,
    plan_training_sweep_of_variant,
    raise_if_variant_cannot_run,
)
from perfctl.orchestrator.ledger.arm_figures import compute_figures_of_newest_run
from perfctl.orchestrator.options import extract_base_class_fields, parse_batch_sizes
from perfctl.orchestrator.outputs import convert_to_json
from perfctl.orchestrator.report.charts import files as charts_files
from perfctl.orchestrator.report.speedup import build_speedups_view
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.sides import load_comparison_side
from perfctl.orchestrator.stored_runs import load_sweep_runs
from perfctl.workloads.models import WORKLOADS

if TYPE_CHECKING:
    from perfctl.orchestrator.launch.sweep.request import SweepRequest
    from perfctl.records.run import Run

COLUMN_MM = 84
"""Width of a chart for a paper: one column."""


@dataclass(frozen=True, slots=True)
class SpeedupOptions(SweepOptions):
    """Train on each device and precision, one process each, and show the speedup of each and its
    sources.

    perfctl passes options that are not listed here to the workload: --base-width, --image-size
    (unet), --hidden, --length (lstm), --seed, --data. Use --runs to add runs of other machines, as
    files or after ingesting them.
    """

    batches: Annotated[
        tuple[int, ...],
        Option(
            "Batch sizes, each compared separately: 16,32,64.",
            metavar="LIST",
            parse=parse_batch_sizes,
            is_common=True,
        ),
    ] = (16,)
    workload: Annotated[
        str | None,
        Option(
            "Built-in training workload.",
            metavar="NAME",
            is_common=True,
        ),
    ] = "unet"
    devices: Annotated[
        str,
        Option(
            "Devices to compare with the first one: cpu, cuda, each with :tf32 (cuda), :bf16, "
            ":fp16 (cuda) or :compile. auto: cpu and cuda; without a GPU cpu, cpu:bf16 and "
            "cpu:compile.",
            metavar="LIST",
            is_common=True,
        ),
    ] = "auto"
    epochs: Annotated[
        int, Option("Full epochs after the measured steps.", MEASURE, least=0, is_common=True)
    ] = 5
    runs: Annotated[
        tuple[str, ...] | None,
        Option(
            "Compare existing sweeps, runs or reports with the first one, without new runs.",
            metavar="A,B,...",
            parse=split_at_commas,
            is_common=True,
        ),
    ] = None
    page: Annotated[
        Path | None,
        Option(
            "HTML report. Default: WORKLOAD_speedup.html next to --out.", OUTPUT, is_common=True
        ),
    ] = None
    allow: Annotated[
        tuple[str, ...],
        Option(
            f"Facts that may differ: {', '.join(ALLOWED)}.", metavar="LIST", parse=split_at_commas
        ),
    ] = ()
    charts: Annotated[
        Path | None,
        Option("Also write the charts as PDF files.", OUTPUT, metavar="FOLDER"),
    ] = None
    force: Force = False
    peaks: PeaksOf = "published"
    arguments: WorkloadWords = ()


@dataclass(frozen=True, slots=True)
class SpeedupResult:
    """What a study came to."""

    studies: tuple[NetworkSpeedup, ...]
    """One for each batch size with two devices or more."""
    written: tuple[Path, ...] = ()

    def check(self) -> None:
        """Raises PartlyDone when a device failed, PerfctlError when a comparison was refused."""
        failed = [
            f"{label}: {problem}" for study in self.studies for label, problem in study.failed
        ]
        if failed:
            raise PartlyDone(f"{len(failed)} of the devices failed: {failed[0]}")
        for arm in (arm for study in self.studies for arm in study.comparisons):
            for reason in arm.reasons:
                raise PerfctlError(
                    f"no speedup: {arm.label}: {reason}",
                    "Use `allow` NAME to compare anyway; the result is marked",
                )


def run_speedup(options: SpeedupOptions, events: Events) -> SpeedupResult:
    """Train on each device, or take what was named, compare with the first, and write the page.

    Everything is checked before anything runs; a device that fails does not stop the others, and
    :meth:`SpeedupResult.check` raises for it. Raises UsageError, ToolMissing, Interrupted when
    asked to stop, and PerfctlError when no batch size ran on two devices.
    """
    allowed, store, page = (
        validate_allowed_fact_names(options.allow),
        options.store_path,
        options.page,
    )
    if options.charts is not None and options.charts.exists():
        raise_if_output_not_replaceable(options.charts, force=options.force, is_folder=True)
    if options.runs is not None:
        if page is None:
            events.note("no report is written without --page FILE")
        arms = load_named_arms(options.runs, store, events)
    else:
        page = page or options.out.parent / f"{options.workload}_speedup.html"
        ways = (
            choose_default_device_variants(events)
            if options.devices == "auto"
            else parse_device_precision_variants(options.devices)
        )
        sweep_options = replace(extract_base_class_fields(options, SweepOptions), devices=None)
        planned = [
            (
                way,
                plan_training_sweep_of_variant(
                    way, options.epochs, sweep_options, options.arguments
                ),
            )
            for way in ways
        ]
        for way, request in planned:
            raise_if_variant_cannot_run(way, request)
        for way, request in planned:
            events.note(f"{way.label}:")
            run_sweep_and_write_results(request, events)
        arms, allowed = load_arms_by_batch(planned), allowed | ASKED
    result = compare_arms_per_batch(
        arms, store, allowed=allowed, peak_source=options.peaks, events=events
    )
    written = write_speedup_files(result, page, options.charts, force=options.force)
    return replace(result, written=tuple(written))


def compare_arms_per_batch(
    arms_by_batch: ArmsByBatch,
    store: Path,
    *,
    allowed: frozenset[str],
    peak_source: str,
    events: Events,
) -> SpeedupResult:
    """Return the speedups of each batch size, with the estimated memory of each arm. Raises
    PerfctlError when there is none."""
    speedups = []
    for batch, arms in arms_by_batch.items():
        try:
            comparison = compare_speed(
                arms, allowed=allowed, peaks=load_arm_device_peaks(arms, store, peak_source, events)
            )
        except ValueError as error:
            events.warning(f"batch {batch}: nothing to compare: {error}")
            continue
        newest = {arm.label: run for arm in arms for run in arm.runs if run.status == "ok"}
        memory = [estimate_step_memory_or_reason(newest[facts.label]) for facts in comparison.arms]
        facts = (
            replace(facts, estimated_memory=size, estimated_memory_reason=reason)
            for facts, (size, reason) in zip(comparison.arms, memory, strict=True)
        )
        speedups.append(replace(comparison, arms=tuple(facts)))
    if not speedups:
        raise PerfctlError(
            "no batch size ran on two devices", "See the reasons above; logs are in the run folders"
        )
    return SpeedupResult(tuple(speedups))


def load_arm_device_peaks(
    arms: Sequence[Arm], store: Path, peak_source: str, events: Events
) -> list[Any]:
    """Return the peaks of all devices of the arms."""

    return [
        roof
        for arm in arms
        for roof in measure_roofline_peaks_if_selected(peak_source, store, arm.runs, events.note)
    ]


def write_speedup_files(
    result: SpeedupResult, page: Path | None, charts: Path | None, *, force: bool
) -> list[Path]:
    """Write the page, and the page's charts as PDF into the folder ``charts``. Return what was
    written, charts first."""
    from perfctl.orchestrator.report.page.page import render_view_as_html

    written = []
    with charts_files.collect_charts() as drawings:
        text = (
            render_view_as_html(build_speedups_view(result.studies, has_charts=True))
            if page or charts
            else ""
        )
    if charts is not None:
        charts.parent.mkdir(parents=True, exist_ok=True)
        with replace_when_done(charts, force=force, is_folder=True) as partial:
            for drawing in drawings:
                charts_files.save_chart(drawing, partial / f"{drawing.name}.pdf", "pdf", COLUMN_MM)
        written.append(charts)
    if page is not None:
        write_text(page, text, force=force)
        written.append(page)
    return written


def run_sweep_and_write_results(request: SweepRequest, events: Events) -> None:
    """Run one sweep into its folder and the store, and write results.json beside the runs: each
    run's figures, with units in their names."""

    folder = request.folder
    folder.mkdir(parents=True, exist_ok=True)
    record = {"request": compute_default_sweep_name(request), "command": request.command_line}
    write_json_atomically(folder / RECORD, record)
    run_and_store_sweep(request, events)
    rows = []
    for run in load_newest_request_repeats(request):
        row = {
            "batch_size": run.batch_size,
            "status": run.status,
            "reason": run.reason,
            "trace": run.artifact,
        }
        if run.status == "ok":
            figures = convert_to_json(compute_figures_of_newest_run(request.name, (run,)))
            # the report has estimates
            row |= {
                key: value for key, value in figures.items() if not key.startswith("estimated_")
            }
        rows.append(row)
    head = {"perfctl_results": 1, "name": request.name, "workload": request.workload}
    write_json_atomically(folder / "results.json", head | {"runs": rows})


def load_newest_request_repeats(request: SweepRequest) -> list[Run]:
    """Return the request's runs in the store, oldest first; of each batch size only the newest
    ``repeat`` whole ones, else the newest."""
    runs = load_sweep_runs(request.store_path, [request.name], latest_per_configuration=False)
    chosen: list[Run] = []
    for batch in request.batches:
        of_size = [run for run in runs if run.batch_size == batch]
        chosen += [run for run in of_size if run.status == "ok"][-request.repeat :] or of_size[-1:]
    return chosen


def load_arms_by_batch(planned: Sequence[tuple[TrainingWay, SweepRequest]]) -> ArmsByBatch:
    """Return the arms of each batch size, in the order of the list of devices."""
    runs = {way.label: load_newest_request_repeats(request) for way, request in planned}
    return {
        batch: [
            Arm(label, tuple(run for run in of_way if run.batch_size == batch))
            for label, of_way in runs.items()
        ]
        for batch in planned[0][1].batches
    }


def load_named_arms(names: Sequence[str], store: Path, events: Events) -> ArmsByBatch:
    """Return the arms of each batch size, of sweeps, runs and reports that exist, with the names of
    ``perfctl compare``. Raises UsageError for fewer than two."""
    if len(names) < 2:
        raise UsageError("`runs` needs at least two", "For example `runs` unet_cpu,unet_cuda")
    sides = [load_comparison_side(name, store, events) for name in names]
    labels = make_labels_distinct([named_side.label for named_side in sides], names)
    batches = dict.fromkeys(run.batch_size for run in sides[0].runs)

    def select_batch_or_all_runs(runs: Sequence[Run], batch: int | None) -> tuple[Run, ...]:
        """Of a side that has one other size, all of them: that it differs is reported."""
        runs_of_batch = tuple(run for run in runs if run.batch_size == batch)
        has_other = len(batches) == 1 and len({run.batch_size for run in runs}) == 1
        return runs_of_batch or (tuple(runs) if has_other else ())

    return {
        batch: [
            Arm(label, select_batch_or_all_runs(named_side.runs, batch))
            for label, named_side in zip(labels, sides, strict=True)
        ]
        for batch in batches
    }


def make_labels_distinct(labels: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the labels; if two are equal (b16 of two folders) the names as typed, and numbered if
    these are equal too."""
    distinct = [
        name if labels.count(label) > 1 else label
        for label, name in zip(labels, names, strict=True)
    ]
    return [
        f"{label} ({distinct[: index + 1].count(label)})" if distinct.count(label) > 1 else label
        for index, label in enumerate(distinct)
    ]


def estimate_step_memory_or_reason(run: Run) -> tuple[int | None, str | None]:
    """Return the estimated bytes of a step, or why they are not known."""

    reason = None
    if run.workload not in WORKLOADS or not run.batch_size:
        reason = "known for built-in workloads only; run perfctl estimate for other models"
    elif run.mode != "train":
        reason = "known for training only"
    elif run.precision not in ("fp32", "tf32"):
        reason = f"{run.precision}: autocast keeps copies that the estimate does not include"
    elif run.report.environment.get("option:compile") == "True":
        reason = "compiled: the compiler chooses which tensors are kept"
    elif find_spec("torch") is None:
        reason = "needs torch, which is not installed here"
    if reason is not None or run.workload is None or run.batch_size is None:
        return None, reason
    from perfctl.orchestrator.estimate.session import estimate_model_for_batch

    try:
        request = Request(run.workload, memory=True, own=rebuild_workload_options(run))
        estimate = estimate_model_for_batch(request, run.batch_size)
    except PerfctlError as error:
        return None, str(error)
    if estimate.memory is None or estimate.problem is not None:
        return None, estimate.problem or "no memory was recorded"
    return estimate.memory.rounded_peak, None


def rebuild_workload_options(run: Run) -> tuple[str, ...]:
    """Return the workload's own options as the run recorded them, as words of a command line."""
    arguments: list[str] = []
    for option in fields(WORKLOADS[run.workload or ""].Own):
        value = run.report.environment.get(f"option:{option.name}")
        if value is not None and option.default is not None:
            flag = f"--{option.name.replace('_', '-')}"
            arguments.append(f"{flag}={value.strip('[]()').replace(' ', '')}")
    return tuple(arguments)


def build_speedup_view(result: SpeedupResult) -> View:
    """Return the speedups, and what was written."""
    lines = tuple(f"Wrote {path}" for path in result.written)
    draw = partial(build_speedups_view, result.studies, has_charts=True)
    return replace(build_speedups_view(result.studies), lines=lines, document=draw)


def list_speedups(result: SpeedupResult) -> list[NetworkSpeedup]:
    """Return what ``--json`` prints."""
    return list(result.studies)


COMMAND = Command(
    SpeedupOptions,
    run_speedup,
    build_speedup_view,
    list_speedups,
    # the list of devices says, or a speedup is of training with the built-in workloads here
    without=(
        *("mode", "precision", "device", "batch_env", "step_marker", "to_end"),
        *("sweep", "zip", "sweep_env", "as_is"),
        *("sweep_name", "no_store", "image", "bind", "container_runtime"),
    ),
    examples=(
        "perfctl speedup --workload unet --devices cpu,cuda,cuda:bf16",
        "perfctl speedup --workload lstm --devices cpu,cpu:bf16 --epochs 2",
        "perfctl speedup --runs cpu-sweep,gpu-sweep --page both.html",
    ),
)
