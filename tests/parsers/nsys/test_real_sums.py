"""Real nsys exports: sums, GPU time of ranges and columns of kernels and copies against
independent readings.

These are plain SQL of the test's own, the text of nsys stats that was recorded with the same file,
and nsys stats run here.
"""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from collections import Counter
from typing import Any

import pytest

from perfctl.parsers import parse

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


def ours(report, domain):
    return Counter(call[1:] for call in report.api_calls if call.domain == domain)


def printed(text):
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
def test_sums_and_projected_ranges_are_those_of_nsys_stats(name, reports, tmp_path):
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
