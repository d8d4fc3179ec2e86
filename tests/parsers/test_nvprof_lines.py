"""The rows of nvprof's tables among its own lines, notes and the program's output."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError, parse
from perfctl.parsers.nvprof import METRIC, SUMMARY, TRACE, UNIFIED, Lines, Row, sniff
from perfctl.records.report import Diagnostic

PROCESS = "==5== Profiling result:\n"
TRACE_HEAD = "   Start  Duration  Grid Size  Device  Name\n"
SUM_HEAD = "Time(%)      Time     Calls       Avg       Min       Max  Name\n"
TYPED_HEAD = "            Type  " + SUM_HEAD
UNIFIED_HEAD = "   Count  Avg Size  Min Size  Max Size  Total Size  Total Time  Name\n"
METRIC_HEAD = (
    "Invocations    Metric Name    Metric Description         Min         Max         Avg\n"
)
CSV_SUM = '"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"\n,%,us,,us,us,us,\n'


def lines_of(folder: Path, text: str) -> tuple[list[Row], Lines]:
    path = folder / "prof.txt"
    path.write_text(text)
    found = Lines(path)
    return list(found), found


def names(rows: list[Row]) -> list[tuple[str, str]]:
    return [(row.group, row.cells["Name"]) for row in rows]


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("==5== NVPROF is profiling process 5, command: x", True),
        ("======== Profiling result:", True),
        ("done==5== Profiling application: x", True),
        ("==5== Metric result:", True),
        ("==5== Event result:", True),
        (TRACE_HEAD, True),
        (SUM_HEAD, True),
        (TYPED_HEAD, True),
        ('"Start","Duration","Grid X"', True),
        ('"Type","Time(%)","Time"', True),
        ('"Time(%)","Time","Calls"', True),
        ('"Device","Kernel","Invocations"', True),
        (UNIFIED_HEAD, False),
        (METRIC_HEAD, False),
        ("==5== hello", False),
        ("Profiling result:", False),
        ("Start Duration Name", False),
        ('"Duration","Start"', False),
        (SUM_HEAD.rstrip() + " x", False),
        ("=" * 8 + " Profiling result:" + " " * 4070, True),
        ("=" * 8 + " Profiling result:" + " " * 4071, False),
    ],
)
def test_nvprof_is_told_by_its_own_lines_and_headers(line: str, is_one: bool) -> None:
    assert sniff(Path(), b"something else\n" + line.encode() + b"\n") is is_one


def test_rows_of_a_trace_stand_until_a_blank_line_and_others_are_counted(tmp_path: Path) -> None:
    rows = (
        "1.0us  2.0us  (1 1 1)  T4 (0)  a<int>(x  y)\nshort  row\n"
        "1.0us  2.0us  (1 1 1)  T4 (0)  b\nRegs: Number\n"
    )
    found, lines = lines_of(
        tmp_path, PROCESS + TRACE_HEAD + rows + "\n1.0us  2.0us  (1 1 1)  T4 (0)  c\n"
    )
    assert [row.cells for row in found] == [
        {
            "Start": "1.0us",
            "Duration": "2.0us",
            "Grid Size": "(1 1 1)",
            "Device": "T4 (0)",
            "Name": name,
        }
        for name in ("a<int>(x  y)", "b")
    ]
    assert {row.kind for row in found} == {TRACE}
    assert (lines.unread, lines.tables, lines.again) == (1, ["GPU trace, text"], None)


@pytest.mark.parametrize(
    "note", ["Regs:", "SSMem:", "DSMem:", "SrcMemType:", "DstMemType:", "Total CPU Page faults"]
)
def test_notes_below_a_trace_are_no_unread_rows(tmp_path: Path, note: str) -> None:
    _, lines = lines_of(
        tmp_path, PROCESS + TRACE_HEAD + f"1.0us  2.0us  (1 1 1)  T4 (0)  a\n{note} x\n"
    )
    assert lines.unread == 0


def test_a_trace_of_four_columns_at_most_is_one_of_the_api(tmp_path: Path) -> None:
    found, lines = lines_of(
        tmp_path, PROCESS + "   Start  Duration  Pid  Name\n1.0us  2.0us  7  cudaMalloc\n"
    )
    assert lines.tables == ["API trace, text"]
    assert [row.cells["Name"] for row in found] == ["cudaMalloc"]


def test_groups_of_a_summary_last_until_the_next_one(tmp_path: Path) -> None:
    rows = (
        " GPU activities:   75.0%  3.0ms  2  1.5ms  1.0ms  2.0ms  add(float*, float*)\n"
        "                   25.0%  1.0ms  1  1.0ms  1.0ms  1.0ms  [CUDA memcpy DtoH]\n"
        "      API calls:  100.0%  1.5s   3  0.5s   9.0us  1.4s  cudaMalloc\n   not a row\n"
    )
    found, lines = lines_of(tmp_path, PROCESS + TYPED_HEAD + rows)
    assert names(found) == [
        ("GPU activities", "add(float*, float*)"),
        ("GPU activities", "[CUDA memcpy DtoH]"),
        ("API calls", "cudaMalloc"),
    ]
    assert found[0].cells == {
        "Time(%)": "75.0%",
        "Time": "3.0ms",
        "Calls": "2",
        "Avg": "1.5ms",
        "Min": "1.0ms",
        "Max": "2.0ms",
        "Name": "add(float*, float*)",
    }
    assert lines.unread == 1
    untyped = SUM_HEAD + "100.0%  2.0us  2  1.0us  1.0us  1.0us  k\n"
    api = "==5== API calls:\n" + SUM_HEAD + "100.0%  2.0us  2  1.0us  1.0us  1.0us  cudaFree\n"
    assert names(lines_of(tmp_path, PROCESS + untyped + api)[0]) == [
        ("GPU activities", "k"),
        ("API calls", "cudaFree"),
    ]


def test_unified_memory_and_metrics_are_grouped_by_device_and_kernel(tmp_path: Path) -> None:
    text = (
        PROCESS
        + 'Device "T4 (0)"\n'
        + UNIFIED_HEAD
        + "  2  256B  256B  256B  512B  50.0us  Host To Device\n"
        "==5== Metric result:\n"
        + METRIC_HEAD
        + (
            'Device "T4 (0)"\n    Kernel: k(int, float)\n'
            "    2  flop_count_sp  Floating Point  Single  10  30  20\n\n"
            "    3  ipc  Executed IPC  1  3  2\n    Kernel: m\n"
            "    1  ipc  Executed IPC  1  1  1\n    1  ipc  2\n"
        )
    )
    found, lines = lines_of(tmp_path, text)
    assert [(row.kind, row.group, row.cells["Name"]) for row in found] == [
        (UNIFIED, "T4 (0)", "Host To Device"),
        (METRIC, "k(int, float)", "flop_count_sp"),
        (METRIC, "k(int, float)", "ipc"),
        (METRIC, "m", "ipc"),
    ]
    assert found[1].cells == {
        "Invocations": "2",
        "Name": "flop_count_sp",
        "Description": "Floating Point Single",
        "Min": "10",
        "Max": "30",
        "Avg": "20",
    }
    assert (lines.unread, lines.again) == (1, None)
    assert lines.tables == ["unified memory, text", "metrics, text"]


def test_the_row_of_units_below_a_csv_header_is_none_and_comes_first_or_not_at_all(
    tmp_path: Path,
) -> None:
    row = '"API calls",78.0,7.5,11,0.6,0.5,0.7,"cudaMemcpy, ""x"""\n'
    found, lines = lines_of(
        tmp_path, PROCESS + CSV_SUM + row + ",%,us,,us,us,us,\n" + "1,2\n" + "\n" + row
    )
    assert names(found[:1]) == [("API calls", 'cudaMemcpy, "x"')]
    assert found[0].units["Time"] == "us"
    assert found[0].units["Calls"] == ""
    assert len(found) == 2  # what looks like units further below is a row
    assert (lines.unread, lines.tables) == (1, ["summary, CSV"])
    without = lines_of(tmp_path, PROCESS + CSV_SUM.partition("\n")[0] + "\n" + row)[0]
    assert (names(without), without[0].units) == ([("API calls", 'cudaMemcpy, "x"')], {})


