"""Tables on a terminal: no word is broken, and what does not fit gives way in order."""

from __future__ import annotations

import random

import pytest

from perfctl.orchestrator.report import text_tables
from perfctl.orchestrator.report.text_tables import Size, widths, wrapped
from tests.report.outline import printed

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
def test_no_word_of_a_table_is_broken_whatever_the_cells_hold(seed: int) -> None:
    some = random.Random(seed)
    cells = [
        [" ".join(some.choices(WORDS, k=some.randint(1, 12))) for _ in range(4)] for _ in range(5)
    ]
    table = text_tables.grid(("a", "left"), ("b", "left"), ("c", "left"), ("d", "left"))
    shown = printed([text_tables.add_rows(table, cells)])
    assert max(map(len, shown.splitlines())) <= 80
    assert sorted(shown.split()) == sorted(
        " ".join(["a b c d", *(cell for row in cells for cell in row)]).split()
    )


def test_a_number_stays_beside_its_unit_and_a_name_is_cut_before_words_break() -> None:
    table = text_tables.grid(
        ("kernel", "code"), ("what", "left"), ("time", "right"), ("memory", "right")
    )
    long = "void_cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4"
    text_tables.add_rows(
        table, [(long, "convolution of three words", "1,234,567.89 ms", "1,234 MB")]
    )
    lines = printed([table], 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert any("1,234,567.89 ms  1,234 MB" in line for line in lines)
    assert long[:10] in lines[1] and "…" in lines[1]


def test_a_path_is_broken_after_its_marks_and_a_hash_nowhere_while_it_fits() -> None:
    path = "/scratch/users/someone/perfctl-runs/torch-mnist_cnn-1a2b3c4d/b16/report.sqlite"
    lines = wrapped(path, 40)
    assert "".join(lines) == path
    assert all(len(line) <= 40 for line in lines) and all(line[-1] in "/._-" for line in lines[:-1])
    assert wrapped("sha " + 64 * "f", 64) == ["sha", 64 * "f"]
    assert "".join(wrapped(100 * "f", 64)) == 100 * "f", (
        "nothing is lost where a word is longer than any line"
    )


def test_widths_fit_and_only_the_widest_give_way() -> None:
    sizes = [Size(5, 5), Size(9, 60), Size(16, 40, cut=True)]
    assert widths(sizes, 200) == [5, 60, 40], "what fits is left alone"
    tight = widths(sizes, 50)
    assert sum(tight) == 50 and tight[0] == 5
    assert widths(sizes, 5 + 9 + 10)[:2] == [5, 9], "the name is cut, and no word broken"
    assert sum(widths(sizes, 12)) == 12


@pytest.mark.parametrize("seed", range(20))
def test_a_table_without_colours_has_the_lines_that_rich_draws(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = random.Random(seed)
    names = [
        *WORDS,
        "a/long/path-of_marks.sqlite",
        "\u00b5s \u2192",
        "two\nlines",
        "",
        "\u5e45",
        40 * "x",
    ]
    sides = some.choices(("left", "right", "code"), k=some.randint(1, 5))
    rows = [
        [" ".join(some.choices(names, k=some.randint(1, 9))) for _ in sides]
        for _ in range(some.randint(0, 6))
    ]

    def made() -> object:
        heads = ((" ".join(WORDS[: at + 1]), side) for at, side in enumerate(sides))
        table = text_tables.add_rows(text_tables.grid(*heads, heads=seed % 4 > 0), rows)
        table.caption = text_tables.text("All runs: training.") if seed % 3 else None
        return table

    shown = printed([made()], 60)
    monkeypatch.setattr(text_tables, "_drawn", lambda *_: None)
    assert shown == printed([made()], 60)
