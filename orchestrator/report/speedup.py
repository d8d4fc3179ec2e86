"""A speed-up study as tables for the page and the terminal, with its charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfctl.orchestrator.compare.speedup import Against, Gain, GainLine, Speedup, disagreement
from perfctl.orchestrator.counts.kernels.categories import CATEGORIES
from perfctl.orchestrator.ledger.arm_figures import ArmFacts
from perfctl.orchestrator.report import terminal as terminals
from perfctl.orchestrator.report.charts import speedup
from perfctl.orchestrator.report.charts.charts import Chart
from perfctl.orchestrator.report.numbers import percent, ratio, time
from perfctl.orchestrator.report.page.records import Finding, shortened
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    amount,
    decimal_cell,
    nothing,
    rate,
    share_cell,
    size_cell,
    table,
    text_cell,
    time_cell,
)
from perfctl.orchestrator.statistics import WIDEST

if TYPE_CHECKING:
    from rich.console import RenderableType

TEXT, CODE = "text", "code"
UNSTEADY = 2.0
"""Steps of one run that differ by more than this factor are said to be unsteady."""
NOT_TRAINED = "no epochs were asked for (--epochs)"
NAMES = {"unet": "U-Net", "lstm": "BiLSTM"}
DEVICES = {"cpu": "CPU", "cuda": "GPU"}
PHASES = {"data": "data loading", "copy": "copying to the device", "optimizer": "the optimizer"}
LOADING = 0.1
"""From this share of a step on, waiting for data is what a headline says of the rest."""
GAINS, SAME_RESULT = "Speed-up", "Training time to the same result"
FIRST = (GAINS, SAME_RESULT)
"""Tables that stand open on the page."""
WHICH = (
    "Whole epochs answer how much sooner training ends: every sample is loaded and trained on "
    "once, without a profiler. Steps answer where in a step the time goes; they run under the "
    "profiler, which slows them, so their speed-up is another figure."
)
UNKNOWN = (
    f"Unknown: the ends of a 95% interval are more than a factor of {WIDEST:g} apart. Beside it "
    "stands about how many more values a side would settle it, if their spread stays as it is "
    "(NIST/SEMATECH e-Handbook, 7.2.2.2)."
)


@dataclass(frozen=True, slots=True)
class SpeedupPart:
    """One study on the page."""

    key: str
    title: str
    notes: tuple[str, ...]
    charts: tuple[Chart, ...]
    tables: tuple[Table, ...]
    folded: tuple[Table, ...]
    """What the charts show, and the shares of operations: closed until they are asked for, and
    not printed."""


@dataclass(frozen=True, slots=True)
class SpeedupView:
    """The record of templates/speedup.html."""

    title: str
    findings: tuple[Finding, ...]
    """One a batch size and device: how many times faster."""
    notes: tuple[str, ...]
    """Sentences that hold for all batch sizes."""
    overview: Table | None
    """All batch sizes; None where there is one."""
    charts: tuple[Chart, ...]
    parts: tuple[SpeedupPart, ...]


def page_view(studies: Sequence[Speedup]) -> SpeedupView:
    """One page: the answer, all batch sizes side by side where there are several, then each
    of them."""
    parts, said_of = [], [notes(one) for one in studies]
    common = tuple(note for note in said_of[0] if all(note in others for others in said_of))
    for place, (one, own) in enumerate(zip(studies, said_of, strict=True), 1):
        key, (first, *others) = f"s{place}", tables(one)
        title = f"Batch {one.batch}" if one.batch else "Batch size not known"
        charts = tuple(speedup.charts(one, key))
        shown = [
            upright(first, explained=True),
            *(each for each in others if each.caption in FIRST),
        ]
        folded = tuple(each for each in others if each.caption not in FIRST)
        alone = tuple(note for note in own if note not in common)
        parts.append(SpeedupPart(key, title, alone, charts, tuple(shown), folded))
    names = ", ".join(arm.label for arm in studies[0].arms)
    several = len({one.batch for one in studies}) > 1
    said = tuple(
        headline(one, other, part.key, several=several)
        for one, part in zip(studies, parts, strict=True)
        for other in one.against
    )
    across = tuple(speedup.across(studies)) if several else ()
    title = f"{studies[0].workload or 'a program'}: {names}"
    return SpeedupView(
        title, said, common, overview(studies) if several else None, across, tuple(parts)
    )


def name_of(one: Speedup) -> str:
    return NAMES.get(one.workload or "", one.workload or "a program")


def device_of(label: str) -> str:
    """ "cuda:bf16" -> "GPU:bf16"."""
    kind = label.partition(":")[0]
    return label.replace(kind, DEVICES.get(kind, kind), 1)


def headline(one: Speedup, other: Against, key: str, *, several: bool = False) -> Finding:
    """ "U-Net: GPU 11.30 times faster than CPU by whole epochs (9.80 to 12.90); data loading then
    takes 41% of a step."

    By whole epochs where they are known, else by steps; where the steps say otherwise, that
    follows. ``several``: with the batch size.
    """
    at = f", batch {one.batch}" if several else ""
    start, base = f"{name_of(one)}{at}: {device_of(other.label)}", device_of(one.base)
    if other.refused:
        return Finding(shortened(f"{start} has no speed-up: {other.refused[0]}."), key, True)
    lines = {line.key.level: line for line in other.lines if line.key.level in ("step", "epoch")}
    whole, steps = (lines[level].gain if level in lines else None for level in ("epoch", "step"))
    if whole is not None:
        text = f"{start} {_times(whole, base)} by whole epochs ({span(_turned(whole))})"
        if (steps is not None and _verdict(steps) != _verdict(whole)) or disagreement(other.lines):
            assert steps is not None
            text += f"; steps under the profiler say {ratio(steps.value)} ({span(steps)})"
            return Finding(shortened(f"{text}."), key, disagreement(other.lines) is not None)
        rest = _rest(other)
        return Finding(shortened(f"{text}{f'; {rest}' if rest else ''}."), key)
    if steps is not None:
        rest = _rest(other)
        text = f"{start} {_times(steps, base)} by steps ({span(_turned(steps))})"
        return Finding(shortened(f"{text}{f'; {rest}' if rest else ''}."), key)
    ordered = [lines[level] for level in ("epoch", "step") if level in lines]
    wide = next((line.unsettled for line in ordered if line.unsettled), None)
    if wide is not None:
        bound, further = wide.judged.bound, wide.judged.further
        text = (
            f"{start} against {base} is unknown: the 95% interval is wider than {bound}; "
            f"{further} would settle it."
        )
        return Finding(shortened(text), key, True)
    why = next(
        (line.reason for line in ordered if line.reason), "neither steps nor epochs were timed"
    )
    return Finding(shortened(f"{start} against {base} is unknown: {why}."), key, True)


def _verdict(gain: Gain) -> int:
    """1 where it is faster, -1 where it is slower, 0 where the interval holds 1."""
    return (gain.low > 1) - (gain.high < 1)


def _times(gain: Gain, base: str) -> str:
    return {
        0: f"shows no difference from {base}",
        1: f"is {ratio(gain.value)} times faster than {base}",
        -1: f"is {ratio(1 / gain.value)} times slower than {base}",
    }[_verdict(gain)]


def _turned(gain: Gain) -> Gain:
    """As times slower, where it is slower."""
    return (
        Gain(1 / gain.value, 1 / gain.high, 1 / gain.low, gain.basis)
        if _verdict(gain) < 0
        else gain
    )


def _rest(other: Against) -> str:
    """What a step's time goes to on the other device: waiting for data where that matters, else its
    largest phase."""
    known = phases(other)
    if not known:
        return ""
    chosen = (
        "data" if known.get("data", 0.0) >= LOADING else max(known, key=lambda name: known[name])
    )
    return f"{PHASES.get(chosen, chosen)} then takes {percent(known[chosen])} of a step"


def phases(other: Against) -> dict[str, float]:
    """Phase -> its share of the other device's step, medians."""
    step = next((line.after for line in other.lines if line.key.level == "step"), None)
    return (
        {
            line.key.name: line.after / step
            for line in other.lines
            if line.key.level == "phase" and line.after is not None
        }
        if step
        else {}
    )


