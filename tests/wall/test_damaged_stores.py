"""Stores that an earlier perfctl, or somebody else, left with values that cannot be: no command prints a traceback."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

DAMAGE = {
    "an endless time": "UPDATE step SET duration_ns = 9e999 WHERE run_id = 1",
    "a text for a time": "UPDATE step SET duration_ns = 'long' WHERE run_id = 1",
    "a text for a batch size": "UPDATE run SET batch_size = 'many' WHERE id = 1",
    "a blob for a name": "UPDATE layer_call SET layer = x'00ff' WHERE run_id = 1",
}
COMMANDS = (
    ("runs",), ("show", "1"), ("ledger",), ("ledger", "--json"), ("export", "--out", "e.csv", "--force"),
    ("compare", "1", "2"), ("plot", "--list"), ("trace", "1", "--out", "t.json", "--force"), ("query", "SELECT * FROM run"),
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_every_reading_command_names_the_run_or_copes(perfctl: Callable[..., Any], replayed: Path, damage: str) -> None:
    shutil.copy(replayed, "s.db")
    with closing(sqlite3.connect("s.db")) as store:
        store.execute(DAMAGE[damage])
        store.commit()
    for words in COMMANDS:
        said = perfctl(*words, "--store", "s.db")
        assert "Traceback" not in said.err, words
        if "did not expect" in said.err:
            assert "run 1" in said.err, (words, said.err)
            assert said.code == 4 or words[0] == "compare", (words, said.err)
        else:
            assert said.code in (0, 1), (words, said.err)


def test_ledger_and_plot_still_show_the_other_run(perfctl: Callable[..., Any], replayed: Path) -> None:
    shutil.copy(replayed, "s.db")
    with closing(sqlite3.connect("s.db")) as store:
        store.execute(DAMAGE["a blob for a name"])
        store.commit()
    said = perfctl("ledger", "--json", "--store", "s.db")
    assert said.code == 4
    assert {row["batch"] for row in said.json["rows"]} == {32}
    assert "training-loss" in perfctl("plot", "--list", "--store", "s.db").out


@pytest.mark.parametrize("column", ["batch_size", "rank", "world_size"])
def test_a_run_that_fails_only_beside_others_is_the_one_that_is_left_out(
    perfctl: Callable[..., Any], replayed: Path, column: str
) -> None:
    shutil.copy(replayed, "s.db")
    with closing(sqlite3.connect("s.db")) as store:
        store.execute(f"UPDATE run SET {column} = 'many' WHERE id = 1")
        store.commit()
    said = perfctl("plot", "--list", "--store", "s.db")
    assert said.code == 4, said.err
    assert f"its {column.replace('_', ' ')} is 'many', not a whole number" in said.err
    assert "run 1" in said.err and "run 2" not in said.err
    assert "training-loss" in said.out


def test_a_parquet_column_leaves_values_of_another_type_empty_and_says_how_many(
    perfctl: Callable[..., Any], replayed: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    shutil.copy(replayed, "s.db")
    with closing(sqlite3.connect("s.db")) as store:
        store.execute("UPDATE step SET loss = 'low' WHERE run_id = 1")
        (changed,) = store.execute("SELECT changes()").fetchone()
        (whole,) = store.execute("SELECT count(loss) FROM step WHERE run_id != 1").fetchone()
        store.commit()
    assert changed > 0
    for words in (("--dataset", "ds"), ("--table", "step", "--out", "step.parquet")):
        said = perfctl("export", *words, "--store", "s.db")
        assert said.code == 4, said.err
        assert f"step.loss: {changed} values are not of its type" in said.err
    losses = parquet.read_table("step.parquet").column("loss").to_pylist()
    assert sum(value is not None for value in losses) == whole


@pytest.mark.parametrize(
    "words",
    [("runs", "--store"), ("ingest", "none.json", "--store"), ("ingest",), ("scrub",), ("study", "flops", "--from"),
     ("study", "inference", "--from"), ("study", "cost", "--from"), ("study", "speedup", "--from")],
)  # fmt: skip
def test_a_named_pipe_is_refused_and_never_waited_for(perfctl: Callable[..., Any], words: tuple[str, ...]) -> None:
    os.mkfifo("pipe.db")
    said = perfctl(*words, "pipe.db")
    assert said.code in (1, 2, 4), said.err
    assert "pipe.db: this is a named pipe" in said.err
    assert "Traceback" not in said.err
