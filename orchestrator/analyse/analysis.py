"""A study with everything that is worked out about it, once: what the page, the terminal and exports show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.analyse.hardware.peaks import Peaks
from perfctl.orchestrator.analyse.ledger.ledger import Ledger, ledger
from perfctl.orchestrator.analyse.ledger.prepared import PreparedStudy, prepare
from perfctl.orchestrator.analyse.ledger.studies import Study, parts
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
    parts: tuple[Study, ...] = ()
    """The studies of the same sweep that differ in GPU or options, itself first; empty for all but the first of them."""

    @property
    def study(self) -> Study:
        return self.prepared.study


def analyse(study: Study, measured: Sequence[Peaks] = (), beside: Sequence[Study] | None = None) -> Analysis:
    """Ledger, verdicts, roofline and sweep of a study; ``measured`` peaks go before published ones.

    ``beside``: the studies that it is read with, as :func:`analyse_all` finds them; by default it is read alone.
    """
    prepared = prepare(study)
    entries = ledger(prepared)
    group = (study,) if beside is None else tuple(beside)
    judgement = judge(prepared, entries, group)
    roofs = roofline(prepared, entries, measured)
    return Analysis(prepared, entries, judgement, roofs, points(prepared), group)


def analyse_all(found: Iterable[Study], measured: Sequence[Peaks] = ()) -> list[Analysis]:
    """Each study analysed, in order. What concerns several parts of one sweep is with the first of them."""
    found = list(found)
    beside = {id(group[0]): group for group in parts(found)}
    return [analyse(study, measured, beside.get(id(study), ())) for study in found]
