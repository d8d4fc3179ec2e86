"""Copy a report without process environments, secrets, and the names of hosts, users and home
folders.

A database loses whole rows and strings that no measurement needs; of every other text, only the
secret or the name becomes "(removed)".
"""

from __future__ import annotations

import gzip
import re
import shutil
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import IO, cast

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.files import replace_when_done
from perfctl.orchestrator.ingest.archives import has_archive_name
from perfctl.parsers import ReportError, raise_if_pipe_socket_or_device
from perfctl.parsers.common.json import GZIP_MAGIC
from perfctl.records.sqlite_header import has_sqlite_magic, quote_sql_name
from perfctl.redact import REMOVED, SECRET, can_hold_secret, get_unmasked_prefix

EXPORTS = {
    ".nsys-rep": "nsys export --type sqlite REPORT",
    ".qdrep": "nsys export --type sqlite REPORT",
    ".qdstrm": "QdstrmImporter -i REPORT, then nsys export --type sqlite",
    ".ncu-rep": "ncu --import REPORT --csv --page raw > REPORT.csv",
    ".nsight-cuprof-report": "ncu --import REPORT --csv --page raw > REPORT.csv",
}
"""Binary reports -> how to turn one into something that can be edited."""
CHUNK = 1 << 20
"""Characters of a text that are read at a time."""
LONGEST = 1 << 16
"""Characters held back, so that no secret is split."""
MOST_KEPT = 8 << 20
"""Characters after which a secret without an end is split anyway."""
PACKED = (b"PK\3\4", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
"""Beginnings of zip, bzip2, xz and zstd."""
UTF_16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}

_VERSIONS = ("EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")
KEPT = {
    "TARGET_INFO_SYSTEM_ENV": (
        *("CpuDescription", "CpuCores", "CpuArchitecture", "OsDescription"),
        *("CudaDriverVersion", "NvDriverVersion"),
    ),
    "META_DATA_EXPORT": _VERSIONS,
    "EXPORT_META_DATA": _VERSIONS,
    "META_DATA_CAPTURE": (),  # environments, arguments, users
    "ProcessStreams": (),  # what the program printed (all versions of nsys)
    "ANALYSIS_FILE": (),  # the same, and files that nsys collected (2024.2 and later)
}
"""Table of an nsys export -> names of the rows that stay; the others go."""
EMPTIED = {
    "rocpd_info_process": {"command": "''", "environment": "'{}'", "extdata": "'{}'"},
    "rocpd_info_node": {
        "hostname": "NULL",
        "domain_name": "NULL",
        "machine_id": f"'{REMOVED} ' || id",
    },
}
"""Beginning of a table of rocprofv3, which goes on with the run's GUID -> columns to empty, and
what they hold then."""
STRINGS = "StringIds"
_HOSTS = ("EXPORT_HOST", "DEVICE_DISPLAY_NAME", "Hostname", "HOSTNAME")
_USERS = ("EXPORT_USER", "USER_NAME", "USER", "LOGNAME")
_EVERYBODY = ("localhost", "root", "user", "users", "ubuntu", "admin", "nobody", "home", "(none)")
"""Names that tell nothing."""
_HOME = r"(?P<home>/homes?/|/[Uu]sers/|\\Users\\\\?)(?!\(removed\))[^/\\\s\"':;,<>|()\[\]]{1,64}"
_VARIABLE = re.compile(
    rb"(?:\A|[\n\0\"',{;\s])(PATH|HOME|PWD|OLDPWD|USER|LOGNAME|SHELL|SHLVL|HOSTNAME|LANG|TERM|"
    rb"LC_[A-Z]+|LD_[A-Z_]+|XDG_[A-Z_]+|SSH_[A-Z_]+|SLURM_[A-Z_0-9]+|CONDA_[A-Z_0-9]+|"
    rb"CUDA_[A-Z_]+|PYTHON[A-Z]+|[A-Za-z_]*(?i:proxy)|_)(?:=(?!\(removed\))|\"\s?:)"
)
"""A variable that most environments have."""
_FEWEST = 3
"""Variables in one text that make it an environment, however it begins."""
_REFERS = re.compile(
    r"(?:\w*(?:name|text|string|content|symbol|module|label|message|title|description|path|json)Id|"
    r"apiCallId|symbol|module|\w+Name)\Z",
    re.IGNORECASE,
)
"""Columns of nsys that hold numbers of strings (2020.3 to 2026.1)."""
_COMMENT = re.compile(r"^\s*(\w+)\s.*--\s*REFERENCES\s+StringIds", re.MULTILINE)
"""A column that holds numbers of strings, by the schema of nsys 2021 and later."""


