"""Removes what looks like a secret from texts that are stored or shown, and lone surrogates with it.

``perfctl.parsers.secrets`` defines what a secret looks like; "(removed)" replaces it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from perfctl.parsers import secrets

REMOVED = secrets.REMOVED.decode()


def masked(text: str) -> str:
    """One text."""
    raw = text.encode("utf-8", "replace")
    found = secrets.secrets_in(raw)
    return secrets.without(raw, found).decode("utf-8", "replace") if found else _whole(text)


def is_clean(texts: Iterable[str]) -> bool:
    """Return whether ``masked`` changes none of the texts; much faster than masking each one."""
    try:
        raw = "\n".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return not secrets.secrets_in(raw)


def masked_fact(name: str, value: str) -> str:
    """Mask the value of a setting, whose name may show that it is a secret."""
    return REMOVED if _is_secret(name.rpartition(":")[2], value) else masked(value)


def masked_words(words: Sequence[str]) -> tuple[str, ...]:
    """Mask an argument list, including ``--token VALUE`` and ``--token=VALUE``."""
    found: list[str] = []
    before = ""
    for word in words:
        name, equals, value = word.partition("=")
        if before.startswith("-") and not word.startswith("-") and _is_secret(before, word):
            found.append(REMOVED)
        elif equals and word.startswith("-") and _is_secret(name, value):
            found.append(f"{_whole(name)}={REMOVED}")
        else:
            found.append(masked(word))
        before = "" if equals else word
    return tuple(found)


def masked_line(command: str) -> str:
    """Mask a command line, split as a shell splits it; as plain text where that fails."""
    try:
        words = shlex.split(command)
    except ValueError:
        return masked(command)
    hidden = masked_words(words)
    return masked(command) if hidden == tuple(words) else shlex.join(hidden)


def _is_secret(name: str, value: str) -> bool:
    """Judge by the name of an option, which is clearer than a name inside a text."""
    bare = name.lstrip("-").encode("utf-8", "replace")
    if not bare or not value:
        return False
    if "pass" in name.lower() and not secrets.is_secret(bare, value.encode("utf-8", "replace"), quoted=True):
        return bare.lower().endswith((b"password", b"passwd", b"passphrase")) and value != REMOVED
    return secrets.is_secret(bare, value.encode("utf-8", "replace"), quoted=True)


def _whole(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
