"""Batches of an accumulated step are shown beside the batch size, and count in samples a second; a
tool is named once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from perfctl.orchestrator.ledger.prepared import Study
from perfctl.orchestrator.ledger.sweep import BatchPoint
from perfctl.orchestrator.ledger.timing import Spread
from perfctl.orchestrator.report.findings.step import sample_findings
from perfctl.orchestrator.report.page.about import tools
from perfctl.orchestrator.report.page.study import sweep_table

STEP_NS = 2_000_000.0
STUDY = Study("mnist_cnn", "train", "fp32", "cpu", None, ())


def shown(samples: float | None, batches: float) -> dict[str, str]:
    """Column -> text of the only row."""
    point = BatchPoint(
        8, Spread(STEP_NS, STEP_NS, STEP_NS, 1, STEP_NS), "steps", {}, (), samples, batches
    )
    view = sweep_table([point])
    assert view is not None
    return {
        column.label: cell.text for column, cell in zip(view.columns, view.rows[0], strict=True)
    }


def test_samples_a_second_count_every_batch_of_a_step() -> None:
    one, two = shown(8, 1), shown(2 * 8, 2)
    assert "samples per step" not in one
    assert two["samples per step"] == "2 x 8 = 16"
    assert one["samples per second"].startswith(
        f"{8 / STEP_NS * 1e9 / 1e3:.2f}".rstrip("0").rstrip(".")
    )
    assert two["samples per second"].startswith(
        f"{16 / STEP_NS * 1e9 / 1e3:.2f}".rstrip("0").rstrip(".")
    )


def test_samples_that_do_not_fit_the_batch_size_give_no_rate() -> None:
    row = shown(None, 2)
    assert not any(character.isdigit() for character in row.get("samples per second", ""))


def test_a_run_of_unknown_version_does_not_name_its_tool_twice() -> None:
    def runs(*named: tuple[str, str | None]) -> Any:
        return [
            SimpleNamespace(profiler=profiler, profiler_version=version)
            for profiler, version in named
        ]

    assert (
        tools(runs(("torch", None), ("torch", "2.14.1"), ("nsys", None))) == "torch 2.14.1 + nsys"
    )
    assert (
        tools(runs(("ncu", "2025.3"), ("ncu", "2025.1"), ("none", None)))
        == "ncu 2025.3 + ncu 2025.1 + no profiler"
    )


def test_a_batch_whose_run_is_not_complete_is_not_ranked() -> None:
    points = [
        BatchPoint(
            batch, Spread(ns, ns, ns, 3, ns), "steps", {}, (), batch, is_complete=is_complete
        )
        for batch, ns, is_complete in ((8, 8e6, True), (16, 1e6, False), (32, 16e6, True))
    ]
    (finding,) = sample_findings(STUDY, points)
    assert "lowest" not in finding.text
    assert list(sample_findings(STUDY, points[:2])) == []
