"""What the study of FLOPs is made from, which of its runs shows what, and what it found, one
sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

from perfctl.orchestrator.estimate.sheets.slips import in_its_unit
from perfctl.orchestrator.ledger.causes.rule import Cause
from perfctl.orchestrator.ledger.network import Network
from perfctl.orchestrator.report.numbers import ratio, si, size, time
from perfctl.orchestrator.report.page.records import LONGEST, Finding, shortened
from perfctl.orchestrator.report.studies import flops_tables as tables
from perfctl.orchestrator.report.studies.flops_tables import HandValue, Points
from perfctl.records.run import Run

MORE_IN_LESS = "more work in less time"
SCATTERS = 3.0
"""Steps of one run that differ by this factor are no basis for a comparison of times."""


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
    known = [
        run for run in one.runs if any(step.phase in ("epoch", "test") for step in run.report.steps)
    ]
    return min(known, key=lambda run: run.batch_size != batch, default=None)


def remembered(one: Network, batch: int) -> Run | None:
    """The run whose memory is shown: with epochs, else without a profiler, else any."""
    known = [run for run in one.runs if run.report.memory]
    with_epochs = trained(one, batch)
    return min(
        known,
        key=lambda run: (run is not with_epochs, run.batch_size != batch, run.profiler != "none"),
        default=None,
    )


def epochs(run: Run) -> int | None:
    """Epochs that the run trained, or that its report states; None where it does not say."""
    stated = next((one.value for one in run.report.summaries if one.name == "epochs"), None)
    return sum(step.phase == "epoch" for step in run.report.steps) or (
        None if stated is None else round(stated)
    )


def scatter_of(points: Points) -> float:
    """The largest slowest / fastest step of the layer's forward pass."""
    return max((point.forward.scatter for _, found in points for point in found), default=1.0)


def of_sweep(network: Network) -> Iterator[Cause]:
    yield from (item for one in network.analyses for item in one.judgement.sweep)


def findings(
    study: FlopsStudy, points: Points, training: Sequence[tuple[Network, Run]]
) -> Iterator[Finding]:
    for text, evidence in (
        *_hand_findings(study),
        *_flops_findings(study, points),
        *_time_findings(study, points),
        *_device_findings(study),
        *_shape_findings(study, points),
        *_training_findings(training),
        *_memory_findings(study),
    ):
        yield Finding(shortened(text), evidence)


def _hand_findings(study: FlopsStudy) -> Iterator[tuple[str, str]]:
    """The first value, and the second, or all others in short."""
    yield from _hand_finding(study.hand[:1] if len(study.hand) > 2 else study.hand)
    if len(study.hand) > 2:
        others, layers = study.hand[1:], {one.layer for one in study.hand}
        said = [
            f"{in_its_unit(one.finding)} is right"
            if one.right
            else f"{one.finding.value:,} should be {one.finding.right:,} {one.finding.unit}"
            if one.finding.exact
            else f"{one.finding.value:,} is not explained"
            for one in others
        ]
        of = f" of {study.hand[0].layer}" if len(layers) == 1 else ""
        text = f"The other hand values{of}: {'; '.join(said)}."
        right = sum(one.right for one in others)
        short = (
            f"The other {len(others)} hand values{of}: {right} right, {len(others) - right} not."
        )
        yield text if len(text) <= LONGEST else short, "hand"


def _hand_finding(values: Sequence[HandValue]) -> Iterator[tuple[str, str]]:
    for one in values:
        found = one.finding
        said = f"Your {found.value:,} for {one.layer} (batch {one.batch})"
        if one.right:
            yield f"{said} is right: {found.quantity or found.unit}.", "hand"
        elif found.exact:
            text = (
                f"{said} is wrong: {' and '.join(found.slips)}. Right: {found.right:,} "
                f"{found.unit}."
            )
            count = f"{len(found.slips)} slips" if len(found.slips) > 1 else "one slip"
            few = f"{said} is wrong by {count}. Right: {found.right:,} {found.unit}."
            yield text if len(text) <= LONGEST else few, "hand"
        else:
            yield (
                (
                    f"{said} is none of its figures, and no usual slip makes it; nearest is "
                    f"{found.right:,} {found.unit}."
                ),
                "hand",
            )


def _flops_findings(study: FlopsStudy, points: Points) -> Iterator[tuple[str, str]]:
    _, found = points[0]
    for point in found[-1:]:
        paper = point.paper.value
        if paper is None:
            continue
        said = f"{study.layer} forward at batch {point.batch}: {si(paper, 'FLOP')} on paper"
        if point.counted.value is not None:
            yield (
                (
                    f"{said}, {si(point.counted.value, 'FLOP')} counted "
                    f"({ratio(point.counted.value / paper)} of paper)."
                ),
                "comparison",
            )
        elif point.derived.value is not None:
            share = ratio(point.derived.value / paper)
            yield (
                (
                    f"{said}, {si(point.derived.value, 'FLOP')} derived from its kernels ({share} "
                    "of paper)."
                ),
                "comparison",
            )
        elif point.loose.flops is not None:
            names = ", ".join(point.loose.names)
            yield (
                f"{said}; kernels of no layer show {si(point.loose.flops, 'FLOP')} of {names}.",
                "comparison",
            )
        else:
            why = (point.counted.reason or "no counters at this batch size").partition(";")[
                0
            ]  # the rest is in the table
            yield f"{said}; nothing was counted: {why}.", "comparison"
    flat = [point.loose.flops for point in found if point.loose.flops is not None]
    if len(flat) > 1 and len(set(flat)) == 1 and found[0].batch != found[-1].batch:
        yield (
            (
                f"What was counted is the same at batch {found[0].batch} to {found[-1].batch}: "
                f"{flat[0]:,.0f} FLOP. The sweep changed nothing in it."
            ),
            "verdicts",
        )


