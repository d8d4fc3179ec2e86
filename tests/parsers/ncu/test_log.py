"""What the lines around ncu's tables say: why there is no table, and what went wrong."""

import io
from pathlib import Path

import pytest

from perfctl.parsers.common.lines import LineReader, SurroundingLines
from perfctl.parsers.ncu import csv as ncu_csv
from perfctl.parsers.ncu import log as ncu_log
from perfctl.parsers.ncu.builder import ReportBuilder
from perfctl.parsers.ncu.csv import CsvRows, HeaderColumns, skip_to_header_line, split_csv_row
from perfctl.parsers.ncu.log import (
    collect_ncu_errors_and_warnings,
    explain_missing_csv,
    find_failed_kernels_and_rows,
)
from perfctl.records.report import Diagnostic, Gap

EXPORT = "Export the report with 'ncu --import FILE --csv --page raw --print-units base'"
PERMISSION = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
    "Performance Counters"
)


def log_of(*lines):
    log = SurroundingLines()
    for line in lines:
        log.add_non_csv_line(line + "\n")
    return log


@pytest.mark.parametrize(
    ("lines", "reason", "remedy"),
    [
        (
            [PERMISSION, "==WARNING== No kernels were profiled."],
            "ncu has no permission to read the GPU's performance counters (ERR_NVGPUCTRPERM)",
            (
                "Run as root, or have the administrator load the nvidia module with "
                "NVreg_RestrictProfilingToAdminUsers=0 (/proc/driver/nvidia/params then contains "
                "RmProfilingAdminOnly: 0), and profile again"
            ),
        ),
        (
            [
                "==WARNING== No kernels were profiled.",
                "==ERROR== Profiling failed because a driver resource was unavailable.",
            ],
            (
                "another tool uses the GPU's performance counters (ncu: a driver resource was "
                "unavailable)"
            ),
            (
                "If DCGM watches this GPU, run 'dcgmi profile --pause', profile again, then 'dcgmi "
                "profile --resume'"
            ),
        ),
        (
            ["==ERROR== Failed to open/create lock file /tmp/nsight-compute-lock."],
            "ncu could not open its lock file, which another user owns",
            "Set TMPDIR to your own folder and profile again",
        ),
        (
            [
                "==PROF== Connected to process 7 (/opt/app)",
                "==ERROR== The application returned an error code (-11).",
            ],
            "the profiled program failed with exit code -11 before ncu recorded anything",
            "Run the program without ncu until it works, then profile again",
        ),
        (
            ["==ERROR== Failed to load report file 'a.ncu-rep'"],
            "ncu could not load the report to export",
            "Export with the ncu version that wrote the report, or a newer one",
        ),
        (
            [
                "==WARNING== No kernels were profiled.",
                (
                    "==WARNING== Profiling kernels launched by child processes requires the "
                    "--target-processes all option."
                ),
            ],
            "no kernels were profiled: the kernels ran in a child process",
            "Profile again with '--target-processes all'",
        ),
        (
            ["==PROF== Disconnected from process 7", "==WARNING== No kernels were profiled."],
            (
                "no kernels were profiled: no launch matched the filters, or the profiler range "
                "was never open"
            ),
            (
                "Check -k, -s, -c, --nvtx-include and --profile-from-start; for a launcher add "
                "'--target-processes all'"
            ),
        ),
        (
            ["==PROF== Connected to process 7", "==PROF== Report: out/run.ncu-rep"],
            "this is the log of an ncu run that wrote its report to out/run.ncu-rep",
            "Read that report instead",
        ),
        (
            ["Metric Name,dram__bytes.sum", "==ERROR== odd"],
            (
                "another program made this table from ncu's CSV (one column per metric); "
                "it lacks kernel names and units"
            ),
            "Use the CSV that ncu itself printed",
        ),
        (
            [
                "==PROF== Connected to process 7",
                "==WARNING== first",
                "==ERROR== odd thing",
                "==ERROR== later",
            ],
            "ncu stopped with an error: odd thing",
            "Correct the error and profile again",
        ),
        (
            ["==PROF== Connected to process 7"],
            "ncu ran but printed no CSV (only ==PROF== lines)",
            "Profile again with --csv and a list of metrics",
        ),
        (["loss 0.5", "Report: a file"], "it contains no ncu CSV", EXPORT),
        ([], "it contains no ncu CSV", EXPORT),
    ],
)
def test_the_first_cause_that_ncu_s_lines_name_is_why_there_is_no_table(lines, reason, remedy):
    assert explain_missing_csv(log_of(*lines)) == (reason, remedy)


