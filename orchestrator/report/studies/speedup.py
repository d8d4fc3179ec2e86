"""Chapters of training on several devices: what is faster, how sure that is, where the time goes
then, and what was learned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from perfctl.orchestrator.compare.speedup import Arm, NetworkSpeedup
from perfctl.orchestrator.ledger.arm_figures import list_epochs
from perfctl.orchestrator.report import speedup as parts
from perfctl.orchestrator.report.charts import comparison as charts
from perfctl.orchestrator.report.numbers import (
    drop_trailing_zeros,
    format_percent,
    format_ratio,
    format_time,
)
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.studies.records import (
    StudySubject,
    build_study_chapter,
    collect_run_facts,
)
from perfctl.orchestrator.report.tables import (
    Column,
    build_table,
    missing_cell,
    name_column,
    text_columns,
)
from perfctl.orchestrator.report.view import View
from perfctl.records.run import Run

GAIN_MIN = 1.05
"""How many times faster a step must become for one layer to be named."""
ROWS_OPEN_MAX, FIRST_ROWS = 16, 5
"""A longer table is folded, and its first rows are shown."""


@dataclass(frozen=True, slots=True)
class TrainedNetworks:
    """What the chapters are made of."""

    speedups: tuple[NetworkSpeedup, ...]
    """One for each network and batch size."""
    runs: tuple[tuple[str, str, Run], ...]
    """(network, device, its newest whole run at one batch size)."""

    @property
    def speedups_by_chapter_key(self) -> list[tuple[str, NetworkSpeedup]]:
        """Return (key of its chapter, speedup): "unet", or "unet-b16" if a network has several
        batches."""
        names = [speedup.workload for speedup in self.speedups]
        keyed = []
        for name, speedup in zip(names, self.speedups, strict=True):
            key = "".join(sign if sign.isalnum() else "-" for sign in name or "program")
            keyed.append((f"{key}-b{speedup.batch}" if names.count(name) > 1 else key, speedup))
        return keyed


def build_speedup_study(
    speedups: Sequence[NetworkSpeedup],
    networks: Mapping[str, Mapping[int | None, Sequence[Arm]]],
    missing: Sequence[tuple[str, str]],
    problems: Sequence[str],
) -> StudySubject:
    """Return what the chapters are made of."""
    newest = [
        (network, arm.label, complete[-1])
        for network, batches in networks.items()
        for arms in batches.values()
        for arm in arms
        if (complete := [run for run in arm.runs if run.status == "ok"])
    ]
    trained = TrainedNetworks(tuple(speedups), tuple(newest))
    names = " and ".join(dict.fromkeys(map(parts.format_network_name, speedups)))
    failed, refused = [], []
    for speedup in speedups:
        failed += [f"{speedup.workload} on {label}: {reason}" for label, reason in speedup.failed]
        reasons = (reason for other in speedup.comparisons for reason in other.reasons)
        refused += [f"{speedup.workload}: {reason}" for reason in reasons]
    return StudySubject(
        {name: partial(chapter, trained) for name, chapter in CHAPTERS.items()},
        tuple(_list_training_facts(trained)),
        {"networks": names, "devices": ", ".join(arm.label for arm in speedups[0].arms)},
        tuple(missing),
        links=(
            ("results.json: every figure, as perfctl speedup --json writes it", "results.json"),
            ("speedup.ipynb: a notebook that draws the charts of results.json", "speedup.ipynb"),
        ),
        problems=(*problems, *failed, *refused),
    )


def _list_training_facts(trained: TrainedNetworks) -> Iterator[tuple[str, str]]:
    first_runs = {network: run for network, _, run in reversed(trained.runs)}
    for network in dict.fromkeys(network for network, _, _ in trained.runs):
        run = first_runs[network]
        parameters = sum({call.layer: call.parameters or 0 for call in run.layer_calls}.values())
        sizes = f" ({run.variant})" if run.variant else ""
        size = f"{parameters:,} parameters" if parameters else "as recorded"
        yield parts.NAMES.get(network, network), size + sizes
    yield from collect_run_facts([run for _, _, run in trained.runs]).items()
    arms = [arm for speedup in trained.speedups for arm in speedup.arms]
    devices = dict.fromkeys(f"{arm.label}: {arm.device or 'not recorded'}" for arm in arms)
    yield "devices", "; ".join(devices)


def build_speedup_summary_chapter(trained: TrainedNetworks) -> View:
    """Return how many times faster each device is, by epochs and by steps."""
    several = len({speedup.batch for speedup in trained.speedups}) > 1
    findings = [
        parts.build_speedup_finding(speedup, other, key, states_batch=several)
        for key, speedup in trained.speedups_by_chapter_key
        for other in speedup.comparisons
    ]
    for key, speedup in trained.speedups_by_chapter_key:
        findings += [Finding(text, key) for text in _describe_amdahl_and_time_to_quality(speedup)]
    return build_study_chapter(
        (parts.WHICH, parts.UNKNOWN),
        tables=(parts.build_speedup_factors_table(trained.speedups),),
        findings=findings,
    )


def _describe_amdahl_and_time_to_quality(speedup: NetworkSpeedup) -> Iterator[str]:
    name = parts.format_network_name(speedup)
    for other in speedup.comparisons:
        best = next(iter(other.amdahl), None)
        if best is not None and best.gain.value >= GAIN_MIN:
            limit = (
                f"{format_ratio(best.gain.value)} times faster (Amdahl), at most "
                f"{format_ratio(best.limit)}"
            )
            setup = f"{best.layer} alone on {parts.format_device_label(other.label)}"
            yield f"{name}: with {setup}, a step would be {limit}."
    if speedup.times_to_quality:
        item = speedup.times_to_quality[-1]
        times = ", ".join(
            parts.format_device_label(label)
            + (" never reached it" if ns is None else f" {drop_trailing_zeros(format_time(ns))}")
            for label, ns in item.times.items()
        )
        is_loss = item.quantity == "test loss"
        target = f"{item.target:.3g}" if is_loss else format_percent(item.target)
        article = "an" if item.quantity == "accuracy" else "a"
        yield f"{name}: training time to {article} {item.quantity} of {target}: {times}."


def build_network_chapters(trained: TrainedNetworks) -> Iterator[View]:
    """Yield a chapter for each network and batch size: each alone, gains, results, layers,
    operations."""
    for key, speedup in trained.speedups_by_chapter_key:
        tables = list(parts.build_speedup_tables(speedup))
        folded = [drawn for drawn in tables if drawn.total > ROWS_OPEN_MAX]
        for drawn in folded:
            caption = f"{drawn.caption}: the first {FIRST_ROWS}"
            start = replace(drawn, caption=caption, rows=drawn.rows[:FIRST_ROWS], hidden=0)
            tables[tables.index(drawn)] = start
        yield build_study_chapter(
            parts.list_speedup_notes(speedup),
            charts.draw_speedup_charts(speedup, key),
            tables,
            folded,
            key=key,
            title=_format_network_and_batch(speedup),
        )


def _format_network_and_batch(speedup: NetworkSpeedup) -> str:
    return f"{parts.format_network_name(speedup)}, batch {speedup.batch}"


def build_work_pie_charts_chapter(trained: TrainedNetworks) -> View:
    """Return kinds of work of each network on each device."""
    return build_study_chapter(
        charts=[
            replace(chart, title=f"{_format_network_and_batch(speedup)}: {chart.title.lower()}")
            for number, speedup in enumerate(trained.speedups, 1)
            for chart in charts.draw_work_and_memory_charts(
                speedup, f"pies-{number}", uses_pies=True
            )
        ]
    )


def build_trace_files_chapter(trained: TrainedNetworks) -> View:
    """Return the runs with their traces."""
    heads = [
        *text_columns("network", "device"),
        *map(Column, ("batch", "epochs")),
        name_column("trace"),
    ]
    rows = [
        [
            parts.NAMES.get(network, network),
            label,
            run.batch_size,
            len(list_epochs(run)),
            run.artifact or missing_cell("the run left no report"),
        ]
        for network, label, run in trained.runs
    ]
    return build_study_chapter(tables=(build_table("Runs", heads, rows),))


CHAPTERS: dict[str, Callable[[TrainedNetworks], View | Iterator[View]]] = {
    "answer": build_speedup_summary_chapter,
    "networks": build_network_chapters,
    "pies": build_work_pie_charts_chapter,
    "files": build_trace_files_chapter,
}
