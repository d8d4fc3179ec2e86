"""Causes in words: each with its numbers, sentence and fix, and the headlines of a sweep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf, log
from typing import NamedTuple

from perfctl.orchestrator.ledger.causes.evidence import Place
from perfctl.orchestrator.ledger.causes.judge import RowCauses, StudyCauses
from perfctl.orchestrator.ledger.causes.rule import (
    Cause,
    Confidence,
    deviates_from_one,
    format_ratio,
    format_share,
)
from perfctl.orchestrator.ledger.ledger import Ledger, LedgerRow
from perfctl.orchestrator.report.ledger.cause_sentences import FIXES, SENTENCES, fill_cause_template
from perfctl.orchestrator.statistics import group_by
from perfctl.records.run import format_sweep_points, get_batch_size_sort_key

HEADLINES_MAX = 3
"""Headlines about rows."""
RATIO_MIN = 1.1
"""A ratio nearer to 1 makes no headline, and no row of a terminal's table by itself."""
TIME_SHARE_MIN = 0.01
"""Share of the time below which a difference costs next to nothing, however large it is."""
UNEXPLAINED_SHARE_MIN, UNEXPLAINED_SHOWN_MIN = 0.02, 0.0005
"""Share of a difference below which a headline, and below which a table, does not name it."""
SWITCH = "algorithm switch"
ASSUMED = frozenset(
    {
        *("wrong window", "3xTF32", "2:4 sparsity", "constant moves", "several algorithms"),
        *("Winograd", "FFT", "tile padding", "persistent RNN", "causal mask", "split-K"),
        *("groups run as dense", "skipped border", "zeros inserted", "recomputation"),
        "layout and epilogue",
    }
)
"""Rules whose fix helps only if the cause is one; the other fixes find out whether it is."""
ADVERBS = {"likely": "probably ", "plausible": "possibly "}
"""Confidence -> the word before the name of a cause that is not certain."""
RULE_NAMES = {
    "time does not follow": "time that does not grow with the batch size",
    "hand estimate": "mistake in the manual estimate",
}
"""Rule -> its name in a sentence, if the rule's own name is none."""
WITHOUT_NUMBER = ("FADD alone", "counter not collected", "constant moves")


def describe_cause(cause: Cause) -> str:
    """Return the cause as a sentence with the subject, the number, the comparison and the cause."""
    return fill_cause_template(SENTENCES, cause, cause.variant)


def describe_fix(cause: Cause) -> str:
    """Return what to do about the cause, if it is one."""
    fix = fill_cause_template(FIXES, cause, cause.facts.get("fix", cause.variant))
    is_open = cause.confidence in ADVERBS and cause.rule in ASSUMED
    return f"If so, {fix[:1].lower()}{fix[1:]}" if is_open else fix


@dataclass(frozen=True, slots=True)
class DescribedCause:
    """One cause in sentences, with its numbers. FLOPs: 1 multiply-add = 2."""

    JSON_KEYS = ("rule", "sentence", "factor", "explained", "fix", "kernels", "confidence")

    rule: str
    sentence: str
    factor: float | None
    explained: float | None
    fix: str
    kernels: tuple[str, ...]
    confidence: Confidence
    elsewhere: str = ""
    """ "also at batch 16, 32 (predicts 1.06 to 2.10)"; "" if it holds at one batch size only."""

    @property
    def numbers(self) -> str:
        """ "predicts 3.60 times the estimate, explains 98.2% of the difference"; "" for a rule
        without such a number."""
        texts = []
        if self.factor is not None:
            texts.append(f"predicts {format_ratio(self.factor)} times the estimate")
        if self.explained is not None:
            texts.append(f"explains {format_share(self.explained)} of the difference")
        return ", ".join(texts)

    def join_sentence_numbers_fix(self, row_name: str = "") -> str:
        """Return the sentence, the rule with numbers, and after an arrow the fix. ``row_name``:
        layer and pass, which come first if the sentence does not state them."""
        numbers = f": {self.numbers}" if self.numbers else ""
        rule = RULE_NAMES.get(self.rule, self.rule)
        rule = _capitalize_first_letter(f"{rule}{numbers} ({self.confidence}).")
        elsewhere = _capitalize_first_letter(f"{self.elsewhere}.") if self.elsewhere else ""
        text = " ".join(filter(None, (self.sentence, rule, elsewhere)))
        if row_name not in self.sentence:
            text = f"{row_name}: {text}"
        return f"{text} \u2192 {self.fix}" if self.fix else text


