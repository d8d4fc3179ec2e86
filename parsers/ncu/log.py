"""Finds ncu's CSV in the stdout that it shares with the profiled program: whole CSV rows (a quoted
cell may span lines) and a :class:`~perfctl.parsers.text.lines.Log` of the rest."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from perfctl.parsers.text.lines import Lines, Log
from perfctl.records.report import Diagnostic, Gap, Kernel

ROW_LIMIT = 8 * 2**20
CONNECTED = "==PROF== Connected to process"
"""Begins the first line that ncu prints of a process it profiles; its tables come after the last
process has ended."""
_HEADER_STARTS = (
    '"ID","Process ID"',
    '"Process ID","Process Name"',
    "ID,Process ID",
    "Process ID,Process Name",
)
_ROW_START = re.compile(r'"[0-9]*","[0-9]+","')
_ROW_INSIDE = re.compile(r'"[0-9]+","[0-9]+","[^"]*","[^"]*","')

EXPORT = "Export the report with 'ncu --import FILE --csv --page raw --print-units base'"

_CAUSES = (
    (
        r"ERR_NVGPUCTRPERM",
        "ncu was not allowed to read the GPU's performance counters (ERR_NVGPUCTRPERM)",
        (
            "Run as root, or have the administrator load the nvidia module with "
            "NVreg_RestrictProfilingToAdminUsers=0 (/proc/driver/nvidia/params then says "
            "RmProfilingAdminOnly: 0), and profile again"
        ),
    ),
    (
        r"driver resource was unavailable",
        (
            "another tool holds the GPU's performance counters (ncu: a driver resource was "
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
        "Set TMPDIR to a folder of your own and profile again",
    ),
    (
        r"The application returned an error code \((-?\d+)\)",
        "the profiled program failed with exit code {0} before ncu recorded anything",
        "Run the program without ncu until it works, then profile again",
    ),
    (
        r"Failed to load report|could not be (?:opened|loaded)",
        "ncu could not load the report it was asked to export",
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
        r"^Report: (\S.*)",
        "this is the log of an ncu run that wrote its report to {0}",
        "Read that report instead",
    ),
)
"""What ncu prints -> why there is no CSV, and what to do."""


def header_at(line: str) -> int:
    """Where ncu's CSV header begins in the line (a program's last output may stand before it); -1
    if it has none."""
    for start in _HEADER_STARTS:
        at = line.find(start)
        if at == 0 or (at > 0 and start.startswith('"')):
            return at
    return -1


def has_header(text: str) -> bool:
    """Return whether a table of ncu begins somewhere in the text."""
    return '"ID","Process ID"' in text or any(header_at(line) == 0 for line in text.splitlines())


def skip_to_header(source: Iterator[str], log: Log) -> str | None:
    """The header line, or None when the file ends without one; what comes before goes to
    the log."""
    for line in source:
        if (at := header_at(line)) >= 0:
            log.add(line[:at])
            return line[at:]
        log.add(line)
    return None


class Rows:
    """Whole CSV rows as text, header rows of further tables included; everything else goes to the
    log. A reader that knows a line for a whole row may take it from ``source`` itself, and give the
    others to ``feed``."""

    def __init__(self, source: Lines, log: Log, *, quoted: bool = True) -> None:
        """``quoted`` says that cells are quoted, as ncu writes them; a table that was saved again
        by another program may have bare cells, and then every line with a comma counts as a row."""
        self.source = source
        self.pending: list[str] = []
        """The lines so far of a row whose last cell goes on in the next line."""
        self._size = 0
        self._log = log
        self._quoted = quoted

    def __iter__(self) -> Iterator[str]:
        for line in self.source:
            if row := self.feed(line):
                yield row
        self.end()

    def feed(self, line: str) -> str:
        """The row that this line completes, "" when it completes none."""
        if self.pending:
            if not _ROW_START.match(line) and self._size <= ROW_LIMIT:
                return self._go_on(line)
            self.end()
        if not line.startswith('"') and not (
            not self._quoted and "," in line and not line.startswith("==")
        ):
            line = _row_inside(line, self._log)
        if line.count('"') & 1:
            self.pending, self._size = [line], len(line)
            return ""
        return line

    def _go_on(self, line: str) -> str:
        self.pending.append(line)
        self._size += len(line)
        if not line.count('"') & 1:
            return ""
        row, self.pending = "".join(self.pending), []
        return row

    def end(self) -> None:
        """Give up a row that is not whole; to be called when the source has ended."""
        self._log.cut_rows += bool(self.pending)
        self.pending = []


def _row_inside(line: str, log: Log) -> str:
    """The CSV row that begins within a line of program output, or "" ."""
    at = header_at(line)
    if at < 0:
        match = _ROW_INSIDE.search(line) if '","' in line else None
        at = match.start() if match else -1
    if at > 0:
        log.add(line[:at])
        return line[at:]
    log.add(line)
    return ""


def cells(row: str) -> list[str] | None:
    """Split one complete row of text into cells; None when it is not CSV. ncu quotes every cell, so
    a row without quotes inside cells is split at '","' (the number of quotes proves it), which
    takes a third of the time of the csv module."""
    # A comma at the end is no further cell: ncu ends metric rows so when the header has
    # rule columns.
    text = row.rstrip("\r\n,") if row.startswith('"') else row
    found = text[1:-1].split('","')
    if text.count('"') == 2 * len(found) and text[0] == text[-1] == '"':
        return found
    try:
        return next(csv.reader([text]))
    except (csv.Error, StopIteration):
        return None


def why_no_csv(log: Log) -> tuple[str, str]:
    """(reason, remedy) for a file in which no CSV was found."""
    for pattern, reason, remedy in _CAUSES:
        for _, text in log.tool_lines:
            if match := re.search(pattern, text):
                return reason.format(*match.groups()), remedy
    if log.first_line.startswith(("Metric Name,", '"Metric Name",')):
        reason = "this is a table that another program made from ncu's CSV (one column a metric)"
        return (
            f"{reason}: kernel names and units are not in it",
            "Use the CSV that ncu itself printed",
        )
    if errors := [text for kind, text in log.tool_lines if kind == "ERROR"]:
        return f"ncu stopped with an error: {errors[0]}", "Fix that and profile again"
    if log.tool_lines:
        return (
            "ncu ran but printed no CSV (only ==PROF== lines)",
            "Profile again with --csv and a list of metrics",
        )
    return "it holds no ncu CSV", EXPORT


def diagnostics(log: Log) -> list[Diagnostic]:
    """What ncu itself reported as warning or error; a repeated line once, with its count."""
    return [
        Diagnostic(
            "error" if kind == "ERROR" else "warning",
            "ncu",
            f"{text} ({count} times)" if count > 1 else text,
        )
        for (kind, text), count in log.tool_lines.items()
        if kind != "PROF" or "Received signal" in text
    ]


def gaps(log: Log, form: str = "CSV") -> list[Gap]:
    """Kernels that ncu failed to profile, and rows that are cut off."""
    found = []
    for (kind, text), count in log.tool_lines.items():
        match = re.match(r'Failed to profile "(.*)"', text) or re.match(
            r"Failed to profile (?:kernel )?(\S+)", text
        )
        if kind == "ERROR" and match:
            reason = f"ncu failed to profile this kernel ({count} launches)"
            found.append(Gap("kernel", "not_collected", reason, scope=match[1]))
    if log.has_no_units:
        found.append(
            Gap("counter.unit", "not_available", "a table has no row of units below its header")
        )
    if log.cut_rows:
        found.append(
            Gap("counter", "unreadable", f"{log.cut_rows} rows of the {form} are cut off or broken")
        )
    if holes := log.holes():
        found.append(Gap("counter", "unreadable", holes))
    return found


def kernel_gaps(
    kernels: Sequence[Kernel],
    no_grid: str,
    printed: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    failed: Collection[str] = (),
) -> Iterator[Gap]:
    """Columns of ``kernel`` that are empty, and which metric would fill them, or did not.

    ``printed``: field of Kernel -> (its metric, what stands in place of a value). ``failed``: names
    of the kernels whose launch failed: ncu gives them a grid of 0 blocks.
    """
    yield from no_values_of("duration_ns", "gpu__time_duration.sum", kernels, printed)
    for name in dict.fromkeys(failed):
        yield Gap(
            "kernel.grid_x",
            "not_available",
            "ncu gives the grid (0, 0, 0): this launch failed",
            scope=name,
        )
    if not failed and all(kernel.grid_x is None for kernel in kernels):
        yield Gap("kernel.grid_x", "not_available", no_grid)


def no_values_of(
    field: str, metric: str, kernels: Sequence[Kernel], printed: Mapping[str, tuple[str, str]]
) -> Iterator[Gap]:
    """The gap of one field of Kernel, which ``metric`` fills."""
    empty = sum(getattr(kernel, field) is None for kernel in kernels)
    if empty and field in printed:
        name, text = printed[field]
        reason = (
            f'{name} is "{text}" in {empty} of {len(kernels)} launches: ncu could not measure it '
            "there"
        )
        yield Gap(f"kernel.{field}", "not_available", reason)
    elif empty == len(kernels):
        yield Gap(f"kernel.{field}", "not_collected", f"{metric} is not among the metrics")


def no_values(total: int, missing: int, example: str) -> Iterator[Gap]:
    """The gap of a report in which no metric has a value."""
    if total and total == missing:
        why = "check their names with 'ncu --query-metrics', and ncu's messages"
        yield Gap(
            "counter.value",
            "unreadable",
            f'ncu printed "{example}" in place of all {total:,} metric values: {why}',
        )
