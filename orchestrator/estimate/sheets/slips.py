"""What a hand value is: the figure of the layer that was asked for, or what likely mistakes make of
it.

A value names its quantity ("1936 KiB", "18496 parameters", "9437184 backward MAC"); a bare number
is the forward pass of the batch that was asked for, in multiply-adds or FLOPs. It is right only if
it is that figure. Otherwise the mistakes that give it are named, the most plausible first: one
before two, a quantity left out before a slip of the pen, and a figure of something else last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from itertools import combinations
from typing import NamedTuple

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.flops.formulas import format_factors
from perfctl.orchestrator.estimate.sheets.layers import ManualCheckFacts
from perfctl.orchestrator.estimate.sheets.reasons import (
    BIAS,
    PARAMETERS,
    UNIT_NAMES,
    describe_values_counted_as_operations,
    describe_wrong_unit,
)
from perfctl.orchestrator.estimate.sheets.sheet import Sheet, SheetFigure

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
ALTERNATIVES_MAX = 3
_VALUE = re.compile(r"\s*(\d[\d,_' ]*(?:\.\d+)?(?:e[+-]?\d+)?)\s*(.*)", re.IGNORECASE)
_PREFIXES = {"k": 3, "m": 6, "g": 9, "t": 12, "p": 15}
_OPERATIONS = re.compile(r"([kmgtp]?)(mac|flop|multiply-add|madd)s?", re.IGNORECASE)
_SIZE = re.compile(r"([kmgt]?)(i?)(?:b|bytes?)", re.IGNORECASE)
_QUANTITIES = {
    "forward": "forward",
    "backward": "backward",
    "step": "forward and backward together",
    "training": "forward and backward together",
    "parameters": "parameters",
    "params": "parameters",
    "weights": "weights",
    "biases": "biases",
    "output": "output map",
    "outputs": "output map",
    "input": "input",
    "inputs": "input",
    "total": "total",
    "values": "",
    "value": "",
}
"""Word -> the figure of a sheet that it names; "": any of values."""
_NO_UNIT = ("operations", "ops", "map")
"""Words that students write and that name neither a unit nor a figure: FLOPs or multiply-adds,
output map."""


COSTS = {
    "batch": 1.0,
    "groups": 1.0,
    "bias": 1.05,
    "positions": 1.1,
    "unit": 1.1,
    "doubled": 1.25,
    "terms": 1.1,
    "one operation less": 1.15,
    "channels": 1.2,
    "kernel": 1.2,
    "map": 1.3,
    "digits": 1.3,
    "other pass": 1.3,
    "pooling": 1.35,
    "other batch": 1.4,
    "values": 1.5,
    "wider pooling": 1.6,
    "halved": 1.6,
    "other layer": 1.6,
    "arithmetic": 1.7,
    "pen": 1.8,
    "sizes": 1.8,
    "other figure": 2.7,
    "bytes": 2.85,
}
"""What a mistake is about -> its cost. A second mistake costs SECOND more."""
SECOND = 0.5
APART = 0.7
"""Alternatives that cost more than the best by this are not named."""
UNRELATED = 1.0
"""Cost of two mistakes of which neither is about the layer: a coincidence."""
_COUNTED = ("weights", "parameters", "total", "output map")
"""Quantities in values that count operations, so that no figure of operations is mistaken."""
_SIZES = {"positions", "map", "pooling", "wider pooling"}
"""Mistakes that change the output map: the factors of two of them do not multiply."""
_OF_NUMBERS = {"arithmetic", "digits", "halved", "pen"}


class StatedValue(NamedTuple):
    """A value as somebody wrote it, in its base unit."""

    text: str
    value: Fraction
    half_digit: Fraction = Fraction(0)
    """Half of the last digit that was written; 0 for a whole number without a prefix."""
    unit: str = ""
    """MAC, FLOP, values or B; "" where it is not said."""
    quantity: str = ""

    def equals_within_rounding(self, value: int | Fraction) -> bool:
        """Return whether the value is this one, rounded as it is written."""
        return abs(self.value - value) <= self.half_digit


def parse_stated_value(text: str) -> StatedValue:
    """Return "1,358,954,496", "44.04 M", "1.36e9 FLOP", "1936 KiB" or "18496 parameters". Raises
    UsageError for anything else."""
    match = _VALUE.fullmatch(text)
    digits = re.sub(r"[,_' ]", "", match[1]) if match else ""
    try:
        number = Decimal(digits)
    except InvalidOperation:
        raise _make_unreadable_error(text) from None
    assert match is not None
    scale, unit, quantity = 1, "", ""
    for part in match[2].split():
        size, operations = _SIZE.fullmatch(part), _OPERATIONS.fullmatch(part)
        if operations:
            scale *= 10 ** _PREFIXES.get(operations[1].lower(), 0)
            unit = "FLOP" if operations[2].lower() == "flop" else "MAC"
        elif part.lower() in _PREFIXES:
            scale *= 10 ** _PREFIXES[part.lower()]
        elif size:
            steps = " kmgt".index(size[1].lower() or " ")
            scale, unit = scale * (1024 if size[2] else 1000) ** steps, "B"
        elif part.lower() in _QUANTITIES:
            quantity = _QUANTITIES[part.lower()]
            is_pass = quantity.split(" ")[0] in ("forward", "backward")
            unit = unit or ("" if is_pass else "values")
        elif part.lower() not in _NO_UNIT:
            raise _make_unreadable_error(text)
    exponent = number.as_tuple().exponent
    is_exact = scale == 1 and "e" not in digits.lower() and "." not in digits
    half = 0 if is_exact else Fraction(10) ** int(exponent) * scale / 2
    return StatedValue(text.strip(), Fraction(number) * scale, Fraction(half), unit, quantity)


def _make_unreadable_error(text: str) -> UsageError:
    return UsageError(
        f"invalid value '{text}' for `check`",
        'For example 1358954496, "44.04 M", "1936 KiB" or "18496 parameters"',
    )


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """Where a manual estimate comes from."""

    value: int
    correct_value: int
    """The layer's figure, in ``unit``: multiply-adds for operations."""
    is_correct: bool
    mistakes: tuple[str, ...]
    """The mistakes that together give the value, the most plausible ones; empty if it is correct,
    and if no known mistake gives it."""
    derivation: str
    other_mistakes: tuple[tuple[str, ...], ...] = ()
    """Other mistakes that give the same value; ``other_derivations``: how each does."""
    other_derivations: tuple[str, ...] = ()
    unit: str = "MAC"
    quantity: str = ""
    """The figure that the value names."""
    stated: str = ""
    """The value as it was written."""

    @property
    def is_explained(self) -> bool:
        """Whether the value is correct, or mistakes give it."""
        return self.is_correct or bool(self.mistakes)

    @property
    def value_with_thousands_separators(self) -> str:
        """The value as it was written, with marked thousands."""
        return re.sub(r"^\d{4,}", lambda digits: f"{int(digits[0]):,}", self.stated)