def _capitalize_first_letter(text: str) -> str:
    return text[:1].upper() + text[1:]


def describe_cause_with_fix(cause: Cause) -> DescribedCause:
    """Return the cause with its sentences."""
    return DescribedCause(
        cause.rule,
        describe_cause(cause),
        cause.factor,
        cause.explained,
        describe_fix(cause),
        cause.kernels,
        cause.confidence,
    )


def describe_causes_by_rule(
    rows: Iterable[LedgerRow], judgement: StudyCauses
) -> tuple[DescribedCause, ...]:
    """Return the causes of one layer and pass, each at the batch size where the difference is
    largest, with the other batch sizes."""
    cases = (
        (row.batch, cause)
        for row in sorted(rows, key=compute_abs_log_ratio, reverse=True)
        for cause in judgement.get_row_causes(*row.key).causes
    )
    described = []
    for (_, first), *other_cases in group_by(cases, lambda case: case[1].rule).values():
        cause = describe_cause_with_fix(first)
        if other_cases:
            every = (first, *(other for _, other in other_cases))
            factors = [item.factor for item in every if item.factor is not None]
            low, high = (format_ratio(limit(factors, default=0)) for limit in (min, max))
            predicted = f" (predicts {low} to {high})" if low != high else ""
            points = format_sweep_points(
                sorted((point for point, _ in other_cases), key=get_batch_size_sort_key)
            )
            cause = replace(cause, elsewhere=f"also at {points}{predicted}")
        described.append(cause)
    return tuple(described)


def describe_unexplained_difference_share(
    rows: Iterable[LedgerRow], judgement: StudyCauses
) -> str | None:
    """Return the share of the difference that no cause explains, over the batch sizes; None if
    there is none."""
    judged = (judgement.get_row_causes(*row.key) for row in rows)
    shares = [row.unexplained for row in judged if row.unexplained is not None]
    if max(shares, default=0) < UNEXPLAINED_SHOWN_MIN:
        return None
    low, high = format_share(min(shares)), format_share(max(shares))
    return f"Unexplained: {high if low == high else f'{low} to {high}'} of the difference."


class LedgerHeadline(NamedTuple):
    """A sentence about the sweep or its largest differences."""

    sentence: str
    place: Place | None
    """The ledger row that proves it; None for the complete sweep."""
    rules: tuple[str, ...]


def build_ledger_headlines(judgement: StudyCauses, ledger: Ledger) -> tuple[LedgerHeadline, ...]:
    """Return what is wrong with the sweep, then the three largest differences with their causes,
    then what changes, then what was not measured."""
    sweep_rules = {cause.rule for cause in judgement.sweep}
    switches = [cause for cause in judgement.sweep if cause.rule == SWITCH]
    lines = [
        LedgerHeadline(describe_cause(cause), None, (cause.rule,))
        for cause in judgement.sweep
        if cause.rule != SWITCH
    ]
    lines += _build_flops_difference_headlines(judgement, ledger, sweep_rules)
    if switches:
        other_count = len(switches) - 1
        rows = "rows change their" if other_count > 1 else "row changes its"
        addition = f" {other_count} more {rows} algorithm." if other_count else ""
        lines.append(LedgerHeadline(describe_cause(switches[0]) + addition, None, (SWITCH,)))
    pairs = [
        (row_key, cause)
        for row_key, row in judgement.rows.items()
        for cause in row.causes
        if cause.factor is None and cause.rule in WITHOUT_NUMBER and cause.rule not in sweep_rules
    ]
    for rule, ((row_key, first), *same) in group_by(pairs, lambda pair: pair[1].rule).items():
        addition = f" The same in {len(same)} more rows." if same else ""
        lines.append(LedgerHeadline(describe_cause(first) + addition, row_key, (rule,)))
    return tuple(lines)


