"""The browser of the report tests."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium under Playwright; skips where either is missing."""
    chromium = shutil.which("chromium")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        pytest.skip("chromium or playwright is not installed")
    from playwright.sync_api import Error, expect, sync_playwright

    expect.set_options(timeout=120_000)  # on a machine that does other things too
    with sync_playwright() as playwright:
        try:
            found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        except Error as error:
            pytest.skip(f"chromium does not start here: {str(error)[:200]}")
        yield found
        found.close()
