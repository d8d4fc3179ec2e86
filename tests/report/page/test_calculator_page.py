"""The calculator's page in a browser: controls, links, keyboard, what cannot be, hostile links, no
serious axe finding; and opened through perfctl serve, which answers for the
families' parameters."""

from __future__ import annotations

import csv
import re
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.counts.hardware.machines import BOARDS, compute_peak_flops
from perfctl.orchestrator.evidence import build_evidence_for_all_devices
from perfctl.orchestrator.predict.prices import load_price_table
from perfctl.orchestrator.report.calculator import FamilyAnswers
from perfctl.orchestrator.report.page.page import compute_calculator_script_digest
from perfctl.orchestrator.report.page.server import PageServer
from tests.report.visit import Visit, on_a_screen_and_a_phone, serious

HASH = (
    "#model=resnet&batch=128&samples=50000&epochs=12&precision=fp32&optimizer=adam&device=T4&gpus=2"
)
FREE = HASH.replace("resnet", "resnet:depth=26,width=32")


@pytest.fixture(scope="module")
def page(calculator_page):
    return calculator_page


@pytest.fixture
def visit(browser, page):
    with Visit(browser, page) as opened:
        settled(opened.page)
        yield opened.page


def settled(tab):
    """Curve and table are drawn."""
    tab.wait_for_selector("html[data-answered]:not([data-busy])", state="attached")


def at(tab, fragment):
    tab.evaluate(
        """hash => new Promise(done => { addEventListener("hashchange", () => setTimeout(done), { once: true });
        location.hash = hash; })""",
        fragment,
    )
    settled(tab)


def test_a_link_reproduces_the_choice_and_the_choice_makes_the_link(visit):
    from playwright.sync_api import expect

    at(visit, HASH)
    values = {
        key: visit.locator(f"#c-{key}").input_value()
        for key in ("batch", "samples", "epochs", "optimizer", "device")
    }
    assert values == {
        "batch": "128",
        "samples": "50000",
        "epochs": "12",
        "optimizer": "adam",
        "device": "T4",
    }
    assert visit.locator("#c-family").input_value() == "resnet"
    first = visit.locator("#sentence").inner_text()
    visit.locator("#c-epochs").fill("24")
    expect(visit).to_have_url(re.compile("epochs=24"))
    assert visit.evaluate("location.hash") == HASH.replace("epochs=12", "epochs=24")
    said = visit.locator("#sentence").inner_text()
    assert said != first and "24 epochs of 50,000 samples" in said


def test_the_slider_and_the_number_move_each_other_and_what_is_no_number_is_said_beside_the_box(
    visit,
):
    slider, box = visit.locator("#r-batch"), visit.locator("#c-batch")
    slider.focus()
    visit.keyboard.press("Home")
    assert box.input_value() == "1"
    visit.keyboard.press("End")
    assert box.input_value() == "4096"
    box.fill("64")
    assert slider.input_value() == "500", "64 lies in the middle between 1 and 4096 on a log scale"
    before = visit.locator("#sentence").inner_text()
    for wrong in ("", "-3", "1.5", "abc", "1e400"):
        visit.locator("#c-batch").fill(wrong)
        assert visit.locator("#c-batch").get_attribute("aria-invalid") == "true", wrong
        assert "64 is still used" in visit.locator("#w-batch").inner_text()
        assert visit.locator("#sentence").inner_text() == before
    visit.locator("#c-batch").blur()
    assert visit.locator("#c-batch").input_value() == "64"


def test_where_the_host_limits_the_step_it_drives_all_work_and_no_gpu_is_the_fastest(visit):
    at(visit, "#model=resnet&batch=1&precision=bf16&device=H100+SXM5")
    drivers = visit.locator("#work tbody tr td:last-child").all_inner_texts()
    assert set(drivers) == {"host"}
    marks = visit.locator("#gpus .mark").all_inner_texts()
    assert marks.count("host-limited") > 1 and "fastest" not in marks
    at(visit, "#model=resnet&batch=4096&precision=fp32&device=T4")
    assert "host" not in visit.locator("#work tbody tr td:last-child").all_inner_texts()
    assert "fastest" in visit.locator("#gpus .mark").all_inner_texts()


