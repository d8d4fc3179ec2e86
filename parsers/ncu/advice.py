"""Texts of ncu's rules, which the console text, the CSV and report files give in three forms."""

from __future__ import annotations

import re
from functools import lru_cache

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


@lru_cache(maxsize=4096)
def format_rule_text(text: str) -> str:
    """Return a rule's text in one line, its links as ncu prints them."""
    text = " ".join(text.split())
    for link, replacement in _LINKS if "@" in text else ():
        text = link.sub(replacement, text)
    return text[:TEXT_MAX]


def split_off_speedup_and_scope(text: str) -> tuple[str, float | None, str | None]:
    """Return the words of a printed result, and the speedup in percent that stands before them,
    with its scope. "Estimated Speedup" (2022.4) is of either scope."""
    match = _SPEEDUP.match(text)
    if match is None:
        return text, None, None
    scope = "local" if match["local"] else "global" if match["word"] == "Est." else None
    return text[match.end() :], parse_percent(match["percent"]), scope


def parse_percent(printed: str) -> float | None:
    """Return 47.2 for "47.2" or "47,2"; None for anything else. Up to 100 no digits are grouped, so
    a comma is a decimal one."""
    try:
        return float(printed.replace(",", "."))
    except ValueError:
        return None