def overview(found: Sequence[Speedup]) -> Table | None:
    """A row a network, batch size and device: how many times faster by whole epochs and by steps,
    and what a step waits for."""
    heads = [
        Column("network", style=TEXT),
        Column("device", style=TEXT),
        Column("by whole epochs", "times faster"),
        Column("95% interval", style=TEXT),
        Column("by steps", "times faster"),
        Column("95% interval", style=TEXT),
        Column(
            "do they agree?",
            style=TEXT,
            note="no: the intervals do not meet, and the figures are over 10% apart",
        ),
        Column("loading then", "of a step", note="waiting for data"),
        Column("largest phase then", style=TEXT),
    ]
    rows = []
    for one in found:
        for other in one.against:
            known = phases(other)
            largest = max(known, key=lambda name: known[name]) if known else None
            lines = {
                line.key.level: line for line in other.lines if line.key.level in ("step", "epoch")
            }
            cells = [
                cell for level in ("epoch", "step") for cell in gain_cells(lines.get(level))[1:]
            ]
            both = all(level in lines and lines[level].gain for level in ("step", "epoch"))
            agree = "no" if disagreement(other.lines) else "yes"
            rows.append(
                [
                    f"{name_of(one)}, batch {one.batch}",
                    f"{other.label} against {one.base}",
                    *cells,
                    text_cell(agree) if both else nothing("one of them is unknown"),
                    share_cell(known.get("data"), "phases were not timed"),
                    text_cell(f"{largest} {percent(known[largest])}")
                    if largest
                    else nothing("phases were not timed"),
                ]
            )
    return table("Times faster", heads, rows)


