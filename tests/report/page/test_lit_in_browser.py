"""A layer chosen in one view lights up in every view, stays in the address, and goes dark with
Escape; the trail by mouse, keyboard and link."""

import pytest

from tests.make import synthetic
from tests.report.page.test_roofline_shown import with_levels
from tests.report.visit import Visit, serious, write_page

LIT = """() => Object.fromEntries([
    "figure.matrix tr", "table.ledger th", "svg a", "figure.icicle button", "figure.table tbody tr"].map(
    where => [where, [...new Set([...document.querySelectorAll(where + ".lit")].map(node => node.dataset.layer))]]))"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_page(tmp_path_factory.mktemp("lit"), with_levels(synthetic.gpu_sweep(16, 64)))


@pytest.fixture
def visit(browser, page):
    with Visit(browser, page) as opened:
        yield opened


def everywhere(visit, layer):
    """Every view has lit parts, all of them of this layer."""
    assert set(map(tuple, visit.page.evaluate(LIT).values())) == {(layer,)}


def test_a_name_in_the_matrix_lights_every_view_and_the_link_lights_them_again(visit):
    visit.page.locator(".matrix tbody b", has_text="conv2").first.click()
    everywhere(visit, "conv2")
    assert "layer=conv2&direction=forward" in visit.page.url
    assert visit.page.locator('.matrix tr[aria-current="true"]').count() == 1, (
        "one direction is current, both are lit"
    )
    assert "conv2 forward is lit" in visit.page.locator("p.hidden[role=status]").inner_text()
    link = visit.page.url
    visit.open(link)
    everywhere(visit, "conv2")
    visit.page.keyboard.press("Escape")
    assert visit.page.locator(".lit").count() == 0 and "layer=" not in visit.page.url


def test_names_are_one_tab_stop_a_table_and_work_by_keyboard(visit):
    names = visit.page.locator(".matrix tbody b[role=button]")
    assert names.count() == 8 and visit.page.locator(".matrix tbody b[tabindex='0']").count() == 1
    names.first.focus()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        visit.page.keyboard.press(key)
    everywhere(visit, "conv2")
    visit.page.keyboard.press("Enter")
    assert visit.page.locator(".lit").count() == 0, "a second time ends it"


def test_a_point_of_the_roofline_says_its_numbers_and_opens_the_trail(visit):
    chart = visit.page.locator("#s1-roofline svg.chart")
    link = chart.locator('a[data-trail="conv2/forward/64"]').first
    link.locator(".hit").hover()
    said = visit.page.locator(".tip").inner_text()
    assert (
        said.startswith("conv2 forward, batch 64, L1: ")
        and "FLOP/B" in said
        and "FLOP/s" in said
        and "bound by" in said
    )
    link.locator(".hit").click()
    assert visit.page.locator(".trail h2").inner_text() == "conv2 forward, batch 64"
    everywhere(visit, "conv2")
    visit.page.keyboard.press("Escape")
    assert visit.page.locator(".trail").is_hidden()
    everywhere(visit, "conv2")
    visit.page.keyboard.press("Escape")
    assert visit.page.locator(".lit").count() == 0
    assert chart.locator("a:not([tabindex='-1'])").count() == 0, "the drawing is one tab stop"
    chart.focus()
    visit.page.keyboard.press("ArrowRight")
    assert visit.page.locator(".tip").inner_text() == visit.page.evaluate(
        "document.activeElement.getAttribute('aria-label')"
    )
    visit.page.keyboard.press("Enter")
    assert visit.page.locator(".trail").is_visible()


def test_the_icicle_lights_what_is_entered_and_the_event_alone_is_enough(visit):
    visit.page.locator(".icicle .field button", has_text="conv2").first.click()
    everywhere(visit, "conv2")
    visit.page.evaluate(
        """document.dispatchEvent(new CustomEvent("perfctl:layer", { detail: { layer: "fc1", direction: null } }))"""
    )
    assert visit.page.evaluate(LIT)["figure.matrix tr"] == ["fc1"] and "layer=fc1" in visit.page.url
    visit.page.evaluate(
        """document.dispatchEvent(new CustomEvent("perfctl:layer", { detail: { layer: null, direction: null } }))"""
    )
    assert visit.page.locator(".lit").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_lights_by_touch_without_scrolling_sideways_and_axe_finds_nothing(
    browser, page, scheme
):
    with Visit(
        browser, page, viewport={"width": 390, "height": 844}, has_touch=True, color_scheme=scheme
    ) as visit:
        visit.page.locator(".matrix tbody b", has_text="fc1").first.tap()
        everywhere(visit, "fc1")
        assert visit.fits()
        visit.page.locator('#s1-roofline svg a[data-trail="conv2/forward/64"] .hit').first.tap()
        assert visit.page.locator(".trail").is_visible()
        assert serious(visit) == []


CELL = '.matrix a[data-trail="conv2/forward/64"]'


def test_a_click_on_a_ratio_opens_its_trail_and_the_link_opens_it_again(visit):
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
    visit.open(link)
    assert visit.page.locator(".trail").inner_text() == text
    visit.page.evaluate("location.hash = '#s1-kernels'")
    visit.page.wait_for_function("location.hash.includes('trail=')")
    assert visit.page.url.partition("#")[2].startswith("s1-kernels?"), (
        "a plain link keeps what is open"
    )


def test_the_keyboard_reaches_every_cell_from_one_tab_stop_and_escape_leads_back(visit):
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


def test_the_switch_shows_shares_and_stays_in_the_address(visit):
    visit.page.locator('.matrix input[value="share"]').check()
    assert (
        visit.page.locator(f"{CELL} .m-share").is_visible()
        and visit.page.locator(f"{CELL} .m-ratio").is_hidden()
    )
    link = visit.page.url
    visit.open(link)
    assert visit.page.locator(f"{CELL} .m-share").is_visible()


def test_back_closes_the_trail_that_a_click_opened_and_stays_on_the_page(visit):
    before = visit.page.url
    for _ in range(2):
        visit.page.locator(CELL).click()
        visit.page.locator(".trail").wait_for(state="visible")
        visit.page.go_back()
        visit.page.locator(".trail").wait_for(state="hidden")
        assert visit.page.url.rstrip("#") == before and visit.page.locator(".lit").count() == 0
    visit.page.go_forward()
    visit.page.locator(".trail").wait_for(state="visible")


def test_escape_takes_back_the_entry_of_the_trail_and_keeps_the_light(visit):
    visit.page.locator(CELL).click()
    visit.page.locator(".trail").wait_for(state="visible")
    visit.page.keyboard.press("Escape")
    visit.page.wait_for_url(lambda address: "trail" not in address and "layer" in address)
    assert visit.page.locator(".lit").count() > 0
    assert visit.page.evaluate("history.state.opens") is False, "Back leaves the page"
