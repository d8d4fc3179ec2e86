"""Archives and queries that are made to break their reader, each next to a good one."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from scene import (
    PERFCTL,
    RECORDED,
    Broken,
    Ended,
    Fault,
    Scene,
    expect_count,
    no_traceback,
    removed,
)

GOOD = RECORDED / "torch" / "b16" / "report.pt.trace.json.gz"
LONGEST_S = 120.0
"""An archive has 60 s, a query 2 s; the rest is for a busy machine."""
LONGEST_QUERY_S = 30.0
MOST_MEMORY_KIB = 3 << 20
NAME = "r.csv"
DIGITS = b"1" * 60_000
COUNT = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) "
LONG = "printf('%.*c', 4000000, 'a')"
SLOW = (
    f"SELECT {LONG} GLOB '*a*a*a*a*b'",
    f"SELECT {LONG} LIKE '%a%a%a%a%b'",
    f"SELECT replace({LONG}, 'a', 'ab')",
    f"SELECT instr({LONG} || {LONG}, {LONG} || 'b')",
    f"SELECT trim({LONG} || 'b', {LONG})",
    f"SELECT length(hex({LONG})) - {LONG}",
    f"SELECT json_extract('[' || replace({LONG}, 'a', '[') || ']', '$')",
    f"SELECT count(*) FROM json_each('[' || replace({LONG}, 'a', '1,') || '1]')",
    "SELECT hex(randomblob(7000000))",
    "SELECT zeroblob(15999999)",
    "SELECT zeroblob(1000000000)",
    "SELECT printf('%.99999999f', 1.0)",
    "SELECT printf('%*d', 99999999, 1)",
    "SELECT abs(-9223372036854775808)",
    "SELECT likelihood(1, 0.5), sqlite_version(), random()",
    f"{COUNT}SELECT count(*) FROM t",
    f"{COUNT}SELECT sum(n * 1.5) FROM t",
    f"{COUNT}SELECT group_concat(n) FROM t",
    f"{COUNT}SELECT json_group_array(n) FROM t",
    f"{COUNT}SELECT n FROM t",
    f"{COUNT}SELECT n FROM t ORDER BY n DESC",
    f"{COUNT}SELECT DISTINCT printf('%09000d', n) FROM t ORDER BY 1",
    f"{COUNT}SELECT {LONG} FROM t",
    f"{COUNT}SELECT n, n, n, n, n, n, n FROM t LIMIT 3000000",
    f"{COUNT}SELECT printf('%.*c', n, 'x') FROM t",
    "SELECT count(*) FROM " + ", ".join(f"operation o{number}" for number in range(30)),
    "SELECT * FROM " + ", ".join(f"run r{number}" for number in range(30)),
    "SELECT " + ", ".join(["1"] * 1500),
    "SELECT " + ", ".join(f"{number} AS a" for number in range(500)),
    "SELECT " + ", ".join([LONG] * 400),
    "SELECT " + "(" * 900 + "1" + ")" * 900,
    "SELECT " + "1 + " * 300_000 + "1",
    "SELECT 1 WHERE 1 IN (" + "1, " * 200_000 + "1)",
    "SELECT 1" + " UNION ALL SELECT 1" * 400,
    "SELECT '" + "x" * 900_000 + "'",
    'SELECT 1 AS "' + "x" * 100_000 + '"',
    "WITH a AS (SELECT 1), b AS (SELECT * FROM a, a, a, a) SELECT * FROM b, b, b, b, b, b, b",
    "SELECT (SELECT count(*) FROM operation a, operation b, operation c) FROM run",
    "PRAGMA cache_size = 99999999",
    "ATTACH '/etc/passwd' AS x",
)
"""Queries that take time, memory or room on the screen without end, or try to."""
FORMS = (("--rows", "1000000"), ("--json",), ("--csv",))
BOMBS = [(sql, FORMS[0]) for sql in SLOW] + [
    (sql, form) for sql in SLOW[15:25] for form in FORMS[1:]
]


def member(name: str, content: bytes = b"", **facts: object) -> bytes:
    """Return a member of a tar as bytes; ``facts``: attributes of its header."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in facts.items():
        setattr(info, key, value)
    head = info.tobuf(tarfile.GNU_FORMAT)
    return head + content + bytes(-len(content) % 512)


def pax(records: bytes, then: bytes = member(NAME, b"x")) -> bytes:
    """Return an extended header with these records before a member."""
    return member("PaxHeader", records, type=tarfile.XHDTYPE) + then


def record(key: str, value: str) -> bytes:
    """Return one record with its right length."""
    body = f" {key}={value}\n".encode()
    size = len(body) + 1
    while len(str(size)) + len(body) != size:
        size += 1
    return str(size).encode() + body


def negative(name: str) -> bytes:
    """Return a member whose size is -512 in base 256."""
    head = bytearray(member(name))
    head[124:136] = b"\xff" * 10 + b"\xfe\x00"
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)