def test_from_disk_the_page_says_in_a_sentence_what_free_parameters_need(visit):
    said = visit.locator("#from-disk")
    assert "perfctl serve" in said.inner_text() and said.inner_text().count(".") == 2
    assert visit.locator("#parameters *").count() == 0
    at(visit, FREE)
    assert (
        "other networks of a family need 'perfctl serve'" in visit.locator("#troubles").inner_text()
    )
    assert visit.locator("#sentence").inner_text().startswith("Training vgg for 12 epochs")


def test_what_does_not_fit_says_by_how_much_and_a_precision_without_a_peak_gives_no_figure_but_the_reason(
    visit,
):
    at(visit, "#model=resnet&batch=8192&device=T4&optimizer=sgd")
    said = visit.locator("#sentence").inner_text()
    largest = visit.evaluate("""() => { const page = perfctlCalculator, [choice] = page.readChoice(location.hash);
        const fits = batch => page.answerOf({ ...choice, batch }).room.fits;
        let batch = 1; while (fits(batch + 1)) batch += 1; return batch; }""")
    assert (
        f"the largest batch that fits is at most {largest:,}." in said
        and "GiB of its 15 GiB are missing" in said
    )
    assert "does not fit in memory" in visit.locator("#curve svg").text_content()
    row = visit.locator("#gpus tr", has=visit.get_by_role("button", name="T4", exact=True))
    assert row.locator("s").count() == 1 and row.locator("td.no").count() >= 3
    at(visit, "#model=mlp&batch=64&device=P40&precision=bf16")
    assert "has no fast bf16" in visit.locator("#sentence").inner_text()
    assert visit.locator("#figures dd.no").count() == 4


def test_every_figure_says_what_it_rests_on_and_where_the_time_goes_adds_up_to_the_step(visit):
    notes = visit.locator("#notes").inner_text()
    assert (
        "Learned from measurements that others published" in notes
        and "Not fitted" in notes
        and "Not measured" in notes
    )
    at(visit, "#model=vgg&device=A100+SXM4+40+GB")
    notes = visit.locator("#notes").inner_text()
    assert (
        "Full Stack Deep Learning" in notes
        and "2023-10" in notes
        and "more than a year old" in notes
    )
    assert visit.locator("#figures dd.est").count() == 5, "all five are estimates"
    assert "1 multiply-add = 2 FLOPs" in visit.locator(".made").inner_text()
    at(visit, HASH)
    parts = visit.locator("#work tbody td:nth-child(3)").all_inner_texts()
    known = [float(part.removeprefix("~ ").removesuffix("%")) for part in parts if part != "< 0.1%"]
    assert sum(known) == pytest.approx(100, abs=0.5)
    first = visit.locator("#work tbody tr").first.inner_text()
    assert "convolutions" in first and "FLOPs" in first
    assert visit.locator("#work").get_by_text("the optimizer").count() == 1
    assert visit.locator("#command").inner_text() == (
        "perfctl predict resnet --batch 128 --device T4 --dataset-size 50000 --epochs 12 "
        "--precision fp32 --optimizer adam --gpus 2"
    )


def test_the_table_sorts_and_a_row_is_taken(visit):
    names = visit.locator("#gpus tbody button").all_inner_texts()
    assert len(names) == visit.locator("#c-device option").count()
    head = visit.locator("#gpus th", has_text="step")
    head.focus()
    visit.keyboard.press("Enter")
    visit.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    fastest = visit.locator("#gpus tbody button").first
    name = fastest.inner_text()
    fastest.click()
    settled(visit)
    assert visit.locator("#c-device").input_value() == name
    assert visit.locator("#gpus tr[aria-current]").locator("button").inner_text() == name


def test_the_table_is_saved_with_its_full_values_and_units(visit):
    with visit.expect_download() as waiting:
        visit.locator("#gpus").get_by_role("button", name="CSV").click()
    head, *rows = Path(waiting.value.path()).read_text(encoding="utf-8").splitlines()
    assert head.startswith(
        'device,training (s),cost (USD),"range (low end, s)",price of,precision,step (s),memory '
        "(B),largest batch,for,rests on"
    )
    assert len(rows) == visit.locator("#c-device option").count() and "NaN" not in "".join(rows)
    t4 = next(row for row in csv.reader(rows) if row[0] == "T4")
    exact = visit.evaluate("""() => { const page = perfctlCalculator, [choice] = page.readChoice(location.hash);
        const answer = page.answerOf({ ...choice, device: "T4" }); return [answer.step.value, answer.training.value]; }""")
    assert [float(t4[6]), float(t4[1])] == exact and t4[5] == "fp16", (
        "its tensor cores know no bf16"
    )


