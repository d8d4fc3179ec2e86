"""The browser of the report tests."""

import importlib.util
import shutil

import pytest

from perfctl.orchestrator.cli.main import run_command_line


@pytest.fixture(scope="session")
def browser():
    """Debian's Chromium under Playwright; skips where either is missing."""
    chromium = shutil.which("chromium")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        pytest.skip("chromium or playwright is not installed")
    from playwright.sync_api import Error, expect, sync_playwright

    expect.set_options(timeout=120_000)  # on a machine that does other things too
    with sync_playwright() as playwright:
        try:
            found = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
            )
        except Error as error:
            pytest.skip(f"chromium does not start here: {str(error)[:200]}")
        yield found
        found.close()


@pytest.fixture(scope="session")
def calculator_page(tmp_path_factory):
    """What ``perfctl calculator`` writes without a store: the page of all its tests. Read only."""
    folder = tmp_path_factory.mktemp("calculator")
    words = [
        "calculator",
        "--out",
        str(folder / "c.html"),
        "--models",
        "none",
        "--store",
        str(folder / "no.db"),
    ]
    assert run_command_line(words) == 0
    return folder / "c.html"
