"""Two sides compared: what became slower or faster, what is new, and what is not comparable.

A change counts when it is both significant and larger than the gate. The three levels (steps, layers, kernels) share a 5 %
chance of any false verdict; within a level Holm's step-down keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

from perfctl.orchestrator.analyse.compare.pairing import Opposed, align, common, compared
from perfctl.orchestrator.analyse.compare.records import (
    LEVELS,
    NOT_JUDGED,
    Comparison,
    Difference,
    Key,
    Observed,
    Pair,
    Row,
    Side,
)
from perfctl.orchestrator.analyse.compare.rows import judged, observed, rows
from perfctl.orchestrator.analyse.ledger.prepared import PreparedRun, with_whole_backward
from perfctl.orchestrator.analyse.ledger.timing import preference
from perfctl.orchestrator.analyse.statistics import holm
from perfctl.records.run import Run

ALPHA = 0.05
GATE = 0.05
QUANTITIES = ("time", "throughput", "memory", "flops")
Found = tuple[str, dict[Key, Observed]]


def compare(a: Side, b: Side, *, gate: float = GATE, force: bool = False) -> Comparison:
    """B against A. ``gate``: 0.05 is 5 %. ``force``: compare in spite of differences that block, which every page then states."""
    found = align(a.runs, b.runs)
    pairs = [_pair(opposed, force) for opposed in found.opposed]
    return Comparison(a, b, gate, force, _with_verdicts(pairs, gate), found.only_a, found.only_b, found.failed)


def _pair(opposed: Opposed, force: bool) -> Pair:
    both = common(opposed.a, opposed.b)
    a, b = (tuple(run for run in side if run.profiler in both) for side in (opposed.a, opposed.b))
    differences, facts = compared(a or opposed.a, b or opposed.b)
    if not both:
        mine, theirs = (", ".join(sorted({run.profiler for run in side})) for side in (opposed.a, opposed.b))
        profiler = Difference("profiler", mine, theirs, True, "profilers differ in overhead and in what they record")
        differences, a, b = (profiler, *differences), _best(opposed.a), _best(opposed.b)
    lines = tuple(_rows(a, b, both)) if force or not any(found.blocks for found in differences) else ()
    notes = tuple(_notes(opposed, both))
    return Pair(opposed.heading, a[0].batch_size, b[0].batch_size, a, b, differences, facts, lines, notes)


def _best(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Of several profilers, the one to take times from."""
    best = min((run.profiler for run in runs), key=preference)
    return tuple(run for run in runs if run.profiler == best)


def _notes(opposed: Opposed, both: Sequence[str]) -> Iterable[str]:
    for side, other in (("A", opposed.a), ("B", opposed.b)):
        alone = sorted({run.profiler for run in other} - set(both))
        if alone and both:
            yield f"{', '.join(alone)} ran in {side} only and is not compared"


def _rows(a: Sequence[Run], b: Sequence[Run], both: Sequence[str]) -> list[Row]:
    """Each quantity of each level from the first profiler that has it on both sides, or from different profilers."""
    prepared = with_whole_backward([PreparedRun(run) for run in (*a, *b)])
    every = [(item.run.profiler if both else "", observed(item)) for item in prepared]
    sides = every[: len(a)], every[len(a) :]
    return [row for part in product(LEVELS, QUANTITIES) for row in _first(*sides, both or ("",), part)]


def _first(a: Sequence[Found], b: Sequence[Found], profilers: Iterable[str], part: tuple[str, str]) -> list[Row]:
    for profiler in profilers:
        mine, theirs = (
            [{key: seen[key] for key in seen if key[:2] == part} for name, seen in side if name == profiler]
            for side in (a, b)
        )
        if any(mine) and any(theirs):
            return rows(mine, theirs)
    return []


def _with_verdicts(pairs: Sequence[Pair], gate: float) -> tuple[Pair, ...]:
    """All rows of a level are judged together; throughput gets the verdict of its step."""
    decided = [list(pair.rows) for pair in pairs]
    for level in LEVELS:
        chances = {
            (at, place): row.p
            for at, lines in enumerate(decided)
            for place, row in enumerate(lines)
            if row.key.level == level and row.p is not None and row.key.quantity != "throughput"
        }
        for (at, place), adjusted in holm(chances).items():
            decided[at][place] = judged(decided[at][place], adjusted, gate=gate, alpha=ALPHA / len(LEVELS))
    return tuple(replace(pair, rows=tuple(_throughput(lines))) for pair, lines in zip(pairs, decided, strict=True))


def _throughput(lines: Sequence[Row]) -> Iterable[Row]:
    step = next((row for row in lines if row.key == Key("step", "time", "step")), None)
    for row in lines:
        if row.key.quantity != "throughput" or step is None:
            yield row
            continue
        around = step.interval and (1 / (1 + step.interval[1]) - 1, 1 / (1 + step.interval[0]) - 1)
        said = step.why if step.verdict == NOT_JUDGED else f"as its step; {step.why}"
        yield replace(row, interval=around, p=step.p, adjusted=step.adjusted, verdict=step.verdict, why=said)
