"""A prediction for the terminal: what was predicted, from what, how sure, what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from perfctl.orchestrator.analyse.question import Answer, AnswerPoint
from perfctl.orchestrator.analyse.training import Room, Training
from perfctl.orchestrator.report.amounts import digits, duration, gigabytes, short, with_range
from perfctl.orchestrator.report.predict_tables import ON_TOP, batches, costs, exactly, explained, frontier
from perfctl.orchestrator.report.prices_text import text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from perfctl.orchestrator.analyse.cost_frontier import Frontier

WAYS = {
    "measured": "measured here on this device",
    "fitted": "fitted to your own runs on this device",
    "transferred": "fitted to runs on another device, and moved by peaks and bandwidth",
    "roofline": "the roofline alone",
}


def terminal(found: Answer, best: Frontier | None, explain: bool) -> Iterator[RenderableType]:
    """Everything, part by part."""
    yield text(_heading(found))
    first = found.points[0]
    room = first.training.room
    lacks = room is not None and room.fits is False
    if len(found.points) == 1:
        yield _facts(_one(found, first))
    else:
        yield _facts(_all_grounds(found))
        yield batches(found)
    yield _facts(_about(found, first))
    if len(found.points) == 1 and first.training.rentals and not lacks:
        yield from costs(found, first.training)
    if explain:
        yield from explained(first)
    if best is not None:
        yield from frontier(found, best)


def _heading(found: Answer) -> str:
    question, subject = found.question, found.subject
    batch = ", ".join(str(size) for size in question.batches)
    how = f"training with {subject.optimizer}" if subject.training else "inference"
    where = f"{question.gpus} x {found.device.machine.name}" if question.gpus > 1 else found.device.machine.name
    return f"{subject.model}, {how}, batch {batch}, {question.precision}, on {where}"


def _one(found: Answer, point: AnswerPoint) -> list[tuple[str, str]]:
    job, training = found.question, point.training
    lacks = training.room is not None and training.room.fits is False
    rows = [("memory", _memory(training.room, ON_TOP[found.device.machine.kind]))] if lacks else []
    rows += [
        ("step", duration(training.step) + (", if it fitted" if lacks else "")),
        ("", with_range(training.samples_per_second, "samples/s")),
    ]
    if training.epoch is not None and training.steps is not None:
        name = "epoch" if found.subject.training else "all samples"
        rows.append((name, f"{duration(training.epoch)}: {training.steps:,} steps"))
    if training.whole is not None:
        rows.append(
            ("training" if found.subject.training else "all", f"{duration(training.whole)}: {job.epochs} epochs")
        )
    if not lacks:
        rows.append(("memory", _memory(training.room, ON_TOP[found.device.machine.kind])))
    rows += _parallel(training)
    return rows + _grounds(point)


def _memory(room: Room | None, on_top: str) -> str:
    """Whether it fits, by how much it does not, and the largest batch that does."""
    if room is None:
        return "not known"
    needed = f"{gigabytes(room.needed)} of tensors"
    if room.limit is None:
        return f"{needed}; how much the device has is not known"
    if not room.fits:
        largest = f"the largest batch that fits is {room.largest:,}" if room.largest else "not even one sample fits"
        return f"{needed}: does not fit in {gigabytes(room.limit)}, {gigabytes(room.lacking)} are missing; {largest}"
    most = f"; largest batch {room.largest:,}" if room.largest is not None else ""
    close = ", but little is left" if room.close else ""
    return f"{needed} of {gigabytes(room.limit)}: fits{close}{most} ({on_top})"


def _parallel(training: Training) -> list[tuple[str, str]]:
    found = training.parallel
    if found is None:
        return []
    said = f"efficiency {found.efficiency:.1%} of {found.gpus} GPUs"
    if found.communication is None:
        return [("in parallel", f"{said}, as said; {gigabytes(found.moved_bytes)} of gradients a step and GPU")]
    return [
        (
            "in parallel",
            f"{said}: {gigabytes(found.moved_bytes)} of gradients a step and GPU over {digits(found.link_gbs or 0)} GB/s"
            f" ({found.link}), {short(exactly(found.communication))}, of which {short(exactly(found.exposed or 0))} not hidden"
            f" (--overlap {found.overlap:g})",
        )
    ]


def _grounds(point: AnswerPoint) -> list[tuple[str, str]]:
    step = point.step
    covered = ""
    if step.coverage is not None:
        beyond = ", which this one goes beyond" if step.outside else ""
        covered = f"; the range is what covers {step.coverage:.0%} of held-out steps like those learned from{beyond}"
    rows = [("rests on", f"{WAYS[step.way]}: {step.source}{covered}")]
    rows += [("no better" if not place else "", why) for place, why in enumerate(filter(None, step.why_not))]
    rows += [("beyond data" if not place else "", said) for place, said in enumerate(step.outside)]
    return rows


def _all_grounds(found: Answer) -> list[tuple[str, str]]:
    """What each batch size rests on: said once for those that rest on the same."""
    same: dict[tuple[tuple[str, str], ...], list[AnswerPoint]] = {}
    for point in found.points:
        # Why a measurement is missing names its batch size; the ways and what lies beyond their data decide.
        same.setdefault(((point.step.way, point.step.source), *((said, "") for said in point.step.outside)), []).append(
            point
        )
    rows = []
    for points in same.values():
        batches = ", ".join(f"{point.training.job.batch:,}" for point in points)
        grounds = _grounds(points[0])
        rows += [(grounds[0][0], f"batch {batches}: {grounds[0][1]}" if len(same) > 1 else grounds[0][1]), *grounds[1:]]
    return rows


def _about(found: Answer, point: AnswerPoint) -> list[tuple[str, str]]:
    rows = [("device", f"{found.device.source}; roofline {short(exactly(point.step.floor))} a step")]
    return rows + [("note" if not place else "", note) for place, note in enumerate(found.notes)]


def _facts(rows: Sequence[tuple[str, str]]) -> Table:
    from rich.table import Table

    grid = Table(box=None, show_header=False, pad_edge=False)
    grid.add_column(style="dim", no_wrap=True, min_width=11)
    grid.add_column(overflow="fold")
    for name, said in rows:
        grid.add_row(text(name), text(said))
    return grid
