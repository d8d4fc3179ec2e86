"""Text from reports on its way to a program that may obey it: every character is one that a
reader sees."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from perfctl.orchestrator.report.files.tables import json_value

LONGEST = 2_000
"""Characters of one text; names of templates may be longer."""
_UNSEEN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Unicode categories: control, format (marks that turn a line around, tags, joiners), unassigned,
private, half of a pair, and ends of lines."""
_SELECTORS = (
    *range(0xFE00, 0xFE10),
    *range(0xE0100, 0xE01F0),
    0x034F,
    0x115F,
    0x1160,
    0x17B4,
    0x17B5,
    0x3164,
    0xFFA0,
)
"""Letters and marks that are drawn as nothing."""

_FOR_AGENTS = (
    ("docs/schema.md says more", "tool tables says more"),
    ("docs/schema.md names", "Tool tables names"),
    ("'perfctl ledger' without options shows all", "Tool ledger without layer and batch shows all"),
    ("See which there are with 'perfctl runs'", "list_runs names those there are"),
    ("--anyway judges all the same", "anyway=true judges all the same"),
    ("sqlite-utils or sqlite3 can change the store", "nothing changes the store from here"),
)


def neutral(value: Any) -> Any:
    """Any JSON value with its texts, names of keys included, made harmless: see
    :func:`neutral_text`."""
    value = json_value(value)
    if isinstance(value, str):
        return neutral_text(value)
    if isinstance(value, Mapping):
        return {neutral_text(str(key)): neutral(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [neutral(inner) for inner in value]
    return (
        value
        if value is None or isinstance(value, (bool, int, float))
        else neutral_text(str(value))
    )


def neutral_text(text: str) -> str:
    """What cannot be seen is written as Python writes it: ``\\x1b``, ``\\u202e``; at most LONGEST
    characters of a text."""
    kept = text[:LONGEST]
    if not (kept.isascii() and kept.isprintable()):
        kept = "".join(map(_seen, kept))
    return kept if len(text) <= LONGEST else f"{kept}… ({len(text) - LONGEST:,} more characters)"


def _seen(letter: str) -> str:
    code = ord(letter)
    if unicodedata.category(letter) not in _UNSEEN and code not in _SELECTORS:
        return letter
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )


def for_agents(text: str) -> str:
    """A message for the command line, in the words of the tools: an agent has no shell."""
    for said, better in _FOR_AGENTS:
        text = text.replace(said, better)
    return text