class ShapeMistake(NamedTuple):
    """One thing that goes wrong, as factors on what is right."""

    text: str
    macs: Fraction
    """Factor on the multiply-adds."""
    outputs: Fraction
    """Factor on the output values."""
    about: str
    """Two mistakes about the same thing do not go together."""
    cost: float
    """The larger, the less plausible."""


class MistakenValue(NamedTuple):
    """A value that mistakes make of a figure."""

    value: Fraction
    slips: tuple[str, ...]
    worked: str
    cost: float
    meant: SheetFigure | None = None
    """The figure that somebody wanted to work out."""


def diagnose_stated_value(
    value: int | StatedValue,
    facts: ManualCheckFacts | None,
    figures: Sequence[SheetFigure] = (),
    *,
    sweep_batches: Iterable[int] = (),
    other_sheets: Iterable[Sheet] = (),
) -> CheckFinding:
    """Compare a value with the figure that it names, of a layer with these ``facts`` and
    ``figures``. ``sweep_batches``: other batch sizes of the sweep; ``other_sheets``: other layers,
    whose value may have been taken."""
    stated = value if isinstance(value, StatedValue) else StatedValue(f"{value:,}", Fraction(value))
    asked_figures = _find_figures_of_stated_quantity(stated, facts, figures)
    finding = CheckFinding(
        round(stated.value), 0, False, (), "", unit=stated.unit or "MAC", stated=stated.text
    )
    first_of: dict[str, SheetFigure] = {}
    for figure in asked_figures:
        if stated.equals_within_rounding(figure.value):
            return replace(
                finding,
                correct_value=figure.value,
                is_correct=True,
                derivation=figure.worked,
                unit=figure.unit,
                quantity=figure.quantity,
            )
        first_of.setdefault(figure.quantity, figure)
    meant = first_of.get("output map", next(iter(asked_figures), None))
    candidates = [
        candidate
        for figure in first_of.values()
        for candidate in compute_values_with_mistakes(stated, facts, figure, sweep_batches)
    ]
    candidates += _list_figures_of_other_quantities(figures, asked_figures)
    candidates += _list_figure_in_other_layers(other_sheets, meant)
    fitting = [
        candidate for candidate in candidates if stated.equals_within_rounding(candidate.value)
    ]
    if not fitting and meant:
        fitting = list(_list_digit_typos(stated, candidates, asked_figures))
    fitting.sort(key=lambda candidate: candidate.cost)
    distinct: dict[tuple[str, ...], MistakenValue] = {}
    for candidate in fitting:
        if (
            len(candidate.slips) <= len(fitting[0].slips)
            and candidate.cost <= fitting[0].cost + APART
        ):
            distinct.setdefault(candidate.slips, candidate)
    ranked = list(distinct.values())[:ALTERNATIVES_MAX]
    if ranked:
        meant = ranked[0].meant or meant
    if meant:
        finding = replace(
            finding, correct_value=meant.value, unit=meant.unit, quantity=meant.quantity
        )
    if not ranked:
        nearest = min(
            asked_figures, key=lambda figure: abs(figure.value - stated.value), default=None
        )
        return replace(finding, derivation=nearest.worked if nearest else "")
    best, *alternatives = ranked
    return replace(
        finding,
        mistakes=best.slips,
        derivation=best.worked,
        other_mistakes=tuple(candidate.slips for candidate in alternatives),
        other_derivations=tuple(candidate.worked for candidate in alternatives),
    )


