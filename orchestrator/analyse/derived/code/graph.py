"""The control flow of a kernel: basic blocks, the edges between them, and its natural loops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from perfctl.records.sass import Instruction

END = -1
"""Where a thread ends, or a function returns."""
_SIZE = 16
"""Bytes of an instruction from sm_70 on."""
_BRANCH, _STOP, _JUMP_TABLE = ("BRA", "JMP"), ("EXIT", "RET", "KILL"), ("BRX", "JMX", "BRXU", "JMXU")
_ALWAYS = ("", "PT", "UPT")


@dataclass(frozen=True, slots=True)
class Branch:
    """What ends a block: where to go if its condition holds, and where if not."""

    taken: tuple[int, ...]
    other: int | None
    """None where the branch is always taken."""
    condition: tuple[str, ...] = ()
    """Predicates that must all hold; empty where none is needed, or where what decides is no predicate."""
    open: bool = False
    """What decides is no predicate, so that both ways may be taken."""


@dataclass(slots=True)
class Flow:
    """Blocks of one function. A block is named by the address of its first instruction."""

    entry: int
    blocks: dict[int, Sequence[Instruction]] = field(default_factory=dict)
    branches: dict[int, Branch] = field(default_factory=dict)
    """Block -> what ends it; a block without one goes on to the next."""
    unknown_jumps: int = 0
    """Jumps to addresses that are not in the code."""

    def successors(self, block: int) -> tuple[int, ...]:
        branch = self.branches[block]
        return tuple(dict.fromkeys((*branch.taken, *(() if branch.other is None else (branch.other,)))))


@dataclass(frozen=True, slots=True)
class Loop:
    """One natural loop."""

    header: int
    members: frozenset[int]
    """Blocks, those of inner loops included."""
    latches: frozenset[int]
    """Blocks that go back to the header."""


def flows(instructions: Sequence[Instruction]) -> dict[int, Flow]:
    """Function -> its flow: the kernel at address 0, and every function inside its code that is called."""
    by_address = {one.address: place for place, one in enumerate(instructions)}
    meets = _meeting_places(instructions)
    leaders = _leaders(instructions, meets)
    found: dict[int, Flow] = {}
    waiting = [instructions[0].address]
    while waiting:
        entry = waiting.pop()
        if entry not in found:
            found[entry] = flow = _flow(entry, instructions, by_address, leaders, meets)
            waiting += [
                target for block in flow.blocks.values() for one in block if is_call(one) and not calls_register(one)
                for target in one.targets if target in by_address
            ]  # fmt: skip
    return found


def is_call(instruction: Instruction) -> bool:
    return instruction.base == "CALL"


def calls_register(instruction: Instruction) -> bool:
    """Whether a call goes to an address in a register, so that the code does not say which function it is."""
    return not instruction.targets or instruction.operands[0].startswith(("R", "UR"))


def _meeting_places(instructions: Iterable[Instruction]) -> dict[str, list[int]]:
    """Barrier register -> where threads go on after they have met there."""
    found: dict[str, list[int]] = {}
    for one in instructions:
        if one.base == "BSSY" and one.operands and one.targets:
            found.setdefault(one.operands[0], []).append(one.targets[0])
    return found


def _branch(one: Instruction, meets: Mapping[str, list[int]]) -> Branch | None:
    """How this instruction ends its block; None for one that does not."""
    after = one.address + _SIZE
    conditional = one.predicate not in _ALWAYS
    if one.base in _STOP:
        return Branch((END,), after if conditional else None, (one.predicate,) if conditional else ())
    if one.base in _BRANCH:
        extra = tuple(
            word
            for word in one.operands
            if word.lstrip("!").rstrip("0123456789") in ("P", "UP") and word not in _ALWAYS
        )
        conditions = ((one.predicate,) if conditional else ()) + extra
        decides_else = any(part in one.opcode for part in (".DIV", ".CONV")) or (".U" in one.opcode and not extra)
        other = after if conditions or decides_else else None
        return Branch(one.targets[:1] or (END,), other, conditions, decides_else)
    if one.base in _JUMP_TABLE:
        return Branch(one.targets or (END,), after if conditional else None, (), True)
    if one.base == "BSYNC" and one.operands:
        places = meets.get(one.operands[0], [])
        if places and after not in places:
            later = [place for place in places if place > one.address] or places
            return Branch((min(later),), after if conditional else None, (one.predicate,) if conditional else ())
    return None


def _leaders(instructions: Sequence[Instruction], meets: Mapping[str, list[int]]) -> set[int]:
    leaders = {instructions[0].address}
    for one in instructions:
        leaders.update(one.targets)
        if _branch(one, meets) is not None:
            leaders.add(one.address + _SIZE)
            leaders.update(_branch(one, meets).taken)  # type: ignore[union-attr]
    return leaders


def _flow(
    entry: int,
    instructions: Sequence[Instruction],
    by_address: Mapping[int, int],
    leaders: set[int],
    meets: Mapping[str, list[int]],
) -> Flow:
    flow, waiting = Flow(entry), [entry]
    while waiting:
        start = waiting.pop()
        if start in flow.blocks:
            continue
        place = by_address[start]
        inside: list[Instruction] = []
        branch: Branch | None = None
        while place < len(instructions):
            one = instructions[place]
            if inside and one.address in leaders:
                branch = Branch((one.address,), None)
                break
            inside.append(one)
            place += 1
            if (branch := _branch(one, meets)) is not None:
                flow.unknown_jumps += one.base in _JUMP_TABLE and not one.targets
                break
        branch = branch or Branch((END,), None)
        known = tuple(target if target in by_address else END for target in branch.taken)
        other = END if branch.other is not None and branch.other not in by_address else branch.other
        flow.blocks[start] = inside
        flow.branches[start] = Branch(known, other, branch.condition, branch.open)
        waiting += [target for target in flow.successors(start) if target != END]
    return flow


def order(entry: int, edges: Mapping[int, Sequence[int]]) -> list[int]:
    """Reverse postorder of what can be reached."""
    seen, done = {entry}, []
    stack = [(entry, iter(edges.get(entry, ())))]
    while stack:
        block, rest = stack[-1]
        for target in rest:
            if target != END and target not in seen:
                seen.add(target)
                stack.append((target, iter(edges.get(target, ()))))
                break
        else:
            done.append(block)
            stack.pop()
    return done[::-1]


def natural_loops(entry: int, edges: Mapping[int, Sequence[int]]) -> tuple[list[Loop], set[tuple[int, int]]]:
    """(natural loops by their header's address; edges that jump into the middle of a loop, which is then none)."""
    blocks = order(entry, edges)
    place = {block: at for at, block in enumerate(blocks)}
    before: dict[int, list[int]] = {block: [] for block in blocks}
    for block in blocks:
        for target in edges.get(block, ()):
            if target != END:
                before[target].append(block)
    above = _dominators(blocks, place, before)
    latches: dict[int, set[int]] = {}
    odd = set()
    for block in blocks:
        for target in edges.get(block, ()):
            if target != END and place[target] <= place[block]:
                if _dominates(target, block, above, place):
                    latches.setdefault(target, set()).add(block)
                else:
                    odd.add((block, target))
    loops = []
    for header, ends in sorted(latches.items()):
        members, waiting = {header}, list(ends)
        while waiting:
            block = waiting.pop()
            if block not in members:
                members.add(block)
                waiting += before[block]
        loops.append(Loop(header, frozenset(members), frozenset(ends)))
    return loops, odd


def _dominators(blocks: Sequence[int], place: Mapping[int, int], before: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Block -> its immediate dominator (Cooper, Harvey and Kennedy, 2001)."""
    above = {blocks[0]: blocks[0]}
    changed = True
    while changed:
        changed = False
        for block in blocks[1:]:
            new = -1
            for one in before[block]:
                if one in above:
                    new = one if new == -1 else _meet(new, one, above, place)
            if above.get(block) != new:
                above[block] = new
                changed = True
    return above


def _meet(a: int, b: int, above: Mapping[int, int], place: Mapping[int, int]) -> int:
    while a != b:
        while place[a] > place[b]:
            a = above[a]
        while place[b] > place[a]:
            b = above[b]
    return a


def _dominates(a: int, b: int, above: Mapping[int, int], place: Mapping[int, int]) -> bool:
    while place[b] > place[a]:
        b = above[b]
    return a == b


def loop_names(loops: Sequence[Loop]) -> dict[int, str]:
    """Header -> name: L0, L1, ... from the outside, in the order of the code; loops inside L0 are L0.1, L0.2, ..."""
    parents = {one.header: parent_of(one, loops) for one in loops}
    names: dict[int, str] = {}
    inside: dict[int | None, int] = {}
    for one in sorted(loops, key=lambda loop: (-len(loop.members), loop.header)):
        parent = parents[one.header]
        inside.setdefault(parent, -1 if parent is None else 0)
        names[one.header] = ""
    for one in sorted(loops, key=lambda loop: loop.header):
        _name(one.header, parents, inside, names)
    return names


def _name(header: int, parents: Mapping[int, int | None], inside: dict[int | None, int], names: dict[int, str]) -> str:
    if not names[header]:
        parent = parents[header]
        above = "" if parent is None else _name(parent, parents, inside, names)
        inside[parent] += 1
        names[header] = f"L{inside[parent]}" if parent is None else f"{above}.{inside[parent]}"
    return names[header]


def parent_of(loop: Loop, loops: Iterable[Loop]) -> int | None:
    """Header of the smallest loop around this one."""
    around = [one for one in loops if one.header != loop.header and loop.header in one.members]
    return min(around, key=lambda one: len(one.members)).header if around else None
