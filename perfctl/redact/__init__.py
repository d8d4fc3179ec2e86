"""Finds what looks like a secret in a text: environment variables such as API tokens, and tokens of
known shapes.

Profilers keep more than measurements: nsys stores the whole environment of every process, and a
program's own output stands in ncu's logs. Only names leave this module (``HF_TOKEN``, "a GitHub
token"), never a value.

``settings`` finds secrets by their name, ``shapes`` by their own form; most forms are gitleaks'
(``gitleaks.json``, made by scripts/accept/secret_rules.py). Both take time in proportion to
the text.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from perfctl.redact.settings import is_secret, variables
from perfctl.redact.shapes import BEFORE, REMOVED, Secret, logins, phrases, private_keys, tokens

__all__ = [
    "BEFORE",
    "CHUNK",
    "REMOVED",
    "REMOVED_TEXT",
    "Secret",
    "is_clean",
    "is_secret",
    "masked",
    "masked_fact",
    "masked_line",
    "masked_words",
    "names_of",
    "secrets_in",
    "without",
]

CHUNK = 1 << 20
"""Bytes after which a secret that goes on is named, though its end was not seen."""

REMOVED_TEXT = REMOVED.decode()


def names_of(pieces: Iterable[bytes]) -> list[str]:
    """Names of what looks like a secret in a text that comes in pieces, sorted."""
    found: set[str] = set()
    rest = b""
    for piece in pieces:
        text = rest + piece
        keep = len(text) - BEFORE
        for secret in secrets_in(text):
            if secret.end < len(text) or secret.end - secret.start > CHUNK:
                found.add(secret.name)
            else:  # it may go on in the next piece, and then be none
                keep = min(keep, secret.start - BEFORE)
        rest = text[max(0, keep) :]
    return sorted(found.union(secret.name for secret in secrets_in(rest)))


def secrets_in(text: bytes, more: Iterable[Secret] = ()) -> list[Secret]:
    """Find what looks like a secret, and ``more`` that was found, in order and without overlaps."""
    small = text.lower()
    # a variable's name says more than its value's shape
    found = [
        *variables(text, small),
        *tokens(text),
        *logins(text),
        *phrases(text, small),
        *private_keys(text, small),
        *more,
    ]
    if not found:
        return found
    found.sort(key=lambda secret: (secret.start, -secret.end))
    apart: list[Secret] = []
    for secret in found:
        if not apart or secret.start >= apart[-1].end:
            apart.append(secret)
        elif secret.end > apart[-1].end:
            apart[-1] = apart[-1]._replace(end=secret.end)
    return apart


def without(text: bytes, found: Iterable[Secret]) -> bytes:
    """The text with each of its secrets replaced by "(removed)"."""
    parts, at = [], 0
    for secret in found:
        parts += [text[at : secret.start], REMOVED]
        at = secret.end
    return b"".join([*parts, text[at:]])


def masked(text: str) -> str:
    """The text without its secrets."""
    raw = text.encode("utf-8", "replace")
    found = secrets_in(raw)
    return without(raw, found).decode("utf-8", "replace") if found else _whole(text)


def is_clean(texts: Iterable[str]) -> bool:
    """Return whether ``masked`` changes none of the texts; much faster than masking each one."""
    try:
        return not secrets_in("\n".join(texts).encode())
    except UnicodeEncodeError:
        return False


def masked_fact(name: str, value: str) -> str:
    """Mask the value of a setting, whose name may show that it is a secret."""
    return REMOVED_TEXT if _is_secret(name.rpartition(":")[2], value) else masked(value)


def masked_words(words: Sequence[str]) -> tuple[str, ...]:
    """Mask an argument list, including ``--token VALUE``, ``--token=VALUE`` and what several words
    say together."""
    raw = [word.encode("utf-8", "replace") for word in words]
    found = secrets_in(b" ".join(raw))
    masked_ones: list[str] = []
    before, at = "", 0
    for word, coded in zip(words, raw, strict=True):
        name, equals, value = word.partition("=")
        if before.startswith("-") and not word.startswith("-") and _is_secret(before, word):
            masked_ones.append(REMOVED_TEXT)
        elif equals and word.startswith("-") and _is_secret(name, value):
            masked_ones.append(f"{_whole(name)}={REMOVED_TEXT}")
        else:
            end = at + len(coded)
            inside = [
                Secret(max(one.start, at) - at, min(one.end, end) - at, one.name)
                for one in found
                if one.start < end and one.end > at
            ]
            masked_ones.append(
                without(coded, inside).decode("utf-8", "replace") if inside else masked(word)
            )
        at += len(coded) + 1
        before = "" if equals else word
    return tuple(masked_ones)


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
    spoken = (
        bare.lower().endswith((b"password", b"passwd", b"passphrase")) and value != REMOVED_TEXT
    )
    return is_secret(bare, value.encode("utf-8", "replace"), quoted=True) or spoken


def _whole(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
