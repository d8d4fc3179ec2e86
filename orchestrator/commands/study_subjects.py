"""What the chapters of studies are made from: the runs of a store, related, compared and fitted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.errors import PerfctlError, ToolMissing, UsageError
from perfctl.orchestrator.events import SILENT, Events
from perfctl.orchestrator.files import write_text

if TYPE_CHECKING:
    from perfctl.orchestrator.compare.speedup import NetworkSpeedup
    from perfctl.orchestrator.launch.sweep.study import StudyRequest
    from perfctl.orchestrator.predict.fit import LeftOutErrors
    from perfctl.orchestrator.report.studies.records import StudySubject
    from perfctl.records.run import Run

SUMMARY_LINE = 15
"""The line of dlprof_summary.csv that the script of the published study printed."""
CALCULATOR = "calculator.html"


@dataclass(frozen=True, slots=True)
class StudyMaterial:
    """What the page of a study is made from."""

    request: StudyRequest
    store: Path
    """A file of ``perfctl bench export`` where one was named."""
    messages: Events

    def get_option_value(self, option: str) -> Any:
        """Return the value of an option of the study; None for one that it does not have."""
        return self.request.values.get(option)

    def load_newest_runs_of_each_kind(self) -> list[Run]:
        """Return the newest run of each kind."""
        from perfctl.orchestrator.stored_runs import load_latest_runs_per_configuration

        return load_latest_runs_per_configuration(self.store)


def _build_flops_study_chapters(material: StudyMaterial) -> StudySubject:
    from perfctl.orchestrator.report.studies.flops import build_flops_study

    return build_flops_study(
        material.load_newest_runs_of_each_kind(),
        workload=material.get_option_value("workload"),
        layer=material.get_option_value("layer"),
        batch=material.get_option_value("batch"),
        hand_values=material.get_option_value("hand") or (),
    )


def _build_inference_study_chapters(material: StudyMaterial) -> StudySubject:
    from perfctl.orchestrator.report.studies.inference import build_inference_study

    runs = [run for run in material.load_newest_runs_of_each_kind() if run.mode != "train"]
    if not runs:
        raise PerfctlError(
            f"{material.request.source or material.store}: no run and no report of inference",
            "Name the folder that has them",
        )
    lines = {run.id: _read_dlprof_summary_line_15(run, material.store) for run in runs}
    return build_inference_study(
        runs, {run: line for run, line in lines.items() if line is not None}
    )


def _read_dlprof_summary_line_15(run: Run, store: Path) -> str | None:
    """Return line 15 of the run's dlprof_summary.csv; None where there is no such file or line."""
    if run.profiler != "dlprof" or run.artifact is None:
        return None
    path = store.resolve().parent / run.artifact
    file = path / "dlprof_summary.csv" if path.is_dir() else path
    if file.suffix != ".csv" or not file.is_file():
        return None
    with file.open(encoding="utf-8", errors="replace") as lines:
        line_15 = islice(lines, SUMMARY_LINE - 1, SUMMARY_LINE)
        return next((line.strip()[:200] for line in line_15), None)


def _build_speedup_chapters_and_files(material: StudyMaterial) -> StudySubject:
    """Compare the devices of each network, and write results.json and the notebook."""
    from importlib import resources

    from perfctl.orchestrator.commands.speedup import compare_arms_per_batch
    from perfctl.orchestrator.compare.speedup import (
        ASKED,
        group_training_runs_into_arms,
        validate_allowed_fact_names,
    )
    from perfctl.orchestrator.outputs import convert_to_json
    from perfctl.orchestrator.report.studies.speedup import build_speedup_study
    from perfctl.orchestrator.sides import load_comparison_side
    from perfctl.orchestrator.stored_runs import runs as all_runs

    store = material.store
    allowed = validate_allowed_fact_names(
        filter(None, (material.get_option_value("allow") or "").split(","))
    )
    is_read_now = material.request.source is not None and store.parent == material.request.out
    runs = (
        all_runs(store)
        if is_read_now
        else load_comparison_side(store, store, material.messages).runs
    )
    networks, missing = group_training_runs_into_arms(runs)
    speedups: list[NetworkSpeedup] = []
    failed = []
    for network, arms in networks.items():
        try:
            speedups += compare_arms_per_batch(
                arms,
                store,
                allowed=allowed | ASKED,
                peak_source=material.get_option_value("peaks") or "published",
                events=material.messages,
            ).studies
        except PerfctlError as error:
            reasons = (r.reason for of_batch in arms.values() for a in of_batch for r in a.runs)
            reason = next(filter(None, reasons), None) or str(error)
            missing.append((network, reason))
            failed.append(f"{network}: {reason}")
    if not speedups:
        absent = (
            failed or [f"{network_}: {reason}" for network_, reason in missing] or ["no run trains"]
        )
        raise PerfctlError(
            f"no network has two devices to compare: {'; '.join(absent)}",
            "perfctl speedup and perfctl torch --mode train make such runs",
        )
    folder = material.request.out
    folder.mkdir(parents=True, exist_ok=True)
    write_text(
        folder / "results.json", json.dumps(convert_to_json(speedups), indent=1) + "\n", force=True
    )
    notebook = resources.files("perfctl.templates").joinpath("speedup.ipynb")
    write_text(folder / "speedup.ipynb", notebook.read_text(encoding="utf-8"), force=True)
    return build_speedup_study(speedups, networks, missing, failed)


