"""What nvprof's tables of sums say twice: time = calls x average, least <= average <= largest,
shares of the times."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl import parsers

HEADER = "Time(%),Time,Calls,Avg,Min,Max,Name\n"
ADD = "75.00%,3.0000ms,2,1.5000ms,1.0000ms,2.0000ms,add(float*)"
COPY = "25.00%,1.0000ms,1,1.0000ms,1.0000ms,1.0000ms,[CUDA memcpy DtoH]"


def said(folder: Path, *rows: str) -> str:
    path = folder / "nvprof.csv"
    path.write_text(HEADER + "".join(f"{row}\n" for row in rows))
    return " ".join(one.text for one in parsers.parse(path).diagnostics if "contradict" in one.text)


def test_a_table_whose_figures_agree_is_not_doubted(tmp_path: Path) -> None:
    assert said(tmp_path, ADD, COPY) == ""


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            (ADD.replace("ms,2,", "ms,3,"), COPY),
            "add(float*): 3 calls of 1.5000ms each, but 3.0000ms in all",
        ),
        (
            (ADD.replace("3.0000ms", "3.1000ms"), COPY),
            "2 calls of 1.5000ms each, but 3.1000ms in all",
        ),
        (
            (ADD, COPY.replace("1.0000ms,1,", "1.0001ms,1,")),
            "1 calls of 1.0000ms each, but 1.0001ms in all",
        ),
        ((ADD.replace("1.0000ms", "1.6000ms"), COPY), "Min 1.6000ms is more than Avg 1.5000ms"),
        ((ADD.replace("2.0000ms", "1.4000ms"), COPY), "Avg 1.5000ms is more than Max 1.4000ms"),
        ((ADD.replace("1.5000ms", "1e40ms"), COPY), "add(float*): Avg states no number"),
        ((ADD.replace(",2,", ",2-,"), COPY), "add(float*): Calls states no number"),
        ((ADD.replace("1.0000ms", "-1.0000ms"), COPY), "add(float*): Min states no number"),
        ((ADD.replace("75.00%", "7500%"), COPY), "add(float*): Time(%) states no number"),
        ((ADD.replace("75.00%", "75.0e400%"), COPY), "add(float*): Time(%) states no number"),
        (
            (ADD.replace("1.0000ms", "1.2000ms"), COPY),
            "add(float*): 2 calls of 1.2000ms to 2.0000ms do not have the mean 1.5000ms",
        ),
        (
            (ADD, COPY.replace("1.0000ms,[", "1.1000ms,[")),
            "1 calls of 1.0000ms to 1.1000ms do not have the mean 1.0000ms",
        ),
        (
            (ADD.replace("1.0000ms", "10000us"), COPY),
            "add(float*): Min is 10000us, which nvprof would print in another unit",
        ),
        (
            (ADD.replace("1.0000ms", "0.1000ms"), COPY),
            "add(float*): Min is 0.1000ms, which nvprof would print in another unit",
        ),
        ((ADD,), "its shares add up to 75 %, not 100 %: rows are missing"),
        (
            (ADD.replace("75.00", "74.00"), COPY.replace("25.00", "26.00")),
            "its shares are not those of its times",
        ),
    ],
)
def test_a_figure_that_does_not_fit_the_others_is_said(
    tmp_path: Path, rows: tuple[str, ...], text: str
) -> None:
    assert text in said(tmp_path, *rows)


def test_a_time_of_parts_of_a_nanosecond_is_no_time_of_nvprof(tmp_path: Path) -> None:
    row = "100.00%,3.4240us,3,1.1410us,659ns,1.7280us,cuDeviceGetCount"
    assert said(tmp_path, row) == ""
    found = said(tmp_path, row.replace("3.4240", "3.4204"))
    assert "cuDeviceGetCount: Time is 3.4204us, but nvprof's times are whole nanoseconds" in found


def test_five_printed_digits_are_no_contradiction(tmp_path: Path) -> None:
    """94 calls of 2.7087 us make 254.6178 us, of which 254.62 us is printed; an average of 2.7087
    is off by up to 94 x 0.05 ns."""
    time, calls = 254_617.8, 94
    row = (
        f"100.00%,{time / 1e3:.2f}us,{calls},{time / calls / 1e3:.4f}us,610ns,69.471us,"
        "cuDeviceGetAttribute"
    )
    assert said(tmp_path, row) == ""
    other = row.replace(f"{time / calls / 1e3:.4f}us", f"{1.001 * time / calls / 1e3:.4f}us")
    assert "94 calls of" in said(tmp_path, other)


def test_a_row_that_stands_in_the_name_of_the_one_before_is_counted(tmp_path: Path) -> None:
    """The line end between them is lost; names are not quoted here and hold commas."""
    path = tmp_path / "nvprof.csv"
    path.write_text(f"{HEADER}{ADD}{COPY}\n")
    assert "1 lines inside tables could not be read" in [
        gap.reason for gap in parsers.parse(path).gaps
    ]


UNIFIED = """==7== NVPROF is profiling process 7, command: a
==7== Unified Memory profiling result:
Device "Tesla V100 (0)"
   Count  Avg Size  Min Size  Max Size  Total Size  Total Time  Name
      36  32.889KB  4.0000KB  60.000KB  1.156250MB  196.5440us  Host To Device
       3         -         -         -           -  500.0000us  Gpu page fault groups
"""
"""36 x 32.889 KB are 1184 KB, which are 1.15625 x 1024 KB."""


def of_unified_memory(folder: Path, old: str, new: str) -> str:
    path = folder / "nvprof.txt"
    path.write_text(UNIFIED.replace(old, new, 1))
    return " ".join(one.text for one in parsers.parse(path).diagnostics if "contradict" in one.text)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("196.5440us", "19-.5440us", "Total Time states no number"),
        ("196.5440us", "-1.1360us", "Total Time states no number"),
        ("60.000KB", "60.0-0KB", "Max Size states no number"),
        ("      36", "      3-", "Count states no number"),
        ("      36", "      46", "46 transfers do not have these sizes"),
        ("1.156250MB", "1.256250MB", "36 transfers do not have these sizes"),
        ("60.000KB", "30.000KB", "36 transfers do not have these sizes"),
        ("4.0000KB", "44.000KB", "36 transfers do not have these sizes"),
    ],
)
def test_transfers_of_unified_memory_have_the_sizes_that_their_number_implies(
    tmp_path: Path, old: str, new: str, text: str
) -> None:
    assert of_unified_memory(tmp_path, old, old) == ""
    assert text in of_unified_memory(tmp_path, old, new)


def test_a_message_without_a_line_end_is_the_end_of_a_file_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "nvprof.txt"
    begun = (
        f"==7== NVPROF is profiling process 7, command: a\n==7== Profiling result:\n{HEADER}{ADD}\n"
        f"{COPY}\n"
    )
    for end, last in (
        ("==7== Unified Memory profiling result:\n", ""),
        ("==7== Unif", "==7== Unif"),
        ("\ncommit: b2", "commit: b2"),
        ("\ncommit: b2\n", ""),
    ):
        path.write_text(begun + end)
        said = [gap.reason for gap in parsers.parse(path).gaps if "no line end" in gap.reason]
        assert said == (
            [f"the last line, '{last}', has no line end: what stood below it may be cut off"]
            if last
            else []
        )
