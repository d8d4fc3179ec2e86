"""Text on its way into the store: what looks like a secret is masked, and what is longer than any
name is cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from perfctl.redact import keep_facts, mask

LONGEST = 1 << 16
"""Characters of a text that are kept: the longest names of kernels have some 20,000. All that is
kept was searched for secrets."""
LONGEST_JSON = 1 << 22
"""Of a list or an object, which is worth nothing without its end: shapes of thousands
of tensors."""
_BEHIND = 1 << 12
"""Characters behind those that are searched with them, so that no beginning of a secret is kept."""
_CUT: ContextVar[dict[int, int] | None] = ContextVar("cut", default=None)


@contextmanager
def counting_cuts() -> Iterator[dict[int, int]]:
    """Hash -> length of each text that is cut inside the block."""
    lengths: dict[int, int] = {}
    before = _CUT.set(lengths)
    try:
        yield lengths
    finally:
        _CUT.reset(before)


def _is_long(text: str) -> bool:
    return len(text) > LONGEST and (len(text) > LONGEST_JSON or not text.startswith(("[", "{")))


def _shorten(text: str) -> str:
    """The beginning of a long text, without its secrets."""
    if (lengths := _CUT.get()) is not None:
        lengths[hash(text)] = len(text)
    return f"{mask(text[: LONGEST + _BEHIND])[:LONGEST]} ... ({len(text):,} characters)"


def of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row by column; JSON stays JSON."""
    return {name: clean(value) if isinstance(value, str) else value for name, value in row.items()}


def clean(text: str) -> str:
    """Return one text as the store keeps it."""
    return _shorten(text) if _is_long(text) else mask(text)


def of_facts(facts: Mapping[str, str]) -> list[tuple[str, str]]:
    """(key, value) of what is kept of a run's environment."""
    known = {key: str(value) for key, value in facts.items() if value is not None}
    return [(key, clean(value)) for key, value in keep_facts(known).items()]


def of_column(column: Sequence[Any]) -> Sequence[Any]:
    """Some rows of one column; what holds no text is given back as it is, at once."""
    if not isinstance(next((value for value in column if value is not None), None), str):
        return column
    texts = {value for value in set(column) if isinstance(value, str)}
    together = "\n".join(texts)
    if mask(together) == together and not any(map(_is_long, texts)):
        return column
    kept = {text: clean(text) for text in texts}
    return [kept.get(value, value) if isinstance(value, str) else value for value in column]


def of_rows(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows that are few: the names that many rows of a large table share."""
    return list(zip(*map(of_column, zip(*rows, strict=True)), strict=True))
