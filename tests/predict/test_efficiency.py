"""Learned efficiency: never above 1, never falling with batch."""

from __future__ import annotations

import math
import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfctl.orchestrator.predict import efficiency
from perfctl.orchestrator.predict.efficiency import (
    FitSample,
    FitSettings,
    fit_efficiency,
)

patient = settings(deadline=None)
"""The first example waits for the fit."""


def made(batch, depth):
    """A made-up operation: its row of features and its floor in seconds."""
    return (batch, depth, batch * depth), 1e-6 * batch * depth + 1e-5


@cache
def fitted():
    """Learned once, from 300 made-up times with noise: efficiency rises with size towards 0.8."""
    pytest.importorskip("sklearn")
    rng = random.Random(5)
    drawn = [(rng.randint(1, 128), math.exp(rng.uniform(0, 5))) for _ in range(300)]
    rows, floors = zip(*(made(batch, depth) for batch, depth in drawn), strict=True)
    taken = [
        floor / 0.8 * (1 + 100 / (row[2] + 10)) * math.exp(rng.gauss(0, 0.05))
        for row, floor in zip(rows, floors, strict=True)
    ]
    sample = FitSample(
        ("batch", "depth", "work"), rows, floors, taken, [d for _, d in drawn], ("batch", "work")
    )
    return fit_efficiency("made up", sample, FitSettings(rounds=60, power=4))


def predict(fitted, row, floor):
    (found,) = efficiency.predict_seconds(fitted, [row], [floor])
    return found


sizes = st.tuples(st.integers(1, 100_000), st.floats(0.01, 1e6))


@patient
@given(sizes, st.integers(1, 1000))
def test_a_larger_batch_is_never_faster(size: tuple[int, float], more: int) -> None:
    batch, depth = size
    assert (
        predict(fitted(), *made(batch + more, depth)).seconds
        >= predict(fitted(), *made(batch, depth)).seconds
    )


@patient
@given(sizes)
def test_efficiency_lies_above_0_and_up_to_1_and_the_interval_around_the_time(
    size: tuple[int, float],
) -> None:
    found = predict(fitted(), *made(*size))
    assert 0 < found.efficiency <= 1
    assert found.floor <= found.low <= found.seconds <= found.high


def test_it_learns_what_it_was_shown():
    assert fitted().error < 0.1
    assert fitted().rows == 300
