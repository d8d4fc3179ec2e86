"""What the events of rocprof's trace state twice. The trace is synthetic: two calls, a kernel on GPU 1, a copy, their arrows."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfctl import parsers

Events = list[dict[str, Any]]


def event(process: str, row: str, name: str, begin: int, **more: str) -> dict[str, Any]:
    end = begin + 4321
    times = {"BeginNs": str(begin), "EndNs": str(end), **more, "Name": name, "DurationNs": "4321"}
    return {"ph": "X", "name": name, "pid": process, "tid": row, "ts": str(begin // 1000), "dur": "4", "args": times}


def arrow(number: int, begin: int, process: int) -> Events:
    shared = {"cat": "DataFlow", "id": number, "name": "dep", "tid": 0}
    return [{"ts": begin // 1000, "ph": kind, "pid": at, **shared} for kind, at in (("s", 2), ("t", process))]


def trace() -> Events:
    rows = [("CPU HIP API", 2), ("COPY", 1), ("GPU0", 6), ("GPU1", 7)]
    return [
        {},
        *({"args": {"name": name}, "ph": "M", "pid": pid, "name": "process_name", "sort_index": number}
          for number, (name, pid) in enumerate(rows)),
        event("2", "9", "hipMemcpy", 10_000, args="(x)"),
        event("2", "9", "hipLaunchKernel", 20_000, args="(y)"),
        event("1", "0", "CopyHostToDevice", 30_500, **{"dev-id": "1", "stream-id": "0"}),
        event("7", "1", "gemm", 40_600, **{"dev-id": "1", "stream-id": "1"}),
        *arrow(0, 30_500, 1),
        *arrow(1, 40_600, 7),
    ]  # fmt: skip


def said(folder: Path, events: Events) -> str:
    path = folder / "results.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return " ".join(one.text for one in parsers.parse(path).diagnostics if one.severity == "warning")


def test_a_trace_as_rocprof_writes_it_is_not_doubted(tmp_path: Path) -> None:
    assert said(tmp_path, trace()) == ""


COPY, KERNEL, FIRST = 7, 8, 5
"""Where the copy, the kernel and the first call stand."""
CHANGES: dict[str, tuple[Callable[[Events], Any], str]] = {
    "a field of a call is gone": (lambda one: one[FIRST]["args"].pop("args"), "1 of 2 events of process 2 have args in args"),
    "a kernel has no number of its GPU": (lambda one: one[KERNEL]["args"].pop("dev-id"), "row of GPU 1, but its dev-id is None"),
    "a kernel is of another GPU": (lambda one: one[KERNEL]["args"].update({"dev-id": "0"}), "row of GPU 1, but its dev-id is 0"),
    "the name of a row is gone": (lambda one: one.pop(3), "rows with the sort_index 2 is missing"),
    "an arrow has no beginning": (lambda one: one.pop(9), "1 arrows have no beginning, no end or several"),
    "an arrow ends elsewhere": (lambda one: one[-1].update(ts=41), "1 of 2 operations of GPUs begin where no arrow ends"),
    "an operation is gone": (lambda one: one.pop(COPY), "2 arrows end at operations of GPUs, of which there are 1"),
    "an event is of no known kind": (lambda one: one[FIRST].update(ph="Y"), "1 events of kind Y are not as rocprof writes them"),
    "an event has no kind": (lambda one: one[FIRST].pop("ph"), "1 events of kind None are not as"),
    "a call has no times": (lambda one: one[FIRST]["args"].update(BeginNs="x"), "1 event has no BeginNs and EndNs, as the other 3"),
    "a time of one unit differs": (lambda one: one[FIRST].update(ts="11"), "ts, dur or DurationNs say otherwise"),
    "a name differs": (lambda one: one[KERNEL].update(name="relu"), "relu is called gemm in its arguments"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_trace_states_twice_is_compared(what: str, tmp_path: Path) -> None:
    change, words = CHANGES[what]
    events = copy.deepcopy(trace())
    change(events)
    assert words in said(tmp_path, events)
