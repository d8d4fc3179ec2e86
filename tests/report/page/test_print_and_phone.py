"""The page on paper and on a phone, its tab stops, its numbers, and its ticks, in a browser."""

import re

import pytest

from tests.make import synthetic
from tests.report.visit import Visit, write_page

LETTERS = """() => {
  document.querySelectorAll("details.fold").forEach(part => { part.open = true; });
  const lines = node => { const range = document.createRange(); range.selectNodeContents(node);
    return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size; };
  return [...document.querySelectorAll("td, th, dt, dd, p, li span")].filter(node => node.checkVisibility() && !node.childElementCount)
    .filter(node => { const text = node.textContent.trim();
      return text.length > 4 && lines(node) > text.length / 2; }).map(node => node.textContent);
}"""
STOPS = """() => {
  const tables = "figure.table table, figure.matrix table, figure.launches table";
  const first = [...document.querySelectorAll(tables)].find(one => one.checkVisibility());
  return [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex]")]
    .filter(one => one.tabIndex >= 0 && one.checkVisibility()
      && first.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_PRECEDING).length;
}"""
BROKEN = """() => {
  const range = document.createRange(), broken = [];
  for (const header of document.querySelectorAll("th")) {
    if (!header.checkVisibility()) continue;
    const walker = document.createTreeWalker(header, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) for (const word of node.data.matchAll(/\\w{3,20}/g)) {
      range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) broken.push(word[0]);
    }
  }
  return broken;
}"""
TICKS = """() => {
  const said = [], plain = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    if (y === 4) said.push(text); return plain.apply(this, arguments); };
  const button = document.querySelector('figure.timeline button[title="Zoom in"]'), rounds = [];
  for (let n = 0; n < 24; n++) { said.length = 0; button.click(); rounds.push([...said]); }
  CanvasRenderingContext2D.prototype.fillText = plain;
  return rounds;
}"""


@pytest.fixture(scope="module")
def visit(browser, tmp_path_factory):
    """One open page: a sweep on a GPU with counters and times, and a trace without layers."""
    runs = [*synthetic.gpu_sweep(16, 64), synthetic.foreign_run(260)]
    file = write_page(tmp_path_factory.mktemp("phone"), runs)
    with Visit(browser, file) as found:
        yield found


def test_a_phone_scrolls_down_only_and_no_word_stands_letter_below_letter(visit):
    visit.page.set_viewport_size({"width": 400, "height": 800})
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 400
    assert visit.page.evaluate(LETTERS) == []
    visit.page.set_viewport_size({"width": 1280, "height": 900})


def test_the_first_table_is_reached_in_fewer_than_80_tab_stops(visit):
    assert 0 < visit.page.evaluate(STOPS) < 80


def test_a_table_of_few_columns_is_not_stretched_over_the_page(visit):
    widths = visit.page.evaluate(
        """() => [...document.querySelectorAll("figure.table")].filter(one => one.checkVisibility())
          .map(one => [one.querySelectorAll("thead th").length, one.getBoundingClientRect().width])
          .filter(([columns]) => columns < 4)"""
    )
    assert all(width < 1000 for _, width in widths), widths


def test_no_column_of_the_page_is_dashes_throughout(visit):
    dashes = visit.page.evaluate(
        """() => [...document.querySelectorAll("figure.table table")].flatMap(table =>
          [...table.tHead.rows[0].cells].map((head, place) => [head.textContent, [...table.tBodies].flatMap(body => [...body.rows])
            .map(row => row.cells[place]).filter(Boolean)]).filter(([, cells]) => !table.matches(".ledger") && cells.length
              && cells.every(cell => cell.classList.contains("no"))).map(([label]) => label))"""
    )
    assert dashes == []


def test_sorting_by_a_number_reads_it_in_full(visit):
    values = visit.page.evaluate(
        """() => { const table = document.querySelector(".part-kernels figure.table table");
          const place = [...table.tHead.rows[0].cells].findIndex(head => head.textContent.includes("time"));
          table.tHead.rows[0].cells[place].click(); table.tHead.rows[0].cells[place].click();
          return [...table.tBodies[0].rows].map(row => parseFloat(row.cells[place].title.replaceAll(",", ""))); }"""
    )
    assert len(values) > 1
    assert values == sorted(values)


