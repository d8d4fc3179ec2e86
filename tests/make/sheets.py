"""What a worked sheet rests on, in a form that a test can compare."""

from __future__ import annotations

from perfctl.orchestrator.estimate.sheets.layers import Facts


def ways_of(facts: Facts | None) -> list[tuple[str, int]]:
    """Return the slip of each way with at most one ("" for the right one) and its multiply-adds
    for one sample."""
    assert facts is not None
    return [(", ".join(way.slips), way.macs) for way in facts.ways if not way.second_about]


def numbers_of(facts: Facts | None) -> tuple[int, int, int, bool, int]:
    """Return the batch, weights, biases, whether there is a bias, and the multiply-adds."""
    assert facts is not None
    return facts.batch, facts.weights, facts.biases, facts.bias, facts.macs
