"""A study with everything that is worked out about it, once: what the page, the terminal and exports show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfctl.orchestrator.analyse.hardware.peaks import Peaks
from perfctl.orchestrator.analyse.ledger.ledger import Ledger, ledger
from perfctl.orchestrator.analyse.ledger.prepared import PreparedStudy, prepare
from perfctl.orchestrator.analyse.ledger.studies import Study
from perfctl.orchestrator.analyse.ledger.sweep import BatchPoint, points
from perfctl.orchestrator.analyse.roofline import Roofline, roofline
from perfctl.orchestrator.analyse.verdicts.judge import Judgement, judge


@dataclass(frozen=True, slots=True)
class Analysis:
    """One study, analysed."""

    prepared: PreparedStudy
    ledger: Ledger
    judgement: Judgement
    roofline: Roofline
    points: tuple[BatchPoint, ...]

    @property
    def study(self) -> Study:
        return self.prepared.study


def analyse(study: Study, measured: Sequence[Peaks] = ()) -> Analysis:
    """Ledger, verdicts, roofline and sweep of a study; ``measured`` peaks go before published ones."""
    prepared = prepare(study)
    entries = ledger(prepared)
    judgement = judge(prepared, entries)
    return Analysis(prepared, entries, judgement, roofline(prepared, entries, measured), points(prepared))
