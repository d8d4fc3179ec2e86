"""Inputs of 10 GB: refused in one line, or streamed within 500 MB."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
from scene import Broken, Ended, Fault, Scene, Skipped, no_traceback, store_is_whole

SIZE = int(float(os.environ.get("FAULTS_BIG_GB", "10")) * (1 << 30))
"""Bytes; FAULTS_BIG_GB for another size."""
LIMIT_MB = 500
LIMIT_S = 1800.0
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


def _write(path: Path, head: bytes, row: Callable[[int], bytes], tail: bytes) -> None:
    """Blocks of ten thousand rows, each written many times over: what a generator can do in a minute."""
    block = b"".join(row(number) for number in range(10_000))
    times = max(SIZE // len(block), 1)
    with path.open("wb") as file:
        file.write(head)
        for _ in range(times):
            file.write(block)
        file.write(tail)


def _ingested(name: str, head: bytes, row: Callable[[int], bytes], tail: bytes, scene: Scene) -> None:
    def once() -> str:
        folder = scene.fresh("big")
        if shutil.disk_usage(folder).free < 3 * SIZE:
            raise Skipped(f"less than {3 * SIZE >> 30} GB are free in {folder.parent.name}; set TMPDIR")
        _write(folder / name, head, row, tail)
        child = scene.start("ingest", name, cwd=folder)
        peak, seconds, stopped = _watched(child)
        ended = scene.ended(child, folder)
        no_traceback(ended)
        store_is_whole(folder / "perfctl.db")
        shutil.rmtree(folder)
        said = (
            f"stopped after {seconds:.0f} s" if stopped else f"{ended.code} after {seconds:.0f} s: {ended.said[:160]}"
        )
        told = f"{SIZE / 1e9:.1f} GB, peak {peak:.0f} MB, {said}"
        if peak > LIMIT_MB:
            raise Broken(told)
        _clear(ended, stopped)
        return told

    scene.attempt(once)


def _clear(ended: Ended, stopped: bool) -> None:
    if not stopped and ended.code not in (0, 1, 4):
        raise Broken(f"exit code {ended.code}: {ended.said[:200]}")


def _watched(child: subprocess.Popen[str]) -> tuple[float, float, bool]:
    """(peak MB of perfctl and the processes that read for it, seconds, was it stopped because it took too long or too much?)."""
    began, peak = time.monotonic(), 0.0
    while child.poll() is None:
        peak = max(peak, _together_mb(child.pid))
        if peak > 2 * LIMIT_MB or time.monotonic() - began > LIMIT_S:
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


FAULTS = (
    Fault(
        "big-kineto", "a Kineto trace of 10 GB",
        partial(_ingested, "trace.pt.trace.json", b'{"schemaVersion":1,"traceEvents":[\n', _kineto,
                b'{"ph":"X","cat":"cpu_op","name":"aten::add","pid":7,"tid":7,"ts":1,"dur":1,"args":{}}]}\n'),
    ),
    Fault("big-ncu", "a CSV of ncu of 10 GB", partial(_ingested, "report.csv", NCU_HEAD, _ncu, b"")),
    Fault("big-nvidia-smi", "a CSV of nvidia-smi of 10 GB", partial(_ingested, "gpu.csv", SMI_HEAD, _smi, b"")),
)  # fmt: skip
