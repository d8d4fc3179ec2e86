"""Calls that wait for the GPU by their name: when the verdict counts them, what it calls them, and
when it is silent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.ingest.ingest import ingest
from perfctl.orchestrator.ledger.causes.timeline.judge import run_verdicts
from perfctl.orchestrator.ledger.causes.timeline.records import RunVerdict
from perfctl.orchestrator.store import database, read
from perfctl.records.report import Copy, Kernel, OpCall
from tests.make import synthetic
from tests.make.kineto import event, kernel, launch

US = 1000
TWO = [
    Kernel(0, "gemm", start_ns=0, duration_ns=100 * US, device_index=0),
    Kernel(1, "gemm", start_ns=300 * US, duration_ns=100 * US, device_index=0),
]
STACK = "torch/cuda/__init__.py(1108): synchronize\ntrain.py(12): step"


def call(name: str, start: int, end: int, **what: Any) -> OpCall:
    return OpCall(name, start * US, (end - start) * US, thread=1, **what)


def said(
    *calls: OpCall, kernels: list[Kernel] = TWO, copies: tuple[Copy, ...] = ()
) -> RunVerdict | None:
    run = synthetic.foreign_run(
        1, profiler="torch", kernels=kernels, ranges=[], copies=copies, waiting_calls=tuple(calls)
    )
    return next((one for one in run_verdicts(run) if one.rule == "host sync"), None)


@pytest.mark.parametrize(
    "name",
    [
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize",
        "cudaEventSynchronize",
        "hipDeviceSynchronize",
    ],
)
def test_a_bare_synchronisation_costs_the_time_from_the_last_kernels_end_to_the_next_one(
    name: str,
) -> None:
    found = said(call(name, 20, 110, stack=STACK))
    assert found is not None
    assert found.share == pytest.approx((300 - 100) / 400)
    assert (
        f"{name}, 1 time, 90.0 µs" in found.sentence
        and "200 µs in total, 50.0% of 400 µs" in found.sentence
    )
    assert found.sentence.endswith("The main place is train.py(12): step.")
    assert (
        "synchronize() and similar calls from the step" in found.todo and "pinned" not in found.todo
    )


@pytest.mark.parametrize(
    "kind, named, advice",
    [
        ("DtoH", "cudaStreamSynchronize after a copy to the host", "read it a step later"),
        ("HtoD", "cudaStreamSynchronize after a copy from the host", "pin_memory=True"),
    ],
)
def test_a_stream_that_ended_with_a_copy_is_named_after_it(
    kind: str, named: str, advice: str
) -> None:
    copies = (Copy(kind, 8, 105 * US, 5 * US, None, 0, 7),)
    found = said(call("cudaStreamSynchronize", 20, 112), copies=copies)
    assert found is not None
    assert found.share == pytest.approx((300 - 110) / 400), (
        "from the end of the copy to the next kernel"
    )
    assert f"{named}, 1 time" in found.sentence and advice in found.todo
    whole = said(call("cudaDeviceSynchronize", 20, 112), copies=copies)
    assert whole is not None and "after a copy" not in whole.sentence, "it waits for everything"


def test_two_waits_before_one_kernel_lose_its_gap_once() -> None:
    copies = (Copy("HtoD", 8, 150 * US, 10 * US, None, 0, 7),)
    found = said(
        call("cudaDeviceSynchronize", 20, 110),
        call("cudaDeviceSynchronize", 140, 170),
        copies=copies,
    )
    assert found is not None
    assert found.share == pytest.approx((300 - 160) / 400), (
        "from the end of the copy, the last thing that was waited for"
    )


def test_a_call_that_finds_the_gpu_done_waits_for_nothing() -> None:
    assert said(call("cudaDeviceSynchronize", 120, 130)) is None


def test_the_last_synchronisation_of_a_capture_and_one_beside_a_running_kernel_cost_nothing() -> (
    None
):
    assert said(call("cudaDeviceSynchronize", 320, 410)) is None
    beside = [
        *TWO,
        Kernel(2, "gemm", start_ns=50 * US, duration_ns=240 * US, device_index=0, stream=8),
    ]
    assert said(call("cudaStreamSynchronize", 20, 110), kernels=beside) is None


def test_a_pause_of_the_host_after_a_synchronisation_is_not_its_cost() -> None:
    late = [TWO[0], TWO[1]._replace(start_ns=5000 * US)]
    assert said(call("cudaDeviceSynchronize", 20, 110), kernels=late) is None


def test_the_synchronisation_inside_item_is_counted_once_as_item() -> None:
    copies = (Copy("DtoH", 4, 105 * US, 5 * US, None, 0, 7),)
    found = said(
        call("aten::_local_scalar_dense", 95, 125),
        call("cudaStreamSynchronize", 106, 120),
        copies=copies,
    )
    assert found is not None
    assert found.share == pytest.approx((300 - 110) / 400)
    assert "item()" in found.sentence and "cudaStreamSynchronize" not in found.sentence


@pytest.mark.parametrize(
    ("memory", "named", "todo"),
    [
        ("pageable", "a copy from pageable memory (aten::copy_), 1 time", "from pinned memory"),
        ("pinned", "a blocking copy from pinned memory (aten::copy_), 1 time", "non_blocking=True"),
        (None, "a blocking copy from the host (aten::copy_), 1 time", "from pinned memory"),
    ],
)
def test_a_wait_inside_a_copy_to_the_gpu_names_the_memory_that_the_report_states(
    memory: str | None, named: str, todo: str
) -> None:
    copies = (Copy("HtoD", 4, 105 * US, 5 * US, None, 0, 7, memory),)
    found = said(
        call("aten::copy_", 95, 125), call("cudaStreamSynchronize", 104, 120), copies=copies
    )
    assert found is not None
    assert named in found.sentence
    assert todo in found.todo and ("pin_memory" in found.todo) == (memory != "pinned")


def test_a_trace_with_stacks_names_the_line_that_synchronises(tmp_path: Path) -> None:
    events = [
        event("python_function", "train.py(7): step", 0, 400),
        launch(1, 1),
        launch(190, 2),
        event("cuda_runtime", "cudaDeviceSynchronize", 20, 95, correlation=3),
        kernel("gemm", 10, 100, correlation=1, device=0),
        kernel("gemm", 300, 100, correlation=2, device=0),
    ]
    (tmp_path / "t.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    assert not ingest(tmp_path / "t.json", tmp_path / "s.db").failed
    with database.reading(tmp_path / "s.db") as connection:
        (run,) = read.load(connection, read.run_ids(connection))
    (found,) = (one for one in run_verdicts(run) if one.rule == "host sync")
    assert found.share == pytest.approx((300 - 110) / 390)
    assert found.sentence.endswith("The main place is train.py(7): step.")
