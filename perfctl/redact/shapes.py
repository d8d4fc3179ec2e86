"""Secrets that are known by their own form: tokens of services, logins in URLs, headers,
private keys.

Tokens are looked for where long words stand. A word is a run of letters, digits, "_" and "-": each
is looked at once, by the two characters that it begins with, so the search takes time in proportion
to the text, whatever stands in it. Patterns are bounded or possessive, and are tried only where a
word begins.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

NAME = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
REMOVED = b"(removed)"
BEFORE = 300
"""Bytes before a secret by which it is known to be one: the name of a variable, the beginning of
a URL."""

_OWN = (
    *(
        (start, rb"[A-Za-z0-9]{20,}", "a GitHub token")
        for start in (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_")
    ),
    (b"github_pat_", rb"[A-Za-z0-9_]{20,}", "a GitHub token"),
    (b"glpat-", rb"[A-Za-z0-9_-]{20,}", "a GitLab token"),
    (b"hf_", rb"[A-Za-z0-9]{20,}", "a Hugging Face token"),
    (b"sk-", rb"[A-Za-z0-9_-]{20,}", "an API key (sk-...)"),
    *(
        (start, rb"[0-9A-Z]{16}(?![0-9A-Za-z])", "an AWS access key")
        for start in (b"AKIA", b"ASIA")
    ),
    (b"xox", rb"[a-z]-[A-Za-z0-9-]{10,}", "a Slack token"),
    (b"eyJ", rb"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?", "a JSON web token"),
    *(
        (start, rb"(?:live|test|prod)_[A-Za-z0-9]{10,}", "a Stripe key")
        for start in (b"sk_", b"rk_", b"pk_")
    ),
    (b"whsec_", rb"[A-Za-z0-9+/=]{20,}", "a Stripe key"),
    (b"nvapi-", rb"[A-Za-z0-9_-]{20,}", "an NVIDIA API key"),
    (b"pypi-", rb"[A-Za-z0-9_-]{40,}", "a PyPI token"),
    (b"npm_", rb"[A-Za-z0-9]{30,}", "an npm token"),
    (b"AIza", rb"[A-Za-z0-9_-]{30,}", "a Google API key"),
    (b"GOCSPX-", rb"[A-Za-z0-9_-]{20,}", "a Google client secret"),
    (b"ya29.", rb"[A-Za-z0-9_-]{20,}", "a Google access token"),
    (b"wandb_v1_", rb"[A-Za-z0-9_]{20,}", "a Weights & Biases key"),
    (b"local-", rb"[0-9a-f]{40}(?![0-9A-Za-z])", "a Weights & Biases key"),
    (b"dckr_", rb"(?:pat|oat)_[A-Za-z0-9_-]{20,}", "a Docker token"),
    (b"hvs.", rb"[A-Za-z0-9_-]{20,}", "a Vault token"),
    (b"SK", rb"[0-9a-f]{32}(?![0-9A-Za-z])", "a Twilio key"),
    (b"gsk_", rb"[A-Za-z0-9]{30,}", "a Groq key"),
    (b"xai-", rb"[A-Za-z0-9]{40,}", "an xAI key"),
    (b"r8_", rb"[A-Za-z0-9]{30,}", "a Replicate token"),
    (b"tgp_v1_", rb"[A-Za-z0-9_-]{30,}", "a Together key"),
    (b"jina_", rb"[A-Za-z0-9]{40,}", "a Jina key"),
    (b"lsv2_", rb"(?:pt|sk)_[a-f0-9]{32}_[a-f0-9]{10}", "a LangSmith key"),
    (b"tskey-", rb"[A-Za-z0-9]+-[A-Za-z0-9-]{16,}", "a Tailscale key"),
    (b"ATBB", rb"[A-Za-z0-9]{28,}", "a Bitbucket password"),
    (b"ATATT3", rb"[A-Za-z0-9_-]{40,}(?:=[A-Za-z0-9_=-]{0,60})?", "an Atlassian token"),
    (b"figd_", rb"[A-Za-z0-9_-]{30,}", "a Figma token"),
)
"""(beginning, the rest as a pattern, what it is): where gitleaks has no rule, or one for the usual
length only"""

_LONG = 11
"""Characters of the shortest word at which a token is looked for: "eyJ" and eight more."""
_MASK = bytes(0x77 if byte in NAME else 0x20 for byte in range(256))
_LONG_WORDS = re.compile(b"w" * _LONG + b"w*+")
_DOTTED = (b"SG.", b"hvb.", b"hvs.", b"dp.pt.", b"dt0c01.", b"v1.", b"sha256~", b"ya29.", b"xoxe.")
"""Beginnings of tokens whose long word comes after a point."""
_TELLING = frozenset(b".~\\%[/: ")
_BEARER = re.compile(rb"[A-Za-z0-9._~+/=-]{16,4096}+")
_ESCAPED = re.compile(rb"(?:\\[nrtbf]|%[0-9A-Fa-f]{2}|\\u[0-9a-fA-F]{4}|\x1b\[[0-9;]{0,8}m)\Z")
_COLOUR = re.compile(rb"[0-9;]{0,8}m")

_DIGIT = re.compile(rb"[0-9]")
_HASH = re.compile(rb"[0-9a-f]{40}")
_WANDB = re.compile(rb"(?i:wandb[^\n]{0,40}(?:login|key|api|password)[^\n]{0,60})\Z")
_LOGIN = re.compile(rb"://[^\s/:@\"'<>]{0,100}+:([^\s/@\"'<>]{1,200}+)\Z")
_USER = re.compile(rb"https?://([^\s/:@\"'<>]{8,200}+)\Z", re.I)

_COOKIE = re.compile(
    rb"(?i:cookie)[\"'\\]{0,3}\s{0,3}[:=]\s{0,3}[\"'\\]{0,3}(?P<value>[\w.-]{1,60}+=[^\r\n"
    rb"\"'\\]{6,4096}+)"
)
_SIGNATURE = re.compile(rb"(?i:(?:sig|signature)=(?P<value>[A-Za-z0-9%/+=_-]{20,600}+))")
_NETRC = re.compile(
    rb"(?:login|user)\s{1,8}[^\s]{1,120}+\s{1,8}password\s{1,8}(?P<value>(?!\(removed\))"
    rb"[^\s\"'\\]{1,400}+)"
)
_PGPASS = re.compile(
    rb":5432:[^:\s]{1,100}+:[^:\s]{1,100}+:(?P<value>(?!\(removed\))[^\s:\"'\\]{4,200}+)"
)
_LOGGED_IN = re.compile(
    rb"(?:-u|--user)[ =]{0,3}['\"]?[^\s:'\"]{1,100}+:(?P<value>(?!\(removed\))[^\s'\"$]{1,200}+)"
)
_ATTACHED = re.compile(rb"-p(?P<value>(?!\(removed\))[^\s'\"$-][^\s'\"]{2,200}+)")
_APART = re.compile(rb"-[pa][ '\"]{1,3}(?P<value>(?!\(removed\))[^\s'\"$-][^\s'\"]{1,200}+)")
_OPTIONS = {
    b"u": ((b"curl", _LOGGED_IN),),
    b"-": ((b"curl", _LOGGED_IN),),
    b"a": ((b"redis-cli", _APART),),
    b"p": ((b"mysql", _ATTACHED), (b"sshpass", _APART), (b"docker login", _APART)),
}
"""What follows " -" -> (the program before it on the line, pattern)"""
_PHRASES = (
    (b"cookie", 0, _COOKIE, "a cookie"),
    (b"sig=", 0, _SIGNATURE, "the signature of a URL"),
    (b"signature=", 0, _SIGNATURE, "the signature of a URL"),
    (b"login", 0, _NETRC, "a password in a .netrc"),
    (b":5432:", 0, _PGPASS, "a password in a .pgpass"),
)
"""(what to look for, in lower case, where the pattern begins, pattern, what it is): to look for a
text is many times faster"""

_BEGIN = re.compile(rb"-{4,5} ?BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5}", re.I)
_BODY = re.compile(rb"(?:[A-Za-z0-9+/=\s\\:,]|-(?!-{3}))*+")
_END = re.compile(rb"-{4,5} ?END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5}")
_PUTTY = re.compile(rb"Private-Lines: \d{1,4}\s{1,4}(?P<value>[A-Za-z0-9+/=\s\\]{20,20000}+)")


class Secret(NamedTuple):
    """Position of a secret in a text, and its name."""

    start: int
    end: int
    name: str


class _Shape(NamedTuple):
    start: bytes
    pattern: bytes
    kind: str
    entropy: float


@cache
def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern)


class _Service(NamedTuple):
    words: list[bytes]
    name: bytes
    value: bytes
    kind: str
    entropy: float


@cache
def _rules() -> tuple[dict[bytes, list[_Shape]], list[_Service]]:
    """Tokens by the two characters that they begin with; values beside names of services."""
    rules = json.loads(Path(__file__).with_name("gitleaks.json").read_text(encoding="utf-8"))
    shapes: dict[bytes, list[_Shape]] = {}
    for start, rest, kind in _OWN:
        shapes.setdefault(start[:2], []).append(_Shape(start, re.escape(start) + rest, kind, 0))
    for begin, pattern, kind, entropy in rules["tokens"]:
        shape = _Shape(begin.encode(), pattern.encode(), kind, entropy)
        shapes.setdefault(shape.start[:2], []).append(shape)
    services = [
        _Service([word.encode() for word in words], name.encode(), value.encode(), kind, entropy)
        for words, name, value, kind, entropy in rules["services"]
    ]
    return shapes, services


@lru_cache(maxsize=4096)
def _services(name: bytes) -> tuple[_Service, ...]:
    """Those whose keys a setting with this name may hold."""
    small = name.lower()
    asked = (service for service in _rules()[1] if any(word in small for word in service.words))
    return tuple(
        one
        for one in asked
        if (found := _compiled(one.name).search(name)) and len(name) - found.end() <= 20
    )


def entropy(value: bytes) -> float:
    """Shannon's, in bits a character."""
    size = len(value)
    return math.log2(size) - sum(map(_product, Counter(value).values())) / size if size else 0.0


