"""Single operators, sums of runtime calls and Python functions, the allocator's curve and compiled
kernels of a trace."""

from __future__ import annotations

import json
from pathlib import Path

from perfctl.parsers.allocator import Reading, thinned
from perfctl.parsers.kineto import trace as kineto_trace
from perfctl.records.report import ApiCall, CompiledKernel, OpCall, Sample
from tests.parsers.kineto_trace import annotation, event, kernel, launch, operation, read

SHAPES = {"Input_Dims": [[4, 8], [8], []], "Input_type": ["float", "c10::BFloat16", "Scalar"]}


def shaped(name: str, ts: object, dur: object, external: int, **args: object) -> dict[str, object]:
    return event("cpu_op", name, ts, dur, **{"External_id": external, **SHAPES, **args})


def test_each_operator_has_its_times_shapes_types_and_place(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        annotation("ProfilerStep#4", 0, 100),
        annotation("fc:forward", 5, 50),
        shaped("aten::linear", 10, 20, 1),
        shaped("aten::addmm", 12, 10, 2),
        launch(14, 9),
        kernel("gemm", 90, 7, 2, 9),
        operation("aten::empty", 200, None, 3),
    )
    dims, types = json.dumps([[4, 8], [8], []]), json.dumps(["float", "c10::BFloat16", "Scalar"])
    assert list(found.op_calls) == [
        OpCall("aten::linear", 10_000, 20_000, 7_000, dims, types, "fc", "forward", 4, 1),
        OpCall("aten::addmm", 12_000, 10_000, 7_000, dims, types, "fc", "forward", 4, 1),
        OpCall("aten::empty", 200_000, None, 0, thread=1),
    ]
    assert list(found.op_calls) == list(found.op_calls)  # they can be read again


def test_device_time_is_not_known_where_nothing_of_the_gpu_was_recorded(tmp_path: Path) -> None:
    assert [call.device_ns for call in read(tmp_path, operation("aten::add", 0, 1)).op_calls] == [
        None
    ]


def test_without_single_operators_only_the_sums_are_kept(tmp_path: Path) -> None:
    report = read(tmp_path, shaped("aten::add", 10, 20, 1))
    without = kineto_trace.parse(report.path, single_operators=False)
    assert list(without.op_calls) == []
    assert list(without.operations) == list(report.operations)


def test_the_stack_of_an_operator_is_its_own_or_the_python_functions_around_it(
    tmp_path: Path,
) -> None:
    def function(name: str, ts: int, dur: int, thread: int = 1) -> dict[str, object]:
        return event("python_function", name, ts, dur, thread=thread)

    found = read(
        tmp_path,
        function("main.py(9): run", 0, 100),
        function("nn.Module: Net_0", 10, 30),
        function("net.py(3): forward", 11, 20),
        operation("inside", 12, 5),
        operation("module", 35, 2),
        operation("after", 50, 1),
        operation("outside", 200, 1),
        operation("elsewhere", 12, 1, thread=2),
        shaped("own", 13, 1, 5, Call_stack="a.py(1): f;b.py(2): g"),
    )
    stacks = {call.name: call.stack for call in found.op_calls}
    module = "nn.Module: Net_0\nmain.py(9): run"
    assert stacks == {
        "inside": f"net.py(3): forward\n{module}",
        "module": module,
        "after": "main.py(9): run",
        "outside": None,
        "elsewhere": None,
        "own": "a.py(1): f\nb.py(2): g",
    }


def test_calls_waits_and_functions_are_summed(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        launch(5, 1),
        launch(7, 2),
        event("cuda_runtime", "cudaMalloc", 30, 4, correlation=3),
        event("cuda_driver", "cudaMalloc", 40, 6, correlation=4),
        event("cuda_runtime", "hipMemcpy", 50, 2, correlation=5),
        event("cuda_sync", "Stream Sync", 60, 8),
        event("cuda_sync", "Stream Sync", 70, 2),
        event("python_function", "a.py(1): f", 1, 9),
        event("python_function", "nn.Module: Net_0", 1, 9),
        event("cuda_runtime", "cudaFree", 80, None, correlation=6),
        event("cuda_runtime", "cudaFree", 81, 1, correlation=7),
    )
    assert list(found.api_calls) == [
        ApiCall("cuda", "cudaMalloc", 2, 10_000, 4_000, 6_000),
        ApiCall("cuda", "cudaLaunchKernel", 2, 2_000, 1_000, 1_000),
        ApiCall("cuda", "cudaFree", 2, None),
        ApiCall("hip", "hipMemcpy", 1, 2_000, 2_000, 2_000),
        ApiCall("python", "a.py(1): f", 1, 9_000, 9_000, 9_000),
        ApiCall("sync", "Stream Sync", 2, 10_000, 2_000, 8_000),
    ]


def test_the_allocator_of_each_gpu_has_a_curve_in_order_of_time(tmp_path: Path) -> None:
    def reading(at: int, device: int, allocated: int, kind: int = 1) -> dict[str, object]:
        totals = {"Total Allocated": allocated, "Total Reserved": 900}
        args = {"Device Type": kind, "Device Id": device, "Bytes": 8, **totals}
        return {
            "ph": "i",
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "pid": 1,
            "tid": 1,
            "ts": at,
            "args": args,
        }

    found = read(
        tmp_path, reading(3, 0, 30), reading(2, 1, 5), reading(1, 0, 10), reading(4, 0, 7, kind=0)
    )
    assert list(found.samples) == [
        Sample(
            at * 1000, *(None,) * 6, device_index=device, allocated_bytes=size, reserved_bytes=900
        )
        for at, device, size in ((1, 0, 10), (3, 0, 30), (2, 1, 5))
    ]


def test_a_long_curve_is_thinned_and_keeps_its_peaks() -> None:
    readings = [Reading(at, at * 7919 % 1000, at * 104_729 % 997) for at in range(50_000)]
    readings[31_111] = Reading(31_111, 5000, 1)
    kept = thinned(list(readings), 100)
    assert len(kept) <= 100
    assert kept == sorted(kept)
    assert set(kept) <= set(readings)
    assert max(size for _, size, _ in kept if size is not None) == 5000
    assert max(size for _, _, size in kept if size is not None) == max(
        size for _, _, size in readings if size is not None
    )


def test_kernels_that_inductor_wrote_have_their_source_and_what_they_fused(tmp_path: Path) -> None:
    name = "triton_poi_fused__to_copy_add_12"

    def call(ts: int, key: str, external: int, named: str = name) -> dict[str, object]:
        facts = {"kernel_file": f"/{key}.py", "kernel_hash": key, "kernel_backend": "triton"}
        made = operation(named, ts, 3, external)
        return {**made, "args": {**made["args"], **facts}}

    found = read(
        tmp_path,
        call(0, "aa", 1),
        call(10, "aa", 2),
        call(20, "bb", 3),
        call(30, "cc", 4, "triton_red_fused_0"),
        launch(1, 5),
        kernel(name, 50, 4, 1, 5),
        launch(11, 6),
        kernel(name, 60, 5, 2, 6),
    )
    assert list(found.compiled_kernels) == [
        CompiledKernel(name, "/aa.py", "aa", "triton", "_to_copy_add", 2, 9_000),
        CompiledKernel(name, "/bb.py", "bb", "triton", "_to_copy_add", 1, None),
        CompiledKernel("triton_red_fused_0", "/cc.py", "cc", "triton", None, 1, None),
    ]
