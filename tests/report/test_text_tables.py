"""Tables on a terminal: no word is broken while there is room, and names give way to numbers."""

from __future__ import annotations

import random

import pytest

from perfctl.orchestrator.report import text_tables
from perfctl.orchestrator.report.text_tables import wrapped
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


def test_a_line_ends_between_no_number_and_its_unit() -> None:
    assert wrapped("it took 24.7 ms", 13) == ["it took", "24.7 ms"]
    assert wrapped("of 1.21 MFLOP more", 12) == ["of", "1.21 MFLOP", "more"]
    assert wrapped("16 samples", 4) == ["16", "samp", "les"], "a noun is no unit"
