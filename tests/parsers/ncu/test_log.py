"""What the lines around ncu's tables say: why there is no table, and what went wrong."""

from __future__ import annotations

import pytest

from perfctl.parsers.common.lines import Log
from perfctl.parsers.ncu.log import diagnostics, gaps, why_no_csv
from perfctl.records.report import Diagnostic, Gap

EXPORT = "Export the report with 'ncu --import FILE --csv --page raw --print-units base'"
PERMISSION = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
    "Performance Counters"
)


def log_of(*lines: str) -> Log:
    log = Log()
    for line in lines:
        log.add(line + "\n")
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
def test_the_first_cause_that_ncu_s_lines_name_is_why_there_is_no_table(
    lines: list[str], reason: str, remedy: str
) -> None:
    assert why_no_csv(log_of(*lines)) == (reason, remedy)


def test_messages_are_told_once_with_their_count_and_progress_is_not() -> None:
    log = log_of(
        '==PROF== Profiling "k" - 0: 0%....100% - 3 passes',
        "==WARNING== clocks",
        "==ERROR== lost",
        "==PROF== Received signal",
        *["==WARNING== clocks"] * 2,
        *["==ERROR== gone"] * 2,
    )
    assert diagnostics(log) == [
        Diagnostic("warning", "ncu", "clocks (3 times)"),
        Diagnostic("error", "ncu", "lost"),
        Diagnostic("warning", "ncu", "Received signal"),
        Diagnostic("error", "ncu", "gone (2 times)"),
    ]
    assert diagnostics(Log()) == []


def test_kernels_that_ncu_could_not_profile_and_rows_that_are_cut_are_gaps() -> None:
    log = log_of(
        *['==ERROR== Failed to profile "gemm<a, b>" in process 42'] * 2,
        "==ERROR== Failed to profile kernel relu in process 42",
        "==ERROR== Failed to profile pool",
        '==WARNING== Failed to profile "warned" in process 42',
        "==ERROR== Failed to load report",
    )
    launches = "ncu failed to profile this kernel ({} launches)"
    failed = [
        Gap("kernel", "not_collected", launches.format(2), "gemm<a, b>"),
        Gap("kernel", "not_collected", launches.format(1), "relu"),
        Gap("kernel", "not_collected", launches.format(1), "pool"),
    ]
    assert gaps(log) == failed
    log.cut_rows = 1
    assert gaps(log) == [
        *failed,
        Gap("counter", "unreadable", "1 rows are truncated or broken"),
    ]