def notes(one: Speedup) -> list[str]:
    """Sentences that a reader of the tables needs."""
    both = any(
        {"step", "epoch"} <= {line.key.level for line in other.lines} for other in one.against
    )
    said = [WHICH] if both else []
    said.append(
        f"Faster than {one.base}, with the 95% interval; warm-up steps and test passes are in no "
        "time."
    )
    for other in one.against:
        said += [f"{other.label} has no speed-up: {why}." for why in other.refused]
        unknown = [item.fact for item in other.differences if item.a == item.b]
        if unknown:
            said.append(
                f"Neither {one.base} nor {other.label} recorded {', '.join(unknown)}: it may be "
                "other work."
            )
        differ = [
            f"{item.fact} ({item.a}; {item.b})" for item in other.differences if item.a != item.b
        ]
        if differ:
            said.append(f"{one.base} and {other.label} differ in {', '.join(differ)}.")
    said += [f"{label} failed: {why}." for label, why in one.failed]
    if any(line.unsettled for other in one.against for line in other.lines):
        said.append(UNKNOWN)
    for other in one.against:
        if apart := disagreement(other.lines):
            steps, whole = (f"{ratio(one.value)} ({span(one)})" for one in apart)
            said.append(
                f"{other.label}: steps and epochs disagree, {steps} and {whole}: the epochs are "
                "the answer."
            )
    said += [
        (
            f"The steps of {arm.label} took between {time(arm.step_range[0])} and "
            f"{time(arm.step_range[1])}: something else used the machine, or the device was not "
            "warm yet; run it again when it is quiet (--again)."
        )
        for arm in one.arms
        if arm.step_range is not None and arm.step_range[1] > UNSTEADY * arm.step_range[0]
    ]
    return said + [f"{arm.label}: {what}: {why}." for arm in one.arms for what, why in arm.gaps]


def tables(one: Speedup) -> list[Table]:
    """In the order of reading, without empty ones."""
    found = [
        _arms(one),
        _gains(one, ("epoch", "step", "phase"), GAINS),
        _reached(one),
        _course(one),
    ]
    found += [_gains(one, ("layer",), "Speed-up by layer"), *_if_only(one), _categories(one)]
    found += [_top(arm) for arm in one.arms]
    return [item for item in found if item is not None]