def test_csv_rows_are_grouped_by_type_kernel_or_device(tmp_path: Path) -> None:
    metric = (
        '"Device","Kernel","Invocations","Metric Name","Metric Description","Min","Max","Avg"\n'
        '"T4","k",3,"ipc","x",1,3,2\n'
    )
    unified = (
        '"Device","Count","Avg Size","Min Size","Max Size","Total Size","Total Time","Name"\n'
        ",,KB,KB,KB,KB,us,\n"
        '"T4 (0)",2,1,1,1,2,3,"H2D"\n'
    )
    untyped = (
        CSV_SUM.replace('"Type",', "").replace("\n,%", "\n%") + '78.0,7.5,11,0.6,0.5,0.7,"k"\n'
    )
    again = "==5== Metric result:\n"
    found, lines = lines_of(tmp_path, PROCESS + metric + again + unified + again + untyped)
    assert [(row.kind, row.group) for row in found] == [
        (METRIC, "k"),
        (UNIFIED, "T4 (0)"),
        (SUMMARY, "GPU activities"),
    ]
    assert lines.tables == ["metrics, CSV", "unified memory, CSV", "summary, CSV"]
    assert lines.unread == 0


def test_a_last_row_whose_name_may_be_cut_is_counted_and_left_out(tmp_path: Path) -> None:
    row = "1.0us  2.0us  (1 1 1)  T4 (0)  "
    for name, end, read in (
        ("k", "", 0),
        ("k", "\n", 1),
        ("k(int)", "", 1),
        ("k [7]", "", 1),
        ('k"', "", 1),
    ):
        found, lines = lines_of(tmp_path, PROCESS + TRACE_HEAD + row + name + end)
        assert (len(found), lines.unread) == (read, 1 - read), (name, end)


