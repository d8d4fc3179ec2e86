"""Verdicts on simulated networks whose hardware effects are known: the reasons told are true, and
the true ones are told."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.sample import sample

FOLDER = Path(__file__).resolve().parents[3] / "scripts" / "proof" / "verdicts"


@pytest.fixture(scope="module")
def simulator() -> Any:
    sys.path.insert(0, str(FOLDER))
    try:
        yield import_module("run")
    finally:
        sys.path.remove(str(FOLDER))


def test_an_effect_that_acts_alone_is_told_or_left_open_and_no_other_is(simulator: Any) -> None:
    """Two networks for each effect; ``make verdicts`` draws thousands."""
    scores = {
        (name, seed): simulator.score(seed, name)
        for name in ("clean", *simulator.ORDER)
        for seed in sample((1, 2), 2)
    }
    assert [
        (place, found.error, found.false)
        for place, found in scores.items()
        if found.error or found.false
    ] == []
    assert [place for place, found in scores.items() if not found.right] == []


def test_of_mixed_effects_no_false_one_is_told_and_nine_tenths_of_the_draws_are_right(
    simulator: Any,
) -> None:
    scores = [simulator.score(seed) for seed in sample(range(100), 4)]
    assert [found.false for found in scores if found.false] == []
    assert sum(found.right for found in scores) >= 0.9 * len(scores)
