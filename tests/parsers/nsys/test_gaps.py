"""What an nsys export does not state is a gap, secrets stay out, and what it holds that no list
has is told from what the lists know and leave out."""

import sqlite3
from contextlib import closing

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.common.sqlite import Database, raise_if_incomplete_database
from perfctl.parsers.nsys.gaps import warn_unknown_tables_and_schema
from tests.make.nsys_sqlite import NsysBuilder, gap, read, training_step


def quantities(report):
    return [one.quantity for one in report.gaps if one.quantity != "device"]


def test_ranges_of_other_people_name_neither_layer_nor_step(tmp_path):
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
def test_start_end_ranges_and_marks_alone_hold_no_launch(kind, end, tmp_path):
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
def test_what_was_not_traced_is_told_from_what_did_not_happen(filled, expected, tmp_path):
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


@pytest.mark.parametrize(
    ("calls", "kernels", "gpu_ns"),
    [
        ((1,), (1,), 5),
        ((1,), (), None),  # the GPU's rows were lost
        ((), (1,), None),
        ((1,), (2,), None),
        ((), (), None),
    ],
)
def test_ranges_have_gpu_time_only_if_a_launch_has_its_kernel(calls, kernels, gpu_ns, tmp_path):
    builder = NsysBuilder()
    builder.range("fc", 0, 100)
    for correlation in calls:
        builder.call(correlation, 1, 2)
    for correlation in kernels:
        builder.kernel(correlation, start=10, end=15)
    report = read(builder, tmp_path)
    assert [span.gpu_ns for span in report.ranges] == [gpu_ns]
    assert ("range:gpu_ns" in quantities(report)) is (gpu_ns is None)


@pytest.mark.parametrize("ending", ["-wal", "-journal"])
def test_a_log_with_changes_beside_the_database_is_refused_and_an_empty_one_is_not(
    ending, tmp_path
):
    path = NsysBuilder().write(tmp_path / "r.sqlite")
    log = tmp_path / f"r.sqlite{ending}"
    for content in (b"", b"\0rest"):
        log.write_bytes(content)
        raise_if_incomplete_database(path, "nsys", "Copy it again")
    log.write_bytes(b"7")
    with pytest.raises(ReportError, match=f"r.sqlite{ending} next to it contains changes"):
        raise_if_incomplete_database(path, "nsys", "Copy it again")


SECRET = "token-that-must-not-leave"


def test_only_named_facts_leave_the_tables_that_hold_the_environment(tmp_path):
    builder = training_step(NsysBuilder())
    builder.string(f"HOME=/root\nAPI_KEY={SECRET}")
    state_facts(builder, NvDriverVersion="5206105", CudaDriverVersion="12020", EnvVars=SECRET)
    builder.row("META_DATA_CAPTURE", "name value", name="PROCESS_0:ENVIRONMENT", value=SECRET)
    report = read(builder, tmp_path)
    assert report.environment["driver"] == "520.61.05"
    everything = (report, *report.kernels, *report.copies, *report.ranges)
    assert SECRET not in repr(everything)


def state_facts(builder, **facts):
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
def test_facts_of_the_host_have_names_of_perfctls_own(fact, value, expected, tmp_path):
    builder = NsysBuilder()
    state_facts(builder, **{fact: value})
    own = {"nsys": "2024.2.3.38", "nsys_schema": "3.11.1"}
    report = read(builder, tmp_path)
    assert report.environment == own | expected
    assert report.tool_version == own["nsys"]


def test_a_table_that_is_not_read_is_a_gap_with_its_rows_and_bookkeeping_is_not(tmp_path):
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


FIRST = "not understood and left out: "


def find_unknown_parts(*tables, schema="3.11.1", version="2024.2.3.38"):
    """(severity, text) about an export with these tables, each with one row of ones; "-" before
    those without a row."""
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as connection:
        connection.execute("CREATE TABLE META_DATA_EXPORT (name, value)")
        for name, value in (("EXPORT_SCHEMA_VERSION", schema), ("EXPORT_PRODUCT_VERSION", version)):
            if value is not None:
                connection.execute("INSERT INTO META_DATA_EXPORT VALUES (?, ?)", (name, value))
        for table in tables:
            name, _, columns = table.lstrip("-").partition(" ")
            columns = columns or "start"
            connection.execute(f"CREATE TABLE {name} ({columns})")
            if not table.startswith("-"):
                connection.execute(
                    f"INSERT INTO {name} VALUES ({', '.join('1' for _ in columns.split(','))})"
                )
        return [
            (one.severity, one.text) for one in warn_unknown_tables_and_schema(Database(connection))
        ]


@pytest.mark.parametrize(
    "table",
    [
        "CUDA_GRAPH_EVENTS",
        "SCHED_EVENTS",
        "estEnd",
        "ENUM_NEW",
        "TARGET_INFO_NEW",
        "MPI_NEW",
        "IB_NEW",
        "StringIds id",
    ],
)
def test_tables_known_by_name_or_by_their_beginning_are_passed_over_in_silence(table):
    assert find_unknown_parts(table) == []


def test_tables_of_no_list_are_named_where_they_hold_a_row():
    tables = ("NEW_ENUM_", "-EMPTY_EVENTS", "OSRT_API", "TILES", '"odd""-\'name"')
    assert find_unknown_parts(*tables) == [
        ("warning", f"{FIRST}tables NEW_ENUM_, TILES, odd\"-'name")
    ]
    assert find_unknown_parts("-NEW_EVENTS", "-TILES") == []


def test_columns_of_no_list_are_named_in_order_and_only_of_tables_that_are_read():
    assert find_unknown_parts(
        "CUPTI_ACTIVITY_KIND_MEMSET start, tile, value, heat",
        "NVTX_EVENTS start, end, mood",
        "-CUPTI_ACTIVITY_KIND_MEMCPY start, pace",
        "SCHED_EVENTS start, cpu",
    ) == [
        (
            "warning",
            (
                f"{FIRST}columns CUPTI_ACTIVITY_KIND_MEMSET.heat, CUPTI_ACTIVITY_KIND_MEMSET.tile, "
                "NVTX_EVENTS.mood"
            ),
        )
    ]


@pytest.mark.parametrize(
    "schema", ["1.0", "2.9.1", "3.0", "3.24", "3.24.14", "3.9.9", "odd", "", None]
)
def test_schemas_that_were_seen_and_those_that_are_no_numbers_need_no_word(schema):
    assert find_unknown_parts(schema=schema) == []


@pytest.mark.parametrize("schema", ["4.0.1", "10.2", "0.9", "33.1"])
def test_a_schema_of_another_layout_is_a_warning_and_nothing_else(schema):
    assert find_unknown_parts(schema=schema) == [("warning", f"{FIRST}schema version {schema}")]
    assert find_unknown_parts("TILES", schema=schema) == [
        ("warning", f"{FIRST}schema version {schema}; tables TILES")
    ]


@pytest.mark.parametrize(
    ("version", "who"), [("2027.1.1.5", "nsys 2027.1.1.5, schema"), (None, "nsys schema")]
)
def test_a_later_schema_of_a_known_layout_is_a_note(version, who):
    note = (
        "info",
        f"{who} 3.25.0 is newer than the newest tested version (3.24): perfctl read all known parts",
    )
    assert find_unknown_parts(schema="3.25.0", version=version) == [note]
    assert find_unknown_parts("TILES", schema="3.25.0", version=version) == [
        ("warning", f"{FIRST}tables TILES"),
        note,
    ]
