"""What a hand value is: a figure of the layer (operations, values, bytes), or what likely slips
make of one.

Only slips that reproduce the value exactly are named, and none for a value that is a figure of
the layer.

Every sheet lists the ways to work its layer: the right one and those with a slip. Each is combined
with: the batch left out, MAC against FLOP, bias left out or counted, backward counted, and at most
one factor that is off by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple

from perfctl.orchestrator.estimate.flops.formulas import times
from perfctl.orchestrator.estimate.sheets.layers import Facts, Way
from perfctl.orchestrator.estimate.sheets.sheet import Quantity

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}
NOT_OPERATIONS = ", not operations"
ROUNDED_FROM = 100
"""A value of fewer KiB is not taken for a rounded one: too many values would do."""
IN_WORDS = {
    "MAC": "multiply-adds",
    "FLOP": "FLOPs",
    "elementwise FLOP": "elementwise FLOPs",
    "B": "bytes",
    "values": "values",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Where a hand value comes from."""

    value: int
    right: int
    """What the layer has, in ``unit``: multiply-adds where the value counts operations."""
    exact: bool
    slips: tuple[str, ...]
    """Empty when the value is right; otherwise the slips that together give it, or the
    nearest value."""
    worked: str
    others: tuple[tuple[str, ...], ...] = ()
    """As many slips that give the same value; ``others_worked``: how each does."""
    others_worked: tuple[str, ...] = ()
    unit: str = "MAC"
    quantity: str = ""
    """Which figure of the layer the value is, or was meant to be; "" for operations of the
    forward pass."""
    also: tuple[str, ...] = ()
    """Other figures of the layer with this value."""


class _Candidate(NamedTuple):
    value: int
    slips: tuple[str, ...]
    worked: str
    right: int | None = None
    """Of a figure that counts no operations, in ``unit``."""
    unit: str = "MAC"
    quantity: str = ""


def check(value: int, facts: Facts | None, figures: Sequence[Quantity] = ()) -> Finding:
    """Explain ``value`` as one of a layer's ``figures``; without them it was meant as a number of
    its operations."""
    for hits in (_hits(value, figures), _rounded(value, figures)):
        if hits:
            (said, hit), *rest = hits
            return Finding(
                value,
                value,
                True,
                (),
                hit.worked,
                unit=hit.unit,
                quantity=said,
                also=tuple(name for name, _ in rest),
            )
    if facts is None:
        return _nearest(value, figures, ())
    candidates = sorted(_candidates(facts, bool(figures)), key=_likelihood)
    same = [found for found in candidates if found.value == value]
    same = same or [found for found in _off_by_one(facts) if found.value == value]
    if same:
        exact = same[0]
        alike: dict[tuple[str, ...], str] = {}
        for found in same:
            if len(found.slips) == len(exact.slips) and found.slips != exact.slips:
                alike.setdefault(found.slips, found.worked)
        right, others = facts.macs if exact.right is None else exact.right, tuple(alike)
        worked = tuple(alike.values())
        return Finding(
            value,
            right,
            True,
            exact.slips,
            exact.worked,
            others,
            worked,
            exact.unit,
            exact.quantity,
        )
    return _nearest(value, figures, candidates, facts.macs)


def _nearest(
    value: int, figures: Sequence[Quantity], candidates: Sequence[_Candidate], macs: int = 0
) -> Finding:
    """A figure rather than what a slip makes, where both are as near. KiB are left out: small
    values would all be near them."""
    near = [_Candidate(one.value, (), one.worked, one.value, one.unit, one.what) for one in figures]
    near += [found for found in candidates if not found.worked.endswith(" KiB")]
    best = min(near, key=lambda found: abs(found.value - value))
    right = macs if best.right is None else best.right
    return Finding(
        value, right, False, best.slips, best.worked, unit=best.unit, quantity=best.quantity
    )


def _likelihood(found: _Candidate) -> tuple[int, bool]:
    """Sorts the likelier first: fewer slips, and of single ones the batch left out."""
    return len(found.slips), not (len(found.slips) == 1 and found.slips[0].startswith("batch of "))


def _hits(value: int, figures: Sequence[Quantity]) -> list[tuple[str, Quantity]]:
    """(name, figure) of those that are ``value``: in their own unit first, then bytes in KiB
    and MiB."""
    same = [one for one in figures if one.value == value]
    found = {f"{one.what}, in {IN_WORDS[one.unit]}": one for one in same}
    for unit, size in UNITS.items():
        for one in figures:
            if one.unit == "B" and one.value == value * size:
                worked = f"{one.worked} = {value:,} {unit}"
                found.setdefault(f"{one.what}, in {unit}", Quantity(one.what, value, unit, worked))
    return list(found.items())


