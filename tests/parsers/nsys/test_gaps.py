"""What an nsys export does not state is a gap, secrets stay out, and files that are cut are
refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.common.sqlite import check_whole
from perfctl.records.report import Report
from tests.make.nsys_sqlite import NsysBuilder, gap, read, training_step


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
    assert gap(report, "layer").startswith("not_collected: the report has no push/pop NVTX range")
    assert gap(report, "step").startswith("not_collected: no range names a step")


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
    gaps = [gap for gap in read(builder, tmp_path).gaps if gap.quantity != "device"]
    for gap_found, beginning in zip(gaps, expected, strict=True):
        assert f"{gap_found.quantity}: {gap_found.reason}".startswith(beginning)
        assert gap_found.state == "not_collected"


@pytest.mark.parametrize("ending", ["-wal", "-journal"])
def test_a_log_with_changes_beside_the_database_is_refused_and_an_empty_one_is_not(
    ending: str, tmp_path: Path
) -> None:
    path = NsysBuilder().write(tmp_path / "r.sqlite")
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
    state_facts(builder, NvDriverVersion="5206105", CudaDriverVersion="12020", EnvVars=SECRET)
    builder.row("META_DATA_CAPTURE", "name value", name="PROCESS_0:ENVIRONMENT", value=SECRET)
    report = read(builder, tmp_path)
    assert report.environment["driver"] == "520.61.05"
    everything = (report, *report.kernels, *report.copies, *report.ranges)
    assert SECRET not in repr(everything)


def state_facts(builder: NsysBuilder, **facts: str) -> None:
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
        ("CudaDriverVersion", "new", {}),
        ("CudaDriverVersion", "9020", {"cuda_driver": "9.2"}),
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
    state_facts(builder, **{fact: value})
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
    assert [gap.reason for gap in report.gaps if gap.quantity.startswith("table:")] == [
        "CUDA_GPU_MEMORY_USAGE_EVENTS: 1,234 rows are not read",
        "SCHED_EVENTS: 1 row is not read",
    ]
