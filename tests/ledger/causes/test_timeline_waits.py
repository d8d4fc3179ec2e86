"""Launch-bound steps, waits of the host and communication: when they are named, with which number,
and when they are not."""

import pytest

from perfctl.orchestrator.ledger.causes.timeline.judge import (
    detect_run_timeline_verdicts,
    pick_largest_verdict_per_rule,
)
from perfctl.orchestrator.ledger.usage.run_usage import RunUsage
from perfctl.records.report import Collective, Copy, OpCall
from tests.make.tables import table
from tests.make.timelines import US, find_verdict, in_a_row, kernel, make_run, verdicts_of


def row(count, length, gap, **more):
    return in_a_row(*[("gemm", length)] * count, gap=gap, **more)


def test_a_step_of_short_kernels_far_apart_is_launch_bound_by_its_gaps():
    verdict = find_verdict("launch bound", row(50, length=10, gap=30))
    assert verdict is not None
    assert verdict.share == pytest.approx(49 * 30 / (50 * 10 + 49 * 30))
    assert "1.47 ms (74.6%)" in verdict.sentence and "between 50 kernels" in verdict.sentence
    assert "CUDA graph" in verdict.todo


SHORT = row(50, length=10, gap=30)
FILL = [Copy("DtoD", 8, (item.start_ns or 0) + 10 * US, 30 * US, None, 0, 7) for item in SHORT]


@table(
    "kernels copies is_bound",
    {
        "kernels from a queue": (row(50, length=3, gap=1), (), False),
        "a busy step": (row(50, length=47, gap=6), (), False),
        # 49 gaps of 10 us after 50 kernels: 18.6% of the time, and 20.1%
        "less than a fifth": (row(50, length=43, gap=10), (), False),
        "a fifth": (row(50, length=39, gap=10), (), True),
        "one launch": ([item._replace(correlation=1) for item in SHORT], (), False),
        "a graph": (row(50, length=10, gap=30, graph_id=4), (), False),
        "long waits": (row(50, length=10, gap=900), (), False),
        "few kernels": (row(5, length=10, gap=30), (), False),
        "copies fill gaps": (SHORT, tuple(FILL), False),
    },
)
def test_gaps_of_launches_that_are_a_fifth_of_the_step_make_it_launch_bound(
    kernels, copies, is_bound
):
    assert (find_verdict("launch bound", kernels, copies=copies) is not None) is is_bound


def test_idle_time_of_a_named_cause_is_not_launch_bound():
    calls = [OpCall("cudaDeviceSynchronize", item.start_ns, 35 * US, thread=1) for item in SHORT]
    assert find_verdict("launch bound", SHORT, waiting_calls=tuple(calls)) is None


TWO = [kernel(0, 100), kernel(300, 100)]
"""The GPU is idle from 100 to 300 us."""
BESIDE = [*TWO, kernel(50, 240, stream=8)]
ITEM, WAIT, STREAM = (
    "aten::_local_scalar_dense",
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
)
BUILT_IN = (
    "<built-in method item>\ntorch/_tensor.py(33): item\ntrain.py(12): step\ntrain.py(40): main"
)
INNER = "torch/cuda/__init__.py(1108): synchronize\ntrain.py(12): step"
AT_12 = "The main place is train.py(12): step."


def call(name, start, end, stack=None):
    return OpCall(name, start * US, (end - start) * US, thread=1, stack=stack)


def copy(kind="DtoH", start=105, length=5, memory=None):
    return Copy(kind, 4, start * US, length * US, None, 0, 7, memory)


READ = call(ITEM, 95, 125)
FROM_HOST = (call("aten::copy_", 95, 125), call(STREAM, 104, 120))


