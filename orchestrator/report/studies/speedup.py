"""The speed-up study as a page: what is faster, how sure that is, where the time goes then, and what was learned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfctl.orchestrator.analyse.speedup import Against, Gain, Reached, Speedup, disagreement, epochs
from perfctl.orchestrator.report import speedup as parts
from perfctl.orchestrator.report.cells import Cell, count, nothing, share_cell, text_cell, time_cell
from perfctl.orchestrator.report.charts import speedup as charts
from perfctl.orchestrator.report.files.events import Scalar
from perfctl.orchestrator.report.numbers import percent, ratio, short, time
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.studies.records import Chapter, StudyPage
from perfctl.orchestrator.report.tables import Column, Table, table
from perfctl.records.run import Run

NAMES = {"unet": "U-Net", "lstm": "BiLSTM"}
DEVICES = {"cpu": "CPU", "cuda": "GPU"}
PHASES = {"data": "data loading", "copy": "copying to the device", "optimizer": "the optimizer"}
LOADING = 0.1
"""From this share of a step on, waiting for data is what a headline says of the rest."""
WORTH = 1.05
"""How many times faster a step must become for one layer to be named."""
FIRST = 5
"""Layers that are listed before the whole list."""
NO_PLUGIN = "TensorBoard's trace view needs its plugin: pip install tensorboard torch-tb-profiler"
NewestRuns = Sequence[tuple[str, str, Run]]
"""(network, device, newest whole run of it at one batch size)."""


def study_page(
    found: Sequence[Speedup], runs: NewestRuns, *, logs: Sequence[str], traces: int,
    missing: Sequence[tuple[str, str]] = (), origin: str | None = None, command: str | None = None,
) -> StudyPage:  # fmt: skip
    """found: one a network and batch size. logs: TensorBoard's folders; traces: how many of them have a trace."""
    titles = [f"{name_of(one)}, batch {one.batch}" for one in found]
    keys = _keys(found)
    pairs = list(zip(found, keys, strict=True))
    findings = [headline(one, other, key) for one, key in pairs for other in one.against]
    findings += [each for one, key in pairs for each in _details(one, key)]
    findings += _unsteady(pairs)
    chapters = [_answer(found), *map(_network, found, titles, keys), *_pies(found, titles), _files(runs, logs, traces)]
    if traces < len(logs):
        missing = (
            *missing,
            ("traces in TensorBoard's logs", f"{len(logs) - traces} of {len(logs)} runs left no torch trace here"),
        )
    devices = dict.fromkeys(f"{arm.label}: {arm.device or 'not recorded'}" for one in found for arm in one.arms)
    return StudyPage(
        "speedup", " and ".join(dict.fromkeys(map(name_of, found))) + ": " + ", ".join(arm.label for arm in found[0].arms),
        (*_facts(runs), ("devices", "; ".join(devices))), tuple(findings), tuple(chapters), tuple(missing), origin, command,
        (("results.json: every figure, as perfctl speedup --json writes it", "results.json"),
         ("speedup.ipynb: a notebook that reads results.json and draws its charts", "speedup.ipynb")),
    )  # fmt: skip


def name_of(one: Speedup) -> str:
    return NAMES.get(one.workload or "", one.workload or "a program")


def device_of(label: str) -> str:
    """ "cuda:bf16" -> "GPU:bf16"."""
    kind = label.partition(":")[0]
    return label.replace(kind, DEVICES.get(kind, kind), 1)


def _keys(found: Sequence[Speedup]) -> list[str]:
    """Of chapters: "unet", or "unet-b16" where a network has several batch sizes."""
    several = [one.workload for one in found]
    plain = ["".join(part if part.isalnum() else "-" for part in one.workload or "program") for one in found]
    return [
        f"{key}-b{one.batch}" if several.count(one.workload) > 1 else key for key, one in zip(plain, found, strict=True)
    ]


def _facts(runs: NewestRuns) -> Iterator[tuple[str, str]]:
    for network in dict.fromkeys(network for network, _, _ in runs):
        run = next(run for name, _, run in runs if name == network)
        known = {call.layer: call.parameters for call in run.layer_calls if call.parameters}
        sizes = f" ({run.variant})" if run.variant else ""
        yield NAMES.get(network, network), (f"{sum(known.values()):,} parameters" if known else "as recorded") + sizes
    batches = sorted({run.batch_size for _, _, run in runs if run.batch_size is not None})
    yield "batch sizes", ", ".join(map(str, batches)) or "not recorded"
    said = {fact: {run.report.environment.get(fact, "") for _, _, run in runs} - {""} for fact in ("torch", "threads")}
    yield from ((fact, ", ".join(sorted(values))) for fact, values in said.items() if values)


