"""Finds what looks like a secret in a text: environment variables such as API tokens, and tokens of known shapes.

Profilers keep more than measurements: nsys stores the whole environment of every process, and a program's own
output stands in ncu's logs. Only names leave this module (``HF_TOKEN``, "a GitHub token"), never a value.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

REMOVED = b"(removed)"
CHUNK = 1 << 20
"""Bytes after which a secret that goes on is named, though its end was not seen."""

_WORDS = (
    *(b"token", b"secret", b"password", b"passwd", b"passphrase", b"credential", b"api_key", b"apikey", b"api-key"),
    *(b"access_key", b"accesskey", b"access-key", b"private_key", b"privatekey", b"private-key"),
)
"""The lower-case name of a variable that counts as a secret contains one of these."""
_STEMS = (b"token", b"secret", b"pass", b"credential", b"key")
"""One of these is in each of _WORDS, at its beginning or, "key", at its end; to look for few is faster."""
_LONGEST_WORD = max(map(len, _WORDS))
_NAME = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
_VARIABLE = re.compile(
    rb"(?P<name>[A-Za-z0-9_][A-Za-z0-9_-]{2,280})"
    rb"(?:=|\\?[\"']\s{0,4}[:=]\s{0,4}|:\s{1,4})"
    # Quoted, with what JSON and shells write before a quote; else up to a blank, a quote or an escaped line end.
    rb"(?P<open>\\?[\"'])?(?P<value>(?(open)(?:[^\"'\\\n]|\\[^\"'])+|(?:[^\s\"'\\]|\\(?![nrt\"'u]))+))"
)
_SHAPES = (
    *((start, rb"[A-Za-z0-9]{20,}", "a GitHub token") for start in (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_")),
    (b"github_pat_", rb"[A-Za-z0-9_]{20,}", "a GitHub token"),
    (b"glpat-", rb"[A-Za-z0-9_-]{20,}", "a GitLab token"),
    (b"hf_", rb"[A-Za-z0-9]{20,}", "a Hugging Face token"),
    (b"sk-", rb"[A-Za-z0-9_-]{20,}", "an API key (sk-...)"),
    (b"AKIA", rb"[0-9A-Z]{16}(?![0-9A-Za-z])", "an AWS access key"),
    (b"ASIA", rb"[0-9A-Z]{16}(?![0-9A-Za-z])", "an AWS access key"),
    (b"xox", rb"[a-z]-[A-Za-z0-9-]{10,}", "a Slack token"),
    (b"eyJ", rb"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?", "a JSON web token"),
    (
        b"-----BEGIN ",
        rb"[A-Z ]{0,40}PRIVATE KEY-----[A-Za-z0-9+/=\s\\:,-]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z|(?=[^A-Za-z0-9+/=\s\\:,-]))",
        "a private key",
    ),
)
"""(beginning, the rest as a pattern, what it is)"""
_PATTERNS = [(start, re.compile(re.escape(start) + rest), kind) for start, rest, kind in _SHAPES]
_LOGIN = re.compile(rb"://[^\s/:@\"'<>]{0,100}:([^\s/@\"'<>]{1,200})\Z")
_HARMLESS = re.compile(
    rb"(?:true|false|none|null|yes|no|on|off|t|f|y|n|enabled?|disabled?|default|always|never|auto|void|\$.*|\*+"
    # Special tokens of a tokenizer: <pad>, </s>, <|endoftext|>, [MASK].
    rb"|</?[a-z_]{1,24}>|<\|[a-z0-9_ ]{1,40}\|>|\[[A-Z_]{1,12}\]"
    rb"|0x[0-9a-f]{1,16}|\d{0,7}(?:\.\d{0,7})?)[,;)\]}]*\Z",
    re.I,
)
_COUNTS = (b"_tokens", b"tokens_per_step", b"token_limit", b"token_budget")
"""Ends of names of numbers of tokens, in lower case."""
_DESKTOP = (b"window_token", b"windowtoken", b"activation_token", b"activationtoken")
"""Ends of names of what a desktop raises a window by: no credential."""
_FEW = re.compile(rb"\d{1,7}(?:\.\d{1,7})?(?:e\d{1,2}|[kmgb])?(?:[ _,:x*/-]{1,2}\d{1,7}[kmgb]?){0,7}\Z", re.I)
"""A number or a few, as settings are written: 128k, 4096x8, 1e6, 16_384, 512:1024."""
BEFORE = 300
"""Bytes before a secret by which it is known to be one: the name of a variable, the beginning of a URL."""


class Secret(NamedTuple):
    """Position of a secret in a text, and its name."""

    start: int
    end: int
    name: str


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


def secrets_in(text: bytes) -> list[Secret]:
    """Find what looks like a secret, in order and without overlaps."""
    found = [*_variables(text), *_tokens(text), *_logins(text)]  # a variable's name says more than its value's shape
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


def _places(text: bytes, needle: bytes) -> Iterator[int]:
    """Found by ``bytes.find``, which is many times faster than a pattern with all the words in it."""
    place = text.find(needle)
    while place >= 0:
        yield place
        place = text.find(needle, place + len(needle))


def _variables(text: bytes) -> Iterator[Secret]:
    small = text.lower()
    for stem in _STEMS:
        for place in _places(small, stem):
            around = small[max(0, place - _LONGEST_WORD) : place + _LONGEST_WORD]
            if not any(word in around for word in _WORDS):
                continue
            before = text[max(0, place - BEFORE) : place]
            start = place - len(before) + len(before.rstrip(_NAME))
            while text[start : start + 1] == b"-":
                start += 1
            match = _VARIABLE.match(text, start)
            if match and is_secret(match["name"], match["value"], quoted=match["open"] is not None):
                yield Secret(*match.span("value"), match["name"].decode("ascii"))


def is_secret(name: bytes, value: bytes, *, quoted: bool) -> bool:
    """Return whether a variable is a secret; settings such as ``MAX_TOKENS=512`` or ``token: int64`` are not."""
    if value.startswith(REMOVED) or REMOVED.startswith(value) or _HARMLESS.match(value):
        return False
    small = name.lower()
    if small.endswith(_DESKTOP) or (small.endswith(_COUNTS) and _FEW.match(value.rstrip(b",;)]}"))):
        return False
    if name.isupper():
        return any(word in small.replace(b"tokeniz", b"") for word in _WORDS)
    if not small.removesuffix(b"s").endswith(_WORDS) or small.endswith(b"tokens"):
        return False
    spoken = b"pass" in small
    return len(value) >= 8 and (quoted or spoken or sum(48 <= byte < 58 for byte in value) > 2) and b"(" not in value


def _tokens(text: bytes) -> Iterator[Secret]:
    for start, pattern, kind in _PATTERNS:
        for place in _places(text, start):
            before = text[place - 1 : place] if place else b""
            if (not before or before not in _NAME) and (match := pattern.match(text, place)):
                yield Secret(*match.span(), kind)


def _logins(text: bytes) -> Iterator[Secret]:
    for place in _places(text, b"@"):
        first = max(0, place - BEFORE)
        at = text.rfind(b"://", first, place)
        match = _LOGIN.match(text, at, place) if at >= 0 else None
        if match and match[1] != REMOVED:
            yield Secret(*match.span(1), "a password in a URL")


REMOVED_TEXT = REMOVED.decode()


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
    """Mask an argument list, including ``--token VALUE`` and ``--token=VALUE``."""
    found: list[str] = []
    before = ""
    for word in words:
        name, equals, value = word.partition("=")
        if before.startswith("-") and not word.startswith("-") and _is_secret(before, word):
            found.append(REMOVED_TEXT)
        elif equals and word.startswith("-") and _is_secret(name, value):
            found.append(f"{_whole(name)}={REMOVED_TEXT}")
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
    spoken = bare.lower().endswith((b"password", b"passwd", b"passphrase")) and value != REMOVED_TEXT
    return is_secret(bare, value.encode("utf-8", "replace"), quoted=True) or spoken


def _whole(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
