"""Kernels, ranges and copies of nsys exports, from synthetic databases of several generations."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.records.report import Copy, Kernel, Range
from tests.make.nsys_sqlite import (
    GENERATIONS,
    NsysBuilder,
    gap,
    global_tid,
    read,
    training_step,
)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_generation_gives_the_same_kernels_and_ranges(
    generation: str, tmp_path: Path
) -> None:
    report = read(training_step(NsysBuilder(generation)), tmp_path)
    kernels = list(report.kernels)
    assert kernels[0] == Kernel(
        launch=0,
        name="gemm(int)",
        short_name="gemm",
        layer="conv1",
        direction="forward",
        step=4,
        layer_source="range",
        range_number=3,
        device_index=0,
        stream=7,
        grid_x=2,
        grid_y=3,
        grid_z=4,
        block_x=32,
        block_y=2,
        block_z=1,
        registers=40,
        static_shared_bytes=16,
        dynamic_shared_bytes=0,
        start_ns=140,
        duration_ns=10,
        process=7,
        context=1,
        correlation=1,
    )
    assert [
        (k.layer, k.direction, k.step, k.layer_source, k.range_number) for k in kernels[1:]
    ] == [
        ("conv1", "forward", 4, "range", 2),
        (None, None, 4, None, 1),
        ("conv1", "backward", 4, "range", 5),
        (None, None, 4, None, None),
    ]
    ranges = list(report.ranges)
    assert ranges[:4] == [
        Range(0, "perfctl:step:4", None, 0, 1000, 7, 0, None, step=4, gpu_ns=30, gpu_span_ns=170),
        Range(
            1,
            "perfctl:phase:forward",
            None,
            10,
            390,
            7,
            1,
            0,
            step=4,
            phase="forward",
            gpu_ns=30,
            gpu_span_ns=170,
        ),
        Range(
            2,
            "conv1:forward",
            None,
            20,
            80,
            7,
            2,
            1,
            "push_pop",
            "conv1",
            "forward",
            4,
            "forward",
            20,
            65,
        ),
        Range(
            3,
            "cudnnConvolutionForward",
            "cudnn",
            30,
            60,
            7,
            3,
            2,
            step=4,
            phase="forward",
            gpu_ns=10,
            gpu_span_ns=10,
        ),
    ]
    assert ranges[5] == Range(
        5,
        "conv1:backward",
        None,
        500,
        100,
        8,
        0,
        None,
        "push_pop",
        "conv1",
        "backward",
        4,
        "backward",
        10,
        10,
    )
    assert report.tool_version == GENERATIONS[generation].get("version")
    assert bool(gap(report, "profiler_version")) == (report.tool_version is None)
    assert report.form.endswith(GENERATIONS[generation].get("schema", "(up to 2021.3)"))
    assert (
        gap(report, "layer")
        == "not_available: 2 of 5 kernels were launched outside of every layer's range"
    )


def test_ranges_alone_are_a_report_of_a_cpu_run(tmp_path: Path) -> None:
    builder = NsysBuilder()
    builder.range("perfctl:step:0", 0, 100)
    builder.range("fc1:forward", 10, 60)
    report = read(builder, tmp_path)
    found = [(r.layer, r.duration_ns, r.step, r.parent) for r in report.ranges]
    assert found == [(None, 100, 0, None), ("fc1", 50, 0, 0)]
    assert (list(report.kernels), list(report.copies), report.devices) == ([], [], ())
    assert gap(report, "kernel").startswith("not_collected: no CUDA activity was recorded")
    assert gap(report, "layer") == ""
    assert gap(report, "device") == "not_collected: the report names no GPU"


def test_names_come_from_the_row_or_from_the_strings(tmp_path: Path) -> None:
    builder = NsysBuilder()
    builder.range(None, 0, 100, textId=builder.string("fc1:forward"))
    builder.range("fc2:forward", 10, 20, textId=builder.string("other"))
    builder.range(None, 30, 40)
    builder.range(None, 50, 60, textId=999)
    assert [r.name for r in read(builder, tmp_path).ranges] == [
        "fc1:forward",
        "fc2:forward",
        "",
        "",
    ]


def test_start_end_ranges_and_marks_are_listed_but_enclose_nothing(tmp_path: Path) -> None:
    builder = NsysBuilder()
    builder.range("perfctl:step:1", 0, 100)
    builder.range("conv1:forward", 10, 90, eventType=60)
    builder.range("here", 20, None, eventType=34)
    builder.range("thread name", 20, None, eventType=39)
    builder.launch(30)
    report = read(builder, tmp_path)
    assert [(r.kind, r.depth, r.parent, r.duration_ns, r.step) for r in report.ranges] == [
        ("push_pop", 0, None, 100, 1),
        ("start_end", None, None, 80, 1),
        ("mark", None, None, None, 1),
    ]
    assert [(k.layer, k.range_number, k.step) for k in report.kernels] == [(None, 0, 1)]


def test_domains_are_named_per_process(tmp_path: Path) -> None:
    builder = NsysBuilder()
    for pid, name in ((7, "cuDNN"), (9, "cuBLAS")):
        builder.range(None, 0, None, eventType=75, domainId=1, pid=pid, textId=builder.string(name))
        builder.range("call", 10, 20, domainId=1, pid=pid, thread=pid)
    builder.range("call", 30, 40, domainId=8)
    assert [r.domain for r in read(builder, tmp_path).ranges] == ["cuDNN", "cuBLAS", "domain 8"]


def test_ranges_are_numbered_by_start_so_that_a_parent_comes_first(tmp_path: Path) -> None:
    builder = NsysBuilder()
    builder.range("inner", 10, 20)
    builder.range("outer", 10, 50)
    builder.range("first", 0, 5)
    ranges = list(read(builder, tmp_path).ranges)
    found = [(r.number, r.name, r.parent, r.depth) for r in ranges]
    assert found == [(0, "first", None, 0), (1, "outer", None, 0), (2, "inner", 1, 1)]


def test_copies_are_named_from_the_exports_own_table_else_by_cuptis_numbers(tmp_path: Path) -> None:
    old = NsysBuilder("2020.3")
    new = NsysBuilder()
    for number, label in ((1, "Host-to-Device"), (11, "Unified Host-to-Device")):
        new.row("ENUM_CUDA_MEMCPY_OPER", "id name label", id=number, name="-", label=label)
    for builder in (old, new):
        builder.range("conv1:forward", 0, 100)
        builder.call(1, 10, 12)
        for correlation, kind in ((1, 1), (2, 2), (3, 8), (4, 10), (5, 11)):
            builder.memcpy(correlation, kind, 4096)
        memset = {
            "start": 7,
            "end": 9,
            "bytes": 64,
            "deviceId": 0,
            "streamId": 7,
            "correlationId": 1,
        }
        columns = "start end deviceId contextId streamId correlationId globalPid value bytes"
        builder.row("CUPTI_ACTIVITY_KIND_MEMSET", columns, globalPid=global_tid(7, 0), **memset)
    copies = [list(read(builder, tmp_path).copies) for builder in (old, new)]
    assert [c.kind for c in copies[0]] == ["HtoD", "DtoH", "DtoD", "PtoP", "11", "memset"]
    assert [c.kind for c in copies[1]] == [
        "HtoD",
        "DtoH",
        "DtoD",
        "PtoP",
        "Unified Host-to-Device",
        "memset",
    ]
    assert copies[0][0] == Copy("HtoD", 4096, 500, 5, "conv1", 0, 7)
    assert copies[0][-1] == Copy("memset", 64, 7, 2, "conv1", 0, 7)


def test_of_ranges_with_the_same_ends_the_later_row_is_the_inner_one(tmp_path: Path) -> None:
    builder = NsysBuilder()
    for name in ("outer", "middle", "inner"):
        builder.range(name, 0, 10)
    builder.launch(4)
    report = read(builder, tmp_path)
    found = [(r.name, r.parent, r.depth) for r in report.ranges]
    assert found == [("outer", None, 0), ("middle", 0, 1), ("inner", 1, 2)]
    assert [k.range_number for k in report.kernels] == [2]


def test_calls_that_wait_for_the_gpu_are_kept_one_by_one_with_their_step(tmp_path: Path) -> None:
    builder = NsysBuilder()
    builder.range("perfctl:step:0", 100, 200)
    builder.range("perfctl:step:1", 200, 300)
    columns = "start end eventClass globalTid correlationId nameId returnValue callchainId"
    made = [
        ("cudaDeviceSynchronize_v3020", 50, 90, 7),
        ("cudaStreamSynchronize_v3020", 120, 150, 7),
        ("cudaLaunchKernel_v7000", 160, 170, 7),
        ("cuCtxSynchronize", 199, 230, 7),
        ("cudaEventSynchronize", 250, 260, 8),
        ("cudaDeviceSynchronizeNot_v3020", 270, 280, 7),
    ]
    for number, (name, start, end, pid) in enumerate(made):
        builder.row(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            columns,
            start=start,
            end=end,
            globalTid=global_tid(pid, 5),
            correlationId=number,
            nameId=builder.string(name),
        )
    calls = [
        (call.name, call.start_ns, call.duration_ns, call.step, call.thread)
        for call in read(builder, tmp_path).op_calls
    ]
    assert calls == [
        ("cudaDeviceSynchronize", 50, 40, None, 5),
        ("cudaStreamSynchronize", 120, 30, 0, 5),
        ("cuCtxSynchronize", 199, 31, 0, 5),  # it began in step 0
        ("cudaEventSynchronize", 250, 10, None, 5),  # of another process, which has no steps
    ]
