"""Inputs of 10 GB, and small files that hold as much: refused in one line, or read within their
limit of memory."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import sqlite3
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from random import Random

import psutil
from scene import Broken, Ended, Fault, Scene, Skipped, no_traceback, store_is_whole

SIZE = int(float(os.environ.get("FAULTS_BIG_GB", "10")) * (1 << 30))
"""Bytes; FAULTS_BIG_GB for another size."""
LIMIT_MB = 500
LIMIT_S = 1800.0
WALL_MB = 2048
"""The default of --memory-limit."""
MILLION = 1_000_000
RECORDED = (
    Path(__file__).resolve().parents[3]
    / "tests"
    / "data"
    / "recorded-cpu"
    / "nsys"
    / "b16"
    / "report.sqlite"
)
EVENT = (
    b'{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":7,"tid":7,"ts":%d.5,"dur":3,'
    b'"args":{"External id":%d,"Input Dims":[[16,32],[32,8]]}},\n'
)
SMI_HEAD = b"timestamp, index, name, utilization.gpu [%], memory.used [MiB], power.draw [W]\n"
SMI_ROW = b"2026/01/01 00:00:%02d.%03d, 0, NVIDIA A100, %d %%, 1024 MiB, 60.00 W\n"
NCU_HEAD = (
    b'"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Section Name",'
    b'"Metric Name","Metric Unit","Metric Value"\n'
)
NCU_ROW = (
    b'"%d","7","python","host","kernel_%d(float *, int)","1","7","Command line profiler metrics",'
    b'"gpu__time_duration.sum","nsecond","%d"\n'
)


def _kineto(number: int) -> bytes:
    return EVENT % (number * 10, number)


def _smi(number: int) -> bytes:
    return SMI_ROW % (number // 1000 % 60, number % 1000, number % 100)


def _ncu(number: int) -> bytes:
    return NCU_ROW % (number, number % 40, 1000 + number % 7)


def _rows(head: bytes, row: Callable[[int], bytes], tail: bytes, path: Path) -> None:
    """Blocks of ten thousand rows, each written many times over: what a generator can do in
    a minute."""
    block = b"".join(row(number) for number in range(10_000))
    times = max(SIZE // len(block), 1)
    with path.open("wb") as file:
        file.write(head)
        for _ in range(times):
            file.write(block)
        file.write(tail)


def _gzip(path: Path) -> None:
    block = b" " * (1 << 24)
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(b'{"traceEvents":[')
        for _ in range(SIZE // len(block)):
            file.write(block)


def _hidden_member(path: Path) -> None:
    """The member is a hole of the file."""
    member = tarfile.TarInfo(".hidden")
    member.size = SIZE
    _hole(path, member)


def _header(path: Path) -> None:
    """A long name of 3 GB at FAULTS_BIG_GB=10."""
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, SIZE * 3 // 10
    _hole(path, member)


def _hole(path: Path, member: tarfile.TarInfo) -> None:
    with path.open("wb") as file:
        file.write(member.tobuf(tarfile.GNU_FORMAT))
        file.truncate(
            tarfile.BLOCKSIZE
            + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            + 2 * tarfile.BLOCKSIZE
        )


def _tar_of_many(path: Path) -> None:
    """The members have no content."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        for number in range(MILLION):
            file.write(tarfile.TarInfo(f"{number}.csv").tobuf(tarfile.GNU_FORMAT))
        file.write(bytes(2 * tarfile.BLOCKSIZE))


