"""The roofline on the page: roofs with their source, points with their sentence, refused ones not drawn."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from perfctl.orchestrator.analyse.analysis import Analysis, analyse
from perfctl.orchestrator.analyse.ledger.studies import studies
from perfctl.orchestrator.report.ledger.roofline import bound_cell, roofline_chart, roofline_tables, roofs_note, spoken
from perfctl.orchestrator.report.page.page import render
from perfctl.records.report import Counter
from perfctl.records.run import Run
from tests.analyse import synthetic

WHEN = "2026-11-20T20:40:00Z"
HOSTILE = "</script><img src=x onerror=alert(1)> $\\frac{1}{2}$ \x00 \ud800"


def with_bytes(runs: list[Run], each: int) -> list[Run]:
    def add(run: Run) -> Run:
        extra = [Counter(kernel.launch, "dram__bytes.sum", each, "byte") for kernel in run.report.kernels]
        return replace(run, report=replace(run.report, counters=[*run.report.counters, *extra]))

    return [add(run) if run.report.counters else run for run in runs]


@pytest.fixture
def found() -> Analysis:
    """conv2 forward at batch 64: 679,477,248 FLOP executed, 100,000 bytes."""
    (study,) = studies(with_bytes(synthetic.gpu_pair(1, 64), 100_000))
    return analyse(study)


def test_the_sentence_has_the_number_behind_the_word_the_roofs_their_source_and_each_level_a_table(
    found: Analysis,
) -> None:
    point = found.roofline.of(64, "conv2", "forward")
    assert point is not None
    intensity = synthetic.macs("conv2", 64) / 100_000
    ridge = 80 * 64 * 2 * 1.53e9 / 900e9
    said = spoken(point, found.roofline) or ""
    assert said.startswith(f"compute-bound: {intensity:.0f} FLOP per byte, above the ridge at {ridge:.1f}")
    assert bound_cell(point, found.roofline).text == f"compute {round((point.reached or 0) * 100)} %"
    note = roofs_note(found.roofline)
    assert "published figures of the V100 SXM2, dense" in note and "memory 900 GB/s" in note
    captions = [table.caption for table in roofline_tables(found.roofline)]
    assert captions == ["Whole steps: utilisation", "Layers under the roofs", "Kernels under the roofs, batch 64"]


def test_refused_points_are_not_drawn_and_counted_in_the_note() -> None:
    (study,) = studies(with_bytes(synthetic.gpu_pair(1, 64), 20_000_000))
    roofs = analyse(study).roofline
    drawn = roofline_chart("s1", roofs, {})
    assert drawn is not None
    over = [p for p in roofs.at("layer") if p.refused]
    assert over and f"{len(over)} refused and not drawn" in drawn.note
    assert not any(f">{p.traffic.name}<" in drawn.svg for p in over)
    assert ">conv2 backward<" in drawn.svg


def test_without_bytes_there_is_no_drawing_and_without_measured_roofs_the_page_says_how_to_get_them() -> None:
    (study,) = studies(synthetic.gpu_pair(1, 64))
    roofs = analyse(study).roofline
    assert roofline_chart("s1", roofs, {}) is None
    table = roofline_tables(roofs)[1]
    assert any("DRAM bytes were not counted" in note for note in table.notes)
    page = render([synthetic.cpu_run(1, 16)], generated_at=WHEN)
    assert "the table of devices has no CPUs" in page and "--peaks measured" in page


def test_hostile_kernel_names_stay_text_under_the_roofs() -> None:
    counters: list[Any] = [counter for n in range(3) for counter in synthetic.fp_counters(n, 0, 0, 5000)]
    run = synthetic.foreign_run(1, profiler="ncu", device=synthetic.V100, counters=counters)
    kernels = [kernel._replace(name=f"{HOSTILE}{n}", short_name=None) for n, kernel in enumerate(run.report.kernels)]
    (run,) = with_bytes([replace(run, report=replace(run.report, kernels=kernels))], 100)
    page = render([run], generated_at=WHEN)
    section = re.search(r'<section id="s1-roofline".*?</section>', page, re.DOTALL)
    assert section is not None and "<svg" in section.group()
    assert "<img" not in page and "&lt;img src=x" in section.group()
