"""Which likely slips make a hand value differ from the layer's. Only slips that reproduce the value exactly are named.

Every sheet lists the ways to work its layer: the right one and those with a slip. Each is combined with: the batch left
out, MAC against FLOP, bias left out or counted, backward counted, and at most one factor that is off by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple

from perfctl.orchestrator.analyse.flops.formulas import times
from perfctl.orchestrator.analyse.sheets.layers import Facts


@dataclass(frozen=True, slots=True)
class Finding:
    """Where a hand value comes from."""

    value: int
    right: int
    exact: bool
    slips: tuple[str, ...]
    """Empty when the value is right; otherwise the slips that together give it, or the nearest value."""
    worked: str
    others: tuple[tuple[str, ...], ...] = ()


class _Candidate(NamedTuple):
    value: int
    slips: tuple[str, ...]
    worked: str


def check(value: int, facts: Facts) -> Finding:
    """Explain ``value`` as a number of operations (or of values) of a layer."""
    candidates = sorted(_candidates(facts), key=lambda found: len(found.slips))
    same = [found for found in candidates if found.value == value]
    same = same or [found for found in _off_by_one(facts) if found.value == value]
    if same:
        exact = same[0]
        alike = [found.slips for found in same if len(found.slips) == len(exact.slips) and found.slips != exact.slips]
        return Finding(value, facts.macs, True, exact.slips, exact.worked, tuple(dict.fromkeys(alike)))
    nearest = min(candidates, key=lambda found: abs(found.value - value))
    return Finding(value, facts.macs, False, nearest.slips, nearest.worked)


def explain(finding: Finding, layer: str = "") -> str:
    """The finding in a few sentences. ``layer``: its name, where the sentence must say it."""
    value = f"{finding.value:,}"
    right = f"{finding.right:,} MAC = {2 * finding.right:,} FLOP"
    if finding.exact and not finding.slips:
        more = f" These are multiply-adds; in FLOP: {2 * finding.right:,}." if finding.value == finding.right else ""
        return f"{value} is right: {finding.worked}.{more}"
    yours = f"Your {value} for {layer}" if layer else value
    if finding.exact:
        count = {1: "one slip", 2: "two slips", 3: "three slips"}.get(len(finding.slips), f"{len(finding.slips)} slips")
        others = "".join(f"; or {_joined(slips)}" for slips in finding.others[:3])
        return f"{yours} comes from {count}: {_joined(finding.slips)}{others}. {finding.worked}. Right is {right}."
    nearest = f"The nearest is {finding.worked}" + (f" ({_joined(finding.slips)})" if finding.slips else "")
    return f"{yours} matches no usual slip or combination of slips. {nearest}. Right is {right}."


def _joined(slips: tuple[str, ...]) -> str:
    return ", and ".join(part for part in (", ".join(slips[:-1]), slips[-1]) if part)


def _batches(facts: Facts) -> Iterator[tuple[int, tuple[str, ...]]]:
    yield facts.batch, ()
    if facts.batch > 1:
        yield 1, (f"batch of {facts.batch} left out",)


def _candidates(facts: Facts) -> Iterator[_Candidate]:
    for way, (batch, left), doubled, bias in product(facts.ways, _batches(facts), (1, 2, 4), (False, True)):
        if bias and not way.outputs:
            continue
        said = (*way.slips, *left, *(("FLOP mistaken for MAC and doubled again",) if doubled == 4 else ()))
        total, front = batch * way.macs * doubled, [factor for factor in (doubled, batch) if factor > 1]
        text = " + ".join(times(*term) for term in way.terms)
        if front:
            text = f"{times(*front)} x {text if len(way.terms) == 1 else f'({text})'}"
        if bias:
            values = batch * way.outputs
            total, text = total + values, f"{text} + {values:,} bias additions"
            said = (*said, "bias additions counted" if facts.bias else "a bias addition counted for every output value")
        unit = "MAC" if doubled == 1 else "FLOP"
        yield _Candidate(total, said, f"{text} = {total:,} {unit}")
    yield from _whole_steps(facts)
    yield from _value_counts(facts)


def _whole_steps(facts: Facts) -> Iterator[_Candidate]:
    found = [(3 * facts.macs, "forward and backward together, as 3 x forward")]
    if facts.step:
        found.insert(0, (facts.step, "forward and backward together"))
    for (macs, said), (batch, left), doubled in product(found, _batches(facts), (1, 2)):
        if macs % facts.batch:
            continue
        total = macs // facts.batch * batch * doubled
        yield _Candidate(total, (said, *left), f"{total:,} {'MAC' if doubled == 1 else 'FLOP'}")


def _value_counts(facts: Facts) -> Iterator[_Candidate]:
    weights, biases = facts.weights, facts.biases
    if weights:
        yield _Candidate(weights, ("weights, not operations",), f"{weights:,} weights")
        if biases:
            text = f"{weights:,} weights + {biases:,} biases = {weights + biases:,} values"
            yield _Candidate(weights + biases, ("weights and biases, not operations",), text)
    for way, (batch, left) in product(facts.ways, _batches(facts)):
        outputs, said = batch * way.outputs, (*way.slips, *left)
        if not outputs:
            continue
        whole, text = weights + biases + outputs, f"{weights:,} weights + {biases:,} biases"
        text += f" + {outputs:,} outputs = {whole:,} values"
        yield _Candidate(whole, (*said, "values, not operations"), text)
        if biases:
            less = weights + outputs
            text = f"{weights:,} weights + {outputs:,} outputs = {less:,} values"
            yield _Candidate(less, (*said, "values, not operations", "bias left out"), text)
        yield _Candidate(outputs, (*said, "output values, not operations"), f"{outputs:,} output values")


def _off_by_one(facts: Facts) -> Iterator[_Candidate]:
    for way, (batch, left), double in product(facts.ways, _batches(facts), (1, 2)):
        if len(way.terms) != 1:
            continue
        names = [*(((f"batch of {batch}", batch),) if batch > 1 else ()), *way.names]
        whole = batch * prod(way.terms[0])
        for (name, size), step in product(names, (-1, 1)):
            if size <= 2:
                continue
            total = whole // size * (size + step) * double
            slip = f"{name} taken as {size + step:,}"
            text = f"{'2 x ' if double == 2 else ''}{whole // size:,} x {size + step:,} = {total:,}"
            yield _Candidate(total, (*way.slips, *left, slip), f"{text} {'FLOP' if double == 2 else 'MAC'}")