def _find_figures_of_stated_quantity(
    stated: StatedValue, facts: ManualCheckFacts | None, figures: Sequence[SheetFigure]
) -> list[SheetFigure]:
    """Return the figures that the value may be, multiply-adds before FLOPs."""
    quantity = stated.quantity
    if stated.unit in ("", "MAC", "FLOP"):
        wanted_quantity = quantity or "forward"
        units = (stated.unit,) if stated.unit else ("MAC", "FLOP")
        matching = [
            figure
            for figure in figures
            if figure.quantity == wanted_quantity and figure.unit in units
        ]
        if not matching and facts is not None and wanted_quantity == "forward":
            matching = [figure for figure in _make_forward_figures(facts) if figure.unit in units]
        return matching
    matching = [figure for figure in figures if figure.unit == stated.unit]
    if quantity == "parameters":
        names = {figure.quantity for figure in matching}
        quantity = next((name for name in (quantity, "weights", "table") if name in names), "none")
    return [figure for figure in matching if quantity in ("", figure.quantity)]


def _make_forward_figures(facts: ManualCheckFacts) -> Iterator[SheetFigure]:
    text = " + ".join(format_factors(*term) for term in facts.ways[0].terms)
    if facts.batch > 1:
        text = f"{facts.batch:,} x {text if len(facts.ways[0].terms) == 1 else f'({text})'}"
    yield SheetFigure(
        "forward",
        facts.forward_macs_of_batch,
        "MAC",
        f"{text} = {facts.forward_macs_of_batch:,} MAC",
    )
    yield SheetFigure(
        "forward",
        2 * facts.forward_macs_of_batch,
        "FLOP",
        f"2 x {facts.forward_macs_of_batch:,} MAC = {2 * facts.forward_macs_of_batch:,} FLOP",
    )


