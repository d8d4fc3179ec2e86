"""The trail in a browser: by mouse, keyboard and link; the matrix is one tab stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.make import synthetic
from tests.report.visit import Visit, write_page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(tmp_path_factory.mktemp("trail"), synthetic.gpu_sweep(16, 64))


CELL = '.matrix a[data-trail="conv2/forward/64"]'


def test_a_click_on_a_ratio_opens_its_trail_and_the_link_opens_it_again(
    browser: Any, page: Path
) -> None:
    with Visit(browser, page) as visit:
        visit.page.locator(CELL).click()
        panel = visit.page.locator(".trail")
        panel.wait_for(state="visible")
        assert panel.locator("h2").inner_text() == "conv2 forward, batch 64"
        steps = panel.locator("li > h3").all_inner_texts()
        assert steps[0].startswith("Ratio") and steps[-1] == "Source"
        assert visit.page.locator('.matrix tr.lit[data-layer="conv2"]').count() == 2
        link = visit.page.url
        text = panel.inner_text()
        panel.get_by_role("button").click()
        assert panel.is_hidden() and "trail=" not in visit.page.url
    with Visit(browser, page) as visit:
        visit.page.goto(link)
        visit.page.reload()
        assert visit.page.locator(".trail").inner_text() == text
        visit.page.evaluate("location.hash = '#s1-kernels'")
        visit.page.wait_for_function("location.hash.includes('trail=')")
        assert visit.page.url.partition("#")[2].startswith("s1-kernels?"), (
            "a plain link keeps what is open"
        )


def test_the_keyboard_reaches_every_cell_from_one_tab_stop_and_escape_leads_back(
    browser: Any, page: Path
) -> None:
    with Visit(browser, page) as visit:
        assert visit.page.locator('.matrix a[tabindex="0"]').count() == 1
        visit.page.locator('.matrix a[tabindex="0"]').focus()
        visit.page.keyboard.press("ArrowRight")
        visit.page.keyboard.press("ArrowDown")
        chosen = visit.page.evaluate("document.activeElement.dataset.trail")
        assert chosen.endswith("/64") and visit.page.locator('.matrix a[tabindex="0"]').count() == 1
        visit.page.keyboard.press("Enter")
        assert visit.page.locator(".trail").is_visible()
        visit.page.keyboard.press("Escape")
        assert visit.page.locator(".trail").is_hidden()
        assert visit.page.evaluate("document.activeElement.dataset.trail") == chosen


def test_the_switch_shows_shares_and_stays_in_the_address(browser: Any, page: Path) -> None:
    with Visit(browser, page) as visit:
        visit.page.locator('.matrix input[value="share"]').check()
        assert (
            visit.page.locator(f"{CELL} .m-share").is_visible()
            and visit.page.locator(f"{CELL} .m-ratio").is_hidden()
        )
        link = visit.page.url
    with Visit(browser, page) as visit:
        visit.page.goto(link)
        visit.page.reload()
        assert visit.page.locator(f"{CELL} .m-share").is_visible()


def test_a_phone_shows_matrix_and_trail_without_scrolling_sideways(
    browser: Any, page: Path
) -> None:
    with Visit(browser, page, viewport={"width": 390, "height": 844}) as visit:
        visit.page.locator(CELL).click()
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
        box = visit.page.locator(".trail").bounding_box()
        assert box is not None and box["x"] >= 0 and box["width"] <= 390
