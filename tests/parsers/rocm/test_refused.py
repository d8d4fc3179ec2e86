"""Reports of rocprof v1 and rocprof-compute are refused by name; what is next to them is
still read."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.orchestrator.cli.main import run
from perfctl.parsers import ReportError
from perfctl.parsers.rocm.refused import COMPUTE, ROCPROF

IDENTITY = "Kernel_Name,GPU_ID,Grid_Size,Workgroup_Size,SQ_WAVES,Start_Timestamp,End_Timestamp\n"
SMI = "utilization.gpu [%], index\n5 %, 0\n"


def database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in ("OPS", "COPY", "HIP"):
            connection.execute(
                f'CREATE TABLE {table} ("BeginNs" INTEGER, "EndNs" INTEGER, "Name" TEXT)'
            )


TEXTS = {
    "results.stats.csv": (
        '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n"mul(int)",2,300,150,100.0\n'
    ),
    "results.csv": (
        "Index,KernelName,gpu-id,grd,wgr,SQ_WAVES,BeginNs,EndNs\n0,mul,1,1000,256,16,100,140\n"
    ),
    "results.json": (
        '{ "traceEvents":[{}\n,{"ph":"X","name":"mul","args":{"BeginNs":"1000","EndNs":"3000"}}\n]}'
    ),
    "pmc_perf.csv": f"Dispatch_ID,{IDENTITY}0,mul,4,1000,256,16,100,140\n",
    "sysinfo.csv": "gpu_model,gpu_arch,cu_per_gpu\nMI300X_A1,gfx942,304\n",
    "pmc_kernel_top.csv": "Kernel_Name,Count,Sum(ns),Mean(ns),Median(ns),Pct\nmul,2,80,40,40,100\n",
}


@pytest.mark.parametrize("name", ["results.db", *TEXTS])
def test_each_form_is_refused_with_the_release_that_reads_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    database(path) if name == "results.db" else path.write_text(TEXTS[name])
    tool = ROCPROF if name.startswith("results") else COMPUTE
    with pytest.raises(ReportError) as caught:
        parsers.parse(path)
    assert str(caught.value) == (
        f"{path}: a report of {tool}, which perfctl 1.0.0 was the last release to read."
        " Record with rocprofv3, or install perfctl==1.0.0"
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("Workgroup_Size", "Groups"),
        lambda text: text.replace("Dispatch_ID", "Launch"),
        lambda text: text.replace("Kernel_Name", "Name"),
    ],
)
def test_other_tables_are_not_taken_for_these(change: Callable[[str], str], tmp_path: Path) -> None:
    path = tmp_path / "pmc_perf.csv"
    path.write_text(change(TEXTS["pmc_perf.csv"]))
    assert parsers.sniff(path) is None


def test_a_folder_is_refused_once_and_other_reports_in_it_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "workloads" / "vcopy" / "MI200"
    folder.mkdir(parents=True)
    for name in ("pmc_perf.csv", "sysinfo.csv", "pmc_kernel_top.csv"):
        (folder / name).write_text(TEXTS[name])
    (folder / "SQ_LEVEL_WAVES.csv").write_text(TEXTS["pmc_perf.csv"])
    (folder / "smi.csv").write_text(SMI)
    assert parsers.find(tmp_path) == [folder / "pmc_perf.csv", folder / "smi.csv"]
    store = tmp_path / "perfctl.db"
    assert run(["ingest", str(tmp_path / "workloads"), "--store", str(store)]) == 4
    assert capsys.readouterr().err.count("1.0.0 was the last release to read") == 1
    with closing(sqlite3.connect(store)) as connection:
        assert connection.execute("SELECT profiler FROM run").fetchall() == [("nvidia-smi",)]