def _list_single_mistakes(
    facts: ManualCheckFacts, sweep_batches: Iterable[int]
) -> list[ShapeMistake]:
    """Return all single mistakes in a layer's shapes and in its arithmetic."""
    right, unity = facts.ways[0], Fraction(1)
    mistakes: list[ShapeMistake] = []

    def add_mistake_if_effective(
        text: str, mistake_topic: str, mac_factor: Fraction, output_factor: Fraction = unity
    ) -> None:
        if mac_factor != unity or output_factor != unity:
            mistakes.append(
                ShapeMistake(text, mac_factor, output_factor, mistake_topic, COSTS[mistake_topic])
            )

    if facts.batch > 1:
        left_out = Fraction(1, facts.batch)
        add_mistake_if_effective(f"batch of {facts.batch} left out", "batch", left_out, left_out)
    for other in dict.fromkeys(sweep_batches):
        if other not in (1, facts.batch):
            factor = Fraction(other, facts.batch)
            text = f"batch of {other} instead of {facts.batch}"
            mistakes.append(ShapeMistake(text, factor, factor, "batch", COSTS["other batch"]))
    for way in facts.ways[1:]:
        outputs = Fraction(way.outputs, right.outputs) if right.outputs else unity
        for slip in way.slips if not way.second_about else ():
            add_mistake_if_effective(
                slip, way.about, Fraction(way.macs_per_sample, right.macs_per_sample), outputs
            )
    names = [*([(f"batch of {facts.batch}", facts.batch)] if facts.batch > 1 else []), *right.names]
    for name, size in names if len(right.terms) == 1 else ():
        for wrong in (size - 1, size + 1) if size > 2 else ():
            add_mistake_if_effective(
                f"{name} taken as {wrong:,}", "arithmetic", Fraction(wrong, size)
            )
    add_mistake_if_effective("a factor of 10 too much", "digits", Fraction(10), Fraction(10))
    if facts.batch != 10:
        add_mistake_if_effective(
            "a factor of 10 too little", "digits", Fraction(1, 10), Fraction(1, 10)
        )
    return mistakes


def compute_values_with_mistakes(
    stated: StatedValue,
    facts: ManualCheckFacts | None,
    intended_figure: SheetFigure,
    sweep_batches: Iterable[int],
) -> Iterator[MistakenValue]:
    """Yield what one or two mistakes make of the figure that was meant."""
    if facts is None or not facts.forward_macs_of_batch:
        return
    mistakes = _list_single_mistakes(facts, sweep_batches)
    is_operations = intended_figure.unit in ("MAC", "FLOP")
    sets: list[tuple[ShapeMistake, ...]] = [(), *((mistake,) for mistake in mistakes)]
    sets += [
        pair
        for pair in combinations(mistakes, 2)
        if pair[0].about != pair[1].about and not _SIZES.issuperset(item.about for item in pair)
    ]
    sets += _list_paired_mistakes(facts)
    for combined in sets:
        macs, outputs = (
            Fraction(facts.forward_macs_of_batch),
            Fraction(facts.batch * facts.ways[0].outputs),
        )
        for mistake in combined:
            macs, outputs = macs * mistake.macs, outputs * mistake.outputs
        changes_outputs = all(mistake.outputs != 1 or mistake.macs == 1 for mistake in combined)
        if is_operations:
            parts = [*_list_mistaken_operation_counts(stated, facts, macs, outputs)]
            parts += _list_value_counts_as_operations(facts, outputs) if changes_outputs else ()
        else:
            parts = (
                [*_list_mistaken_value_byte_counts(facts, intended_figure, outputs)]
                if changes_outputs
                else []
            )
        for value, value_mistake, about, worked in parts:
            slips = tuple(mistake.text for mistake in combined) + (
                (value_mistake,) if value_mistake else ()
            )
            abouts = [mistake.about for mistake in combined] + ([about] if value_mistake else [])
            if value > 0 and 0 < len(slips) < 3:
                cost = sum(COSTS[about] for about in abouts) + SECOND * (len(slips) > 1)
                cost += UNRELATED * (len(slips) > 1 and _OF_NUMBERS.issuperset(abouts))
                cost += sum(mistake.cost - COSTS[mistake.about] for mistake in combined)
                yield MistakenValue(value, slips, worked, cost, intended_figure)


