"""Synthetic runs for the report tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """The builders in analyse/synthetic.py."""
    path = Path(__file__).parent.parent / "analyse" / "synthetic.py"
    spec = importlib.util.spec_from_file_location("perfctl_tests_synthetic", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
