"""Findings: only what the numbers prove."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from perfctl.orchestrator.analyse.grouping import Study, studies
from perfctl.orchestrator.analyse.ledger import ledger
from perfctl.orchestrator.analyse.sweep import points
from perfctl.orchestrator.report.findings import Finding, findings


def said(study: Study) -> list[Finding]:
    return list(findings(study, ledger(study), points(study)))


def test_the_ratio_furthest_from_one_is_named_with_its_number(synthetic: ModuleType) -> None:
    (study,) = studies([run for n, batch in enumerate((16, 64), 1) for run in synthetic.gpu_pair(n, batch)])
    assert any(
        "conv2 forward executed 0.50 of the FLOPs on paper at all 2 batch sizes" in item.text for item in said(study)
    )
    assert not any("fc1" in item.text and "paper" in item.text for item in said(study))


def test_the_largest_layer_is_named_at_both_ends_of_the_sweep(synthetic: ModuleType) -> None:
    (study,) = studies([synthetic.cpu_run(1, 16), synthetic.cpu_run(2, 256)])
    first = said(study)[0]
    share = 16 * 4000 / (16 * 10_100 + 1000) * 100
    assert first.text.startswith(f"conv2 backward takes the most time: {share:.1f} % of the step at batch 16")
    assert first.evidence == "ledger"


def test_overlapping_spreads_are_no_change(synthetic: ModuleType) -> None:
    (study,) = studies([synthetic.cpu_run(1, 64), synthetic.cpu_run(2, 128)])
    assert any("hardly changes" in item.text for item in said(study))


def test_a_real_change_comes_with_its_factor(synthetic: ModuleType) -> None:
    (study,) = studies([run for n, batch in enumerate((16, 256), 1) for run in synthetic.gpu_pair(n, batch)])
    factor = ((20_000 + 900 * 16) / 16) / ((20_000 + 900 * 256) / 256)
    assert any(f"falls with the batch size by a factor of {factor:.1f}" in item.text for item in said(study))


def test_missing_counts_and_failed_runs_are_warnings(synthetic: ModuleType) -> None:
    (study,) = studies([synthetic.cpu_run(1, 64), synthetic.failed_run(2, 256)])
    warnings = [item for item in said(study) if item.warning]
    assert [item.evidence for item in warnings] == ["gaps", "runs"]
    assert "batch 256 is failed" in warnings[1].text


def test_nothing_is_said_about_a_report_with_nothing_in_it(synthetic: ModuleType) -> None:
    run = synthetic.foreign_run(1)
    (study,) = studies([replace(run, report=replace(run.report, kernels=[]))])
    assert said(study) == []


def test_a_foreign_report_names_its_largest_kernel(synthetic: ModuleType) -> None:
    (study,) = studies([synthetic.foreign_run(1)])
    assert said(study)[0].text == "gemm_v0 takes 80.0 % of the kernel time (2.00 µs, 2 launches)."
