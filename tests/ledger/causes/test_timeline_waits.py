"""Launch-bound steps, waits of the host and communication: when they are named, with which number,
and when they are not."""

from __future__ import annotations

from typing import Any

import pytest

from perfctl.orchestrator.ledger.causes.timeline.judge import run_verdicts, worst
from perfctl.orchestrator.ledger.causes.timeline.records import RunVerdict
from perfctl.records.report import Collective, Copy, Kernel, OpCall
from perfctl.records.run import Run
from tests.make import synthetic

US = 1000


def row(count: int, length: int, gap: int, **what: Any) -> list[Kernel]:
    """``count`` kernels of ``length`` us, one after the other, ``gap`` us apart."""
    return [
        Kernel(
            number,
            "gemm",
            start_ns=number * (length + gap) * US,
            duration_ns=length * US,
            device_index=0,
            stream=7,
            correlation=number,
            **what,
        )
        for number in range(count)
    ]


def run_of(kernels: list[Kernel], **changes: Any) -> Run:
    return synthetic.foreign_run(
        1, **({"profiler": "torch", "kernels": kernels, "ranges": []} | changes)
    )


def said(run: Run) -> dict[str, RunVerdict]:
    return {verdict.rule: verdict for verdict in run_verdicts(run)}


def test_a_step_of_short_kernels_far_apart_is_launch_bound_by_its_gaps() -> None:
    found = said(run_of(row(50, length=10, gap=30)))["launch bound"]
    assert found.share == pytest.approx(49 * 30 / (50 * 10 + 49 * 30))
    assert (
        "1.47 ms (74.6%)" in found.sentence
        and "49 gaps" in found.sentence
        and "CUDA graph" in found.todo
    )


def test_kernels_that_follow_each_other_from_a_queue_are_not_launch_bound() -> None:
    assert not run_verdicts(run_of(row(50, length=3, gap=1)))


def test_a_busy_step_with_a_small_gap_after_each_kernel_is_not_launch_bound() -> None:
    assert not run_verdicts(run_of(row(50, length=47, gap=6)))


@pytest.mark.parametrize(("length", "fires"), [(43, False), (39, True)])
def test_gaps_of_less_than_a_fifth_of_the_step_are_not_launch_bound(
    length: int, fires: bool
) -> None:
    """49 gaps of 10 us after 50 kernels: 18.6% of the time with kernels of 43 us, 20.1% with
    kernels of 39 us."""
    assert (49 * 10 / (50 * length + 49 * 10) >= 0.2) is fires
    assert ("launch bound" in said(run_of(row(50, length, gap=10)))) is fires


def test_a_step_that_a_graph_launches_is_not_launch_bound() -> None:
    graph = [kernel._replace(correlation=1) for kernel in row(50, length=10, gap=30)]
    assert "launch bound" not in said(run_of(graph))
    assert "launch bound" not in said(run_of(row(50, length=10, gap=30, graph_id=4)))


def test_long_waits_between_few_kernels_are_not_launches() -> None:
    assert "launch bound" not in said(run_of(row(50, length=10, gap=900)))
    assert "launch bound" not in said(run_of(row(5, length=10, gap=30)))


def test_copies_fill_gaps() -> None:
    kernels = row(50, length=10, gap=30)
    copies = tuple(
        Copy("DtoD", 8, (kernel.start_ns or 0) + 10 * US, 30 * US, None, 0, 7) for kernel in kernels
    )
    assert "launch bound" not in said(run_of(kernels, copies=copies))


def waiting(
    step: int | None = None, stack: str | None = None, name: str = "aten::_local_scalar_dense"
) -> OpCall:
    """A call of the host from 95 to 125 us."""
    return OpCall(name, 95 * US, 30 * US, step=step, stack=stack)


