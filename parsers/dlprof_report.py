"""Builds perfctl's report from the tables and the summary of DLProf's reports, CSV or JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from perfctl.parsers import dlprof_known, dlprof_records
from perfctl.parsers.dlprof_records import Row
from perfctl.parsers.dlprof_summary import SummaryReport
from perfctl.parsers.records import Diagnostic, Gap, Report


def report(
    path: Path,
    form: str,
    kinds: Collection[str],
    tables: Mapping[str, Sequence[Row]],
    summary: SummaryReport | None,
    unread: Iterable[Gap],
    notes: Iterable[Diagnostic],
) -> Report:
    """``kinds``: which of DLProf's reports were there, the summary among them. ``unread``: files that were not read."""
    kernels = dlprof_records.kernels(tables.get("iteration", ()))
    version = summary.tool_version if summary else None
    return Report(
        tool="dlprof",
        path=path,
        form=f"DLProf {form}: {', '.join(sorted(kinds))}",
        tool_version=version,
        devices=summary.devices if summary else (),
        environment=summary.environment if summary else {},
        kernels=kernels,
        operations=dlprof_records.operations(tables.get("detail", ())),
        summaries=(*(summary.summaries if summary else ()), *dlprof_records.table_summaries(tables)),
        gaps=(*dlprof_records.gaps_of(kinds, kernels), *unread, *(summary.gaps if summary else ())),
        diagnostics=(*notes, *dlprof_known.of_tables(tables, version)),
        duration_ns=summary.wall_clock_ns if summary else None,
    )