def upright(view: Table, *, explained: bool = False) -> Table:
    """The transposed table: its many columns fit neither 80 characters nor a narrow page.

    ``explained`` adds a column with the meaning of each figure.
    """
    heads = [Column("", style=TEXT), *(Column(row[0].text) for row in view.rows)]
    heads += [Column("", style=TEXT)] if explained else []
    rows = [
        (text_cell(column.label), *cells, *([text_cell(column.note or "")] if explained else []))
        for column, *cells in list(zip(view.columns, *view.rows, strict=True))[1:]
    ]
    return replace(view, columns=tuple(heads), rows=tuple(rows))


def _arms(one: Speedup) -> Table | None:
    heads = [
        Column("", style=TEXT),
        Column("device", style=TEXT),
        Column("runs"),
        Column("all epochs"),
        Column("step"),
        Column("steps/s"),
        Column("samples/s"),
        Column("FLOP/s", note="on paper / step time; 1 multiply-add = 2"),
        Column("of peak"),
        Column("peak memory"),
        Column("memory on paper", note="tensors at the fullest moment of a step"),
        Column("of paper", note="measured peak / paper"),
        Column("idle", note="of the steps: no kernel ran"),
        Column("launch-bound", note="kernels that waited longer than they ran"),
        Column("copies hidden", note="copy time during which a kernel ran"),
        Column("outside operations", note="of the steps, on a CPU"),
    ]
    gpu, cpu = "a CPU launches no kernels", "the trace holds kernels"
    rows = []
    for arm in one.arms:
        rated, lacking = arm.rate, arm.paper_memory_reason or "not worked out"
        of_peak = (
            None
            if rated.peak is None or rated.per_second is None
            else rated.per_second / rated.peak
        )
        # of a device: torch's allocator counts there what paper counts
        measured = arm.memory.get("peak allocated")
        of_paper = nothing("a host's peak also holds Python, torch and the data")
        if measured is not None:
            of_paper = share_cell(
                measured / arm.paper_memory if arm.paper_memory else None, lacking
            )
        peaks = map(arm.memory.get, ("peak allocated", "peak host_resident", "peak host resident"))
        rows.append(
            [
                text_cell(arm.label),
                text_cell(arm.device or "not recorded"),
                arm.runs,
                time_cell(arm.total_ns, NOT_TRAINED),
                time_cell(arm.step_ns),
                rate(arm.steps_per_second, "1/s"),
                rate(arm.samples_per_second, "1/s"),
                amount(rated.per_second, "FLOP/s", rated.reason or "steps were not timed"),
                share_cell(of_peak, rated.reason or "not known"),
                size_cell(next((p for p in peaks if p is not None), None)),
                size_cell(arm.paper_memory, lacking),
                of_paper,
                share_cell(arm.idle, gpu),
                share_cell(arm.launch_bound, gpu),
                share_cell(arm.overlap, gpu if arm.idle is None else "no copies"),
                share_cell(arm.overhead, cpu),
            ]
        )
    return table("Each alone", heads, rows)


def _gains(one: Speedup, levels: Sequence[str], caption: str) -> Table | None:
    compared = [other for other in one.against if other.lines]
    heads = [Column("", style=CODE if levels == ("layer",) else TEXT), Column(one.base)]
    for other in compared:
        heads += [
            Column(other.label),
            Column(f"{other.label} faster", "times"),
            Column("95% interval", style=TEXT),
        ]
    named: dict[tuple[str, str], list[GainLine | None]] = {}
    for place, other in enumerate(compared):
        for line in other.lines:
            if line.key.level in levels:
                named.setdefault(line.key, [None] * len(compared))[place] = line
    rows = []
    for (_, name), lines in named.items():
        first = next((line.before for line in lines if line is not None), None)
        gains = [cell for line in lines for cell in gain_cells(line)]
        rows.append([text_cell(name), time_cell(first, "on the other side only"), *gains])
    return table(caption, heads, rows)


def gain_cells(line: GainLine | None) -> list[Cell]:
    """The other arm's time, the speed-up, its interval; each with the reason where it is
    not known."""
    if line is None:
        return [nothing("on one side only")] * 3
    if line.unsettled is not None:
        needs = f"needs {line.unsettled.judged.further}"
        return [
            time_cell(line.after),
            Cell("unknown", line.reason, "no"),
            Cell(needs, line.reason, "no", value=needs),
        ]
    if line.gain is None:
        why = nothing(line.reason or "no spread is known")
        return [time_cell(line.after, "on the other side only"), why, why]
    return [time_cell(line.after), *_faster(line.gain, line.gain.basis)]