def _rounded(value: int, figures: Sequence[Quantity]) -> list[tuple[str, Quantity]]:
    """Those that are ``value`` as rounded KiB."""
    size = UNITS["KiB"]
    return [
        (
            f"{one.what}, in KiB, rounded",
            Quantity(one.what, value, "KiB", f"{one.worked} = {one.value / size:,.1f} KiB"),
        )
        for one in figures
        if one.unit == "B" and value >= ROUNDED_FROM and round(one.value / size) == value
    ]


def in_its_unit(finding: Finding) -> str:
    """ "72 KiB"; the bare value where it counts operations otherwise than in multiply-adds."""
    return (
        f"{finding.value:,} {finding.unit}"
        if finding.value == finding.right
        else f"{finding.value:,}"
    )


def explain(finding: Finding, layer: str = "") -> str:
    """The finding in a few sentences. ``layer``: its name, where the sentence must say it."""
    value = f"{finding.value:,}"
    right = _right(finding)
    if finding.exact and finding.quantity and not finding.slips:
        also = f" So are: {'; '.join(finding.also)}." if finding.also else ""
        return f"{value} is right: {finding.quantity}. {finding.worked}.{also}"
    if finding.exact and not finding.slips:
        more = (
            f" These are multiply-adds; in FLOP: {2 * finding.right:,}."
            if finding.value == finding.right
            else ""
        )
        return f"{value} is right: {finding.worked}.{more}"
    yours = f"Your {value} for {layer}" if layer else value
    if finding.exact:
        count = {1: "one slip", 2: "two slips", 3: "three slips"}.get(
            len(finding.slips), f"{len(finding.slips)} slips"
        )
        how = dict(zip(finding.others, finding.others_worked, strict=False))
        others = "".join(
            f"; or {_joined(slips)}"
            + (f" ({how[slips]})" if how.get(slips, finding.worked) != finding.worked else "")
            for slips in finding.others[:3]
        )
        return (
            f"{yours} comes from {count}: {_joined(finding.slips)}{others}. {finding.worked}. "
            f"Right is {right}."
        )
    if finding.quantity and not finding.slips:
        named = f"{finding.quantity}, in {IN_WORDS[finding.unit]}: {finding.worked}"
        return (
            f"{yours} is no figure of the layer, and no usual slip or combination of slips gives "
            f"it. The nearest is {named}."
        )
    nearest = f"The nearest is {finding.worked}" + (
        f" ({_joined(finding.slips)})" if finding.slips else ""
    )
    return f"{yours} matches no usual slip or combination of slips. {nearest}. Right is {right}."


def _right(finding: Finding) -> str:
    if finding.unit == "B":
        return f"{finding.right:,} B = {finding.right / UNITS['KiB']:,.1f} KiB ({finding.quantity})"
    if finding.unit in UNITS:
        return (
            f"{finding.right:,} {finding.unit} = {finding.right * UNITS[finding.unit]:,} B "
            f"({finding.quantity})"
        )
    if finding.unit == "values":
        return f"{finding.right:,} values ({finding.quantity})"
    return f"{finding.right:,} MAC = {2 * finding.right:,} FLOP"


def _joined(slips: tuple[str, ...]) -> str:
    return ", and ".join(part for part in (", ".join(slips[:-1]), slips[-1]) if part)


def _batches(facts: Facts) -> Iterator[tuple[int, tuple[str, ...]]]:
    yield facts.batch, ()
    if facts.batch > 1:
        yield 1, (f"batch of {facts.batch} left out",)


