"""The terminal's twin: 80 columns, the same findings, no markup and no control characters
from names."""

from __future__ import annotations

from dataclasses import replace

from perfctl.orchestrator.commands import runs
from perfctl.orchestrator.report import terminal
from perfctl.orchestrator.report.view import View, on_terminal
from perfctl.records.report import Summary
from tests.make import synthetic
from tests.report.outline import printed, terminal_run


def test_a_wide_terminal_shows_more_columns_of_the_list_of_runs() -> None:
    facts = {
        "id": 3,
        "mode": None,
        "profiler": "nsys",
        "workload": "mnist_cnn",
        "batch_size": 16,
        "kernels": 1221,
    }
    facts |= {"device_name": "NVIDIA H100 80GB HBM3", "started_at": "2026-11-20T20:58:28.214+00:00"}
    facts |= {"status": "ok", "origin": "ingested", "duration_ns": 12_700_000_000}
    answer = runs.view([runs.StoredRun(facts)])
    assert "duration" not in printed(on_terminal(answer, 80))
    wide = printed(on_terminal(answer, 120), 120)
    assert "12.7 s" in wide and "H100 80GB HBM3" in wide


def test_a_run_shows_findings_and_the_ledger() -> None:
    text = printed(terminal_run(synthetic.gpu_pair(1, 64)[1]))
    assert max(map(len, text.splitlines())) <= 80
    assert "conv2 forward executed 0.500 times the estimated FLOPs" in text
    assert "1.36 G" in text and "not a realistic time" in " ".join(text.split())
    assert "1 multiply-add = 2 FLOPs" in " ".join(text.split())


def test_a_sweep_shows_one_row_a_batch_size() -> None:
    runs = [synthetic.cpu_run(1, 16), synthetic.cpu_run(2, 64), synthetic.failed_run(3, 256)]
    text = printed(on_terminal(View(chapters=terminal.sweep_views(runs)), 80))
    assert [
        line.split()[0]
        for line in text.splitlines()
        if line.split() and line.split()[0] in ("16", "64", "256")
    ] == [
        "16",
        "64",
        "256",
    ]
    assert "out of memory" in text


def test_names_are_no_markup_and_send_no_control_characters() -> None:
    run = synthetic.foreign_run(1)
    kernels = [
        kernel._replace(name="[red]x[/red]\x1b[31m", short_name=None)
        for kernel in run.report.kernels
    ]
    text = printed(terminal_run(replace(run, report=replace(run.report, kernels=kernels))))
    assert "[red]x" in text and "\x1b" not in text


def test_ready_made_figures_keep_their_unit_and_a_rounded_zero_is_no_zero() -> None:
    run = synthetic.foreign_run(1, profiler="dlprof")
    figures = [Summary("GPU Utilization", 0.010363, "%"), Summary("Memory Duration", 0.0, "%")]
    texts = {}
    for form in ("DLProf database, version 1.8.0", "DLProf CSV: summary"):
        texts[form] = printed(
            terminal_run(replace(run, report=replace(run.report, form=form, summaries=figures)))
        )
    database, csv = ([line.split() for line in text.splitlines()] for text in texts.values())
    assert ["GPU", "Utilization", "0.010363", "%"] in database
    assert ["Memory", "Duration", "0", "%"] in database
    assert ["Memory", "Duration", "<", "0.05", "%"] in csv
    assert "Summary values from the report" in texts["DLProf CSV: summary"], "a title in one line"