TWO = [
    Kernel(0, "gemm", start_ns=0, duration_ns=100 * US, device_index=0),
    Kernel(1, "gemm", start_ns=300 * US, duration_ns=100 * US, device_index=0),
]
TO_HOST = (Copy("DtoH", 4, 110 * US, 5 * US, None, 0, 7),)
STACK = "<built-in method item>\ntorch/_tensor.py(33): item\ntrain.py(12): step\ntrain.py(40): main"


def test_item_in_a_step_costs_the_time_until_the_next_kernel_and_names_the_users_frame() -> None:
    found = said(run_of(TWO, copies=TO_HOST, waiting_calls=(waiting(stack=STACK),)))["host sync"]
    assert found.share == pytest.approx((300 - 115) / 400), (
        "from the end of the copy to the next kernel"
    )
    assert "item() (aten::_local_scalar_dense), 1 time, 30.0 µs" in found.sentence
    assert found.sentence.endswith("The main place is train.py(12): step.")


def test_without_stacks_the_verdict_says_so() -> None:
    found = said(run_of(TWO, copies=TO_HOST, waiting_calls=(waiting(),)))["host sync"]
    assert "no Python stacks" in found.sentence


def test_reading_a_value_that_is_on_the_host_is_no_sync() -> None:
    assert "host sync" not in said(run_of(TWO, copies=(), waiting_calls=(waiting(),)))
    late = (TO_HOST[0]._replace(start_ns=200 * US),)
    assert "host sync" not in said(run_of(TWO, copies=late, waiting_calls=(waiting(),))), (
        "the copy did not block the call"
    )


def test_a_wait_while_the_gpu_goes_on_working_costs_nothing() -> None:
    beside = [
        *TWO,
        Kernel(2, "gemm", start_ns=50 * US, duration_ns=240 * US, device_index=0, stream=8),
    ]
    assert "host sync" not in said(run_of(beside, copies=TO_HOST, waiting_calls=(waiting(),)))


def test_the_last_value_of_a_capture_costs_nothing() -> None:
    assert "host sync" not in said(run_of(TWO[:1], copies=TO_HOST, waiting_calls=(waiting(),)))


def talk(start: int, length: int, ranks: int = 8) -> Collective:
    return Collective("all_reduce", "0", ranks, 4096, "Float", start * US, length * US, None)


def nccl(start: int, length: int) -> Kernel:
    return Kernel(
        9,
        "ncclDevKernel_AllReduce",
        start_ns=start * US,
        duration_ns=length * US,
        device_index=0,
        stream=9,
    )


def test_an_all_reduce_is_exposed_for_what_no_other_kernel_covers() -> None:
    kernels = [*TWO, nccl(50, 150)]
    found = said(run_of(kernels, collectives=(talk(50, 150),)))["exposed communication of one rank"]
    assert found.share == pytest.approx((150 - 50) / 400)
    assert "100 µs of 150 µs" in found.sentence and "all_reduce" in found.sentence


def test_a_hidden_all_reduce_one_rank_and_a_report_of_collectives_alone_are_not_exposed() -> None:
    hidden = [*TWO, nccl(10, 80)]
    assert "exposed communication of one rank" not in said(
        run_of(hidden, collectives=(talk(10, 80),))
    )
    alone = [*TWO, nccl(110, 150)]
    assert "exposed communication of one rank" not in said(
        run_of(alone, collectives=(talk(110, 150, ranks=1),))
    )
    assert "exposed communication of one rank" not in said(
        run_of([nccl(0, 50)], collectives=(talk(0, 50),))
    )


def test_nothing_is_said_under_ncu_or_of_a_failed_run_and_the_worst_run_speaks() -> None:
    slow = row(50, length=10, gap=30)
    assert not run_verdicts(run_of(slow, profiler="ncu")) and not run_verdicts(
        run_of(slow, status="failed")
    )
    slower = run_of(row(50, length=10, gap=90))
    assert [run for _, run in worst([run_of(slow), slower])] == [slower]