def _build_flops_difference_headlines(
    judgement: StudyCauses, ledger: Ledger, sweep_rules: set[str]
) -> list[LedgerHeadline]:
    """Return the largest differences; those of layers that take little of the time come last.
    ``sweep_rules``: rules that have a headline."""
    deviating = [
        row
        for row in ledger.rows
        if compute_abs_log_ratio(row) > log(RATIO_MIN)
        and (not row.executed.lower_bound or (row.ratio is not None and row.ratio > 1))
    ]
    groups = group_by(deviating, lambda row: row.name)
    lines = []
    for rows in sorted(
        groups.values(),
        key=lambda rows: (_have_small_time_share(rows), -max(map(compute_abs_log_ratio, rows))),
    ):
        row = max(rows, key=compute_abs_log_ratio)
        judged = judgement.get_row_causes(*row.key)
        rules = tuple(cause.rule for cause in judged.causes)
        if not rules or not sweep_rules.issuperset(rules):
            sentence = _describe_row_difference(row, rows, judged, sweep_rules)
            lines.append(LedgerHeadline(sentence, row.key, rules))
    return lines[:HEADLINES_MAX]


def _have_small_time_share(rows: Iterable[LedgerRow]) -> bool:
    """Return whether all rows are certain to take little of the time."""
    shares = [row.share for row in rows if row.share is not None]
    return bool(shares) and max(shares) < TIME_SHARE_MIN


def compute_abs_log_ratio(row: LedgerRow) -> float:
    """Return the difference on a scale on which half and double are as far: infinite if nothing
    was executed, 0 without a ratio."""
    return abs(log(row.ratio)) if row.ratio else 0.0 if row.ratio is None else inf


def _describe_row_difference(
    row: LedgerRow, rows: Iterable[LedgerRow], judged: RowCauses, sweep_rules: set[str]
) -> str:
    """Return the ratio of a row and the causes that explain it."""
    causes = [cause for cause in judged.causes if cause.rule not in sweep_rules]
    for cause in causes:
        if cause.rule in ("nothing counted", "wrong formula"):
            return describe_cause(cause)
    figure, factor = row.executed, 1.0 if row.ratio is None else row.ratio
    bound = "at least " if figure.lower_bound else ""
    about = "about " if figure.state == "estimated" else ""
    number = f"{format_ratio(factor)} times" if factor else "none of"
    other_points = format_sweep_points(other.batch for other in rows if other.batch != row.batch)
    also = f" (also off by more than 10% at {other_points})" if other_points else ""
    derived = " (derived from its kernels)" if figure.state == "derived" else ""
    text = (
        f"{row.name} executed {bound}{about}{number} the estimated FLOPs{row.batch_phrase}"
        f"{also}{derived}"
    )
    factors = [
        f"{ADVERBS.get(cause.confidence, '')}{cause.rule} (predicted factor "
        f"{format_ratio(cause.factor)})"
        for cause in causes
        if cause.factor and deviates_from_one(cause.factor) and cause.explained != 0
    ]
    share = judged.unexplained
    addition = "" if share is None else f"{format_share(share)} of the difference is unexplained"
    if factors:
        noun = "Cause" if len(factors) == 1 else "Causes"
        end = f" {addition}." if share is not None and share >= UNEXPLAINED_SHARE_MIN else ""
        return f"{text}. {noun}: {', '.join(factors)}.{end}"
    if any(cause.rule == "several algorithms" for cause in causes):
        return f"{text}. Cause: several algorithms, each of which computes the complete layer."
    return f"{text}. No rule explains it{f': {addition}' if addition else ''}."
