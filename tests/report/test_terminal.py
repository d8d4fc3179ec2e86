"""The terminal's twin: 80 columns, the same findings, no markup and no control characters
from names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfctl.orchestrator.commands import doctor, runs
from perfctl.orchestrator.launch.machine.doctor import Finding
from perfctl.orchestrator.report import terminal
from perfctl.orchestrator.report.view import View, on_terminal
from perfctl.records.report import Summary
from tests.make import synthetic
from tests.report.outline import printed, terminal_run


def row(number: int, **facts: Any) -> dict[str, Any]:
    """One line of the store's list of runs; what is not given is not known."""
    columns = (
        "profiler",
        "workload",
        "batch_size",
        "mode",
        "device_name",
        "kernels",
        "status",
        "origin",
        "started_at",
        "duration_ns",
    )
    return {"id": number, **dict.fromkeys(columns), **facts}


def test_runs_and_the_doctors_findings_fit_eighty_columns_and_say_their_state_in_a_word() -> None:
    rows = [
        row(
            1, profiler="torch", workload="mnist_cnn", batch_size=16, status="ok", origin="measured"
        ),
        row(
            2,
            profiler="torch",
            workload="mnist_cnn",
            batch_size=256,
            status="failed",
            origin="measured",
        ),
        row(
            3,
            profiler="nsys",
            device_name="NVIDIA H100 80GB HBM3",
            kernels=1221,
            status="ok",
            origin="ingested",
            started_at="2026-11-20T20:58:28.214+00:00",
            duration_ns=12_700_000_000,
        ),
    ]
    answer = runs.view([runs.StoredRun(facts) for facts in rows])
    text = printed(on_terminal(answer, 80))
    assert max(map(len, text.splitlines())) <= 80
    assert "failed" in text and "ingested" in text and "1,221" in text
    assert text.splitlines()[3].split()[:3] == ["3", "nsys", "–"], "what is not known is a dash"
    assert "2026-11-20 20:58" in text and "Times in UTC." in text
    assert "duration" not in text
    wide = printed(on_terminal(answer, 120), 120)
    assert "12.7 s" in wide and "H100 80GB HBM3" in wide
    lacking = Finding("perfctl ncu", "missing", None, "install it with " + 30 * "word ")
    text = printed(on_terminal(doctor.view([lacking]), 80))
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[1].split()[:3] == ["perfctl", "ncu", "no"]


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
