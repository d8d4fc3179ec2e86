"""What nsys stats prints, as CSV and on the console, under the report names of all years."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import reports
from perfctl.parsers.nsys.stats_tables import OLD_NAMES
from tests.make.nsys_stats import (
    GEMM,
    KERNELS,
    SUM,
    box_table,
    column_table,
    csv_table,
    header,
    operations,
    processing,
    read,
    summaries,
    titled,
)

SUMMED = [(GEMM, "cuda_gpu_kern_sum", 2, None, 300), ("relu", "cuda_gpu_kern_sum", 1, None, 100)]


@pytest.mark.parametrize("table", [csv_table, column_table, box_table])
@pytest.mark.parametrize("report", ["gpukernsum", "cuda_gpu_kern_sum"])
def test_a_kernel_sum_becomes_operations_of_the_device(
    tmp_path: Path, table: object, report: str
) -> None:
    text = processing(report) + (
        "" if table is csv_table else titled("CUDA GPU Kernel Summary", report)
    )
    found = read(tmp_path, text + table(SUM, KERNELS))  # type: ignore[operator]
    assert operations(found) == SUMMED
    assert found.tool_version == "2024.6.2"


def test_every_figure_but_the_share_becomes_a_summary(tmp_path: Path) -> None:
    found = read(tmp_path, processing("gpukernsum") + csv_table(SUM, KERNELS[:1]))
    times = {"Total Time": 300, "Avg": 150, "Med": 150, "Min": 100, "Max": 200, "StdDev": 70.7}
    expected = {"Instances": (2, None)} | {label: (value, "ns") for label, value in times.items()}
    assert summaries(found) == {
        f"cuda_gpu_kern_sum:{GEMM}:{label}": value for label, value in expected.items()
    }


@pytest.mark.parametrize(
    ("report", "side"),
    [
        ("cudaapisum", "cpu"),
        ("osrtsum", "cpu"),
        ("nvtxppsum", "cpu"),
        ("nvtx_sum", "cpu"),
        ("gpumemtimesum", "device"),
        ("gpusum", "device"),
    ],
)
def test_time_stands_on_the_side_where_it_was_spent(tmp_path: Path, report: str, side: str) -> None:
    found = read(tmp_path, processing(report) + csv_table(header("Num Calls", "Name"), KERNELS[1:]))
    (one,) = found.operations
    assert one.category == OLD_NAMES.get(report, report)
    assert (one.cpu_ns, one.device_ns) == ((100, None) if side == "cpu" else (None, 100))


def test_a_mixed_sum_tells_the_side_by_its_category(tmp_path: Path) -> None:
    columns = [*SUM[:-1], "Category", "Operation"]
    rows = [[*KERNELS[1][:-1], "CUDA_API", "cudaFree"], [*KERNELS[1][:-1], "CUDA_KERNEL", "relu"]]
    found = read(tmp_path, processing("apigpusum") + csv_table(columns, rows))
    assert operations(found) == [
        ("cudaFree", "cuda_api_gpu_sum", 1, 100, None),
        ("relu", "cuda_api_gpu_sum", 1, None, 100),
    ]


def test_rows_of_one_kernel_and_several_grids_are_one_operation(tmp_path: Path) -> None:
    columns = [*SUM[:-1], "GridXYZ", "BlockXYZ", "Name"]
    rows = [
        [*KERNELS[0][:-1], "1024    1    1", " 256    1    1", "k"],
        [*KERNELS[1][:-1], "   2    1    1", " 256    1    1", "k"],
    ]
    for table in (csv_table(columns, rows), column_table(columns, rows)):
        found = read(tmp_path, processing("gpukernsum") + table)
        assert operations(found) == [("k", "cuda_gpu_kern_sum", 3, None, 400)]
        assert summaries(found)["cuda_gpu_kern_sum:k (grid 2 1 1) (block 256 1 1):Instances"] == (
            1,
            None,
        )


# Spellings since 2019


@pytest.mark.parametrize(
    ("title", "columns", "gap"),
    [
        ("CUDA Kernel Statistics (nanoseconds)\n\n", header("Instances", "Name", "2019"), "  "),
        ("CUDA Kernel Statistics:\n\n", header("Instances", "Name", "2020"), "  "),
        ("CUDA Kernel Statistics:\n\n", header("Instances", "Name", "2021"), "  "),
        ("[5/7] Executing 'cuda_gpu_kern_sum' stats report\n\n", SUM, "  "),
        ("[5/7] Executing 'gpukernsum' stats report\n\n", SUM, "  "),
    ],
)
def test_titles_of_all_years_name_the_report(
    tmp_path: Path, title: str, columns: list[str], gap: str
) -> None:
    rows = [[*row[: len(columns) - 1], row[-1]] for row in KERNELS]
    found = read(
        tmp_path,
        "Generating CUDA Kernel Statistics...\n" + title + column_table(columns, rows, gap=gap),
    )
    assert operations(found) == SUMMED
    assert summaries(found)[f"cuda_gpu_kern_sum:{GEMM}:Avg"] == (150, "ns")


def test_sizes_in_kibibytes_of_2020_become_bytes(tmp_path: Path) -> None:
    columns = ["Total", "Operations", "Average", "Minimum", "Maximum", "Operation"]
    rows = [["393216.000", "2304", "170.667", "4.000", "1020.000", "[CUDA memcpy HtoD]"]]
    found = read(
        tmp_path,
        "CUDA Memory Operation Statistics (by size in KiB):\n\n" + column_table(columns, rows),
    )
    assert summaries(found)["cuda_gpu_mem_size_sum:[CUDA memcpy HtoD]:Total"] == (
        393216 * 1024,
        "byte",
    )
    assert summaries(found)["cuda_gpu_mem_size_sum:[CUDA memcpy HtoD]:Min"] == (4096, "byte")
    assert list(found.operations) == []


def test_a_size_printed_as_zero_megabytes_is_not_known_to_be_zero(tmp_path: Path) -> None:
    columns = [
        "Total (MB)",
        "Count",
        "Avg (MB)",
        "Med (MB)",
        "Min (MB)",
        "Max (MB)",
        "StdDev (MB)",
        "Operation",
    ]
    rows = [["2.562", "1225", "0.002", "0.000", "0.000", "1.323", "0.043", "[CUDA memcpy HtoD]"]]
    found = read(tmp_path, processing("gpumemsizesum") + csv_table(columns, rows))
    assert summaries(found)["cuda_gpu_mem_size_sum:[CUDA memcpy HtoD]:Total"] == (2_562_000, "byte")
    assert summaries(found)["cuda_gpu_mem_size_sum:[CUDA memcpy HtoD]:Min"] == (None, "byte")
    assert ("summary", "not_available") in {gap[:2] for gap in found.gaps}


@pytest.mark.parametrize(
    ("total", "average"),
    [
        ("4,330,682,730", "2,165,341,365.5"),
        ("4.330.682.730", "2.165.341.365,5"),
        ("4330682730", "2165341365.5"),
    ],
)
def test_numbers_of_any_locale_are_read(tmp_path: Path, total: str, average: str) -> None:
    row = ["100", total, "2", average, average, total, total, "0", "futex"]
    found = read(tmp_path, titled("OS Runtime Summary", "osrt_sum") + column_table(SUM, [row]))
    assert operations(found) == [("futex", "osrt_sum", 2, 4_330_682_730, None)]
    assert summaries(found)["osrt_sum:futex:Avg"] == (2_165_341_365.5, "ns")


def test_times_in_other_units_become_nanoseconds(tmp_path: Path) -> None:
    columns = [column.replace("(ns)", "(ms)") for column in SUM]
    rows = [["16.7", "12.3833", "203", "0.0610", "0.0621", "0.0532", "0.0628", "0.0030", "k"]]
    found = read(tmp_path, processing("gpukernsum") + csv_table(columns, rows))
    assert operations(found) == [("k", "cuda_gpu_kern_sum", 203, None, 12_383_300)]


# Files without a word on the report


@pytest.mark.parametrize(
    ("name", "columns", "row_name", "category"),
    [
        ("run_cuda_gpu_kern_sum.csv", SUM, "k", "cuda_gpu_kern_sum"),
        ("run_gpukernsum.csv", SUM, "k", "cuda_gpu_kern_sum"),
        ("run_osrtsum.csv", header("Num Calls", "Name"), "cudaFree", "osrt_sum"),
        ("x.csv", SUM, "k", "cuda_gpu_kern_sum"),
        ("x.csv", header("Num Calls", "Name"), "cudaFree", "cuda_api_sum"),
        ("x.csv", header("Num Calls", "Name"), "futex", "osrt_sum"),
        ("x.csv", header("Count", "Operation"), "[CUDA memset]", "cuda_gpu_mem_time_sum"),
        ("x.csv", header("Instances", "Range"), "step", "nvtx_pushpop_sum"),
    ],
)
def test_a_table_by_itself_is_known_by_file_name_or_columns(
    tmp_path: Path, name: str, columns: list[str], row_name: str, category: str
) -> None:
    found = read(tmp_path, csv_table(columns, [[*KERNELS[1][:-1], row_name]]), name)
    assert [(one.name, one.category) for one in found.operations] == [(row_name, category)]


def test_several_reports_and_the_programs_output_in_one_file(tmp_path: Path) -> None:
    text = "epoch 1, loss 0.42\n\r[1/2] [0%   ] a.nsys-rep\r[1/2] [===100%] a.nsys-rep\n"
    text += (
        processing("nvtx_sum")
        + "SKIPPED: app.sqlite does not contain NV Tools Extension (NVTX) data.\n\n"
    )
    text += processing("cuda_api_sum") + csv_table(
        header("Num Calls", "Name"), [[*KERNELS[1][:-1], "cudaFree"]]
    )
    text += (
        processing("cuda_gpu_kern_sum")
        + csv_table(SUM, KERNELS)
        + "Generated:\n\t/tmp/a.nsys-rep\n"
    )
    found = read(tmp_path, text)
    assert operations(found) == [("cudaFree", "cuda_api_sum", 1, 100, None), *SUMMED]
    (gap,) = [gap for gap in found.gaps if gap.state == "not_collected"]
    assert (gap.quantity, gap.scope) == ("range", "nvtx_sum")
    assert "does not contain NV Tools Extension (NVTX) data" in gap.reason


def test_tables_of_two_inputs_are_two_runs(tmp_path: Path) -> None:
    calls = csv_table(header("Num Calls", "Name"), [[*KERNELS[1][:-1], "cudaFree"]])
    text = (
        processing("gpukernsum", "a.sqlite")
        + csv_table(SUM, KERNELS)
        + processing("cudaapisum", "b.sqlite")
        + calls
    )
    path = tmp_path / "stats.csv"
    path.write_text(text)
    found = [part.report for part in reports(path) if part.report]
    assert [[one.category for one in report.operations] for report in found] == [
        ["cuda_gpu_kern_sum"] * len(KERNELS),
        ["cuda_api_sum"],
    ]


def test_a_report_that_failed_is_a_gap_and_an_error(tmp_path: Path) -> None:
    text = (
        "ERROR: Report 'gputrace.py' encountered an internal error: ambiguous column name: "
        "deviceId\n"
    )
    found = read(
        tmp_path, processing("gpukernsum") + csv_table(SUM, KERNELS) + processing("gputrace") + text
    )
    assert ("operation:cuda_gpu_trace", "unreadable") in {gap[:2] for gap in found.gaps}
    assert any(
        one.severity == "error" and "ambiguous column name" in one.text for one in found.diagnostics
    )


def test_an_unknown_report_is_kept_figure_by_figure(tmp_path: Path) -> None:
    columns = ["Time (%)", "Total Time (ns)", "Instances", "Avg (ns)", "Queue Depth", "Name"]
    found = read(
        tmp_path,
        processing("quantum_sum") + csv_table(columns, [["100.0", "10", "2", "5.0", "3", "q"]]),
    )
    assert list(found.operations) == []
    assert summaries(found)["quantum_sum:q:Queue Depth"] == (3, None)


# Names


@pytest.mark.parametrize(
    "name", ['quote",comma', 'all "quoted", yes', "世界, 你好", "<b>", "a,b,c", "../etc"]
)
def test_a_range_keeps_its_odd_name(tmp_path: Path, name: str) -> None:
    table = csv_table(header("Instances", "Range"), [[*KERNELS[1][:-1], name]])
    found = read(tmp_path, processing("nvtxppsum") + table)
    assert [one.name for one in found.operations] == [name]


def test_csv_that_doubles_quotes_is_read_too(tmp_path: Path) -> None:
    text = processing("nvtx_sum") + ",".join(header("Instances", "Range")) + "\n"
    found = read(tmp_path, text + ",".join(KERNELS[1][:-1]) + ',"say ""hi"", twice"\n\n')
    assert [one.name for one in found.operations] == ['say "hi", twice']


@pytest.mark.parametrize("table", [csv_table, column_table])
def test_a_range_of_two_lines_is_one_row(tmp_path: Path, table: object) -> None:
    rows = [[*KERNELS[1][:-1], "two\nlines"], [*KERNELS[1][:-1], "next"]]
    found = read(tmp_path, processing("nvtxppsum") + table(header("Instances", "Range"), rows))  # type: ignore[operator]
    assert [one.name for one in found.operations] == ["two\nlines", "next"]


def test_clipped_names_are_kept_apart_and_pointed_out(tmp_path: Path) -> None:
    rows = [[*row[:-1], "void at::native::elementwise_kernel<(int)128, at::n…"] for row in KERNELS]
    found = read(
        tmp_path, titled("CUDA GPU Kernel Summary", "cuda_gpu_kern_sum") + column_table(SUM, rows)
    )
    assert [one.device_ns for one in found.operations] == [300, 100]
    assert any("clipped" in one.text for one in found.diagnostics)


def test_a_clipped_figure_is_unknown(tmp_path: Path) -> None:
    rows = [["100.0", "123456…", "2", "5.0", "5.0", "5", "5", "0.0", "k"]]
    found = read(
        tmp_path, titled("CUDA GPU Kernel Summary", "cuda_gpu_kern_sum") + column_table(SUM, rows)
    )
    assert operations(found) == [("k", "cuda_gpu_kern_sum", 2, None, None)]
    assert ("summary", "unreadable") in {gap[:2] for gap in found.gaps}
