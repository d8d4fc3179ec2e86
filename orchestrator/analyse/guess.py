"""Which layer launched a kernel, guessed: for reports without any range, of a network whose layers are known.

Kernels that multiply matrices come in the order of the network's layers, step after step. The guess is the
alignment of the two sequences, by a best path (Viterbi) over the layers of a step, that agrees best with what kernel
names say (family, direction) and with how many outputs their tiles cover. What does not agree well is not guessed at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.analyse.algorithms import Algorithm, recognise
from perfctl.orchestrator.analyse.guess_fit import GRADIENTS, LayerItem, fits, items_of
from perfctl.orchestrator.analyse.guess_path import viterbi
from perfctl.parsers.paper import LayerCall
from perfctl.parsers.records import Gap, Kernel

HEAVY = frozenset({"conv", "winograd", "fft", "depthwise", "gemm", "rnn", "attention"})
"""Families whose kernels are aligned; all others belong to no layer by guess."""
ENOUGH = 0.9
"""Of the aligned kernels that must fit, and of a step's layers that must be found in every whole step."""
LONGEST = 60_000_000
"""Kernels x layers of one alignment: 10 s and 300 MB."""


@dataclass(frozen=True, slots=True)
class Guess:
    """The kernels with guessed layers and steps, or as they were."""

    kernels: tuple[Kernel, ...]
    guessed: int
    """Launches that got a layer; 0 when no guess was made."""
    steps: int
    """Whole steps that were found."""
    gaps: tuple[Gap, ...]
    """What was guessed, or why not."""


def guess(kernels: Iterable[Kernel], calls: Sequence[LayerCall]) -> Guess:
    """Layers, directions and steps of launches by order and shape; ``calls`` are pen and paper of one step.

    Nothing is guessed where any launch has a layer already, and where the kernels do not fit the network.
    """
    given = tuple(kernels)
    if any(kernel.layer is not None for kernel in given):
        return _none(given, "some launches have layers that were seen, and guesses are never mixed with these")
    order = sorted(range(len(given)), key=lambda index: (given[index].start_ns or 0, given[index].launch))
    known = {name: recognise(name) for name in {kernel.name for kernel in given}}
    main = [index for index in order if _is_main(known[given[index].name])]
    orders = [items_of(calls, first) for first in GRADIENTS]
    if not main or not orders[0]:
        lacking = "no layer that multiplies" if main else "no kernel of a known family that multiplies"
        return _none(given, f"there is {lacking}")
    if len(main) * len(orders[0]) > LONGEST:
        return _none(given, f"{len(main)} launches on {len(orders[0])} layers are too many to align")
    launches = [given[index] for index in main]
    scored = [viterbi(fits(launches, items, known)) for items in orders]
    best = max(range(len(orders)), key=lambda number: scored[number][0])
    items, (_, path) = orders[best], scored[best]
    steps = _steps(path)
    if reason := _doubt(path, steps, len(items)):
        return _none(given, reason)
    told = scored[0][0] != scored[1][0]
    return _guessed(given, order, dict(zip(main, zip(path, steps, strict=True), strict=True)), items, known, told)


def _none(kernels: tuple[Kernel, ...], reason: str) -> Guess:
    return Guess(kernels, 0, 0, (Gap("kernel.layer", "not_available", f"no layers were guessed: {reason}"),))


def _is_main(algorithm: Algorithm) -> bool:
    return algorithm.family in HEAVY and algorithm.role == "main"


def _steps(path: Sequence[int | None]) -> list[int]:
    """Number of the step that each launch is in: a new one begins where the path goes back to an earlier item."""
    number, before, found = 0, -1, []
    for item in path:
        if item is not None:
            number += item < before
            before = item
        found.append(number)
    return found


def _doubt(path: Sequence[int | None], steps: Sequence[int], count: int) -> str | None:
    """Why the alignment is not to be believed; None when it is."""
    placed = sum(item is not None for item in path)
    if placed < ENOUGH * len(path):
        return f"only {placed} of {len(path)} kernels that multiply fit the network's layers in order and shape"
    held: defaultdict[int, set[int]] = defaultdict(set)
    for item, step in zip(path, steps, strict=True):
        if item is not None:
            held[step].add(item)
    whole = sorted(held)[1:-1] or sorted(held)  # the first and the last may have been cut off
    poor = [step for step in whole if len(held[step]) < ENOUGH * count]
    if poor:
        least = min(len(held[step]) for step in poor)
        return f"{len(poor)} of {len(whole)} steps miss layers: {least} of {count} were found in one"
    return None


def _guessed(
    given: tuple[Kernel, ...],
    order: Sequence[int],
    placed: dict[int, tuple[int | None, int]],
    items: Sequence[LayerItem],
    known: dict[str, Algorithm],
    told: bool,
) -> Guess:
    found = list(given)
    steps = {step for _, step in placed.values()}
    whole = _whole_steps(placed.values(), len(items))
    numbers = {step: number for number, step in enumerate(sorted(whole))}
    homes = _with_helpers(given, order, placed, known)
    for index, (item, step) in homes.items():
        place = items[item] if item is not None else None
        direction = place.direction if place else None
        if not told and direction in GRADIENTS:  # names and shapes say nothing about which of the two it is
            direction = "backward"
        found[index] = found[index]._replace(
            layer=place.layer if place else None,
            direction=direction,
            step=numbers.get(step),
            layer_source="guessed" if place else None,
        )
    guessed = sum(kernel.layer is not None for kernel in found)
    cut = f" ({len(steps) - len(whole)} cut-off ones are in no figure per step)" if len(steps) > len(whole) else ""
    reason = (
        f"the layers of {guessed} of {len(found)} launches, and {len(whole)} steps{cut}, were guessed by order and shape"
        " against the network's layers; no range was seen"
    )
    return Guess(tuple(found), guessed, len(whole), (Gap("kernel.layer", "ambiguous", reason),))


def _whole_steps(placed: Iterable[tuple[int | None, int]], count: int) -> set[int]:
    held: defaultdict[int, set[int]] = defaultdict(set)
    for item, step in placed:
        if item is not None:
            held[step].add(item)
    return {step for step, items in held.items() if len(items) >= ENOUGH * count}


def _with_helpers(
    given: Sequence[Kernel],
    order: Sequence[int],
    placed: dict[int, tuple[int | None, int]],
    known: dict[str, Algorithm],
) -> dict[int, tuple[int | None, int]]:
    """All launches with their item and step: transforms and reductions go with the kernel that they serve."""
    before: list[tuple[int | None, int]] = []
    last: tuple[int | None, int] = (None, -1)
    for index in order:
        last = placed.get(index, last)
        before.append(last)
    found: dict[int, tuple[int | None, int]] = {}
    following: tuple[int | None, int] = (None, -1)
    for index, previous in zip(reversed(order), reversed(before), strict=True):
        if index in placed:
            found[index] = following = placed[index]
            continue
        algorithm = known[given[index].name]
        step = previous[1] if previous[1] >= 0 else following[1]
        found[index] = (None, step)
        if algorithm.family in HEAVY and algorithm.role in ("reduction", "epilogue"):
            found[index] = previous
        elif algorithm.family in HEAVY and algorithm.role in ("transform", "offsets"):
            found[index] = previous if "output" in given[index].name.lower() else following
    return found