def test_the_curve_answers_to_the_arrow_keys_and_takes_a_batch(visit):
    visit.locator("#curve svg").focus()
    for _ in range(3):
        visit.keyboard.press("ArrowRight")
    assert visit.locator(".tip").inner_text().startswith("batch 4: ~ ")
    visit.keyboard.press("Enter")
    settled(visit)
    assert visit.locator("#c-batch").input_value() == "4"
    visit.get_by_role("button", name="cost", exact=True).click()
    settled(visit)
    assert (
        visit.locator("#curve figcaption").inner_text().startswith("Cost of")
        and visit.locator("#curve .band").count() == 1
    )


HOSTILE_LINKS = (
    "#%E0%A4%A",
    "#model=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E&<script>alert(1)</script>=1",
    "#model=" + "k" * 5000,
    "#batch=0&samples=-1&epochs=1.5&gpus=1e99&precision=__proto__&device=constructor&overlap=NaN",
    "#model=__proto__:a=1",
    "#model=torchvision:resnet50",
    "#model=mlp:depth=2,depth=3",
    "#__proto__=1&toString=2",
)


def test_hostile_links_are_text_and_said(visit):
    for fragment in HOSTILE_LINKS:
        at(visit, fragment)
        assert visit.locator("img").count() == 0, fragment
        assert visit.locator("#troubles li").count() >= (0 if fragment.startswith("#%E0") else 1), (
            fragment
        )
        assert visit.locator("#figures dd.est").count() == 5, "what is wrong is left at its default"


@on_a_screen_and_a_phone
def test_axe_finds_nothing_serious_and_nothing_is_wider_than_the_screen(
    browser: Any, page: Path, options: dict[str, Any]
) -> None:
    with Visit(browser, page, **options) as opened:
        settled(opened.page)
        assert opened.fits()
        assert serious(opened) == []


def test_without_javascript_the_page_says_what_else_there_is(browser, page):
    with Visit(browser, page, java_script_enabled=False) as opened:
        assert "perfctl predict" in opened.page.locator(".answer").inner_text()


@pytest.fixture(scope="module")
def server(page):
    answers = FamilyAnswers(partial(build_evidence_for_all_devices, page.parent / "no.db"))
    digest = compute_calculator_script_digest()
    with PageServer(page.parent, "127.0.0.1", 0, lambda: "", answers.answer_query, digest) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.fixture
def served(browser, server):
    """A tab with the page as perfctl serve gives it, under its policy."""
    with browser.new_context(reduced_motion="reduce") as context:
        tab, troubles = context.new_page(), []
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        tab.goto(f"{server.url}c.html{FREE}")
        settled(tab)
        yield tab
        assert troubles == []


def test_through_serve_a_link_with_free_parameters_is_answered(served):
    from perfctl import predict

    said = served.locator("#sentence").inner_text()
    assert said.startswith(
        "Training resnet:depth=26,width=32 for 12 epochs of 50,000 samples at batch 128 in fp32 on "
        "2 x T4 takes"
    )
    assert (
        served.locator("#c-p-depth").input_value() == "26"
        and served.locator("#c-p-width").input_value() == "32"
    )
    assert not served.locator("#from-disk").is_visible()
    expected = predict("resnet:depth=26,width=32", batch=128, device="T4", optimizer="adam").step
    exact = served.evaluate("""() => { const page = perfctlCalculator, [choice] = page.readChoice(location.hash);
        const { time } = page.answerOf(choice); return [time.value, time.low, time.high]; }""")
    assert exact == pytest.approx([expected.seconds, expected.low, expected.high], rel=0.01)