@dataclass(frozen=True, slots=True)
class ScrubOutput:
    """The copy, without any removed value."""

    path: Path
    rows_removed: Mapping[str, int]
    """Table -> rows that were deleted or emptied; empty for a text."""
    replaced: Mapping[str, int]
    """Kind (secret, host, user, home folder, environment) -> how many were replaced in texts."""


def scrub_report(file: Path, out: Path | None = None, *, force: bool = False) -> ScrubOutput:
    """Write the copy. Raises UsageError, before anything is written, if it cannot be made, or is
    there and ``force`` is not given; ReportError for what cannot be edited, and if a second look at
    the copy finds anything left."""
    target = out or make_scrubbed_path(file)
    if not file.exists():
        raise UsageError(f"{file}: file not found", "Check the path")
    raise_if_pipe_socket_or_device(file)
    if target.exists() and target.samefile(file):
        raise UsageError(f"`out`: {target} is the report to scrub", "Name another file")
    write_copy = (
        _copy_scrubbed_database if _is_sqlite_or_raise_uneditable(file) else _copy_scrubbed_text
    )
    with replace_when_done(target, force=force) as copy:
        try:
            rows, replaced = write_copy(file, copy)
            remaining = write_copy(copy, copy.with_name("second look"))
        except (sqlite3.Error, UnicodeError) as error:
            reason = f"the database or its text is damaged or truncated ({error})"
            raise ReportError(file, "unknown", reason, "Copy or export it again") from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            reason = f"the gzip file is truncated or damaged ({error})"
            raise ReportError(file, "unknown", reason, "Copy it again") from error
        if any(remaining):
            reason = (
                f"the copy would still contain {', '.join([*remaining[0], *remaining[1]])}, so "
                "perfctl made "
                "no copy"
            )
            remedy = "Do not share the report, and report this as a bug in perfctl"
            raise ReportError(file, "unknown", reason, remedy)
        shutil.copymode(file, copy)
    return ScrubOutput(target, rows, dict(sorted(replaced.items())))


def make_scrubbed_path(file: Path) -> Path:
    """Return where the copy goes: report.scrubbed.sqlite, trace.scrubbed.json.gz."""
    ending = "".join(file.suffixes[-2 if file.suffix == ".gz" else -1 :])
    return file.with_name(f"{file.name.removesuffix(ending)}.scrubbed{ending}")


def _is_sqlite_or_raise_uneditable(file: Path) -> bool:
    """Return whether it is SQLite and no text. Raises ReportError for what cannot be edited."""
    if file.is_dir():
        raise ReportError(file, "unknown", "this is a folder", "Pass one report in it")
    try:
        with file.open("rb") as opened:
            head = opened.read(512)
        is_packed = head.startswith(PACKED)
        if head.startswith(GZIP_MAGIC):
            with gzip.open(file) as opened:
                content = opened.read(512)
            is_text = b"\0" not in content or content.startswith(tuple(UTF_16))
            is_packed = not is_text or content.startswith((GZIP_MAGIC, *PACKED))
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return False  # the copy names the damage
    except OSError as error:
        reason = f"it cannot be read ({error.strerror})"
        raise ReportError(file, "unknown", reason, "Check the permissions") from error
    if not head:
        raise ReportError(file, "unknown", "the file is empty", "Check the path")
    if has_sqlite_magic(head):
        return True
    if is_packed or has_archive_name(file):
        remedy = "Unpack it and scrub each report in it"
        raise ReportError(file, "unknown", "an archive cannot be edited", remedy)
    way = next((way for ending, way in EXPORTS.items() if file.name.endswith(ending)), None)
    if way or (b"\0" in head and not head.startswith((GZIP_MAGIC, *UTF_16))):
        remedy = f"Export it and scrub the export: {way or 'as SQLite, CSV or JSON'}"
        raise ReportError(file, "unknown", "a binary report cannot be edited", remedy)
    return False


class _TextCleaner:
    """Replaces secrets and names in texts, and counts them by kind."""

    def __init__(self, hosts: Iterable[str] = (), users: Iterable[str] = ()) -> None:
        """``hosts``, ``users``: names to remove; a host's in a whole word, a user's in a path."""
        parts = [_HOME]
        if alternatives := _build_private_name_alternation(
            host for host in hosts if re.search(r"[0-9.-]", host)
        ):
            parts.append(rf"(?P<host>)(?<![\w.-])(?:{alternatives})(?![\w-])")
        if alternatives := _build_private_name_alternation(users):
            parts.append(rf"(?P<user>)(?<=[/@\\])(?:{alternatives})(?![\w-])")
        self._names = re.compile("|".join(parts), re.ASCII)
        self._all = re.compile("|".join([SECRET.pattern, *parts]), re.ASCII)
        self.replaced: Counter[str] = Counter()

    def choose_secret_or_name_pattern(self, text: str) -> re.Pattern[str]:
        """Return what is to go from a text."""
        return self._all if can_hold_secret(text) else self._names

    def mask_and_count_match(self, match: re.Match[str]) -> str:
        kinds = {"home": "home folder", "host": "host", "user": "user"}
        self.replaced[kinds.get(match.lastgroup or "", "secret")] += 1
        return get_unmasked_prefix(match) + REMOVED

    def remove_private_text(self, value: bytes) -> bytes:
        """Return one text of a database; as Latin-1 every byte is a character."""
        variables = {match[1] for match in _VARIABLE.finditer(value)}
        if len(variables) >= _FEWEST or (variables and _VARIABLE.match(value)):
            self.replaced["environment"] += 1
            return b"{}" if value.lstrip().startswith(b"{") else REMOVED.encode()
        text = value.decode("latin-1")
        return (
            self.choose_secret_or_name_pattern(text)
            .sub(self.mask_and_count_match, text)
            .encode("latin-1")
        )


