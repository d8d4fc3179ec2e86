"""The terminal's twin: 80 columns, the same findings, no markup and no control characters
from names; no word is broken while there is room."""

import random

import pytest

from perfctl.orchestrator.commands import query
from perfctl.orchestrator.report import terminal, text_tables
from perfctl.orchestrator.report.tables import (
    build_complete_table,
    name_column,
    text_column,
    time_cell,
    time_column,
)
from perfctl.orchestrator.report.text_tables import wrap_text
from perfctl.orchestrator.report.view import View, draw_view_on_terminal
from perfctl.records.report import Summary
from tests.make import synthetic
from tests.report.outline import printed, terminal_run


def test_a_wide_terminal_shows_more_columns_of_the_list_of_runs():
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
    answer = query.build_runs_view([query.StoredRun(facts)])
    assert "duration" not in printed(draw_view_on_terminal(answer, 80))
    wide = printed(draw_view_on_terminal(answer, 120), 120)
    assert "12.7 s" in wide and "H100 80GB HBM3" in wide


def test_a_run_shows_findings_and_the_ledger():
    text = printed(terminal_run(synthetic.gpu_pair(1, 64)[1]))
    assert max(map(len, text.splitlines())) <= 80
    assert "conv2 forward executed 0.500 times the estimated FLOPs" in text
    assert "1.36 G" in text and "not a realistic time" in " ".join(text.split())
    assert "1 multiply-add = 2 FLOPs" in " ".join(text.split())


def test_a_sweep_shows_one_row_a_batch_size():
    runs = [synthetic.cpu_run(1, 16), synthetic.cpu_run(2, 64), synthetic.failed_run(3, 256)]
    text = printed(draw_view_on_terminal(View(chapters=terminal.build_sweep_views(runs)), 80))
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


def test_names_are_no_markup_and_send_no_control_characters():
    run = synthetic.with_kernels(
        synthetic.foreign_run(1),
        lambda kernel: kernel._replace(name="[red]x[/red]\x1b[31m", short_name=None),
    )
    text = printed(terminal_run(run))
    assert "[red]x" in text and "\x1b" not in text


def test_ready_made_figures_keep_their_unit_and_a_rounded_zero_is_no_zero():
    run = synthetic.foreign_run(1, profiler="dlprof")
    figures = [Summary("GPU Utilization", 0.010363, "%"), Summary("Memory Duration", 0.0, "%")]
    figures.append(Summary("StdDev", 53_540_877_945.5, "ns"))
    texts = {}
    for form in ("DLProf database, version 1.8.0", "DLProf CSV: summary"):
        texts[form] = printed(
            terminal_run(synthetic.with_report(run, form=form, summaries=figures))
        )
    database, csv = ([line.split() for line in text.splitlines()] for text in texts.values())
    assert ["GPU", "Utilization", "0.010363", "%"] in database
    assert ["Memory", "Duration", "0", "%"] in database
    assert ["StdDev", "53,540,877,946", "ns"] in database, "no digit is zero for unknown"
    assert ["Memory", "Duration", "<", "0.05", "%"] in csv
    assert "Summary values from the report" in texts["DLProf CSV: summary"], "a title in one line"


@pytest.mark.parametrize(
    ("rank", "world_size", "text"),
    [
        (3, 8, "3 of 8; 'perfctl report' shows the ranks as one job"),
        (3, None, "3; 'perfctl report' shows the ranks as one job"),
        (0, 1, None),
        (0, None, None),
        (None, None, None),
    ],
)
def test_a_rank_names_the_number_of_ranks_and_what_shows_them(rank, world_size, text):
    run = synthetic.foreign_run(1)
    run = synthetic.with_report(run, rank=rank, world_size=world_size)
    *_, about = terminal.build_run_views(run)
    facts = {row[0].text: row[1].text for row in about.tables[0].rows}
    assert facts.get("rank") == text


WORDS = [
    "backward",
    "transcribed",
    "optimizer",
    "of",
    "a",
    "conv2",
    "implicit",
    "precomputed",
    "12.7",
    "ms",
    "loss,",
]


@pytest.mark.parametrize("seed", range(20))
def test_no_word_of_a_table_is_broken_whatever_the_cells_hold(seed):
    some = random.Random(seed)
    cells = [
        [" ".join(some.choices(WORDS, k=some.randint(1, 12))) for _ in range(4)] for _ in range(5)
    ]
    table = text_tables.make_rich_table(("a", "left"), ("b", "left"), ("c", "left"), ("d", "left"))
    shown = printed([text_tables.add_text_rows(table, cells)])
    assert max(map(len, shown.splitlines())) <= 80
    assert sorted(shown.split()) == sorted(
        " ".join(["a b c d", *(cell for row in cells for cell in row)]).split()
    )


@pytest.mark.parametrize("width", [32, 40, 60, 80])
def test_a_narrow_table_keeps_every_word_and_number_and_what_each_row_is_of(width):
    columns = [name_column("layer"), text_column("result"), *map(time_column, ("step A", "step B"))]
    names = [f"layer{number}.conv" for number in range(3)]
    rows = [
        (name, "not judged: too few repeats", time_cell(1.5e6), time_cell(2.5e9)) for name in names
    ]
    shown = printed(
        [text_tables.draw_terminal_table(build_complete_table("", columns, rows), 12, width)],
        width,
    )
    assert max(map(len, shown.splitlines())) <= width
    assert all(name[:6] in shown for name in names)
    for word in ("judged:", "repeats", "1.50 ms", "2.50 s"):
        assert shown.count(word) == len(rows), word


def test_a_number_stays_beside_its_unit_and_a_name_is_cut_before_words_break():
    table = text_tables.make_rich_table(
        ("kernel", "code"), ("what", "left"), ("time", "right"), ("memory", "right")
    )
    long = "void_cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4"
    text_tables.add_text_rows(
        table, [(long, "convolution of three words", "1,234,567.89 ms", "1,234 MB")]
    )
    lines = printed([table], 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert any("1,234,567.89 ms  1,234 MB" in line for line in lines)
    assert long[:10] in lines[1] and "…" in lines[1]


def test_a_path_is_broken_after_its_marks_and_a_hash_nowhere_while_it_fits():
    path = "/scratch/users/someone/perfctl-runs/torch-mnist_cnn-1a2b3c4d/b16/report.sqlite"
    lines = wrap_text(path, 40)
    assert "".join(lines) == path
    assert all(len(line) <= 40 for line in lines) and all(line[-1] in "/._-" for line in lines[:-1])
    assert wrap_text("sha " + 64 * "f", 64) == ["sha", 64 * "f"]
    assert "".join(wrap_text(100 * "f", 64)) == 100 * "f", (
        "nothing is lost where a word is longer than any line"
    )


def test_a_line_ends_between_no_number_and_its_unit():
    assert wrap_text("it took 24.7 ms", 13) == ["it took", "24.7 ms"]
    assert wrap_text("of 1.21 MFLOP more", 12) == ["of", "1.21 MFLOP", "more"]
    assert wrap_text("16 samples", 4) == ["16", "samp", "les"], "a noun is no unit"
