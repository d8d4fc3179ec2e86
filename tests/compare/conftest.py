"""Runs with repeats for the tests of comparisons."""

from __future__ import annotations

from typing import Any

import pytest

from tests.make.two_sides import make_run, make_side


@pytest.fixture
def one() -> Any:
    """one(number, dice, noise, ...): a run for a comparison."""
    return make_run


@pytest.fixture
def side() -> Any:
    """side("A", 5, dice, ...): so many repeats of one run."""
    return make_side
