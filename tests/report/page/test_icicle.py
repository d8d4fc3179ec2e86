"""The icicle: every part is as long as the ledger says, no child is longer than its parent, and it
works by keyboard."""

import pytest

from perfctl.orchestrator.report.page.timeline import KERNELS_MAX, build_time_breakdown_icicles
from perfctl.records.report import Kernel
from tests.make import synthetic
from tests.report.outline import analysed
from tests.report.page.test_browser import gpu_step
from tests.report.visit import Visit, write_page


def below(view, node):
    return [place for place, parent in enumerate(view["parent"]) if parent == node]


def test_parts_add_up_and_layers_take_what_the_ledger_says():
    found = analysed(gpu_step(1, 16), gpu_step(2, 64))
    views = build_time_breakdown_icicles(found, {})
    assert [view["label"] for view in views] == ["batch 16", "batch 64"]
    for view, batch in zip(views, (16, 64), strict=True):
        times = found.study.get_batch(batch).layer_times
        assert times is not None and view["value"][0] == round(times.total.median)
        for node, value in enumerate(view["value"]):
            inside = sum(view["value"][child] for child in below(view, node))
            assert inside <= value + len(view["value"]), "rounded to whole nanoseconds"
        for node, trail in enumerate(view["trail"]):
            if trail:
                layer, direction, size = trail.split("/")
                assert size == str(batch)
                assert view["value"][node] == round(
                    times.rows["" if layer == "optimizer" else layer, direction].mean
                )
    assert sum(bool(trail) for trail in views[0]["trail"]) == len(found.ledger.rows) // 2


def test_dotted_layers_are_nested_and_many_kernels_become_one_part():
    kernels = [
        Kernel(
            n,
            f"kernel_{n}",
            None,
            "stage1.0.conv",
            "forward",
            0,
            "range",
            start_ns=100 * n,
            duration_ns=10 + n,
        )
        for n in range(KERNELS_MAX + 3)
    ]
    run = synthetic.make_run(1, profiler="nsys", device=synthetic.V100, kernels=kernels)
    (view,) = build_time_breakdown_icicles(analysed(run), {})
    names = view["name"]
    place = names.index("conv")
    assert [names[n] for n in (place, view["parent"][place])] == ["conv", "0"]
    forward = names.index("forward")
    inside = below(view, forward)
    assert len(inside) == KERNELS_MAX + 1 and "3 other kernels" in [names[n] for n in inside]
    assert (
        sum(view["value"][n] for n in inside)
        == sum(10 + n for n in range(KERNELS_MAX + 3))
        == view["value"][forward]
    )


@pytest.mark.parametrize(
    ("factors", "median"),
    [
        pytest.param((9, 1, 2), 2, id="the middle one of three"),
        pytest.param((9, 1, 2, 4), 3, id="the mean of the middle two of four"),
    ],
)
def test_the_parts_are_those_of_the_median_step(factors, median):
    durations = {"conv": 100, "fc": 10}
    kernels = [
        Kernel(
            2 * step + place,
            f"kernel_{layer}",
            None,
            layer,
            "forward",
            step,
            "range",
            start_ns=10_000 * step + 5_000 * place,
            duration_ns=factor * duration,
        )
        for step, factor in enumerate(factors)
        for place, (layer, duration) in enumerate(durations.items())
    ]
    run = synthetic.make_run(1, profiler="nsys", device=synthetic.V100, kernels=kernels)
    (view,) = build_time_breakdown_icicles(analysed(run), {})
    values = dict(zip(view["name"], view["value"], strict=True))
    assert view["value"][0] == median * 110 and "median step" in view["name"][0]
    assert {name: values[name] for name in ("conv", "kernel_conv", "fc", "kernel_fc")} == {
        "conv": median * 100,
        "kernel_conv": median * 100,
        "fc": median * 10,
        "kernel_fc": median * 10,
    }


def test_a_report_without_layers_is_split_by_kernel_family_and_ncu_gives_none():
    kernels = [
        Kernel(0, "ampere_sgemm_128x64_tn", duration_ns=30),
        Kernel(1, "some_kernel", duration_ns=12),
    ]
    run = synthetic.make_run(1, profiler="nsys", workload=None, batch_size=None, kernels=kernels)
    (view,) = build_time_breakdown_icicles(analysed(run), {})
    assert view["value"][0] == 42 and {"gemm", "other kernels"} <= set(view["name"])
    assert (
        build_time_breakdown_icicles(
            analysed(
                synthetic.make_run(
                    1, profiler="ncu", workload=None, batch_size=None, kernels=kernels
                )
            ),
            {},
        )
        == ()
    )


def test_a_click_enters_a_part_escape_leads_out_and_the_address_keeps_it(browser, tmp_path):
    file = write_page(tmp_path, [gpu_step(1, 16), gpu_step(2, 64)])
    with Visit(browser, file) as visit:
        visit.page.locator(".icicle .field button", has_text="conv2").first.click()
        way = visit.page.locator(".icicle .way")
        assert way.inner_text().startswith("conv2: ")
        link = visit.page.url
        visit.page.keyboard.press("ArrowRight")
        assert visit.page.evaluate("document.activeElement.closest('.icicle') !== null")
        visit.page.locator(".icicle .field button", has_text="forward").first.click()
        visit.page.locator(".icicle .way a").click()
        assert visit.page.locator(".trail h2").inner_text() == "conv2 forward, batch 16"
        visit.page.keyboard.press("Escape")
        visit.page.locator('.icicle .field button[tabindex="0"]').focus()
        for _ in range(2):
            visit.page.keyboard.press("Escape")
        assert way.inner_text().startswith("kernel time of the median step")
        visit.open(link)
        assert visit.page.locator(".icicle .way").inner_text().startswith("conv2: ")
