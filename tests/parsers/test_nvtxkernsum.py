"""All enclosing ranges by the sweep, against what the installed nsys says about the same export."""

from __future__ import annotations

import importlib.util
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest

from perfctl.parsers import parse

ROOT = Path(__file__).resolve().parents[2]
REAL = (
    "nsys/sqlite/lowertri_la.sqlite",
    "nsys/sqlite/memfusion_report1.sqlite",
    "nsys/sqlite/quasiben_cudf.sqlite",
    "dlprof/odema_pytorch/no_relu_nsys_profile.sqlite",
)


@pytest.fixture(scope="module")
def comparison() -> ModuleType:
    """scripts/proof/compare_nvtxkernsum.py, where nsys is installed."""
    if shutil.which("nsys") is None:
        pytest.skip("nsys is not installed")
    spec = importlib.util.spec_from_file_location(
        "compare_nvtxkernsum", ROOT / "scripts/proof/compare_nvtxkernsum.py"
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def same(comparison: ModuleType, path: Path) -> int:
    """Number of rows, all of them equal."""
    mine, theirs = comparison.from_sweep(path), comparison.from_nsys(path)
    assert mine == theirs
    return len(mine)


def generated(shared: Path, folder: Path, kernels: int, *options: str) -> Path:
    out = folder / f"generated_{kernels}{len(options)}.sqlite"
    template = shared / "bench/schema_full.sqlite"
    script = shared / "bench/gen_nsys.py"
    command = [sys.executable, script, str(kernels), out, "--template", template, *options]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return out


@pytest.mark.parametrize(
    ("kernels", "options"), [(3_000, ()), (3_000, ("--unique-iters",)), (30_000, ())]
)
def test_generated_exports_give_the_rows_of_nvtxkernsum(
    kernels: int, options: tuple[str, ...], comparison: ModuleType, shared: Path, tmp_path: Path
) -> None:
    assert same(comparison, generated(shared, tmp_path, kernels, *options)) > 500


@pytest.mark.parametrize("name", REAL)
def test_real_exports_give_the_rows_of_nvtxkernsum(
    name: str, comparison: ModuleType, reports: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "export.sqlite"  # nsys stats may write indices into the file that it reads
    shutil.copy(reports / name, copy)
    assert same(comparison, copy) >= 50


def reference(path: Path) -> list[int | None]:
    """Start of the innermost push/pop range around each kernel's launch call, kernel by kernel."""
    with closing(sqlite3.connect(path)) as database, database:
        ranges = database.execute(
            "SELECT start, end, globalTid FROM NVTX_EVENTS WHERE eventType = 59"
        ).fetchall()
        calls = {
            (thread & ~0xFFFFFF, number): (thread, start, end)
            for thread, number, start, end in database.execute(
                "SELECT globalTid, correlationId, start, end FROM CUPTI_ACTIVITY_KIND_RUNTIME"
            )
        }
        kernels = database.execute(
            "SELECT globalPid, correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL"
        ).fetchall()
    found = []
    for process, number in kernels:
        thread, start, end = calls[process, number]
        around = [
            r for r in ranges if r[2] == thread and r[0] <= start and (r[1] is None or r[1] >= end)
        ]
        found.append(max((r[0] for r in around), default=None))
    return found


@pytest.mark.parametrize("options", [(), ("--unique-iters",)])
def test_innermost_ranges_of_a_generated_export_are_those_of_the_plain_reference(
    options: tuple[str, ...], shared: Path, tmp_path: Path
) -> None:
    path = generated(shared, tmp_path, 3000, *options)
    report = parse(path)
    starts = [r.start_ns for r in report.ranges]
    assert [
        None if k.range_number is None else starts[k.range_number] for k in report.kernels
    ] == reference(path)
