"""Why counted and paper differ: all rules in one table, applied to a whole study.

A rule is a function from a :class:`RuleInput` (one ledger row) to a verdict or None. Rules about
the whole sweep are in ``window_rules``. Several rules may apply to a row; their factors multiply,
and what they do not explain is said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, log, prod
from typing import NamedTuple

from perfctl.orchestrator.ledger.causes import (
    gradient_rules,
    missing_rules,
    row_rules,
    shape_rules,
    study_rules,
    tensor_rules,
    window_rules,
)
from perfctl.orchestrator.ledger.causes.evidence import EvidenceTable, Place, row_evidence
from perfctl.orchestrator.ledger.causes.rule import (
    RuleInput,
    Verdict,
    explained,
    gap_of,
    is_news,
    percent,
    times,
)
from perfctl.orchestrator.ledger.ledger import Ledger, LedgerRow
from perfctl.orchestrator.ledger.prepared import PreparedStudy, Study

Rule = Callable[[RuleInput], Verdict | None]

VERDICTS: tuple[Rule, ...] = (
    window_rules.wrong_window,
    missing_rules.fadd_alone,
    missing_rules.not_collected,
    missing_rules.nothing_counted,
    missing_rules.direction_missing,
    tensor_rules.tensor_cores,
    tensor_rules.three_tf32,
    tensor_rules.sparsity,
    tensor_rules.constant_moves,
    row_rules.several_algorithms,
    row_rules.winograd,
    row_rules.fourier,
    row_rules.tile_padding,
    row_rules.derived_tiles,
    row_rules.persistent,
    row_rules.extra_calls,
    row_rules.extra_gradients,
    shape_rules.attention_recompute,
    shape_rules.causal_mask,
    shape_rules.groups_as_dense,
    shape_rules.skipped_border,
    shape_rules.swapped,
    row_rules.shared_kernel,
    gradient_rules.gradient_missing,
    gradient_rules.needless_gradient,
    gradient_rules.zeros_inserted,
    gradient_rules.gradient_trials,
    row_rules.recomputation,
    gradient_rules.recomputed_otherwise,
    row_rules.split_k,
    row_rules.layout_and_epilogue,
)
"""All rules about one row. A new one is a function and a name here."""

NEEDED = 0.5
"""Share of a verdict's factor (in logarithms) by which it must bring the product of all factors
nearer to the ratio."""

GAPS = 3
SWITCH = "algorithm switch"
_NO_NUMBER = ("FADD alone", "counter not collected", "constant moves")
WORTH = 1.1
"""A ratio nearer to 1 than this makes no headline."""
MINOR = 0.01
"""Share of the time below which a gap costs next to nothing, however large its ratio is."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One ledger row: its verdicts, the strongest first, and what they leave open."""

    verdicts: tuple[Verdict, ...] = ()
    unexplained: float | None = None
    """Share (0..1) of the gap that no verdict explains; None without a gap or without a count."""


_NOTHING = Judged()


@dataclass(frozen=True, slots=True)
class Judgement:
    """All verdicts of a study."""

    rows: Mapping[Place, Judged] = field(default_factory=dict)
    sweep: tuple[Verdict, ...] = ()
    """About the sweep as a whole: the count does not follow the batch size, a direction
    is missing."""
    window: window_rules.Window | None = None
    """The profiler's window that saw the same work at every batch size; None where there
    was none."""

    def at(self, batch: int | None, layer: str, direction: str) -> Judged:
        """Of one ledger row; empty where nothing was found."""
        return self.rows.get((batch or 1, layer, direction), _NOTHING)