def _list_paired_mistakes(facts: ManualCheckFacts) -> Iterator[tuple[ShapeMistake, ShapeMistake]]:
    """Yield a way with two mistakes in its shapes, or with one and a factor of its own off by 1.

    Of two mistakes in shapes, the first has the factors of both.
    """
    right = facts.ways[0]
    for way in facts.ways[1:]:
        if len(way.terms) != 1 or not way.slips:
            continue
        outputs = Fraction(way.outputs, right.outputs) if right.outputs else Fraction(1)
        shape = ShapeMistake(
            way.slips[0],
            Fraction(way.macs_per_sample, right.macs_per_sample),
            outputs,
            way.about,
            COSTS[way.about],
        )
        if way.second_about:
            cost = COSTS[way.second_about]
            yield (
                shape,
                ShapeMistake(way.slips[1], Fraction(1), Fraction(1), way.second_about, cost),
            )
        for name, size in way.names:
            for wrong in (size - 1, size + 1) if size > 2 else ():
                text = f"{name} taken as {wrong:,}"
                slip = Fraction(wrong, size)
                yield (
                    shape,
                    ShapeMistake(text, slip, Fraction(1), "arithmetic", COSTS["arithmetic"]),
                )


def _list_mistaken_operation_counts(
    stated: StatedValue, facts: ManualCheckFacts, macs: Fraction, outputs: Fraction
) -> Iterator[tuple[Fraction, str, str, str]]:
    """Yield (value, mistake besides, what it is about, how) of operations: in multiply-adds and
    FLOPs, and with what is added or doubled wrongly."""
    flops = 2 * macs
    units = (("MAC", macs), ("FLOP", flops))
    for unit, value in units:
        wrong = stated.unit not in ("", unit)
        other = describe_wrong_unit(unit, stated.unit) if wrong else ""
        yield value, other, "unit", f"{_format_fraction(value)} {unit}"
        bias = BIAS if facts.bias else "a bias addition for each output value"
        if outputs:
            terms = f"{_format_fraction(value)} + {_format_fraction(outputs)} bias additions"
            worked = f"{terms} = {_format_fraction(value + outputs)} {unit}"
            yield value + outputs, bias, "bias", worked
    doubled = "FLOP mistaken for MAC and doubled again"
    yield (
        4 * macs,
        doubled,
        "doubled",
        f"2 x {_format_fraction(flops)} = {_format_fraction(4 * macs)}",
    )
    halved = "halved, as if multiply-adds were FLOPs"
    yield macs / 2, halved, "halved", f"{_format_fraction(macs)} / 2 = {_format_fraction(macs / 2)}"
    if outputs:
        less = "one addition less than multiplications counted for each output value (2K - 1)"
        terms = f"{_format_fraction(flops)} - {_format_fraction(outputs)}"
        worked = f"{terms} = {_format_fraction(flops - outputs)} FLOP"
        yield flops - outputs, less, "one operation less", worked
    steps = [(3 * macs, "forward and backward together, as 3 x forward")]
    if facts.step:
        steps.insert(
            0, (macs * facts.step / facts.forward_macs_of_batch, "forward and backward together")
        )
    for value, name in steps:
        for unit, factor in (("MAC", 1), ("FLOP", 2)):
            yield value * factor, name, "other pass", f"{_format_fraction(value * factor)} {unit}"


