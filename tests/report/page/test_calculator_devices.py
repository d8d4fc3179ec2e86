"""The calculator's table of devices in a browser: what it opens on, its order, its units."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.counts.hardware.machines import BOARDS, flops_per_second
from perfctl.orchestrator.predict.prices import load
from tests.report.page.test_calculator_page import at, settled
from tests.report.visit import Visit


@pytest.fixture(scope="module")
def file(calculator_page: Path) -> Path:
    return calculator_page


@pytest.fixture
def visit(browser: Any, file: Path) -> Iterator[Any]:
    with Visit(browser, file) as opened:
        settled(opened.page)
        yield opened.page


def test_it_opens_on_a_gpu_with_a_price_of_the_newest_date_in_mixed_precision_and_the_command_names_the_type(
    visit: Any,
) -> None:
    assert visit.locator("#c-precision").input_value() == "mixed"
    alone = [
        price
        for price in load().certain.prices
        if price.board and price.count == 1 and price.on_demand
    ]
    newest, device = max(price.date for price in alone), visit.locator("#c-device").input_value()
    assert any((price.board.name, price.date) == (device, newest) for price in alone if price.board)
    assert f"in bf16 on {device}" in visit.locator("#sentence").inner_text()
    assert f"(price of {newest}" in visit.locator("#sentence").inner_text()
    assert "--precision bf16" in visit.locator("#command").inner_text()
    said = {
        row.locator("td").nth(0).locator("button").inner_text(): row.locator("td")
        .nth(5)
        .inner_text()
        for row in visit.locator("#gpus tbody tr").all()
    }
    for device in BOARDS:
        paths = flops_per_second(device.gpu)
        best = "bf16" if "tensor bf16" in paths else "fp16" if "tensor fp16" in paths else "fp32"
        assert said[device.name] == best, device.name
    assert {"bf16", "fp16", "fp32"} <= set(said.values())
    at(visit, "#model=vgg&device=P40")
    assert "in fp32 on P40" in visit.locator("#sentence").inner_text()
    assert "has no tensor cores for bf16 or fp16" in visit.locator("#notes").inner_text()


def test_the_devices_are_sorted_by_cost_or_by_time_and_the_link_keeps_which(visit: Any) -> None:
    from playwright.sync_api import expect

    exact = visit.evaluate("""() => { const page = perfctlCalculator, choice = page.firstChoice();
        return [...document.querySelectorAll("#c-device option")].map(({ value }) => {
            const a = page.answerOf({ ...choice, device: value });
            return a.room.fits ? [value, a.training?.value ?? null, a.cost?.value ?? null] : [value, null, null]; }); }""")
    names = [button.inner_text() for button in visit.locator("#gpus tbody button").all()]
    costs = {name: cost for name, _, cost in exact if cost is not None}
    assert [costs[name] for name in names[: len(costs)]] == sorted(costs.values()), (
        "those without a price come last"
    )
    times = {name: time for name, time, _ in exact if time is not None}
    visit.get_by_role("button", name="fastest first").click()
    names = [button.inner_text() for button in visit.locator("#gpus tbody button").all()]
    assert [times[name] for name in names[: len(times)]] == sorted(times.values())
    for word, values in (("fastest", times), ("cheapest", costs)):
        marked = (
            visit.locator("#gpus tr", has=visit.get_by_text(word, exact=True))
            .locator("button")
            .all_inner_texts()
        )
        assert marked and {values[name] for name in marked} == {min(values.values())}, word
    expect(visit).to_have_url(re.compile("sort=time"))
    visit.reload()
    settled(visit)
    assert visit.locator("#sorts [aria-pressed=true]").inner_text() == "fastest first"
    assert visit.locator("#gpus tbody button").first.inner_text() == names[0]


def test_a_column_of_times_has_one_unit_and_costs_have_cents(visit: Any) -> None:
    for link in ("#model=vgg&epochs=90", "#model=inception&epochs=900&batch=1"):
        at(visit, link)
        for column in (2, 7):
            units = set(visit.locator(f"#gpus td:nth-child({column}) u").all_inner_texts())
            assert len(units) == 1 and units <= {"µs", "ms", "s", "min", "h", "days"}, link
        costs = visit.locator("#gpus td.est:nth-child(3)").all_inner_texts()
        assert costs and all(
            re.fullmatch(r"~ (< \$0\.01|\$[\d,]+\.\d\d)", cost) for cost in costs
        ), costs


def test_a_curve_that_is_nearly_flat_has_two_labelled_ticks(visit: Any) -> None:
    found = visit.evaluate("""() => [[1, 1.3], [3.1, 3.5], [9.4e-4, 1.1e-3], [12, 90], [1, 1e6]].map(([low, high]) =>
        perfctlCalculator.tickValues(low, high, 1).map((v) => [v >= low * 0.999 && v <= high * 1.001, Number(v.toPrecision(3))]))""")
    for ticks in found:
        assert all(inside for inside, _ in ticks) and len({text for _, text in ticks}) >= 2