def _faster(gain: Gain, basis: str | None = None) -> tuple[Cell, Cell]:
    """The speed-up, and its interval."""
    interval = span(gain)
    return Cell(ratio(gain.value), f"{interval}; {gain.basis}", value=gain.value), text_cell(
        interval, basis
    )


def span(gain: Gain) -> str:
    """ "9.80 to 12.90"."""
    return f"{ratio(gain.low)} to {ratio(gain.high)}"


def _reached(one: Speedup) -> Table | None:
    heads = [Column("until", style=TEXT), *(Column(arm.label) for arm in one.arms)]
    rows = []
    for item in one.reached:
        target = (
            f"{item.what} {'of at most' if item.what == 'test loss' else 'of at least'} "
            f"{item.target:.4g}"
        )
        rows.append(
            [target, *(time_cell(item.times[arm.label], "never reached") for arm in one.arms)]
        )
    return table(SAME_RESULT, heads, rows)


def _course(one: Speedup) -> Table | None:
    heads = [
        Column("", style=TEXT),
        Column("epoch"),
        Column("time"),
        Column("training loss"),
        Column("test loss"),
        Column("accuracy"),
        Column("Dice"),
    ]
    rows = [
        [
            text_cell(arm.label),
            item.number + 1,
            time_cell(item.ns),
            *map(decimal_cell, (item.loss, item.test_loss)),
            share_cell(item.accuracy),
            share_cell(item.dice, "its answers are no masks"),
        ]
        for arm in one.arms
        for item in arm.epochs
    ]
    return table("Epochs (of the newest run)", heads, rows)


def _if_only(one: Speedup) -> list[Table | None]:
    heads = [
        Column("layer", style=CODE),
        Column("of the step"),
        Column("step faster", "times"),
        Column("95% interval", style=TEXT),
        Column("at most", "times", note="if the layer took no time at all"),
    ]
    found = []
    for other in one.against:
        rows = [
            [
                text_cell(item.layer),
                share_cell(item.share),
                *_faster(item.gain),
                Cell(ratio(item.limit), value=item.limit),
            ]
            for item in other.if_only
        ]
        found.append(table(f"If only this layer ran as on {other.label} (Amdahl)", heads, rows))
    return found


def _categories(one: Speedup) -> Table | None:
    heads = [Column("kind of work", style=TEXT), *(Column(arm.label) for arm in one.arms)]
    shares = [arm.categories or {} for arm in one.arms]
    rows = [
        [kind, *(share_cell(parts.get(kind, 0.0 if parts else None)) for parts in shares)]
        for kind in CATEGORIES
        if any(kind in parts for parts in shares)
    ]
    return table("Share of the time in the trace", heads, rows)


def _top(arm: ArmFacts) -> Table | None:
    heads = [
        Column("operation", style=CODE),
        Column("kind", style=TEXT),
        Column("calls"),
        Column("self time"),
        Column("with what it called"),
        Column("of all"),
    ]
    rows = [
        [
            text_cell(item.name),
            text_cell(item.category),
            item.calls,
            time_cell(item.self_ns),
            time_cell(item.total_ns, "kernels call nothing"),
            share_cell(item.share),
        ]
        for item in arm.top
    ]
    return table(f"The most expensive on {arm.label}", heads, rows)


def terminal(one: Speedup) -> list[RenderableType]:
    """Heading, notes, tables."""
    names = ", ".join(arm.label for arm in one.arms)
    said = [headline(one, other, "").text for other in one.against]
    lines = [
        f"{one.workload or 'a program'}, batch {one.batch or 'not known'}: {names}",
        *said,
        *notes(one),
    ]
    first, *others = tables(one)
    figures = upright(first)
    return [
        *lines,
        *terminals.shown([figures], len(figures.rows), ""),
        *terminals.shown(others, 12, "the page and --json have them"),
    ]