def _list_value_counts_as_operations(
    facts: ManualCheckFacts, outputs: Fraction
) -> Iterator[tuple[Fraction, str, str, str]]:
    """Yield the same of numbers of values, which somebody took for operations."""
    parameters = facts.weights + facts.biases
    counts = {"output values": outputs, "weights": Fraction(facts.weights)}
    if facts.biases:
        counts[PARAMETERS] = Fraction(parameters)
        counts["weights and output values"] = facts.weights + outputs
    counts["weights, biases and output values"] = parameters + outputs
    for name, count in counts.items():
        if count:
            yield (
                count,
                describe_values_counted_as_operations(name),
                "values",
                f"{_format_fraction(count)} values",
            )


def _list_mistaken_value_byte_counts(
    facts: ManualCheckFacts, intended_figure: SheetFigure, outputs: Fraction
) -> Iterator[tuple[Fraction, str, str, str]]:
    """Yield the same of values and bytes: the output map, the parameters, and all together."""
    item = facts.item if intended_figure.unit == "B" else 1
    parameters = Fraction(facts.weights + facts.biases)
    totals = {"output map": outputs, "total": outputs + parameters, "parameters": parameters}
    value = totals.get(intended_figure.quantity)
    if value is None:
        return
    text = f"{_format_fraction(value)} values"
    if intended_figure.unit == "B":
        text = f"{text} x {item} B = {_format_fraction(value * item)} B"
    yield value * item, "", "values", text
    if facts.biases and intended_figure.quantity != "output map":
        value_without_bias = value - facts.biases
        yield (
            value_without_bias * item,
            "bias left out",
            "bias",
            f"{_format_fraction(value_without_bias * item)} {intended_figure.unit}",
        )
    if intended_figure.unit == "B":
        yield value, "values, not bytes", "unit", f"{_format_fraction(value)} values"
    for unit, size in UNITS.items() if intended_figure.unit == "B" else ():
        yield (
            value * item / size,
            f"{unit}, not bytes",
            "unit",
            f"{_format_fraction(value * item / size)} {unit}",
        )


def _list_figures_of_other_quantities(
    figures: Sequence[SheetFigure], asked_figures: Sequence[SheetFigure]
) -> Iterator[MistakenValue]:
    """Yield the figures of the layer that were not asked for."""
    are_operations = any(figure.unit in ("MAC", "FLOP") for figure in asked_figures)
    for figure in figures:
        is_counted = are_operations and figure.unit == "values" and figure.quantity in _COUNTED
        if figure not in asked_figures and not is_counted:
            slip = f"{figure.quantity}, in {UNIT_NAMES[figure.unit]}"
            cost = COSTS["bytes" if are_operations and figure.unit == "B" else "other figure"]
            yield MistakenValue(Fraction(figure.value), (slip,), figure.worked, cost)


def _list_figure_in_other_layers(
    other_sheets: Iterable[Sheet], intended_figure: SheetFigure | None
) -> Iterator[MistakenValue]:
    """Yield the same figure of the other layers."""
    for sheet in other_sheets:
        for figure in sheet.quantities:
            is_same = intended_figure is not None and figure.quantity == intended_figure.quantity
            if is_same and (figure.unit == "FLOP") <= (
                intended_figure is not None and intended_figure.unit in ("MAC", "FLOP")
            ):
                slip = f"the value of {sheet.layer or 'the model'}"
                yield MistakenValue(
                    Fraction(figure.value), (slip,), figure.worked, COSTS["other layer"]
                )


