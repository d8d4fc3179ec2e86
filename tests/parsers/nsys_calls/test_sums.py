"""Calls, waiting, threads, payloads, memory kinds and tables that are not read, in synthetic
nsys exports."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.records.report import ApiCall, Copy, Kernel, Range, Sample, Thread
from tests.make.nsys_sqlite import NsysBuilder, gap, global_tid, read

CALLS = "start end eventClass globalTid nameId"
OSRT = CALLS + " returnValue nestingLevel callchainId"


def calls(builder: NsysBuilder, folder: Path, domain: str) -> list[ApiCall]:
    return [call for call in read(builder, folder).api_calls if call.domain == domain]


def test_cuda_calls_are_summed_by_name_without_its_version_the_longest_first(
    tmp_path: Path,
) -> None:
    builder = NsysBuilder()
    columns = "start end eventClass globalTid correlationId nameId returnValue callchainId"
    times = {"cudaMalloc_v3020": [(0, 7)], "cudaLaunchKernel_v7000": [(10, 14), (20, 31), (40, 42)]}
    for name, spans in times.items():
        for number, (start, end) in enumerate(spans):
            row = {
                "start": start,
                "end": end,
                "globalTid": global_tid(7, 7),
                "correlationId": number,
            }
            builder.row("CUPTI_ACTIVITY_KIND_RUNTIME", columns, nameId=builder.string(name), **row)
    assert calls(builder, tmp_path, "cuda") == [
        ApiCall("cuda", "cudaLaunchKernel", 3, 4 + 11 + 2, 2, 11),
        ApiCall("cuda", "cudaMalloc", 1, 7, 7, 7),
    ]


def test_marks_of_the_os_runtime_are_not_calls(tmp_path: Path) -> None:
    builder = NsysBuilder()
    for kind, start, end in ((27, 0, 5), (27, 10, 30), (31, 1, 1), (32, 90, 90)):
        name = builder.string("poll" if kind == 27 else "profiling started")
        builder.row(
            "OSRT_API",
            OSRT,
            start=start,
            end=end,
            eventClass=kind,
            globalTid=global_tid(7, 7),
            nameId=name,
        )
    assert calls(builder, tmp_path, "osrt") == [ApiCall("osrt", "poll", 2, 25, 5, 20)]


def test_a_range_that_never_ended_lasts_until_the_last_event_in_the_sums(tmp_path: Path) -> None:
    builder = NsysBuilder()
    builder.range("a", 0, 10)
    builder.range("a", 20, None)
    builder.range("a", 30, 50, eventType=60)
    assert calls(builder, tmp_path, "nvtx") == [
        ApiCall("nvtx", "a", 2, 10 + (50 - 20), 10, 30),
        ApiCall("nvtx", "a", 1, 20, 20, 20),
    ]


def test_ranges_of_libraries_are_calls_of_theirs_too(tmp_path: Path) -> None:
    builder = NsysBuilder()
    builder.range("NCCL", -9, None, eventType=75, domainId=1)
    builder.range("ncclAllReduce", 0, 8, domainId=1)
    builder.range("ncclGroupEnd", 10, 11, domainId=2)  # a domain whose name was not recorded
    builder.range("ncclMine", 20, 21)
    report = read(builder, tmp_path)
    assert [call[:3] for call in report.api_calls] == [
        ("nvtx", "NCCL:ncclAllReduce", 1),
        ("nvtx", "ncclGroupEnd", 1),
        ("nvtx", "ncclMine", 1),
        ("nccl", "ncclAllReduce", 1),
        ("nccl", "ncclGroupEnd", 1),
    ]


@pytest.mark.parametrize(
    ("table", "domain"), [("CUDNN_EVENTS", "cudnn"), ("CUBLAS_EVENTS", "cublas")]
)
def test_tables_of_libraries_are_summed(table: str, domain: str, tmp_path: Path) -> None:
    builder = NsysBuilder()
    for start, end in ((0, 3), (5, 9)):
        builder.row(table, CALLS, start=start, end=end, nameId=builder.string("someCall"))
    assert list(read(builder, tmp_path).api_calls) == [ApiCall(domain, "someCall", 2, 7, 3, 4)]


def test_mpi_calls_of_all_tables_are_summed_together(tmp_path: Path) -> None:
    builder = NsysBuilder()
    for table, name, length in (
        ("MPI_P2P_EVENTS", "MPI_Send", 3),
        ("MPI_START_WAIT_EVENTS", "MPI_Send", 5),
        ("MPI_COLLECTIVES_EVENTS", "MPI_Bcast", 9),
    ):
        builder.row(
            table,
            "start end globalTid textId",
            start=100,
            end=100 + length,
            textId=builder.string(name),
        )
    assert list(read(builder, tmp_path).api_calls) == [
        ApiCall("mpi", "MPI_Bcast", 1, 9, 9, 9),
        ApiCall("mpi", "MPI_Send", 2, 8, 3, 5),
    ]


def test_waiting_for_the_gpu_is_summed_by_kind(tmp_path: Path) -> None:
    builder = NsysBuilder()
    for kind, length in ((3, 10), (3, 20), (4, 5)):
        builder.row(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            "start end syncType",
            start=0,
            end=length,
            syncType=kind,
        )
    assert calls(builder, tmp_path, "sync") == [
        ApiCall("sync", "stream synchronize", 2, 30, 10, 20),
        ApiCall("sync", "context synchronize", 1, 5, 5, 5),
    ]


def test_threads_that_made_calls_or_ranges_have_their_names(tmp_path: Path) -> None:
    builder = NsysBuilder()
    builder.range("a", 0, 10, thread=7)
    builder.call(1, 20, 25, thread=8)
    for pid, thread, name in ((7, 7, "python"), (7, 8, "autograd"), (3, 3, "sshd")):
        number = global_tid(pid, thread)
        builder.row(
            "ThreadNames",
            "nameId priority globalTid",
            nameId=builder.string(name),
            globalTid=number,
        )
    assert list(read(builder, tmp_path).threads) == [
        Thread(7, 7, "python"),
        Thread(7, 8, "autograd"),
    ]


def test_copies_say_which_memory_they_read_and_write_and_the_other_gpu(tmp_path: Path) -> None:
    builder = NsysBuilder()
    columns = builder.layout["memcpy"]
    place = {"start": 0, "end": 5, "deviceId": 0, "streamId": 7, "bytes": 8}
    for kinds in (
        {"copyKind": 1, "srcKind": 0, "dstKind": 2},
        {"copyKind": 2, "srcKind": 5, "dstKind": 1},
        {"copyKind": 8, "srcKind": 4, "dstKind": 7},
        {"copyKind": 10, "srcKind": 2, "dstKind": 2, "srcDeviceId": 0, "dstDeviceId": 3},
    ):
        builder.row("CUPTI_ACTIVITY_KIND_MEMCPY", columns, **place, **kinds)
    builder.row(
        "CUPTI_ACTIVITY_KIND_MEMSET",
        "start end deviceId streamId bytes memKind",
        **place,
        memKind=4,
    )
    head = (8, 0, 5, None, 0, 7)
    assert list(read(builder, tmp_path).copies) == [
        Copy("HtoD", *head, "pageable", "device"),
        Copy("DtoH", *head, "device", "pinned"),
        Copy("DtoD", *head, "managed", None),
        Copy("PtoP", *head, "device", "device", 3),
        Copy("memset", *head, None, "managed"),
    ]


def test_kernels_of_a_graph_say_which_node_launched_them_and_those_of_clusters_how_large(
    tmp_path: Path,
) -> None:
    builder = NsysBuilder("2026.1")
    builder.kernel(
        4, pid=9, contextId=2, graphId=11, graphNodeId=1 << 40, clusterX=2, clusterY=1, clusterZ=1
    )
    builder.kernel(5, graphId=0, graphNodeId=0, clusterX=0, clusterY=0, clusterZ=0)
    first = Kernel._fields.index("process")
    found = [kernel[first:] for kernel in read(builder, tmp_path).kernels]
    assert found == [
        (9, 2, 11, 1 << 40, 4, 2, 1, 1, None, None),
        (7, 1, None, None, 5, *[None] * 5),
    ]


def test_sampled_metrics_are_readings_and_means(tmp_path: Path) -> None:
    builder = NsysBuilder()
    for number, name in (
        (1, "GPC Clock Frequency [MHz]"),
        (2, "GR Active [Throughput %]"),
        (3, "SMs Active [Throughput %]"),
    ):
        builder.row(
            "TARGET_INFO_GPU_METRICS",
            "typeId metricId metricName",
            typeId=256,
            metricId=number,
            metricName=name,
        )
    for at, values in ((100, (1500, 40, 10)), (200, (1300, 60, 30))):
        for number, value in enumerate(values, 1):
            row = {"timestamp": at, "typeId": 256, "metricId": number, "value": value}
            builder.row("GPU_METRICS", "timestamp typeId metricId value", **row)
    report = read(builder, tmp_path)
    nothing = [None] * 4
    assert list(report.samples) == [
        Sample(100, 0.4, *nothing, 1_500_000_000, 0),
        Sample(200, 0.6, *nothing, 1_300_000_000, 0),
    ]
    found = {one.name: (one.value, one.unit) for one in report.summaries}
    assert found["GPU metric: SMs Active, mean"] == ((10 + 30) / 2, "%")
    assert found["GPU metric: GPC Clock Frequency, highest"] == (1500, "MHz")


def test_page_faults_are_counted_and_not_their_groups(tmp_path: Path) -> None:
    builder = NsysBuilder()
    for faults in (3, 4):
        builder.row(
            "CUDA_UM_GPU_PAGE_FAULT_EVENTS",
            "start end numberOfPageFaults",
            start=0,
            end=9,
            numberOfPageFaults=faults,
        )
    builder.row("CUDA_UM_CPU_PAGE_FAULT_EVENTS", "start address", start=0, address=4096)
    assert {one.name: one.value for one in read(builder, tmp_path).summaries} == {
        "unified memory: GPU page faults": 7,
        "unified memory: GPU page faults, groups": 2,
        "unified memory: CPU page faults": 1,
    }


def test_a_table_that_is_not_read_is_a_gap_with_its_rows_and_bookkeeping_is_not(
    tmp_path: Path,
) -> None:
    builder = NsysBuilder()
    for number in range(1234):
        builder.row("CUDA_GPU_MEMORY_USAGE_EVENTS", "start bytes", start=number, bytes=1)
    builder.row("SCHED_EVENTS", "start", start=0)
    builder.row("TARGET_INFO_CUDA_STREAM", "streamId", streamId=7)
    builder.row("ENUM_SOMETHING", "id", id=7)
    builder.table("COMPOSITE_EVENTS", "start")
    report = read(builder, tmp_path)
    assert [found.quantity for found in report.gaps if found.quantity.startswith("table:")] == [
        "table:CUDA_GPU_MEMORY_USAGE_EVENTS",
        "table:SCHED_EVENTS",
    ]
    said = "not_available: CUDA_GPU_MEMORY_USAGE_EVENTS: 1,234 rows are not read"
    assert gap(report, "table:CUDA_GPU_MEMORY_USAGE_EVENTS") == said
    assert gap(report, "table:SCHED_EVENTS") == "not_available: SCHED_EVENTS: 1 row is not read"


def test_gpu_time_goes_to_every_range_around_the_call_also_where_ranges_cross(
    tmp_path: Path,
) -> None:
    """Kernels of 10 ns run 100 ns after their calls, which take 2 ns."""
    builder = NsysBuilder()
    builder.range("first", 0, 50)
    builder.range("second", 30, 90, domainId=1)  # crosses the first
    builder.range("any thread", 0, 500, eventType=60, endGlobalTid=global_tid(7, 8))
    builder.range("one thread", 35, 500, eventType=60)
    for at in (10, 40, 60):
        builder.launch(at)
    builder.launch(41, thread=8)
    found = {one.name: (one.gpu_ns, one.gpu_span_ns) for one in read(builder, tmp_path).ranges}
    assert found == {
        "first": (20, 150 - 110),
        "second": (20, 170 - 140),
        "any thread": (None, None),
        "one thread": (20, 170 - 140),
    }


def test_a_range_that_launched_nothing_has_no_gpu_time_and_without_calls_it_is_not_known(
    tmp_path: Path,
) -> None:
    builder = NsysBuilder()
    builder.range("idle", 0, 10)
    builder.kernel(1)
    report = read(builder, tmp_path)
    assert [(one.gpu_ns, one.gpu_span_ns) for one in report.ranges] == [(None, None)]
    assert gap(report, "range:gpu_ns").startswith("not_collected: CUDA calls were not recorded")
    builder.call(1, 20, 22)
    (idle,) = read(builder, tmp_path).ranges
    assert idle == Range(0, "idle", None, 0, 10, 7, 0, None, gpu_ns=0)


def test_a_kernel_that_never_ended_adds_no_gpu_time(tmp_path: Path) -> None:
    builder = NsysBuilder()
    builder.range("step", 0, 100)
    builder.launch(10)
    builder.call(9, 20, 22)
    builder.kernel(9, 5, end=None)
    (step,) = read(builder, tmp_path).ranges
    assert (step.gpu_ns, step.gpu_span_ns) == (10, 10)


def test_a_binary_payload_is_not_read_and_says_so(tmp_path: Path) -> None:
    builder = NsysBuilder("2026.1")
    builder.range("ncclSend", 0, 100, binaryData=b"\x01\x00")
    report = read(builder, tmp_path)
    assert gap(report, "range:payload").startswith(
        "not_available: programs gave values in a binary form"
    )
