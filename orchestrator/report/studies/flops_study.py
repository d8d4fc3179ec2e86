"""What the study of FLOPs is made from, and which of its runs shows what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfctl.orchestrator.analyse.comparison import Network
from perfctl.orchestrator.analyse.verdicts.rule import Verdict
from perfctl.orchestrator.report.studies.flops_tables import HandValue, Points
from perfctl.records.run import Run

MORE_IN_LESS = "more work in less time"


@dataclass(frozen=True, slots=True)
class FlopsStudy:
    """All that the page is made from."""

    networks: tuple[Network, ...]
    layer: str
    """The layer that is looked at closely."""
    batch: int
    """Batch size of the hand sheet, the memory figures and the training."""
    hand: tuple[HandValue, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    """(part, why it gave nothing or not all)."""
    command: str | None = None
    links: tuple[tuple[str, str], ...] = ()


def trained(one: Network, batch: int) -> Run | None:
    """The run with epochs, at ``batch`` where there are several."""
    known = [run for run in one.runs if any(step.phase in ("epoch", "test") for step in run.report.steps)]
    return min(known, key=lambda run: run.batch_size != batch, default=None)


def remembered(one: Network, batch: int) -> Run | None:
    """The run whose memory is shown: with epochs, else without a profiler, else any."""
    known = [run for run in one.runs if run.report.memory]
    with_epochs = trained(one, batch)
    return min(
        known, key=lambda run: (run is not with_epochs, run.batch_size != batch, run.profiler != "none"), default=None
    )


def epochs(run: Run) -> int | None:
    """Epochs that the run trained, or that its report states; None where it does not say."""
    stated = next((one.value for one in run.report.summaries if one.name == "epochs"), None)
    return sum(step.phase == "epoch" for step in run.report.steps) or (None if stated is None else round(stated))


def scatter_of(points: Points) -> float:
    """The largest slowest / fastest step of the layer's forward pass."""
    return max((point.forward.scatter for _, found in points for point in found), default=1.0)


def of_sweep(network: Network) -> Iterator[Verdict]:
    yield from (item for one in network.analyses for item in one.judgement.sweep)