def test_messages_are_told_once_with_their_count_and_progress_is_not():
    log = log_of(
        '==PROF== Profiling "k" - 0: 0%....100% - 3 passes',
        "==WARNING== clocks",
        "==ERROR== lost",
        "==PROF== Received signal",
        *["==WARNING== clocks"] * 2,
        *["==ERROR== gone"] * 2,
    )
    assert collect_ncu_errors_and_warnings(log) == [
        Diagnostic("warning", "ncu", "clocks (3 times)"),
        Diagnostic("error", "ncu", "lost"),
        Diagnostic("warning", "ncu", "Received signal"),
        Diagnostic("error", "ncu", "gone (2 times)"),
    ]
    assert collect_ncu_errors_and_warnings(SurroundingLines()) == []


def test_kernels_that_ncu_could_not_profile_and_rows_that_are_cut_are_gaps():
    log = log_of(
        *['==ERROR== Failed to profile "gemm<a, b>" in process 42'] * 2,
        "==ERROR== Failed to profile kernel relu in process 42",
        "==ERROR== Failed to profile pool",
        '==WARNING== Failed to profile "warned" in process 42',
        "==ERROR== Failed to load report",
    )
    launches = "ncu failed to profile this kernel ({})"
    failed = [
        Gap("kernel", "not_collected", launches.format("2 launches"), "gemm<a, b>"),
        Gap("kernel", "not_collected", launches.format("1 launch"), "relu"),
        Gap("kernel", "not_collected", launches.format("1 launch"), "pool"),
    ]
    assert list(find_failed_kernels_and_rows(log)) == failed
    log.cut_rows = 1
    assert list(find_failed_kernels_and_rows(log)) == [
        *failed,
        Gap("counter", "unreadable", "1 row is truncated or broken"),
    ]


# ncu's CSV is found among everything else in a file: rows, headers, and a log of the rest


HEADER = '"ID","Process ID","Kernel Name"\n'
ROW = '"0","7","gemm(int)","x"\n'


@pytest.mark.parametrize(
    ("line", "at"),
    [
        (HEADER, 0),
        ("loss 0.5" + HEADER, 8),
        ("ID,Process ID,Kernel Name\n", 0),
        ('"Process ID","Process Name"\n', 0),
        ("Process ID,Process Name", 0),
        (" ID,Process ID\n", None),
        ("x Process ID,Process Name", None),
        ("", None),
    ],
)
def test_a_header_is_found_behind_output_only_where_its_cells_are_quoted(line, at):
    match = ncu_log.HEADER.search(line)
    assert (match and match.start()) == at


def test_what_stands_before_the_header_goes_to_the_log():
    log = SurroundingLines()
    source = iter(["==PROF== Connected\n", "loss 1 " + HEADER, ROW])
    assert skip_to_header_line(source, log) == HEADER
    assert next(source) == ROW
    assert log.tool_lines == {("PROF", "Connected"): 1}
    assert log.first_line == "==PROF== Connected"
    assert skip_to_header_line(iter(["\n"]), log) is None


def rows(*source):
    builder = ReportBuilder(Path("x"))
    lines = LineReader(io.StringIO("".join(source)).read, builder.log)
    return list(CsvRows(builder, lines, HeaderColumns([]), quoted=True)), builder.log


@pytest.mark.parametrize(("limit", "given_up"), [(22, 1), (23, 0)])
def test_a_row_that_never_ends_is_given_up(limit, given_up, monkeypatch):
    monkeypatch.setattr(ncu_csv, "ROW_LIMIT", limit)
    pieces = ['"0","7","open\n', "5678\n", "901\n", '3","x"\n']
    assert len("".join(pieces[:3])) == 23, "so long it is when the fourth line comes"
    found, log = rows(*pieces, ROW)
    assert found == ([ROW] if given_up else ["".join(pieces), ROW])
    assert log.cut_rows == given_up


def test_output_of_the_program_is_no_row_and_a_row_behind_it_is():
    inside = '"1","7","gemm","ctx","x"\n'
    found, log = rows("loss, 0.5\n", "==PROF== a, b\n", "loss 0.5" + inside, "epoch " + HEADER)
    assert found == [inside, HEADER]
    assert (log.first_line, log.tool_lines) == ("loss, 0.5", {("PROF", "a, b"): 1})


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ('"a","b"\r\n', ["a", "b"]),
        ('"a","b",\r\n', ["a", "b"]),
        ('"a","",\n', ["a", ""]),
        ('"a"', ["a"]),
        ("a,b,", ["a", "b", ""]),
        ('"a","say ""x"", y","c"\n', ["a", 'say "x", y', "c"]),
        ('"a","x\ny"\n', ["a", "x\ny"]),
        ('"a",b,"c"', ["a", "b", "c"]),
    ],
)
def test_cells_are_what_the_csv_module_says(row, expected):
    assert split_csv_row(row) == expected
