"""Several studies on one page: one table first, and the curves of all in one drawing; each leads to
its study."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from perfctl.orchestrator.report.page.page import render
from perfctl.orchestrator.report.page.sections import page_view
from perfctl.orchestrator.report.tables import Column, table
from perfctl.orchestrator.report.view import View
from tests.make import synthetic

WHEN = "2026-11-20T20:40:00Z"


def shown(runs: list[Any]) -> View:
    return page_view(runs, generated_at=WHEN, title=None)


def rows(found: View) -> list[dict[str, str]]:
    (overview,) = found.tables
    return [
        {column.label: cell.text for column, cell in zip(overview.columns, row, strict=True)}
        for row in overview.rows
    ]


@pytest.fixture(scope="module")
def both() -> list[Any]:
    """A sweep on a GPU with counters, and one on a CPU without."""
    gpu = synthetic.gpu_sweep(16, 64)
    return [*gpu, *(synthetic.cpu_run(200 + batch, batch) for batch in (16, 64))]


def test_a_row_has_the_figures_of_the_batch_with_the_most_samples_a_second(both: list[Any]) -> None:
    gpu, cpu = rows(shown(both))
    assert gpu["fastest batch"] == "64" and gpu["batch"] == "16 64"
    step = 20_000 + 900 * 64  # ns, as synthetic has it
    assert gpu["samples/s"] == f"{64e9 / step / 1e3:.0f}"
    executed = paper = 0.0
    for layer in synthetic.LAYERS:
        work = 2 * synthetic.macs(layer, 64)
        passes = 1 if layer == "conv1" else 2  # the first layer has no input gradient
        executed += work * (passes + (0.5 if layer == "conv2" else 1))
        paper += work * (passes + 1)
    assert float(gpu["executed / estimated"]) == pytest.approx(executed / paper, rel=0.01)
    assert cpu["executed / estimated"] == "–" and cpu["profiler"] == "torch 2.8"


def test_columns_that_no_study_has_are_one_sentence_and_a_single_study_has_no_overview(
    both: list[Any],
) -> None:
    one = [run for run in both if run.profiler == "torch"]
    assert shown(one).tables == ()
    found = shown([*one, *(replace(run, workload="other_cnn") for run in one)])
    (overview,) = found.tables
    labels = [column.label for column in overview.columns]
    assert "executed / estimated" not in labels and "GPU busy" not in labels
    assert any("executed / estimated" in note for note in overview.notes)


def test_reports_without_times_and_counts_stand_in_the_table_and_in_no_drawing() -> None:
    found = shown([synthetic.foreign_run(1), synthetic.foreign_run(2)])
    assert [row["model or report"] for row in rows(found)] == ["foreign1.sqlite", "foreign2.sqlite"]
    assert found.charts == ()
    assert {row["GPU busy"] for row in rows(found)} == {"71.4%"}, "2,500 of 3,500 ns"


def test_of_many_groups_only_the_first_is_open() -> None:
    few, many = (
        page_view([synthetic.foreign_run(i) for i in range(1, number)], generated_at=WHEN, title="")
        for number in (4, 6)
    )
    assert [study.is_folded for study in few.chapters] == [False] * 3
    assert [study.is_folded for study in many.chapters] == [False, True, True, True, True]


def test_curves_name_what_differs_and_every_row_and_name_leads_to_its_study(
    both: list[Any],
) -> None:
    page = render(both, generated_at=WHEN)
    part = re.search(r'<section id="overview".*?</section>', page, re.DOTALL)
    assert part is not None
    assert re.findall(r"<figcaption>([^<]*)", part.group()) == [
        "Overview",
        "Samples per second, by batch size",
    ]
    assert re.findall(r'<a href="#(s\d)">', part.group()) == ["s1", "s2", "s1", "s2"]
    assert "synthetic CPU" in part.group() and page.index('id="overview"') < page.index(
        '<article id="s1"'
    )
    assert '<nav class="studies"' not in page


def test_the_order_of_the_rows_is_said_where_it_is_true() -> None:
    columns = [Column("a"), Column("b", order="descending"), Column("c", order="ascending")]
    heads = {
        name: [column.order for column in made.columns]
        for name, cells in {
            "first that is in order": [[1, 9, 1], [2, 3, 2]],
            "not in order": [[1, 1, 2], [2, 3, 1]],
            "one row": [[1, 1, 1]],
        }.items()
        if (made := table("t", columns, cells)) is not None
    }
    assert heads == {
        "first that is in order": ["", "descending", ""],
        "not in order": ["", "", ""],
        "one row": ["", "", ""],
    }
