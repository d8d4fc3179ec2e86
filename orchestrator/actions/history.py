"""Quantities of the runs of stores over time or commits, with the points at which they changed, and what else changed there."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.actions.wall.runs import analysed, loaded
from perfctl.orchestrator.errors import PerfctlError, ToolMissing, UsageError
from perfctl.orchestrator.store import database, read

if TYPE_CHECKING:
    from perfctl.orchestrator.analyse.compare.suspects import Suspect
    from perfctl.orchestrator.analyse.history.lines import History, Seen


def history(stores: Sequence[Path | str] = (DEFAULT,), *, by_commit: bool = False, gate: float = 0.05) -> History:
    """Read every whole run of these stores. Times in ns, memory in bytes; FLOPs: 1 multiply-add = 2.

    by_commit: one point a commit, in the order of commits. gate: a change of up to this share is not told; 0.05 is 5 %.
    Raises ToolMissing without ruptures, UsageError for a gate below 0, StoreError, PerfctlError where no run is whole.
    """
    from perfctl.orchestrator.analyse.history.changes import available
    from perfctl.orchestrator.analyse.history.lines import History, lines, seen

    if not (isfinite(gate) and gate >= 0):
        raise UsageError(f"`gate` must be 0 or more, got {gate}", "0.05 is 5 %")
    if not available():
        raise ToolMissing("change points need ruptures, which is not installed", "pip install 'perfctl[history]'")
    runs: list[Seen] = []
    for number, store in enumerate(stores):
        with database.reading(Path(store)) as connection:
            for run_id in read.run_ids(connection):
                for run in loaded(connection, [run_id]):
                    if run.status == "ok" and run.workload is not None:
                        runs.append(
                            analysed([run], lambda some, number=number: seen(some[0], number))  # type: ignore[misc]
                        )
    if not runs:
        raise PerfctlError("no store holds a whole run of a known workload", "See 'perfctl runs'")
    found = tuple(lines(runs, by_commit=by_commit, gate=gate))
    places = {(at, series.points[change.after]): series.points[change.after - 1]
              for at, line in enumerate(found) for series in line.series for change in series.changes}  # fmt: skip
    blamed = {(at, after): _suspects(stores, found[at].points[before], found[at].points[after])
              for (at, after), before in places.items()}  # fmt: skip
    return History(tuple(map(str, stores)), gate, found, blamed)


def _suspects(stores: Sequence[Path | str], before: Sequence[Seen], after: Sequence[Seen]) -> tuple[Suspect, ...]:
    from perfctl.orchestrator.analyse.compare.causes import explain
    from perfctl.orchestrator.analyse.compare.compare import compare
    from perfctl.orchestrator.analyse.compare.records import Side
    from perfctl.orchestrator.analyse.compare.suspects import suspects

    sides = []
    for label, point in (("A", before), ("B", after)):
        with database.reading(Path(stores[point[0].store])) as connection:
            sides.append(
                Side(label, tuple(loaded(connection, [one.run for one in point if one.store == point[0].store])))
            )
    pairs = compare(sides[0], sides[1]).pairs
    return suspects(pairs[0], explain(pairs[0].rows)) if pairs else ()
