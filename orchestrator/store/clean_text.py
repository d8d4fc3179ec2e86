"""Text on its way into the store: what looks like a secret is masked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfctl.redact import is_clean, masked, masked_fact, masked_words


def of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row by column; JSON stays JSON."""
    return {name: _text(value) if isinstance(value, str) else value for name, value in row.items()}


def _text(text: str) -> str:
    clean = masked(text)
    if clean == text or not text.startswith(("[", "{")):
        return clean
    try:
        return json.dumps(_inside(json.loads(text)))
    except (ValueError, RecursionError):
        return clean


def _inside(held: Any) -> Any:
    """JSON with its texts masked: a list of texts is an argument list."""
    if isinstance(held, str):
        return masked(held)
    if isinstance(held, dict):
        return {
            masked(key): masked_fact(key, value) if isinstance(value, str) else _inside(value)
            for key, value in held.items()
        }
    if isinstance(held, list):
        return (
            list(masked_words(held))
            if all(isinstance(value, str) for value in held)
            else [_inside(value) for value in held]
        )
    return held


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
