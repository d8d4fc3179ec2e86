"""A study with everything that is computed about it, once: what the page, the terminal and exports
show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from perfctl.orchestrator.counts.hardware.peaks import Peaks
from perfctl.orchestrator.counts.kernels.short_names import shorten
from perfctl.orchestrator.ledger.causes.judge import Judgement, judge
from perfctl.orchestrator.ledger.causes.timeline.judge import RunVerdicts, run_verdicts
from perfctl.orchestrator.ledger.ledger import Ledger, ledger
from perfctl.orchestrator.ledger.prepared import Study, parts
from perfctl.orchestrator.ledger.roofline import Roofline, roofline
from perfctl.orchestrator.ledger.sweep import BatchPoint, points
from perfctl.records.run import Run


@dataclass(frozen=True)
class Analysis:
    """One study, analysed."""

    study: Study
    ledger: Ledger
    judgement: Judgement
    roofline: Roofline
    points: tuple[BatchPoint, ...]
    parts: tuple[Study, ...] = ()
    """The studies of the same sweep that differ in GPU or options, itself first; empty for all but
    the first of them."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Kernel name -> its short form, unique among all the studies that are read together."""

    @cached_property
    def verdicts(self) -> RunVerdicts:
        """What the timeline of each run shows could be faster."""
        usages = [prepared.usage for prepared in self.study.prepared_runs]
        return [(usage.run, run_verdicts(usage)) for usage in usages]


def analyse(
    study: Study,
    measured: Sequence[Peaks] = (),
    beside: Sequence[Study] | None = None,
    names: Mapping[str, str] | None = None,
) -> Analysis:
    """Ledger, verdicts, roofline and sweep of a study; ``measured`` peaks go before published ones.

    ``beside``: the studies that it is read with, as :func:`analyse_all` finds them; by default it
    is read alone. ``names``: short kernel names of all that is read together; by default of
    this study.
    """
    entries = ledger(study)
    group = (study,) if beside is None else tuple(beside)
    return Analysis(
        study=study,
        ledger=entries,
        judgement=judge(study, entries, group),
        roofline=roofline(study, entries, measured),
        points=points(study),
        parts=group,
        names=short_names(study.runs) if names is None else names,
    )


def analyse_all(
    studies: Iterable[Study], measured: Sequence[Peaks] = (), names: Mapping[str, str] | None = None
) -> list[Analysis]:
    """Each study analysed, in order. What concerns several parts of one sweep is with the first
    of them.

    ``names``: short kernel names, as :func:`analyse` takes them; by default of all these studies.
    """
    studies = tuple(studies)
    beside = {id(group[0]): group for group in parts(studies)}
    names = short_names(run for study in studies for run in study.runs) if names is None else names
    return [analyse(study, measured, beside.get(id(study), ()), names) for study in studies]


def short_names(runs: Iterable[Run]) -> dict[str, str]:
    """Kernel name -> its short form, unique among these runs."""
    return shorten(kernel.name for run in runs for kernel in run.report.kernels)
