"""Synthetic runs for the analysis tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.analyse.two_sides import maker_of_runs, maker_of_sides


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """The builders in synthetic.py."""
    path = Path(__file__).with_name("synthetic.py")
    spec = importlib.util.spec_from_file_location("perfctl_tests_synthetic", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def one(synthetic: ModuleType) -> Any:
    """one(number, dice, noise, ...): a run for a comparison."""
    return maker_of_runs(synthetic)


@pytest.fixture
def side(one: Any) -> Any:
    """side("A", 5, dice, ...): so many repeats of one run."""
    return maker_of_sides(one)