def _time_findings(study: FlopsStudy, points: Points) -> Iterator[tuple[str, str]]:
    _, found = points[0]
    mine = next((point for point in found if point.batch == study.batch), None) or (
        found[-1] if found else None
    )
    if mine is not None and (said := tables.clock_of(mine.forward)):
        factor = f" (x {ratio(mine.forward.factor)})" if mine.forward.factor else ""
        yield f"{study.layer} forward at batch {mine.batch} takes {said}{factor}.", "time"
    if (scatter := scatter_of(points)) >= SCATTERS:
        yield (
            (
                f"Times scatter by x {ratio(scatter)} within one run: other work ran here. Repeat "
                "them on an idle machine."
            ),
            "time",
        )
    timed = [
        (point, point.forward.synchronised)
        for point in found
        if point.forward.synchronised is not None
    ]
    if len(timed) > 1 and scatter < SCATTERS:
        (first, before), (last, after) = timed[0], timed[-1]
        yield (
            (
                f"From batch {first.batch} to {last.batch} the work of {study.layer} grows x "
                f"{ratio(last.batch / first.batch)}, its time x "
                f"{ratio(after.median / before.median)}."
            ),
            "time",
        )
    tools = dict.fromkeys(tool for point in found for tool, _ in point.host)
    same = [[ns for point in found for name, ns in point.host if name == tool] for tool in tools]
    host = max(same, key=len, default=[])
    if len(host) > 1:
        yield (
            (
                f"By the host's clock {study.layer} takes {time(min(host))} to {time(max(host))} "
                "at every batch: it saw the launch."
            ),
            "time",
        )
    yield from _more_in_less(study, points)


def _more_in_less(study: FlopsStudy, points: Points) -> Iterator[tuple[str, str]]:
    """That the layer took less time by the host's clock in the network where it has more work; the
    verdict says more."""
    judged = any(item.rule == MORE_IN_LESS for one in study.networks for item in of_sweep(one))
    timed = [
        (point.batch, tool, point.paper.value / 2, ns)
        for _, found in points
        for point in found
        if point.paper.value
        for tool, ns in point.host
    ]
    for less, more in permutations(timed, 2) if judged else ():
        if less[:2] == more[:2] and less[2] < more[2] and less[3] > more[3]:
            took = [f"{one[3] / 1e6:g} ms for {si(one[2])} multiply-adds" for one in (more, less)]
            yield (
                f"{study.layer} took {took[0]}, but {took[1]}: such times cannot be compared.",
                "verdicts",
            )
            return


def _device_findings(study: FlopsStudy) -> Iterator[tuple[str, str]]:
    devices = [
        device
        for one in study.networks
        for run in one.runs
        for device in run.devices
        if device.kind == "gpu"
    ]
    sizes = sorted({device.memory_bytes for device in devices if device.memory_bytes})
    if len(sizes) > 1:
        said = " and ".join(f"{one / 2**20:,.0f} MiB" for one in sizes)
        yield f"The runs used GPUs of {said}: their times must not be compared.", "machine"


def _shape_findings(study: FlopsStudy, points: Points) -> Iterator[tuple[str, str]]:
    for (first, before), (second, after) in pairwise(points):
        a = next((point for point in before if point.batch == study.batch), None)
        b = next((point for point in after if point.batch == study.batch), None)
        if a is None or b is None or not a.paper.value or not b.paper.value:
            continue
        held = [one.network_sheet(study.batch).total.parameters for one in (first, second)]
        more = ratio(b.paper.value / a.paper.value)
        text = (
            f"{second.label}: {held[1]:,} parameters instead of {held[0]:,}; {study.layer} does x "
            f"{more} FLOPs"
        )
        if a.forward.synchronised and b.forward.synchronised and scatter_of(points) < SCATTERS:
            text += (
                f" in x {ratio(b.forward.synchronised.median / a.forward.synchronised.median)} time"
            )
        yield f"{text}.", "network"


def _training_findings(training: Sequence[tuple[Network, Run]]) -> Iterator[tuple[str, str]]:
    for one, run in training:
        tests = [
            step for step in run.report.steps if step.phase == "test" and step.accuracy is not None
        ]
        if tests:
            last = tests[-1]
            data = (
                "drawn digits"
                if run.report.environment.get("option:data") == "synthetic"
                else "the test data"
            )
            of = f"{one.label}: " if len(training) > 1 else ""
            loss = f", loss {last.loss:.4f}" if last.loss is not None else ""
            ended = epochs(run)
            after = f" after {ended} epoch{'' if ended == 1 else 's'}" if ended is not None else ""
            yield (
                f"{of}Accuracy {(last.accuracy or 0) * 100:.2f} %{loss} on {data}{after}.",
                "training",
            )


def _memory_findings(study: FlopsStudy) -> Iterator[tuple[str, str]]:
    one = study.networks[0]
    run = remembered(one, study.batch)
    found = {(item.moment, item.quantity): item.bytes for item in run.report.memory} if run else {}
    for quantity, what in (
        ("reserved", "GPU memory reserved"),
        ("host_resident", "CPU memory of the process"),
    ):
        before, after = found.get(("before", quantity)), found.get(("after", quantity))
        if before is not None and after is not None:
            yield f"{what}: {size(before)} after loading, {size(after)} at the end.", "memory"
            return
