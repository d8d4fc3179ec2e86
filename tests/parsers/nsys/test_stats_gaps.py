"""What of nsys stats' tables is missing or cannot be read is counted, and said in a gap."""

from __future__ import annotations

from pathlib import Path

from tests.make.nsys_sqlite import gap
from tests.make.nsys_stats import SUM, csv_table, processing, read

ROWS = [
    ["75.0", "300", "2", "150.0", "150.0", "100", "200", "70.7", "gemm"],
    ["25.0", "100", "4", "25.0", "25.0", "20", "30", "4.1", "relu"],
]


def test_figures_that_are_no_numbers_are_counted(tmp_path: Path) -> None:
    report = read(
        tmp_path,
        processing("cuda_gpu_kern_sum")
        + csv_table(SUM, [[*ROWS[0][:4], "1e400150", *ROWS[0][5:]], ROWS[1]]),
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


def test_a_hole_of_nul_bytes_is_said(tmp_path: Path) -> None:
    text = "step 1\n" * 100 + processing("cuda_gpu_kern_sum") + csv_table(SUM, ROWS)
    assert "NUL" not in str(read(tmp_path, text).gaps)
    report = read(tmp_path, text.replace("relu", "re\0u"))
    assert "1 line holds NUL bytes" in str(gap(report, "operation"))