@lru_cache(maxsize=1024)
def _product(count: int) -> float:
    return count * math.log2(count)


def tokens(text: bytes) -> Iterator[Secret]:
    """Words of a known form, and long words beside the name of a service that has such keys."""
    shapes, _ = _rules()
    for found in _LONG_WORDS.finditer(text.translate(_MASK)):
        start, end = found.span()
        first = text[start : start + 2]
        secret = _shaped(text, start, end, shapes[first]) if first in shapes else None
        if secret is None and start and text[start - 1] in _TELLING:
            secret = _after(text, start, end, shapes)
        if (
            secret is None
            and 14 < end - start < 160
            and not (word := text[start:end]).isdigit()
            and _DIGIT.search(word)
        ):
            secret = _beside_service(text, start, word)
        if secret:
            yield secret


def _after(text: bytes, start: int, end: int, shapes: dict[bytes, list[_Shape]]) -> Secret | None:
    """What the character before a word makes of it."""
    before = text[start - 1]
    if before == 0x20:
        if (
            end - start < 16
            or text[start - 2] not in b"rR"
            or text[max(0, start - 7) : start - 1].lower() != b"bearer"
        ):
            return None
        match = _BEARER.match(text, start)
        return Secret(*match.span(), "a bearer's token") if match else None
    if before in b".~":
        begun = text[max(0, start - 7) : start]
        longest = max((each for each in _DOTTED if begun.endswith(each)), key=len, default=b"")
        return (
            _shaped(text, start - len(longest), end, shapes.get(longest[:2], []))
            if longest
            else None
        )
    if before in b"/:":
        return _webhook(text, start, end) if end - start >= 20 else None
    return _escaped(text, start, end, shapes)