def test_what_nvprof_says_is_kept_with_its_severity_and_its_routine_is_not(tmp_path: Path) -> None:
    text = (
        (
            "==5== NVPROF is profiling process 5, command: x\n==5== Warning: Slow.\n"
            "======== Error: Lost \n"
            "==5== internal ERROR : Deep\n==5== Some kernels were replayed\n"
            "==5== Profiling application: x\n"
            "==5== Generated result file: y\n==5== OpenACC (excl):\n==5==  \n==5== Warning: Slow.\n"
        )
        + PROCESS
        + TRACE_HEAD
    )
    _, lines = lines_of(tmp_path, text)
    assert lines.diagnostics() == [
        Diagnostic("warning", "nvprof", "Slow."),
        Diagnostic("error", "nvprof", "Lost"),
        Diagnostic("error", "nvprof", "Deep"),
        Diagnostic("info", "nvprof", "Some kernels were replayed"),
    ]


def test_a_hundred_different_words_of_nvprof_are_kept_of_a_thousand_characters_each(
    tmp_path: Path,
) -> None:
    many = "".join(f"==5== Warning: {n}\n" for n in range(60)) + "".join(
        f"==5== note {n}\n" for n in range(60)
    )
    _, lines = lines_of(tmp_path, many + PROCESS)
    assert [said.severity for said in lines.diagnostics()] == ["warning"] * 60 + ["info"] * 40
    _, lines = lines_of(tmp_path, f"==5== {'n' * 1001}\n==5== Error: {'e' * 1001}\n" + PROCESS)
    assert [said.text for said in lines.diagnostics()] == ["n" * 1000, "e" * 1000]