def _details(one: Speedup, key: str) -> Iterator[Finding]:
    name = name_of(one)
    for other in one.against:
        best = next(iter(other.if_only), None)
        if best is not None and best.gain.value >= WORTH:
            limit = f"{ratio(best.gain.value)} times faster (Amdahl), at most {ratio(best.limit)}"
            yield Finding(f"{name}: with {best.layer} alone on {device_of(other.label)}, a step would be {limit}.", key)
    if last := next(iter(reversed(one.reached)), None):
        yield Finding(_quality(name, last), key)


def _unsteady(pairs: Sequence[tuple[Speedup, str]]) -> Iterator[Finding]:
    """That the machine was not quiet: the widest range of steps within a run, and how many others are wide."""
    wide = [
        (high / low, f"{name_of(one)} on {device_of(arm.label)} took {time(low)} to {time(high)}", key)
        for one, key in pairs
        for arm in one.arms
        if arm.step_range and (low := arm.step_range[0]) and (high := arm.step_range[1]) > parts.UNSTEADY * low
    ]
    if wide:
        _, text, key = max(wide)
        others = len(wide) - 1
        more = f"; {others} more {'run was' if others == 1 else 'runs were'} uneven" if others else ""
        yield Finding(f"The machine was not quiet: steps of {text}{more}.", key, True)


def headline(one: Speedup, other: Against, key: str) -> Finding:
    """ "U-Net: GPU 11.3 times faster than CPU (9.8 to 12.9); data loading then takes 41 % of a step." """
    start, base = f"{name_of(one)}: {device_of(other.label)}", device_of(one.base)
    if other.refused:
        return Finding(f"{start} has no speed-up: {other.refused[0]}."[:140], key, True)
    if apart := disagreement(other.lines):
        steps, whole = (f"{ratio(gain.value)} ({parts.span(gain)})" for gain in apart)
        return Finding(f"{start} against {base}: steps say {steps} times, epochs {whole}. They disagree.", key, True)
    lines = {line.level: line for line in other.lines if line.level in ("step", "epoch")}
    for level in ("step", "epoch"):
        if level in lines and (gain := lines[level].gain) is not None:
            by = "" if level == "step" else ", by epochs"
            rest = _rest(other)
            return Finding(f"{start} {_times(gain, base)}{by}{f'; {rest}' if rest else ''}.", key)
    ordered = [lines[level] for level in ("step", "epoch") if level in lines]
    wide = next((line.unsettled for line in ordered if line.unsettled), None)
    if wide is not None:
        more = f"about {wide.further} would settle it"
        return Finding(
            f"{start} against {base} is not known ({parts.span(wide.found)} times at 95 %); {more}.", key, True
        )
    why = next((line.reason for line in ordered if line.reason), "neither steps nor epochs were timed")
    return Finding(f"{start} against {base} is not known: {why}."[:140], key, True)


def _times(gain: Gain, base: str) -> str:
    if gain.low <= 1 <= gain.high:
        return f"shows no difference from {base} ({parts.span(gain)} times as fast)"
    if gain.value > 1:
        return f"{ratio(gain.value)} times faster than {base} ({parts.span(gain)})"
    slower = Gain(1 / gain.value, 1 / gain.high, 1 / gain.low, gain.basis)
    return f"{ratio(slower.value)} times slower than {base} ({parts.span(slower)})"


def _rest(other: Against) -> str:
    """What a step's time goes to on the other device: waiting for data where that matters, else its largest phase."""
    known = phases(other)
    if not known:
        return ""
    chosen = "data" if known.get("data", 0.0) >= LOADING else max(known, key=lambda name: known[name])
    return f"{PHASES.get(chosen, chosen)} then takes {percent(known[chosen])} of a step"


def phases(other: Against) -> dict[str, float]:
    """Phase -> its share of the other device's step, medians."""
    step = next((line.ns for line in other.lines if line.level == "step"), None)
    return (
        {line.name: line.ns / step for line in other.lines if line.level == "phase" and line.ns is not None}
        if step
        else {}
    )


def _quality(name: str, item: Reached) -> str:
    said = ", ".join(
        f"{device_of(label)} {short(time(ns))}" if ns is not None else f"{device_of(label)} never reached it"
        for label, ns in item.times.items()
    )
    target = percent(item.target) if item.what != "test loss" else f"{item.target:.3g}"
    return f"{name}: training time to {'an' if item.what == 'accuracy' else 'a'} {item.what} of {target}: {said}."


