"""Copies a report without its process environments and secrets: the only parser module that writes.

It writes only that copy, under a temporary name until it is complete and has been checked again.
Databases are rewritten by ``scrub_database``; elsewhere secrets and names of home folders become
"(removed)".
"""

from __future__ import annotations

import codecs
import gzip
import os
import shutil
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

from perfctl import redact
from perfctl.parsers.nsys.tables import EXPORT_AGAIN
from perfctl.parsers.scrub_database import environment_in, rewrite
from perfctl.parsers.secret_scan import opened, texts_of
from perfctl.records.errors import ReportError
from perfctl.records.sqlite_header import is_sqlite
from perfctl.redact.people import KINDS, People

EXPORTS = {
    ".nsys-rep": "nsys export --type sqlite REPORT",
    ".qdrep": "nsys export --type sqlite REPORT",
    ".qdstrm": "QdstrmImporter -i REPORT, then nsys export --type sqlite",
    ".ncu-rep": "ncu --import REPORT --csv --page raw > REPORT.csv",
    ".nsight-cuprof-report": "ncu --import REPORT --csv --page raw > REPORT.csv",
}
"""Binary reports -> how to turn one into something that can be edited."""
CHUNK = 1 << 20
LONGEST = 1 << 16
"""Bytes held back, so that a secret is not split."""
MOST_KEPT = 8 << 20
"""Bytes after which a secret without an end is split anyway."""
GZIP = b"\x1f\x8b"
UTF_16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """Result of scrubbing, without any removed value."""

    path: Path
    names: tuple[str, ...]
    """Names of what looked like a secret in the report."""
    rows: dict[str, int]
    """Table -> rows that were deleted or emptied; empty for a text."""
    found: dict[str, int]
    """What was replaced -> how often: secrets by name, names of hosts, users and home folders."""


def scrub(path: Path, target: Path) -> Scrubbed:
    """Write the copy, replacing ``target``. Raises ReportError when the result cannot
    be verified."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    names: set[str] = set()
    found: Counter[str] = Counter()
    try:
        database = _is_database(path)
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            if database:
                names.update(redact.names_of(texts_of(path)))
                shutil.copyfile(path, part)
                rows = rewrite(part, found)
            else:
                rows = {}
                _scrub_text(path, part, found)
            _check_clean(path, part, database)
            shutil.copymode(path, part)
            part.replace(target)
        finally:
            for ending in ("", "-journal", "-wal", "-shm"):
                part.with_name(part.name + ending).unlink(missing_ok=True)
    except (sqlite3.Error, UnicodeError) as error:
        reason = f"the database or its text is damaged or cut off ({error})"
        raise ReportError(path, "unknown", reason, EXPORT_AGAIN) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ReportError(
            path, "unknown", f"the gzip file is cut off or damaged ({error})", "Copy it again"
        ) from error
    except OSError as error:
        reason = f"no copy could be made ({error.strerror or error})"
        raise ReportError(
            path, "unknown", reason, "Check the permissions and the free disk space"
        ) from error
    names.update(
        name for name in found if name not in (*KINDS, "a process environment", "an argument")
    )
    return Scrubbed(target, tuple(sorted(names)), rows, dict(sorted(found.items())))


def _is_database(path: Path) -> bool:
    """Raises ReportError for what cannot be edited."""
    if path.is_dir():
        raise ReportError(path, "unknown", "this is a folder", "Pass one report in it")
    with path.open("rb") as file:
        head = file.read(512)
    if not head:
        raise ReportError(path, "unknown", "the file is empty", "Check the path")
    if is_sqlite(head):
        return True
    ways = [way for ending, way in EXPORTS.items() if path.name.endswith(ending)]
    if ways or (b"\0" in head and not head.startswith((GZIP, *UTF_16))):
        way = f"Export it and scrub the export: {(ways or ['as SQLite, CSV or JSON'])[0]}"
        raise ReportError(path, "unknown", "a binary report cannot be edited", way)
    return False


def _scrub_text(path: Path, part: Path, found: Counter[str]) -> None:
    """Works in pieces, so that neither a long file nor a long line fills memory."""
    with path.open("rb") as raw:
        zipped = raw.read(2) == GZIP
    with opened(path, is_zipped=zipped) as source, opened(part, is_zipped=zipped, mode="wb") as out:
        first = source.read(4)
        coding = UTF_16.get(first[:2])
        for piece in _replaced(_pieces(source, first, coding), found):
            out.write(
                piece.decode("utf-8", "surrogatepass").encode(coding, "surrogatepass")
                if coding
                else piece
            )


def _pieces(source: IO[bytes], first: bytes, coding: str | None) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(coding)("surrogatepass") if coding else None
    piece = first
    while piece:
        yield decoder.decode(piece).encode("utf-8", "surrogatepass") if decoder else piece
        piece = source.read(CHUNK)
    if decoder:
        decoder.decode(b"", final=True)


def _replaced(pieces: Iterator[bytes], counted: Counter[str]) -> Iterator[bytes]:
    """The text again without secrets, cut elsewhere: never inside of a secret, of its name or of
    a character."""
    rest, nobody = b"", People()
    for piece in chain(pieces, [None]):  # None: the end
        rest += piece or b""
        cut = len(rest) - (0 if piece is None else LONGEST)
        found = redact.secrets_in(rest, nobody.found_in(rest)) if cut > 0 else []
        if piece is not None and len(rest) < MOST_KEPT:
            cut = _between(found, cut)
        while 0 < cut < len(rest) and rest[cut] & 0xC0 == 0x80:
            cut -= 1
        if cut > 0:
            before = [
                secret._replace(end=min(secret.end, cut)) for secret in found if secret.start < cut
            ]
            counted.update(secret.name for secret in before)
            yield redact.without(rest[:cut], before)
            rest = rest[cut:]


def _between(found: Iterable[redact.Secret], cut: int) -> int:
    """The last place up to ``cut`` that splits no secret, nor a secret from its name."""
    ended = 0
    for secret in found:
        if secret.end > cut:
            return min(cut, max(secret.start - redact.BEFORE, ended))
        ended = secret.end
    return cut


def _check_clean(path: Path, part: Path, database: bool) -> None:
    """Check the whole copy again. Raises ReportError when a secret is left."""
    left = set(redact.names_of(texts_of(part, limit=1 << 62)))
    if database:
        with part.open("rb") as file:  # deleted rows must not remain in the file's free pages
            left |= set(redact.names_of(iter(lambda: file.read(CHUNK), b"")))
        if environment_in(part):
            left.add("a process environment")
    if left:
        reason = f"the copy would still hold {', '.join(sorted(left))}, so none was made"
        raise ReportError(
            path, "unknown", reason, "Do not share the report, and report this as a bug in perfctl"
        )
