"""nvprof's rows as records: times, sizes, grids, devices, metrics, and figures of its sums."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError, parse, sniff
from perfctl.records.report import Copy, Counter, Device, Diagnostic, Report, Summary

PROCESS = "==5== Profiling result:\n"
TRACE_HEAD = "   Start  Duration  Grid Size  Device  Name\n"
SUM_HEAD = "Time(%)      Time     Calls       Avg       Min       Max  Name\n"
TYPED_HEAD = "            Type  " + SUM_HEAD
METRIC_HEAD = (
    "Invocations    Metric Name    Metric Description         Min         Max         Avg\n"
)
CSV_SUM = '"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"\n,%,us,,us,us,us,\n'
CSV_TRACE = '"Start","Duration","Grid X","Grid Y","Grid Z","Size","Device","Stream","Name"'


def read(folder: Path, text: str) -> Report:
    path = folder / "prof.txt"
    path.write_text(text)
    return parse(path)


def launch(name: str, duration: str = "2.0us") -> str:
    return f"1.0us  {duration}  (1 1 1)  T4 (0)  {name}\n"


def figures(report: Report) -> dict[str, float | None]:
    return {figure.name: figure.value for figure in report.summaries}


def unread(report: Report) -> list[str]:
    return [gap.reason for gap in report.gaps if gap.quantity == "nvprof row"]


@pytest.mark.parametrize(
    ("line", "is_nvprof"),
    [
        ("==5== NVPROF is profiling process 5, command: x", True),
        ("======== Profiling result:", True),
        ("done==5== Profiling application: x", True),
        ("==5== Metric result:", True),
        (TRACE_HEAD, True),
        (SUM_HEAD, True),
        (TYPED_HEAD, True),
        (CSV_TRACE, True),
        (CSV_SUM, True),
        ("Time(%),Time,Calls,Avg,Min,Max,Name", True),
        ("==5== hello", False),
        ("Profiling result:", False),
        ("Start Duration Name", False),
        ("Start,Duration,Name", False),
    ],
)
def test_nvprof_is_told_by_its_own_lines_and_headers(
    tmp_path: Path, line: str, is_nvprof: bool
) -> None:
    (tmp_path / "a.txt").write_text(f"something else\n{line}\n")
    parser = sniff(tmp_path / "a.txt")
    assert (parser is not None and parser.name == "nvprof text") is is_nvprof


@pytest.mark.parametrize(
    ("duration", "ns"),
    [
        ("438.61ms", 438_610_000),
        ("1.5us", 1500),
        ("7ns", 7),
        ("2.4e+03s", 2_400_000_000_000),
        ("0.6ns", 1),
        ("5", None),
        ("5KB", None),
        ("-", None),
        ("9.3e+18s", None),
    ],
)
def test_times_are_nanoseconds(tmp_path: Path, duration: str, ns: int | None) -> None:
    (kernel,) = read(tmp_path, PROCESS + TRACE_HEAD + launch("k", duration)).kernels
    assert kernel.duration_ns == ns


@pytest.mark.parametrize(
    ("size", "count"),
    [
        ("1.5KB", 1536),
        ("2MB", 2 * 2**20),
        ("1TB", 2**40),
        ("512B", 512),
        ("0KB", 0),
        ("5KB/s", None),
        ("5", None),
        ("-", None),
    ],
)
def test_sizes_of_recent_versions_are_in_powers_of_1024(
    tmp_path: Path, size: str, count: int | None
) -> None:
    head = CSV_TRACE.replace('"Size"', '"Size","SrcMemType"')
    row = f'1,2,,,,{size},Pageable,"T4 (2)",7,"[CUDA memcpy HtoD]"\n'
    report = read(tmp_path, f"{PROCESS}{head}\nus,us,,,,,,,,\n{row}")
    assert list(report.copies) == [Copy("HtoD", count, 1000, 2000, None, 2, 7)]
    assert report.devices == (Device("T4", "gpu", 2),)


@pytest.mark.parametrize(("size", "count"), [("409.60KB", None), ("512B", 512), ("0KB", 0)])
def test_without_a_column_of_recent_versions_a_size_in_kilobytes_is_a_gap(
    tmp_path: Path, size: str, count: int | None
) -> None:
    text = "Start  Duration  Size  Throughput  Device  Name\n"
    text += f"133.81ms  135.78us  {size}  3.0167GB/s  T4 (0)  [CUDA memcpy HtoD]\n"
    report = read(tmp_path, PROCESS + text)
    assert [copy.bytes for copy in report.copies] == [count]
    gaps = [gap for gap in report.gaps if gap.quantity == "copy.bytes"]
    assert [gap.state for gap in gaps] == ["ambiguous"] * (count is None)
    assert all(gap.reason.endswith("shows which: 1 values are left out") for gap in gaps)


def test_further_columns_are_counters_of_the_launch_in_base_units(tmp_path: Path) -> None:
    head = '"Start","Duration","Grid X","Kernel","flop_count_sp","ipc","dram","state","share"'
    rows = 'us,us,,,,,,,%,\n1,2,1,"k(int) [12]",12,1.5,2.5GB/s,Low (1),50,\n'
    text = f'{head},"SrcMemType"\n{rows}'
    report = read(tmp_path, PROCESS + text)
    assert [kernel.name for kernel in report.kernels] == ["k(int)"], "without its correlation"
    assert list(report.counters) == [
        Counter(0, "flop_count_sp", 12, None),
        Counter(0, "ipc", 1.5, None),
        Counter(0, "dram", 2.5 * 2**30, "byte/s"),
        Counter(0, "state", None, None, text="Low (1)"),
        Counter(0, "share", 50, "%"),
    ]


def test_a_counter_in_kilobytes_of_an_unknown_version_keeps_its_text_alone(tmp_path: Path) -> None:
    head = '"Start","Duration","Grid X","Kernel","dram"\n'
    report = read(tmp_path, f"{PROCESS}{head}us,us,,,\n1,2,1,k,2.5GB/s\n")
    assert list(report.counters) == [Counter(0, "dram", None, "byte/s", text="2.5GB/s")]
    assert ("counter", "ambiguous") in {(gap.quantity, gap.state) for gap in report.gaps}


def test_a_device_without_a_number_is_a_gap(tmp_path: Path) -> None:
    report = read(tmp_path, PROCESS + TRACE_HEAD + launch("k").replace("T4 (0)", "Tesla V100-SXM2"))
    assert report.devices == (Device("Tesla V100-SXM2", "gpu", 0),)
    assert "kernel.device_index" in {gap.quantity for gap in report.gaps}


def test_calls_in_a_trace_and_sums_of_unified_memory_are_named_as_left_out(tmp_path: Path) -> None:
    trace = TRACE_HEAD + launch("k") + "1.0us  2.0us  -  -  cudaMalloc\n"
    unified = (
        "==5== Unified Memory profiling result:\n"
        "   Count  Avg Size  Min Size  Max Size  Total Size  Total Time  Name\n"
        "       2  256B  256B  256B  512B  50.0us  Host To Device\n"
    )
    gaps = {gap.quantity: gap.reason for gap in read(tmp_path, PROCESS + trace + unified).gaps}
    assert gaps["api_call"] == "calls and page faults in a trace are not read: 1 rows"
    assert gaps["summary"] == "sums of unified memory are not read"


def test_groups_of_a_summary_last_until_the_next_one(tmp_path: Path) -> None:
    rows = (
        " GPU activities:   75.0%  3.0ms  2  1.5ms  1.0ms  2.0ms  add(float*, float*)\n"
        "                   25.0%  1.0ms  1  1.0ms  1.0ms  1.0ms  [CUDA memcpy DtoH]\n"
        "      API calls:  100.0%  1.5s   3  0.5s   9.0us  1.4  cudaMalloc\n   not a row\n"
    )
    report = read(tmp_path, PROCESS + TYPED_HEAD + rows)
    assert figures(report) == {
        **{
            f"GPU activities: add(float*, float*): {name}": value
            for name, value in {
                "Time(%)": 75,
                "Time": 3_000_000,
                "Calls": 2,
                "Avg": 1_500_000,
                "Min": 1_000_000,
                "Max": 2_000_000,
            }.items()
        },
        "GPU activities: [CUDA memcpy DtoH]: Time(%)": 25,
        "GPU activities: [CUDA memcpy DtoH]: Calls": 1,
        **{
            f"GPU activities: [CUDA memcpy DtoH]: {name}": 1_000_000
            for name in ("Time", "Avg", "Min", "Max")
        },
        "API calls: cudaMalloc: Time(%)": 100,
        "API calls: cudaMalloc: Time": 1_500_000_000,
        "API calls: cudaMalloc: Calls": 3,
        "API calls: cudaMalloc: Avg": 500_000_000,
        "API calls: cudaMalloc: Min": 9000,
        "API calls: cudaMalloc: Max": None,
    }
    assert report.summaries[-1] == Summary("API calls: cudaMalloc: Max", None, "ns", "1.4")
    assert unread(report) == ["1 lines inside tables could not be read, or are cut off"]


def test_an_untyped_summary_is_of_the_gpu_unless_nvprof_says_that_it_is_of_calls(
    tmp_path: Path,
) -> None:
    row = "100.0%  2.0us  2  1.0us  1.0us  1.0us  {}\n"
    text = PROCESS + SUM_HEAD + row.format("k")
    text += "==5== API calls:\n" + SUM_HEAD + row.format("cudaFree")
    assert {"GPU activities: k: Time", "API calls: cudaFree: Time"} <= figures(
        read(tmp_path, text)
    ).keys()


def test_metrics_are_grouped_by_kernel_in_text_and_csv(tmp_path: Path) -> None:
    text = (
        "==5== Metric result:\n"
        + METRIC_HEAD
        + 'Device "T4 (0)"\n    Kernel: k(int, float)\n'
        + "    2  flop_count_sp  Floating Point  Single  10  30  20\n\n"
        + "    3  ipc  Executed IPC  1  3  2\n    Kernel: m\n    1  ipc  2\n"
    )
    report = read(tmp_path, text)
    assert figures(report)["k(int, float): flop_count_sp: Avg"] == 20
    assert figures(report)["k(int, float): ipc: Max"] == 3
    assert len(unread(report)) == 1
    head = '"Device","Kernel","Invocations","Metric Name","Metric Description","Min","Max","Avg"\n'
    report = read(tmp_path, f'==5== Metric result:\n{head}"T4","k",3,"ipc","x",1,3,low\n')
    assert report.summaries == (
        Summary("k: ipc: Invocations", 3, None),
        Summary("k: ipc: Avg", None, None, "low"),
        Summary("k: ipc: Min", 1, None),
        Summary("k: ipc: Max", 3, None),
    )


def test_a_csv_without_quotes_has_names_with_commas(tmp_path: Path) -> None:
    text = "Time(%),Time,Calls,Avg,Min,Max,Name\n50%,5ms,2,2.5ms,2ms,3ms,void f<int, 4>(a, b)\n"
    assert figures(read(tmp_path, text))["GPU activities: void f<int, 4>(a, b): Time"] == 5_000_000


def test_a_last_row_whose_name_may_be_cut_is_counted_and_left_out(tmp_path: Path) -> None:
    for name, kernels in (("k", 1), ("k\n", 2), ("k(int)", 2), ("k [7]", 2)):
        text = PROCESS + TRACE_HEAD + launch("first") + launch(name)[:-1]
        report = read(tmp_path, text)
        assert (len(list(report.kernels)), len(unread(report))) == (kernels, 2 - kernels), name


def test_warnings_of_nvprof_are_kept_and_do_not_end_a_table(tmp_path: Path) -> None:
    rows = launch("a") + "==5== Warning: Slow.\n======== Internal error: Deep\n" + launch("b")
    report = read(tmp_path, PROCESS + TRACE_HEAD + rows + "==5== API calls:\n" + launch("c"))
    assert [kernel.name for kernel in report.kernels] == ["a", "b"]
    assert [note for note in report.diagnostics if note.source == "nvprof"] == [
        Diagnostic("warning", "nvprof", "Slow."),
        Diagnostic("error", "nvprof", "Deep"),
    ]


def test_a_table_that_stands_twice_in_one_process_is_refused_with_the_line(tmp_path: Path) -> None:
    row = "100.0%  2.0us  2  1.0us  1.0us  1.0us  {}\n"
    first = PROCESS + SUM_HEAD + row.format("k")
    trace = PROCESS + TRACE_HEAD + launch("a")
    for table in (first, trace):
        with pytest.raises(
            ReportError, match=r"a table of one process appears twice \(again at line"
        ):
            read(tmp_path, table + table)
        read(tmp_path, table + table.replace("==5==", "==6=="))
    read(tmp_path, first + PROCESS + SUM_HEAD + row.format("m"))
