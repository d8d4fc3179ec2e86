"""What a Kineto trace says as a whole, and its single copies and kernels, from traces made
up here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfctl.parsers.kineto import trace as kineto_trace
from perfctl.records.report import Copy, Device, MemoryFigure, Report
from tests.parsers.kineto_trace import Event, event, read
from tests.parsers.kineto_trace import operation as cpu_operation

ROOT = Path(__file__).resolve().parents[3]
YEAR_2000_NS = 946_684_800 * 10**9


def gpu(
    name: str, ts: object, dur: object, correlation: int, device: int = 0, **args: Any
) -> Event:
    return event("kernel", name, ts, dur, correlation=correlation, device=device, stream=7, **args)


def operation(name: str = "aten::mm", ts: object = 1, dur: object = 2, external: int = 1) -> Event:
    return cpu_operation(name, ts, dur, external)


def reasons(report: Report) -> dict[str, str]:
    return {gap.quantity: f"{gap.state}: {gap.reason}" for gap in report.gaps}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"cuda_runtime_version": 12040}, {"cuda_runtime_version": "12040", "cuda": "12.4"}),
        ({"cuda_runtime_version": "11080"}, {"cuda_runtime_version": "11080", "cuda": "11.8"}),
        ({"cuda_runtime_version": 9020}, {"cuda_runtime_version": "9020", "cuda": "9.2"}),
        ({"cuda_runtime_version": 0}, {"cuda_runtime_version": "0"}),
        (
            {"hip_runtime_version": 60_342_134},
            {"hip_runtime_version": "60342134", "hip": "6.3.42134"},
        ),
        (
            {"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8, "host": "x"}},
            {"distributed_backend": "nccl", "distributed_rank": "3", "distributed_world_size": "8"},
        ),
        ({"distributedInfo": {"rank": [1]}}, {}),
        ({"pytorch_version": "2.1.0"}, {"torch": "2.1.0"}),
        ({"baseTimeNanoseconds": 7}, {"clock_base_ns": "7"}),
        ({"with_stack": 1, "record_shapes": [1]}, {"with_stack": "1"}),
        ({"distributedInfo": "none", "cupti_version": 22}, {"cupti_version": "22"}),
        ({"cuda_runtime_version": 12000}, {"cuda_runtime_version": "12000", "cuda": "12.0"}),
        ({"cuda_runtime_version": 11990}, {"cuda_runtime_version": "11990", "cuda": "11.99"}),
        ({"hip_runtime_version": 60_000_000}, {"hip_runtime_version": "60000000", "hip": "6.0.0"}),
        ({"hip_runtime_version": 60_300_000}, {"hip_runtime_version": "60300000", "hip": "6.3.0"}),
        (
            {"hip_runtime_version": 69_999_999},
            {"hip_runtime_version": "69999999", "hip": "6.99.99999"},
        ),
        (
            {"hip_driver_version": 60_342_134, "baseTimeNanoseconds": 1.5},
            {"hip_driver_version": "60342134"},
        ),
    ],
)
def test_versions_are_read_from_cuda_and_hip_numbers(
    metadata: dict[str, Any], expected: dict[str, str], tmp_path: Path
) -> None:
    """CUDA: 1000 x major + 10 x minor; HIP: 10,000,000 x major + 100,000 x minor + patch."""
    assert read(tmp_path, operation(), **metadata).environment == {
        **expected,
        "schema_version": "1",
    }


@pytest.mark.parametrize(
    ("metadata", "version"),
    [
        ({"torch_version": "2.5.1", "pytorch_version": "2.1.0"}, "2.5.1"),
        ({"torch_version": ""}, None),
        ({"torch_version": "", "PyTorch version": "1.9"}, "1.9"),
        ({}, None),
        ({"pytorch_version": 2}, "2"),
    ],
)
def test_the_version_is_that_of_torch_by_the_first_name_that_says_it(
    metadata: dict[str, Any], version: str | None, tmp_path: Path
) -> None:
    found = read(tmp_path, operation(), **metadata)
    assert (found.tool_version, found.environment.get("torch")) == (version, version)


@pytest.mark.parametrize(
    ("base", "started"),
    [
        (1_700_000_000 * 10**9, "2023-11-14T22:13:21+00:00"),
        (YEAR_2000_NS - 10**9, None),
        (0, None),
        ("x", None),
        (YEAR_2000_NS, "2000-01-01T00:00:01+00:00"),
        (4 * YEAR_2000_NS, None),
        (4 * YEAR_2000_NS - 2 * 10**9, "2089-12-29T23:59:59+00:00"),
    ],
)
def test_a_start_is_given_where_the_clock_counts_from_1970(
    base: object, started: str | None, tmp_path: Path
) -> None:
    """The first event begins one second after the base."""
    found = read(tmp_path, operation(ts=1_000_000, dur=5), baseTimeNanoseconds=base)
    assert (found.started_at, found.duration_ns) == (started, 5_000)


def test_the_capture_lasts_from_the_first_begin_to_the_last_end_or_as_its_window_says(
    tmp_path: Path,
) -> None:
    events = [
        operation(ts=10, dur=3),
        gpu("k", 5, 4, 1),
        gpu("late", 20, 6, 2),
        operation("open", 24, None, 2),
    ]
    assert read(tmp_path, *events).duration_ns == (26 - 5) * 1000
    assert (
        read(tmp_path, operation(ts=10, dur=3), operation("open", 24, None, 2)).duration_ns
        == 14_000
    )
    assert read(tmp_path, gpu("k", 5, None, 1), gpu("l", 8, None, 2)).duration_ns == 3_000
    copy = event("gpu_memcpy", "Memcpy HtoD", 2, 30, bytes=8)
    assert read(tmp_path, *events, copy, gpu("lost", None, 99, 3)).duration_ns == 30_000
    window = event("Trace", "PyTorch Profiler (0)", 8, 4)
    assert read(tmp_path, *events, window).duration_ns == 4_000
    assert read(tmp_path).duration_ns is None


def test_what_the_trace_holds_is_in_its_form(tmp_path: Path) -> None:
    kernel, copy = gpu("k", 5, 4, 1), event("gpu_memcpy", "Memcpy HtoD", 5, 4, bytes=8)
    assert read(tmp_path, operation(), kernel).form == "Kineto trace, CPU and GPU"
    assert read(tmp_path, operation(), copy).form == "Kineto trace, CPU and GPU"
    assert read(tmp_path, kernel).form == "Kineto trace, GPU only"
    assert read(tmp_path, operation()).form == "Kineto trace, CPU only"
    assert read(tmp_path).form == "Kineto trace, no operations and no kernels"


def test_devices_that_ran_most_kernels_come_first_and_then_by_number(tmp_path: Path) -> None:
    listed = [
        {"id": 2, "name": "C", "computeMajor": 8, "computeMinor": 6},
        {"name": "B"},
        "no entry",
        {"id": 0, "name": ""},
    ]
    events = [gpu("k", 1, 1, 1, device=2), gpu("k", 3, 1, 2, device=2), gpu("k", 5, 1, 3, device=1)]
    assert read(tmp_path, *events, deviceProperties=listed).devices == (
        Device("C", "gpu", 2, "8.6"),
        Device("B", "gpu", 1),
        Device(None, "gpu", 0),
    )
    assert read(tmp_path, *events).devices == ()
    assert read(tmp_path, operation(), deviceProperties="none").devices == (Device(None, "cpu"),)
    assert read(tmp_path, operation(), gpu("k", 1, 1, 1)).devices == ()
    assert read(tmp_path, operation(), event("gpu_memcpy", "Memcpy HtoD", 5, 4)).devices == ()
    assert read(tmp_path).devices == ()


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"computeMajor": 8}, Device(None, "gpu", 0)),
        ({"computeMinor": 6}, Device(None, "gpu", 0)),
        ({"id": 3, "name": 7, "computeMajor": 0, "computeMinor": 0}, Device(None, "gpu", 3, "0.0")),
        (
            {"name": "Q", "numSms": "84", "totalGlobalMem": 1 << 34},
            Device("Q", "gpu", 0, None, 84, 16 * 1024**3),
        ),
    ],
)
def test_a_device_keeps_what_is_said_of_it(
    entry: dict[str, Any], expected: Device, tmp_path: Path
) -> None:
    assert read(tmp_path, operation(), deviceProperties=[entry]).devices == (expected,)


def test_an_amd_gpu_is_known_by_its_name_or_by_the_software_of_the_trace(tmp_path: Path) -> None:
    for name, metadata in (
        ("AMD Instinct", {}),
        ("MI300", {"hip_driver_version": 1}),
        ("MI300", {"roctracer_version": 1}),
    ):
        listed = [{"id": 0, "name": name, "computeMajor": 9, "computeMinor": 4}]
        found = read(tmp_path, gpu("k", 1, 1, 1), deviceProperties=listed, **metadata)
        assert found.devices == (Device(name, "gpu", 0, "gfx942"),)


def test_peaks_are_the_largest_totals_of_one_gpu(tmp_path: Path) -> None:
    def allocation(at: int, allocated: int, reserved: int, device: int = 0, kind: int = 1) -> Event:
        args = {"Bytes": 1, "Device Type": kind, "Device Id": device}
        totals = {"Total Allocated": allocated, "Total Reserved": reserved}
        return {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": at, "args": args | totals}

    seen = [
        allocation(1, 100, 900),
        allocation(2, 300, 800),
        allocation(3, 200, 850),
        allocation(4, 999, 999, kind=0),
    ]
    figures = (MemoryFigure("peak", "allocated", 300), MemoryFigure("peak", "reserved", 900))
    assert read(tmp_path, operation(), *seen).memory == figures
    assert read(tmp_path, operation(), *seen, allocation(5, 1, 1, device=1)).memory == ()


def test_gaps_count_what_is_missing(tmp_path: Path) -> None:
    found = reasons(read(tmp_path, operation(), gpu("a", 1, 2, 1)))
    assert found["kernel.registers"].startswith("not_available")
    assert "operation.flops" in found and "kernel" not in found and "operation" not in found
    known = reasons(
        read(tmp_path, gpu("k", 1, 2, 1, **{"registers per thread": 40, "shared memory": 0}))
    )
    assert known.keys() == {"kernel.layer", "operation"}
    assert known["operation"].endswith("torch.profiler ran without ProfilerActivity.CPU")


def test_gaps_count_the_launches_that_lack_something_and_say_nothing_of_figures_that_are_there(
    tmp_path: Path,
) -> None:
    note = event("user_annotation", "fc:forward", 0, 10, **{"External id": 1})
    inside, outside = (
        gpu("a", 1, 2, 1, **{"External id": 1, "registers per thread": 40}),
        gpu("b", 5, 2, 2),
    )
    found = reasons(read(tmp_path, note, inside, outside, gpu("c", None, 2, 3)))
    assert found["kernel.layer"].startswith(
        "not_collected: 2 of 3 launches are outside every range"
    )
    assert (
        found["kernel.duration_ns"]
        == "unreadable: 1 launches have no start or duration in the trace"
    )
    assert found.keys() == {
        "kernel.layer",
        "kernel.duration_ns",
        "kernel.static_shared_bytes",
        "kernel.dynamic_shared_bytes",
        "operation",
    }
    shared = reasons(
        read(
            tmp_path,
            note,
            {**inside, "args": {**inside["args"], "shared memory": 0}},
            operation(external=2),
        )
    )
    assert shared.keys() == {"operation.flops", "operation.memory_bytes"}


def test_a_trace_with_copies_alone_says_that_no_kernel_is_in_it(tmp_path: Path) -> None:
    found = reasons(read(tmp_path, operation(), event("gpu_memcpy", "Memcpy HtoD", 5, 4, bytes=8)))
    assert found["kernel"].startswith("not_collected: the trace holds copies but no kernel:")
    assert "operation.device_ns" not in found
    bare = reasons(read(tmp_path, operation(dur=None)))
    assert bare["kernel"].startswith("not_collected: the trace holds no GPU activity:")
    assert bare["operation.device_ns"] == bare["kernel"]
    assert bare["operation.cpu_ns"].startswith("unreadable")
    assert "operation.cpu_ns" not in found
    ranged = reasons(read(tmp_path, event("user_annotation", "open", 1, None), operation()))
    assert ranged.keys() == {
        "kernel",
        "operation.device_ns",
        "operation.flops",
        "operation.memory_bytes",
    }


def test_messages_of_the_trace_are_passed_on_shortened(tmp_path: Path) -> None:
    said = read(tmp_path, operation(), WARNING=["w" * 600, "", 7], ERROR="lost").diagnostics
    assert [(one.severity, one.source, one.text) for one in said] == [
        ("error", "torch.profiler", "lost"),
        ("warning", "torch.profiler", "w" * 500),
    ]
    many = read(tmp_path, operation(), WARNING=[str(number) for number in range(30)]).diagnostics
    assert [one.text for one in many] == [str(number) for number in range(20)]


def test_timeless_events_are_counted(tmp_path: Path) -> None:
    lost = operation("lost", None, 1, 9)
    said = [one.text for one in read(tmp_path, operation(), lost).diagnostics]
    assert "1 operations or ranges have no start time and were left out" in said


def test_what_was_put_right_and_what_is_not_read_is_said(tmp_path: Path) -> None:
    ranges = [event("cuda_profiler_range", "sm", at, 1) for at in (1, 2)]
    assert [one.text for one in read(tmp_path, operation(), *ranges).diagnostics] == [
        "not understood and left out: categories cuda_profiler_range (2 events)"
    ]
    assert not read(tmp_path, operation()).diagnostics
    path = tmp_path / "old.json"
    path.write_text(
        json.dumps({"schemaVersion": 1, "traceEvents": [operation(ts=77)]}).replace("77", "inf")
    )
    assert [(one.severity, one.text) for one in kineto_trace.parse(path).diagnostics] == [
        (
            "warning",
            "what JSON does not allow was repaired: numbers, escapes or characters",
        ),
        ("warning", "1 operations or ranges have no start time and were left out"),
    ]


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("gpu_memcpy", "Memcpy PtoP", "PtoP"),
        ("gpu_memset", "Memset (Device)", "memset"),
        ("gpu_memset", "memset", "memset"),
        ("gpu_memcpy", "CopyHostToDevice", "HtoD"),
        ("gpu_memcpy", "CopyDeviceToHost", "DtoH"),
        ("gpu_memcpy", "something else", "something else"),
    ],
)
def test_copies_have_a_kind_a_size_and_a_place(
    category: str, name: str, kind: str, tmp_path: Path
) -> None:
    found = read(tmp_path, event(category, name, 5, 4, bytes=8, device=1, stream=20, correlation=3))
    assert list(found.copies) == [Copy(kind, 8, 5_000, 4_000, None, 1, 20)]


@pytest.mark.parametrize(
    ("name", "source", "destination"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "pageable", "device"),
        ("Memcpy DtoH (Device -> Pinned)", "device", "pinned"),
        ("Memcpy HtoD (Managed Static -> Array)", "managed", "device"),
        ("Memcpy HtoD (Unknown -> Device Static)", None, "device"),
        ("Memcpy HtoD (Host -> Device)", None, "device"),
        ("Memcpy HtoD", None, None),
    ],
)
def test_the_name_of_a_copy_states_the_memory_on_both_sides(
    name: str, source: str | None, destination: str | None, tmp_path: Path
) -> None:
    (copy,) = read(tmp_path, event("gpu_memcpy", name, 5, 4, device=1, stream=20)).copies
    assert (copy.source_memory, copy.destination_memory) == (source, destination)


@pytest.mark.parametrize(
    ("devices", "device", "peer"),
    [
        ({"fromDevice": 0, "inDevice": 0, "toDevice": 1}, 0, 1),
        ({"fromDevice": 0, "inDevice": 1, "toDevice": 1}, 1, 0),
        ({"fromDevice": 0, "inDevice": 2, "toDevice": 1}, 2, None),
        ({"inDevice": 2}, 2, None),
        ({"device": 3}, 3, None),
    ],
)
def test_a_copy_between_two_gpus_names_the_other_one(
    devices: dict[str, int], device: int, peer: int | None, tmp_path: Path
) -> None:
    name = "Memcpy PtoP (Device -> Device)"
    (copy,) = read(tmp_path, event("gpu_memcpy", name, 5, 4, stream=20, **devices)).copies
    assert (copy.kind, copy.device_index, copy.peer_device) == ("PtoP", device, peer)


def test_the_made_trace_that_measures_speed_is_read_without_any_doubt(tmp_path: Path) -> None:
    path = tmp_path / "made.json"
    command = [sys.executable, str(ROOT / "scripts/speed/make_kineto.py"), "1200", str(path)]
    subprocess.run(command, check=True)
    found = kineto_trace.parse(path)
    assert (len(found.kernels), len(found.ranges), len(list(found.op_calls))) == (1200, 4, 1200)
    assert found.diagnostics == ()
    assert not [gap for gap in found.gaps if gap.state == "unreadable"]


def test_an_impossible_time_is_unknown_and_a_gap_says_so(tmp_path: Path) -> None:
    """5e15 us lie in the year 2128."""
    found = read(
        tmp_path,
        gpu("late", 5 * 10**15, 2, 1),
        gpu("back", 5, -2, 2),
        gpu("long", 9, 5 * 10**15, 3),
    )
    assert [(kernel.start_ns, kernel.duration_ns) for kernel in found.kernels] == [
        (None, 2000),
        (5000, None),
        (9000, None),
    ]
    assert reasons(found)["kernel.duration_ns"].startswith(
        "unreadable: 3 launches have no start or duration"
    )
