"""What an nsys export does not state is a gap, secrets stay out, and files that are cut are
refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from perfctl.parsers import ReportError, parse
from perfctl.parsers.common.sqlite import check_whole
from perfctl.records.bulk import SqlKernels
from perfctl.records.report import Kernel, Report
from tests.make.nsys_sqlite import NsysBuilder, copied, gap, read, training_step


def quantities(report: Report) -> list[str]:
    return [one.quantity for one in report.gaps if one.quantity != "device"]


def test_ranges_of_other_people_name_neither_layer_nor_step(tmp_path: Path) -> None:
    builder = NsysBuilder()
    builder.range("train", 0, 100)
    builder.launch(10)
    report = read(builder, tmp_path)
    assert quantities(report) == ["layer", "step"]
    assert gap(report, "layer").startswith("not_collected: no range names a layer")
    builder.range("perfctl:step:0", 0, 100)
    builder.range("fc:forward", 5, 50)
    assert quantities(read(builder, tmp_path)) == []


@pytest.mark.parametrize(("kind", "end"), [(60, 100), (34, None)])
def test_start_end_ranges_and_marks_alone_hold_no_launch(
    kind: int, end: int | None, tmp_path: Path
) -> None:
    builder = NsysBuilder()
    builder.range("fc:forward", 0, end, eventType=kind)
    builder.launch(10)
    report = read(builder, tmp_path)
    assert quantities(report) == ["layer", "step"]
    reason = "the report has no push/pop NVTX range, so perfctl cannot assign launches to layers"
    assert gap(report, "layer") == f"not_collected: {reason}"
    assert (
        gap(report, "step")
        == 'not_collected: no range names a step in the form of perfctl ("perfctl:step:3")'
    )


MEMSET = "start end deviceId streamId correlationId bytes"


@pytest.mark.parametrize(
    ("filled", "expected"),
    [
        ((), ["kernel: no CUDA activity was recorded", "copy", "range"]),
        (("call",), ["kernel: 1 of 1 calls launched a kernel, but", "range"]),
        (("copy",), ["kernel: no CUDA activity was recorded", "range"]),
        (("memset",), ["kernel: no CUDA activity was recorded", "range"]),
        (("kernel", "graph"), ["kernel: CUDA graphs were recorded as one unit", "range", "layer"]),
        (("graph",), ["kernel: CUDA graphs were recorded as one unit", "copy", "range"]),
        (("call", "graph"), ["kernel: CUDA graphs were recorded as one unit", "range"]),
        (("kernel",), ["range", "layer"]),
    ],
)
def test_what_was_not_traced_is_told_from_what_did_not_happen(
    filled: tuple[str, ...], expected: list[str], tmp_path: Path
) -> None:
    builder = NsysBuilder()
    fill = {
        "call": lambda: builder.call(1, 0, 5),
        "copy": lambda: builder.memcpy(1, 1, 64),
        "kernel": lambda: builder.kernel(1),
        "memset": lambda: builder.row(
            "CUPTI_ACTIVITY_KIND_MEMSET", MEMSET, start=1, end=2, bytes=8
        ),
        "graph": lambda: builder.row(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "start end", start=1, end=2
        ),
    }
    for part in filled:
        fill[part]()
    found = [one for one in read(builder, tmp_path).gaps if one.quantity != "device"]
    assert [one.quantity for one in found] == [one.partition(":")[0] for one in expected]
    assert all(
        one.reason.startswith(said.partition(": ")[2])
        for one, said in zip(found, expected, strict=True)
    )
    assert all(one.state == "not_collected" for one in found)


def test_each_of_many_kernels_has_its_own_layer_step_and_range(tmp_path: Path) -> None:
    """1100 steps of one layer and one kernel each: more than a piece of kernels (512) or of
    ranges (1024)."""
    count = 1100
    builder = NsysBuilder()
    for step in range(count):
        at = 1000 * step
        builder.range(f"perfctl:step:{step}", at, at + 900)
        builder.range(f"layer{step}:backward", at + 10, at + 500)
        builder.launch(at + 20, name=f"kernel{step}(int)")
    path = builder.write(tmp_path / "report.sqlite")
    report = parse(path)
    expected = [
        (n, f"kernel{n}(int)", f"kernel{n}", f"layer{n}", n, 2 * n + 1) for n in range(count)
    ]
    assert isinstance(report.kernels, SqlKernels)
    assert [
        (k.launch, k.name, k.short_name, k.layer, k.step, k.range_number) for k in report.kernels
    ] == expected
    place, shape = ("backward", 0, "range", 1), (0, 7, 2, 3, 4, 32, 2, 1, 40, 16, 0, 120, 10)
    launched = {"process": 7, "context": 1, "correlation": 1}
    assert next(iter(report.kernels)) == Kernel(
        0, "kernel0(int)", "kernel0", "layer0", *place, *shape, **launched
    )
    assert [(r.number, r.parent, r.depth, r.step) for r in report.ranges] == [
        (number, None if number % 2 == 0 else number - 1, number % 2, number // 2)
        for number in range(2 * count)
    ]
    assert copied(report.kernels) == list(report.kernels)


def database(path: Path, page: int) -> bytes:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA page_size = {page}")
    connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    connection.commit()
    connection.close()
    return path.read_bytes()


@pytest.mark.parametrize("page", [512, 4096, 65536])
def test_a_database_is_cut_off_from_the_first_missing_byte_on(page: int, tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    whole = database(path, page)
    assert len(whole) == 2 * page
    check_whole(path, "nsys", "Copy it again")
    path.write_bytes(whole + b"\0")
    check_whole(path, "nsys", "Copy it again")
    path.write_bytes(whole[:-1])
    with pytest.raises(
        ReportError, match=f"truncated: only {2 * page - 1:,} of {2 * page:,} bytes exist"
    ):
        check_whole(path, "nsys", "Copy it again")
    path.write_bytes(whole[:99])
    with pytest.raises(ReportError, match="truncated: only 99 of"):
        check_whole(path, "nsys", "Copy it again")
    stale = bytearray(whole[:-1])
    stale[95] ^= 1  # the page count was written by a program that does not keep it
    path.write_bytes(stale)
    check_whole(path, "nsys", "Copy it again")


@pytest.mark.parametrize("ending", ["-wal", "-journal"])
def test_a_log_with_changes_beside_the_database_is_refused_and_an_empty_one_is_not(
    ending: str, tmp_path: Path
) -> None:
    path = tmp_path / "r.sqlite"
    database(path, 512)
    log = tmp_path / f"r.sqlite{ending}"
    for content in (b"", b"\0rest"):
        log.write_bytes(content)
        check_whole(path, "nsys", "Copy it again")
    log.write_bytes(b"7")
    with pytest.raises(ReportError, match=f"r.sqlite{ending} next to it contains changes"):
        check_whole(path, "nsys", "Copy it again")


SECRET = "token-that-must-not-leave"


def test_only_named_facts_leave_the_tables_that_hold_the_environment(tmp_path: Path) -> None:
    builder = training_step(NsysBuilder())
    builder.string(f"HOME=/root\nAPI_KEY={SECRET}")
    for name, value in (
        ("NvDriverVersion", "5206105"),
        ("CudaDriverVersion", "12020"),
        ("EnvVars", SECRET),
    ):
        builder.row(
            "TARGET_INFO_SYSTEM_ENV",
            "globalVid devStateName name nameEnum value",
            name=name,
            value=value,
        )
    builder.row("META_DATA_CAPTURE", "name value", name="PROCESS_0:ENVIRONMENT", value=SECRET)
    report = read(builder, tmp_path)
    assert (report.environment["driver"], report.environment["cuda_driver"]) == (
        "520.61.05",
        "12.2",
    )
    everything = (report, *report.kernels, *report.copies, *report.ranges)
    assert SECRET not in repr(everything)


def said(builder: NsysBuilder, **facts: str) -> None:
    for name, value in facts.items():
        builder.row(
            "TARGET_INFO_SYSTEM_ENV",
            "globalVid devStateName name nameEnum value",
            name=name,
            value=value,
        )


@pytest.mark.parametrize(
    ("fact", "value", "expected"),
    [
        ("NvDriverVersion", "5206105", {"driver": "520.61.05"}),
        ("NvDriverVersion", "535.104.05", {"driver": "535.104.05"}),
        ("NvDriverVersion", "520610", {"driver": "520610"}),
        ("NvDriverVersion", "52061055", {"driver": "52061055"}),
        ("CudaDriverVersion", "12020", {"cuda_driver": "12.2"}),
        ("CudaDriverVersion", "11080", {"cuda_driver": "11.8"}),
        ("CudaDriverVersion", "13010", {"cuda_driver": "13.1"}),
        ("CudaDriverVersion", "new", {}),
        ("CudaDriverVersion", "12090", {"cuda_driver": "12.9"}),
        ("CudaDriverVersion", "9020", {"cuda_driver": "9.2"}),
        ("NvDriverVersion", "535.1.5", {"driver": "535.1.5"}),
        ("CpuFlags", "sse", {}),
        ("CpuDescription", "EPYC", {"cpu": "EPYC"}),
        ("CpuCores", "64", {"cpu_cores": "64"}),
        ("CpuArchitecture", "x86_64", {"cpu_architecture": "x86_64"}),
        ("OsDescription", "Linux", {"os": "Linux"}),
        ("OsDescription", "", {}),
    ],
)
def test_facts_of_the_host_have_names_of_perfctls_own(
    fact: str, value: str, expected: dict[str, str], tmp_path: Path
) -> None:
    builder = NsysBuilder()
    said(builder, **{fact: value})
    own = {"nsys": "2024.2.3.38", "nsys_schema": "3.11.1"}
    report = read(builder, tmp_path)
    assert report.environment == own | expected
    assert report.tool_version == own["nsys"]


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
