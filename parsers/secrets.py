"""What in a report looks like a secret: environment variables such as API tokens, and tokens of a well-known shape.

Profilers keep more than measurements: nsys stores the whole environment of every process, and a program's own
output stands in ncu's logs. Only names leave this module (``HF_TOKEN``, "a GitHub token"), never a value.
"""

from __future__ import annotations

import gzip
import re
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, NamedTuple, cast

from perfctl.parsers.nsys_tables import MAGIC, STRINGS, connect

REMOVED = b"(removed)"
LOOKED_AT = 8 << 20
"""Bytes at the beginning of a text that ``names_in`` looks at whole: there profilers and programs print their messages."""
CHUNK = 1 << 20
SAMPLE = 1 << 18
"""Of what follows, so much of every EVERY bytes, and the last CHUNK: looking through all of it would take more than half
as long as parsing does (13 ms a megabyte beside 20), and so takes less than a tenth. ``scrub`` looks through all."""
EVERY = 4 << 20
WORDY_TABLES = {
    STRINGS: "value",
    "TARGET_INFO_SYSTEM_ENV": "name || '=' || value",
    "META_DATA_CAPTURE": "name || '=' || value",
    "DIAGNOSTIC_EVENT": "text",
}
"""Table of an nsys export in which environments and messages stand -> what is read of a row."""

_WORDS = (
    *(b"token", b"secret", b"password", b"passwd", b"passphrase", b"credential", b"api_key", b"apikey", b"api-key"),
    *(b"access_key", b"accesskey", b"access-key", b"private_key", b"privatekey", b"private-key"),
)
"""One of these, in small letters, is in the name of every variable that is taken for a secret."""
_STEMS = (b"token", b"secret", b"pass", b"credential", b"key")
"""One of these is in each of _WORDS, at its beginning or, "key", at its end; to look for few is faster."""
_LONGEST_WORD = 11
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
    rb"(?:\d{0,7}(?:\.\d{0,7})?|true|false|none|null|yes|no|on|off|void|auto|\$.*|\*+)[,;)\]}]*\Z", re.I
)
BEFORE = 300
"""Bytes before a secret by which it is known to be one: the name of a variable, the beginning of a URL."""
_GAP = re.compile(rb"[\s\",;]")


class Secret(NamedTuple):
    """Where one stands in a text, and what to call it."""

    start: int
    end: int
    name: str


def names_in(path: Path, limit: int = LOOKED_AT) -> list[str]:
    """Names of what looks like a secret in a report, sorted; [] also for what cannot be read at all.

    Of an nsys export all its strings, environments and messages; of anything else, gzipped or not, the first
    ``limit`` bytes, and samples of the rest (SAMPLE).
    """
    if path.is_dir():
        return []
    try:
        return names_of(texts_of(path, limit))
    except (OSError, EOFError, zlib.error, sqlite3.Error, UnicodeError):
        return []


def texts_of(path: Path, limit: int = LOOKED_AT) -> Iterator[bytes]:
    """What ``names_in`` looks at, piece by piece. Raises what reading a damaged file raises."""
    with path.open("rb") as file:
        head = file.read(len(MAGIC))
    yield from _database_texts(path) if head == MAGIC else _chunks(path, head, limit)


def is_database(path: Path) -> bool:
    """Of an SQLite database ``names_in`` looks at a few tables. Raises OSError where it cannot be read."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


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
    """What looks like a secret, in order and apart from each other."""
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
    """Settings that only sound like one (``MAX_TOKENS=512``, ``token: int64``) are none."""
    if value.startswith(REMOVED) or REMOVED.startswith(value) or _HARMLESS.match(value):
        return False
    if name.isupper():
        return any(word in name.lower().replace(b"tokeniz", b"") for word in _WORDS)
    if not name.lower().removesuffix(b"s").endswith(_WORDS) or name.lower().endswith(b"tokens"):
        return False
    spoken = b"pass" in name.lower()
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


def _chunks(path: Path, head: bytes, limit: int) -> Iterator[bytes]:
    """The first ``limit`` bytes, unzipped, and samples of the rest; UTF-16 as what it would be in ASCII."""
    wide = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    is_zipped = head.startswith(b"\x1f\x8b")
    with gzip.open(path) if is_zipped else path.open("rb") as opened:
        file = cast("IO[bytes]", opened)
        while limit > 0 and (chunk := file.read(min(limit, CHUNK))):
            limit -= len(chunk)
            yield chunk.replace(b"\0", b"") if wide else chunk
        if limit <= 0:
            for chunk in _zipped_samples(file) if is_zipped else _samples(file, path.stat().st_size):
                yield _whole_words(chunk.replace(b"\0", b"") if wide else chunk)


def _samples(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Parts of what follows, evenly apart, and the end."""
    end = max(file.tell(), (size - CHUNK) & ~1)
    for place in range(file.tell(), end, EVERY):
        file.seek(place)
        yield file.read(min(SAMPLE, end - place))
    file.seek(end)
    yield file.read(CHUNK)


def _zipped_samples(file: IO[bytes]) -> Iterator[bytes]:
    """The same of a stream that cannot be sought in: all is unzipped, and little looked at."""
    before = last = b""
    number = 0
    while chunk := file.read(CHUNK):
        if number % (EVERY // CHUNK) == 0:
            yield chunk[:SAMPLE]
        before, last, number = last, chunk, number + 1
    yield (before + last)[-CHUNK:]


def _whole_words(sample: bytes) -> bytes:
    """Without what it begins with in the middle of a word, and apart from the sample before."""
    start = _GAP.search(sample)
    return b"\n" + sample[start.end() :] + b"\n" if start else b"\n"


def _database_texts(path: Path) -> Iterator[bytes]:
    """The strings of an nsys export; nothing of another database."""
    with closing(connect(path)) as connection:
        connection.text_factory = bytes
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table, text in WORDY_TABLES.items():
            if table.encode() in tables:
                rows = connection.execute(f"SELECT CAST({text} AS BLOB) FROM {table} WHERE length({text}) > 8")
                while batch := rows.fetchmany(4096):
                    yield b"\n".join(value for (value,) in batch) + b"\n"