def judge(study: PreparedStudy, ledger: Ledger, parts: Sequence[Study] | None = None) -> Judgement:
    """All verdicts of a study; nothing for a report without layers on paper.

    ``parts``: the studies of the same sweep that it is read with, itself among them; empty where
    another of them has their verdicts. By default it is read alone.
    """
    parts = (study.study,) if parts is None else parts
    known, loose = row_evidence(study, ledger)
    window = window_rules.find_window(known, loose)
    if window is not None and window.batch is not None:
        seen, places = window.batch, window.places
        known = EvidenceTable(
            (
                place,
                evidence.with_batch(seen)
                if places and (place in places or not evidence.kernels)
                else evidence,
            )
            for place, evidence in known.items()
        )
    raw = []
    for evidence in known.values():
        given = RuleInput(evidence, known, loose.get(evidence.row.size, ()))
        raw.append((given, [said for rule in VERDICTS if (said := rule(given)) is not None]))
    steps = study_rules.whole_steps(raw)
    rows = {}
    for given, claims in raw:
        evidence = given.evidence
        whole = [
            step for step in steps.get(evidence.row.size, ()) if given.ratio and step.of(evidence)
        ]
        if whole:
            launched = prod(step.launched for step in whole)
            again = (row_rules.extra_calls, row_rules.extra_gradients) if launched > 1 else ()
            more = (said for rule in again if (said := rule(given, launched)) is not None)
            own = (
                said
                for said in claims
                if said.rule not in study_rules.RIVALS or said.rule == "recomputation"
            )
            # last: where a half-filled tile fits as well, the reason of all rows stays
            claims = [*own, *more, *(step.row(given) for step in whole)]
        found = kept(given.ratio, claims)
        found.sort(key=lambda said: -(said.explained if said.explained is not None else -1.0))
        left = unexplained(gap_of(evidence), found)
        if found or left is not None:
            rows[evidence.place] = Judged(tuple(found), left)
    sweep = (
        *window_rules.window(window),
        *(step.sweep for found in steps.values() for step in found),
        *window_rules.times_flat(study.study, ledger, window),
        *window_rules.unattributed_fadds(known, loose),
        *window_rules.hand_estimates(study.study),
        *study_rules.other_gpu(parts),
        *study_rules.less_time_for_more(parts),
        *missing_rules.directions_missing(known, loose),
        *window_rules.algorithm_switches(known),
    )
    if any(evidence.ours for evidence in known.values()):
        sweep = tuple(replace(item, todo=_without_our_command(item.todo)) for item in sweep)
    return Judgement(rows, sweep, window)


def _without_our_command(todo: str) -> str:
    """Advice for a run that 'perfctl ncu' made: not to use it."""
    for advice in (window_rules.BY_PERFCTL, f"; {missing_rules.COLLECT}."):
        todo = todo.replace(advice, ".")
    return todo


def unexplained(ratio: float | None, found: Iterable[Verdict]) -> float | None:
    """Share (0..1) of the gap that all factors together leave; None without a gap or a count, and
    where several algorithms ran of which not all were counted: they are the reason, and how much of
    it is not known."""
    found = list(found)
    if any(said.rule == "several algorithms" and said.factor is None for said in found):
        return None
    share = explained(ratio, prod(said.factor for said in found if said.factor is not None))
    return None if share is None else 1 - share


