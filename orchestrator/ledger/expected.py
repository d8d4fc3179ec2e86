"""Formulas of the user's as rows of the ledger: which launches belong to a formula, what it
requires of them, and the product that it states.

A launch of a layer that has an estimate of its own stays in the layer's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from perfctl.orchestrator.counts.kernels.names import is_kernel_name_matching_glob
from perfctl.orchestrator.estimate.user_formulas import find_gemm_sizes
from perfctl.orchestrator.ledger.timing import Key, has_kernel_step_numbers, walk_enclosing_ranges
from perfctl.records.paper import LayerCall, OpShape
from perfctl.records.run import Expectation, Run

FORMULA = "formula"
"""Kind of the ledger rows whose estimate is a formula of the user's. Such a row has the formula's
pattern as its layer, and is "forward"."""


@dataclass(frozen=True, slots=True)
class FormulaWork:
    """What the formulas of a run say."""

    keys: Sequence[Key | None]
    """(layer, direction) of each kernel of the run, in order."""
    calls: tuple[LayerCall, ...] = ()
    """For one step; ``read_bytes`` are all bytes that the formula gives."""
    ops: tuple[OpShape, ...] = ()
    """Products of formulas such as 2*M*N*K."""


def match_kernels_to_user_formulas(
    run: Run, layer_keys: Sequence[Key | None], step_count: int
) -> FormulaWork:
    """Return the run's kernels by layer and formula. ``layer_keys``: those of its layers."""
    estimated = {(call.layer, call.direction) for call in run.layer_calls if call.flops is not None}
    ranges = {item.number: item for item in run.report.ranges}
    is_numbered = has_kernel_step_numbers(run)
    new_keys = list(layer_keys)
    instances: dict[str, set[tuple[str, int]]] = {}
    """Pattern -> its launches and ranges in the measured steps."""

    @cache
    def find_matching_user_formula(name: str, short_name: str | None) -> Expectation | None:
        return next(
            (
                expectation
                for expectation in run.expectations
                if is_kernel_name_matching_glob(expectation.pattern, name, short_name)
            ),
            None,
        )

    for index, kernel in enumerate(run.report.kernels):
        if layer_keys[index] in estimated:
            continue
        expectation, instance = (
            find_matching_user_formula(kernel.name, kernel.short_name),
            ("kernel", kernel.launch),
        )
        for item in (
            walk_enclosing_ranges(kernel.range_number, ranges) if expectation is None else ()
        ):
            expectation, instance = (
                find_matching_user_formula(item.name, None),
                ("range", item.number),
            )
            if expectation is not None:
                break
        if expectation is None:
            continue
        new_keys[index] = (expectation.pattern, "forward")
        if kernel.step is not None or not is_numbered:
            instances.setdefault(expectation.pattern, set()).add(instance)
    counts = {pattern: Fraction(len(items), step_count) for pattern, items in instances.items()}
    expected = [
        (expected_work, counts[expected_work.pattern])
        for expected_work in run.expectations
        if expected_work.pattern in counts
    ]
    return FormulaWork(
        new_keys,
        tuple(
            _build_formula_call(run, expected_work, count, position)
            for position, (expected_work, count) in enumerate(expected)
        ),
        tuple(
            op
            for expected_work, count in expected
            for op in _parse_formula_gemm_ops(run, expected_work, count)
        ),
    )


def _build_formula_call(
    run: Run, expectation: Expectation, calls_per_step: Fraction, position: int
) -> LayerCall:
    text = expectation.formula or "registered formula"
    values = ", ".join(f"{item.name}={item.value}" for item in run.parameters)
    times = f" x {float(calls_per_step):g} launches or ranges" if calls_per_step != 1 else ""
    total = None if expectation.flops is None else round(expectation.flops * calls_per_step)
    result = "" if total is None else f" = {total:,} FLOP"
    return LayerCall(
        layer=expectation.pattern,
        kind=FORMULA,
        direction="forward",
        macs=None,
        flops=total,
        parameters=None,
        read_bytes=None if expectation.bytes is None else round(expectation.bytes * calls_per_step),
        write_bytes=None,
        output_elements=None,
        formula=f"{text} at {values or 'no parameter'}{times}{result}",
        position=position,
    )


def _parse_formula_gemm_ops(
    run: Run, expectation: Expectation, calls_per_step: Fraction
) -> tuple[OpShape, ...]:
    """Return the matrix product that a formula states; () for any other."""
    text = (expectation.formula or "").partition("flops=")[2].partition(", bytes=")[0]
    numbers = {
        item.name: Fraction(item.number) for item in run.parameters if item.number is not None
    }
    sizes = find_gemm_sizes(text, numbers) if text and calls_per_step.denominator == 1 else None
    if sizes is None:
        return ()
    m, n, k = sizes
    shapes = ((m, k), (k, n)), ((m, n),)
    op = OpShape(
        expectation.pattern, FORMULA, "aten.mm", "forward", *shapes, calls=int(calls_per_step)
    )
    return (op,)
