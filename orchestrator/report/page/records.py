"""Findings: what every view states first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate

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
    def share(self) -> float | None:
        """Share (0..1) of the median step that is at stake."""
        return self.impact_ns / self.step_ns if self.impact_ns and self.step_ns else None

    @property
    def first(self) -> str:
        """A short text, otherwise its first sentence: at most LONGEST characters; a longer one ends
        after a clause."""
        return split_first_sentence(self.text)[0]

    @property
    def details(self) -> str:
        """The text after the first sentence; "" if there is none."""
        return split_first_sentence(self.text)[1]


def shorten_findings(findings: Iterable[Finding], complete: int) -> tuple[Finding, ...]:
    """Return findings, long ones after the first ``complete`` ones with their first sentence only.
    Warnings stay complete."""
    return tuple(
        finding
        if finding.warning or number < complete or len(finding.text) <= SHORT_FINDING
        else replace(finding, text=finding.first)
        for number, finding in enumerate(findings)
    )


def split_long_note(text: str) -> tuple[str, str]:
    """Return the sentences of a note that fit into two lines, and the others, which are folded."""
    sentences = accumulate(_ENDS.split(text), "{} {}".format)
    fitting = [start for start in sentences if len(start) <= LONGEST_NOTE]
    if not fitting:
        return split_first_sentence(text, LONGEST_NOTE)
    return fitting[-1], text[len(fitting[-1]) :].lstrip()


def split_first_sentence(text: str, longest: int = LONGEST) -> tuple[str, str]:
    """Return the first sentence and what follows it; a text that is short enough is not divided."""
    if len(text) <= longest:
        return text, ""
    sentence = _ENDS.split(text, maxsplit=1)[0]
    following = text[len(sentence) :].lstrip()
    if len(sentence) <= longest:
        return sentence, following
    for mark in _CLAUSES:
        end = sentence.rfind(mark, 0, longest)
        # inside of brackets, also of a kernel's name
        while end > 0 and any(
            sentence.count(opening, 0, end) != sentence.count(right, 0, end)
            for opening, right in ("()", "<>")
        ):
            end = sentence.rfind(mark, 0, end)
        if end >= longest // 4:
            after = sentence[end:].lstrip(";:, ")
            if after.partition(" ")[0].isalpha():
                after = after[:1].upper() + after[1:]
            return f"{sentence[:end]}.", f"{after} {following}".strip()
    end = sentence.rfind(" ", longest // 4, longest - 1)
    end = end if end > 0 else longest - 2
    return f"{sentence[:end]} …", f"… {sentence[end:].lstrip()} {following}".strip()
