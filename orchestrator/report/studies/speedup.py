"""The speed-up study as a page: what is faster, how sure that is, where the time goes then, and
what was learned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfctl.orchestrator.compare.speedup import Reached, Speedup
from perfctl.orchestrator.ledger.arm_figures import epochs
from perfctl.orchestrator.report import speedup as parts
from perfctl.orchestrator.report.charts import speedup as charts
from perfctl.orchestrator.report.numbers import percent, ratio, short, time
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.studies.records import Chapter, StudyPage
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    count,
    nothing,
    table,
    text_cell,
    time_cell,
)
from perfctl.records.run import Run

WORTH = 1.05
"""How many times faster a step must become for one layer to be named."""
FIRST = 5
"""Layers that are listed before the whole list."""
NewestRuns = Sequence[tuple[str, str, Run]]
"""(network, device, newest whole run of it at one batch size)."""


def study_page(
    found: Sequence[Speedup],
    runs: NewestRuns,
    *,
    missing: Sequence[tuple[str, str]] = (),
    origin: str | None = None,
    command: str | None = None,
) -> StudyPage:
    """found: one a network and batch size."""
    titles = [f"{parts.name_of(one)}, batch {one.batch}" for one in found]
    keys = _keys(found)
    pairs = list(zip(found, keys, strict=True))
    several = len({one.batch for one in found}) > 1
    findings = [
        parts.headline(one, other, key, several=several)
        for one, key in pairs
        for other in one.against
    ]
    findings += [each for one, key in pairs for each in _details(one, key)]
    findings += _unsteady(pairs)
    chapters = [
        _answer(found),
        *map(_network, found, titles, keys),
        *_pies(found, titles),
        _files(runs),
    ]
    devices = dict.fromkeys(
        f"{arm.label}: {arm.device or 'not recorded'}" for one in found for arm in one.arms
    )
    return StudyPage(
        "speedup",
        " and ".join(dict.fromkeys(map(parts.name_of, found)))
        + ": "
        + ", ".join(arm.label for arm in found[0].arms),
        (*_facts(runs), ("devices", "; ".join(devices))),
        tuple(findings),
        tuple(chapters),
        tuple(missing),
        origin,
        command,
        (
            ("results.json: every figure, as perfctl speedup --json writes it", "results.json"),
            (
                "speedup.ipynb: a notebook that reads results.json and draws its charts",
                "speedup.ipynb",
            ),
        ),
    )


def _keys(found: Sequence[Speedup]) -> list[str]:
    """Of chapters: "unet", or "unet-b16" where a network has several batch sizes."""
    several = [one.workload for one in found]
    plain = [
        "".join(part if part.isalnum() else "-" for part in one.workload or "program")
        for one in found
    ]
    return [
        f"{key}-b{one.batch}" if several.count(one.workload) > 1 else key
        for key, one in zip(plain, found, strict=True)
    ]


def _facts(runs: NewestRuns) -> Iterator[tuple[str, str]]:
    for network in dict.fromkeys(network for network, _, _ in runs):
        run = next(run for name, _, run in runs if name == network)
        known = {call.layer: call.parameters for call in run.layer_calls if call.parameters}
        sizes = f" ({run.variant})" if run.variant else ""
        yield (
            parts.NAMES.get(network, network),
            (f"{sum(known.values()):,} parameters" if known else "as recorded") + sizes,
        )
    batches = sorted({run.batch_size for _, _, run in runs if run.batch_size is not None})
    yield "batch sizes", ", ".join(map(str, batches)) or "not recorded"
    said = {
        fact: {run.report.environment.get(fact, "") for _, _, run in runs} - {""}
        for fact in ("torch", "threads")
    }
    yield from ((fact, ", ".join(sorted(values))) for fact, values in said.items() if values)


def _details(one: Speedup, key: str) -> Iterator[Finding]:
    name = parts.name_of(one)
    for other in one.against:
        best = next(iter(other.if_only), None)
        if best is not None and best.gain.value >= WORTH:
            limit = f"{ratio(best.gain.value)} times faster (Amdahl), at most {ratio(best.limit)}"
            yield Finding(
                f"{name}: with {best.layer} alone on {parts.device_of(other.label)}, a step would "
                f"be {limit}.",
                key,
            )
    if last := next(iter(reversed(one.reached)), None):
        yield Finding(_quality(name, last), key)


def _unsteady(pairs: Sequence[tuple[Speedup, str]]) -> Iterator[Finding]:
    """That the machine was not quiet: the widest range of steps within a run, and how many others
    are wide."""
    wide = [
        (
            high / low,
            (
                f"{parts.name_of(one)} on {parts.device_of(arm.label)} took {time(low)} to "
                f"{time(high)}"
            ),
            key,
        )
        for one, key in pairs
        for arm in one.arms
        if arm.step_range
        and (low := arm.step_range[0])
        and (high := arm.step_range[1]) > parts.UNSTEADY * low
    ]
    if wide:
        _, text, key = max(wide)
        others = len(wide) - 1
        more = (
            f"; {others} more {'run was' if others == 1 else 'runs were'} uneven" if others else ""
        )
        yield Finding(f"The machine was not quiet: steps of {text}{more}.", key, True)


def _quality(name: str, item: Reached) -> str:
    said = ", ".join(
        f"{parts.device_of(label)} {short(time(ns))}"
        if ns is not None
        else f"{parts.device_of(label)} never reached it"
        for label, ns in item.times.items()
    )
    target = percent(item.target) if item.what != "test loss" else f"{item.target:.3g}"
    return (
        f"{name}: training time to {'an' if item.what == 'accuracy' else 'a'} {item.what} of "
        f"{target}: {said}."
    )


def _answer(found: Sequence[Speedup]) -> Chapter:
    text = (parts.WHICH, parts.UNKNOWN)
    made = parts.overview(found)
    return Chapter("speedup", "How many times faster", text, tables=(made,) if made else ())


def _network(one: Speedup, title: str, key: str) -> Chapter:
    first, *others = parts.tables(one)
    shown: list[Table] = [first]
    folded: list[Table] = []
    for each in others:
        if "layer" in each.caption and each.total > FIRST:
            folded.append(each)
            if "Amdahl" in each.caption:
                shown.append(
                    replace(
                        each,
                        caption=f"{each.caption}: the first {FIRST}",
                        rows=each.rows[:FIRST],
                        hidden=0,
                    )
                )
        else:
            shown.append(each)
    shown += [made] if (made := _ranges(one)) else []
    return Chapter(
        key,
        title,
        tuple(parts.notes(one)),
        tuple(charts.charts(one, key)),
        tuple(shown),
        tuple(folded),
    )


def _ranges(one: Speedup) -> Table | None:
    """How far the steps of each device are apart."""
    heads = [
        Column("device", style="text"),
        Column("fastest step", base="ns"),
        Column("slowest step", base="ns"),
        Column("slowest / fastest"),
    ]
    rows = [
        [
            text_cell(arm.label),
            time_cell(low),
            time_cell(high),
            Cell(ratio(high / low), value=high / low) if low else nothing("0 s"),
        ]
        for arm in one.arms
        if arm.step_range
        for low, high in [arm.step_range]
    ]
    return table("Spread of the steps", heads, rows)


def _pies(found: Sequence[Speedup], titles: Sequence[str]) -> Iterator[Chapter]:
    drawn = [
        replace(chart, title=f"{title}: {chart.title.lower()}")
        for place, (one, title) in enumerate(zip(found, titles, strict=True), 1)
        for chart in charts.work_charts(one, f"pies-{place}", pie=True)
    ]
    if drawn:
        text = (
            (
                "Parts of the time in the trace of each device. Lengths are easier to compare: the "
                "same as bars is above."
            ),
        )
        yield Chapter("pies", "Where the time goes, as pies", text, tuple(drawn))


def _files(runs: NewestRuns) -> Chapter:
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
        for network, label, run in runs
    ]
    made = table("Runs", heads, rows)
    text = (
        (
            "results.json has every figure of both networks; each run's own stands in its sweep's "
            "folder."
        ),
        (
            "The traces open in Perfetto and TensorBoard. speedup.ipynb reads results.json with "
            "pandas and draws the charts again."
        ),
    )
    return Chapter("files", "Traces and notebook", text, tables=(made,) if made else ())