def zipped(change: Callable[[bytes], bytes] = bytes, **options: int) -> bytes:
    """Return a zip of one report, changed."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **options) as archive:  # type: ignore[arg-type]
        archive.writestr(NAME, "x" * 100)
    return change(out.getvalue())


def nested(depth: int) -> bytes:
    """Return zips inside zips."""
    content = b"x"
    for _ in range(depth):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("in.zip", content)
        content = out.getvalue()
    return content


ARCHIVES = {
    "sparse.tar": pax(record("GNU.sparse.map", "a,b") + record("GNU.sparse.size", "9")),
    "sparse-size.tar": pax(record("GNU.sparse.major", "1") + record("GNU.sparse.size", "x")),
    "sparse-1.0.tar": pax(
        record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0"), member(NAME, b"no\n" * 9)
    ),
    "digits.tar.gz": gzip.compress(pax(DIGITS)),
    "digits-a-megabyte.tar.gz": gzip.compress(pax(b"1" * (1 << 20))),
    "digits-often.tar.gz": gzip.compress(pax(DIGITS) * 200),
    "negative.tar": negative("r.csv") + negative("s.csv") + bytes(1024),
    "negative-pax.tar": pax(record("size", "-512")),
    "endless.tar": member(NAME, b"x", size=1 << 60),
    "endless-pax.tar": pax(record("size", str(1 << 80))),
    "records.tar": pax(b"-5 path=x\n0 path=y\n99999 path=z\n"),
    "numbers.tar": pax(record("mtime", "nan") + record("uid", "abc") + record("mtime", "1e999")),
    "charset.tar": pax(
        record("hdrcharset", "BINARY")
        + record("path", "\udcff".encode("utf-8", "surrogatepass").decode("latin-1"))
    ),
    "long-name.tar": member("././@LongLink", b"", type=tarfile.GNUTYPE_LONGNAME, size=1 << 40),
    "links.tar": b"".join(
        member(f"l{number}", type=tarfile.SYMTYPE, linkname="/etc/passwd") for number in range(999)
    ),
    "devices.tar": member("d", type=tarfile.CHRTYPE) + member("f", type=tarfile.FIFOTYPE),
    "zeros.tgz": gzip.compress(member(".hidden", bytes(300 << 20)), 1),
    "truncated.tar.gz": gzip.compress(member(NAME, os.urandom(5000)))[:-2000],
    "damaged.tar.xz": lzma.compress(member(NAME, os.urandom(5000)))[:-999] + b"?" * 999,
    "damaged.tar.bz2": bz2.compress(member(NAME, os.urandom(5000)))[:-999] + b"?" * 999,
    "directory.zip": zipped(lambda whole: whole[:-40] + bytes(18) + whole[-22:]),
    "password.zip": zipped(lambda whole: whole.replace(b"PK\3\4\x14\0\0", b"PK\3\4\x14\0\1")),
    "method.zip": zipped(lambda whole: whole.replace(b"\0\0\0\0\0\0!\0", b"\0\0\x63\0\0\0!\0")),
    "nested.zip": nested(50),
}
"""Name of an archive -> its content."""


def _archive(scene: Scene, name: str) -> str:
    folder = scene.fresh()
    shutil.copy(GOOD, folder)
    (folder / name).write_bytes(ARCHIVES[name])
    ended = _within(scene, folder, "ingest", ".")
    expect_count(folder / "perfctl.db", 1)
    removed(folder)
    return f"{name} {ended.code}"


def _within(scene: Scene, folder: Path, *arguments: str, run: Sequence[str] = PERFCTL) -> Ended:
    """Run perfctl. Raises Broken if it takes too long or too much memory, or shows a traceback."""
    began = time.monotonic()
    child = scene.start(*arguments, cwd=folder, run=run)
    most = 0
    while child.poll() is None:
        most = max(most, *(_resident_kib(pid) for pid, _ in scene.left_with_ids()), 0)
        if time.monotonic() - began > LONGEST_S or most > MOST_MEMORY_KIB:
            child.kill()
            taken = f"{time.monotonic() - began:.0f} s and {most >> 10} MiB"
            raise Broken(f"{' '.join(arguments)[:200]}: still running after {taken}")
        time.sleep(0.05)
    ended = scene.ended(child, folder)
    no_traceback(ended)
    return ended


def _resident_kib(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(status.partition("VmRSS:")[2].split()[0]) if "VmRSS:" in status else 0


def _bomb(scene: Scene, store: Path, sql: str, form: tuple[str, ...]) -> str:
    folder = scene.fresh()
    (folder / "q.sql").write_text(sql)
    began = time.monotonic()
    ended = _within(
        scene,
        folder,
        *(
            "-c",
            'exec "$1" -m perfctl query - --store "$0" --timeout 2 "${@:2}" < q.sql',
            str(store),
        ),
        *(sys.executable, *form),
        run=("bash",),
    )
    if ended.code not in (0, 1, 2) or time.monotonic() - began > LONGEST_QUERY_S:
        took = time.monotonic() - began
        raise Broken(f"code {ended.code} after {took:.0f} s: {sql[:100]}: {ended.said[:200]}")
    removed(folder)
    return f"{ended.code}"


def _bombs(scene: Scene) -> None:
    store = scene.fresh("store") / "perfctl.db"
    scene.perfctl("ingest", str(GOOD), "--store", str(store), cwd=store.parent)
    for sql, form in BOMBS:
        scene.attempt(partial(_bomb, scene, store, sql, form))


def _archives(scene: Scene) -> None:
    for name in ARCHIVES:
        scene.attempt(partial(_archive, scene, name))


FAULTS = (
    Fault(
        "hostile-archives",
        "an archive that breaks tarfile or zipfile, next to a good report",
        _archives,
    ),
    Fault("hostile-queries", "a query that takes time, memory or room without end", _bombs),
)
