"""Which blocks can run, and how often loops turn, where the code and the known arguments decide it.

Constants are propagated along the edges that can be taken (Wegman and Zadeck, 1991). A loop's turns are found by carrying
out those of its instructions that its exit depends on, turn by turn, and all at once where each turn adds the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfctl.orchestrator.analyse.derived.code import values
from perfctl.orchestrator.analyse.derived.code.graph import END, Flow, Loop, natural_loops, order
from perfctl.orchestrator.analyse.derived.code.values import Constants, State
from perfctl.records.sass import Instruction

_MASK = 0xFFFFFFFF
_WATCHED = 40
"""Turns after which registers that grew by the same each time are taken to go on so; the exit is then checked."""
_MOST_STEPS = 100_000
"""Instructions that are carried out for one loop, turn by turn."""


@dataclass(slots=True)
class Reached:
    """What is known of a function's blocks."""

    states: dict[int, State]
    """Block -> what is known at its start; blocks that cannot run are missing."""
    edges: dict[int, tuple[int, ...]]
    """Block -> where it can go on."""


@dataclass(frozen=True, slots=True)
class Turns:
    """How often a loop turns each time that it is entered, and what is known when it is left."""

    number: int
    left: State


def all_turns(flow: Flow, constants: Constants) -> tuple[Reached, list[Loop], set[tuple[int, int]], dict[int, int]]:
    """(values and edges; loops; edges into the middle of loops; header -> turns of the loops for which they are known).

    What a loop leaves in its registers decides the turns of later loops, and which code runs after it.
    """
    known: dict[int, Turns] = {}
    while True:
        reached = propagate(flow, constants, known, [])
        loops, odd = natural_loops(flow.entry, reached.edges)
        reached = propagate(flow, constants, known, loops)
        loops, odd = natural_loops(flow.entry, reached.edges)
        more = {}
        for loop in sorted(loops, key=lambda one: len(one.members)):
            inner = [one for one in loops if one.header != loop.header and one.header in loop.members]
            if not odd and loop.header not in known and (found := turns(flow, loop, inner, reached, constants)):
                more[loop.header] = found
        if not more:
            return reached, loops, odd, {header: one.number for header, one in known.items()}
        known |= more


def propagate(flow: Flow, constants: Constants, known: Mapping[int, Turns], loops: Sequence[Loop]) -> Reached:
    """Values at the start of each block, and the edges that can be taken. ``known``: of these loops, by header."""
    leaving = [(one, known[one.header].left) for one in loops if one.header in known]
    place = {
        block: at for at, block in enumerate(order(flow.entry, {one: flow.successors(one) for one in flow.blocks}))
    }
    states: dict[int, State] = {flow.entry: {}}
    edges: dict[int, set[int]] = {}
    waiting = {flow.entry}
    while waiting:
        block = min(waiting, key=place.__getitem__)
        waiting.discard(block)
        state = dict(states[block])
        for one in flow.blocks[block]:
            values.run(one, state, constants)
        for target in _ways(flow, block, state):
            new = target not in edges.setdefault(block, set())
            edges[block].add(target)
            if target == END:
                continue
            there = dict(state)
            for loop, left in leaving:
                if block in loop.members and target not in loop.members:
                    there.update(left)
            before = states.get(target)
            met = there if before is None else values.meet(before, there)
            if new or met != before:
                states[target] = met
                waiting.add(target)
    ordered = {block: tuple(one for one in flow.successors(block) if one in ways) for block, ways in edges.items()}
    return Reached(states, ordered)


def _ways(flow: Flow, block: int, state: State) -> tuple[int, ...]:
    """Where a block can go on, with what is known at its end."""
    branch = flow.branches[block]
    if branch.open or branch.other is None:
        return flow.successors(block)
    holds = values.holds(branch.condition, state)
    if holds is None:
        return flow.successors(block)
    return branch.taken if holds else (branch.other,)


def turns(flow: Flow, loop: Loop, inner: Sequence[Loop], reached: Reached, constants: Constants) -> Turns | None:
    """How often the loop's header runs each time that the loop is entered; None where that is not known."""
    start: State | None = None
    for block, targets in reached.edges.items():
        if loop.header in targets and block not in loop.members:
            state = dict(reached.states[block])
            for one in flow.blocks[block]:
                values.run(one, state, constants)
            start = state if start is None else values.meet(start, state)
    return _Body(flow, loop, inner, reached, constants).count(start or {})


