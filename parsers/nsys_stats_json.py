"""Reads ``nsys stats --format json``: one array of objects per report, with the CSV headers as keys.

The arrays are read object by object as the lines come, so that a trace is never whole in memory. Numbers stay as
printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_LONGEST = 1 << 20
"""Characters that one object may have; nsys's longest are below ten thousand."""
_DECODER = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str)


def begins(line: str) -> bool:
    """Return whether an array of objects may begin with this line."""
    text = line.strip().lstrip("\ufeff")
    return text.startswith("[") and text[1:].lstrip()[:1] in ("", "{")


class JsonRows:
    """Takes the lines of one array until it ends."""

    def __init__(self) -> None:
        self.done = False
        self.broken = 0
        """1 when the text is not an array of objects, or ended inside one."""
        self._text = ""
        self._opened = False

    def take(self, line: str) -> Iterator[dict[str, str]]:
        """Take in one line; gives the objects that it completes."""
        self._text += line
        if line.rstrip()[-1:] not in ("}", ",", "]", "[") and len(self._text) < _LONGEST:
            return
        while not self.done:
            self._text = self._text.lstrip(" \t\r\n,\ufeff")
            if not self._opened and self._text.startswith("["):
                self._opened, self._text = True, self._text[1:]
            elif self._text.startswith("]"):
                self.done = True
            elif self._text.startswith("{"):
                found = self._object()
                if found is None:
                    return
                yield found
            elif self._text:
                self.done, self.broken = True, 1
            else:
                return

    def end(self) -> None:
        """The text ended."""
        self.broken = max(self.broken, int(not self.done))

    def _object(self) -> dict[str, str] | None:
        """The object that the text begins with, taken off it; None while it is not whole."""
        try:
            found, end = _DECODER.raw_decode(self._text)
        except (ValueError, RecursionError):
            if len(self._text) >= _LONGEST:
                self.done, self.broken = True, 1
            return None
        self._text = self._text[end:]
        return {key: _text(value) for key, value in found.items()}


def _text(value: Any) -> str:
    """A value as the CSV prints it."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
