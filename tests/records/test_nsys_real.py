"""Real nsys exports of 2020.3 to 2026.1, and one recorded here."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from perfctl.parsers import ReportError, parse, sniff
from perfctl.records.report import Device
from tests.make.nsys_sqlite import gap

pytestmark = pytest.mark.xdist_group("nsys")

REAL = {
    # file: (kernels, copies, ranges), counted with the sqlite3 shell; copies are memcpy + memset
    "sqlite/beast_report1.sqlite": (2254, 6, 0),
    "sqlite/cutlass_benchmark_report1.sqlite": (6, 4, 0),
    "sqlite/dynamicvit_dlprof_nsys_profile.sqlite": (0, 0, 0),
    "sqlite/kmeans_report2.sqlite": (51, 306, 0),
    "sqlite/lianhang_report.sqlite": (4, 12, 0),
    "sqlite/lowertri_la.sqlite": (1221, 1226 + 1, 1276),
    "sqlite/memfusion_report1.sqlite": (36, 4, 59),
    "sqlite/ntua_a100_gemm_pipeline.sqlite": (130, 32, 1),
    "sqlite/p4arth_report1.sqlite": (1, 3, 0),
    "sqlite/quasiben_cudf.sqlite": (268, 144 + 14, 892),
    "sqlite/rchops_report1.sqlite": (0, 0, 6),
    "sqlite/samuelamsih_report11.sqlite": (1152, 575 + 288, 0),
    "sqlite/stellawava_report1.sqlite": (0, 0, 0),
    "sqlite/testcuda_report2.sqlite": (4, 12, 0),
    "sqlite/zx3xyy_cs336_result.sqlite": (2768, 162, 0),
    "../dlprof/odema_pytorch/no_relu_nsys_profile.sqlite": (46, 12 + 4, 82),
}


@pytest.mark.parametrize("name", REAL)
def test_real_reports_give_all_their_rows(name: str, reports: Path) -> None:
    report = parse(reports / "nsys" / name)
    kernels = list(report.kernels)
    assert (len(kernels), len(list(report.copies)), len(list(report.ranges))) == REAL[name]
    assert [k.launch for k in kernels] == list(range(len(kernels)))
    assert all(k.name and k.grid_x and k.block_x and k.duration_ns for k in kernels)
    assert bool(gap(report, "kernel")) == (not kernels)


def test_every_sqlite_file_among_the_real_reports_is_known_or_refused_in_words(
    reports: Path,
) -> None:
    refused = {}
    for path in sorted((reports / "nsys").rglob("*.sqlite")):
        try:
            parse(path)
        except ReportError as error:
            refused[path.name] = str(error)
    assert sorted(refused) == [
        "ayush_vector_add_N10.sqlite",
        "sidvijay_nsys_report_LFS_POINTER.sqlite",
    ]
    assert "the export failed" in refused["ayush_vector_add_N10.sqlite"]


def test_dlprofs_own_database_is_not_taken_for_an_nsys_export(reports: Path) -> None:
    parser = sniff(reports / "dlprof/odema_pytorch/no_relu_dlprof_dldb.sqlite")
    assert parser is not None
    assert parser.name == "DLProf database"


INNERMOST = """
SELECT (SELECT r.rowid FROM NVTX_EVENTS r WHERE r.eventType = 59 AND r.globalTid = c.globalTid
        AND r.start <= c.start AND r.end >= c.end ORDER BY r.start DESC, r.end LIMIT 1)
FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME c
ON c.correlationId = k.correlationId AND (c.globalTid & ~0xFFFFFF) = k.globalPid ORDER BY k.rowid
"""


@pytest.mark.parametrize(
    "name",
    [
        "lowertri_la",
        "memfusion_report1",
        "quasiben_cudf",
        "../../dlprof/odema_pytorch/no_relu_nsys_profile",
    ],
)
def test_real_kernels_are_in_the_ranges_that_plain_sql_finds(name: str, reports: Path) -> None:
    path = reports / "nsys/sqlite" / f"{name}.sqlite"
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    expected = [row for (row,) in connection.execute(INNERMOST)]
    starts = dict(connection.execute("SELECT rowid, start FROM NVTX_EVENTS"))
    connection.close()
    report = parse(path)
    kernels, ranges = list(report.kernels), list(report.ranges)
    found = [None if k.range_number is None else ranges[k.range_number].start_ns for k in kernels]
    assert found == [starts.get(row) for row in expected]
    assert found.count(None) == 0


def test_the_ranges_of_lowertri_are_levels_and_tasks_of_one_thread(reports: Path) -> None:
    report = parse(reports / "nsys/sqlite/lowertri_la.sqlite")
    ranges = list(report.ranges)
    assert Counter((r.kind, r.domain, r.layer) for r in ranges) == {("push_pop", None, None): 1276}
    assert len({r.thread for r in ranges}) == 1
    assert ranges[0].name == "LA Algorithm Total"
    assert all(r.depth == (0 if r.parent is None else ranges[r.parent].depth + 1) for r in ranges)
    assert gap(report, "layer").startswith("not_collected: no range names a layer")


def test_real_domains_devices_and_facts(reports: Path) -> None:
    folder = reports / "nsys/sqlite"
    cudf = parse(folder / "quasiben_cudf.sqlite")
    assert Counter(r.domain for r in cudf.ranges).keys() == {"cudf_python", "libcudf"}
    # RTX 8000: nsys 2020.3 gives 48601 MiB, 1770000 kHz and a bandwidth that is none
    assert cudf.devices[0] == Device(
        "Quadro RTX 8000", "gpu", 0, "7.5", 72, 48601 * 2**20, None, 1_770_000_000
    )
    assert {r.domain for r in parse(folder / "memfusion_report1.sqlite").ranges} == {"TensorRT"}
    four = parse(folder / "cutlass_benchmark_report1.sqlite").devices
    assert [(d.index, d.name) for d in four] == [
        (0, "NVIDIA A100-PCIE-40GB"),
        (1, "NVIDIA A100-PCIE-40GB"),
        (2, "NVIDIA A40"),
        (3, "NVIDIA A40"),
    ]
    assert (four[0].memory_bandwidth_bps, four[0].driver_version) == (
        1_555_200_000_000,
        "470.57.02",
    )
    newest = parse(folder / "testcuda_report2.sqlite")
    assert (newest.form, newest.started_at) == (
        "nsys SQLite, schema 3.24.14",
        "2026-01-25T05:56:17Z",
    )
    assert any(
        "CUPTI_ERROR" in d.text for d in parse(folder / "stellawava_report1.sqlite").diagnostics
    )


PROGRAM = """
import threading, time, torch
from torch.cuda import nvtx
def backward():
    nvtx.range_push("fc:backward"); time.sleep(0.005); nvtx.range_pop()
nvtx.range_push("perfctl:step:0")
nvtx.range_push("perfctl:phase:forward")
nvtx.range_push("fc:forward"); time.sleep(0.01); nvtx.range_pop()
nvtx.range_pop()
nvtx.range_push("perfctl:phase:backward")
other = threading.Thread(target=backward); other.start(); other.join()
nvtx.range_pop()
nvtx.range_pop()
nvtx.range_push("never:forward")
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small program of this machine under its nsys, exported."""
    pytest.importorskip("torch", reason="torch is not installed")
    if shutil.which("nsys") is None:
        pytest.skip("nsys is not installed")
    folder = tmp_path_factory.mktemp("nsys")
    options = ["--trace=nvtx,osrt", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true"]
    command = ["nsys", "profile", *options, "-o", f"{folder}/report", sys.executable, "-c", PROGRAM]
    made = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=folder)
    raw = folder / "report.qdstrm"
    importer = shutil.which("QdstrmImporter")
    if raw.exists() and importer:  # Debian's package does not find its importer by itself
        subprocess.run(
            [importer, "-i", raw, "-o", folder / "report.nsys-rep"],
            capture_output=True,
            timeout=600,
        )
    if not (folder / "report.nsys-rep").exists():
        pytest.skip(f"nsys made no report here: {(made.stderr or made.stdout)[-300:]}")
    out = folder / "report.sqlite"
    export = ["nsys", "export", "--type", "sqlite", "-o", str(out), str(folder / "report.nsys-rep")]
    subprocess.run(export, check=True, capture_output=True, timeout=600)
    return out


@pytest.mark.timeout(500)
def test_a_program_recorded_here_shows_its_layers(recorded: Path) -> None:
    report = parse(recorded)
    ranges = {r.name: r for r in report.ranges}
    if not ranges:
        pytest.skip("this build of torch writes no NVTX ranges")
    step, forward, backward = (
        ranges[n] for n in ("perfctl:step:0", "perfctl:phase:forward", "perfctl:phase:backward")
    )
    layer, gradient = ranges["fc:forward"], ranges["fc:backward"]
    assert [(r.depth, r.parent) for r in (step, forward, layer)] == [
        (0, None),
        (1, step.number),
        (2, forward.number),
    ]
    assert (layer.layer, layer.direction, layer.step, layer.phase) == (
        "fc",
        "forward",
        0,
        "forward",
    )
    assert layer.duration_ns is not None and 10_000_000 <= layer.duration_ns < 10_000_000_000
    assert (gradient.depth, gradient.parent, gradient.step, gradient.phase) == (
        0,
        None,
        0,
        "backward",
    )
    assert gradient.thread not in (None, backward.thread)
    # nsys ends what is still open when the program does
    assert ranges["never:forward"].start_ns > step.start_ns + (step.duration_ns or 0)
    assert report.tool_version and report.started_at and report.duration_ns
    assert gap(report, "kernel").startswith("not_collected")
