"""Reports of rocprofv3 that are cut or odd, and older ones, which are refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.orchestrator.cli.main import run_command_line
from perfctl.orchestrator.commands.ingest import scrub
from perfctl.orchestrator.ingest.ingest import ingest_paths
from perfctl.parsers import ReportError, parse_every_run
from perfctl.parsers.rocm.refused import COMPUTE, ROCPROF
from tests.make.files import write
from tests.make.rocpd import made
from tests.make.stored import execute
from tests.make.stored import rows as stored_rows


def test_neither_environment_nor_command_nor_host_reaches_the_store(tmp_path):
    path = made(tmp_path / "r.db")
    ingest_paths(path, tmp_path / "store.db")
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("store.db*"))
    for secret in (b"hf_abcdefghij", b"HF_TOKEN", b"secret0123", b"node17.example.org"):
        assert secret in path.read_bytes()
        assert secret not in stored


def test_scrub_empties_the_environment_and_the_host_and_keeps_every_launch(tmp_path):
    path = made(tmp_path / "r.db")
    done = scrub(path, tmp_path / "clean.db")
    left = done.path.read_bytes()
    for secret in (b"hf_abcdefghij", b"/usr/bin", b"secret0123", b"node17.example.org"):
        assert secret not in left
    assert list(parsers.parse(done.path).kernels) == list(parsers.parse(path).kernels)


def test_a_table_that_no_list_knows_is_named(tmp_path):
    path = made(tmp_path / "r.db")
    execute(path, "CREATE TABLE rocpd_novelty (a)", "INSERT INTO rocpd_novelty VALUES (1)")
    warnings = [one.text for one in parsers.parse(path).diagnostics if one.severity == "warning"]
    assert warnings == ["not understood and left out: tables rocpd_novelty"]


# Reports of rocprof v1 and rocprof-compute are refused by name; what is next to them is


IDENTITY = "Kernel_Name,GPU_ID,Grid_Size,Workgroup_Size,SQ_WAVES,Start_Timestamp,End_Timestamp\n"
SMI = "utilization.gpu [%], index\n5 %, 0\n"


TABLES = [
    f'CREATE TABLE {table} ("BeginNs" INTEGER, "EndNs" INTEGER, "Name" TEXT)'
    for table in ("OPS", "COPY", "HIP")
]
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
def test_each_form_is_refused_with_the_release_that_reads_it(name, tmp_path):
    path = tmp_path / name
    execute(path, *TABLES) if name == "results.db" else write(path, TEXTS[name])
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
def test_other_tables_are_not_taken_for_these(change, tmp_path):
    assert parsers.sniff(write(tmp_path / "pmc_perf.csv", change(TEXTS["pmc_perf.csv"]))) is None


def test_a_folder_is_refused_once_and_other_reports_in_it_are_read(tmp_path, capsys):
    folder = tmp_path / "workloads" / "vcopy" / "MI200"
    folder.mkdir(parents=True)
    for name in ("pmc_perf.csv", "sysinfo.csv", "pmc_kernel_top.csv"):
        (folder / name).write_text(TEXTS[name])
    (folder / "SQ_LEVEL_WAVES.csv").write_text(TEXTS["pmc_perf.csv"])
    (folder / "smi.csv").write_text(SMI)
    assert parsers.find_report_paths(tmp_path) == [folder / "pmc_perf.csv", folder / "smi.csv"]
    store = tmp_path / "perfctl.db"
    assert run_command_line(["ingest", str(tmp_path / "workloads"), "--store", str(store)]) == 4
    assert capsys.readouterr().err.count("1.0.0 was the last release to read") == 1
    assert stored_rows(store, "SELECT profiler FROM run") == [("nvidia-smi",)]


# CSV files of rocprofv3: files of one process, cut ones, and real ones read a second time with


PROCESS = Path(__file__).resolve().parents[2] / "data" / "rocm" / "csv" / "process"
"""What one process leaves: two launches, counters, a copy, calls and two GPUs."""
SUMS = '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs"\n'


def test_files_given_one_by_one_are_still_one_run(tmp_path):
    done = ingest_paths(sorted(PROCESS.glob("77_*.csv")), tmp_path / "store.db")
    assert [path.name for path, _ in done.taken] == ["77_kernel_trace.csv"]


def test_a_header_that_appears_twice_is_refused(tmp_path):
    with pytest.raises(ReportError, match="the header appears twice"):
        parsers.parse(
            write(tmp_path / "1_kernel_stats.csv", SUMS + SUMS + "a(),2,300,150,100.0,150,150\n")
        )


@pytest.mark.parametrize("end", [40, 500, -8])
def test_a_cut_off_file_is_one_clear_error_and_nothing_of_it_is_stored(end, tmp_path):
    whole = (PROCESS / "77_kernel_trace.csv").read_bytes()
    path = write(tmp_path / "77_kernel_trace.csv", whole[:end])
    with pytest.raises(ReportError):
        parsers.parse(path)
    done = ingest_paths(path, tmp_path / "store.db")
    assert done.taken == ()
    assert len(done.failed) == 1
    assert "\n" not in done.failed[0]


CALLS = "Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp\n"


def test_times_that_a_spreadsheet_rounded_are_unknown_and_not_0(tmp_path):
    trace = (PROCESS / "77_kernel_trace.csv").read_text(encoding="utf-8")
    rounded = re.sub("[12]0[0-9]0", "3.42331E+14", trace)
    report = parsers.parse(write(tmp_path / "77_kernel_trace.csv", rounded))
    kernels = list(report.kernels)
    assert [(one.start_ns, one.duration_ns) for one in kernels] == [(None, None)] * len(kernels)
    reasons = [gap.reason for gap in report.gaps if gap.quantity == "kernel.duration_ns"]
    assert reasons and reasons[0].startswith(f"{len(kernels)} of {len(kernels)} launches have no")
    call = "HIP_RUNTIME_API,hipMalloc,7,7,1,3.42331E+14,3.42331E+14\n"
    (total,) = parsers.parse(write(tmp_path / "9_hip_api_trace.csv", CALLS + call)).operations
    assert (total.calls, total.cpu_ns) == (1, None)


def test_two_tables_of_calls_in_one_file_are_read_one_by_one(tmp_path):
    (file := tmp_path / "api.csv").write_text(
        f"{CALLS}MARKER_CORE_API,step 1,7,7,1,10,20\n{CALLS}MARKER_CORE_API,step 2,7,7,2,30,45\n",
        encoding="utf-8",
    )
    names = [[one.name for one in part.report.ranges] for part in parse_every_run(file)]
    assert names == [["step 1"], ["step 2"]]
