"""The timeline in a browser: zoom, sums of a selection, search, arrows, the lit layer, the address,
and its text twin."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.ledger.usage.run_usage import RunUsage
from perfctl.records.report import Copy, Kernel, Range
from perfctl.records.run import Run
from tests.make import synthetic
from tests.report.visit import Visit, on_a_screen_and_a_phone, serious, write_page

STEPS, EACH, GAP = 40, 50, 1_000
"""Kernels of a step, one each GAP ns; every second one belongs to conv1."""
LONG = 700
"""ns of a kernel."""


def traced():
    ranges, kernels = [], []
    for step in range(STEPS):
        begin = step * EACH * GAP
        top = len(ranges)
        ranges.append(
            Range(top, f"perfctl:step:{step}", None, begin, EACH * GAP - 100, 1, 0, None, step=step)
        )
        for half, layer in enumerate(("conv1", "fc1")):
            start = begin + half * EACH // 2 * GAP + 10
            ranges.append(
                Range(
                    len(ranges),
                    f"{layer}:forward",
                    None,
                    start,
                    EACH // 2 * GAP - 200,
                    1,
                    1,
                    top,
                    layer=layer,
                    direction="forward",
                    step=step,
                )
            )
            for n in range(EACH // 2):
                at = start + n * GAP
                kernels.append(
                    Kernel(
                        len(kernels),
                        f"void {layer}_kernel<float>()",
                        None,
                        layer,
                        "forward",
                        step,
                        "range",
                        len(ranges) - 1,
                        0,
                        7,
                        4,
                        1,
                        1,
                        128,
                        1,
                        1,
                        start_ns=at,
                        duration_ns=LONG,
                    )
                )
    copies = [Copy("HtoD", 4096, 100, 900, None, 0, 7)]
    made = synthetic.make_run(
        1,
        profiler="nsys",
        device=synthetic.V100,
        batch_size=64,
        ranges=ranges,
        kernels=kernels,
        copies=copies,
        layer_calls=synthetic.layer_calls(64),
    )
    assert isinstance(made, Run)
    return made


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_page(tmp_path_factory.mktemp("timeline"), [traced()])


class Timeline:
    def __init__(self, visit):
        self.page = visit.page
        self.figure = visit.page.locator("figure.timeline")
        self.canvas = self.figure.locator("canvas")
        self.canvas.scroll_into_view_if_needed()

    def keys(self, *keys):
        self.canvas.focus()
        for key in keys:
            self.page.keyboard.press(key)
        self.wait_for_timers()

    def wait_for_timers(self):
        """Sums, address and what is found follow by timers of the page, which ran before this one."""
        self.page.evaluate("() => new Promise(done => setTimeout(done, 250))")

    def said(self):
        return str(self.figure.locator(".said").inner_text())

    def sums(self):
        return str(self.figure.locator(".sums").inner_text())

    def find(self, text):
        self.figure.locator("input").fill(text)
        self.wait_for_timers()
        return str(self.figure.locator("[role=status]").first.inner_text())


@pytest.fixture
def timeline(browser, file):
    with Visit(browser, file) as visit:
        yield Timeline(visit)


def test_the_sum_of_everything_is_what_the_analysis_says(timeline):
    timeline.keys("Home")
    (device,) = RunUsage(traced()).device_and_stream_busy_times
    whole = timeline.sums()
    assert f"{STEPS * EACH:,} kernels" in whole
    assert f"{STEPS * EACH * LONG / 1e6:.3g}" in whole
    assert device.busy_share is not None
    share = re.search(r"busy ([\d.]+)%", whole)
    assert share
    assert float(share[1]) == pytest.approx(100 * device.busy_share, abs=0.1)
    assert "1 copy" in whole


def test_a_dragged_span_has_its_own_sum_and_enter_zooms_on_it_and_escape_drops_it(timeline):
    timeline.keys("Home")
    box = timeline.canvas.bounding_box()
    middle = box["y"] + 60
    timeline.page.mouse.move(box["x"] + box["width"] / 4, middle)
    timeline.page.mouse.down()
    timeline.page.mouse.move(box["x"] + box["width"] / 2, middle, steps=3)
    timeline.page.mouse.up()
    timeline.wait_for_timers()
    assert timeline.sums().startswith("Selected")
    count = re.search(r"([\d,]+) kernels", timeline.sums())
    assert count
    assert int(count[1].replace(",", "")) == pytest.approx(STEPS * EACH / 4, abs=4)
    timeline.keys("Enter")
    span = STEPS * EACH * GAP / 4
    assert "timeline.s1=0." in timeline.page.url
    first, last = map(int, re.findall(r"timeline\.s1=0\.(\d+)-(\d+)", timeline.page.url)[0])
    assert last - first == pytest.approx(span, rel=0.02)
    timeline.keys("Escape")
    assert timeline.sums().startswith("On the screen")


LINES = """top => { const canvas = document.querySelector('figure.timeline canvas'), wide = canvas.width;
  const ink = getComputedStyle(canvas).color.match(/[0-9]+/g).slice(0, 3).map(Number), found = [];
  const { data } = canvas.getContext('2d').getImageData(0, top, wide, 15);
  for (let x = 0; x < wide; x++) for (let y = 0; y < 15; y++)
    if (ink.every((part, k) => Math.abs(data[4 * (y * wide + x) + k] - part) < 30)) { found.push(y); break; }
  return [found, wide]; }"""
"""Rows, of the 15 of a bar, at which a column of pixels has its first one in the colour of ink."""


def test_bars_smaller_than_a_pixel_are_columns_as_high_as_the_share_of_time_and_not_bars(
    browser, file
):
    places = {}
    for keys in (("Home",), ("Home", *["+"] * 8)):
        with Visit(browser, file) as visit:
            shown = Timeline(visit)
            shown.keys(*keys)
            kernels = round(shown.canvas.bounding_box()["height"]) - 2 * 17 - 20
            places[keys], wide = visit.page.evaluate(LINES, kernels)
    out, near = places.values()
    assert len(out) > 0.6 * wide, "three pixels of four have the top line of a column"
    assert sum(out) / len(out) == pytest.approx(15 * (1 - LONG / GAP), abs=1.5), (
        "which stands at the share of time"
    )
    assert len(near) < 0.3 * wide, "zoomed in, kernels are bars: only their names are in ink"


def test_search_counts_steps_through_what_it_finds_and_says_where(timeline):
    assert timeline.find("fc1_kernel") == f"{STEPS * EACH // 2:,} found"
    timeline.figure.get_by_role("button", name="Next found").click()
    assert "fc1_kernel" in timeline.said()
    first = timeline.said()
    timeline.figure.get_by_role("button", name="Next found").click()
    assert timeline.said() != first
    timeline.figure.get_by_role("button", name="Previous found").click()
    assert timeline.said() == first
    assert timeline.find("nothing of this name") == "0 found"


def test_an_arrow_leads_from_the_range_to_its_kernels_and_back(timeline):
    timeline.find("fc1_kernel")
    timeline.figure.get_by_role("button", name="Next found").click()
    assert timeline.canvas.get_attribute("data-arrows") == "1"
    assert "launched inside fc1 forward" in timeline.said()
    timeline.find("")
    timeline.keys("Escape", "ArrowRight", "ArrowRight")
    assert "conv1 forward" in timeline.said()
    assert f"launched {EACH // 2} kernels itself" in timeline.said()
    assert timeline.canvas.get_attribute("data-arrows") == str(EACH // 2)


def test_the_lit_layer_comes_from_the_page_and_goes_to_it(timeline):
    timeline.page.evaluate("""() => { window.seen = [];
        document.addEventListener("perfctl:layer", event => window.seen.push([event.detail.layer, event.detail.direction])); }""")
    timeline.find("fc1_kernel")
    timeline.figure.get_by_role("button", name="Next found").click()
    assert timeline.page.evaluate("window.seen") == [["fc1", "forward"]]
    timeline.find("")
    timeline.keys("Escape", "Home")
    assert timeline.page.evaluate("window.seen").pop() == [None, None]
    before = timeline.canvas.screenshot()
    timeline.page.evaluate(
        "document.dispatchEvent(new CustomEvent('perfctl:layer', { detail: { layer: 'conv1', "
        "direction: null } }))"
    )
    assert timeline.canvas.screenshot() != before
    assert timeline.figure.locator("[data-layer=conv1]").inner_text() == "conv1"


def test_the_address_opens_the_same_view(browser, file, timeline):
    timeline.find("conv1")
    timeline.keys("ArrowRight", "ArrowRight", "s", "-", "-")
    sums, said, address = timeline.sums(), timeline.said(), timeline.page.url
    assert "timeline.s1" in address
    with Visit(browser, file) as visit:
        visit.open(address)
        again = Timeline(visit)
        assert (again.sums(), again.said()) == (sums, said)
        section = visit.page.locator("section:has(> figure.timeline)")
        assert section.evaluate("part => part.getBoundingClientRect().top < innerHeight / 2"), (
            "it opens at the drawing, not at the top of the page"
        )
        assert again.figure.locator("input").input_value() == "conv1"


def test_the_table_says_of_every_track_what_the_drawing_shows(timeline):
    timeline.keys("Home")
    timeline.figure.locator(".twin summary").click()
    timeline.figure.locator(".twin tbody tr").first.wait_for()  # the page writes it when it opens
    rows = [row.inner_text().split("\t") for row in timeline.figure.locator(".twin tbody tr").all()]
    counts = {cells[0]: cells[1] for cells in rows}
    assert counts["host ranges"] == f"{3 * STEPS}"
    assert counts["kernels, stream 7"] == f"{STEPS * EACH:,}"
    assert counts["copies, stream 7"] == "1"


@on_a_screen_and_a_phone
def test_axe_finds_nothing_serious_with_the_table_open(
    browser: Any, file: Path, options: dict[str, Any]
) -> None:
    with Visit(browser, file, **options) as visit:
        Timeline(visit).figure.locator(".twin summary").click()
        assert visit.fits()
        assert serious(visit) == []


def test_a_link_that_names_nothing_changes_nothing(browser, file):
    with Visit(browser, file) as visit:
        visit.open(
            f"{file.as_uri()}#s1-timeline?timeline.s1=9.x-y&timeline.s1.bar=77.99&"
            "timeline.s1.span=5-1"
        )
        assert Timeline(visit).sums().startswith("On the screen")
