"""Why counted and paper differ: all rules in one table, applied to a whole study.

A rule is a function from a :class:`RuleInput` (one ledger row) to a verdict or None. Rules about the whole sweep are
in ``verdict_sweep``. Several rules may apply to a row; their factors multiply, and what they do not explain is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod

from perfctl.orchestrator.analyse.ledger.ledger import Ledger
from perfctl.orchestrator.analyse.ledger.prepared import PreparedStudy
from perfctl.orchestrator.analyse.verdicts import row_rules, window_rules
from perfctl.orchestrator.analyse.verdicts.evidence import EvidenceTable, row_evidence
from perfctl.orchestrator.analyse.verdicts.records import Judged, Judgement, Verdict
from perfctl.orchestrator.analyse.verdicts.rule import RuleInput, explained, is_news

Rule = Callable[[RuleInput], Verdict | None]

VERDICTS: tuple[Rule, ...] = (
    window_rules.wrong_window,
    row_rules.fadd_alone,
    row_rules.not_collected,
    row_rules.direction_missing,
    row_rules.tensor_cores,
    row_rules.constant_moves,
    row_rules.several_algorithms,
    row_rules.winograd,
    row_rules.fourier,
    row_rules.tile_padding,
    row_rules.shared_kernel,
    row_rules.recomputation,
    row_rules.split_k,
    row_rules.layout_and_epilogue,
)
"""All rules about one row. A new one is a function and a line here."""


def judge(study: PreparedStudy, ledger: Ledger) -> Judgement:
    """All verdicts of a study; nothing for a report without layers on paper."""
    known, loose = row_evidence(study, ledger)
    window = window_rules.find_window(known, loose)
    if window is not None and window.batch is not None:
        seen, places = window.batch, window.places
        known = EvidenceTable(
            (place, evidence.with_batch(seen) if places and (place in places or not evidence.kernels) else evidence)
            for place, evidence in known.items()
        )
    rows = {}
    for place, evidence in known.items():
        given = RuleInput(evidence, known)
        found = [said for rule in VERDICTS if (said := rule(given)) is not None]
        found.sort(key=lambda said: -(said.explained if said.explained is not None else -1.0))
        if found:
            rows[place] = Judged(tuple(found), unexplained(given.ratio, found))
    sweep = (
        *window_rules.window(window),
        *window_rules.times_flat(study.study, ledger, window),
        *window_rules.unattributed_fadds(known, loose),
        *window_rules.hand_estimates(study.study),
        *row_rules.directions_missing(known, loose),
        *window_rules.algorithm_switches(known),
    )
    return Judgement(rows, sweep)


def unexplained(ratio: float | None, found: Iterable[Verdict]) -> float | None:
    """Share (0..1) of the gap that all factors together leave; None without a gap or a count."""
    if not ratio or not is_news(ratio):
        return None
    share = explained(ratio, prod(said.factor for said in found if said.factor))
    return None if share is None else 1 - share