def _list_digit_typos(
    stated: StatedValue, candidates: Sequence[MistakenValue], asked_figures: Sequence[SheetFigure]
) -> Iterator[MistakenValue]:
    """Yield slips of the pen: two neighbouring digits swapped or one dropped, in a right value or
    in what one mistake makes."""
    typed = str(round(stated.value))
    rights = [
        MistakenValue(Fraction(figure.value), (), figure.worked, 0.0) for figure in asked_figures
    ]
    for candidate in (
        *rights,
        *(candidate_ for candidate_ in candidates if len(candidate_.slips) == 1),
    ):
        if candidate.value.denominator != 1 or len(typed) < 3:
            continue
        digits = str(candidate.value)
        slip = ""
        if sorted(digits) == sorted(typed) and digits != typed:
            first = next(
                index
                for index, pair in enumerate(zip(digits, typed, strict=True))
                if pair[0] != pair[1]
            )
            swapped = digits[:first] + digits[first : first + 2][::-1] + digits[first + 2 :]
            slip = "two digits swapped" if swapped == typed else ""
        elif len(digits) == len(typed) + 1:
            drops = (digits[:index] + digits[index + 1 :] for index in range(len(digits)))
            slip = "a digit left out" if typed in drops else ""
        if slip:
            cost = candidate.cost + COSTS["pen"] + SECOND * bool(candidate.slips)
            worked = f"{int(candidate.value):,} written as {int(typed):,}"
            yield MistakenValue(stated.value, (*candidate.slips, slip), worked, cost)


def _format_fraction(value: Fraction) -> str:
    return f"{int(value):,}" if value.denominator == 1 else f"{float(value):,.2f}"


def format_stated_value(finding: CheckFinding) -> str:
    """Return the value as it was written, with its unit if it is right."""
    is_bare = not re.search("[a-z]", finding.stated, re.IGNORECASE)
    return finding.value_with_thousands_separators + (
        f" {finding.unit}" if is_bare and not finding.mistakes else ""
    )


def explain_check_finding(finding: CheckFinding, layer: str = "") -> str:
    """Return the finding in a few sentences. ``layer``: its name, if the sentence must say it."""
    right = _format_correct_value(finding)
    if finding.is_correct:
        description = f"{finding.quantity}, in {UNIT_NAMES.get(finding.unit, finding.unit)}"
        other_unit = ""
        if finding.unit == "MAC":
            other_unit = f" In FLOPs: {2 * finding.correct_value:,}."
        elif finding.unit == "FLOP":
            other_unit = f" In multiply-adds: {finding.correct_value // 2:,}."
        return (
            f"{finding.value_with_thousands_separators} is correct: {description}. "
            f"{finding.derivation}.{other_unit}"
        )
    yours = (
        f"Your {finding.value_with_thousands_separators} for {layer}"
        if layer
        else finding.value_with_thousands_separators
    )
    if not finding.is_explained and not finding.quantity:
        return (
            f"perfctl cannot check {finding.value_with_thousands_separators}: the layer's "
            f"sheet has no such figure."
        )
    if not finding.is_explained:
        return (
            f"{yours} is not correct, and no common mistake or pair of mistakes gives it. Correct: "
            f"{right}."
        )
    ways = [(finding.mistakes, finding.derivation)]
    ways += zip(finding.other_mistakes, finding.other_derivations, strict=False)
    texts = [f"{' and '.join(mistakes)} ({derivation})" for mistakes, derivation in ways]
    return f"{yours} could come from {', or from '.join(texts)}. Correct: {right}."


def _format_correct_value(finding: CheckFinding) -> str:
    right, unit = finding.correct_value, finding.unit
    if not finding.quantity:
        return "unknown, because the layer's sheet has no such figure"
    suffix = f" ({finding.quantity})"
    if unit == "B":
        return f"{right:,} B = {right / UNITS['KiB']:,.2f} KiB{suffix}"
    if unit in ("MAC", "FLOP"):
        macs = right if unit == "MAC" else right // 2
        return f"{macs:,} MAC = {2 * macs:,} FLOP{suffix}"
    return f"{right:,} {unit}{suffix}"
