"""Names of home folders, hosts and users, and whole process environments: what a report says about
whoever made it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from perfctl.redact.shapes import REMOVED, Secret

HOME, HOST, USER = KINDS = ("the name of a home folder", "the name of a host", "the name of a user")
_HOMES = (b"/home/", b"/homes/", b"/Users/", b"/users/", b"\\Users\\")
_NAME = re.compile(rb"\\?(?P<name>[^/\\\s\"':;,<>|()\[\]]{1,64}+)")
_COMMON = frozenset(
    [
        "localhost",
        "root",
        "user",
        "users",
        "ubuntu",
        "admin",
        "nobody",
        "none",
        "home",
        "linux",
        "work",
        "data",
        "local",
        "(none)",
    ]
)
_FAMILIAR = re.compile(
    rb"(?:\A|[\n\0\"',{;\s])(PATH|HOME|USER|PWD|OLDPWD|SHELL|SHLVL|LANG|LOGNAME|HOSTNAME|TERM|"
    rb"LD_LIBRARY_PATH)[\"']?\s?[=:]"
)
_FEWEST = 3
"""Familiar variables in one text that make it an environment."""


class People:
    """Finds names of home folders in a text, and those of hosts and users that are known."""

    def __init__(self, hosts: Collection[str] = (), users: Collection[str] = ()) -> None:
        """Names of fewer than four characters, and those that everybody has, are left out."""
        telling = re.compile(r"[0-9.-]")
        known = [name for name in hosts if _is_own(name) and telling.search(name)]
        known += [
            part
            for name in known
            if _is_own(part := name.partition(".")[0]) and telling.search(part)
        ]
        self._hosts = _either(rb"(?<![\w.-])(?:", known, rb")(?![\w-])")
        self._users = _either(
            rb"(?<=[/@\\])(?:", [name for name in users if _is_own(name)], rb")(?![\w-])"
        )

    def found_in(self, text: bytes) -> Iterator[Secret]:
        """What is to go."""
        for start in _HOMES:
            place = text.find(start)
            while place >= 0:
                after = place + len(start)
                match = _NAME.match(text, after)
                if match and not REMOVED.startswith(match["name"]):
                    yield Secret(*match.span("name"), HOME)
                place = text.find(start, after)
        for kind, pattern in ((HOST, self._hosts), (USER, self._users)):
            if pattern is not None:
                yield from (Secret(*match.span(), kind) for match in pattern.finditer(text))


def _is_own(name: str) -> bool:
    return len(name) > 3 and name.lower() not in _COMMON and not name.startswith(REMOVED.decode())


def _either(before: bytes, names: Collection[str], after: bytes) -> re.Pattern[bytes] | None:
    longest_first = sorted(
        {name.encode("utf-8", "surrogateescape") for name in names}, key=len, reverse=True
    )
    return re.compile(before + b"|".join(map(re.escape, longest_first)) + after) if names else None


def is_environment(text: bytes) -> bool:
    """Return whether a text is a whole environment: it sets several of the variables that every
    process has."""
    return (
        len(text) > 30
        and b"PATH" in text
        and len({match[1] for match in _FAMILIAR.finditer(text)}) >= _FEWEST
    )