@table(
    "calls copies done phrases todo",
    {
        **{
            name: (
                [call(name, 20, 110, INNER)],
                (),
                100,
                [f"{name}, 1 time, 90.0 µs", "200 µs in total, 50.0% of 400 µs", AT_12],
                "torch.cuda.synchronize() and cudaStreamSynchronize",
            )
            for name in (WAIT, STREAM, "cudaEventSynchronize", "hipDeviceSynchronize")
        },
        "a stream that ended with a copy to the host": (
            [call(STREAM, 20, 112)],
            [copy()],
            110,
            [f"{STREAM} after a copy to the host, 1 time"],
            "read it a step later",
        ),
        "a stream that ended with a copy from the host": (
            [call(STREAM, 20, 112)],
            [copy("HtoD")],
            110,
            [f"{STREAM} after a copy from the host, 1 time"],
            "pin_memory=True",
        ),
        "it waits for all": ([call(WAIT, 20, 112)], [copy()], 110, [f"{WAIT}, 1 time"], ""),
        "two waits before one kernel lose its gap once": (
            [call(WAIT, 20, 110), call(WAIT, 140, 170)],
            [copy("HtoD", 150, 10)],
            160,
            [f"{WAIT}, 2 times"],
            "",
        ),
        "item()": (
            [call(ITEM, 95, 125, BUILT_IN)],
            [copy(start=110)],
            115,
            [f"item() ({ITEM}), 1 time, 30.0 µs", AT_12],
            "",
        ),
        "item() in a trace without stacks": ([READ], [copy()], 110, ["no Python stacks"], ""),
        "the wait inside item() is counted once": (
            [READ, call(STREAM, 106, 120)],
            [copy()],
            110,
            [f"item() ({ITEM}), 1 time, 30.0 µs"],
            "",
        ),
        **{
            f"a copy from {memory} memory": (
                FROM_HOST,
                [copy("HtoD", memory=memory)],
                110,
                [f"{source} (aten::copy_), 1 time"],
                todo,
            )
            for memory, source, todo in (
                ("pageable", "a copy from pageable memory", "from pinned memory"),
                ("pinned", "a blocking copy from pinned memory", "already pinned"),
                (None, "a blocking copy from the host", "from pinned memory"),
            )
        },
    },
)
def test_a_wait_of_the_host_costs_the_time_from_what_it_waited_for_to_the_next_kernel(
    calls, copies, done, phrases, todo
):
    verdict = find_verdict("host sync", TWO, copies=tuple(copies), waiting_calls=tuple(calls))
    assert verdict is not None and verdict.share == pytest.approx((300 - done) / 400)
    assert all(phrase in verdict.sentence for phrase in phrases)
    assert todo in verdict.todo


@table(
    "calls kernels copies",
    {
        "the GPU was done": (call(WAIT, 120, 130), TWO, ()),
        "the end of the capture": (call(WAIT, 320, 410), TWO, ()),
        "another kernel runs": (call(STREAM, 20, 110), BESIDE, ()),
        "a pause of the host": (call(WAIT, 20, 110), [TWO[0], kernel(5000, 100)], ()),
        "a value on the host": (READ, TWO, ()),
        "a copy after the call": (READ, TWO, (copy(start=200),)),
        "a value while another kernel runs": (READ, BESIDE, (copy(),)),
        "the last value of a capture": (READ, TWO[:1], (copy(),)),
    },
)
def test_a_wait_without_an_idle_gpu_or_a_next_kernel_costs_nothing(calls, kernels, copies):
    assert find_verdict("host sync", kernels, copies=copies, waiting_calls=(calls,)) is None


def reduce(start, length, ranks=8):
    """An all-reduce with its kernel on a stream of its own."""
    operation = Collective("all_reduce", "0", ranks, 4096, "Float", start * US, length * US, None)
    return kernel(start, length, "ncclDevKernel_AllReduce", stream=9), operation


@table(
    "kernels communication share",
    {
        "partly covered": (TWO, reduce(50, 150), (150 - 50) / 400),
        "covered": (TWO, reduce(10, 80), None),
        "one rank": (TWO, reduce(110, 150, ranks=1), None),
        "collectives only": ([], reduce(0, 50), None),
    },
)
def test_communication_is_exposed_for_what_no_other_kernel_covers(kernels, communication, share):
    launch, operation = communication
    rule = "exposed communication of one rank"
    verdict = find_verdict(rule, [*kernels, launch], collectives=(operation,))
    assert (verdict is not None) is (share is not None)
    if verdict is not None:
        assert verdict.share == pytest.approx(share)
        assert "100 µs of 150 µs" in verdict.sentence and "all_reduce" in verdict.sentence


def test_runs_under_ncu_and_failed_ones_have_no_verdict_and_the_worst_run_is_named():
    assert not verdicts_of(make_run(SHORT, profiler="ncu"))
    assert not verdicts_of(make_run(SHORT, status="failed"))
    slower = make_run(row(50, length=10, gap=90))
    runs = [(run, detect_run_timeline_verdicts(RunUsage(run))) for run in (make_run(SHORT), slower)]
    assert [run for _, run in pick_largest_verdict_per_rule(runs)] == [slower]