def _shaped(text: bytes, start: int, end: int, shapes: list[_Shape]) -> Secret | None:
    for shape in shapes:
        if text.startswith(shape.start, start) and (
            match := _compiled(shape.pattern).match(text, start)
        ):
            last = max(match.end(), end) if shape.entropy else match.end()
            if not shape.entropy or entropy(match[0]) >= shape.entropy:
                return Secret(start, last, shape.kind)
    return None


def _escaped(text: bytes, start: int, end: int, shapes: dict[bytes, list[_Shape]]) -> Secret | None:
    r"""A token after what stands for another character: "\n" in JSON, "%3D" in a URL, "ESC[0m" of a
    coloured log."""
    if text[start - 1 : start] == b"[":
        colour = _COLOUR.match(text, start)
        skipped = (
            colour.end() - start
            if colour and text[max(0, start - 2) : start - 1] in (b"\x1b", b"b", b"B", b"3")
            else 0
        )
    else:
        skipped = next(
            (size for size in (1, 2, 5) if _ESCAPED.search(text, max(0, start - 1), start + size)),
            0,
        )
    begin = start + skipped
    return (
        _shaped(text, begin, end, shapes.get(text[begin : begin + 2], []))
        if skipped and begin < end
        else None
    )


def _webhook(text: bytes, start: int, end: int) -> Secret | None:
    """The last part of the address of a webhook; the token of a Telegram bot."""
    before = text[max(0, start - 160) : start]
    if before.endswith(b":"):
        number = before[:-1].rstrip(b"0123456789")
        is_bot = (
            5 <= len(before) - 1 - len(number) <= 16
            and text.startswith(b"A", start)
            and 34 <= end - start <= 36
        )
        return Secret(start, end, "a Telegram bot's token") if is_bot else None
    address = before.lower()
    place = max(
        address.rfind(b"hooks.slack.com/"),
        address.rfind(b"/api/webhooks/"),
        address.rfind(b".webhook.office.com/"),
    )
    if place < 0 or re.search(rb"[\s\"'<>]", before[place:]):
        return None
    return Secret(start, end, "the address of a webhook")


