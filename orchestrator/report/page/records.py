"""Findings: what every view states first, in the order of the time that is at stake."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from perfctl.orchestrator.compare.sides import explain_cpu_contention
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.usage.intervals import sum_durations_ns
from perfctl.records.run import Point

_ENDS = re.compile(r"(?<=[.?!]) (?=[A-Z0-9'…])")
"""Between two sentences."""
LONGEST = 140
"""Characters of a finding's first sentence."""
LONGEST_NOTE = 300
"""Characters of a note that are not folded: two lines."""
COMPLETE_FINDINGS = 3
"""Findings with their details on a terminal; long ones after them are cut to a sentence."""
SHORT_FINDING = 200
"""Characters of a finding that is never cut: it has its cause."""
_CLAUSES = ("; ", ": ", ", ", " (")
"""Where a longer sentence is broken, the best first."""
UNEXPLAINED = 0.25
"""Share of the time of a kernel or a layer that counts as at stake while no cause is known.

It is chosen and not measured, and only places such a finding among the others. ncu's own estimates
are upper bounds: the largest of each launch is 12% to 85%, with a median of 50%, over the 26
launches of eight public reports that have one. Half of that median is taken."""


def shorten_sentence(text: str) -> str:
    """At most LONGEST characters, cut at a word: for a sentence that stands alone, without details
    after it."""
    if len(text) <= LONGEST:
        return text
    start = text[: LONGEST - 1].rpartition(" ")[0] or text[: LONGEST - 2]
    return f"{start.rstrip(' ,;:(')} …"


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
    def impact_share(self) -> float | None:
        """Share (0..1) of the median step that is at stake."""
        return self.impact_ns / self.step_ns if self.impact_ns and self.step_ns else None

    @property
    def first(self) -> str:
        """A short text, otherwise its first sentence: at most LONGEST characters; a longer one ends
        after a clause."""
        return split_at_first_sentence_or_clause(self.text)[0]

    @property
    def details(self) -> str:
        """The text after the first sentence; "" if there is none."""
        return split_at_first_sentence_or_clause(self.text)[1]


def shorten_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings, long ones after the first COMPLETE_FINDINGS with their first sentence
    only. Warnings stay complete."""
    return tuple(
        finding
        if finding.warning or number < COMPLETE_FINDINGS or len(finding.text) <= SHORT_FINDING
        else replace(finding, text=finding.first)
        for number, finding in enumerate(findings)
    )


def split_long_note(text: str) -> tuple[str, str]:
    """Return the sentences of a note that fit into two lines, and the others, which are folded."""
    sentences = accumulate(_ENDS.split(text), "{} {}".format)
    fitting = [start for start in sentences if len(start) <= LONGEST_NOTE]
    if not fitting:
        return split_at_first_sentence_or_clause(text, LONGEST_NOTE)
    return fitting[-1], text[len(fitting[-1]) :].lstrip()


def split_at_first_sentence_or_clause(text: str, max_characters: int = LONGEST) -> tuple[str, str]:
    """Return the first sentence and what follows it; a text that is short enough is not divided."""
    if len(text) <= max_characters:
        return text, ""
    sentence = _ENDS.split(text, maxsplit=1)[0]
    following = text[len(sentence) :].lstrip()
    if len(sentence) <= max_characters:
        return sentence, following
    for mark in _CLAUSES:
        end = sentence.rfind(mark, 0, max_characters)
        while end > 0 and _is_in_brackets(sentence[:end]):
            end = sentence.rfind(mark, 0, end)
        if end >= max_characters // 4:
            after = sentence[end:].lstrip(";:, ")
            if after.partition(" ")[0].isalpha():
                after = after[:1].upper() + after[1:]
            return f"{sentence[:end]}.", f"{after} {following}".strip()
    end = sentence.rfind(" ", max_characters // 4, max_characters - 1)
    end = end if end > 0 else max_characters - 2
    return f"{sentence[:end]} …", f"… {sentence[end:].lstrip()} {following}".strip()


def _is_in_brackets(text: str) -> bool:
    """Return whether the end of a text is inside of brackets, also of a kernel's name; a shortened
    name ends with its ellipsis."""
    since = text.rpartition("… ")[2]
    return any(since.count(left) != since.count(right) for left, right in ("()", "<>"))


@dataclass(frozen=True, slots=True)
class StepTime:
    """The median step of a batch size, of which impacts are a part: the capture of a report without
    steps."""

    median_ns: float
    noise_ns: float = 0.0
    """Median deviation of the steps from their median; 0 for a single step."""


Steps = Mapping[Point, StepTime]
"""Batch size -> its median step."""


def find_undisturbed_median_steps(analysis: Analysis) -> Steps:
    """Return the median step of each batch size; none where no step was timed, or where other
    programs kept the CPU busy. Under ncu, kernels run one by one and are the step."""
    spreads = {point.batch: point.step for point in analysis.points}
    steps = {}
    for prepared in analysis.study.prepared_runs:
        batch, capture_ns = prepared.run.point, prepared.usage.window.length_ns
        spread = spreads.get(batch) or (prepared.step_time or (None,))[0]
        if batch in steps or explain_cpu_contention([prepared.run]) is not None:
            continue
        if spread is not None and spread.median:
            steps[batch] = StepTime(spread.median, spread.median_absolute_deviation_ns)
        elif capture_ns:
            steps[batch] = StepTime(capture_ns / (prepared.step_count or 1))
    for prepared in analysis.study.prepared_runs if analysis.study.is_foreign else ():
        if prepared.run.profiler == "ncu":
            kernel_ns = sum_durations_ns(prepared.run.report.kernels)
            steps.setdefault(prepared.run.point, StepTime(kernel_ns))
    return steps


def add_time_impact_and_fix(
    finding: Finding, step_share: float | None, step: StepTime | None
) -> Finding:
    """Return the finding with the share (0..1) of the step that is at stake. It stays without one
    if the share is unknown, or if the steps scatter by more."""
    if step_share is None or step is None or step_share * step.median_ns <= step.noise_ns:
        return finding
    return replace(finding, impact_ns=step_share * step.median_ns, step_ns=step.median_ns)


def sort_findings_by_impact(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings by the share of the step that is at stake, then those that state no such
    time, then warnings."""
    return tuple(
        sorted(
            findings,
            key=lambda finding: (
                finding.warning,
                finding.impact_share is None,
                -(finding.impact_share or 0),
            ),
        )
    )
