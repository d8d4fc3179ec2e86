"""A trace of somebody else's program, with shapes and without counters, has a ledger: ratios,
verdicts, utilisation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perfctl.orchestrator.commands.ledger import LedgerOptions, RequestedLedgers
from perfctl.orchestrator.ingest.ingest import ingest_paths
from perfctl.orchestrator.report.findings import list_findings
from tests.make.kineto import kernel, launch, operation

M, K, N = 128, 512, 256
PAPER = 2 * M * K * N
EXECUTED = 2 * M * N * (K + 1) + M * N
"""Whole tiles, one multiply-add more for the bias, and alpha: an sgemm whose tiles fit."""
A100 = {
    "id": 0,
    "name": "NVIDIA A100-SXM4-40GB",
    "computeMajor": 8,
    "computeMinor": 0,
    "numSms": 108,
}


def product(ts, number, microseconds, name="ampere_sgemm_128x64_tn"):
    """aten::addmm of M x K x N, and its kernel in tiles of 128 outputs by 64 rows."""
    made = operation("aten::addmm", ts, 9, number)
    made["args"] |= {
        "Input Dims": [[N], [M, K], [K, N]],
        "Input type": ["float"] * 3,
        "Concrete Inputs": [""] * 3,
    }
    shape: dict[str, Any] = {"grid": [N // 128, M // 64, 1], "block": [128, 1, 1]}
    return [
        made,
        launch(ts + 1, number),
        kernel(name, 1000 + ts, microseconds, number, number, device=0, **shape),
    ]


def analysed(folder, *events):
    path = folder / "somebody.pt.trace.json"
    path.write_text(
        json.dumps({"schemaVersion": 1, "deviceProperties": [A100], "traceEvents": events})
    )
    assert not ingest_paths([path], folder / "store.db").failed
    ((found,),) = RequestedLedgers(LedgerOptions(store=folder / "store.db")).map_run_groups(list)
    return found


def test_counted_over_paper_is_derived_from_kernel_name_grid_and_shape(tmp_path):
    found = analysed(tmp_path, *product(10, 1, 5), *product(30, 2, 7))
    (row,) = found.ledger.rows
    assert (row.name, row.batch) == (f"aten::addmm {M}x{K}x{N} forward", None)
    assert (row.estimated.value, row.executed.value, row.executed.state) == (
        2 * PAPER,
        2 * EXECUTED,
        "derived",
    )
    assert row.ratio == pytest.approx(EXECUTED / PAPER)
    assert row.time is not None and row.time.median == 12_000
    assert "sgemm" in str(row.executed.reason) and "on an A100" in str(row.executed.reason)


def test_a_report_without_kernels_lacks_kernels_and_not_a_rule_for_them(tmp_path):
    called, launched, _ = product(10, 1, 5)
    (row,) = analysed(tmp_path, called, launched).ledger.rows
    assert (row.estimated.value, row.executed.value) == (PAPER, None)
    assert row.executed.reason == "the report recorded no kernel"


def test_findings_say_derived_and_how_far_the_rules_were_verified(tmp_path):
    found = analysed(tmp_path, *product(10, 1, 5), *product(30, 2, 5, name="somebodys_own_gemm"))
    texts = [item.text for item in list_findings(found)]
    (said,) = [text for text in texts if text.startswith("perfctl derived the FLOPs")]
    assert (
        "50.0% of the kernel time" in said
        and "for all of it, the rules are verified to" in said
        and "on an A100" in said
    )
    assert not any("Run perfctl ncu" in text or "at batch" in text for text in texts)
    (row,) = found.ledger.rows
    assert row.executed.lower_bound  # the second kernel has no rule


def test_the_gap_of_the_batch_size_does_not_deny_the_sequences_that_a_server_s_steps_state(
    tmp_path,
):
    step = {
        "ph": "X",
        "cat": "user_annotation",
        "name": "step[DECODE bs=128]",
        "pid": 1,
        "tid": 1,
        "ts": 5,
        "dur": 900,
    }
    for folder, events, said in (
        ("server", [step], "states the sequences of each step"),
        ("other", [], "perfctl ingest --batch"),
    ):
        (tmp_path / folder).mkdir()
        (run,) = analysed(tmp_path / folder, *events, *product(10, 1, 5)).study.runs
        (gap,) = (gap for gap in run.report.gaps if gap.quantity == "batch_size")
        assert (bool(list(run.report.served_steps)), said in gap.reason) == (bool(events), True)
