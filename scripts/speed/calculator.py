"""How fast the calculator's page is drawn and answers a slider:
``python scripts/speed/calculator.py`` (part of scripts/speed/run.py)

The page holds real fits (tests/data/bench-cpu), every device of the table, four torchvision
networks, and forms of the families up to as many networks as the page of all torchvision models. It
is opened from disk in new tabs of headless Chromium: the time is from the navigation until the
first frame with numbers, chart and tables. Then every slider is moved to 15 positions: the time is
from the move until everything is updated, as the page reports it.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from measure import WINDOW, open_chromium

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "bench-cpu"
TRACED = "resnet50,densenet201,inception_v3,vit_b_16"
CHOICES = (
    "vgg",
    "resnet",
    "inception",
    "mlp",
    *(f"torchvision:{name}" for name in TRACED.split(",")),
)
REACH_MS = 50
FIRST_MS, OPENED = 1000, 9
"""To be reached by the first drawing; how often the page is opened."""
NETWORKS = 84
"""Models of torchvision and families in a page of all."""
MOVE = """() => {
    const took = [];
    for (const slider of document.querySelectorAll('input[type=range]')) {
        if (!slider.offsetParent) continue;
        for (let n = 0; n < 15; n++) {
            slider.value = Number(slider.min) + (Number(slider.max) - Number(slider.min)) * n / 14;
            slider.dispatchEvent(new Event('input'));
            took.push(Number(document.documentElement.dataset.answered));
        }
    }
    return took; }"""
GO = """hash => new Promise(done => { addEventListener("hashchange", () => setTimeout(done), { once: true });
    location.hash = hash; })"""  # noqa: E501


def main() -> int:
    """Make the page, move its sliders, print the table."""
    with tempfile.TemporaryDirectory() as folder, open_chromium("calculator") as start:
        if start is None:
            return 0
        print(
            f"{'calculator':26} {'device':16} {'answers':>7} {'median':>8} {'99 %':>8} "
            f"{'slowest':>8}  to be reached: {REACH_MS} ms"
        )
        file = Path(folder) / "calculator.html"
        text, cpu = page()
        file.write_text(text, encoding="utf-8")
        browser = start()
        first = [first_drawing(browser, file) for _ in range(OPENED)]
        verdict = "ok" if statistics.median(first) < FIRST_MS else "missed"
        print(
            f"first drawing of {len(text.encode()) / 1e6:.1f} MB, opened {OPENED} times: median "
            f"{statistics.median(first):.0f} ms, {min(first):.0f} to {max(first):.0f} ms  to be "
            f"reached: {FIRST_MS} ms  {verdict}"
        )
        tab = browser.new_page(viewport=WINDOW)
        tab.goto(file.as_uri())
        for device in (cpu, "A100 SXM4 80 GB"):
            for model in CHOICES:
                tab.evaluate(GO, f"#model={model}&device={device}&batch=64")
                print(row(model, device, tab.evaluate(MOVE)), flush=True)
        browser.close()
    return 0


def first_drawing(browser: Any, file: Path) -> float:
    """ms from the navigation to the first frame with everything in it, in a tab without a cache."""
    with browser.new_context(viewport=WINDOW) as context:
        tab = context.new_page()
        tab.goto(file.as_uri())
        tab.wait_for_function("performance.getEntriesByName('drawn').length > 0")
        return float(tab.evaluate("performance.getEntriesByName('drawn')[0].startTime"))


def row(model: str, device: str, took: list[float]) -> str:
    """One line: all answers of a model on a device."""
    late = statistics.quantiles(took, n=100, method="inclusive")[98]
    verdict = "ok" if late < REACH_MS else "missed"
    return (
        f"{model:26} {device[:16]:16} {len(took):7} {statistics.median(took):5.1f} ms {late:5.1f} "
        f"ms {max(took):5.1f} ms  {verdict}"
    )


def page() -> tuple[str, str]:
    """(the page, the name of the CPU that its fits are for)"""
    sys.path.append(str(ROOT / "scripts" / "proof" / "accuracy"))
    from bench_steps import convert_bench_point

    from perfctl import __version__
    from perfctl.orchestrator.commands.calculator import load_or_trace_models
    from perfctl.orchestrator.counts.hardware import machines
    from perfctl.orchestrator.counts.hardware.machines import BOARDS
    from perfctl.orchestrator.predict import published
    from perfctl.orchestrator.predict.fit import fit_step_time_model
    from perfctl.orchestrator.predict.models.calculator import (
        ModelCache,
        build_family_calculator_model,
        parse_torchvision_model_names,
    )
    from perfctl.orchestrator.predict.prices import load_price_table
    from perfctl.orchestrator.report.calculator import (
        CalculatorContents,
        ListedDevice,
        build_calculator_page,
    )
    from perfctl.orchestrator.report.page.page import render_view_as_html
    from perfctl.parsers.own.bench import read_bench_points
    from perfctl.workloads.models.plan import PARAMETERS, plan_model

    device = machines.build_measured_device(
        json.loads((DATA / "peaks.json").read_text(encoding="utf-8"))
    )
    records = [
        convert_bench_point(point, plan_model(point.model))
        for point in read_bench_points(DATA / "bench.json")
    ]
    fit = fit_step_time_model("tests/data/bench-cpu", records, device.machine)
    boards = [
        machines.Device(machines.build_board_machine(board), "published figures", board)
        for board in BOARDS
    ]
    places = [ListedDevice(one.machine, one.source, None, "", (), {}) for one in (*boards, device)]
    names, _ = parse_torchvision_model_names(TRACED, ModelCache())
    traced, _ = load_or_trace_models(names, lambda *_: None, ModelCache())
    prices = load_price_table()
    forms = (
        f"resnet:depth=50,width={width}"
        for width in range(16, 16 + NETWORKS - len(PARAMETERS) - len(traced))
    )
    models = (*map(build_family_calculator_model, (*PARAMETERS, *forms)), *traced)
    known = CalculatorContents(
        models,
        tuple(places),
        (fit,),
        tuple(records),
        prices.prices,
        published.load_shipped_fit("gpu"),
        prices.name,
    )
    view = build_calculator_page(known, date="2026-11-22", version=__version__)
    return render_view_as_html(view, "calculator.html"), device.machine.name


if __name__ == "__main__":
    sys.exit(main())
