"""All verdicts about a run's timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from perfctl.orchestrator.analyse.verdicts.timeline.host import host_sync
from perfctl.orchestrator.analyse.verdicts.timeline.launches import launch_bound
from perfctl.orchestrator.analyse.verdicts.timeline.passes import cast_storm, chains
from perfctl.orchestrator.analyse.verdicts.timeline.records import RunVerdict, Timeline, timeline
from perfctl.orchestrator.analyse.verdicts.timeline.tensor import unused_tensor_cores
from perfctl.orchestrator.analyse.verdicts.timeline.work import exposed, recomputed
from perfctl.records.run import Run

TIMELINE_VERDICTS: tuple[Callable[[Timeline], RunVerdict | None], ...] = (
    launch_bound, host_sync, exposed, cast_storm, chains, unused_tensor_cores,
)  # fmt: skip
"""All rules about kernels in time. A new one is a function and a name here."""


def run_verdicts(run: Run) -> tuple[RunVerdict, ...]:
    """Those of one run, the largest share first; none under ncu, which runs kernels one by one, and of failed runs."""
    if run.status == "failed":
        return ()
    found = timeline(run)
    said = [] if found is None else [rule(found) for rule in TIMELINE_VERDICTS]
    known = [verdict for verdict in (*said, recomputed(run)) if verdict is not None]
    return tuple(sorted(known, key=lambda verdict: -verdict.share))


def worst(runs: Iterable[Run]) -> list[tuple[RunVerdict, Run]]:
    """Of each rule the run whose share is largest, with that run."""
    found: dict[str, tuple[RunVerdict, Run]] = {}
    for run in runs:
        for said in run_verdicts(run):
            if said.rule not in found or found[said.rule][0].share < said.share:
                found[said.rule] = said, run
    return list(found.values())