def _answer(found: Sequence[Speedup]) -> Chapter:
    heads = [
        Column("network", style="text"), Column("device", style="text"),
        Column("by steps", "times faster"), Column("95 % interval", style="text"),
        Column("by epochs", "times faster"), Column("95 % interval", style="text"), Column("do they agree?", style="text"),
        Column("loading then", "of a step", note="waiting for data"), Column("largest phase then", style="text"),
    ]  # fmt: skip
    rows = []
    for one in found:
        for other in one.against:
            known = phases(other)
            largest = max(known, key=lambda name: known[name]) if known else None
            lines = {line.level: line for line in other.lines if line.level in ("step", "epoch")}
            cells = [cell for level in ("step", "epoch") for cell in parts.gain_cells(lines.get(level))[1:]]
            both = all(level in lines and lines[level].gain for level in ("step", "epoch"))
            agree = "no" if disagreement(other.lines) else "yes"
            rows.append([
                f"{name_of(one)}, batch {one.batch}", f"{other.label} against {one.base}", *cells,
                text_cell(agree) if both else nothing("one of them is not known"),
                share_cell(known.get("data"), "phases were not timed"),
                text_cell(f"{largest} {percent(known[largest])}") if largest else nothing("phases were not timed"),
            ])  # fmt: skip
    text = (
        "Ratios of geometric means with their 95 % intervals. Steps are measured under the profiler, whole epochs without "
        "it: where both are known and disagree, neither is the answer.",
        "An interval whose ends are more than a factor of 3 apart says nothing: not known. Beside it stands about how many "
        "more steps (epochs, runs) a side would settle it, from the spread seen (NIST/SEMATECH e-Handbook, 7.2.2.2).",
    )
    made = table("Times faster", heads, rows)
    return Chapter("speedup", "How many times faster", text, tables=(made,) if made else ())


def _network(one: Speedup, title: str, key: str) -> Chapter:
    first, *others = parts.tables(one)
    shown: list[Table] = [parts.upright(first, explained=True)]
    folded: list[Table] = []
    for each in others:
        if "layer" in each.caption and each.total > FIRST:
            folded.append(each)
            if "Amdahl" in each.caption:
                shown.append(
                    replace(each, caption=f"{each.caption}: the first {FIRST}", rows=each.rows[:FIRST], hidden=0)
                )
        else:
            shown.append(each)
    shown += [made] if (made := _ranges(one)) else []
    return Chapter(key, title, tuple(parts.notes(one)), tuple(charts.charts(one, key)), tuple(shown), tuple(folded))


def _ranges(one: Speedup) -> Table | None:
    """How far the steps of each device are apart."""
    heads = [Column("device", style="text"), Column("fastest step", base="ns"), Column("slowest step", base="ns"),
             Column("slowest / fastest")]  # fmt: skip
    rows = [
        [text_cell(arm.label), time_cell(low), time_cell(high), Cell(ratio(high / low), value=high / low) if low else nothing("0 s")]
        for arm in one.arms if arm.step_range for low, high in [arm.step_range]
    ]  # fmt: skip
    return table("Spread of the steps", heads, rows)


def _pies(found: Sequence[Speedup], titles: Sequence[str]) -> Iterator[Chapter]:
    drawn = [
        replace(chart, title=f"{title}: {chart.title.lower()}")
        for place, (one, title) in enumerate(zip(found, titles, strict=True), 1)
        for chart in charts.work_charts(one, f"pies-{place}", pie=True)
    ]
    if drawn:
        text = (
            "Parts of the time in the trace of each device. Lengths are easier to compare: the same as bars is above.",
        )
        yield Chapter("pies", "Where the time goes, as pies", text, tuple(drawn))


def _files(runs: NewestRuns, logs: Sequence[str], traces: int) -> Chapter:
    heads = [Column("network", style="text"), Column("device", style="text"), Column("batch"), Column("epochs"),
             Column("trace", style="code"), Column("TensorBoard's log", style="code")]  # fmt: skip
    rows = [
        [NAMES.get(network, network), label, run.batch_size, count(len(epochs(run))),
         run.artifact or nothing("the run left no report"), log]
        for (network, label, run), log in zip(runs, logs, strict=True)
    ]  # fmt: skip
    made = table("Runs", heads, rows)
    text = (
        "results.json has every figure of both networks; each run's own stands in its sweep's folder.",
        f"perfctl tensorboard OUT/tensorboard shows the curves as scalars, and {traces} traces. {NO_PLUGIN}.",
        "The traces open in Perfetto, too. speedup.ipynb reads results.json with pandas and draws the charts again.",
    )
    return Chapter("files", "Traces, logs and notebook", text, tables=(made,) if made else ())


def scalars(run: Run, started: float) -> list[Scalar]:
    """The curves of one run for TensorBoard: losses, accuracy and Dice by epoch, time by epoch and step.

    started: of the run, seconds since 1970; a value of an epoch stands at the training time it was reached after.
    """
    found = []
    for one in epochs(run):
        at = started + one.reached_ns / 1e9
        curves = (
            ("loss/training", one.loss), ("loss/test", one.test_loss), ("quality/accuracy", one.accuracy),
            ("quality/Dice", one.dice), ("time/epoch (s)", one.ns / 1e9),
        )  # fmt: skip
        found += [Scalar(tag, one.number + 1, value, at) for tag, value in curves if value is not None]
    gone = started
    for row in run.report.steps:
        if row.phase == "step" and row.duration_ns is not None:
            gone += row.duration_ns / 1e9
            found.append(Scalar("time/step (ms)", row.number, row.duration_ns / 1e6, gone))
    return found
