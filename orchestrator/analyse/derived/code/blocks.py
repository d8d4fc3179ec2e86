"""A kernel's machine code as blocks with counts in place of instructions, and loops with the turns that the code says."""

from __future__ import annotations

from collections.abc import Sequence

from perfctl.orchestrator.analyse.derived.code import turns as loop_turns
from perfctl.orchestrator.analyse.derived.code import values
from perfctl.orchestrator.analyse.derived.code.graph import (
    Flow,
    calls_register,
    flows,
    is_call,
    loop_names,
    natural_loops,
    order,
    parent_of,
)
from perfctl.orchestrator.analyse.derived.code.instructions import kind_of
from perfctl.orchestrator.analyse.derived.code.records import Block, CodeCounts, CodeFunction, CodeLoop, Kind
from perfctl.orchestrator.analyse.derived.code.values import Constants, State
from perfctl.records.sass import Instruction


def summarise(instructions: Sequence[Instruction], constants: Constants) -> CodeCounts:
    """The control flow of one kernel with counts in place of instructions."""
    kinds: dict[str, Kind] = {}
    doubts: dict[str, None] = {}
    functions = []
    found = flows(instructions)
    started = 0
    for entry in sorted(found):
        function = _function(
            found[entry], constants if entry == instructions[0].address else {}, kinds, doubts, started
        )
        started += len({one.name.partition(".")[0] for one in function.loops})
        functions.append(function)
    local = sum(one.base in ("LDL", "STL") for one in instructions)
    return CodeCounts(tuple(functions), tuple(kinds.values()), tuple(doubts), local)


def _function(
    flow: Flow, constants: Constants, kinds: dict[str, Kind], doubts: dict[str, None], first: int
) -> CodeFunction:
    reached, loops, odd, known = loop_turns.all_turns(flow, constants)
    if odd:
        doubts["the code jumps into the middle of a loop: such a loop is counted once"] = None
    edges = {
        block: tuple(one for one in targets if (block, one) not in odd) for block, targets in reached.edges.items()
    }
    blocks = []
    for block in order(flow.entry, edges):
        blocks.append(_block(flow, block, reached.states[block], constants, edges[block], kinds, doubts))
    if flow.unknown_jumps:
        doubts["a jump goes to an address that the code does not hold: what runs there is not counted"] = None
    names = loop_names(natural_loops(flow.entry, {block: flow.successors(block) for block in flow.blocks})[0])
    names = loop_names(loops) if any(one.header not in names for one in loops) else names
    renamed = {header: _moved(name, first) for header, name in names.items()}
    listed = []
    for one in loops:
        parent = parent_of(one, loops)
        listed.append(CodeLoop(
            renamed[one.header], one.header, flow.blocks[one.header][0].line, tuple(sorted(one.members)),
            None if parent is None else renamed[parent], known.get(one.header),
        ))  # fmt: skip
    return CodeFunction(flow.entry, tuple(blocks), tuple(listed))


def _moved(name: str, first: int) -> str:
    """Loops of called functions go on where the kernel's own end: L2 for their L0."""
    head, dot, rest = name.partition(".")
    return f"L{int(head[1:]) + first}{dot}{rest}"


def _block(
    flow: Flow,
    block: int,
    state: State,
    constants: Constants,
    following: tuple[int, ...],
    kinds: dict[str, Kind],
    doubts: dict[str, None],
) -> Block:
    counts: dict[str, list[int]] = {}
    calls = []
    here = dict(state)
    for one in flow.blocks[block]:
        runs = values.holds((one.predicate,), here) if one.predicate else True
        if is_call(one) and runs is not False:
            if calls_register(one):
                doubts["a call goes to a function in a register: what it executes is not counted"] = None
            else:
                calls.append((one.targets[0], int(runs is True)))
        kind = kind_of(one, _descriptor(one, here))
        if kind is not None and runs is not False:
            kinds[kind.name] = kind
            count = counts.setdefault(kind.name, [0, 0])
            count[0] += runs is True
            count[1] += 1
        values.run(one, here, constants)
    listed = tuple((name, low, high) for name, (low, high) in counts.items())
    return Block(block, flow.blocks[block][0].line, listed, tuple(calls), following)


def _descriptor(one: Instruction, state: State) -> int | None:
    for word in one.operands:
        if word.startswith("idesc["):
            return values.value(word[6:-1], state, {})
    return None
