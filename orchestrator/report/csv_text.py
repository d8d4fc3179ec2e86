"""CSV as perfctl writes it: RFC 4180 quoting, UTF-8, a line feed at the end of each line.

NULL is an empty cell, an empty text is ``""``. Text that a spreadsheet would run as a formula (it begins with
``= + - @``, a tab or a carriage return, and is no number) gets an apostrophe before it, unless ``raw``. Numbers are
written as Python writes them, exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The last four are the full-width forms, which spreadsheets take for the same."""
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_QUOTED = re.compile(r'[",\r\n]|^\s|\s$')


def lines(names: Sequence[str], rows: Iterable[Sequence[Any]], *, raw: bool = False) -> Iterator[str]:
    """The head, then one text a row, each with its line feed."""
    yield ",".join(cell(name, raw=raw) for name in names) + "\n"
    for row in rows:
        yield ",".join([_quick(value, raw) for value in row]) + "\n"


def _quick(value: Any, raw: bool) -> str:
    """``cell``, with the kinds that millions of cells are first, and the same few names over and over kept."""
    if value is None:
        return ""
    kind = type(value)
    if kind is int:
        return str(value)
    return _kept(value, raw) if kind is str and len(value) < 1000 else cell(value, raw=raw)


@lru_cache(maxsize=4096)
def _kept(text: str, raw: bool) -> str:
    return cell(text, raw=raw)


def cell(value: Any, *, raw: bool = False) -> str:
    """One cell. Lists and dictionaries are JSON text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    text = as_text(value)
    if not raw:
        text = guarded(text)
    return '"' + text.replace('"', '""') + '"' if not text or _QUOTED.search(text) else text


def guarded(text: str) -> str:
    """``text`` so that no spreadsheet runs it."""
    return "'" + text if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text


def as_text(value: Any) -> str:
    """What is no text as text: bytes as hexadecimal digits, lists and dictionaries as JSON."""
    import json

    if isinstance(value, str):
        return value
    return value.hex() if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False, default=str)
