"""How often a thread executes each kind of instruction: bounds over all paths through the code, and the whole launch.

Every path from the kernel's first instruction to an EXIT is taken into account, loops closed up with their turns. Four
figures: ``low``, the path with the fewest; ``least``, the path with the fewest of those that have any; ``whole``, the path
with the most, which is what tiles that lie wholly inside the data take; ``high``, which is open (None) where a loop's turns
are not known. ``whole`` has one turn of such a loop. FLOPs are counted along the same paths, for a block at once, so that
arms of which one is taken are not added up. 1 multiply-add = 2 FLOPs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, prod

from perfctl.orchestrator.analyse.derived.code.records import (
    Block,
    Bound,
    CodeCounts,
    CodeFunction,
    CodeLoop,
    Counted,
    units,
)
from perfctl.orchestrator.analyse.derived.records import TENSOR_FLOP
from perfctl.records.report import CODE

_END = -1
_MOST_CALLS = 32
"""Functions inside one another."""


_Figures = tuple[float, float, float, float]
"""low, least (infinite where there is no path with any), whole, high."""
_Cost = dict[str, _Figures]
_NONE: _Figures = (0.0, inf, 0.0, 0.0)
_FLOPS = ""
"""In the place of a kind: FLOPs of a block."""


def count(
    code: CodeCounts, turns: Mapping[str, int], threads: int | None = None
) -> tuple[dict[str, Bound], Bound | None, dict[str, tuple[tuple[str, float], ...]]]:
    """(kind -> instructions of one thread or warp on its way through the kernel; FLOPs of a block; loop -> those of one turn).

    turns: loop -> turns that the user states; they override those of the code. threads: of a block; None where not known.
    """
    work = _Work(code, turns, threads)
    bounds = {name: _bound(figures) for name, figures in work.function(code.functions[0].entry, 0).items()}
    flops = bounds.pop(_FLOPS, Bound(0, 0, 0, 0))
    return bounds, None if threads is None else flops, work.each_turn


def _bound(figures: _Figures) -> Bound:
    low, least, whole, high = figures
    return Bound(low, low if least == inf else least, whole, None if high == inf else high)


class _Work:
    def __init__(self, code: CodeCounts, turns: Mapping[str, int], threads: int | None) -> None:
        self._flops = {one.name: one.flops * units(one.per, threads or 0) for one in code.kinds if one.flops}
        """Kind -> FLOPs of a block, of whose threads, warps, ... each executes one."""
        self._functions = {one.entry: one for one in code.functions}
        self._turns = turns
        self._known: dict[int, _Cost] = {}
        self.each_turn: dict[str, tuple[tuple[str, float], ...]] = {}

    def function(self, entry: int, depth: int) -> _Cost:
        """Cost from a function's entry to its end."""
        if entry not in self._functions or depth > _MOST_CALLS:
            return {}
        if entry not in self._known:
            self._known[entry] = {}  # a function that calls itself is counted once
            self._known[entry] = _Region(self, self._functions[entry], depth).whole()
        return self._known[entry]

    def block(self, one: Block) -> _Cost:
        cost: _Cost = {name: _figures(low, high) for name, low, high in one.counts}
        fewest = sum(low * self._flops.get(name, 0) for name, low, _ in one.counts)
        most = sum(high * self._flops.get(name, 0) for name, _, high in one.counts)
        if most:
            smallest = min(self._flops[name] for name, _, high in one.counts if high and name in self._flops)
            cost[_FLOPS] = (fewest, fewest or smallest, most, most)
        return cost

    def turns(self, loop: CodeLoop) -> tuple[float, float, float]:
        known = self._turns.get(loop.name, loop.turns)
        return (1, 1, inf) if known is None else (known, known, known)


class _Region:
    """Costs of paths through one function, its loops closed up from the inside."""

    def __init__(self, work: _Work, function: CodeFunction, depth: int) -> None:
        self._work, self._depth = work, depth
        self._blocks = {one.address: one for one in function.blocks}
        self._order = [one.address for one in function.blocks]
        self._entry = function.entry
        self._exits: dict[int, dict[int, _Cost]] = {}
        """Header of a loop -> where it can be left to -> cost of the whole loop."""
        self._members = {one.header: frozenset(one.members) for one in function.loops}
        for loop in sorted(function.loops, key=lambda one: len(one.members)):
            self._close(loop)

    def whole(self) -> _Cost:
        _, exits = self._paths(self._entry, frozenset(self._order), None)
        return _join(list(exits.values()))

    def _close(self, loop: CodeLoop) -> None:
        again, exits = self._paths(loop.header, self._members[loop.header], loop.header)
        self._work.each_turn[loop.name] = tuple(
            (name, cost[2]) for name, cost in again.items() if cost[2] and name != _FLOPS
        )
        turns = self._work.turns(loop)
        self._exits[loop.header] = {target: _add(_times(again, turns), cost) for target, cost in exits.items()}

    def _paths(self, start: int, members: frozenset[int], header: int | None) -> tuple[_Cost, dict[int, _Cost]]:
        """(cost from the start back to it; place outside -> cost from the start to there), of one turn."""
        reach: dict[int, list[_Cost]] = {start: [{}]}
        back: list[_Cost] = []
        out: dict[int, list[_Cost]] = {}
        for block in self._order:
            if block not in reach or block not in members:
                continue
            so_far = _join(reach.pop(block))
            for target, cost in self._steps(block, header):
                after = _add(so_far, cost)
                if target == header:
                    back.append(after)
                elif target in members:
                    reach.setdefault(target, []).append(after)
                else:
                    out.setdefault(target, []).append(after)
        return _join(back), {target: _join(costs) for target, costs in out.items()}

    def _steps(self, block: int, header: int | None) -> list[tuple[int, _Cost]]:
        if block in self._exits and block != header:
            return list(self._exits[block].items())
        one = self._blocks[block]
        cost = self._work.block(one)
        for entry, always in one.calls:
            inside = self._work.function(entry, self._depth + 1)
            cost = _add(cost, inside if always else {name: (0.0, *more[1:]) for name, more in inside.items()})
        return [(target, cost) for target in one.next or (_END,)]


