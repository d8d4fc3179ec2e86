"""Time against cost over every offer of the price table and every batch size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfctl.orchestrator.analyse.boards import Board
from perfctl.orchestrator.analyse.cost import Span
from perfctl.orchestrator.analyse.cost_frontier import Choice, Frontier, frontier
from perfctl.orchestrator.analyse.machines import of_board
from perfctl.orchestrator.analyse.predict_records import StepTime
from perfctl.orchestrator.analyse.prices import Price
from perfctl.orchestrator.analyse.question import Answer
from perfctl.orchestrator.analyse.training import Training, room_of, training
from perfctl.orchestrator.cli.predict_sources import Known
from perfctl.orchestrator.errors import UsageError
from perfctl.prediction import job_on, step_on


def frontier_of(found: Answer, known: Known) -> Frontier:
    """Each offer works with all its GPUs; where it may be one of several boards it is the slowest, and all must fit."""
    if found.question.samples is None:
        raise UsageError("--frontier without --dataset-size", "Say how many samples an epoch has, and --epochs")
    steps: dict[tuple[Board, int], StepTime | None] = {}
    choices: list[Choice] = []
    too_large = unknown = 0
    for price in found.prices.prices:
        for batch in found.question.batches:
            if not all(_fits(found, board, batch) for board in price.boards):
                too_large += 1
                continue
            whole = list(_trainings(found, known, price, batch, steps))
            if not whole or price.on_demand is None:
                unknown += 1
                continue
            choices.append(_choice(price, batch, *max(whole, key=lambda item: item[1].step.value)))
    return Frontier(frontier(choices), len(choices), too_large, unknown)


def _choice(price: Price, batch: int, board: Board, slowest: Training) -> Choice:
    (rental,) = slowest.rentals
    assert slowest.billed is not None and rental.on_demand is not None
    return Choice(price, board.name, batch, slowest.billed, rental.on_demand, rental.spot)


def _fits(found: Answer, board: Board, batch: int) -> bool:
    lines = found.subject.lines
    return lines is None or room_of(lines, batch, of_board(board).memory_bytes).fits is not False


def _trainings(
    found: Answer, known: Known, price: Price, batch: int, steps: dict[tuple[Board, int], StepTime | None]
) -> Iterator[tuple[Board, Training]]:
    question = replace(found.question, gpus=price.count)
    for board in price.boards:
        if (board, batch) not in steps:
            try:
                steps[board, batch] = step_on(of_board(board), question, found.subject, known, batch)
            except UsageError:  # no peak for this precision on this board
                steps[board, batch] = None
        step = steps[board, batch]
        if step is not None:
            job = job_on(board, question, found.subject, batch)
            alone = Span(step.seconds, step.low, step.high)
            yield board, training(alone, job, backward=step.phases.get("backward"), prices=(price,))
