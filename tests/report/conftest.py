"""Synthetic runs for the report tests."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

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


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium under Playwright; skips where either is missing."""
    chromium = shutil.which("chromium")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        pytest.skip("chromium or playwright is not installed")
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright:
        try:
            found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        except Error as error:
            pytest.skip(f"chromium does not start here: {str(error)[:200]}")
        yield found
        found.close()