class _Body:
    """One loop, reduced to the instructions that its branches depend on."""

    def __init__(self, flow: Flow, loop: Loop, inner: Sequence[Loop], reached: Reached, constants: Constants) -> None:
        self._flow, self._loop, self._constants = flow, loop, constants
        self._inside = {block: one for one in inner for block in one.members}
        whole = order(flow.entry, reached.edges)
        self._order = [block for block in whole if block in loop.members]
        self._code, self._needed = self._slice()

    def _slice(self) -> tuple[dict[int, list[Instruction]], set[str]]:
        """(block -> the instructions that decide its branches; the registers they use)."""
        needed = {word.lstrip("!") for block in self._order for word in self._flow.branches[block].condition}
        code = [(block, one) for block in self._order for one in self._flow.blocks[block]]
        kept: set[int] = set()
        while True:
            more = [
                (at, one) for at, (_, one) in enumerate(code)
                if at not in kept and (one.base == "CALL" or needed.intersection(values.written(one)))
            ]  # fmt: skip
            if not more:
                break
            for at, one in more:
                kept.add(at)
                needed.update(_words(one))
        found: dict[int, list[Instruction]] = {block: [] for block in self._order}
        for at in sorted(kept):
            found[code[at][0]].append(code[at][1])
        return found, needed

    def count(self, start: State) -> Turns | None:
        state = {name: number for name, number in start.items() if name in self._needed}
        history = [state]
        steps = sum(map(len, self._code.values())) + 1
        for turn in range(1, max(_WATCHED, _MOST_STEPS // steps) + 1):
            again, left = self._turn(state)
            if again is None or left is not None:
                return None if again is not None or left is None else Turns(turn, left)
            if again == state:  # what ends the loop is not in the registers that are known
                return None
            state = again
            if turn <= _WATCHED:
                history.append(state)
            if turn == _WATCHED and (found := self._leap(history)) is not None:
                return found
        return None

    def _turn(self, state: State, gaps: list[int] | None = None) -> tuple[State | None, State | None]:
        """What is known when the next turn begins, and where the loop is left; None for what cannot happen.

        gaps: gets the difference of the two numbers of each comparison.
        """
        states: dict[int, State] = {self._loop.header: state}
        again: State | None = None
        left: State | None = None
        for block in self._order:
            if block not in states:
                continue
            here = dict(states[block])
            skipped = block in self._inside
            for one in self._code[block]:
                if not skipped:
                    if gaps is not None and one.base in ("ISETP", "UISETP"):
                        a, b = (values.value(word, here, self._constants) or 0 for word in one.operands[2:4])
                        gaps.append(a - b & _MASK)
                    values.run(one, here, self._constants)
                else:  # turns of an inner loop are not carried out: what it writes is not known
                    for register in values.written(one):
                        here.pop(register, None)
            for target in _ways(self._flow, block, here):
                if target == self._loop.header:
                    again = here if again is None else values.meet(again, here)
                elif target not in self._loop.members:
                    left = here if left is None else values.meet(left, here)
                else:
                    states[target] = here if target not in states else values.meet(states[target], here)
        return again, left

    def _leap(self, history: Sequence[State]) -> Turns | None:
        """Turns, if every register grows by the same number each turn until the exit."""
        base, steps = history[1], {}
        for name in base:
            moves = {(after.get(name, 0) - before.get(name, 0)) & _MASK for before, after in pairwise(history[1:])}
            if len(moves) != 1:
                return None
            steps[name] = moves.pop()

        def state(number: int) -> State:
            return {name: (base[name] + (number - 2) * step) & _MASK for name, step in steps.items()}

        for number in (
            *self._equal(state(len(history)), state(len(history) + 1), len(history)),
            self._first(state, len(history)),
        ):
            if number is not None:
                again, left = self._turn(state(number))
                before, early = self._turn(state(number - 1))
                if again is None and left is not None and before is not None and early is None:
                    return Turns(number, left)
        return None

    def _equal(self, now: State, after: State, number: int) -> list[int]:
        """Turns in which a comparison finds two numbers equal, soonest first: a loop that ends when i != n fails."""
        first: list[int] = []
        second: list[int] = []
        self._turn(now, first)
        self._turn(after, second)
        found = []
        for gap, later in zip(first, second, strict=False):
            step = later - gap & _MASK
            if step and step >> 31:
                gap, step = -gap & _MASK, -step & _MASK
            if step and (-gap & _MASK) % step == 0:
                found.append(number + (-gap & _MASK) // step)
        return sorted(found)

    def _first(self, state: Callable[[int], State], low: int) -> int | None:
        """The first turn that ends a loop which goes on for small numbers and not for large ones."""
        high = low * 2
        while self._turn(state(high))[0] is not None:
            low, high = high, high * 2
            if high > _MASK:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._turn(state(middle))[0] is None else (middle, high)
        return high


def _words(one: Instruction) -> Iterable[str]:
    """Registers that an instruction reads or writes by name, and its predicate."""
    for word in (one.predicate, *one.operands):
        name = word.lstrip("!-~|").removesuffix(".reuse").rstrip("|")
        if name:
            yield name


def constant_bank(arch: int, block: Sequence[int], grid: Sequence[int], arguments: Mapping[int, int]) -> dict[int, int]:
    """What the driver puts in constant bank 0 for a launch: block and grid, and arguments by their byte offset."""
    blocks, grids = (0x360, 0x370) if arch >= 100 else (0x0, 0xC)
    found = {blocks + 4 * place: size for place, size in enumerate(block)}
    found |= {grids + 4 * place: size for place, size in enumerate(grid)}
    return found | dict(arguments)
