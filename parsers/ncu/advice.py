"""Results of ncu's rules, which the console text, the CSV and report files give in three forms."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

from perfctl.records.report import Advice

TEXT_MAX = 4000
"""Characters of a text that are kept."""

_SPEEDUP = re.compile(
    r"(?P<word>Est\.|Estimated) (?P<local>Local )?Speedup: (?P<percent>[0-9.,]+)%\s*"
)
_LINKS = (
    (re.compile(r"@url:([^:@]*):([^@]*)@"), r"\1 (\2)"),
    (re.compile(r"@(?:section|sass):[^:@]*:([^@]*)@"), r"\1"),
    (re.compile(r"@source:[^@]*?:[0-9]+:([^@]*)@"), r"\1"),
)
"""Links that a rule puts into its text, and how ncu prints them (docstring of
IRuleResult.rule_message in ncu_report). ncu 2022.3 itself leaves some of them as they are."""


class Rules:
    """Results of rules, in the order of the report."""

    def __init__(self) -> None:
        self._advice: list[Advice] = []

    def add(
        self,
        launch: int,
        rule: str,
        kind: str | None,
        text: str,
        speedup: float | None = None,
        scope: str | None = None,
    ) -> None:
        """Take in one result; ``speedup`` in percent, ``scope`` global or local. One that says
        nothing is left out."""
        if not text and speedup is None:
            return
        text = sys.intern(plain(text)[:TEXT_MAX])
        share = round(speedup / 100, 12) if speedup is not None and 0 <= speedup <= 100 else None
        self._advice.append(Advice(launch, rule, kind or None, text or None, share, scope or None))

    def add_printed(self, launch: int, rule: str, kind: str, text: str) -> None:
        """Take in one result of the console text, in which the speed-up stands before the words."""
        speedup = scope = None
        if match := _SPEEDUP.match(text):
            # "Estimated Speedup" (2022.4) is of either scope.
            scope = "local" if match["local"] else "global" if match["word"] == "Est." else None
            speedup, text = percent(match["percent"]), text[match.end() :]
        self.add(launch, rule, kind, text, speedup, scope)

    def ordered(self, ranks: Mapping[int, int]) -> tuple[Advice, ...]:
        """Return them by launch; ``ranks`` gives the final number of each launch."""
        ranked = (result._replace(launch=ranks[result.launch or 0]) for result in self._advice)
        return tuple(sorted(ranked, key=lambda result: result.launch or 0))


def plain(text: str) -> str:
    """Return a rule's text in one line, its links as ncu prints them."""
    text = " ".join(text.split())
    if "@" in text:
        for link, shown in _LINKS:
            text = link.sub(shown, text)
    return text


def percent(printed: str) -> float | None:
    """Return 47.2 for "47.2" or "47,2"; None for anything else. Up to 100 no digits are grouped, so
    a comma is a decimal one."""
    try:
        return float(printed.replace(",", "."))
    except ValueError:
        return None
