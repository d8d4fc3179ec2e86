"""Names in SQL, and the header of an SQLite file: its first 100 bytes
(https://www.sqlite.org/fileformat.html, section 1.3)."""

from __future__ import annotations

MAGIC = b"SQLite format 3\0"
HEADER_BYTES = 100
APPLICATION_ID = 0x70657266
"""Of perfctl's stores: "perf"."""


def has_sqlite_magic(head: bytes) -> bool:
    """Is ``head`` the beginning of an SQLite file?"""
    return head.startswith(MAGIC)


def read_file_size_from_header(head: bytes) -> int:
    """Size of the whole file in bytes as its header states it; 0 where ``head`` is another file's
    or does not say.

    SQLite keeps the size up to date only while the change counter equals the
    version-valid-for number.
    """
    if not has_sqlite_magic(head) or len(head) < HEADER_BYTES or head[24:28] != head[92:96]:
        return 0
    page_bytes = int.from_bytes(head[16:18], "big")
    return (65536 if page_bytes == 1 else page_bytes) * int.from_bytes(head[28:32], "big")


def read_application_id(head: bytes) -> int:
    """The number by which a program marks its own files; 0 where ``head`` has none."""
    return int.from_bytes(head[68:72], "big") if has_sqlite_magic(head) else 0


def quote_sql_name(name: str) -> str:
    """Return any name as SQL takes it."""
    return '"' + name.replace('"', '""') + '"'
