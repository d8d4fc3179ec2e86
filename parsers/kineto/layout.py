"""Reads the text of events that are laid out as Kineto writes them: ten times as fast as by way of JSON objects.

Kineto writes the members of an event in a fixed order, and what operations and launches say of themselves repeats from
step to step. Such an event is matched as a whole; its arguments are decoded as JSON the first time that their text is
seen, without the numbers that are an event's own. Whatever is laid out otherwise does not match.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

_S = r"[ \t\r\n]*"
_TEXT = r'"([^"\\]*)"'
_ID = r"([0-9]{1,18})"
_TIME = r"([0-9]{1,15}(?:\.[0-9]{1,9})?)"


def _members(**values: str) -> str:
    return rf",{_S}".join(f'"{name}":{_S}{value}' for name, value in values.items())


EVENT = re.compile(
    rf"[ \t\r\n,]*\{{{_S}"
    + _members(ph='"X"', cat=_TEXT, name=_TEXT, pid=_ID, tid=_ID, ts=_TIME, dur=_TIME)
    + rf',{_S}"args":{_S}\{{{_S}(?:"External id":{_S}{_ID}{_S}(?:,{_S}|(?=\}})))?'
).match
"""An event up to its arguments: category, name, process, thread, start, duration, External id."""
_ARROW_NAME = _members(cat='"(?:ac2g|fwdbwd)"', name='"(?:ac2g|fwdbwd)"')
END = re.compile(
    rf"\}}{_S}\}}(?:{_S},{_S}\{{{_S}" + _members(ph='"[sf]"', id="[0-9]{1,18}")
    + rf",{_S}(?:{_ARROW_NAME},{_S})?"
    + _members(pid="[0-9]{1,18}", tid="[0-9]{1,18}", ts="[0-9]{1,15}(?:[.][0-9]{1,9})?")
    + rf'(?:,{_S}{_ARROW_NAME})?(?:,{_S}"bp":{_S}"e")?{_S}()\}})?'
).match  # fmt: skip
"""The ends of its arguments and of an event; with a group where an arrow between CPU and GPU follows it, which is not used."""

_NUMBER = re.compile(r"[0-9]{1,18}(?=[ \t\r\n,]|\Z)").match
_LAST = '"Ev Idx": '
"""Mostly the last argument; each event's own, and not used."""
_DIGITS = re.compile("(?<=: )[0-9]+")
_MOST = 20_000
"""Texts that are kept."""

T = TypeVar("T")


class Arguments(Generic[T]):
    """What the arguments of events say, each different text read once by ``read``.

    ``own``: the argument that is each event's own, "correlation". ``used``: whether ``read`` looks at any other number.
    """

    def __init__(self, read: Callable[[dict[str, Any]], T], own: str, *, used: bool = True) -> None:
        self._read, self._own, self._mark, self._used = read, own, f'"{own}": ', used
        self._decode = json.JSONDecoder(parse_float=str, strict=False).decode
        self._known: dict[str, T] = {}
        self.indices, self.last_index = 0, -1
        """How many events had a number among all events of the profiler ("Ev Idx"), and the largest."""

    def __call__(self, text: str) -> tuple[int | None, T] | None:
        """The number that is the event's own, and what it shares; None where the text is not plain enough to know."""
        number, index = None, -1
        if self._used:
            at = text.find(self._mark)
            if at >= 0:
                at += len(self._mark)
                if (digits := _NUMBER(text, at)) is None:
                    return None
                end = digits.end()
                number = int(text[at:end])
                text = text[:at] + "0" + text[end:]
            at = text.rfind(_LAST)
            if at >= 0:
                at += len(_LAST)
                if (digits := _NUMBER(text, at)) is not None:
                    text = text[:at] + "0" + text[digits.end() :]
                    index = int(digits[0])
        else:
            text = _DIGITS.sub("0", text)
        try:
            found = number, self._known[text]
        except KeyError:
            if (learned := self._learn(text, number)) is None:
                return None
            found = learned
        if index >= 0:
            self.indices += 1
            if index > self.last_index:
                self.last_index = index
        return found

    def _learn(self, text: str, number: int | None) -> tuple[int | None, T] | None:
        try:
            args = self._decode(f"{{{text}}}")
        except (ValueError, RecursionError):
            return None
        if self._used and not self._is_alone(text, number):
            return None
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[text] = shared = self._read(args)
        return number, shared

    def _is_alone(self, text: str, number: int | None) -> bool:
        """Whether no argument that is read apart is there twice, or spelled in another way."""
        return text.count(f'"{self._own}"') == (number is not None) and '"external id"' not in text.lower()
