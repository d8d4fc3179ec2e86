"""Chapters of training on several devices: what is faster, how sure that is, where the time goes
then, and what was learned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from perfctl.orchestrator.compare.speedup import Arm, Reached, Speedup
from perfctl.orchestrator.ledger.arm_figures import epochs
from perfctl.orchestrator.report import speedup as parts
from perfctl.orchestrator.report.charts import speedup as charts
from perfctl.orchestrator.report.numbers import percent, ratio, short, time
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.studies.records import Subject, facts_of, make_chapter
from perfctl.orchestrator.report.tables import (
    Column,
    Table,
    count,
    nothing,
    table,
)
from perfctl.orchestrator.report.view import View
from perfctl.records.run import Run

GAIN_MIN = 1.05
"""How many times faster a step must become for one layer to be named."""
LAYERS_FIRST = 5
"""Layers that are listed before the whole list."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What the chapters are made of."""

    speedups: tuple[Speedup, ...]
    """One for each network and batch size."""
    runs: tuple[tuple[str, str, Run], ...]
    """(network, device, its newest whole run at one batch size)."""

    @property
    def keys(self) -> list[str]:
        """Return keys of chapters: "unet", or "unet-b16" where a network has several batches."""
        names = [one.workload for one in self.speedups]
        return [
            "".join(sign if sign.isalnum() else "-" for sign in one.workload or "program")
            + (f"-b{one.batch}" if names.count(one.workload) > 1 else "")
            for one in self.speedups
        ]


def subject(
    speedups: Sequence[Speedup],
    networks: Mapping[str, Mapping[int | None, Sequence[Arm]]],
    missing: Sequence[tuple[str, str]],
    problems: Sequence[str],
) -> Subject:
    """Return what the chapters are made of."""
    newest = [
        (network, arm.label, whole[-1])
        for network, arms_by_batch in networks.items()
        for arms in arms_by_batch.values()
        for arm in arms
        if (whole := [run for run in arm.runs if run.status == "ok"])
    ]
    trained = Trained(tuple(speedups), tuple(newest))
    names = " and ".join(dict.fromkeys(map(parts.name_of, speedups)))
    failed = [f"{one.workload} on {label}: {why}" for one in speedups for label, why in one.failed]
    refused = [
        f"{one.workload}: {why}"
        for one in speedups
        for other in one.comparisons
        for why in other.refused
    ]
    return Subject(
        {
            "answer": partial(answer_chapter, trained),
            "networks": partial(network_chapters, trained),
            "pies": partial(pies_chapter, trained),
            "files": partial(files_chapter, trained),
        },
        tuple(_facts(trained)),
        {"networks": names, "devices": ", ".join(arm.label for arm in speedups[0].arms)},
        tuple(missing),
        links=(
            ("results.json: every figure, as perfctl speedup --json writes it", "results.json"),
            ("speedup.ipynb: a notebook that draws the charts of results.json", "speedup.ipynb"),
        ),
        problems=(*problems, *failed, *refused),
    )


def _facts(trained: Trained) -> Iterator[tuple[str, str]]:
    runs = trained.runs
    for network in dict.fromkeys(network for network, _, _ in runs):
        run = next(run for name, _, run in runs if name == network)
        parameters = sum({call.layer: call.parameters or 0 for call in run.layer_calls}.values())
        sizes = f" ({run.variant})" if run.variant else ""
        size = f"{parameters:,} parameters" if parameters else "as recorded"
        yield parts.NAMES.get(network, network), size + sizes
    yield from facts_of([run for _, _, run in runs]).items()
    devices = dict.fromkeys(
        f"{arm.label}: {arm.device or 'not recorded'}"
        for one in trained.speedups
        for arm in one.arms
    )
    yield "devices", "; ".join(devices)


def answer_chapter(trained: Trained) -> View:
    """How many times faster each device is, by epochs and by steps."""
    several = len({one.batch for one in trained.speedups}) > 1
    pairs = list(zip(trained.speedups, trained.keys, strict=True))
    findings = [
        parts.headline(one, other, key, several=several)
        for one, key in pairs
        for other in one.comparisons
    ]
    return make_chapter(
        (parts.WHICH, parts.UNKNOWN),
        tables=(parts.overview(trained.speedups),),
        findings=(
            *findings,
            *(one for pair in pairs for one in _details(*pair)),
        ),
    )


def _details(one: Speedup, key: str) -> Iterator[Finding]:
    name = parts.name_of(one)
    for other in one.comparisons:
        best = next(iter(other.amdahl), None)
        if best is not None and best.gain.value >= GAIN_MIN:
            limit = f"{ratio(best.gain.value)} times faster (Amdahl), at most {ratio(best.limit)}"
            alone = f"{best.layer} alone on {parts.device_of(other.label)}"
            yield Finding(f"{name}: with {alone}, a step would be {limit}.", key)
    if one.reached:
        yield Finding(f"{name}: {_describe_reached(one.reached[-1])}", key)


def _describe_reached(item: Reached) -> str:
    times = ", ".join(
        parts.device_of(label) + (" never reached it" if ns is None else f" {short(time(ns))}")
        for label, ns in item.times.items()
    )
    target = percent(item.target) if item.quantity != "test loss" else f"{item.target:.3g}"
    article = "an" if item.quantity == "accuracy" else "a"
    return f"training time to {article} {item.quantity} of {target}: {times}."


def network_chapters(trained: Trained) -> Iterator[View]:
    """A chapter for each network and batch size: each alone, gains, results, layers, operations."""
    for one, key in zip(trained.speedups, trained.keys, strict=True):
        first, *others = parts.tables(one)
        shown: list[Table | None] = [first]
        folded: list[Table | None] = []
        for each in others:
            is_long = "layer" in each.caption and each.total > LAYERS_FIRST
            (folded if is_long else shown).append(each)
            if is_long and "Amdahl" in each.caption:
                caption, rows = (
                    f"{each.caption}: the first {LAYERS_FIRST}",
                    each.rows[:LAYERS_FIRST],
                )
                shown.append(replace(each, caption=caption, rows=rows, hidden=0))
        yield make_chapter(
            tuple(parts.notes(one)),
            tuple(charts.charts(one, key)),
            tuple(shown),
            tuple(folded),
            key=key,
            title=f"{parts.name_of(one)}, batch {one.batch}",
        )


def pies_chapter(trained: Trained) -> View:
    """Kinds of work of each network on each device."""
    drawn = [
        replace(chart, title=f"{parts.name_of(one)}, batch {one.batch}: {chart.title.lower()}")
        for number, one in enumerate(trained.speedups, 1)
        for chart in charts.work_charts(one, f"pies-{number}", pie=True)
    ]
    return make_chapter(charts=tuple(drawn))


def files_chapter(trained: Trained) -> View:
    """The runs with their traces."""
    heads = [
        Column("network", style="text"),
        Column("device", style="text"),
        Column("batch"),
        Column("epochs"),
        Column("trace", style="code"),
    ]
    rows = [
        [
            parts.NAMES.get(network, network),
            label,
            run.batch_size,
            count(len(epochs(run))),
            run.artifact or nothing("the run left no report"),
        ]
        for network, label, run in trained.runs
    ]
    return make_chapter(tables=(table("Runs", heads, rows),))