def test_a_warning_inside_a_table_does_not_end_it(tmp_path: Path) -> None:
    rows = (
        "1.0us  2.0us  (1 1 1)  T4 (0)  a\n==5== Warning: x\n1.0us  2.0us  (1 1 1)  T4 (0)  b\n"
        "==5== API calls:\n"
    )
    found, _ = lines_of(
        tmp_path, PROCESS + TRACE_HEAD + rows + "1.0us  2.0us  (1 1 1)  T4 (0)  c\n"
    )
    assert [row.cells["Name"] for row in found] == ["a", "b"]


@pytest.mark.parametrize(
    ("below", "unknown"),
    [
        ('"Tensor","Heads"\n', ['"Tensor","Heads"']),
        ("Tensor  Heads  Blocks\n", ["Tensor  Heads  Blocks"]),
        ("No kernels were profiled.\n", []),
        ("two  words\n", []),
        (TRACE_HEAD, []),
        ("\n\nA  B  C\nD  E  F\n", ["A  B  C"]),
        ("x" * 50 + "  y  z" + "w" * 9 + "\n", ["x" * 50 + "  y  z" + "w" * 4]),
    ],
)
def test_a_header_in_no_list_below_an_announced_table_is_named(
    tmp_path: Path, below: str, unknown: list[str]
) -> None:
    assert list(lines_of(tmp_path, PROCESS + below)[1].unknown) == unknown
    assert list(lines_of(tmp_path, "==5== Profiling application: x\n" + below)[1].unknown) == []


def test_a_table_that_stands_twice_in_one_process_is_told_by_the_line_of_the_second(
    tmp_path: Path,
) -> None:
    row = "100.0%  2.0us  2  1.0us  1.0us  1.0us  {}\n"
    first = PROCESS + SUM_HEAD + row.format("k")
    for second, again in (
        (first, 5),
        (first.replace("==5==", "==6=="), None),
        (PROCESS + SUM_HEAD + row.format("m"), None),
        ("==5== API calls:\n" + SUM_HEAD + row.format("k"), None),
    ):
        assert lines_of(tmp_path, first + second)[1].again == again
    trace = PROCESS + TRACE_HEAD + "1.0us  2.0us  (1 1 1)  T4 (0)  a\n"
    assert lines_of(tmp_path, trace + trace)[1].again == 5
    both = lines_of(tmp_path, trace + trace.replace("==5==", "==6=="))[1]
    assert (both.again, both.processes) == (None, {"5": 2, "6": 5})
    (tmp_path / "twice.txt").write_text(trace + trace)
    with pytest.raises(
        ReportError, match=r"a table of one process appears twice \(again at line 5"
    ):
        parse(tmp_path / "twice.txt")


def test_a_line_beyond_a_million_characters_inside_a_table_is_counted(tmp_path: Path) -> None:
    longest = "1.0us  2.0us  (1 1 1)  T4 (0)  "
    for length, read in ((1 << 20, 1), ((1 << 20) + 1, 0)):
        found, lines = lines_of(tmp_path, PROCESS + TRACE_HEAD + longest.ljust(length, "k") + "\n")
        assert (len(found), lines.unread) == (read, 1 - read)
    assert lines_of(tmp_path, "x" * (1 << 21) + "\n" + PROCESS)[1].unread == 0


def test_a_header_whose_columns_do_not_stand_two_blanks_apart_opens_no_table(
    tmp_path: Path,
) -> None:
    close = " ".join(UNIFIED_HEAD.split()) + "\n"
    rows = "  2  256B  256B  256B  512B  50.0us  Host To Device\n"
    found, lines = lines_of(tmp_path, PROCESS + close + rows)
    assert (found, lines.tables) == ([], [])
    assert len(lines_of(tmp_path, PROCESS + UNIFIED_HEAD + rows)[0]) == 1
