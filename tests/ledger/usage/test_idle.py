"""Waits of a device: where each begins and ends, what it is put down to, and what lies around it.
In microseconds."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from perfctl.orchestrator.ledger.usage.run_usage import RunUsage
from perfctl.records.report import Copy, Kernel, OpCall, Range
from tests.make.synthetic import foreign_run
from tests.make.tables import table

US = 1000


def kernel(start, length=10, launch=0, device=0):
    return Kernel(
        launch,
        f"k{launch}",
        start_ns=round(start * US),
        duration_ns=round(length * US),
        device_index=device,
    )


def named(name, start, length, phase=None):
    duration = None if length is None else round(length * US)
    return Range(0, name, None, round(start * US), duration, 1, 0, None, phase=phase)


def copy(start, length, device=None):
    return Copy("HtoD", 8, round(start * US), round(length * US), device_index=device)


def waits_of(kernels, **around):
    return RunUsage(foreign_run(1, kernels=kernels, **({"ranges": []} | around))).idle_times


def causes(**around):
    """Of one wait of 100 us, from 10 to 110, in us."""
    (found,) = waits_of([kernel(0), kernel(110)], **around)
    assert found.window_ns == 120 * US
    return {cause: length // US for cause, length in found.by_cause.items()}


@table("covered cause", [(49, "host"), (50, "copy"), (51, "copy")])
def test_what_covers_half_of_a_wait_is_its_cause(covered, cause):
    found = causes(copies=[copy(60, covered)])
    # what is copied is not the host's
    assert found == ({cause: 100} if cause == "copy" else {"host": 100 - covered, "copy": covered})


@table(
    "copies copied",
    [
        ([(-30, 85)], 45),  # of it lie in the wait
        ([(-30, 90)], 100),
        ([(70, 500)], 40),
        ([(60, 500)], 100),
        ([(20, 20), (30, 20), (45, 10)], 35),  # overlapping ones count once
        ([(20, 20), (40, 30)], 100),
        # one inside of another, and one that counts besides
        ([(20, 40), (30, 10), (80, 20)], 100),
        ([(20, 10), (40, 10), (60, 10), (80, 10), (95, 9)], 49),
        ([(20, 10), (40, 10), (60, 10), (80, 10), (95, 10)], 100),
        ([(-90, 50), (-30, 30), (111, 90)], 0),
    ],
)
def test_only_what_lies_in_the_wait_counts_and_only_once(copies, copied):
    found = {"copy": copied, "host": 100 - copied}
    assert causes(copies=[copy(*one) for one in copies]) == {
        cause: length for cause, length in found.items() if length
    }


def test_waits_before_the_steady_part_are_start_up_and_later_ones_are_not():
    # 10 us, a wait of 390, then 420 us with a wait of 20 among them, a wait of 490, 10 us
    (found,) = waits_of([kernel(0), kernel(400, 200), kernel(620, 200), kernel(1310)])
    assert found.by_cause == {"start-up": 390 * US, "host": (20 + 490) * US}


def test_a_copy_explains_before_loading_and_loading_before_synchronising():
    data, wait = named("perfctl:data", 20, 60, "data"), named("cudaStreamSynchronize", 20, 80)
    assert causes(copies=[copy(20, 50)], ranges=[data, wait]) == {"copy": 100}
    assert causes(ranges=[data, wait]) == {"loading data": 100}
    for waiting in (wait, named("event Synchronise", 20, 80)):
        assert causes(ranges=[waiting]) == {"synchronising": 100}


def test_what_is_not_known_to_have_lasted_or_is_something_else_explains_nothing():
    ranges = [
        named("cudaDeviceSynchronize", 20, None),
        named("perfctl:data", 20, None, "data"),
        named("forward", 20, 80, "forward"),
    ]
    copies = [
        Copy("HtoD", 8, None, 50 * US),
        Copy("HtoD", 8, 30 * US, None),
        copy(20, 80, device=1),
    ]
    assert causes(ranges=ranges, copies=copies) == {"host": 100}
    assert causes(copies=[copy(20, 80, device=0)]) == {"copy": 100}


@table(
    "wait cause", [(9.999, "launches one by one"), (10, "launches one by one"), (10.001, "host")]
)
def test_a_wait_as_long_as_a_launch_takes_is_one(wait, cause):
    (found,) = waits_of([kernel(0), kernel(10 + wait, launch=1)])
    assert found.by_cause == {cause: round(wait * US)}


def test_the_ten_longest_are_named_longest_first_and_all_are_counted():
    waits = range(20, 32)
    starts = [0, *accumulate(10 + wait for wait in waits)]
    (found,) = waits_of([kernel(at, launch=n) for n, at in enumerate(starts)][::-1])
    assert found.count == 12
    assert [
        (wait.length_ns // US, wait.after and wait.after.launch, wait.before and wait.before.launch)
        for wait in found.largest
    ] == [(20 + place, place, place + 1) for place in range(11, 1, -1)]
    assert found.by_cause == {"host": sum(waits) * US}
    assert {wait.around for wait in found.largest} == {None}


def test_waits_at_the_edges_of_the_steps_have_a_kernel_on_one_side_only():
    step = Range(0, "perfctl:step:0", None, 0, 200 * US, 1, 0, None, step=0)
    (found,) = waits_of([kernel(50), kernel(-40, launch=9)], ranges=[step])
    last, first = found.largest
    assert (first.start_ns, first.length_ns) == (0, 50 * US)
    assert (last.start_ns, last.length_ns) == (60 * US, 140 * US)
    assert (first.after, last.before) == (None, None)
    assert first.before is not None and last.after is not None
    assert first.before.launch == last.after.launch == 0
    assert last.around == "perfctl:step:0"


@table(
    "start length around",
    [
        (60, 1, "inner"),
        (59, 1, "outer"),
        (61, 9, "outer"),
        (60, 0, "outer"),
        (50, 20, "inner"),
        (0, 300, "outer"),
    ],
)
def test_around_a_wait_is_the_innermost_range_over_its_middle(start, length, around):
    ranges = [
        named("outer", 0, 200),
        named("inner", start, length),
        named("of no known end", 0, None),
    ]
    (found,) = waits_of([kernel(0), kernel(110)], ranges=ranges)
    assert found.largest[0].around == around


def test_each_device_waits_for_itself():
    kernels = [kernel(0, 100, 0), kernel(0, 30, 1, 1), kernel(70, 30, 2, 1), kernel(40, 10, 3, 1)]
    first, second = waits_of(kernels)
    assert (first.device, first.count, first.by_cause) == (0, 0, {})
    assert (second.device, second.count) == (1, 2)
    assert second.by_cause == {"launches one by one": 10 * US, "host": 20 * US}


@table(
    "kernels profiler",
    [
        ([kernel(0), kernel(20)], "ncu"),
        ([], "nsys"),
        ([kernel(0), Kernel(1, "k", duration_ns=5)], "nsys"),
        ([kernel(0), Kernel(1, "k", start_ns=5)], "nsys"),
    ],
)
def test_waits_are_unknown_under_ncu_without_kernels_and_without_times(kernels, profiler):
    assert waits_of(kernels, profiler=profiler) == ()


@table(
    "name cause",
    [
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "loading data"),
        ("loader.__next__", "loading data"),
        ("cudaStreamSynchronize", "synchronising"),
        ("cudaDeviceSynchronize", "synchronising"),
        ("cudaMemcpy", "copy"),
        ("ncclAllReduce", "communication"),
        ("rcclGroupEnd", "communication"),
        ("cuModuleLoadData", "start-up"),
        ("Torch-Compiled Region: 0/0", "host"),
    ],
)
@table("kind", ["ranges", "calls"])
def test_the_cause_of_a_wait_is_recognised_by_the_name_of_any_range_or_call(name, cause, kind):
    around: dict[str, Any] = (
        {"ranges": [named(name, 20, 80)]}
        if kind == "ranges"
        else {"waiting_calls": (OpCall(name, 20 * US, 80 * US),)}
    )
    assert causes(**around) == {cause: 100}


def test_a_step_in_which_one_layer_tries_all_algorithms_is_start_up():
    names = ("implicit_convolve_sgemm", "fft2d_r2c_32x32", "winogradForwardData4x4", "relu")
    tried = [
        kernel(100 * n, launch=n)._replace(name=name, layer="conv1", step=0)
        for n, name in enumerate(names)
    ]
    later = [kernel(900, launch=9)._replace(name="relu", step=1)]
    (found,) = waits_of([*tried, *later])
    assert found.by_cause == {"start-up": 3 * 90 * US, "host": 590 * US}
    (found,) = waits_of([*tried[:2], *tried[3:], *later])
    assert "start-up" not in found.by_cause, "two algorithms may be of two calls"


def test_a_wait_in_calls_that_allocate_is_memory_management():
    calls = (OpCall("cudaMalloc", 20 * US, 60 * US),)
    assert causes(waiting_calls=calls) == {"memory management": 100}


@table("launched start", [(90, 0), (110, 110)])
def test_a_step_whose_kernels_begin_after_its_end_begins_with_them(launched, start):
    step = Range(0, "perfctl:step:0", None, 0, 100 * US, 1, 0, None, step=0)
    usage = RunUsage(foreign_run(1, kernels=[kernel(launched)], ranges=[step]))
    assert usage.window.start == start * US
