"""Runs with repeats for the tests of comparisons."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from tests.make.two_sides import maker_of_runs, maker_of_sides


@pytest.fixture
def one(synthetic: ModuleType) -> Any:
    """one(number, dice, noise, ...): a run for a comparison."""
    return maker_of_runs(synthetic)


@pytest.fixture
def side(one: Any) -> Any:
    """side("A", 5, dice, ...): so many repeats of one run."""
    return maker_of_sides(one)
