"""The first screen in a browser: findings, matrix and charts; a first reader's question; tables'
order; paper; axe."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from perfctl import ingest
from perfctl.orchestrator.commands.report import report
from perfctl.records.paper import LayerCall
from perfctl.records.report import Range, Step
from tests.make import synthetic
from tests.report.visit import Visit, on_a_screen_and_a_phone, violations, write_page

ROOT = Path(__file__).parents[3]
LAYERS = 160
SCREEN = 900
RECORDED = ("tests/data/recorded-cpu/torch", "tests/data/recorded-cpu/nsys")
TOPS = "all => all.filter(one => one.checkVisibility()).map(one => one.getBoundingClientRect().top)"
ORDERS = """() => [...document.querySelectorAll("th[aria-sort]")].map(head => {
  const place = head.cellIndex, rows = [...head.closest("table").tBodies[0].rows].filter(row => !row.matches(".gap"));
  const read = cell => Number(cell.dataset.v ?? (cell.title || cell.textContent).replaceAll(",", "").match(/[\\d.]+/)?.[0]);
  return [head.textContent, head.getAttribute("aria-sort"), rows.filter(row => !row.cells[place].matches(".no"))
    .map(row => read(row.cells[place]))];
})"""


def made(paths, folder):
    store = folder / "perfctl.db"
    ingest([ROOT / path for path in paths], store, jobs=1)
    return report(store, folder / "page.html").path


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return made(RECORDED, tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return made(("examples/mnist_v100_study",), tmp_path_factory.mktemp("study"))


def deep_run(number, batch):
    """Two steps of 160 layers on a CPU; a later layer takes more time."""
    ranges, calls = [], []
    for step in range(2):
        start = step * 10_000_000
        ranges.append(
            Range(
                len(ranges), f"perfctl:step:{step}", None, start, 9_000_000, 7, 0, None, step=step
            )
        )
        whole = len(ranges) - 1
        for place in range(LAYERS):
            at, took = start + 40_000 * place, (100 + place) * batch
            ranges.append(
                Range(
                    len(ranges),
                    f"block{place}.conv:forward",
                    None,
                    at,
                    took,
                    7,
                    1,
                    whole,
                    layer=f"block{place}.conv",
                    direction="forward",
                    step=step,
                )
            )
    for place in range(LAYERS):
        calls.append(
            LayerCall(
                f"block{place}.conv",
                "Conv2d",
                "forward",
                9,
                18,
                1,
                4,
                4,
                1,
                "9 MAC",
                position=place,
            )
        )
    steps = tuple(Step(step, "step", None, 9_000_000) for step in range(2))
    return synthetic.make_run(
        number, batch_size=batch, ranges=ranges, steps=steps, layer_calls=tuple(calls)
    )


def test_the_first_screen_has_findings_matrix_and_the_heads_of_both_charts(browser, demo):
    with Visit(browser, demo) as visit:
        tops = [
            max(visit.page.locator(part).evaluate_all(TOPS)[:most])
            for part, most in (
                (".findings li", 9),
                ("figure.matrix tbody tr", 5),
                (".part-charts figcaption", 2),
            )
        ]
        assert all(0 < top < SCREEN - 50 for top in tops), tops


def test_why_the_count_is_flat_is_answered_by_at_most_two_clicks(browser, study):
    with Visit(browser, study) as visit:
        finding = visit.page.locator(
            "#s1 .findings li", has_text="do not change with the batch size"
        )
        assert finding.first.is_visible(), "the first line of the study asks the question"
        finding.first.locator("a[data-trail]").click()  # the first click
        answer = visit.page.locator(".trail").inner_text()
        assert "batch of 1,000" in answer and f"{1000 * 24 * 24 * 64:,}" in answer
        assert "window" in answer
        visit.page.keyboard.press("Escape")
        finding.first.locator("summary").click()  # the other way, one click too
        assert "batch of 1,000" in finding.first.inner_text()


def test_tables_say_the_order_in_which_they_open(browser, demo):
    with Visit(browser, demo) as visit:
        orders = visit.page.evaluate(ORDERS)
        assert len(orders) > 1
        for label, order, values in orders:
            assert values == sorted(values, reverse=order == "descending"), label


def test_a_page_of_160_layers_prints_every_row_of_the_matrix_and_the_totals(browser, tmp_path):
    file = write_page(tmp_path, [deep_run(1, 4), deep_run(2, 8)])
    with Visit(browser, file) as visit:
        assert (
            1
            < len(re.findall(rb"/Type\s*/Page[^s]", visit.page.pdf(prefer_css_page_size=True)))
            <= 12
        )
        visit.page.emulate_media(media="print")
        rows = visit.page.locator(".matrix tbody tr th").evaluate_all(
            "all => all.filter(one => one.checkVisibility()).map(one => one.textContent)"
        )
        assert len(rows) == LAYERS
        assert visit.page.locator(".matrix tfoot").is_visible()
        assert not visit.page.locator("table.ledger").is_visible()


@on_a_screen_and_a_phone
def test_axe_finds_nothing_at_all_on_a_page_of_several_studies(
    browser: Any, study: Path, options: dict[str, Any]
) -> None:
    with Visit(browser, study, **options) as visit:
        assert visit.fits()
        assert violations(visit) == []
