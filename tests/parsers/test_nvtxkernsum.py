"""All enclosing ranges by the sweep, against what the installed nsys says about the same export."""

from __future__ import annotations

import importlib.util
import random
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


def tangled(path: Path, seed: int) -> None:
    """Put ranges over a generated export that cross, never end, or begin before 0; of two
    processes; text in either column."""
    choose = random.Random(seed)
    with closing(sqlite3.connect(path)) as database, database:
        calls = database.execute(
            "SELECT min(start), max(end) FROM CUPTI_ACTIVITY_KIND_RUNTIME"
        ).fetchone()
        threads = [
            row[0]
            for row in database.execute(
                "SELECT DISTINCT globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME"
            )
        ]
        names = [row[0] for row in database.execute("SELECT id FROM StringIds ORDER BY id LIMIT 5")]
        other = 1 << 24  # the next process
        move = "UPDATE {} SET {} = {} + ? WHERE correlationId % 3 = 0"
        database.execute(move.format("CUPTI_ACTIVITY_KIND_RUNTIME", *["globalTid"] * 2), (other,))
        database.execute(move.format("CUPTI_ACTIVITY_KIND_KERNEL", *["globalPid"] * 2), (other,))
        database.execute("DELETE FROM NVTX_EVENTS")
        insert = (
            "INSERT INTO NVTX_EVENTS (start, end, eventType, text, textId, globalTid, domainId) "
            "VALUES (?,?,?,?,?,?,?)"
        )
        database.execute(insert, (0, None, 75, "a domain", None, threads[0], 3))
        for number in range(400):
            length = calls[1] - calls[0]
            start = choose.choice((-1000, *[choose.randint(*calls)] * 20))
            end = max(start, calls[0]) + choose.randint(0, length // choose.choice((2, 20, 200)))
            text, registered = choose.choice(
                ((f"range {number % 40}", None), (None, choose.choice(names)))
            )
            thread = choose.choice(threads) + choose.choice((0, other))
            kind = choose.choice((59, 59, 59, 60))
            never = choose.random() < 0.05
            row = (
                start,
                None if never else end,
                kind,
                text,
                registered,
                thread,
                choose.choice((0, 3)),
            )
            database.execute(insert, row)


@pytest.mark.parametrize("seed", range(3))
def test_tangled_ranges_of_several_processes_give_the_rows_of_nvtxkernsum(
    seed: int, comparison: ModuleType, shared: Path, tmp_path: Path
) -> None:
    path = generated(shared, tmp_path, 2000)
    tangled(path, seed)
    assert same(comparison, path) > 1000


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
