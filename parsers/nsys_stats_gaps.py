"""Gaps of a file of ``nsys stats``, and nsys's messages in it."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import NamedTuple

from perfctl.parsers.nsys_stats_lines import Note, Trouble
from perfctl.parsers.nsys_stats_names import GPU_TRACE, KERNEL_TRACE, PROJECTED_TRACE, RANGE_TRACE, UNKNOWN
from perfctl.parsers.records import Diagnostic, Gap

_ABOUT = {
    "cuda_gpu_kern_sum": "kernel",
    GPU_TRACE: "kernel",
    KERNEL_TRACE: "kernel",
    "cuda_gpu_mem_size_sum": "copy",
    "cuda_gpu_mem_time_sum": "copy",
    "nvtx_sum": "range",
    "nvtx_pushpop_sum": "range",
    RANGE_TRACE: "range",
}
"""Report -> what the capture has none of when the report has no rows."""
_QUANTITIES = (
    ("CUDA kernel", "kernel"),
    ("GPU memory", "copy"),
    ("NVTX", "range"),
    ("CUDA trace", "operation:cuda_api_sum"),
)
_SINGLE = (
    ("kernel", {GPU_TRACE, KERNEL_TRACE}, "launches", GPU_TRACE),
    ("copy", {GPU_TRACE}, "single copies", GPU_TRACE),
    ("range", {RANGE_TRACE, PROJECTED_TRACE}, "single ranges", RANGE_TRACE),
)


class Unread(NamedTuple):
    """Figures of sums that have no value."""

    rounded: int
    """Printed as 0 of a larger unit than the base unit."""
    ambiguous: int
    """May be whole numbers or fractions."""
    clipped: int
    """Clipped by nsys to the width of their column."""
    sizes: bool
    """Are the sizes of a trace rounded to a larger unit than byte?"""


def find_gaps(
    notes: list[Note], traces: Set[str], reports: Set[str], unread: Unread, trouble: Trouble
) -> Iterator[Gap]:
    """Yield one Gap per reason."""
    missing = set()
    for note in dict.fromkeys(notes):
        if note.kind in ("skipped", "empty"):
            missing.add(_quantity(note))
            reason = note.text if note.kind == "empty" else f"nsys stats: {note.text}"
            yield Gap(_quantity(note), "not_collected", reason, note.report)
        elif note.kind == "error" and note.report:
            reason = f"nsys stats failed on this report: {note.text[:300]}"
            yield Gap(f"operation:{note.report}", "unreadable", reason, note.report)
    for quantity, needed, what, report in _SINGLE:
        if not traces & needed and quantity not in missing:
            reason = f"sums do not show {what}: add 'nsys stats --report {report}', or pass the report itself"
            yield Gap(quantity, "not_available", reason)
    yield from _rounded(unread)
    if unread.ambiguous:
        reason = f"{unread.ambiguous} figures may be whole numbers or fractions: print them again with LC_ALL=C"
        yield Gap("summary", "ambiguous", reason)
    if unread.clipped:
        reason = f"{unread.clipped} figures are clipped to the width of their column: use '--format csv'"
        yield Gap("summary", "unreadable", reason)
    if UNKNOWN in reports:
        yield Gap(
            "operation", "not_available", "a table does not name its nsys report, so its figures are kept as summaries"
        )
    if trouble.rows or trouble.log.cut_rows:
        yield Gap(
            "operation", "unreadable", f"{trouble.rows + trouble.log.cut_rows} rows of the tables are cut off or broken"
        )
    if trouble.unended:
        yield Gap("operation.name", "ambiguous", "the last line has no line end, so the last name may be cut off")


def _quantity(note: Note) -> str:
    """Which table of the store stays empty for it."""
    if note.report:
        return _ABOUT.get(note.report, f"operation:{note.report}")
    return next((quantity for part, quantity in _QUANTITIES if part in note.text), "operation")


def _rounded(unread: Unread) -> Iterator[Gap]:
    """Gaps for sizes that nsys rounds to MB by default."""
    if unread.sizes:
        reason = "nsys stats rounds sizes to MB by default: use '--format csv:mem=B'"
        yield Gap("copy.bytes", "not_available", f"sizes with fewer than three digits were left out; {reason}")
        yield Gap("kernel.static_shared_bytes", "not_available", reason)
        yield Gap("kernel.dynamic_shared_bytes", "not_available", reason)
    if unread.rounded:
        reason = f"{unread.rounded} figures are printed as 0 in a large unit and may not be 0: use '--format csv:mem=B,time=ns'"
        yield Gap("summary", "not_available", reason)


def find_diagnostics(notes: list[Note], clipped: int, trouble: Trouble) -> Iterator[Diagnostic]:
    """Warnings and errors of nsys, and warnings about figures that may be wrong."""
    for note in dict.fromkeys(notes):
        if note.kind in ("warning", "error"):
            yield Diagnostic(note.kind, "nsys", f"{note.report or ''} {note.text}".strip()[:500])
    inputs = {note.text for note in notes if note.kind == "input"}
    if len(inputs) > 1:
        text = (
            f"the tables come from {len(inputs)} reports and were read as one run: "
            "split the file where 'Processing' names another report"
        )
        yield Diagnostic("warning", "perfctl", text)
    if clipped:
        text = f"{clipped} names or figures were clipped by nsys to the width of their column: use '--format csv' for whole ones"
        yield Diagnostic("warning", "perfctl", text)
