"""The page in a browser: every link and control used, nothing loaded, hostile names stay text, no
serious axe finding."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.compare.compare import ComparisonSide, compare_two_sides
from perfctl.orchestrator.report.compare.page import build_comparison_page
from perfctl.orchestrator.report.page.page import render_view_as_html
from perfctl.orchestrator.report.tables import TURNING
from perfctl.records.report import Copy, Kernel, Range
from tests.make import synthetic
from tests.report.outline import HOSTILE
from tests.report.visit import Visit, on_a_screen_and_a_phone, serious, write_page

PRINTED = {"width": 688, "height": 1000}
OPEN_ALL = "document.querySelectorAll('details.single').forEach(part => { part.open = true })"
"""A4 without its margins, in CSS pixels."""


def gpu_step(number, batch):
    """An nsys run with ranges on two threads, two streams and a copy; every time made up from the
    batch size."""
    ranges, kernels = [], []
    for step in range(3):
        base, unit = step * 100 * batch * 100, batch * 100
        ranges.append(
            Range(len(ranges), f"perfctl:step:{step}", None, base, 80 * unit, 1, 0, None, step=step)
        )
        for place, layer in enumerate(("conv1", "conv2", "fc1", "fc2")):
            for direction, thread, at in (
                ("forward", 1, 8 * place),
                ("backward", 2, 70 - 8 * place),
            ):
                start = base + at * unit
                ranges.append(
                    Range(
                        len(ranges),
                        f"{layer}:{direction}",
                        None,
                        start,
                        7 * unit,
                        thread,
                        1,
                        None,
                        layer=layer,
                        direction=direction,
                        step=step,
                    )
                )
                name = f"kernel_{layer}"
                kernels.append(
                    Kernel(
                        len(kernels),
                        f"void {name}<float>(float*)",
                        name,
                        layer,
                        direction,
                        step,
                        "range",
                        None,
                        0,
                        7 + place % 2,
                        batch,
                        1,
                        1,
                        128,
                        1,
                        1,
                        start_ns=start + unit,
                        duration_ns=(2 + place) * unit,
                    )
                )
    copies = (Copy("HtoD", 4096, 100, 900, None, 0, 7),)
    return synthetic.make_run(
        number,
        profiler="nsys",
        device=synthetic.V100,
        batch_size=batch,
        ranges=ranges,
        kernels=kernels,
        copies=copies,
        layer_calls=synthetic.layer_calls(batch),
    )


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """A page with everything on it: a GPU sweep with counters, GPU steps with ranges, a CPU sweep,
    a failed run, a foreign report."""
    runs = synthetic.gpu_sweep(*synthetic.BATCHES)
    runs += [replace(gpu_step(300 + batch, batch), workload="timed_cnn") for batch in (16, 64)]
    runs += [
        replace(synthetic.cpu_run(200 + batch, batch), host=f"node{batch}") for batch in (16, 64)
    ]
    runs += [synthetic.failed_run(250, 256), synthetic.foreign_run(260)]
    return write_page(tmp_path_factory.mktemp("page"), runs)


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """One batch size of each kind: axe looks at every cell."""
    runs = [
        *synthetic.gpu_pair(1, 64),
        replace(gpu_step(2, 16), workload="timed_cnn"),
        synthetic.foreign_run(3),
    ]
    runs += [synthetic.cpu_run(4, 16), synthetic.failed_run(5, 256)]
    return write_page(tmp_path_factory.mktemp("small"), runs)


@pytest.fixture
def visit(browser, written):
    with Visit(browser, written) as opened:
        yield opened


def test_every_link_leads_to_what_it_names(visit):
    links = visit.page.evaluate("""() => [...document.querySelectorAll("a[href]:not([data-trail])")].map(link => {
        const href = link.getAttribute("href"), target = href.startsWith("#") && document.querySelector(href);
        link.click();
        const top = target ? target.getBoundingClientRect().top : null, end = document.body.scrollHeight - 2;
        return [href, location.hash, target && target.checkVisibility(), top, scrollY + innerHeight >= end];
    })""")
    assert len(links) > 50
    for href, place, shown, top, at_the_end in links:
        assert href.startswith("#") and place == href and shown, href
        assert top < 900 and (top > -60 or at_the_end), href


def test_every_table_sorts_both_ways_filters_and_gives_a_file(visit):
    from playwright.sync_api import expect

    page = visit.page
    page.evaluate(
        "document.querySelectorAll('details.fold').forEach(part => { part.open = true; })"
    )
    ways = page.locator("th.sortable").evaluate_all(
        "heads => heads.map(head => [0, 1].map(() => { head.click(); return "
        "head.getAttribute('aria-sort'); }))"
    )
    assert len(ways) > 50 and all(sorted(way) == ["ascending", "descending"] for way in ways)
    filters = page.locator("figure.table input[type=search]")
    assert filters.count() > 5
    filters.evaluate_all(
        "all => all.forEach(one => { one.value = 'no such name'; one.dispatchEvent(new "
        "Event('input')); })"
    )
    expect(page.locator("figure.table .controls [role=status]")).to_have_text(
        ["0 shown"] * filters.count()
    )
    filters.evaluate_all(
        "all => all.forEach(one => { one.value = ''; one.dispatchEvent(new Event('input')); })"
    )
    expect(page.locator("figure.table .controls [role=status]")).to_have_text(
        [""] * filters.count()
    )
    buttons = page.locator("button", has_text="CSV")
    for place in range(buttons.count()):
        if place % 8 == 0:
            page.reload()  # Chromium lets a page save ten files and then asks
        with page.expect_download() as waiting:
            buttons.nth(place).evaluate("node => node.click()")
        text = Path(waiting.value.path()).read_text(encoding="utf-8")
        assert text.count("\n") > 1 and "NaN" not in text


def test_a_file_for_spreadsheets_holds_no_formula_and_a_foreign_script_does_not_run(
    browser, tmp_path
):
    names = ('=HYPERLINK("http://x.example")', "+1|cmd", "@a", "\tb", "-1+1")
    kernels = [
        Kernel(place, name, start_ns=place, duration_ns=9) for place, name in enumerate(names)
    ]
    file = write_page(tmp_path, [synthetic.foreign_run(1, kernels=kernels)])
    with Visit(browser, file) as visit:
        with visit.page.expect_download() as waiting:
            visit.page.locator("#s1-launches button", has_text="CSV").evaluate(
                "node => node.click()"
            )
        with Path(waiting.value.path()).open(encoding="utf-8", newline="") as opened:
            rows = list(csv.reader(opened))
        place = rows[0].index("kernel")
        assert sorted(row[place] for row in rows[1:]) == sorted(f"'{name}" for name in names)
        assert {row[rows[0].index("time (ns)")] for row in rows[1:]} == {"9"}
        visit.page.evaluate(
            "() => { const one = document.createElement('script'); one.textContent = 'window.ran = "
            "1'; document.body.append(one); }"
        )
        assert visit.page.evaluate("window.ran") is None
        assert any("Content Security Policy" in said for said in visit.troubles)
        visit.troubles.clear()


def test_a_column_sorts_charts_say_the_value_under_pointer_and_arrow_keys_and_folds_open(visit):
    figure = visit.page.locator("#s1-launches")
    # as it opens
    assert figure.locator("th", has_text="time").get_attribute("aria-sort") == "descending"
    titles = figure.locator("tbody tr:nth-child(2) td").evaluate_all(
        "cells => cells.map(cell => cell.title)"
    )
    times = [
        int(float(title.split()[0].replace(",", ""))) for title in titles if title.endswith(" ns")
    ]
    assert times[0] == 3 * (2000 + 2 * 256 * 24 * 24 * 64 * 288 // 5000) + 1, (
        "conv2 backward at batch 256, under ncu"
    )
    chart = (
        visit.page.locator("figure", has_text="Executed / estimated FLOPs, by batch size")
        .locator("svg.chart")
        .first
    )
    chart.locator(".hit").first.hover()
    tip = visit.page.locator(".tip")
    assert "conv2 forward, batch 16: 0.50" in tip.inner_text()
    chart.focus()
    visit.page.keyboard.press("ArrowRight")
    assert "batch" in tip.inner_text()
    visit.page.keyboard.press("Escape")
    assert not tip.is_visible()
    opened = visit.page.locator("summary").evaluate_all(
        "all => all.map(one => { one.click(); return one.parentElement.open; })"
    )
    assert len(opened) > 10 and all(opened)
    for box in visit.page.locator("input[type=checkbox]").all():
        box.check()


def test_hostile_names_are_text_in_the_browser(browser, tmp_path):
    runs = []
    for number, name in enumerate(HOSTILE):
        step = gpu_step(2 * number + 1, 64)
        kernels = [
            kernel._replace(name=name, short_name=None, layer=name)
            for kernel in step.report.kernels
        ]
        ranges = [
            item if item.name.startswith("perfctl:") else item._replace(name=name, layer=name)
            for item in step.report.ranges
        ]
        report = replace(step.report, kernels=kernels, ranges=ranges, environment={name: name})
        run = replace(
            step,
            workload=name,
            host=name,
            artifact=name,
            sweep_command=name,
            command=(name,),
            report=report,
        )
        foreign = synthetic.foreign_run(
            2 * number + 2, kernels=[Kernel(0, name, start_ns=0, duration_ns=9)]
        )
        runs += [run, replace(foreign, host=name)]
    with Visit(browser, write_page(tmp_path, runs)) as visit:
        visit.page.evaluate(OPEN_ALL)
        assert visit.page.locator("img, iframe, object, embed").count() == 0
        assert visit.page.locator("script").evaluate_all(
            "all => all.every(one => one.type || one.textContent.startsWith('\\n\"use'))"
        )
        for name in (name.translate(dict.fromkeys(TURNING, "\ufffd")) for name in HOSTILE):
            study = (
                visit.page.locator("article", has=visit.page.locator("figure.timeline"))
                .filter(has=visit.page.locator("h2", has_text=name[:30]))
                .first
            )
            study.locator("canvas").first.focus()
            for key in ("ArrowRight", "ArrowDown", "ArrowDown", "Enter"):
                visit.page.keyboard.press(key)
            assert name[:20] in study.locator(".said").first.text_content()
            only = study.locator(".launches .more", has_text="kernel:").first
            assert name.strip() in (only.get_attribute("title") or "")
            assert only.text_content()


@pytest.mark.parametrize(
    "options", [{}, {"color_scheme": "dark"}, {"viewport": {"width": 390, "height": 844}}]
)
def test_axe_finds_nothing_serious(browser, small, options):
    with Visit(browser, small, **options) as visit:
        assert serious(visit) == []


@on_a_screen_and_a_phone
def test_a_comparison_stands_alone_and_axe_finds_nothing_serious(
    browser: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    a, b = (
        ComparisonSide(label, (synthetic.gpu_pair(number, 64)[0],))
        for label, number in (("before", 1), ("after", 3))
    )
    file = tmp_path / "compare.html"
    file.write_text(
        render_view_as_html(build_comparison_page(compare_two_sides(a, b))), encoding="utf-8"
    )
    with Visit(browser, file, **options) as visit:
        assert visit.fits()
        assert serious(visit) == []


def test_findings_tables_and_charts_stand_without_javascript(browser, written):
    with Visit(browser, written, java_script_enabled=False) as visit:
        for part in (
            ".findings li",
            "table.ledger tbody tr",
            "svg.chart path",
            "#s1-launches noscript .note",
        ):
            assert visit.page.locator(part).first.is_visible(), part


@pytest.mark.parametrize(
    ("width", "media"), [(390, "screen"), (1280, "screen"), (PRINTED["width"], "print")]
)
def test_nothing_is_wider_than_the_screen_or_the_sheet(browser, written, width, media):
    with Visit(browser, written, viewport={"width": width, "height": 900}) as visit:
        visit.page.emulate_media(media=media)
        assert visit.fits()
        if media == "print":
            assert visit.page.pdf(format="A4")[:5] == b"%PDF-"


def test_a_hundred_thousand_rows_draw_only_what_is_visible(browser, tmp_path):
    from playwright.sync_api import expect

    kernels = [
        Kernel(n, f"kernel_{n % 40}", start_ns=n * 4211, duration_ns=1000 + (n * 7919) % 50_000)
        for n in range(100_000)
    ]
    with Visit(browser, write_page(tmp_path, [synthetic.foreign_run(1, kernels=kernels)])) as visit:
        figure = visit.page.locator("#s1-launches")
        assert 10 < figure.locator("tbody tr").count() < 100
        figure.locator(".scroll").evaluate("node => { node.scrollTop = node.scrollHeight; }")
        expect(figure.locator('tr[aria-rowindex="100001"]')).to_have_count(1)
        figure.locator("input").fill("kernel_39")
        expect(figure.locator("[role=status]")).to_have_text("2500 shown")
