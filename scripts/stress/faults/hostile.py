"""Archives and queries that are made to break their reader, each next to a good one."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import tarfile
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from scene import RECORDED, Broken, Ended, Fault, Scene, expect, expect_count, no_traceback, removed

GOOD = RECORDED / "torch" / "b16" / "report.pt.trace.json.gz"
LONGEST_S = 120.0
"""An archive has 60 s, a query 2 s; the rest is for a busy machine."""
MOST_MEMORY_KIB = 3 << 20
NAME = "r.csv"


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


DIGITS = b"1" * 60_000
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


def _within(scene: Scene, folder: Path, *arguments: str) -> Ended:
    """Run perfctl. Raises Broken if it takes too long or too much memory, or shows a traceback."""
    began = time.monotonic()
    child = scene.start(*arguments, cwd=folder)
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


FAULTS = (
    Fault(
        "hostile-archives",
        "an archive that breaks tarfile or zipfile, next to a good report",
        lambda scene: [scene.attempt(partial(_archive, scene, name)) for name in ARCHIVES][0],
    ),
)
