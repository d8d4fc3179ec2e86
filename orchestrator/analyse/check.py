"""By which likely slip a hand value differs from the layer's: only what reproduces it to the digit is said.

Slips tried, alone and together: the input taken after pooling (or before it), the batch left out, MAC against FLOP,
bias left out or counted in, and at most one factor that is off by one (an arithmetic slip).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from perfctl.orchestrator.analyse.sheet import Facts, out_size
from perfctl.orchestrator.analyse.worked import number, times

POOLS = (2, 3, 4)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a hand value is."""

    value: int
    right: int
    """The layer's own multiply-adds."""
    exact: bool
    slips: tuple[str, ...]
    """Empty when the value is right; otherwise what, put together, gives it (or the nearest one)."""
    worked: str
    """The product that gives the value, or the nearest candidate."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    value: int
    slips: tuple[str, ...]
    worked: str


def check(value: int, facts: Facts) -> Finding:
    """Explain ``value`` as a number of operations (or of values) of a layer."""
    candidates = sorted(_candidates(facts), key=lambda found: len(found.slips))
    exact = next((found for found in candidates if found.value == value), None)
    if exact is None:
        exact = next((found for found in _off_by_one(facts) if found.value == value), None)
    if exact is not None:
        return Finding(value, facts.macs, True, exact.slips, exact.worked)
    nearest = min(candidates, key=lambda found: abs(found.value - value) / max(found.value, 1))
    return Finding(value, facts.macs, False, nearest.slips, nearest.worked)


def explain(finding: Finding) -> str:
    """The finding in one or two sentences."""
    value = number(finding.value)
    right = f"{number(finding.right)} MAC = {number(2 * finding.right)} FLOP"
    if finding.exact and not finding.slips:
        doubled = finding.value == finding.right
        more = f" These are multiply-adds; in FLOP it is twice that, {number(2 * finding.right)}." if doubled else ""
        return f"{value} is right: {finding.worked}.{more}"
    if finding.exact:
        return f"{value} is reproduced by: {'; '.join(finding.slips)}. {finding.worked}. Right is {right}."
    nearest = f"The nearest is {finding.worked}" + (f" ({'; '.join(finding.slips)})" if finding.slips else "")
    return f"{value} is not explained by any of the usual slips, alone or together. {nearest}. Right is {right}."


def _inputs(facts: Facts) -> Iterator[tuple[Facts, tuple[str, ...]]]:
    """The layer as it is, and with its input taken after (or before) a pooling that is not there."""
    yield facts, ()
    if not facts.positions:
        return
    for pool in POOLS:
        for name, sizes in (
            ("after", tuple(size // pool for size in facts.map_in)),
            ("before", tuple(size * pool for size in facts.map_in)),
        ):
            positions = tuple(
                out_size(size, kernel, stride, padding, dilation)
                for size, kernel, stride, padding, dilation in zip(
                    sizes, facts.kernel, facts.stride, facts.padding, facts.dilation, strict=True
                )
            )
            if all(positions):
                said = f"input taken {name} a pooling by {pool} ({_by(sizes)}, not {_by(facts.map_in)})"
                yield replace(facts, map_in=sizes, positions=positions), (said,)


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(str(size) for size in sizes)


def _factors(facts: Facts, batch: bool) -> tuple[int, ...]:
    return (*((facts.batch,) if batch and facts.batch > 1 else ()), facts.out_channels, *facts.inner, *facts.positions)


def _candidates(facts: Facts) -> Iterator[_Candidate]:
    for (changed, slips), batch, times_macs, bias in product(_inputs(facts), (True, False), (1, 2, 4), (False, True)):
        if not batch and facts.batch == 1:
            continue
        said = slips if batch else (*slips, f"batch of {facts.batch} left out")
        if times_macs == 4:
            said = (*said, "FLOP taken for MAC and doubled again")
        factors = _factors(changed, batch)
        macs = prod(factors)
        values = macs // prod(changed.inner)
        unit = "MAC" if times_macs == 1 else "FLOP"
        total = macs * times_macs
        text = times(*((times_macs, *factors) if times_macs > 1 else factors))
        if bias:
            total, text = total + values, f"{text} + {number(values)} bias additions"
            said = (
                (*said, "bias additions counted in") if facts.bias else (*said, "a bias that is not there counted in")
            )
        yield _Candidate(total, said, f"{text} = {number(total)} {unit}")
    yield from _value_counts(facts)


def _value_counts(facts: Facts) -> Iterator[_Candidate]:
    """Numbers of values: weights, biases, output map, together."""
    for changed, slips in _inputs(facts):
        weights, biases = facts.out_channels * prod(facts.inner), facts.out_channels if facts.bias else 0
        for batch in (True, False):
            if not batch and facts.batch == 1:
                continue
            outputs = (facts.batch if batch else 1) * facts.out_channels * prod(changed.positions)
            said = slips if batch else (*slips, f"batch of {facts.batch} left out")
            whole = weights + biases + outputs
            text = f"{number(weights)} weights + {number(biases)} biases + {number(outputs)} outputs = {number(whole)} values"
            yield _Candidate(whole, (*said, "values, not operations"), text)
            if biases:
                less = weights + outputs
                text = f"{number(weights)} weights + {number(outputs)} outputs = {number(less)} values"
                yield _Candidate(less, (*said, "values, not operations", "bias left out"), text)
            yield _Candidate(outputs, (*said, "output values, not operations"), f"{number(outputs)} output values")


def _off_by_one(facts: Facts) -> Iterator[_Candidate]:
    """One factor, or one product of neighbours (P x Q, R x S), one too small or too large."""
    for (changed, slips), batch, double in product(_inputs(facts), (True, False), (False, True)):
        if not batch and facts.batch == 1:
            continue
        said = slips if batch else (*slips, f"batch of {facts.batch} left out")
        groups = [(name, size) for name, size in _groups(changed, batch) if size > 2]
        whole = prod(_factors(changed, batch))
        for (name, size), step in product(groups, (-1, 1)):
            total = whole // size * (size + step) * (2 if double else 1)
            slip = f"arithmetic: {name} is {number(size)}, worked with {number(size + step)}"
            slip += f" (without it {number(whole * (2 if double else 1))})"
            text = f"{'2 x ' if double else ''}{number(whole // size)} x {number(size + step)} = {number(total)}"
            yield _Candidate(total, (*said, slip), f"{text} {'FLOP' if double else 'MAC'}")


def _groups(facts: Facts, batch: bool) -> list[tuple[str, int]]:
    names = [("the batch", facts.batch)] if batch else []
    names += [("the number of output channels", facts.out_channels)]
    if facts.positions:
        area = " x ".join(str(size) for size in facts.positions)
        kernel = " x ".join(str(size) for size in facts.kernel)
        names += [(f"the map {area}", prod(facts.positions)), (f"the kernel {kernel}", prod(facts.kernel))]
        names += [("the number of input channels", facts.inner[0]), ("one side of the map", facts.positions[0])]
        names.append((f"one output value's {' x '.join(str(size) for size in facts.inner)}", prod(facts.inner)))
    else:
        names.append(("the number of inputs", facts.inner[0]))
    return names
