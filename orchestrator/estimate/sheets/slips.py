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
ROUNDED_KIB_MIN = 100
"""A value of fewer KiB is not taken for a rounded one: too many values would do."""
UNIT_NAMES = {
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
    """What the layer has, in ``unit``: multiply-adds if the value counts operations."""
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


class Candidate(NamedTuple):
    """A value that a layer's figures or slips make; the last four fields as in Finding."""

    value: int
    slips: tuple[str, ...]
    worked: str
    right: int
    unit: str = "MAC"
    quantity: str = ""


def check(value: int, facts: Facts | None, figures: Sequence[Quantity] = ()) -> Finding:
    """Explain ``value`` as one of a layer's ``figures``; without them it was meant as a number of
    its operations."""
    if matches := _figures_of_value(value, figures):
        quantity, *also = matches
        worked, unit = matches[quantity]
        return Finding(value, value, True, (), worked, (), (), unit, quantity, tuple(also))
    candidates: list[Candidate] = []
    same: list[Candidate] = []
    if facts is not None:
        # The likelier first: fewer slips, and of single ones the batch left out.
        candidates = sorted(
            _candidates(facts, bool(figures)),
            key=lambda candidate: (
                len(candidate.slips),
                len(candidate.slips) != 1 or not candidate.slips[0].startswith("batch of "),
            ),
        )
        same = [candidate for candidate in candidates if candidate.value == value]
        same = same or [candidate for candidate in _off_by_one(facts) if candidate.value == value]
    others: dict[tuple[str, ...], str] = {}
    if same:
        best = same[0]
        for candidate in same:
            if len(candidate.slips) == len(best.slips) and candidate.slips != best.slips:
                others.setdefault(candidate.slips, candidate.worked)
    else:
        # A figure rather than what a slip makes, if both are as near. KiB are left out: small
        # values would all be near them.
        near = [
            Candidate(figure.value, (), figure.worked, figure.value, figure.unit, figure.what)
            for figure in figures
        ]
        near += [candidate for candidate in candidates if not candidate.worked.endswith(" KiB")]
        best = min(near, key=lambda candidate: abs(candidate.value - value))
    return Finding(
        value,
        best.right,
        bool(same),
        best.slips,
        best.worked,
        tuple(others),
        tuple(others.values()),
        best.unit,
        best.quantity,
    )


def _figures_of_value(value: int, figures: Sequence[Quantity]) -> dict[str, tuple[str, str]]:
    """Return name -> (worked, unit) of the figures that are ``value``: in their own unit first,
    then bytes in KiB and MiB; without any, those that are ``value`` as rounded KiB."""
    matches = {
        f"{figure.what}, in {UNIT_NAMES[figure.unit]}": (figure.worked, figure.unit)
        for figure in figures
        if figure.value == value
    }
    sizes = [figure for figure in figures if figure.unit == "B"]
    for unit, size in UNITS.items():
        for figure in sizes:
            if figure.value == value * size:
                worked = f"{figure.worked} = {value:,} {unit}"
                matches.setdefault(f"{figure.what}, in {unit}", (worked, unit))
    if not matches and value >= ROUNDED_KIB_MIN:
        for figure in sizes:
            kib = figure.value / UNITS["KiB"]
            if round(kib) == value:
                worked = f"{figure.worked} = {kib:,.1f} KiB"
                matches.setdefault(f"{figure.what}, in KiB, rounded", (worked, "KiB"))
    return matches


def in_its_unit(finding: Finding) -> str:
    """Return "72 KiB"; the bare value if it counts operations otherwise than in multiply-adds."""
    unit = f" {finding.unit}" if finding.value == finding.right else ""
    return f"{finding.value:,}{unit}"


def explain(finding: Finding, layer: str = "") -> str:
    """Return the finding in a few sentences. ``layer``: its name, if the sentence must say it."""
    value, right, slips = f"{finding.value:,}", _right_value(finding), finding.slips
    if finding.exact and not slips:
        if finding.quantity:
            also = f" So are: {'; '.join(finding.also)}." if finding.also else ""
            return f"{value} is right: {finding.quantity}. {finding.worked}.{also}"
        more = ""
        if finding.value == finding.right:
            more = f" These are multiply-adds; in FLOP: {2 * finding.right:,}."
        return f"{value} is right: {finding.worked}.{more}"
    yours = f"Your {value} for {layer}" if layer else value
    if finding.exact:
        numbers = {1: "one slip", 2: "two slips", 3: "three slips"}
        count = numbers.get(len(slips), f"{len(slips)} slips")
        others = ""
        for other, worked in list(zip(finding.others, finding.others_worked, strict=False))[:3]:
            how = f" ({worked})" if worked != finding.worked else ""
            others += f"; or {_join_slips(other)}{how}"
        cause = f"{_join_slips(slips)}{others}. {finding.worked}"
        return f"{yours} comes from {count}: {cause}. Right is {right}."
    if finding.quantity and not slips:
        named = f"{finding.quantity}, in {UNIT_NAMES[finding.unit]}: {finding.worked}"
        return (
            f"{yours} is no figure of the layer, and no usual slip or combination of slips gives "
            f"it. The nearest is {named}."
        )
    how = f" ({_join_slips(slips)})" if slips else ""
    return (
        f"{yours} matches no usual slip or combination of slips. The nearest is "
        f"{finding.worked}{how}. Right is {right}."
    )


def _right_value(finding: Finding) -> str:
    right, unit = finding.right, finding.unit
    if unit in UNITS:
        text = f"{right:,} {unit} = {right * UNITS[unit]:,} B"
    elif unit == "B":
        text = f"{right:,} B = {right / UNITS['KiB']:,.1f} KiB"
    elif unit == "values":
        text = f"{right:,} values"
    else:
        return f"{right:,} MAC = {2 * right:,} FLOP"
    return f"{text} ({finding.quantity})"


def _join_slips(slips: tuple[str, ...]) -> str:
    return ", and ".join(filter(None, (", ".join(slips[:-1]), slips[-1])))


def _batches(facts: Facts) -> list[tuple[int, tuple[str, ...]]]:
    """Return (samples, slips): the batch, and one sample."""
    left_out = (1, (f"batch of {facts.batch} left out",))
    return [(facts.batch, ()), *([left_out] if facts.batch > 1 else [])]


def _ways(facts: Facts) -> Iterator[tuple[Way, int, tuple[str, ...]]]:
    """Yield (way, samples, slips) of all ways with and without the batch."""
    for way, (batch, left) in product(facts.ways, _batches(facts)):
        yield way, batch, (*way.slips, *left)


def _candidates(facts: Facts, any_figure: bool) -> Iterator[Candidate]:
    """Yield what the ways make in MAC and FLOP, then whole steps, values and bytes.

    ``any_figure``: the value may be any figure of the layer, not only a number of operations.
    """
    for (way, batch, slips), doubled, bias in product(_ways(facts), (1, 2, 4), (False, True)):
        if bias and not way.outputs:
            continue
        total = batch * way.macs * doubled
        text = " + ".join(times(*term) for term in way.terms)
        if front := [factor for factor in (doubled, batch) if factor > 1]:
            text = f"{times(*front)} x {text if len(way.terms) == 1 else f'({text})'}"
        if doubled == 4:
            slips = (*slips, "FLOP mistaken for MAC and doubled again")
        if bias:
            additions = batch * way.outputs
            total, text = total + additions, f"{text} + {additions:,} bias additions"
            counted = "a bias addition counted for every output value"
            slips = (*slips, "bias additions counted" if facts.bias else counted)
        unit = "MAC" if doubled == 1 else "FLOP"
        yield Candidate(total, slips, f"{text} = {total:,} {unit}", facts.macs)
    steps = [(3 * facts.macs, "forward and backward together, as 3 x forward")]
    if facts.step:
        steps.insert(0, (facts.step, "forward and backward together"))
    for (macs, slip), (batch, left), (factor, unit) in product(
        steps, _batches(facts), ((1, "MAC"), (2, "FLOP"))
    ):
        if macs % facts.batch == 0:
            total = macs // facts.batch * batch * factor
            yield Candidate(total, (slip, *left), f"{total:,} {unit}", facts.macs)
    yield from _value_counts(facts, any_figure)
    if any_figure:
        yield from _byte_counts(facts)


def _value_counts(facts: Facts, any_figure: bool) -> Iterator[Candidate]:
    """Yield numbers of values: a slip by themselves if the value counts operations."""
    weights, biases = facts.weights, facts.biases
    outputs_right = facts.batch * facts.ways[0].outputs

    def count(
        value: int,
        text: str,
        right: tuple[int, str],
        name: str,
        before: tuple[str, ...] = (),
        after: tuple[str, ...] = (),
    ) -> Candidate:
        if any_figure:
            return Candidate(value, (*before, *after), text, right[0], "values", right[1])
        return Candidate(value, (*before, f"{name}, not operations", *after), text, facts.macs)

    if weights:
        yield count(weights, f"{weights:,} weights", (weights, "weights"), "weights")
        if biases:
            both = weights + biases
            text = f"{weights:,} weights + {biases:,} biases = {both:,} values"
            yield count(both, text, (both, "parameters"), "weights and biases")
    total = (weights + biases + outputs_right, "total")
    for way, batch, slips in _ways(facts):
        outputs = batch * way.outputs
        if not outputs:
            continue
        values = weights + biases + outputs
        text = f"{weights:,} weights + {biases:,} biases + {outputs:,} outputs = {values:,} values"
        yield count(values, text, total, "values", slips)
        if biases:
            values -= biases
            text = f"{weights:,} weights + {outputs:,} outputs = {values:,} values"
            yield count(values, text, total, "values", slips, ("bias left out",))
        text = _output_values(way, batch)
        yield count(outputs, text, (outputs_right, "output map"), "output values", slips)


def _byte_counts(facts: Facts) -> Iterator[Candidate]:
    """Yield bytes and KiB of the output map of a way with a slip, alone and with the parameters."""
    parameters = dict.fromkeys((0, facts.weights + facts.biases))
    for (way, batch, slips), more in product(_ways(facts), parameters):
        outputs = batch * way.outputs
        size = (outputs + more) * facts.item
        right = (facts.batch * facts.ways[0].outputs + more) * facts.item
        if not (slips and outputs and size):
            continue
        quantity, values = "output map", _output_values(way, batch)
        if more:
            quantity, values = "total", f"({more:,} parameters + {outputs:,} output values)"
        text = f"{values} x {facts.item} B = {size:,} B"
        yield Candidate(size, slips, text, right, "B", quantity)
        if size % UNITS["KiB"] == 0:
            kib, (right_kib, rest) = size // UNITS["KiB"], divmod(right, UNITS["KiB"])
            meant = (right, "B") if rest else (right_kib, "KiB")
            yield Candidate(kib, slips, f"{text} = {kib:,} KiB", *meant, quantity)


def _output_values(way: Way, batch: int) -> str:
    """Return "64 x 64 x 11 x 11 = 495,616 output values"."""
    sizes = [size for size in (batch, *way.shape) if way.shape and size > 1]
    product_text = f"{times(*sizes)} = " if len(sizes) > 1 else ""
    return f"{product_text}{batch * way.outputs:,} output values"


def _off_by_one(facts: Facts) -> Iterator[Candidate]:
    """Yield what each way makes with one factor that is 1 too small or too large."""
    for (way, batch, slips), (front, unit) in product(
        _ways(facts), (("", "MAC"), ("2 x ", "FLOP"))
    ):
        if len(way.terms) != 1:
            continue
        names = [*([(f"batch of {batch}", batch)] if batch > 1 else []), *way.names]
        macs = batch * prod(way.terms[0])
        for (name, size), step in product(names, (-1, 1)):
            if size > 2:
                wrong, rest = size + step, macs // size
                total = rest * wrong * (2 if front else 1)
                text = f"{front}{rest:,} x {wrong:,} = {total:,} {unit}"
                slip = f"{name} taken as {wrong:,}"
                yield Candidate(total, (*slips, slip), text, facts.macs)
