"""ncu's own messages around its tables, in the stdout that it shares with the profiled program."""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfctl.parsers.common.lines import SurroundingLines
from perfctl.records.report import Diagnostic, Gap, pluralize_count

CONNECTED = "==PROF== Connected to process"
"""Begins the first line that ncu prints of a process it profiles; its tables come after the last
process has ended."""
HEADER = re.compile(
    r'"ID","Process ID"|"Process ID","Process Name"|^(?:ID,Process ID|Process ID,Process Name)',
    re.MULTILINE,
)
"""Where a table of ncu begins: also behind a program's last output, if its cells are quoted."""
_FAILED = re.compile(r'Failed to profile (?:"(.*)"|(?:kernel )?(\S+))')

EXPORT = "Export the report with 'ncu --import FILE --csv --page raw --print-units base'"

_CAUSES = (
    (
        r"ERR_NVGPUCTRPERM",
        "ncu has no permission to read the GPU's performance counters (ERR_NVGPUCTRPERM)",
        (
            "Run as root, or have the administrator load the nvidia module with "
            "NVreg_RestrictProfilingToAdminUsers=0 (/proc/driver/nvidia/params then contains "
            "RmProfilingAdminOnly: 0), and profile again"
        ),
    ),
    (
        r"driver resource was unavailable",
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
        r"lock file|nsight-compute-lock",
        "ncu could not open its lock file, which another user owns",
        "Set TMPDIR to your own folder and profile again",
    ),
    (
        r"^==\w+== Report: (\S.*)",
        "this is the log of an ncu run that wrote its report to {0}",
        "Read that report instead",
    ),
    (
        r"The application returned an error code \((-?\d+)\)",
        "the profiled program failed with exit code {0} before ncu recorded anything",
        "Run the program without ncu until it works, then profile again",
    ),
    (
        r"Failed to load report|could not be (?:opened|loaded)",
        "ncu could not load the report to export",
        "Export with the ncu version that wrote the report, or a newer one",
    ),
    (
        r"child processes requires the --target-processes all",
        "no kernels were profiled: the kernels ran in a child process",
        "Profile again with '--target-processes all'",
    ),
    (
        r"No kernels were profiled",
        (
            "no kernels were profiled: no launch matched the filters, or the profiler range was "
            "never open"
        ),
        (
            "Check -k, -s, -c, --nvtx-include and --profile-from-start; for a launcher add "
            "'--target-processes all'"
        ),
    ),
    (
        r'^"?Metric Name"?,',
        (
            "another program made this table from ncu's CSV (one column per metric); it lacks "
            "kernel names and units"
        ),
        "Use the CSV that ncu itself printed",
    ),
    (
        r"^==ERROR== (.*)",
        "ncu stopped with an error: {0}",
        "Correct the error and profile again",
    ),
    (
        r"^==",
        "ncu ran but printed no CSV (only ==PROF== lines)",
        "Profile again with --csv and a list of metrics",
    ),
)
"""What ncu prints, or the file begins with -> why there is no CSV, and what to do."""


def explain_missing_csv(log: SurroundingLines) -> tuple[str, str]:
    """Return (reason, remedy) for a file in which no CSV was found."""
    lines = [f"=={kind}== {text}" for kind, text in log.tool_lines]
    text = "\n".join([*lines, log.first_line])
    for pattern, reason, remedy in _CAUSES:
        if match := re.search(pattern, text, re.MULTILINE):
            return reason.format(*match.groups()), remedy
    return "it contains no ncu CSV", EXPORT


def collect_ncu_errors_and_warnings(log: SurroundingLines) -> list[Diagnostic]:
    """Return what ncu itself reported as warning or error; a repeated line once, with its count."""
    return [
        Diagnostic(
            "error" if kind == "ERROR" else "warning",
            "ncu",
            f"{text} ({count} times)" if count > 1 else text,
        )
        for (kind, text), count in log.tool_lines.items()
        if kind != "PROF" or "Received signal" in text
    ]


def find_failed_kernels_and_rows(log: SurroundingLines) -> Iterator[Gap]:
    """Yield kernels that ncu failed to profile, and rows that are cut off."""
    for (kind, text), count in log.tool_lines.items():
        if kind == "ERROR" and (match := _FAILED.match(text)):
            reason = f"ncu failed to profile this kernel ({pluralize_count(count, 'launch')})"
            yield Gap("kernel", "not_collected", reason, scope=match[1] or match[2])
    if log.has_no_units:
        reason = "a table has no row of units below its header"
        yield Gap("counter.unit", "not_available", reason)
    if log.cut_rows:
        reason = f"{pluralize_count(log.cut_rows, 'row', 'is', 'are')} truncated or broken"
        yield Gap("counter", "unreadable", reason)
    if holes := log.describe_nul_lines():
        yield Gap("counter", "unreadable", holes)
