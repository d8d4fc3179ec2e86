"""Traces of JAX. No public trace was available: these are synthetic, from XLA's code that writes them
(every argument a text, an empty object at the end)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from perfctl.parsers import ReportError, parse
from perfctl.parsers.kineto import xla
from perfctl.records.report import Device, Report

DETAILS = "regs:32 static_shared:1024 dynamic_shared:0 grid:8,2,1 block:256,1,1 occ_pct:50"


def named(kind: str, name: str, process: int, thread: int = 0) -> dict[str, Any]:
    return {
        "ph": "M",
        "name": kind,
        "pid": process,
        "tid": thread,
        "args": {"name": name},
    }


def work(
    process: int, thread: int, name: str, ts: float, dur: float, **args: str
) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": process,
        "tid": thread,
        "name": name,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def kernel(gpu: int, ts: float, group: int) -> dict[str, Any]:
    details = {"kernel_details": DETAILS, "correlation_id": str(int(ts)), "context_id": "1"}
    return work(1 + gpu, 9, "gemm", ts, 2.5, group_id=str(group), **details)


def two_gpus() -> list[dict[str, Any]]:
    """Two steps on two GPUs; GPU 1 begins 3 us before GPU 0."""
    made: list[dict[str, Any]] = [named("process_name", "/host:CPU", 701)]
    made.append(work(701, 1, "train", 0, 50, step_num="7"))
    for gpu in (0, 1):
        made += [
            named("process_name", f"/device:GPU:{gpu}", 1 + gpu),
            named("thread_name", "Stream #9(Compute,MemcpyD2H)", 1 + gpu, 9),
            named("thread_name", "Steps", 1 + gpu, 100),
            named("thread_name", "XLA Ops", 1 + gpu, 101),
            named("thread_name", "XLA Modules", 1 + gpu, 102),
        ]
        for group, begin in ((0, 10 - 3 * gpu), (1, 30 - 3 * gpu)):
            made += [
                work(1 + gpu, 100, str(7 + group), begin, 10, group_id=str(group)),
                work(1 + gpu, 101, "dot.5", begin, 4),
                work(1 + gpu, 102, "jit_train", begin, 10),
                kernel(gpu, begin, group),
            ]
    details = "kind_src:device kind_dst:pinned size:4096 dest:0 async:1"
    return [*made, work(1, 9, "MemcpyD2H", 18, 1, memcpy_details=details, group_id="0")]


def read(folder: Path, events: list[dict[str, Any]]) -> Report:
    trace = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}}
    path = folder / "host.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({**trace, "traceEvents": [*events, {}]}).encode()))
    return parse(path)


def test_kernels_of_a_jax_trace(tmp_path: Path) -> None:
    report = read(tmp_path, two_gpus())
    assert (report.tool, report.form) == ("jax", "JAX trace")
    assert set(report.devices) == {Device(None, "gpu", 0), Device(None, "gpu", 1)}
    kernels = list(report.kernels)
    facts = [(one.device_index, one.step, one.start_ns, one.duration_ns) for one in kernels]
    assert facts == [
        (0, 7, 10_000, 2500),
        (0, 8, 30_000, 2500),
        (1, 7, 7000, 2500),
        (1, 8, 27_000, 2500),
    ]
    first = kernels[0]
    assert (first.grid_x, first.grid_y, first.grid_z) == (8, 2, 1)
    assert (first.block_x, first.registers, first.stream) == (256, 32, 9)
    assert (first.static_shared_bytes, first.dynamic_shared_bytes) == (1024, 0)
    assert "kernel.static_shared_bytes" not in {gap.quantity for gap in report.gaps}
    assert {gap.quantity: gap.state for gap in report.gaps}["operation"] == "not_available"


def test_a_step_lasts_from_its_first_to_its_last_work_on_any_gpu(tmp_path: Path) -> None:
    steps = [
        (one.number, one.start_ns, one.duration_ns) for one in read(tmp_path, two_gpus()).steps
    ]
    assert steps == [(7, 7000, 13_000), (8, 27_000, 13_000)]


def test_operations_of_xla_are_ranges(tmp_path: Path) -> None:
    ranges = [one for one in read(tmp_path, two_gpus()).ranges if one.name == "dot.5"]
    assert [(one.thread, one.duration_ns, one.step) for one in ranges] == [
        (1, 4000, 7),
        (1, 4000, 8),
        (2, 4000, 7),
        (2, 4000, 8),
    ]


def test_copies_of_a_jax_trace(tmp_path: Path) -> None:
    (copy,) = read(tmp_path, two_gpus()).copies
    assert (copy.kind, copy.bytes, copy.duration_ns, copy.device_index) == ("DtoH", 4096, 1000, 0)


def test_a_kernel_without_a_group_has_no_step(tmp_path: Path) -> None:
    events = two_gpus()
    alone = kernel(0, 12, 0)
    del alone["args"]["group_id"]
    report = read(tmp_path, [*events, alone])
    assert list(report.kernels)[-1].step is None
    (reason,) = [gap.reason for gap in report.gaps if gap.quantity == "kernel.step"]
    assert reason.startswith("1 of 5 launches")


def test_a_trace_as_long_as_the_limit_may_lack_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = two_gpus()
    count = sum(event["ph"] == "X" for event in events)
    for limit, gaps in ((count, 1), (count - 1, 0)):
        monkeypatch.setattr(xla, "LIMIT", limit)
        report = read(tmp_path, events)
        assert sum(gap.quantity == "kernel" for gap in report.gaps) == gaps


def test_a_trace_without_a_gpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="JAX trace without kernels of a GPU"):
        read(tmp_path, [named("process_name", "/device:TPU:0", 1), work(1, 2, "fusion", 0, 1)])
