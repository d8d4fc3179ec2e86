"""What the templates of the page read: findings, sections, studies, the page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from perfctl.orchestrator.report.charts.charts import Chart
from perfctl.orchestrator.report.ledger.matrix import Matrix
from perfctl.orchestrator.report.ledger.page import LedgerView
from perfctl.orchestrator.report.tables import Grid, Table

_ENDS = re.compile(r"(?<=[.?!]) (?=[A-Z0-9'…])")
"""Between two sentences."""
LONGEST = 140
"""Characters of a finding's first sentence."""
COMPLETE_FINDINGS = 3
"""Findings with their details on a terminal; long ones after them are cut to a sentence."""
SHORT_FINDING = 200
"""Characters of a finding that is never cut: it has its cause."""
_CLAUSES = ("; ", ": ", ", ", " (")
"""Where a longer sentence is broken, the best first."""


def shortened(text: str) -> str:
    """At most LONGEST characters, cut at a word: for a sentence that stands alone, without details
    after it."""
    if len(text) <= LONGEST:
        return text
    whole = text[: LONGEST - 1].rpartition(" ")[0] or text[: LONGEST - 2]
    return f"{whole.rstrip(' ,;:(')} …"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: a sentence, and details after it. ``evidence`` is the section of the page that
    proves it."""

    text: str
    evidence: str
    warning: bool = False
    trail: str | None = None
    """Key of the trail that leads from the figure to its sources; None where there is none."""
    impact_ns: float | None = None
    """Time of the median step that is at stake; None if it is unknown, below the scatter of the
    steps, or no matter of time."""
    step_ns: float | None = None
    """The median step, or the capture of a report without steps: what ``impact_ns`` is part of."""
    cause: str | None = None
    """Names of the causes, as far as the finding states them."""
    fix: str | None = None
    """What to do, as far as the finding states it."""

    @property
    def share(self) -> float | None:
        """Share (0..1) of the median step that is at stake."""
        return self.impact_ns / self.step_ns if self.impact_ns and self.step_ns else None

    @property
    def first(self) -> str:
        """The first sentence of several, at most LONGEST characters: a longer one ends after
        a clause."""
        return _first(self.text)[0]

    @property
    def rest(self) -> str:
        """What follows the first sentence; "" where nothing does."""
        return _first(self.text)[1]


def shorten_findings(findings: Iterable[Finding], complete: int) -> tuple[Finding, ...]:
    """Return findings, long ones after the first ``complete`` ones with their first sentence only.
    Warnings stay complete."""
    return tuple(
        finding
        if finding.warning or number < complete or len(finding.text) <= SHORT_FINDING
        else replace(finding, text=finding.first)
        for number, finding in enumerate(findings)
    )


def _is_inside_brackets(start: str) -> bool:
    """Return whether a sentence that starts so is inside of brackets, also of a kernel's name."""
    return any(start.count(left) != start.count(right) for left, right in ("()", "<>"))


def _first(text: str) -> tuple[str, str]:
    """(first sentence, the rest)."""
    sentence = _ENDS.split(text, maxsplit=1)[0]
    rest = text[len(sentence) :].lstrip()
    if len(sentence) <= LONGEST:
        return sentence, rest
    for mark in _CLAUSES:
        place = sentence.rfind(mark, 0, LONGEST)
        while place > 0 and _is_inside_brackets(sentence[:place]):
            place = sentence.rfind(mark, 0, place)
        if place >= LONGEST // 4:
            after = sentence[place:].lstrip(";:, ")
            word = after.partition(" ")[0]
            return (
                f"{sentence[:place]}.",
                f"{after[:1].upper() + after[1:] if word.isalpha() else after} {rest}".strip(),
            )
    place = sentence.rfind(" ", LONGEST // 4, LONGEST - 1)
    place = place if place > 0 else LONGEST - 2
    return f"{sentence[:place]} …", f"… {sentence[place:].lstrip()} {rest}".strip()


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a study: a heading in the navigation and its contents."""

    key: str
    title: str
    tables: tuple[Table, ...] = ()
    ledger: LedgerView | None = None
    matrix: Matrix | None = None
    small: tuple[str, ...] = ()
    """Rows of the matrix that print leaves out, "conv1 forward", the largest of them first."""
    trails: Mapping[str, Any] = field(default_factory=dict)
    """As ``trail.packed`` makes them; "names": short kernel name -> whole name."""
    note: str | None = None
    charts: tuple[Chart, ...] = ()
    folded: tuple[Table, ...] = ()
    grids: tuple[Grid, ...] = ()
    """Long tables that are drawn a screen at a time."""
    timelines: tuple[dict[str, Any], ...] = ()
    icicles: tuple[dict[str, Any], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    """Facts on which all runs agree."""
    commands: tuple[tuple[str, str], ...] = ()
    origin: str | None = None
    """Beside the heading, where the numbers below were not measured on this machine."""


@dataclass(frozen=True, slots=True)
class StudyView:
    """One study or one foreign report."""

    key: str
    heading: str
    facts: tuple[tuple[str, str], ...]
    origins: tuple[tuple[str, str], ...]
    """(origin, its meaning) of its numbers."""
    findings: tuple[Finding, ...]
    more: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    sections: tuple[Section, ...]
    folded: bool = False
    """Closed until a reader opens it, because another part or the overview has its answer."""


@dataclass(frozen=True, slots=True)
class Overview:
    """All studies of a page at a glance."""

    table: Table
    """A row a study; its first cell leads there."""
    keys: tuple[str, ...]
    """Of the study of each row."""
    charts: tuple[Chart, ...] = ()
    lines: tuple[tuple[str, int, str], ...] = ()
    """(name, colour number, key of the study) of the curves."""


@dataclass(frozen=True, slots=True)
class PageView:
    """The whole page."""

    title: str
    made_at: str
    studies: tuple[StudyView, ...]
    left_out: str | None = None
    """A sentence about runs of the store that are not on the page; None where there are none."""
    overview: Overview | None = None
    """Above the studies; None for one."""
