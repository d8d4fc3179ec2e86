"""How often a thread executes each kind of instruction: bounds over all paths through the code, and the whole launch.

Every path from the kernel's first instruction to an EXIT is taken into account, loops closed up with their turns. Three
figures: ``low``, the path with the fewest; ``whole``, the path with the most, which is what tiles that lie wholly inside
the data take; ``high``, which is open (None) where a loop's turns are not known. ``whole`` has one turn of such a loop.
1 multiply-add = 2 FLOPs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, prod

from perfctl.orchestrator.analyse.derived.code.records import (
    Bound,
    CodeCounts,
    CodeFunction,
    CodeLoop,
    Counted,
    units,
)

_END = -1
_MOST_CALLS = 32
"""Functions inside one another."""


_Cost = dict[str, tuple[float, float, float]]
_NONE = (0.0, 0.0, 0.0)


def count(
    code: CodeCounts, turns: Mapping[str, int]
) -> tuple[dict[str, Bound], dict[str, tuple[tuple[str, float], ...]]]:
    """(kind -> instructions of one thread or warp on its way through the kernel; loop -> those of one turn).

    turns: loop -> turns that the user states; they override those of the code.
    """
    work = _Work(code, turns)
    total = work.function(code.functions[0].entry, 0)
    bounds = {name: Bound(low, whole, None if high == inf else high) for name, (low, whole, high) in total.items()}
    return bounds, work.each_turn


class _Work:
    def __init__(self, code: CodeCounts, turns: Mapping[str, int]) -> None:
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
        self._work.each_turn[loop.name] = tuple((name, cost[1]) for name, cost in again.items() if cost[1])
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
        cost: _Cost = {name: (low, high, high) for name, low, high in one.counts}
        for entry, always in one.calls:
            inside = self._work.function(entry, self._depth + 1)
            cost = _add(cost, inside if always else {name: (0.0, *more[1:]) for name, more in inside.items()})
        return [(target, cost) for target in one.next or (_END,)]


def _add(a: _Cost, b: _Cost) -> _Cost:
    if not a or not b:
        return a or b
    found = dict(a)
    for name, (low, whole, high) in b.items():
        mine = found.get(name, _NONE)
        found[name] = (mine[0] + low, mine[1] + whole, mine[2] + high)
    return found


def _join(costs: Sequence[_Cost]) -> _Cost:
    """Of paths of which one is taken."""
    if len(costs) == 1:
        return costs[0]
    names = dict.fromkeys(name for cost in costs for name in cost)
    found = {}
    for name in names:
        each = [cost.get(name, _NONE) for cost in costs]
        found[name] = (min(one[0] for one in each), max(one[1] for one in each), max(one[2] for one in each))
    return found


def _times(again: _Cost, turns: tuple[float, float, float]) -> _Cost:
    """Of all turns but the last, which leaves the loop."""
    return {
        name: (
            low * (turns[0] - 1),
            whole * (turns[1] - 1),
            0.0 if not high or turns[2] == 1 else high * (turns[2] - 1),
        )
        for name, (low, whole, high) in again.items()
    }


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
    return Bound(bound.low * by, bound.whole * by, None if bound.high is None else bound.high * by)


def flops(counted: Sequence[Counted]) -> tuple[Bound | None, tuple[str, ...]]:
    """(FLOPs of the launch; kinds whose FLOPs are not known, which are not in it). None without a grid and block."""
    unknown = tuple(one.kind.name for one in counted if one.kind.flops is None)
    total = Bound(0, 0, 0)
    for one in counted:
        if one.launch is None:
            return None, unknown
        if one.kind.flops:
            more = scaled(one.launch, one.kind.flops)
            high = None if total.high is None or more.high is None else total.high + more.high
            total = Bound(total.low + more.low, total.whole + more.whole, high)
    return replace(total, high=None) if unknown else total, unknown


def rows(counted: Sequence[Counted], source: str) -> list[tuple[str, float, str, None]]:
    """(instruction, value, rule, verified error) of a launch, as the table ``derived_count`` holds them.

    The rule says where a value is a lower bound. No counter has verified these counts, hence None.
    """
    found: list[tuple[str, float, str, None]] = []
    for one in counted:
        if one.launch is None or not one.kind.flops:
            continue
        doubt = ", at least: a loop's turns are not known" if one.launch.at_least else ""
        if not one.launch.exact and not doubt:
            doubt = f", between {one.launch.low:,.0f} and {one.launch.whole:,.0f}"
        rule = f"read from code: {one.each.whole:,.0f} per {one.kind.per} x {one.launch.whole / one.each.whole:,.0f}{doubt} ({source})"
        found.append((one.kind.name, one.launch.whole, rule, None))
    return found
