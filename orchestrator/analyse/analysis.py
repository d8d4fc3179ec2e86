"""A study with everything that is worked out about it, once: what the page, the terminal and exports show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfctl.orchestrator.analyse.grouping import Study
from perfctl.orchestrator.analyse.ledger import Ledger, ledger
from perfctl.orchestrator.analyse.peaks import Peaks
from perfctl.orchestrator.analyse.roofline_study import Roofline, roofline
from perfctl.orchestrator.analyse.sweep import BatchPoint, points
from perfctl.orchestrator.analyse.verdict import judge
from perfctl.orchestrator.analyse.verdict_records import Judgement


@dataclass(frozen=True, slots=True)
class Analysis:
    """One study, analysed."""

    study: Study
    ledger: Ledger
    judgement: Judgement
    roofline: Roofline
    points: tuple[BatchPoint, ...]


def analyse(study: Study, measured: Sequence[Peaks] = ()) -> Analysis:
    """Ledger, verdicts, roofline and sweep of a study; ``measured`` peaks go before published ones."""
    entries = ledger(study)
    return Analysis(study, entries, judge(study, entries), roofline(study, entries, measured), points(study))
