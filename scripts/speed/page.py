"""How large pages are and how fast they answer in headless Chromium:
``python scripts/speed/page.py`` (part of scripts/speed/run.py)

Three pages of synthetic runs: a sweep of four layers, one of 160 layers (as many as ResNet-50 has
modules), both over five batch sizes under two profilers, and one nsys capture of 100,000 kernels.
Medians of three visits, each with an empty cache.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from measure import WINDOW, open_chromium

ROOT = Path(__file__).resolve().parents[2]
VISITS = 3
SORT = """() => [...document.querySelectorAll('.launches th')].map(head => {
    const start = performance.now(); head.click(); document.body.offsetHeight; return performance.now() - start; })"""  # noqa: E501
FILTER = """async () => {
    const input = document.querySelector('.launches input'), said = input.parentElement.querySelector('[role=status]'), took = [];
    for (const text of ['conv', 'gemm', 'no such kernel']) {
        said.textContent = ''; input.value = text;
        const start = performance.now();
        input.dispatchEvent(new Event('input'));
        while (!said.textContent) await new Promise(requestAnimationFrame);
        document.body.offsetHeight; took.push(performance.now() - start);
    }
    return took; }"""  # noqa: E501
PAINT = """async () => {
    let painted;
    while (!(painted = performance.getEntriesByName('first-contentful-paint')[0])) await new Promise(requestAnimationFrame);
    return painted.startTime; }"""  # noqa: E501


def main() -> int:
    """Make the pages, visit them, print the table."""
    with tempfile.TemporaryDirectory() as folder, open_chromium("page") as start:
        if start is None:
            return 0
        print(
            f"{'page':34} {'size':>8} {'limit':>7} {'first screen':>13} {'slowest sort':>13} "
            f"{'slowest filter':>15}"
        )
        for name, limit, text in pages():
            file = Path(folder) / "page.html"
            file.write_text(text, encoding="utf-8")
            visits = []
            for _ in range(VISITS):
                browser = start()
                visits.append(visit(browser, file))
                browser.close()
            paint, sort, narrow = (
                statistics.median(values) for values in zip(*visits, strict=True)
            )
            size = file.stat().st_size / 1e6
            print(
                f"{name:34} {size:5.2f} MB {limit:4d} MB {paint:10.0f} ms {sort:10.0f} ms "
                f"{narrow:12.0f} ms",
                flush=True,
            )
    print(
        "To be reached: first screen 1000 ms; sort and filter of 100,000 rows 200 ms (filter: with "
        "60 ms of waiting for a next key)."
    )
    return 0


def visit(browser: Any, file: Path) -> tuple[float, float, float]:
    """(first paint, slowest sort, slowest filter) in ms."""
    page = browser.new_page(viewport=WINDOW)
    page.goto(file.as_uri())
    return page.evaluate(PAINT), max(page.evaluate(SORT)), max(page.evaluate(FILTER))


def pages() -> list[tuple[str, int, str]]:
    """(name, limit in MB, HTML)."""
    from perfctl.orchestrator.report.page.page import render_view_as_html
    from perfctl.orchestrator.report.page.sections import build_report_view

    made = synthetic()

    def render(runs: list[Any]) -> str:
        view = build_report_view(runs, generated_at="2026-11-20T20:40:00Z")
        return render_view_as_html(view, "run.html")

    sweep = [
        run for number, batch in enumerate(made.BATCHES, 1) for run in made.gpu_pair(number, batch)
    ]
    large = made.foreign_run(1, kernels=kernels(100_000))
    return [
        ("4 layers, 5 batches, 2 profilers", 2, render(sweep)),
        (
            "160 layers, 5 batches, 2 profilers",
            2,
            render([deep(run) for run in sweep]),
        ),
        ("100,000 kernels", 6, render([large])),
    ]


def synthetic() -> ModuleType:
    """The builders of the tests."""
    spec = importlib.util.spec_from_file_location(
        "synthetic", ROOT / "tests" / "make" / "synthetic.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kernels(count: int) -> list[Any]:
    """As many kernels as asked for, of 60 long names, with every column filled."""
    from perfctl.records.report import Kernel

    kinds = (
        "gemm_128x64_tn",
        "conv_fprop_nhwc",
        "elementwise_kernel<4, bench::AddFunctor<float>>",
        "reduce_kernel<512, 1>",
    )
    names = [
        (
            f"void synthetic_{kinds[n % 4]}_{n}<float, float, float, (int)4, (bool)1>(T1 *, const "
            "T1 *, int, int)"
        )
        for n in range(60)
    ]
    return [
        Kernel(
            n,
            names[n * 7 % 60],
            f"synthetic_{n * 7 % 60}",
            f"features.{n % 160}",
            ("forward", "backward")[n // 160 % 2],
            n // 480,
            "range",
            None,
            0,
            7 + n % 2,
            1 + n * 31 % 997,
            1 + n % 3,
            1,
            128 << n % 3,
            1,
            1,
            16 + n * 7 % 60 * 3,
            0,
            n % 5 * 4096,
            n * 6500 + n * 7919 % 4000,
            800 + n * 104_729 % 9000,
        )
        for n in range(count)
    ]


def deep(run: Any) -> Any:
    """The same run with 40 copies of its four layers."""
    names = [f"backbone.layer{n // 10}.{n % 10}." for n in range(40)]
    formula = (
        "64 x 64 x 24 x 24 x (32 x 3 x 3) = 679,477,248 MAC; x 2 = 1,358,954,496 FLOP; 2,359,296 "
        "bias additions"
    )
    calls = tuple(
        call._replace(
            layer=name + call.layer, position=4 * place + (call.position or 0), formula=formula
        )
        for place, name in enumerate(names)
        for call in run.layer_calls
    )
    size = len(run.report.kernels)
    moved = [
        kernel._replace(
            layer=kernel.layer and name + kernel.layer, launch=kernel.launch + place * size
        )
        for place, name in enumerate(names)
        for kernel in run.report.kernels
    ]
    counters = [
        counter._replace(launch=counter.launch + place * size)
        for place in range(len(names))
        for counter in run.report.counters
    ]
    return replace(
        run, layer_calls=calls, report=replace(run.report, kernels=moved, counters=counters)
    )


if __name__ == "__main__":
    sys.exit(main())