def _beside_service(text: bytes, start: int, word: bytes) -> Secret | None:
    """gitleaks' rules for "datadog_thing = 0123...": a name, up to 20 characters, something
    between, and a value."""
    before = text[max(0, start - 100) : start]
    if len(word) == 40 and _HASH.fullmatch(word) and _WANDB.search(before):
        return Secret(start, start + 40, "a Weights & Biases key")
    left = before.rstrip(b"`'\"\\ \t\r\n=")
    if len(before) - len(left) > 8 or (
        left[-1:] not in (b":", b">", b"|", b",") and b"=" not in before[len(left) :]
    ):
        return None
    left = left.rstrip(b":>|,=").rstrip(b"'\"\\ \t")
    for service in _services(left[len(left.rstrip(NAME + b". \t")) :][-60:]):
        match = _compiled(service.value).match(text, start)
        if match and match.end() >= start + len(word) and entropy(match[0]) >= service.entropy:
            return Secret(start, match.end(), service.kind)
    return None


def logins(text: bytes) -> Iterator[Secret]:
    """Passwords in URLs, and tokens that stand there in place of a name."""
    place = text.find(b"@")
    while place >= 0:
        first = max(0, place - BEFORE)
        at = text.rfind(b"://", first, place)
        if at >= 0:
            match = _LOGIN.match(text, at, place)
            user = (
                None
                if match
                else _USER.match(text, max(0, at - 5), place)
                or _USER.match(text, max(0, at - 4), place)
            )
            if match and not match[1].startswith((REMOVED, b"$", b"%s", b"{")):
                yield Secret(*match.span(1), "a password in a URL")
            elif (
                user
                and (len(user[1]) >= 16 or len(_DIGIT.findall(user[1])) > 1)
                and user[1][:1] not in b"$%{"
            ):
                yield Secret(*user.span(1), "a token in a URL")
        place = text.find(b"@", place + 1)


def phrases(text: bytes, small: bytes) -> Iterator[Secret]:
    """Cookies, signatures, .netrc, and passwords on command lines. ``small``: the text in
    lower case."""
    for word, shift, pattern, kind in _PHRASES:
        place = small.find(word)
        while place >= 0:
            match = pattern.match(text, max(0, place + shift))
            if match and not match["value"].startswith((b"$", b"<", b"{", REMOVED)):
                yield Secret(*match.span("value"), kind)
                place = small.find(word, match.end())
            else:
                place = small.find(word, place + len(word))
    place = text.find(b" -")
    while place >= 0:
        for program, pattern in _OPTIONS.get(text[place + 2 : place + 3], ()):
            at = text.rfind(program, max(0, place - 200), place)
            match = (
                pattern.match(text, place + 1)
                if at >= 0 and text.find(b"\n", at, place) < 0
                else None
            )
            if match:
                yield Secret(*match.span("value"), f"a password for {program.decode()}")
        place = text.find(b" -", place + 2)


def private_keys(text: bytes, small: bytes) -> Iterator[Secret]:
    """Keys as PEM, OpenSSH, PGP and PuTTY write them; without an end, as far as it is base64."""
    place = small.find(b"private")
    while place >= 0:
        after = place + len(b"private")
        if small.startswith(b" key", after):
            match = _BEGIN.search(text, max(0, place - 50), place + 40)
            body = _BODY.match(text, match.end()) if match and match.end() > place else None
            if match and body:
                closing = _END.match(text, body.end())
                after = closing.end() if closing else body.end()
                yield Secret(match.start(), after, "a private key")
        elif match := _PUTTY.match(text, place):
            after = match.end()
            yield Secret(*match.span("value"), "a private key")
        place = small.find(b"private", after)


def is_login(value: bytes) -> bool:
    """Return whether it is a name and a password in base64, as Docker and HTTP write them."""
    try:
        return b":" in base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False