def _figures(low: float, high: float) -> _Figures:
    """Of instructions of which ``high - low`` stand under predicates."""
    return low, (low or 1.0) if high else inf, high, high


def _add(a: _Cost, b: _Cost) -> _Cost:
    if not a or not b:
        return a or b
    found = dict(a)
    for name, (low, least, whole, high) in b.items():
        mine = found.get(name, _NONE)
        found[name] = (mine[0] + low, min(mine[1] + low, mine[0] + least), mine[2] + whole, mine[3] + high)
    return found


def _join(costs: Sequence[_Cost]) -> _Cost:
    """Of paths of which one is taken."""
    if len(costs) == 1:
        return costs[0]
    names = dict.fromkeys(name for cost in costs for name in cost)
    found = {}
    for name in names:
        low, least, whole, high = zip(*(cost.get(name, _NONE) for cost in costs), strict=True)
        found[name] = (min(low), min(least), max(whole), max(high))
    return found


def _times(again: _Cost, turns: tuple[float, float, float]) -> _Cost:
    """Of all turns but the last, which leaves the loop."""
    fewest, one, most = (number - 1 for number in turns)
    return {
        name: (
            low * fewest, inf if not most else least + low * max(fewest - 1, 0), whole * one, high * most if high and most else 0.0
        )
        for name, (low, least, whole, high) in again.items()
    }  # fmt: skip


def launch(
    code: CodeCounts, each: Mapping[str, Bound], grid: tuple[int, int, int] | None, block: tuple[int, int, int] | None
) -> tuple[Counted, ...]:
    """Every kind of instruction, for one thread and for the launch; FLOPs first, the most on top."""
    found = []
    for kind in code.kinds:
        bound = each.get(kind.name)
        if bound is None or not (bound.whole or bound.high is None):
            continue
        total = None
        if grid is not None and block is not None:
            total = scaled(bound, prod(grid) * units(kind.per, prod(block)))
        found.append(Counted(kind, bound, total))
    return tuple(
        sorted(found, key=lambda one: (one.kind.flops == 0, -one.each.whole * (one.kind.flops or 1), one.kind.name))
    )


def scaled(bound: Bound, by: float) -> Bound:
    return Bound(bound.low * by, bound.least * by, bound.whole * by, None if bound.high is None else bound.high * by)


def flops(
    of_block: Bound | None, counted: Sequence[Counted], blocks: int | None
) -> tuple[Bound | None, tuple[str, ...]]:
    """(FLOPs of the launch; kinds whose FLOPs are not known, which are not in it). None without a grid and block."""
    unknown = tuple(one.kind.name for one in counted if one.kind.flops is None)
    if of_block is None or blocks is None:
        return None, unknown
    total = scaled(of_block, blocks)
    return replace(total, high=None) if unknown else total, unknown


def rows(counted: Sequence[Counted], source: str) -> list[tuple[str, float, str, None]]:
    """(instruction, value, rule, verified error) of a launch, as the table ``derived_count`` holds them.

    The rule says where a value is a lower bound. No counter has verified these counts, hence None.
    """
    found: list[tuple[str, float, str, None]] = []
    for one in counted:
        total = one.launch
        if total is None or not one.kind.flops:
            continue
        value, doubt = total.stated, ""
        if total.at_least:
            doubt = ", at least: a loop's turns are not known"
        elif not total.exact:
            doubt = f", between {total.low:,.0f} and {total.whole:,.0f}"
        times = total.whole / one.each.whole
        rule = f"{CODE}: {one.each.stated:,.0f} per {one.kind.per} x {times:,.0f}{doubt} ({source})"
        found.append((one.kind.name, value, rule, None))
        if one.kind.path == "tensor":
            found.append((TENSOR_FLOP, value * one.kind.flops, f"{rule} x {one.kind.flops:,} FLOP", None))
    return found
