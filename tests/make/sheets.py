"""What a worked sheet rests on, in a form that a test can compare."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple

from perfctl.orchestrator.estimate.sheets.layers import ManualCheckFacts, SheetLine, SheetTensor


def ways_of(facts: ManualCheckFacts | None) -> list[tuple[str, int]]:
    """Return the slip of each way with at most one ("" for the right one) and its multiply-adds
    for one sample."""
    assert facts is not None
    return [
        (", ".join(way.slips), way.macs_per_sample) for way in facts.ways if not way.second_about
    ]


def numbers_of(facts: ManualCheckFacts | None) -> tuple[int, int, int, bool, int]:
    """Return the batch, weights, biases, whether there is a bias, and the multiply-adds."""
    assert facts is not None
    return facts.batch, facts.weights, facts.biases, facts.bias, facts.forward_macs_of_batch


def written(rows: Iterable[SheetLine | SheetTensor]) -> list[str]:
    """Return each line or item of a sheet as a line of text, its fields apart by bars."""
    return [" | ".join(map(str, astuple(row))) for row in rows]


def lines_of(text: str) -> list[str]:
    """Return the lines of a text that is indented as the test is."""
    return [line.strip() for line in text.strip().splitlines()]
