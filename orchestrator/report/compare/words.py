"""A comparison in sentences: how the step changed, what changed it, then everything else that
changed."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from perfctl.orchestrator.compare.causes import (
    ALGORITHM,
    ARITHMETIC,
    OTHER_KERNELS,
    AlignedPair,
    ComparedWork,
)
from perfctl.orchestrator.compare.compare import ComparedPair, Comparison
from perfctl.orchestrator.compare.quantities import (
    BETTER,
    DIFFERS,
    EQUAL,
    GONE,
    KERNELS,
    MEANING,
    NEW,
    NOT_JUDGED,
    NOT_SHOWN,
    PER_REPORT,
    STEP_TIME,
    UNATTRIBUTED,
    WITHIN,
    WORSE,
    ComparedRow,
)
from perfctl.orchestrator.ledger.timing import KERNEL_BASIS
from perfctl.orchestrator.report.compare.why import (
    CHANGED,
    MINUS,
    describe_largest_change_cause,
    describe_likely_differences,
    format_as_sentence,
    format_change_interval,
    format_percent_change,
    format_quantity,
    join_algorithm_names,
)
from perfctl.orchestrator.report.numbers import (
    format_integer_or_six_digits,
    format_ratio,
    format_significant,
    format_time,
)
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.statistics import explain_wide_ratio_interval, group_by
from perfctl.records.report import join_first_names

REPEATS = 5
"""Runs a side that are advised where no spread is known."""
MOST_REPEATS = 100
"""More are not advised: the noise itself is then what to look at."""
PairAndRow = tuple[ComparedPair, ComparedRow]
"""A row that counts, and its pair."""

_ANYWAY = "Use --anyway to compare them nevertheless."


def describe_comparison_in_sentences(comparison: Comparison, pairs: Sequence[AlignedPair]) -> View:
    """Return a view of sentences: how the step changed and why, which are its open findings;
    regressions, improvements, new and gone; then everything that could not be compared.

    pairs: what stands behind the changes of each pair.
    """
    several = len({pair.heading for pair in comparison.pairs}) > 1
    heads = list(_list_step_findings(comparison, pairs, several))
    aligned = [
        (match, part)
        for match in pairs
        for part in match.select_parts_of_kind(ALGORITHM, ARITHMETIC, OTHER_KERNELS)
    ]
    in_layers = {
        (id(match.pair), part.layer, part.direction) for match, part in aligned if part.layer
    }
    news = [
        (pair, row)
        for pair, row in comparison.new_gone_or_different_rows
        if row.key.level != "kernel" or (id(pair), *row.key[3:5]) not in in_layers
    ]
    findings = []
    for group in _group_rows_by_result([*comparison.regressions, *comparison.improvements, *news]):
        row = group[0][1]
        if row.key == STEP_TIME and len(comparison.pairs) == 1:
            continue  # the first sentence
        key = row.key
        evidence = key.quantity if key.quantity in ("memory", "flops") else f"{key.level}s"
        text = _describe_quantity_change(group, several)
        if algorithms := next(
            (_describe_algorithm_change(part) for _, part in aligned if part.row is row), ""
        ):
            text = f"{text[:-1]}; {algorithms}."
        findings.append(Finding(text, evidence))
    unjudged = [
        (match, part)
        for match, part in aligned
        if part.layer
        and (comparison.forced or not match.pair.blocking_differences)
        and (part.row is None or part.row.result not in (*WORSE, *BETTER))
    ]
    findings += _list_layers_with_changed_kernels(unjudged, several)
    blocked = dict.fromkeys(
        difference.sentence for pair in comparison.pairs for difference in pair.blocking_differences
    )
    banner = f"Compared anyway, although not comparable: {'; '.join(blocked)}."
    return View(
        findings=(*heads, *findings),
        warnings=tuple(_list_comparison_warnings(comparison)),
        caution=banner if comparison.forced and blocked else None,
        open_findings=len(heads),
    )


def _list_step_findings(
    comparison: Comparison, pairs: Sequence[AlignedPair], names_workload: bool
) -> Iterator[Finding]:
    measured = [
        (pair, row)
        for pair in comparison.pairs
        if (row := _choose_step_or_kernel_time_row(pair)) is not None
    ]
    if measured:
        pair, row = max(
            measured, key=lambda item: (item[1].result in CHANGED, abs(item[1].change or 0.0))
        )
        further = "; ".join(
            f"{_format_batches_phrase([other], names_workload).strip() or 'elsewhere'} "
            f"{format_percent_change(row.change or 0.0)} ({row.result})"
            for other, row in measured
            if other is not pair
        )
        text = _describe_step_change(pair, row, comparison, names_workload)
        yield Finding(f"{text} {further[:1].upper()}{further[1:]}." if further else text, "steps")
    else:
        yield _describe_comparison_without_steps(comparison, pairs, names_workload)
    chosen = [match for match in pairs if (match.pair is pair if measured else match.pair.rows)]
    for match in chosen[:1]:
        if match.pair.has_cpu_contention and not match.has_kernels_on_any_side:
            continue  # other programs may have caused the change
        if cause := describe_largest_change_cause(match):
            is_one = len(pairs) == 1 or not match.pair.batch_label
            yield Finding(
                f"{cause}"
                f"{'' if is_one else f' ({match.pair.batch_prefix}{match.pair.batch_label})'}.",
                "why",
            )
        if differences := describe_likely_differences(match):
            yield Finding(differences, "differences")
    yield from _list_one_sided_layers(comparison)


def _list_one_sided_layers(comparison: Comparison) -> Iterator[Finding]:
    """Yield the layers that only one side has: what the other side does not compute at all."""
    results = defaultdict(set)
    for pair in comparison.pairs:
        for row in pair.rows:
            if row.key.level == "layer" and row.key.layer != UNATTRIBUTED:
                results[row.key.layer].add(row.result)
    for label, result in (("B", NEW), ("A", GONE)):
        names = [name for name, kinds in results.items() if kinds == {result}]
        if names:
            noun = "layer" if len(names) == 1 else "layers"
            yield Finding(f"Only {label} has the {noun} {join_first_names(names, 3)}.", "layers")


def _list_layers_with_changed_kernels(
    aligned: Sequence[tuple[AlignedPair, ComparedWork]], names_workload: bool
) -> Iterator[Finding]:
    """Yield layers that run other kernels, each once for all batch sizes that changed alike."""
    groups = group_by(
        aligned,
        lambda item: (item[0].pair.heading, item[1].name, _describe_algorithm_change(item[1])),
    )
    for (_, name, changed), group in groups.items():
        _, part = max(group, key=lambda item: abs(item[1].change or 0.0))
        flops = (
            f", {format_significant(part.flops)} times the FLOPs" if part.flops is not None else ""
        )
        text = f"{name}: {changed}{flops}"
        if part.a and part.b and part.a.ns and part.b.ns is not None:
            text += f", {format_percent_change(part.b.ns / part.a.ns - 1)} time"
            text += f" ({format_time(part.a.ns)} in A, {format_time(part.b.ns)} in B)"
        yield Finding(
            f"{text}{_format_batches_phrase([match.pair for match, _ in group], names_workload)}.",
            "why",
        )


def _describe_algorithm_change(part: ComparedWork) -> str:
    """Return "Winograd F(2x2,3x3) → implicit GEMM"."""
    names = list(map(join_algorithm_names, part.algorithms_or_types_of_sides))
    if part.kind == OTHER_KERNELS:
        return f"different kernels of {names[-1] or 'the same kind'}"
    return " → ".join(names)


def _choose_step_or_kernel_time_row(pair: ComparedPair) -> ComparedRow | None:
    """Return the time of a step on both sides, or of its kernels if the step was not timed; None
    without either."""
    every = (row for row in pair.rows if row.key[:2] == ("step", "time") and row.medians_of_both)
    rows = {row.key.item: row for row in every if row.basis != KERNEL_BASIS["ncu"]}
    return rows.get("step") or rows.get(KERNELS)


def _describe_comparison_without_steps(
    comparison: Comparison, pairs: Sequence[AlignedPair], names_workload: bool
) -> Finding:
    """Return the time of complete reports if their steps are unknown, otherwise the executed
    FLOPs."""
    for match in pairs:
        if (
            match.has_kernels_on_any_side
            and not match.per_step
            and match.total_ns_of_both is not None
            and all(match.total_ns_of_both)
        ):
            a, b = match.total_ns_of_both
            return Finding(
                "All kernels of the report took "
                f"{_describe_time_change(b / a - 1)}"
                f"{_format_batches_phrase([match.pair], names_workload)}: "
                f"{format_time(a)} in A, {format_time(b)} in B. perfctl does not judge this, "
                "because the number of steps is unknown.",
                "why",
            )
    results = [
        row.result
        for pair in comparison.pairs
        for row in pair.rows
        if row.key[:2] == ("layer", "flops")
        and row.medians_of_both
        and row.key.layer != UNATTRIBUTED
    ]
    if not results:
        text = "A and B have nothing in common to compare."
        if any(pair.rows for pair in comparison.pairs):
            text = "No step has a time on both sides."
        elif comparison.pairs:
            text = (
                "A and B have no step, layer or kernel in common, and perfctl compares no other "
                "ranges and operators. Mark the steps (profiler.step(), or an NVTX range), or "
                "record both sides with 'perfctl torch -- PROGRAM'."
            )
        return Finding(text, "differences")
    count = results.count(DIFFERS)
    verb = f"differ in {count}" if count else f"are the same in {results.count(EQUAL)}"
    return Finding(
        f"No step has a time on both sides; the executed FLOPs {verb} of {len(results)} layer "
        "rows.",
        "flops",
    )


def _describe_step_change(
    pair: ComparedPair, row: ComparedRow, comparison: Comparison, names_workload: bool
) -> str:
    """Return how the step changed, in one sentence of at most 140 characters, and why perfctl
    states no more."""
    assert row.medians_of_both is not None
    is_step = row.key.item == "step"
    subject = "The step" if is_step else "The kernels of a step"
    a, b = map(format_time, row.medians_of_both)
    suffix, both = _format_batches_phrase([pair], names_workload), f"{a} in A, {b} in B"
    gate = f"{comparison.gate * 100:g}%"
    if row.result in CHANGED:
        have = "is" if is_step else "are"
        interval = format_change_interval(row.interval)
        return (
            f"{subject} {have} {_format_unsigned_change(row)} {row.result}{suffix}: {both} (95% "
            f"interval {interval})."
        )
    if row.result == WITHIN:
        change = format_percent_change(row.change or 0.0)
        return f"{subject} changed by {change}{suffix}, within the gate of {gate}: {both}."
    if row.result == NOT_SHOWN and row.interval is not None:
        interval = format_change_interval(row.interval)
        if max(-row.interval[0], row.interval[1]) <= comparison.gate:
            return f"{subject} did not change by more than {gate}{suffix}: {interval} ({both})."
        count = _estimate_repeats_needed(row, comparison.gate)
        advice = f"about {count} repeats per side would suffice"
        if count is None:
            advice = "more repeats narrow the interval"
        elif count > MOST_REPEATS:
            advice = f"even {MOST_REPEATS} repeats per side would not suffice"
        return f"Too noisy to judge{suffix}: {subject.lower()} changed by {interval}; {advice}."
    if row.change is None:
        return f"{subject} took {both}{suffix}; {row.reason}."
    moved = _describe_time_change(row.change)
    if not comparison.forced and pair.blocking_differences:
        first = pair.blocking_differences[0]
        facts, reasons = f"{first.fact} {first.a} in A, {first.b} in B", first.reason
        if len(pair.blocking_differences) > 1 or len(first.a + first.b) >= 40:
            facts = join_first_names(
                [difference.fact for difference in pair.blocking_differences], 3
            )
            reasons = _explain_not_comparable(pair)
        return (
            f"Not comparable ({facts}): {subject.lower()} took {moved}, {both}. "
            f"{format_as_sentence(reasons)} {_ANYWAY}"
        )
    if row.needs_repeats:
        advice = f"{REPEATS} repeats per side would suffice"
        return f"{subject} took {moved}{suffix} ({both}), from too few values to judge: {advice}."
    return f"{subject} took {moved}{suffix} ({both}), not judged. {format_as_sentence(row.reason)}"


def _explain_not_comparable(pair: ComparedPair) -> str:
    """Return why a pair is not comparable."""
    return "; ".join(
        f"{difference.sentence} ({difference.reason})" for difference in pair.blocking_differences
    )


def _describe_time_change(change: float) -> str:
    if not change:
        return "as long"
    if change >= 1 or change <= -0.5:
        return f"{format_ratio(1 + change)} times as long"
    return (
        f"{format_percent_change(change).lstrip('+' + MINUS)} {'longer' if change > 0 else 'less'}"
    )


def _estimate_repeats_needed(row: ComparedRow, change_threshold: float) -> int | None:
    """Return the runs per side that would show a change as large as the gate, at this spread; None
    if the spread is unknown."""
    if (
        not (row.test and row.before and row.after and change_threshold)
        or row.test.high <= row.test.low
    ):
        return None
    runs = row.before.total_runs, row.after.total_runs
    if min(runs) < 2:
        return REPEATS if max(runs) < 2 else None
    # the interval then reaches no farther than the gate to each side
    wide = explain_wide_ratio_interval(row.test, min(runs), "runs", (1 + change_threshold) ** 2)
    return min(runs) + (wide.more if wide else 1)


def _group_rows_by_result(rows: list[PairAndRow]) -> list[list[PairAndRow]]:
    """Return the rows of one quantity and one result over all batch sizes; without kernels whose
    layer has the same result."""
    of_layers = {
        (id(pair), row.key[3:5], row.result) for pair, row in rows if row.key.level == "layer"
    }
    listed = (
        (pair, row)
        for pair, row in rows
        if row.key.level != "kernel" or (id(pair), row.key[3:5], row.result) not in of_layers
    )
    groups = group_by(listed, lambda item: (item[0].heading, item[1].key, item[1].result))
    return list(groups.values())


def _describe_quantity_change(group: list[PairAndRow], names_workload: bool) -> str:
    """Return the change of one quantity at one or several batch sizes, the weightiest in full.

    "conv2 forward is 20.1% slower at batch 64 (95% interval +18.9% to +21.2%; 4.12 ms in A,
    4.95 ms in B)."
    """
    pair, row = group[0]
    places = _format_batches_phrase([pair for pair, _ in group], names_workload)
    suffix = _format_batches_phrase([pair]) if len(group) > 1 else ""
    if row.result in (NEW, GONE):
        number = row.before or row.after
        assert number is not None
        span = "in the complete report" if PER_REPORT in (row.basis or "") else "per step"
        spent = (
            f", {format_time(number.median)} {span}{suffix}" if row.key.quantity == "time" else ""
        )
        return f"{row.name} is {row.result}{places}: {MEANING[row.result]}{spent}."
    assert row.medians_of_both is not None
    # exact counts in full: their difference may be in the last digit
    a, b = (
        format_integer_or_six_digits(value, "FLOP")
        if row.key.quantity == "flops"
        else format_quantity(row.key.quantity, value)
        for value in row.medians_of_both
    )
    both = f"{a} in A, {b} in B"
    if row.result == DIFFERS:
        name = "a complete step" if row.key.level == "step" else row.name
        return f"The executed FLOPs of {name} differ{places}: {both}{suffix}."
    spread = (
        f"95% interval {format_change_interval(row.interval)}"
        if row.interval
        else "the same in every repeat"
    )
    changes = "".join(
        f", {_format_unsigned_change(other)} at {pair.batch_label}" for pair, other in group[1:]
    )
    name = {KERNELS: "The kernels of a step are", "step": "The step is"}.get(
        row.key.item, f"{row.name} is"
    )
    suffix = _format_batches_phrase([pair], names_workload)
    return (
        f"{name} {_format_unsigned_change(row)} {row.result}{suffix} ({spread}; {both}){changes}."
    )


def _format_unsigned_change(row: ComparedRow) -> str:
    return format_percent_change(row.change or 0.0).lstrip("+" + MINUS)


def _format_batches_phrase(pairs: list[ComparedPair], names_workload: bool = False) -> str:
    batches = ", ".join(pair.batch_label for pair in pairs if pair.batch_label)
    batch = f" at {pairs[0].batch_prefix}{batches}" if batches else ""
    return f"{batch} of {pairs[0].heading}" if names_workload else batch


def _merge_notes_to_highest_numbers(comparison: Comparison) -> Iterator[str]:
    """Yield the notes of all batch sizes; of notes that differ in numbers only, the highest."""
    notes = [(pair, note) for pair in comparison.pairs for note in pair.notes]
    for alike in group_by(notes, lambda item: re.sub(r"\d+", "", item[1])).values():
        texts = {note for _, note in alike}
        highest = max(texts, key=lambda note: [int(digits) for digits in re.findall(r"\d+", note)])
        places = _format_batches_phrase([pair for pair, _ in alike]).removeprefix(" at ")
        yield f"{highest} (highest of {places})." if len(texts) > 1 and places else f"{highest}."


def _list_comparison_warnings(comparison: Comparison) -> Iterator[str]:
    blocks = group_by(comparison.not_comparable, _explain_not_comparable)
    # otherwise the first finding states it
    if len(blocks) > 1 or not any(map(_choose_step_or_kernel_time_row, comparison.not_comparable)):
        for blocked, pairs in blocks.items():
            batches = ", ".join(pair.batch_label for pair in pairs if pair.batch_label)
            first = pairs[0]
            heading = f"{first.heading}{f', {first.batch_prefix}{batches}' if batches else ''}"
            yield f"Not comparable: {heading}: {blocked}. {_ANYWAY}"
    for text in comparison.failed:
        yield f"Failed in B: {text}."
    for label, only in (("A", comparison.only_a), ("B", comparison.only_b)):
        if only:
            yield f"In {label} only: {'; '.join(only)}."
    yield from _merge_notes_to_highest_numbers(comparison)
    free = [
        row
        for pair in comparison.pairs
        if comparison.forced or not pair.blocking_differences
        for row in pair.rows
    ]
    reasons = Counter(row.reason for row in free if row.result == NOT_JUDGED)
    if reasons:
        ((reason, most),) = reasons.most_common(1)
        steps = filter(None, map(_choose_step_or_kernel_time_row, comparison.pairs))
        # the first finding states the reason of the step, unless it asks for repeats
        is_stated = any(step.reason == reason and not step.needs_repeats for step in steps)
        which = "" if most == reasons.total() else ", most of them because"
        ending = f"{which}: {reason}"
        if is_stated:
            ending = f"{which.removesuffix(' because') or ','} for the reason of the step"
        verb = "is" if reasons.total() == 1 else "are"
        yield f"{reasons.total()} of {len(free)} rows {verb} not judged{ending}."
    wide = [
        (pair, row)
        for pair in comparison.pairs
        for row in pair.rows
        if row.key.quantity == "time"
        and row.result == NOT_SHOWN
        and row.interval is not None
        and max(-row.interval[0], row.interval[1]) > comparison.gate
    ]
    for pair, row in wide[:1]:
        yield (
            f"The spread of {len(wide)} of {comparison.judged_time_count} times may hide a "
            f"change beyond the "
            f"gate: {row.name}{_format_batches_phrase([pair])} changed by "
            f"{format_change_interval(row.interval)}. More repeats narrow it."
        )