def _zip_of_many(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for number in range(MILLION):
            file.writestr(zipfile.ZipInfo(f"{number}.csv"), b"")


def _backslashes(path: Path) -> None:
    """80 MB in one string, each of which begins an escape that JSON does not know."""
    event = EVENT.rstrip(b",\n") % (1, 1)
    text = io.BytesIO(b"\\q" * 40_000_000)
    with path.open("wb") as file:
        file.write(b'{"schemaVersion":1,"traceEvents":[\n' + event + b',\n{"ph":"X","name":"')
        shutil.copyfileobj(text, file)
        file.write(b'","ts":1,"dur":1}]}\n')


def _long_texts(path: Path) -> None:
    """120 names of NVTX ranges, 10 MB each, no two alike."""
    shutil.copyfile(RECORDED, path)
    with closing(sqlite3.connect(path)) as database, database:
        ranges = [row for (row,) in database.execute("SELECT rowid FROM NVTX_EVENTS LIMIT 120")]
        for number, row in enumerate(ranges):
            text = Random(number).randbytes(5_000_000).hex()  # noqa: S311
            database.execute("UPDATE NVTX_EVENTS SET text = ? WHERE rowid = ?", (text, row))
    if len(ranges) < 120:
        raise Skipped(f"{RECORDED.name} has {len(ranges)} ranges alone")


def _ingested(name: str, make: Callable[[Path], None], limit_mb: float, scene: Scene) -> None:
    def once() -> str:
        folder = scene.fresh("big")
        if shutil.disk_usage(folder).free < 3 * SIZE:
            raise Skipped(
                f"less than {3 * SIZE >> 30} GB are free in {folder.parent.name}; set TMPDIR"
            )
        make(folder / name)
        size = (folder / name).stat().st_size
        child = scene.start("ingest", name, cwd=folder)
        peak, seconds, stopped = _watched(child, limit_mb)
        ended = scene.ended(child, folder)
        no_traceback(ended)
        if (folder / "perfctl.db").exists():
            store_is_whole(folder / "perfctl.db")
        shutil.rmtree(folder)
        said = (
            f"stopped after {seconds:.0f} s"
            if stopped
            else f"{ended.code} after {seconds:.0f} s: {ended.said[:160]}"
        )
        told = f"{size / 1e9:.3g} GB, peak {peak:.0f} MB, {said}"
        if peak > limit_mb:
            raise Broken(told)
        _clear(ended, stopped)
        return told

    scene.attempt(once)


def _clear(ended: Ended, stopped: bool) -> None:
    if not stopped and ended.code not in (0, 1, 4):
        raise Broken(f"exit code {ended.code}: {ended.said[:200]}")


def _watched(child: subprocess.Popen[str], limit_mb: float) -> tuple[float, float, bool]:
    """(peak MB of perfctl and the processes that read for it, seconds, was it stopped because it
    took too long or too much?)."""
    began, peak = time.monotonic(), 0.0
    while child.poll() is None:
        peak = max(peak, _together_mb(child.pid))
        if peak > 2 * limit_mb or time.monotonic() - began > LIMIT_S:
            child.terminate()
            return peak, time.monotonic() - began, True
        time.sleep(0.1)
    return peak, time.monotonic() - began, False


def _together_mb(pid: int) -> float:
    """Memory of a process and all below it now; a page that several share counts once (PSS)."""
    held = 0
    try:
        top = psutil.Process(pid)
        for process in (top, *top.children(recursive=True)):
            with suppress(psutil.Error, OSError):  # it has ended
                held += process.memory_full_info().pss
    except psutil.Error:
        pass
    return held / 1e6


_KINETO = partial(
    _rows,
    b'{"schemaVersion":1,"traceEvents":[\n',
    _kineto,
    b'{"ph":"X","cat":"cpu_op","name":"aten::add","pid":7,"tid":7,"ts":1,"dur":1,"args":{}}]}\n',
)
FAULTS = tuple(
    Fault(name, what, partial(_ingested, file, make, limit_mb))
    for name, what, file, make, limit_mb in (
        ("big-kineto", "a Kineto trace of 10 GB", "trace.pt.trace.json", _KINETO, LIMIT_MB),
        (
            "big-ncu",
            "a CSV of ncu of 10 GB",
            "report.csv",
            partial(_rows, NCU_HEAD, _ncu, b""),
            LIMIT_MB,
        ),
        (
            "big-nvidia-smi",
            "a CSV of nvidia-smi of 10 GB",
            "gpu.csv",
            partial(_rows, SMI_HEAD, _smi, b""),
            LIMIT_MB,
        ),
        (
            "bomb-gzip",
            "a gzip of 10 MB that holds 10 GB, as a Kineto trace",
            "trace.pt.trace.json.gz",
            _gzip,
            LIMIT_MB,
        ),
        (
            "bomb-member",
            "a tar with a hidden member of 10 GB",
            "reports.tar",
            _hidden_member,
            LIMIT_MB,
        ),
        ("bomb-header", "a tar with a header of 3 GB", "reports.tar", _header, LIMIT_MB),
        ("bomb-tar", "a tar.gz of a million files", "reports.tar.gz", _tar_of_many, WALL_MB),
        ("bomb-zip", "a zip of a million files", "reports.zip", _zip_of_many, WALL_MB),
        (
            "bomb-string",
            "a Kineto trace with a string of 80 MB of lone backslashes",
            "trace.pt.trace.json",
            _backslashes,
            WALL_MB,
        ),
        (
            "bomb-texts",
            "an nsys database with 120 texts of 10 MB",
            "report.sqlite",
            _long_texts,
            WALL_MB,
        ),
    )
)