def _build_private_name_alternation(names: Iterable[str]) -> str:
    telling = {name for name in names if len(name) > 3 and name.lower() not in _EVERYBODY}
    return "|".join(map(re.escape, sorted(telling, key=len, reverse=True)))


def _copy_scrubbed_text(source: Path, copy: Path) -> tuple[dict[str, int], Counter[str]]:
    """Write a text anew, in pieces that split no secret: a trace may be one line of gigabytes."""
    with source.open("rb") as raw:
        is_zipped = raw.read(2) == GZIP_MAGIC
    with _open_maybe_zipped(source, "rb", is_zipped=is_zipped) as binary:
        coding = UTF_16.get(binary.read(2), "latin-1")  # as Latin-1 every byte is a character
    cleaner = _TextCleaner()
    with (
        TextIOWrapper(
            _open_maybe_zipped(source, "rb", is_zipped=is_zipped), coding, newline=""
        ) as text,
        TextIOWrapper(
            _open_maybe_zipped(copy, "wb", is_zipped=is_zipped), coding, newline=""
        ) as target_file,
    ):
        buffer, piece = "", "-"
        while piece:
            piece = text.read(CHUNK)
            buffer += piece
            cut = max(0, len(buffer) - LONGEST) if piece else len(buffer)
            offset = 0
            for match in cleaner.choose_secret_or_name_pattern(buffer).finditer(buffer):
                if piece and match.end() == len(buffer) < MOST_KEPT:
                    cut = min(cut, match.start())  # its end is still to be read
                if match.start() >= cut:
                    break
                target_file.write(
                    buffer[offset : match.start()] + cleaner.mask_and_count_match(match)
                )
                offset = match.end()
            cut = max(cut, offset)
            target_file.write(buffer[offset:cut])
            buffer = buffer[cut:]
    return {}, cleaner.replaced


def _open_maybe_zipped(path: Path, mode: str, *, is_zipped: bool) -> IO[bytes]:
    return cast("IO[bytes]", gzip.GzipFile(path, mode, 6) if is_zipped else path.open(mode))


def _copy_scrubbed_database(source: Path, copy: Path) -> tuple[dict[str, int], Counter[str]]:
    """Copy a database and rewrite the copy. Raises sqlite3.Error."""
    shutil.copyfile(source, copy)
    with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
        connection.text_factory = bytes
        (coding,) = connection.execute("PRAGMA encoding").fetchone()
        if coding != b"UTF-8":
            raise sqlite3.DatabaseError(f"its texts are {coding.decode()}, not UTF-8")
        # without a journal nothing of the old content is written anywhere else
        for setting in ("journal_mode=OFF", "trusted_schema=OFF", "foreign_keys=OFF"):
            connection.execute(f"PRAGMA {setting}").fetchall()
        connection.execute("BEGIN")
        for trigger in _read_schemas(connection, "trigger"):
            connection.execute(f"DROP TRIGGER {quote_sql_name(trigger)}")
        schemas = _read_schemas(connection, "table")
        cleaner = _TextCleaner(*_find_hosts_and_users(connection, schemas))
        rows = {
            table: _delete_private_rows(connection, table) for table in KEPT if table in schemas
        }
        if STRINGS in schemas:
            rows[STRINGS] = _delete_unused_strings(connection, schemas)
        for table in schemas:
            rows |= _empty_private_columns(connection, table)
            for column in _list_columns(connection, table):
                _mask_private_text_in_column(
                    connection, quote_sql_name(table), quote_sql_name(column), cleaner
                )
        connection.execute("COMMIT")
        connection.execute("VACUUM")  # deleted rows do not remain in free pages
    return {table: count for table, count in rows.items() if count}, cleaner.replaced


def _read_schemas(connection: sqlite3.Connection, kind: str) -> dict[str, str]:
    """Return the SQL of all tables or triggers, by name."""
    query = "SELECT name, sql FROM sqlite_master WHERE type = ? AND name NOT LIKE 'sqlite_%'"
    rows = connection.execute(query, (kind,)).fetchall()
    return {name.decode(): (schema or b"").decode() for name, schema in rows}