def _build_cost_chapters_and_calculator(material: StudyMaterial) -> StudySubject:
    """Relate the points of a bench, leave each network out of a fit, write the calculator."""
    from perfctl.orchestrator.commands import bench
    from perfctl.orchestrator.predict.bench import list_size_observations
    from perfctl.orchestrator.report.studies.cost import build_bench_cost_study

    store = material.store
    if store.suffix == ".json":
        points = bench.load_bench_points(file=store)
        reason = (
            "a file of perfctl bench export has no peaks of the machine; use --from with a "
            "results database"
        )
        missing = [("the fit and the calculator", reason)]
        return build_bench_cost_study(
            points, list_size_observations(points), (), missing_reasons=missing
        )
    points = bench.load_bench_points(store)
    missing, failed, calculator = [], [], None
    fits: tuple[Any, ...] = ()
    try:
        fits = cross_validate_by_network(store, missing, material.messages)
        calculator = _write_calculator(material)
    except PerfctlError as error:
        missing.append(("the calculator's page", str(error)))
        failed.append(str(error))
    return build_bench_cost_study(
        points,
        list_size_observations(points),
        fits,
        calculator_page=calculator,
        missing_reasons=missing,
        problems=failed,
    )


def cross_validate_by_network(
    store: Path, missing: list[tuple[str, str]], messages: Events
) -> tuple[LeftOutErrors, ...]:
    """Return the fits of the store, each with the error of networks that it did not see; what
    cannot be fitted goes to ``missing``."""
    from perfctl.orchestrator.evidence import build_evidence_for_all_devices
    from perfctl.orchestrator.predict.fit import cross_validate_by_network

    learned, _ = build_evidence_for_all_devices(store)
    errors = []
    for fit in learned.fits:
        steps = [
            step
            for step in learned.measured
            if (step.machine, step.case.precision, step.case.training)
            == (fit.machine.name, fit.precision, fit.training)
        ]
        messages.note(f"leaving out each of {len({step.case.model for step in steps})} networks")
        try:
            errors.append(cross_validate_by_network(fit, steps))
        except (UsageError, ToolMissing) as error:
            missing.append(("the error of a network left out", str(error)))
    notes: Sequence[str] = learned.notes
    if not errors and not notes:
        notes = ("the results database has fewer than 20 measured steps of each device",)
    missing += [("a fit", note) for note in dict.fromkeys(notes)]
    return tuple(errors)


def _write_calculator(material: StudyMaterial) -> str:
    """Write the calculator into the study's folder; say which prices of the user's it has."""
    from perfctl.orchestrator.commands.calculator import CalculatorOptions, write_calculator_page
    from perfctl.orchestrator.predict.prices import load_price_table
    from perfctl.orchestrator.report.prices import format_price_dates

    prices = material.get_option_value("prices")
    options = CalculatorOptions(
        material.request.out / CALCULATOR,
        models=material.get_option_value("models") or "none",
        store=material.store,
        prices=prices,
        force=True,
    )
    material.messages.note("writing the calculator")
    used = write_calculator_page(options, SILENT).prices
    if prices is not None:
        table = load_price_table(prices)
        unused = len(table.prices) - len(used)
        reason = (
            f"; {unused} not used: they state no date, or not which form of the GPU it is "
            "('perfctl predict --list-prices --prices')"
        )
        material.messages.note(
            f"the calculator has {len(used)} of the {len(table.prices)} prices in {table.name}"
            f"{f', of {format_price_dates(used)}' if used else ''}{reason if unused else ''}"
        )
    return CALCULATOR


def _build_report_study_chapters(material: StudyMaterial) -> StudySubject:
    from perfctl.orchestrator.report.studies.ordinary import build_report_sections_study

    return build_report_sections_study(material.load_newest_runs_of_each_kind())


SUBJECTS: Mapping[str, Callable[[StudyMaterial], StudySubject]] = {
    "flops": _build_flops_study_chapters,
    "inference": _build_inference_study_chapters,
    "speedup": _build_speedup_chapters_and_files,
    "cost": _build_cost_chapters_and_calculator,
    "report": _build_report_study_chapters,
}
"""What stands before the point in the ``show`` of a chapter -> what its chapters are made of."""


def raise_if_unknown_chapter(chapters: Sequence[Mapping[str, Any]]) -> None:
    """Raise UsageError for a chapter that no subject has."""
    for chapter in chapters:
        subject, _, name = chapter["show"].partition(".")
        names = [f"{choice}." for choice in SUBJECTS]
        if subject in SUBJECTS:
            module = "ordinary" if subject == "report" else subject
            module = import_module(f"perfctl.orchestrator.report.studies.{module}")
            if name in module.CHAPTERS:
                continue
            names = [f"{subject}.{choice}" for choice in module.CHAPTERS]
        raise UsageError(
            f"there is no chapter '{chapter['show']}'", f"Begin with {', '.join(names)}"
        )