def test_through_serve_the_sliders_of_a_family_make_its_networks_and_depths_stop_at_whole_blocks(
    served,
):
    from playwright.sync_api import expect

    at(served, "#model=mlp&batch=64&device=T4")
    before = served.locator("#sentence").inner_text()
    slider = served.locator("#parameters [data-key=p-width] [type=range]")
    slider.evaluate("node => { node.value = 1000; node.dispatchEvent(new Event('input')); }")
    expect(served.locator("#command")).to_contain_text("perfctl predict mlp:width=")
    settled(served)
    assert served.locator("#sentence").inner_text() != before
    served.locator("#c-p-activation").select_option("gelu")
    expect(served.locator("#command")).to_contain_text("activation=gelu")
    served.locator("#c-family").select_option("inception")
    expect(served.locator("#sentence")).to_contain_text("Training inception for")
    assert served.locator("#c-p-blocks").input_value() == "6"
    at(served, "#model=resnet&batch=64&device=T4")
    slider = served.locator("#parameters [data-key=p-depth] [type=range]")
    depths = set()
    for place in range(80, 1001, 130):
        slider.evaluate(
            "(node, place) => { node.value = place; node.dispatchEvent(new Event('input')); }",
            place,
        )
        settled(served)
        depths.add(int(served.locator("#c-p-depth").input_value()))
        assert not served.locator("#troubles").is_visible(), depths
    assert len(depths) > 5 and max(depths) > 100


def test_through_serve_what_cannot_be_is_refused_with_the_reason_and_a_server_that_ended_is_said(
    served,
):
    from playwright.sync_api import expect

    at(served, "#model=resnet:depth=27&batch=64&device=T4")
    assert "use depth=26 or depth=28" in served.locator("#troubles").inner_text()
    assert "no such network" in served.locator("#figures").inner_text().lower()
    assert served.locator("#figures dd:not(.no)").count() == 0
    served.locator("#c-p-depth").fill("26")
    expect(served.locator("#troubles")).to_be_hidden()
    settled(served)
    assert served.locator("#figures dd.est").count() == 5
    served.route("**/calculator.json*", lambda route: route.abort())
    at(served, "#model=mlp:depth=5&batch=64&device=T4")
    assert "perfctl serve does not answer" in served.locator("#troubles").inner_text()
    served.unroute("**/calculator.json*")
    at(served, "#model=mlp:depth=6&batch=64&device=T4")
    at(served, "#model=mlp:depth=5&batch=64&device=T4")
    assert "Training mlp:depth=5 for" in served.locator("#sentence").inner_text()


def test_it_opens_on_a_gpu_with_a_price_of_the_newest_date_in_mixed_precision_and_the_command_names_the_type(
    visit,
):
    assert visit.locator("#c-precision").input_value() == "mixed"
    alone = [
        price
        for price in load_price_table().without_doubtful_prices.prices
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
        paths = compute_peak_flops(device.gpu)
        best = "bf16" if "tensor bf16" in paths else "fp16" if "tensor fp16" in paths else "fp32"
        assert said[device.name] == best, device.name
    assert {"bf16", "fp16", "fp32"} <= set(said.values())
    at(visit, "#model=vgg&device=P40")
    assert "in fp32 on P40" in visit.locator("#sentence").inner_text()
    assert "has no tensor cores for bf16 or fp16" in visit.locator("#notes").inner_text()


def test_the_devices_are_sorted_by_cost_or_by_time_and_the_link_keeps_which(visit):
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


def test_a_column_of_times_has_one_unit_and_costs_have_cents(visit):
    for link in ("#model=vgg&epochs=90", "#model=inception&epochs=900&batch=1"):
        at(visit, link)
        for column in (2, 7):
            units = set(visit.locator(f"#gpus td:nth-child({column}) u").all_inner_texts())
            assert len(units) == 1 and units <= {"µs", "ms", "s", "min", "h", "days"}, link
        costs = visit.locator("#gpus td.est:nth-child(3)").all_inner_texts()
        assert costs and all(
            re.fullmatch(r"~ (< \$0\.01|\$[\d,]+\.\d\d)", cost) for cost in costs
        ), costs


def test_a_curve_that_is_nearly_flat_has_two_labelled_ticks(visit):
    found = visit.evaluate("""() => [[1, 1.3], [3.1, 3.5], [9.4e-4, 1.1e-3], [12, 90], [1, 1e6]].map(([low, high]) =>
        perfctlCalculator.tickValues(low, high, 1).map((v) => [v >= low * 0.999 && v <= high * 1.001, Number(v.toPrecision(3))]))""")
    for ticks in found:
        assert all(inside for inside, _ in ticks) and len({text for _, text in ticks}) >= 2
