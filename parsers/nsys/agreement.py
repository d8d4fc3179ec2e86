"""Where an nsys export contradicts itself, beyond what ``text.sqlite_checks`` finds in any
database: rows that were deleted, names that are not there, times outside of the capture. None of it
looks at single rows: what was found while reading counts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from perfctl.parsers.nsys.kernels import Launched
from perfctl.parsers.nsys.machine import duration_ns
from perfctl.parsers.nsys.tables import STRINGS
from perfctl.parsers.text.doubts import contradictions
from perfctl.parsers.text.sqlite import Database
from perfctl.records.report import ApiCall, Diagnostic, Gap

_LATE_NS = 10**9
"""The last events may end a little after the capture."""
_NAMELESS = re.compile(r"\(name -?\d+ is not in the report\)")
_LAUNCH = re.compile(
    "(?:cudaLaunch(?:Cooperative)?Kernel|cuLaunch(?:Cooperative)?Kernel|hipLaunchKernel)"
    r"(?:Ex)?C?(?:_v\d+|_ptsz)*\Z"
)
_COPY = re.compile(r"(?:cuda|cu|hip)Mem(?:cpy(?!Batch)|set)\w*\Z")
"""Names of calls that move or set memory; others of the kind move several pieces at once."""
_MOST_NAMES = 500


def doubts(
    database: Database, kernels: Launched, calls: Sequence[ApiCall]
) -> tuple[Diagnostic, ...]:
    """Return one warning with all contradictions."""
    found = (database.deleted(), *_names(database, kernels, calls), *_times(database, kernels))
    return contradictions([text for text in found if text])


def _names(database: Database, kernels: Launched, calls: Sequence[ApiCall]) -> Iterator[str]:
    """Numbers of names that StringIds does not have."""
    if not database.has(STRINGS, "id", "value"):
        return
    lost = sum(_NAMELESS.fullmatch(one.name) is not None for one in calls)
    pairs = kernels.check.names() if kernels.check else None
    wanted = sorted({*pairs, *pairs.values()})[:_MOST_NAMES] if pairs else []
    if wanted:
        query = f"SELECT count(*) FROM {STRINGS} WHERE id IN ({', '.join(map(str, wanted))})"
        lost += len(wanted) - int(database.connection.execute(query).fetchone()[0])
    if lost:
        yield f"{lost} names of kernels or calls are not in {STRINGS}"


def _times(database: Database, kernels: Launched) -> Iterator[str]:
    length, check = duration_ns(database), kernels.check
    if check is None or check.first is None or check.last is None:
        return
    if check.first < 0:
        yield f"a kernel begins {-check.first:,} ns before the capture"
    if length and check.last > length + _LATE_NS:
        yield f"a kernel ends at {check.last:,} ns, and the capture at {length:,} ns"
    if check.backwards:
        yield f"{check.backwards:,} kernels end before they begin"


def launched_nothing(
    kernels: Launched, copies: int, calls: Sequence[ApiCall], has_graphs: bool
) -> Iterator[Gap]:
    """A gap where calls launched kernels or, though all kernels are there, started copies that the
    report does not have."""
    count = len(kernels.around.innermost) - kernels.unlaunched
    launches = sum(
        one.calls or 0 for one in calls if one.domain == "cuda" and _LAUNCH.match(one.name)
    )
    if count and launches > count and not has_graphs:
        which = f"{launches - count:,} of {launches:,} launch calls"
        reason = f"{which} have no kernel in the report: it ended after the capture, or was lost"
        yield Gap("kernel", "not_available", reason)
        return
    moved = sum(one.calls or 0 for one in calls if one.domain == "cuda" and _COPY.match(one.name))
    if launches == count and 0 < copies < moved and not has_graphs:
        reason = (
            f"{moved - copies:,} of {moved:,} calls that copy or set memory have no such operation "
            "in the report"
        )
        yield Gap("copy", "not_available", f"{reason}: it had no bytes, or was lost")
