"""A speedup study as findings, tables and charts, which the terminal, documents and the page
show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perfctl.orchestrator.compare.speedup import (
    ArmComparison,
    Gain,
    GainLine,
    NetworkSpeedup,
    find_epoch_step_disagreement,
)
from perfctl.orchestrator.counts.kernels.categories import CATEGORIES
from perfctl.orchestrator.ledger.arm_figures import ArmFigures
from perfctl.orchestrator.report.charts import comparison as charts
from perfctl.orchestrator.report.numbers import format_percent, format_ratio, format_time
from perfctl.orchestrator.report.page.records import Finding, shorten_sentence
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    amount_cell,
    build_table,
    four_decimals_cell,
    missing_cell,
    name_column,
    optional_text_cell,
    rate_cell,
    share_cell,
    size_cell,
    text_cell,
    text_column,
    time_cell,
)
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.statistics import WIDEST

UNSTEADY = 2.0
"""Steps of one run that differ by more than this factor are said to be unsteady."""
NAMES = {"unet": "U-Net", "lstm": "BiLSTM"}
DEVICES = {"cpu": "CPU", "cuda": "GPU"}
PHASES = {"data": "data loading", "copy": "copying to the device", "optimizer": "the optimizer"}
LOADING_SHARE_MIN = 0.1
"""From this share of a step on, waiting for data is what a headline says of the rest."""
ROWS_ON_TERMINAL = 16
FIGURES, GAINS = "Figures of each device", "Speedup"
SAME_RESULT = "Training time to the same result"
OPEN_ON_PAGE = (FIGURES, GAINS, SAME_RESULT)
"""Tables that are not folded on the page."""
WHICH = (
    "Complete epochs show how much sooner training ends: they load and train on every sample "
    "once, without a profiler. Steps show where the time of a step goes. They run under the "
    "profiler, which slows them, so their speedup differs."
)
UNKNOWN = (
    f"Unknown: the ends of a 95% interval are more than a factor of {WIDEST:g} apart. The table "
    "states about how many more values per side would suffice if their spread stays the same "
    "(NIST/SEMATECH e-Handbook, 7.2.2.2)."
)


def build_speedups_view(studies: Sequence[NetworkSpeedup], *, has_charts: bool = False) -> View:
    """Return the answer of each device, all batch sizes side by side, then a chapter for each."""
    keys = [f"s{number}" for number in range(1, len(studies) + 1)]
    notes_of = [list_speedup_notes(study) for study in studies]
    common = [note for note in notes_of[0] if all(note in other for other in notes_of)]
    several = len(studies) > 1
    factors = build_speedup_factors_table(studies) if several else None
    chapters = []
    for study, key, sentences in zip(studies, keys, notes_of, strict=True):
        parts = build_speedup_tables(study)
        chapters.append(
            View(
                f"Batch {study.batch}" if study.batch else "Batch size unknown",
                tables=tuple(part for part in parts if part.caption in OPEN_ON_PAGE),
                notes=tuple(note for note in sentences if note not in common),
                rows_on_terminal=ROWS_ON_TERMINAL,
                key=key,
                charts=tuple(charts.draw_speedup_charts(study, key)) if has_charts else (),
                folded=tuple(part for part in parts if part.caption not in OPEN_ON_PAGE),
            )
        )
    first = studies[0]
    batch = "" if several else f", batch {first.batch or 'unknown'}"
    return View(
        f"{first.workload or 'a program'}{batch}: {', '.join(arm.label for arm in first.arms)}",
        ("A speedup is a ratio of geometric means, shown only with its 95% interval.",),
        () if factors is None else (factors,),
        tuple(
            build_speedup_finding(study, other, key, states_batch=several)
            for study, key in zip(studies, keys, strict=True)
            for other in study.comparisons
        ),
        notes=tuple(common),
        command="speedup",
        charts=tuple(filter(None, charts.draw_speedup_by_batch(studies)))
        if several and has_charts
        else (),
        chapters=chapters,
    )


def format_network_name(study: NetworkSpeedup) -> str:
    """Return what its network is called."""
    return NAMES.get(study.workload or "", study.workload or "a program")


def format_device_label(label: str) -> str:
    """Return "GPU:bf16" for "cuda:bf16"."""
    kind = label.partition(":")[0]
    return label.replace(kind, DEVICES.get(kind, kind), 1)


def build_speedup_finding(
    study: NetworkSpeedup,
    comparison: ArmComparison,
    chapter_key: str,
    *,
    states_batch: bool = False,
) -> Finding:
    """Return "U-Net: GPU is 11.30 times faster than CPU by whole epochs (9.80 to 12.90, 5 and 5
    runs); data loading then takes 41% of a step."

    By whole epochs if they are known, else by steps; if the steps say otherwise, that follows.
    ``states_batch``: with the batch size. ``chapter_key``: of the section that proves it.
    """
    base = format_device_label(study.base)
    lines, is_warning = _select_epoch_and_step_gain_lines(comparison), False
    epochs, steps = (lines[level].gain if level in lines else None for level in ("epoch", "step"))
    apart = find_epoch_step_disagreement(comparison.lines)
    if comparison.reasons:
        text, is_warning = f"has no speedup: {comparison.reasons[0]}", True
    elif (
        epochs
        and steps
        and (apart or _get_significant_gain_sign(epochs) != _get_significant_gain_sign(steps))
    ):
        text = (
            f"{_describe_speedup_gain(epochs, base, 'complete epochs')}; steps under the profiler "
            f"give {format_ratio(steps.value)} ({format_gain_interval(steps)})"
        )
        is_warning = apart is not None
    elif gain := epochs or steps:
        by = "complete epochs" if epochs else "steps"
        text = (
            f"{_describe_speedup_gain(gain, base, by)}"
            f"{_describe_data_wait_or_largest_phase(comparison)}"
        )
    else:
        text, is_warning = f"against {base} is unknown: {_explain_unknown_speedup(lines)}", True
    batch = f", batch {study.batch}" if states_batch else ""
    sentence = (
        f"{format_network_name(study)}{batch}: {format_device_label(comparison.label)} {text}."
    )
    return Finding(sentence if is_warning else shorten_sentence(sentence), chapter_key, is_warning)


def _select_epoch_and_step_gain_lines(other: ArmComparison) -> dict[str, GainLine]:
    """Return the lines of whole epochs and of steps."""
    levels = ("epoch", "step")
    return {level: line for level in levels for line in other.lines if line.key.level == level}


def _get_significant_gain_sign(gain: Gain) -> int:
    """Return 1 for faster, -1 for slower, 0 if the interval holds 1."""
    return (gain.low > 1) - (gain.high < 1)


def _describe_speedup_gain(gain: Gain, base_device: str, measured_by: str) -> str:
    comparison = "shows no difference from"
    if gain.low > 1:
        comparison = f"is {format_ratio(gain.value)} times faster than"
    elif gain.high < 1:
        gain = Gain(1 / gain.value, 1 / gain.high, 1 / gain.low, gain.basis)
        comparison = f"is {format_ratio(gain.value)} times slower than"
    count = " ".join(gain.basis.split()[:4]).rstrip(";")  # "5 and 5 runs"
    return f"{comparison} {base_device} by {measured_by} ({format_gain_interval(gain)}, {count})"


def _describe_data_wait_or_largest_phase(comparison: ArmComparison) -> str:
    """Return what a step's time goes to on the other device: waiting for data if that matters, else
    its largest phase."""
    times = {line.key.name: line.after for line in comparison.lines if line.key.level == "phase"}
    step = next((line.after for line in comparison.lines if line.key.level == "step"), None)
    shares = {name: after / step for name, after in times.items() if step and after is not None}
    if not shares:
        return ""
    largest = max(shares, key=lambda name: shares[name])
    phase = "data" if shares.get("data", 0.0) >= LOADING_SHARE_MIN else largest
    return f"; {PHASES.get(phase, phase)} then takes {format_percent(shares[phase])} of a step"


def _explain_unknown_speedup(lines: dict[str, GainLine]) -> str:
    for line in lines.values():
        if line.uncertain:
            wide = line.uncertain.wide_interval
            return (
                f"the 95% interval is wider than {wide.bound}; "
                f"{wide.additional_values_text} would suffice"
            )
    reasons = (line.reason for line in lines.values() if line.reason)
    return next(reasons, "neither steps nor epochs have a time")


def build_speedup_factors_table(studies: Sequence[NetworkSpeedup]) -> Table | None:
    """Return a row for each network, batch size and device: how many times faster by whole epochs
    and by steps. None if no row has a factor: the findings state why."""
    heads = [
        text_column("network"),
        text_column("device"),
        Column("by complete epochs", "times faster"),
        text_column("95% interval"),
        Column("by steps", "times faster"),
        text_column("95% interval"),
    ]
    rows = []
    for study in studies:
        for other in study.comparisons:
            lines = _select_epoch_and_step_gain_lines(other)
            gains = [
                build_time_speedup_interval_cells(lines.get(level))[1:]
                for level in ("epoch", "step")
            ]
            network = f"{format_network_name(study)}, batch {study.batch}"
            rows.append([network, f"{other.label} against {study.base}", *gains[0], *gains[1]])
    factors = build_table("Times faster", heads, rows)
    return factors if factors and len(factors.columns) > 2 else None


def list_speedup_notes(study: NetworkSpeedup) -> list[str]:
    """Return the sentences that a reader of the tables needs."""
    sentences = []
    if any(len(_select_epoch_and_step_gain_lines(other)) == 2 for other in study.comparisons):
        sentences.append(WHICH)
    sentences.append(
        f"Faster than {study.base}, with the 95% interval; times exclude warm-up steps and test "
        "passes."
    )
    for other in study.comparisons:
        sentences += [f"{other.label} has no speedup: {reason}." for reason in other.reasons]
        unknown = [item.fact for item in other.differences if item.a == item.b]
        if unknown:
            sentences.append(
                f"Neither {study.base} nor {other.label} recorded {', '.join(unknown)}: the work "
                "may differ."
            )
        differ = [
            f"{item.fact} ({item.a}; {item.b})" for item in other.differences if item.a != item.b
        ]
        if differ:
            sentences.append(f"{study.base} and {other.label} differ in {', '.join(differ)}.")
    sentences += [f"{label} failed: {reason}." for label, reason in study.failed]
    if any(line.uncertain for other in study.comparisons for line in other.lines):
        sentences.append(UNKNOWN)
    for other in study.comparisons:
        if apart := find_epoch_step_disagreement(other.lines):
            steps, epochs = (
                f"{format_ratio(gain.value)} ({format_gain_interval(gain)})" for gain in apart
            )
            sentences.append(
                f"{other.label}: steps and epochs disagree ({steps} and {epochs}). Use the value "
                "of the epochs."
            )
    for arm in study.arms:
        if arm.step_range is not None and arm.step_range[1] > UNSTEADY * arm.step_range[0]:
            sentences.append(
                f"The steps of {arm.label} took between {format_time(arm.step_range[0])} and "
                f"{format_time(arm.step_range[1])}: other programs used the machine, or the "
                "device was not warm yet. Run it again on an idle machine (--again)."
            )
    return sentences + [
        f"{arm.label}: {quantity}: {reason}."
        for arm in study.arms
        for quantity, reason in arm.missing_values
    ]


def build_speedup_tables(study: NetworkSpeedup) -> list[Table]:
    """Return the tables of a batch size in the order of reading, without empty ones."""
    parts = (
        _build_figures_by_device_table(study),
        _build_speedup_by_level_table(study, ("epoch", "step", "phase"), GAINS),
        _build_time_to_quality_table(study),
        _build_epochs_table(study),
        _build_speedup_by_level_table(study, ("layer",), "Speedup by layer"),
        *map(_build_amdahl_table, study.comparisons),
        _build_time_by_category_table(study),
        *map(_build_top_operations_table, study.arms),
    )
    return list(filter(None, parts))


def _build_figures_by_device_table(study: NetworkSpeedup) -> Table | None:
    """A row for each figure and a column for each device: the many figures fit neither 80
    characters nor a narrow page side by side."""
    heads = [
        text_column(""),
        text_column("device"),
        Column("runs"),
        Column("all epochs"),
        Column("step"),
        text_column("fastest to slowest step"),
        Column("steps/s"),
        Column("samples/s"),
        Column("FLOP/s", note="estimated FLOPs / step time; 1 multiply-add = 2 FLOPs"),
        Column("of peak"),
        Column("peak memory"),
        Column("estimated memory", note="tensors at the peak of a step"),
        Column("of estimate", note="measured peak / estimate"),
        Column("idle", note="of the steps, no kernel ran"),
        Column("launch-bound", note="kernels that waited longer than they ran"),
        Column("copies hidden", note="copy time during which a kernel ran"),
        Column("outside operations", note="of the steps, on a CPU"),
    ]
    wide = build_table(FIGURES, heads, [_build_arm_cells(arm) for arm in study.arms])
    if wide is None:
        return None
    columns = [text_column(""), *(Column(row[0].text) for row in wide.rows)]
    columns.append(text_column("", is_optional=True))
    figures = list(zip(wide.columns, *wide.rows, strict=True))[1:]
    rows = [(text_cell(head.label), *cells, text_cell(head.note or "")) for head, *cells in figures]
    return replace(wide, columns=tuple(columns), rows=tuple(rows))


def _build_arm_cells(arm: ArmFigures) -> list[Any]:
    flop_rate, paper = arm.rate, arm.estimated_memory
    no_paper = arm.estimated_memory_reason or "not computed"
    of_peak = None
    if flop_rate.peak is not None and flop_rate.per_second is not None:
        of_peak = flop_rate.per_second / flop_rate.peak
    # of a device: torch's allocator counts there what paper counts
    allocated = arm.memory.get("peak allocated")
    of_paper = missing_cell("a host peak also includes Python, torch and the data")
    if allocated is not None:
        of_paper = share_cell(allocated / paper if paper else None, no_paper)
    peaks = map(arm.memory.get, ("peak allocated", "peak host_resident", "peak host resident"))
    no_kernels = "a CPU launches no kernels"
    return [
        arm.label,
        arm.device or "not recorded",
        arm.runs,
        time_cell(arm.total_ns, "the command did not request epochs (--epochs)"),
        time_cell(arm.step_ns),
        optional_text_cell(
            " to ".join(map(format_time, arm.step_range or ())), "no step was timed"
        ),
        rate_cell(arm.steps_per_second, "1/s"),
        rate_cell(arm.samples_per_second, "1/s"),
        amount_cell(flop_rate.per_second, "FLOP/s", flop_rate.reason or "the steps have no times"),
        share_cell(of_peak, flop_rate.reason or "not known"),
        size_cell(next((peak for peak in peaks if peak is not None), None)),
        size_cell(paper, no_paper),
        of_paper,
        share_cell(arm.idle, no_kernels),
        share_cell(arm.launch_bound, no_kernels),
        share_cell(arm.overlap, no_kernels if arm.idle is None else "no copies"),
        share_cell(arm.overhead, "the trace has kernels"),
    ]


def _build_speedup_by_level_table(
    study: NetworkSpeedup, levels: Sequence[str], caption: str
) -> Table | None:
    compared = [other for other in study.comparisons if other.lines]
    make_column = name_column if levels == ("layer",) else text_column
    heads = [make_column(""), Column(study.base)]
    for other in compared:
        heads += [
            Column(other.label),
            Column(f"{other.label} faster", "times"),
            text_column("95% interval"),
        ]
    by_device = [{line.key: line for line in other.lines} for other in compared]
    keys = dict.fromkeys(key for lines in by_device for key in lines if key.level in levels)
    rows = []
    for key in keys:
        lines = [device.get(key) for device in by_device]
        first = next((line.before for line in lines if line is not None), None)
        gains = [cell for line in lines for cell in build_time_speedup_interval_cells(line)]
        rows.append([key.name, time_cell(first, "on the other side only"), *gains])
    return build_table(caption, heads, rows)


def build_time_speedup_interval_cells(line: GainLine | None) -> list[Cell]:
    """Return the other arm's time, the speedup, its interval; each with the reason if it is not
    known."""
    if line is None:
        return [missing_cell("on one side only")] * 3
    after = time_cell(line.after, "on the other side only")
    if line.uncertain is not None:
        needs = f"needs {line.uncertain.wide_interval.additional_values_text}"
        unknown = Cell("unknown", line.reason, "no")
        return [after, unknown, Cell(needs, line.reason, "no", value=needs)]
    if line.gain is None:
        return [after, *[missing_cell(line.reason or "the spread is unknown")] * 2]
    return [after, *_build_speedup_and_interval_cells(line.gain)]


def _build_speedup_and_interval_cells(gain: Gain) -> tuple[Cell, Cell]:
    """Return the speedup and its interval."""
    value = Cell(
        format_ratio(gain.value), f"{format_gain_interval(gain)}; {gain.basis}", value=gain.value
    )
    return value, text_cell(format_gain_interval(gain), gain.basis)


def format_gain_interval(gain: Gain) -> str:
    """Return "9.80 to 12.90"."""
    return f"{format_ratio(gain.low)} to {format_ratio(gain.high)}"


def _build_time_to_quality_table(study: NetworkSpeedup) -> Table | None:
    heads = [text_column("until"), *(Column(arm.label) for arm in study.arms)]
    rows = []
    for item in study.times_to_quality:
        bound = "of at most" if item.quantity == "test loss" else "of at least"
        times = (time_cell(item.times[arm.label], "never reached") for arm in study.arms)
        rows.append([f"{item.quantity} {bound} {item.target:.4g}", *times])
    return build_table(SAME_RESULT, heads, rows)


def _build_epochs_table(study: NetworkSpeedup) -> Table | None:
    labels = ("epoch", "time", "training loss", "test loss", "accuracy", "Dice")
    rows = [
        [
            arm.label,
            item.number + 1,
            time_cell(item.ns),
            four_decimals_cell(item.loss),
            four_decimals_cell(item.test_loss),
            share_cell(item.accuracy),
            share_cell(item.dice, "its outputs are not masks"),
        ]
        for arm in study.arms
        for item in arm.epochs
    ]
    heads = [text_column(""), *map(Column, labels)]
    return build_table("Epochs (of the newest run)", heads, rows)


def _build_amdahl_table(comparison: ArmComparison) -> Table | None:
    heads = [
        name_column("layer"),
        Column("of the step"),
        Column("step faster", "times"),
        text_column("95% interval"),
        Column("at most", "times", note="if the layer took no time"),
    ]
    rows = [
        [
            item.layer,
            share_cell(item.share),
            *_build_speedup_and_interval_cells(item.gain),
            Cell(format_ratio(item.limit), value=item.limit),
        ]
        for item in comparison.amdahl
    ]
    return build_table(f"If only this layer ran as on {comparison.label} (Amdahl)", heads, rows)


def _build_time_by_category_table(study: NetworkSpeedup) -> Table | None:
    heads = [text_column("kind of work"), *(Column(arm.label) for arm in study.arms)]
    shares = [arm.categories or {} for arm in study.arms]
    rows = [
        [kind, *(share_cell(parts.get(kind, 0.0 if parts else None)) for parts in shares)]
        for kind in CATEGORIES
        if any(kind in parts for parts in shares)
    ]
    return build_table("Share of the time in the trace", heads, rows)


def _build_top_operations_table(arm: ArmFigures) -> Table | None:
    heads = [
        name_column("operation"),
        text_column("kind"),
        Column("calls"),
        Column("self time"),
        Column("with what it called"),
        Column("of all"),
    ]
    rows = [
        [
            item.name,
            item.category,
            item.calls,
            time_cell(item.self_ns),
            time_cell(item.total_ns, "kernels call nothing"),
            share_cell(item.share),
        ]
        for item in arm.top_operations
    ]
    return build_table(f"The most expensive on {arm.label}", heads, rows)
