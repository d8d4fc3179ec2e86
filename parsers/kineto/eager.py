"""Layers of the kernels of graphs by sequence, from a trace in which the same step ran without graphs.

An eager run launches about the same kernels in about the same order, each under its module. The kernels of a step, those
between its graphs too, are aligned with a step of the eager run: first by name, grid and block, which are equal where the
shapes are, then what is left by name. It is a guess: nothing says that the two runs did the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from perfctl.parsers.kineto.captures import ALIKE, Explained, aligned, replays_of, time_of
from perfctl.records.report import Kernel
from perfctl.records.serving import EAGER, GraphLaunch

BY_NAME_ALONE = 0.5
"""What a pair counts whose grids differ, a judgement: the kernel is the same, its shapes are not."""
_Key = tuple[object, ...]


class _Step(NamedTuple):
    number: int | None
    kernels: list[Kernel]
    names: Counter[str]


def explain(kernels: list[Kernel], graphs: set[int], eager: Sequence[Kernel], name: str) -> Explained:
    """Give the kernels of ``graphs`` (correlation ids) the layers of the kernels of an eager run, whose file is called ``name``."""
    steps, new, launches = _steps(eager), list(kernels), []
    of_steps: defaultdict[int, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        if kernel.step is not None:
            of_steps[kernel.step].append(kernel)
    matches: dict[int | None, tuple[dict[int, Kernel], float]] = {}
    used = False
    for correlation, mine in replays_of(kernels, graphs):
        step = mine[0].step
        if step is None or step not in matches:
            matches[step] = _match(mine if step is None else of_steps[step], steps)
        pairs, confidence = matches[step]
        found = [(kernel, pairs[kernel.launch]) for kernel in mine if kernel.launch in pairs]
        launch = GraphLaunch(correlation, step, len(mine), time_of(mine))
        if found:
            used = True
            launch = launch._replace(
                capture=f"{name}, without graphs", matched=len(found), matched_ns=time_of([one for one, _ in found]),
                how=EAGER, confidence=confidence,
            )  # fmt: skip
        launches.append(launch)
        for kernel, other in found:
            if other.layer is not None:
                new[kernel.launch] = kernel._replace(
                    layer=other.layer, direction=other.direction, layer_source="guessed"
                )
    return Explained(new, launches, used=(name,) if used else ())


def _steps(eager: Sequence[Kernel]) -> list[_Step]:
    """The kernels of each step in the order of their start; all together where no kernel is of a step."""
    groups: defaultdict[int | None, list[Kernel]] = defaultdict(list)
    for kernel in eager:
        groups[kernel.step].append(kernel)
    if len(groups) > 1:
        groups.pop(None, None)
    return [_Step(number, _ordered(group), Counter(one.name for one in group)) for number, group in groups.items()]


def _ordered(kernels: Sequence[Kernel]) -> list[Kernel]:
    return sorted(kernels, key=lambda kernel: (kernel.start_ns or 0, kernel.launch))


def _match(mine: Sequence[Kernel], steps: Sequence[_Step]) -> tuple[dict[int, Kernel], float]:
    """(launch -> the eager run's kernel, confidence) by the step with the most namesakes; nothing where it is not alike."""
    mine, names = _ordered(mine), Counter(kernel.name for kernel in mine)
    best = max(steps, key=lambda step: _share(names, step.names), default=None)
    if best is None or _share(names, best.names) < ALIKE:
        return {}, 0
    others = best.kernels
    pairs = dict(aligned([_key(one) for one in mine], [_key(one) for one in others]))
    exact = len(pairs)
    taken = set(pairs.values())
    left = [at for at in range(len(mine)) if at not in pairs]
    free = [at for at in range(len(others)) if at not in taken]
    for one, other in aligned([mine[at].name for at in left], [others[at].name for at in free]):
        pairs[left[one]] = free[other]
    confidence = (exact + BY_NAME_ALONE * (len(pairs) - exact)) / max(len(mine), len(others))
    return {mine[one].launch: others[other] for one, other in pairs.items()}, confidence


def _share(left: Counter[str], right: Counter[str]) -> float:
    return (left & right).total() / max(left.total(), right.total(), 1)


def _key(kernel: Kernel) -> _Key:
    grid = kernel.grid_x, kernel.grid_y, kernel.grid_z
    return kernel.name, *grid, kernel.block_x, kernel.block_y, kernel.block_z