def kept(ratio: float | None, found: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts without those whose factor the count speaks against; the one that fits least
    goes first.

    A verdict whose factor is 1 or None only describes, and stays. So do all where there is no count
    to hold them against.
    """
    left = list(found)
    while ratio:
        claims = [
            said
            for said in left
            if said.factor and (is_news(said.factor) or said.explained is not None)
        ]
        whole = sum(log(said.factor or 1) for said in claims)
        gains = [(_gain(log(ratio), whole, log(said.factor or 1)), said) for said in claims]
        least, worst = min(gains, key=lambda item: item[0], default=(NEEDED, None))
        if worst is None or least >= NEEDED:
            break
        left.remove(worst)
    return left


def _gain(gap: float, whole: float, part: float) -> float:
    """How much nearer ``part`` of the factors brings ``whole`` to the gap, for its own size; all
    are logarithms."""
    return (abs(gap - whole + part) - abs(gap - whole)) / abs(part)


class Headline(NamedTuple):
    sentence: str
    place: Place | None
    """The ledger row that proves it; None for the sweep as a whole."""
    rules: tuple[str, ...]


def headlines(judgement: Judgement, ledger: Ledger) -> tuple[Headline, ...]:
    """What is wrong with the sweep, then the three largest gaps with the rules that explain them,
    then what changes.

    Of the gaps, those of layers that take less than MINOR of the time come last.
    """
    sweep = [
        Headline(item.sentence, None, (item.rule,))
        for item in judgement.sweep
        if item.rule != SWITCH
    ]
    groups: dict[str, list[LedgerRow]] = defaultdict(list)
    for row in ledger.rows:
        if _gap(row) > log(WORTH) and (
            not row.counted.lower_bound or (row.ratio is not None and row.ratio > 1)
        ):
            groups[row.name].append(row)
    ranked = sorted(groups.values(), key=lambda rows: (_is_minor(rows), -max(map(_gap, rows))))
    known = {item.rule for item in judgement.sweep}
    gaps = []
    for rows in ranked:
        row = max(rows, key=_gap)
        judged = judgement.at(row.size, row.layer, row.direction)
        new = [item for item in judged.verdicts if item.rule not in known]
        if new or not judged.verdicts:
            rules = tuple(item.rule for item in judged.verdicts)
            sentence = _sentence(row, rows, new, judged.unexplained)
            gaps.append(Headline(sentence, (row.size, row.layer, row.direction), rules))
    switches = [item for item in judgement.sweep if item.rule == SWITCH]
    others = len(switches) - 1
    more = (
        f" {others} more {'rows change their' if others > 1 else 'row changes its'} algorithm."
        if others
        else ""
    )
    first = [Headline(f"{item.sentence}{more}", None, (item.rule,)) for item in switches[:1]]
    return (*sweep, *gaps[:GAPS], *first, *_without_number(judgement))


def _is_minor(rows: Iterable[LedgerRow]) -> bool:
    """Whether no row is known to take as much of the time as MINOR; such gaps come after
    all others."""
    shares = [row.share for row in rows if row.share is not None]
    return bool(shares) and max(shares) < MINOR


def _gap(row: LedgerRow) -> float:
    """On a scale where half and double are as far; a count of 0 is the largest gap of all."""
    return abs(log(row.ratio)) if row.ratio else 0.0 if row.ratio is None else inf


def _sentence(
    row: LedgerRow, rows: Iterable[LedgerRow], verdicts: Iterable[Verdict], left: float | None
) -> str:
    verdicts = list(verdicts)
    if zero := next((item for item in verdicts if item.rule == "nothing counted"), None):
        return zero.sentence
    ratio = 1.0 if row.ratio is None else row.ratio
    sure = ("at least " if row.counted.lower_bound else "") + (
        "about " if row.counted.state == "estimated" else ""
    )
    others = ", ".join(str(other.size) for other in rows if other.size != row.size)
    also = f" (more than 10 % off at batch {others} too)" if others else ""
    part = (
        f"{f'{times(ratio)} ' if ratio else 'none '}{'of' if ratio < 1 else 'times'} the FLOPs on "
        f"paper{row.at}{also}"
    )
    text = (
        f"{row.name} executed "
        f"{sure}{part}{', derived from its kernels' if row.counted.state == 'derived' else ''}"
    )
    reasons = [
        f"{item.rule} explains {times(item.factor)}"
        for item in verdicts
        if item.factor and is_news(item.factor) and item.explained != 0
    ]
    if not reasons and any(item.rule == "several algorithms" for item in verdicts):
        return f"{text}: several algorithms ran, each for the whole layer."
    if not reasons:
        rest = "" if left is None else f": {percent(left)} of the gap stays unexplained"
        return f"{text}; no rule explains it{rest}."
    rest = (
        f"; {percent(left)} of the gap stays unexplained"
        if left is not None and left >= 0.02
        else ""
    )
    return f"{text}: {', '.join(reasons)}{rest}."


def _without_number(judgement: Judgement) -> list[Headline]:
    found: dict[str, list[tuple[Place, Verdict]]] = defaultdict(list)
    known = {item.rule for item in judgement.sweep}
    for place, judged in judgement.rows.items():
        for item in judged.verdicts:
            if item.factor is None and item.rule in _NO_NUMBER and item.rule not in known:
                found[item.rule].append((place, item))
    return [
        Headline(
            f"{rows[0][1].sentence}"
            f"{f' The same in {len(rows) - 1} more rows.' if len(rows) > 1 else ''}",
            rows[0][0],
            (rule,),
        )
        for rule, rows in found.items()
    ]