def test_ticks_of_the_timeline_differ_at_every_zoom(visit):
    rounds = visit.page.evaluate(TICKS)
    assert any(len(labels) > 2 for labels in rounds)
    assert all(len(labels) == len(set(labels)) for labels in rounds), rounds


def test_paper_gets_a_summary_of_few_sheets_with_its_colours(visit):
    sheets = len(re.findall(rb"/Type\s*/Page[^s]", visit.page.pdf(prefer_css_page_size=True)))
    assert 1 < sheets <= 8 * 2  # two studies
    visit.page.emulate_media(media="print")
    seen = (
        "node => [...document.querySelectorAll(node)].filter(one => one.checkVisibility()).length"
    )
    assert visit.page.evaluate(f"({seen})('.findings li')") > 0
    assert visit.page.evaluate(f"({seen})('figure.matrix')") > 0
    assert visit.page.evaluate(f"({seen})('.controls, .launches, nav.parts')") == 0
    swatch = visit.page.evaluate(
        "getComputedStyle(document.querySelector('.legend i')).printColorAdjust"
    )
    assert swatch == "exact"
    visit.page.emulate_media(media="screen")


def test_a_kernel_shows_its_short_name_and_keeps_the_whole_one_for_the_hover(
    browser, tmp_path_factory
):
    start = "void at::native::vectorized_elementwise_kernel<4, at::native::"
    names = [
        f"{start}{functor}<float>, at::detail::Array<char*, 3> >(int)"
        for functor in ("AddFunctor", "MulFunctor")
    ]
    kernels = [
        synthetic.foreign_run(1).report.kernels[0]._replace(launch=at, name=name)
        for at, name in enumerate(names)
    ]
    file = write_page(tmp_path_factory.mktemp("names"), [synthetic.foreign_run(1, kernels=kernels)])
    with Visit(browser, file) as found:
        assert "at::native" not in found.page.inner_text("body")
        for table in (".part-kernels figure.table", "figure.launches"):
            cells = found.page.evaluate(
                f"[...document.querySelectorAll('{table} td.code')].map(one => [one.textContent, "
                "one.title])"
            )
            assert {title.partition(" ;")[0].strip() for _, title in cells} == set(names)
            assert len({text for text, _ in cells}) == 2


def test_printed_headers_break_between_words_and_after_the_dots_of_names_only(browser, tmp_path):
    layer = "features.RowParallelLinear.QKVParallelLinear.YaRNScalingRotaryEmb"
    step = next(run for run in synthetic.gpu_sweep(16) if run.profiler == "nsys")
    kernels = [kernel._replace(layer=kernel.layer and layer) for kernel in step.report.kernels]
    run = synthetic.with_report(step, kernels=kernels)
    with Visit(browser, write_page(tmp_path, [run])) as found:
        found.page.emulate_media(media="print")
        found.page.set_viewport_size({"width": 688, "height": 1000})
        assert layer in found.page.locator("th", has_text="YaRN").first.text_content()
        assert found.page.evaluate(BROKEN) == []


def test_a_table_is_one_tab_stop_and_arrows_move_between_its_headers_and_dashes(visit):
    stops = """() => [...document.querySelectorAll("figure.table table:not(.ledger)")].map(table =>
      table.querySelectorAll("[tabindex='0'], a[href]:not([tabindex]), summary:not([tabindex])").length)"""
    counts = visit.page.evaluate(stops)
    assert counts and set(counts) == {1}
    table = visit.page.locator(".part-runs figure.table").first
    heads = table.locator("thead th")
    heads.first.focus()
    visit.page.keyboard.press("ArrowRight")
    assert heads.nth(1).evaluate("head => head === document.activeElement && head.tabIndex === 0")
    visit.page.keyboard.press("ArrowLeft")
    assert heads.first.evaluate("head => head === document.activeElement")
    assert set(visit.page.evaluate(stops)) == {1}
