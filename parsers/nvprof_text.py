"""Parser of nvprof's output, text or ``--csv``: GPU trace, summary, API calls, unified memory and metrics.

Text has five digits a number ("195.89ms" is a start rounded to 10 us); CSV has them whole, in the units of a row below
the header. Sizes are in powers of 1024 since about CUDA 8 and were powers of 1000 before: throughput, which nvprof
works out from the same size, tells which ("38.147MB" in "6.4049ms" is "5.8163GB/s" only by 1024); where no copy of the
file does, sizes with a prefix stay unknown. Starts are on nvprof's own clock, from the start of the process.

Written from the layouts of CUDA 5 to 12 that are printed in public; no whole file of it was at hand.
"""

from __future__ import annotations

from pathlib import Path

from perfctl.parsers.errors import ReportError
from perfctl.parsers.nvprof_lines import METRIC, SUMMARY, TRACE, UNIFIED, Lines, is_nvprof
from perfctl.parsers.nvprof_records import Sizes, Trace, metric_figures, summary_figures, unified_figures
from perfctl.parsers.records import Diagnostic, Gap, Report, Summary
from perfctl.parsers.repeated import joined, repeated
from perfctl.parsers.unknown import not_understood

TOOL = "nvprof"


def sniff(path: Path, head: bytes) -> bool:
    """Return whether there is a line of nvprof, or the header of one of its tables."""
    return is_nvprof(head)


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it has no table of nvprof."""
    source = Lines(path)
    summaries: list[Summary] = []
    try:
        sizes = Sizes.of(row for row in Lines(path) if row.kind == TRACE)
        trace = Trace(sizes)
        for row in source:
            if row.kind == TRACE:
                trace.take(row)
            elif row.kind == SUMMARY:
                summaries += summary_figures(row)
            elif row.kind == UNIFIED:
                summaries += unified_figures(row, sizes)
            elif row.kind == METRIC:
                summaries += metric_figures(row)
    except OSError as error:
        raise ReportError(path, TOOL, f"it cannot be read ({error.strerror})", "Check its permissions") from error
    if not source.tables:
        messages = "; ".join(entry.text for entry in source.diagnostics()[:2]) or "nothing was profiled"
        raise ReportError(path, TOOL, f"it holds no table of nvprof ({messages[:300]})", "Check nvprof's messages")
    if source.again is not None:
        raise repeated(path, TOOL, "a table of one process", source.again)
    return Report(
        tool=TOOL,
        path=path,
        form="nvprof " + " and ".join(dict.fromkeys(source.tables)),
        devices=trace.devices(),
        kernels=trace.kernels,
        counters=trace.counters,
        copies=trace.copies,
        summaries=(*summaries, *trace.summaries()),
        gaps=(*_gaps(source, trace), *sizes.gaps(), *trace.gaps()),
        diagnostics=(
            *source.diagnostics(),
            *_rounding(source),
            *not_understood({"tables": source.unknown, "columns": trace.unknown}, "kept as metrics or left out"),
            *joined("the tables of further processes", [*source.processes.values()][1:]),
        ),
        duration_ns=None,
    )


def _gaps(source: Lines, trace: Trace) -> list[Gap]:
    gaps = []
    if not any(table.startswith("GPU trace") for table in source.tables):
        reason = "the file has only sums by name: run nvprof --print-gpu-trace for single launches"
        gaps.append(Gap("kernel", "not_collected", reason))
        gaps.append(Gap("copy", "not_collected", reason))
    elif not trace.kernels:
        gaps.append(Gap("kernel", "not_collected", "the GPU trace has no kernel"))
    if trace.kernels:
        reason = "nvprof's trace has no ranges, so no kernel can be assigned to a layer"
        gaps.append(Gap("kernel.layer", "not_available", reason))
    if source.unread:
        gaps.append(Gap("nvprof row", "unreadable", f"{source.unread} lines inside tables could not be read"))
    return gaps


def _rounding(source: Lines) -> list[Diagnostic]:
    if not any("text" in table for table in source.tables):
        return []
    text = "nvprof's text has five digits a number, so times and sizes are rounded (--csv prints all digits)"
    return [Diagnostic("info", "perfctl", text)]