def _list_columns(connection: sqlite3.Connection, table: str) -> list[str]:
    rows = connection.execute(f"PRAGMA table_info({quote_sql_name(table)})")
    return [row[1].decode() for row in rows]


def _find_hosts_and_users(
    connection: sqlite3.Connection, tables: Iterable[str]
) -> tuple[set[str], set[str]]:
    """Return the names of hosts and users that the database states."""
    hosts, users = set[str](), set[str]()
    for table in tables:
        columns = _list_columns(connection, table)
        if table == STRINGS and "value" in columns:
            query = f"SELECT '', value FROM {STRINGS} WHERE value GLOB '[A-Z]*=*'"
        elif table in KEPT and {"name", "value"}.issubset(columns):
            query = f"SELECT name, value FROM {table} WHERE typeof(value) = 'text'"
        elif table.startswith("rocpd_info_node") and "hostname" in columns:
            query = f"SELECT 'HOSTNAME', hostname FROM {quote_sql_name(table)} WHERE hostname <> ''"
        else:
            continue
        for row in connection.execute(query):
            name, value = ((cell or b"").decode("latin-1") for cell in row)
            if not name or name.endswith("ENVIRONMENT_VARIABLE"):
                name, _, value = value.partition("=")
            key = name.rpartition(":")[2]
            if key in _HOSTS:
                hosts.add(value.strip('"'))
            elif key in _USERS:
                users.add(value.strip('"'))
    return hosts | {host.partition(".")[0] for host in hosts}, users


def _delete_private_rows(connection: sqlite3.Connection, table: str) -> int:
    """Delete the rows; all of them where the table lacks its usual columns."""
    is_known = {"name", "value"}.issubset(_list_columns(connection, table))
    kept_names = ", ".join(f"'{name}'" for name in KEPT[table]) if is_known else ""
    condition = f"name IS NULL OR name NOT IN ({kept_names})" if kept_names else "1"
    return connection.execute(f"DELETE FROM {table} WHERE {condition}").rowcount


def _delete_unused_strings(connection: sqlite3.Connection, schemas: dict[str, str]) -> int:
    """Delete the strings that no column refers to: every process's environment stands there, and
    nothing names it."""
    connection.execute("CREATE TEMP TABLE kept_string (id INTEGER PRIMARY KEY)")
    for table, schema in schemas.items():
        stated = set(_COMMENT.findall(schema))
        for column in _list_columns(connection, table):
            if table != STRINGS and (column in stated or _REFERS.match(column)):
                name = quote_sql_name(column)
                numbers = (
                    f"SELECT {name} FROM {quote_sql_name(table)} WHERE typeof({name}) = 'integer'"
                )
                connection.execute(f"INSERT OR IGNORE INTO kept_string {numbers}")
    query = f"DELETE FROM {STRINGS} WHERE id NOT IN (SELECT id FROM kept_string)"
    return connection.execute(query).rowcount


def _empty_private_columns(connection: sqlite3.Connection, table: str) -> dict[str, int]:
    """Empty what a table of rocprofv3 says about the user's machine."""
    changed = 0
    for beginning, contents in EMPTIED.items():
        for column in _list_columns(connection, table) if table.startswith(beginning) else ():
            if content := contents.get(column):
                query = (
                    f"UPDATE {quote_sql_name(table)} SET {column} = {content} "
                    f"WHERE {column} IS NOT "
                )
                changed = max(changed, connection.execute(query + content).rowcount)
    return {table: changed} if changed else {}


def _mask_private_text_in_column(
    connection: sqlite3.Connection, table: str, column: str, cleaner: _TextCleaner
) -> None:
    """Replace secrets and names in every text and blob of a column."""
    values = connection.execute(
        f"SELECT DISTINCT typeof({column}), {column} COLLATE BINARY FROM {table} "
        f"WHERE typeof({column}) IN ('text', 'blob')"
    )
    changed = [
        (kind, value, clean)
        for kind, value in values
        if (clean := cleaner.remove_private_text(value)) != value
    ]
    if not changed:
        return
    connection.execute("CREATE TEMP TABLE cleaned (old PRIMARY KEY, new)")
    for kind, value, clean in changed:
        cell = "CAST(? AS TEXT)" if kind == b"text" else "?"
        connection.execute(f"INSERT INTO cleaned VALUES ({cell}, {cell})", (value, clean))
    new = f"SELECT new FROM cleaned WHERE old = {table}.{column} COLLATE BINARY"
    connection.execute(
        f"UPDATE {table} SET {column} = ({new}) WHERE {column} COLLATE BINARY IN "
        "(SELECT old FROM cleaned)"
    )
    connection.execute("DROP TABLE cleaned")
