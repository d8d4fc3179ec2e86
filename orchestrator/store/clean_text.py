"""Text on its way into the store: what looks like a secret is masked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfctl.redact import is_clean, masked, masked_fact


def of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row by column."""
    return {name: masked(value) if isinstance(value, str) else value for name, value in row.items()}


def of_facts(facts: Mapping[str, str]) -> list[tuple[str, str]]:
    """(key, value) of what is known of a run's software."""
    return [(masked(key), masked_fact(key, str(value))) for key, value in facts.items() if value is not None]


def of_column(column: Sequence[Any]) -> Sequence[Any]:
    """Some rows of one column; what holds no text is given back as it is, at once."""
    if not isinstance(next((value for value in column if value is not None), None), str):
        return column
    texts = {value for value in set(column) if isinstance(value, str)}
    if is_clean(texts):
        return column
    clean = {text: masked(text) for text in texts}
    return [clean.get(value, value) if isinstance(value, str) else value for value in column]


def of_rows(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows that are few: the names that many rows of a large table share."""
    return list(zip(*map(of_column, zip(*rows, strict=True)), strict=True))
