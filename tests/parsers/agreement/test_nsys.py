"""What nsys says twice: sums in tables of nsys stats; row numbers, names and calls in
SQLite exports."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from statistics import mean, median, pstdev, stdev

import pytest

from perfctl.parsers import parse
from perfctl.records.report import Report
from tests.parsers.nsys_builder import NsysBuilder, gap
from tests.parsers.nsys_stats_read import SUM, read
from tests.parsers.nsys_stats_writer import csv_table, processing

ROWS = [
    ["75.0", "300", "2", "150.0", "150.0", "100", "200", "70.7", "gemm"],
    ["25.0", "100", "4", "25.0", "25.0", "20", "30", "4.1", "relu"],
]
SHARE, TOTAL, CALLS, MEAN, MEDIAN, LEAST, LARGEST, DEVIATION = range(8)


def contradiction(report: Report) -> str:
    return " ".join(said.text for said in report.diagnostics if "contradict" in said.text)


def stats(folder: Path, rows: list[list[str]]) -> str:
    return contradiction(read(folder, processing("cuda_gpu_kern_sum") + csv_table(SUM, rows)))


def changed(column: int, text: str) -> list[list[str]]:
    return [[*ROWS[0][:column], text, *ROWS[0][column + 1 :]], ROWS[1]]


def test_a_table_whose_figures_agree_is_not_doubted(tmp_path: Path) -> None:
    assert stats(tmp_path, ROWS) == ""


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (changed(TOTAL, "800"), "gemm: 2 calls of 150.0 each, but 800 in all"),
        (changed(TOTAL, "301"), "gemm: 2 calls of 150.0 each, but 301 in all"),
        (changed(CALLS, "3"), "gemm: 3 calls of 150.0 each, but 300 in all"),
        (changed(MEAN, "190.0"), "2 calls of 190.0 each"),
        (changed(MEDIAN, "250.0"), "gemm: Med 250.0 is more than Max 200"),
        (changed(LEAST, "160"), "gemm: Min 160 is more than Med 150.0"),
        (changed(LEAST, "-100"), "gemm: Min is -100, less than 0"),
        (changed(DEVIATION, "-70.7"), "gemm: StdDev is -70.7, less than 0"),
        (
            changed(LARGEST, "230"),
            "gemm: 2 calls, of which one took 100 and another 230, do not have the mean 150.0",
        ),
        (changed(DEVIATION, "120.7"), "gemm: StdDev 120.7 cannot be that of calls of 100 to 200"),
        (changed(DEVIATION, "7.7"), "gemm: StdDev 7.7 cannot be that of calls of 100 to 200"),
        (
            [["100.0", "1000", "10", "100.0", "290.0", "10", "300", "100.0", "gemm"]],
            "gemm: Med 290.0 is further from Avg 100.0 than its StdDev",
        ),
        (changed(SHARE, "15.0"), "shares add up to 40.0 %, not 100 %"),
        ([], "cuda_gpu_kern_sum: a header stands without rows"),
        (ROWS[:1], "shares add up to 75.0 %"),
        ([*ROWS, ROWS[1]], "relu: the row stands twice"),
        ([[*ROWS[0][:-1], ""], ROWS[1]], "a row has no name"),
        ([[*ROWS[0][:-2], "", "7.0,gemm"], ROWS[1]], "gemm: StdDev is empty"),
        ([["25.0", *ROWS[0][1:]], ["75.0", *ROWS[1][1:]]], "the shares of 2 of its 2 rows"),
    ],
)
def test_a_figure_of_a_table_that_does_not_fit_the_others_is_said(
    tmp_path: Path, rows: list[list[str]], said: str
) -> None:
    assert said in stats(tmp_path, rows)


def of_time(share: float, nanoseconds: int, name: str) -> list[str]:
    """A row of one call."""
    return [
        f"{share:.1f}",
        *[str(nanoseconds), "1", f"{nanoseconds}.0", f"{nanoseconds}.0"],
        *[str(nanoseconds)] * 2,
        "0.0",
        name,
    ]


def test_a_row_too_small_for_the_sum_of_shares_is_missed_in_the_whole_that_a_large_share_is_of(
    tmp_path: Path,
) -> None:
    """900,000 ns are 90.0 %, so all rows together are 999,444 to 1,000,556 ns; 99 of 1,000 ns
    make 999,000."""
    rows = [of_time(90.0, 900_000, "gemm"), *(of_time(0.1, 1000, f"k{at}") for at in range(100))]
    assert stats(tmp_path, rows) == ""
    assert "its times add up to 999,000, but its shares are of 999,44" in stats(tmp_path, rows[:-1])
    assert stats(tmp_path, [*rows[:-1], of_time(0.1, 600, "k")]) == "", (
        "400 ns less are within the rounding of 90.0 %"
    )


def test_figures_that_are_no_numbers_are_counted(tmp_path: Path) -> None:
    report = read(
        tmp_path, processing("cuda_gpu_kern_sum") + csv_table(SUM, changed(MEDIAN, "1e400150"))
    )
    assert "1 figures are no numbers" in str(gap(report, "summary"))


def test_a_row_of_ranges_that_lost_a_cell_does_not_vanish_in_the_name_above_it(
    tmp_path: Path,
) -> None:
    """Names of ranges may have several lines."""
    text = processing("nvtx_sum") + csv_table(SUM, [[*ROWS[0][:-1], "two\nlines"], ROWS[1]])
    report = read(tmp_path, text)
    assert [one.name for one in report.operations] == ["two\nlines", "relu"]
    for damaged in (
        text.replace("25.0,100,4,", "25.0,100,"),
        text.replace("25.0,100,4,25.0", "25.0,100,4,x25.0"),
    ):
        report = read(tmp_path, damaged)
        assert [one.name for one in report.operations] == ["two\nlines"]
        assert "1 rows of the tables are cut off or broken" in str(gap(report, "operation"))


def test_a_file_that_ends_within_the_blanks_before_a_row_is_cut(tmp_path: Path) -> None:
    text = processing("cuda_gpu_kern_sum") + csv_table(SUM, ROWS)
    assert "no line end" not in str(read(tmp_path, text).gaps)
    assert "the last line has no line end" in str(read(tmp_path, text + "   ").gaps)


def test_rows_whose_header_is_lost_are_counted(tmp_path: Path) -> None:
    table = csv_table(SUM, ROWS)
    rows = "".join(line for line in table.splitlines(keepends=True) if not line.startswith("Time"))
    report = read(
        tmp_path, processing("cuda_gpu_kern_sum") + table + processing("cuda_api_sum") + rows
    )
    assert "2 rows of the tables are cut off or broken" in str(gap(report, "operation"))


def test_a_row_that_stands_in_the_name_of_the_one_before_is_counted(tmp_path: Path) -> None:
    """The line end between them is lost, so the name is that of the second row after
    its figures."""
    first, second = (",".join(row) for row in ROWS)
    for glued in (
        f"75.0,300,2,150.0,150.0,100,200,7,{second}",
        f"{first}{second}",
        first.replace("gemm", "9 8.0 7,000 6 gemm"),
    ):
        table = csv_table(SUM, ROWS).replace(csv_table([], [ROWS[0]]).strip(), glued)
        report = read(tmp_path, processing("cuda_gpu_kern_sum") + table)
        assert "1 rows of the tables are cut off or broken" in str(gap(report, "operation"))
    names = [[*ROWS[0][:-1], "gemm<128, 64, 32, 4, 2>(int, 1.0f)"], ROWS[1]]
    assert "cut off" not in str(
        read(tmp_path, processing("cuda_gpu_kern_sum") + csv_table(SUM, names)).gaps
    )


def test_a_table_without_the_blank_line_at_its_end_may_lack_rows(tmp_path: Path) -> None:
    first, second = (
        processing(name) + csv_table(SUM, ROWS).rstrip() + "\n"
        for name in ("osrt_sum", "cuda_api_sum")
    )
    third = processing("cuda_gpu_kern_sum") + csv_table(SUM, ROWS)
    said = "tables end without the blank line that nsys prints below each"
    assert said not in str(read(tmp_path, f"{first}\n{second}\n{third}").gaps)
    assert f"1 of 3 {said}" in str(gap(read(tmp_path, f"{first}{second}\n{third}"), "operation"))
    assert said not in str(read(tmp_path, f"{first}{second}{third.rstrip()}\n").gaps), (
        "somebody removed all of them"
    )


def test_a_column_whose_header_is_lost_is_said(tmp_path: Path) -> None:
    text = processing("cuda_gpu_kern_sum") + csv_table(SUM, ROWS)
    assert "no header" not in contradiction(read(tmp_path, text))
    assert "cuda_gpu_kern_sum: a column has no header" in contradiction(
        read(tmp_path, text.replace("StdDev (ns)", ""))
    )


def test_steps_of_nsys_that_are_not_in_the_file_are_named(tmp_path: Path) -> None:
    table = csv_table(SUM, ROWS)
    steps = [
        f"[{step}/5] Executing '{name}' stats report\n"
        for step, name in ((3, "cuda_gpu_kern_sum"), (4, "nvtx_sum"))
    ]
    last = "[5/5] Executing 'osrt_sum' stats report\n"
    assert contradiction(read(tmp_path, steps[0] + table + steps[1] + last)) == ""
    assert "nsys took 5 steps, of which 5 are not in the file" in contradiction(
        read(tmp_path, steps[0] + table + steps[1])
    )
    assert "nsys took 5 steps, of which 4 are not in the file" in contradiction(
        read(tmp_path, steps[0] + table + last)
    )


def export(folder: Path) -> Path:
    """Six launches of one kernel."""
    builder = NsysBuilder()
    for at in range(6):
        builder.launch(1000 * (at + 1))
    return builder.write(folder / "report.sqlite")


def damaged(folder: Path, *statements: str) -> Report:
    path = export(folder)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
    return parse(path)


def test_an_undamaged_export_is_not_doubted(tmp_path: Path) -> None:
    assert contradiction(damaged(tmp_path)) == ""


def test_rows_that_are_missing_between_others_are_counted(tmp_path: Path) -> None:
    found = damaged(tmp_path, "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid IN (2, 3)")
    said = gap(found, "table:CUPTI_ACTIVITY_KIND_KERNEL")
    assert "4 rows are there, and their numbers go from 1 to 6: missing are 2 to 3" in said
    assert len(list(found.kernels)) == 6 - 2, "the rest is read"


def test_kernels_that_are_missing_at_the_end_have_calls_without_kernels(tmp_path: Path) -> None:
    calls = "SELECT nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    rename = f"UPDATE StringIds SET value = 'cudaLaunchKernel_v7000' WHERE id IN ({calls})"
    found = damaged(tmp_path, rename, "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid > 4")
    assert "2 of 6 launch calls have no kernel" in gap(found, "kernel")


def test_copies_that_are_missing_at_the_end_have_calls_without_copies(tmp_path: Path) -> None:
    builder = NsysBuilder()
    for correlation in range(1, 5):
        builder.launch(1000 * correlation)
    for correlation in range(5, 9):
        builder.call(correlation, 5000, 5002)
        builder.memcpy(correlation, kind=1, size=64)
    path = builder.write(tmp_path / "report.sqlite")
    names = (
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET nameId = (SELECT id FROM StringIds WHERE value = "
        "'{}') WHERE correlationId {}"
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(
            "INSERT INTO StringIds (id, value) VALUES (9001, 'cudaMemcpyAsync_v3020')"
        )
        connection.execute(names.format("cudaMemcpyAsync_v3020", "> 4"))
    assert "calls that copy" not in str(parse(path).gaps)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE StringIds SET value = 'cudaMemsetAsync_v3020' WHERE id = 9001")
    assert "calls that copy" not in str(parse(path).gaps), (
        "copies and settings of memory are counted together"
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE rowid > 3")
    assert "1 of 4 calls that copy or set memory have no such operation in the report" in gap(
        parse(path), "copy"
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid > 3")
    assert "calls that copy" not in str(parse(path).gaps), (
        "the capture ended before the last kernel, and copies may be later"
    )


def test_a_name_without_its_text_is_said(tmp_path: Path) -> None:
    found = damaged(
        tmp_path,
        "DELETE FROM StringIds WHERE id IN (SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL)",
    )
    assert "names of kernels or calls are not in StringIds" in contradiction(found)


def test_a_kernel_that_ends_before_it_begins_or_begins_before_the_capture_is_said(
    tmp_path: Path,
) -> None:
    found = damaged(
        tmp_path, 'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "end" = start - 7 WHERE rowid = 2'
    )
    assert "1 kernels end before they begin" in contradiction(found)
    other = tmp_path / "other"
    other.mkdir()
    found = damaged(other, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = -9 WHERE rowid = 1")
    assert "begins 9 ns before the capture" in contradiction(found)


def test_a_total_within_what_its_rounded_mean_leaves_open_is_not_doubted(tmp_path: Path) -> None:
    """The mean of 52,980 calls is printed as 8432.1, so the total is 446,732,658 ns give or
    take 2,649."""
    total = 446_732_658
    row = ["100.0", str(total), "52980", "8432.1", "8432.0", "100", "90000", "1070.7", "gemm"]
    for off in (-2_600, 0, 2_600):
        assert stats(tmp_path, [[row[0], str(total + off), *row[2:]]]) == ""
    assert "52980 calls of 8432.1 each" in stats(tmp_path, [[row[0], str(total + 2_700), *row[2:]]])


def test_a_report_that_nsys_does_not_have_is_named(tmp_path: Path) -> None:
    """A bit in the name of the table: its rows would be no operations, without a word."""
    table = csv_table(SUM, ROWS)
    whole, damaged = (
        read(tmp_path, processing("nvtxsum") + table),
        read(tmp_path, processing("nvtxwum") + table),
    )
    assert (len(whole.operations), len(damaged.operations)) == (2, 0)
    assert (
        "nsys has no report 'nvtxwum' that perfctl knows, so its figures are kept as summaries"
        in str(damaged.gaps)
    )
    assert "nsys has no report" not in str(whole.gaps)


def test_a_row_of_ranges_that_stands_in_the_name_of_the_one_before_is_counted(
    tmp_path: Path,
) -> None:
    first, second = (",".join(row) for row in ROWS)
    table = csv_table(SUM, ROWS).replace(f"{first}\n", first)
    report = read(tmp_path, processing("nvtx_sum") + table)
    assert second not in table.splitlines()
    assert "1 rows of the tables are cut off or broken" in str(gap(report, "operation"))
    names = [[*ROWS[0][:-1], "step 1 of 4, shape 8 3 224 224"], ROWS[1]]
    report = read(tmp_path, processing("nvtx_sum") + csv_table(SUM, names))
    assert len(report.operations) == 2
    assert "cut off" not in str(report.gaps)


def test_a_hole_of_nul_bytes_is_said(tmp_path: Path) -> None:
    text = "step 1\n" * 100 + processing("cuda_gpu_kern_sum") + csv_table(SUM, ROWS)
    assert "NUL" not in str(read(tmp_path, text).gaps)
    report = read(tmp_path, text.replace("relu", "re\0u"))
    assert "1 line holds NUL bytes" in str(gap(report, "operation"))


def test_reports_in_two_folders_are_said(tmp_path: Path) -> None:
    """A hole from the path of one announcement to that of the next takes the table between them."""
    first, second = (
        f"Processing [report.sqlite] with [/opt/nsys/reports/{name}.py]...\n"
        f"{csv_table(SUM, ROWS)}\n"
        for name in ("cuda_gpu_kern_sum", "cuda_api_sum")
    )
    assert "folders" not in str(read(tmp_path, first + second).gaps)
    glued = second.replace("/reports/", "/reports/cuda_gpu_me2/host/reports/")
    assert "its reports lie in 2 folders" in str(read(tmp_path, first + glued).gaps)


def test_two_names_with_the_same_figures_are_said(tmp_path: Path) -> None:
    """A row that was copied with half of its name; 4 calls do not have the same five times
    by chance."""
    copied = [*ROWS[1][:-1], "re"]
    assert "re: its figures are exactly those of relu" in stats(tmp_path, [*ROWS, copied])
    sizes = [
        "Total (MB)",
        "Count",
        "Avg (MB)",
        "Med (MB)",
        "Min (MB)",
        "Max (MB)",
        "StdDev (MB)",
        "Operation",
    ]
    there_and_back = [
        ["6.000", "3", "2.000", "2.000", "1.000", "3.000", "1.000", f"[CUDA memcpy {way}]"]
        for way in ("HtoD", "DtoH")
    ]
    report = read(tmp_path, processing("cuda_gpu_mem_size_sum") + csv_table(sizes, there_and_back))
    assert contradiction(report) == "", "memory that is copied to and fro has the same sizes"
    often = ["0.0", "10", "2", "5.0", "5.0", "5", "5", "0.0"]
    assert "exactly those" not in stats(tmp_path, [*ROWS, [*often, "a"], [*often, "b"]])


def test_a_name_of_a_function_with_a_comma_is_a_row_that_lost_its_beginning(tmp_path: Path) -> None:
    text = processing("osrt_sum") + csv_table(
        SUM, [[*ROWS[0][:-1], "poll"], [*ROWS[1][:-1], "l.0,1585.0,getc"]]
    )
    assert "l.0,1585.0,getc: this is not the name of a function" in contradiction(
        read(tmp_path, text)
    )
    assert "not the name of a function" not in stats(
        tmp_path, [[*ROWS[0][:-1], "gemm<1, 2>"], ROWS[1]]
    )


@pytest.mark.parametrize("times", [[5, 9], [1, 1, 1, 97], [10, 20, 30, 40, 1000], [7] * 30 + [8]])
def test_deviations_and_medians_of_any_times_are_not_doubted(
    tmp_path: Path, times: list[int]
) -> None:
    """Of a sample (over n - 1) and of all calls (over n)."""
    for deviation in (stdev(times), pstdev(times)):
        figures = (
            sum(times),
            len(times),
            f"{mean(times):.1f}",
            f"{median(times):.1f}",
            min(times),
            max(times),
            f"{deviation:.1f}",
        )
        assert stats(tmp_path, [["100.0", *map(str, figures), "gemm"]]) == ""


def test_columns_of_times_in_different_units_are_said(tmp_path: Path) -> None:
    text = processing("cuda_gpu_kern_sum") + csv_table(SUM, ROWS)
    assert "Max (ns)" in text
    assert "its columns of times are in different units" in contradiction(
        read(tmp_path, text.replace("Max (ns)", "Max (us)"))
    )
