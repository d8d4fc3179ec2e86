"""Real nsys exports: sums, GPU time of ranges and columns of kernels and copies against
independent readings.

These are plain SQL of the test's own, the text of nsys stats that was recorded with the same file,
and nsys stats run here.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perfctl.parsers import parse
from perfctl.records.report import Report

FILES = (
    "beast_report1",
    "cutlass_benchmark_report1",
    "kmeans_report2",
    "lianhang_report",
    "lowertri_la",
    "memfusion_report1",
    "michaelmichaeln_tile_16x16",
    "nsysai_mfu_2gpu_after",
    "ntua_a100_gemm_pipeline",
    "p4arth_report1",
    "ppcuitk_report1",
    "quasiben_cudf",
    "rchops_report1",
    "samuelamsih_report11",
    "stellawava_report1",
    "testcuda_report2",
    "zx3xyy_cs336_result",
)
STATS_HERE = (
    "lowertri_la",
    "memfusion_report1",
    "michaelmichaeln_tile_16x16",
    "lianhang_report",
    "ppcuitk_report1",
    "quasiben_cudf",
    "rchops_report1",
    "samuelamsih_report11",
    "testcuda_report2",
    "zx3xyy_cs336_result",
)
Rows = Counter[tuple[Any, ...]]


def ours(report: Report, domain: str) -> Rows:
    return Counter(call[1:] for call in report.api_calls if call.domain == domain)


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        try:
            return connection.execute(query).fetchall()
        except sqlite3.OperationalError as error:  # nsys leaves out what would be empty
            assert "no such table" in str(error) or "no such column" in str(error)
            return []


@pytest.mark.parametrize("name", FILES)
def test_sums_copies_and_launches_are_those_of_plain_sql(name: str, reports: Path) -> None:
    path = reports / "nsys" / "sqlite" / f"{name}.sqlite"
    report = parse(path)
    figures = "count(*), sum(end - start), min(end - start), max(end - start)"
    cuda = rows(
        path,
        f"SELECT value, {figures} FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON id = nameId "
        "GROUP BY id",
    )
    assert ours(report, "cuda") == Counter(
        (re.sub(r"_v\d{4}$", "", text), *rest) for text, *rest in cuda
    )
    osrt = rows(
        path,
        f"SELECT value, {figures} FROM OSRT_API JOIN StringIds ON id = nameId WHERE nestingLevel "
        "IS NOT NULL GROUP BY id",
    )
    assert ours(report, "osrt") == Counter(osrt)
    sync = rows(
        path, f"SELECT {figures} FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION GROUP BY syncType"
    )
    assert Counter(row[1:] for row in ours(report, "sync").elements()) == Counter(sync)
    known = "(globalPid >> 24) % 16777216, contextId, NULL, graphNodeId, correlationId"
    kernels = [kernel[-10:-5] for kernel in report.kernels]
    assert kernels == rows(path, f"SELECT {known} FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY rowid")
    kinds = {0: "pageable", 1: "pinned", 2: "device"}
    copies = rows(path, "SELECT srcKind, dstKind FROM CUPTI_ACTIVITY_KIND_MEMCPY ORDER BY rowid")
    found = [
        (copy.source_memory, copy.destination_memory)
        for copy in report.copies
        if copy.kind != "memset"
    ]
    assert found == [(kinds[source], kinds[target]) for source, target in copies]


def test_two_ranks_in_one_file_are_told_apart_and_clusters_are_counted(reports: Path) -> None:
    path = reports / "nsys" / "sqlite" / "nsysai_mfu_2gpu_after.sqlite"
    kernels = list(parse(path).kernels)
    assert Counter(kernel.process for kernel in kernels).keys() == {148, 149}
    sizes = dict(rows(path, "SELECT clusterX, count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY 1"))
    assert Counter(kernel.cluster_x for kernel in kernels) == {
        None: sizes[0],
        2: sizes[2],
        4: sizes[4],
    }


@pytest.mark.parametrize("name", ["lowertri_la", "memfusion_report1", "quasiben_cudf"])
def test_gpu_time_of_ranges_is_that_of_the_operations_called_inside_them(
    name: str, reports: Path
) -> None:
    path = reports / "nsys" / "sqlite" / f"{name}.sqlite"
    tables = ("KERNEL", "MEMCPY", "MEMSET")
    work = [
        row
        for table in tables
        for row in rows(
            path,
            "SELECT r.globalTid, r.start, r.end, w.start, w.end FROM CUPTI_ACTIVITY_KIND_RUNTIME "
            f"AS r JOIN CUPTI_ACTIVITY_KIND_{table} AS w ON w.correlationId = r.correlationId",
        )
    ]
    expected: Rows = Counter()
    for thread, start, end in rows(
        path, "SELECT globalTid, start, end FROM NVTX_EVENTS WHERE eventType = 59"
    ):
        inside = [op for op in work if op[0] == thread and start <= op[1] and op[2] <= end]
        span = max(op[4] for op in inside) - min(op[3] for op in inside) if inside else None
        expected[start, end - start, sum(op[4] - op[3] for op in inside), span] += 1
    assert sum(expected.values()) > 50
    found = parse(path).ranges
    assert (
        Counter((one.start_ns, one.duration_ns, one.gpu_ns, one.gpu_span_ns) for one in found)
        == expected
    )


def printed(text: str) -> Iterator[list[dict[str, str]]]:
    """The CSV tables among the lines of nsys stats."""
    table: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith(("Time (%)", "Name,")) or table:
            table.append(line)
        if not line and table:
            yield list(csv.DictReader(io.StringIO("\n".join(table[:-1]))))
            table = []


@pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
@pytest.mark.parametrize("name", STATS_HERE)
def test_sums_and_projected_ranges_are_those_of_nsys_stats(
    name: str, reports: Path, tmp_path: Path
) -> None:
    path = tmp_path / "r.sqlite"  # nsys writes into it
    shutil.copyfile(reports / "nsys" / "sqlite" / f"{name}.sqlite", path)
    asked = [
        part
        for what in ("cudaapisum", "osrtsum", "nvtxsum", "nvtxgpuproj")
        for part in ("--report", what)
    ]
    done = subprocess.run(
        ["nsys", "stats", "-q", *asked, "--format", "csv", str(path)],
        capture_output=True,
        text=True,
    )
    report = parse(path)
    tables = list(printed(done.stdout))
    assert tables, done.stderr
    theirs: Rows = Counter()
    projected: Rows = Counter()
    for one in (line for table in tables for line in table):
        if "Projected Start (ns)" in one:
            projected[
                *(
                    int(one[f"{of} (ns)"])
                    for of in ("Orig Start", "Orig Duration", "Projected Duration")
                ),
                int(one["TID"]),
            ] += 1
            continue
        what = one.get("Name") or one["Range"]
        calls = int(one.get("Num Calls") or one["Instances"])
        theirs[
            what, calls, *(int(float(one[f"{of} (ns)"])) for of in ("Total Time", "Min", "Max"))
        ] += 1
    assert sum((ours(report, domain) for domain in ("cuda", "osrt", "nvtx")), Counter()) == theirs
    spans = Counter(
        (r.start_ns, r.duration_ns, r.gpu_span_ns, r.thread)
        for r in report.ranges
        if r.gpu_span_ns is not None
    )
    assert spans == projected
