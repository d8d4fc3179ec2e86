"""Texts as they may be kept and shown: without what looks like a secret, and without halves of surrogate pairs.

What counts as a secret is said in ``perfctl.parsers.secrets``; "(removed)" stands in its place.
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
    """Does ``masked`` leave all of them as they are? Asked of many at once, in a fraction of the time."""
    try:
        raw = "\n".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return not secrets.secrets_in(raw)


def masked_fact(name: str, value: str) -> str:
    """The value of a setting, of which the name may say that it is a secret."""
    return REMOVED if _is_secret(name.rpartition(":")[2], value) else masked(value)


def masked_words(words: Sequence[str]) -> tuple[str, ...]:
    """An argument list: ``--token VALUE`` and ``--token=VALUE``, too."""
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
    """A command line as a shell reads it; as a text where it reads as none."""
    try:
        words = shlex.split(command)
    except ValueError:
        return masked(command)
    hidden = masked_words(words)
    return masked(command) if hidden == tuple(words) else shlex.join(hidden)


def _is_secret(name: str, value: str) -> bool:
    """By the name of an option, which says more than one in the midst of a text."""
    bare = name.lstrip("-").encode("utf-8", "replace")
    if not bare or not value:
        return False
    if "pass" in name.lower() and not secrets.is_secret(bare, value.encode("utf-8", "replace"), quoted=True):
        return bare.lower().endswith((b"password", b"passwd", b"passphrase")) and value != REMOVED
    return secrets.is_secret(bare, value.encode("utf-8", "replace"), quoted=True)


def _whole(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