def _candidates(facts: Facts, anything: bool) -> Iterator[_Candidate]:
    for way, (batch, left), doubled, bias in product(
        facts.ways, _batches(facts), (1, 2, 4), (False, True)
    ):
        if bias and not way.outputs:
            continue
        said = (
            *way.slips,
            *left,
            *(("FLOP mistaken for MAC and doubled again",) if doubled == 4 else ()),
        )
        total, front = (
            batch * way.macs * doubled,
            [factor for factor in (doubled, batch) if factor > 1],
        )
        text = " + ".join(times(*term) for term in way.terms)
        if front:
            text = f"{times(*front)} x {text if len(way.terms) == 1 else f'({text})'}"
        if bias:
            values = batch * way.outputs
            total, text = total + values, f"{text} + {values:,} bias additions"
            said = (
                *said,
                "bias additions counted"
                if facts.bias
                else "a bias addition counted for every output value",
            )
        unit = "MAC" if doubled == 1 else "FLOP"
        yield _Candidate(total, said, f"{text} = {total:,} {unit}")
    yield from _whole_steps(facts)
    for found in _value_counts(facts):
        if anything:
            yield found._replace(
                slips=tuple(slip for slip in found.slips if not slip.endswith(NOT_OPERATIONS))
            )
        else:
            yield found._replace(right=None, unit="MAC", quantity="")
    if anything:
        yield from _bytes(facts)


def _whole_steps(facts: Facts) -> Iterator[_Candidate]:
    found = [(3 * facts.macs, "forward and backward together, as 3 x forward")]
    if facts.step:
        found.insert(0, (facts.step, "forward and backward together"))
    for (macs, said), (batch, left), doubled in product(found, _batches(facts), (1, 2)):
        if macs % facts.batch:
            continue
        total = macs // facts.batch * batch * doubled
        yield _Candidate(total, (said, *left), f"{total:,} {'MAC' if doubled == 1 else 'FLOP'}")


def _bytes(facts: Facts) -> Iterator[_Candidate]:
    """The output map alone, and with the parameters, of a way with a slip, in bytes and in KiB."""
    extra = dict.fromkeys((0, facts.weights + facts.biases))
    for way, (batch, left), more in product(facts.ways, _batches(facts), extra):
        slips, outputs, quantity = (
            (*way.slips, *left),
            batch * way.outputs,
            "total" if more else "output map",
        )
        size, right = (
            (outputs + more) * facts.item,
            (facts.batch * facts.ways[0].outputs + more) * facts.item,
        )
        if not (slips and outputs and size):
            continue
        made = _output_values(way, batch, outputs)
        values = f"({more:,} parameters + {outputs:,} output values)" if more else made
        text = f"{values} x {facts.item} B = {size:,} B"
        yield _Candidate(size, slips, text, right, "B", quantity)
        if size % UNITS["KiB"] == 0:
            kib, (whole, rest) = size // UNITS["KiB"], divmod(right, UNITS["KiB"])
            asked = (right, "B") if rest else (whole, "KiB")
            yield _Candidate(kib, slips, f"{text} = {kib:,} KiB", *asked, quantity)


def _value_counts(facts: Facts) -> Iterator[_Candidate]:
    weights, biases, right = facts.weights, facts.biases, facts.batch * facts.ways[0].outputs
    if weights:
        text = f"{weights:,} weights"
        yield _Candidate(weights, (f"weights{NOT_OPERATIONS}",), text, weights, "values", "weights")
        if biases:
            both = weights + biases
            text = f"{text} + {biases:,} biases = {both:,} values"
            yield _Candidate(
                both, (f"weights and biases{NOT_OPERATIONS}",), text, both, "values", "parameters"
            )
    for way, (batch, left) in product(facts.ways, _batches(facts)):
        outputs, said = batch * way.outputs, (*way.slips, *left)
        if not outputs:
            continue
        all_right = (weights + biases + right, "values", "total")
        whole, text = weights + biases + outputs, f"{weights:,} weights + {biases:,} biases"
        text += f" + {outputs:,} outputs = {whole:,} values"
        yield _Candidate(whole, (*said, f"values{NOT_OPERATIONS}"), text, *all_right)
        if biases:
            less = weights + outputs
            text = f"{weights:,} weights + {outputs:,} outputs = {less:,} values"
            yield _Candidate(
                less, (*said, f"values{NOT_OPERATIONS}", "bias left out"), text, *all_right
            )
        text = _output_values(way, batch, outputs)
        yield _Candidate(
            outputs, (*said, f"output values{NOT_OPERATIONS}"), text, right, "values", "output map"
        )


def _output_values(way: Way, batch: int, outputs: int) -> str:
    """ "64 x 64 x 11 x 11 = 495,616 output values"."""
    sizes = [size for size in (batch, *way.shape) if way.shape and size > 1]
    return f"{f'{times(*sizes)} = ' if len(sizes) > 1 else ''}{outputs:,} output values"


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
            yield _Candidate(
                total, (*way.slips, *left, slip), f"{text} {'FLOP' if double == 2 else 'MAC'}"
            )
