"""Two sides compared: a change counts when it is both significant and larger than the gate.

The three levels (steps, layers, kernels) share a 5 % chance of any false verdict; within a level
Holm's step-down keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from perfctl.orchestrator.compare import pairing
from perfctl.orchestrator.compare.pairing import (
    Comparison,
    Key,
    Observed,
    Opposed,
    Row,
    Side,
    align,
    busy_with_others,
    common,
    compared,
)
from perfctl.orchestrator.compare.rows import (
    ENERGIES,
    UNATTRIBUTED,
    judged,
    name,
    observed,
    rows,
)
from perfctl.orchestrator.counts.kernels.short_names import shorten
from perfctl.orchestrator.ledger.prepared import PreparedRun, parted, with_whole_backward
from perfctl.orchestrator.ledger.timing import preference
from perfctl.orchestrator.statistics import holm
from perfctl.records.run import Run

GATE = 0.05
QUANTITIES = ("time", "throughput", "memory", *ENERGIES, "flops")
Found = tuple[str, dict[Key, Observed]]


def compare(a: Side, b: Side, *, gate: float = GATE, force: bool = False) -> Comparison:
    """B against A. ``gate``: 0.05 is 5 %.

    Where differences block, the figures are there and none is judged. ``force``: judge them all the
    same, which every page then states.
    """
    found = align(a.runs, b.runs)
    pairs = _with_verdicts(_named([_pair(opposed, force) for opposed in found.opposed]), gate)
    return Comparison(a, b, gate, force, pairs, found.only_a, found.only_b, found.failed)


def _pair(opposed: Opposed, force: bool) -> pairing.Pair:
    both = common(opposed.a, opposed.b)
    a, b = (tuple(run for run in side if run.profiler in both) for side in opposed[1:])
    differences, facts = compared(a or opposed.a, b or opposed.b)
    if not both:
        mine, theirs = (", ".join(sorted({run.profiler for run in side})) for side in opposed[1:])
        why = "profilers differ in overhead and in what they record"
        differences = (pairing.Difference("profiler", mine, theirs, True, why), *differences)
        a, b = _best(opposed.a), _best(opposed.b)
    lines = tuple(_rows(a, b, both))
    if not force and (stops := [found.fact for found in differences if found.blocks]):
        said = f"not comparable: {', '.join(stops)} differ{'s' if len(stops) == 1 else ''}"
        lines = tuple(
            replace(
                row,
                verdict=pairing.NOT_JUDGED,
                why=said,
                p=None,
                adjusted=None,
                interval=None,
                ratio=None,
            )
            for row in lines
        )
    alone = [
        (side, {run.profiler for run in runs} - set(both))
        for side, runs in (("A", opposed.a), ("B", opposed.b))
    ]
    notes = [
        f"{', '.join(sorted(n))} ran in {side} only and is not compared"
        for side, n in alone
        if n and both
    ]
    notes += [
        f"In {side} {busy}"
        for side, runs in (("A", a), ("B", b))
        if (busy := busy_with_others(runs)) is not None
    ]
    sizes = a[0].batch_size, b[0].batch_size
    return pairing.Pair(opposed.heading, *sizes, a, b, differences, facts, lines, tuple(notes))


def _named(pairs: Sequence[pairing.Pair]) -> list[pairing.Pair]:
    """The pairs, kernels by names that are short and differ wherever the kernels do."""
    short = shorten(row.key.kernel for pair in pairs for row in pair.rows if row.key.kernel)
    return [
        replace(
            pair,
            rows=tuple(
                replace(row, name=said(row)) if row.key.kernel else row for row in pair.rows
            ),
        )
        for pair, said in ((pair, _whole(pair, short)) for pair in pairs)
    ]


def _whole(pair: pairing.Pair, short: Mapping[str, str]) -> Callable[[Row], str]:
    """How a kernel is called: without its layer where no kernel has one."""
    if all(row.key.layer == UNATTRIBUTED for row in pair.rows if row.key.kernel):
        return lambda row: short[row.key.kernel]
    return lambda row: name(row.key._replace(kernel=short[row.key.kernel]))


def _best(runs: Sequence[Run]) -> tuple[Run, ...]:
    best = min((run.profiler for run in runs), key=preference)
    return tuple(run for run in runs if run.profiler == best)


def _rows(a: Sequence[Run], b: Sequence[Run], both: Sequence[str]) -> list[Row]:
    prepared = with_whole_backward([parted(PreparedRun(run)) for run in (*a, *b)])
    every = [(item.run.profiler if both else "", observed(item)) for item in prepared]
    sides = every[: len(a)], every[len(a) :]
    return [
        row
        for part in product(pairing.LEVELS, QUANTITIES)
        for row in _first(*sides, both or ("",), part)
    ]


def _first(
    a: Sequence[Found], b: Sequence[Found], profilers: Iterable[str], part: tuple[str, str]
) -> list[Row]:
    for profiler in profilers:
        both = ([seen for name, seen in side if name == profiler] for side in (a, b))
        mine, theirs = (
            [{key: seen[key] for key in seen if key[:2] == part} for seen in side] for side in both
        )
        if any(mine) and any(theirs):
            return rows(mine, theirs)
    return []


def _with_verdicts(pairs: Sequence[pairing.Pair], gate: float) -> tuple[pairing.Pair, ...]:
    """All rows of a level are judged together; throughput gets the verdict of its step."""
    decided = [list(pair.rows) for pair in pairs]
    for level in pairing.LEVELS:
        every = [
            ((at, place), row)
            for at, lines in enumerate(decided)
            for place, row in enumerate(lines)
        ]
        mine = [
            (where, row)
            for where, row in every
            if row.key.level == level and row.key.quantity != "throughput"
        ]
        chances = {where: row.p for where, row in mine if row.p is not None}
        for (at, place), adjusted in holm(chances).items():
            decided[at][place] = judged(
                decided[at][place], adjusted, gate=gate, alpha=0.05 / len(pairing.LEVELS)
            )
    return tuple(
        replace(pair, rows=tuple(_throughput(lines)))
        for pair, lines in zip(pairs, decided, strict=True)
    )


def _throughput(lines: Sequence[Row]) -> Iterable[Row]:
    step = next((row for row in lines if row.key == Key("step", "time", "step")), None)
    for row in lines:
        if row.key.quantity != "throughput" or step is None:
            yield row
            continue
        around = step.interval and (1 / (1 + step.interval[1]) - 1, 1 / (1 + step.interval[0]) - 1)
        said = step.why if step.verdict == pairing.NOT_JUDGED else f"as its step; {step.why}"
        yield replace(
            row, interval=around, p=step.p, adjusted=step.adjusted, verdict=step.verdict, why=said
        )
