from pathlib import Path

import pytest


def test_a_dry_run_ends_as_the_run_would_where_there_is_no_folder_for_the_store(perfctl):
    words = "torch --batches 16 --device cpu --out before/runs"
    planned, ran = perfctl(f"{words} --dry-run"), perfctl(words)
    assert "folder before not found" in planned.err
    assert (planned.code, planned.out, planned.err) == (ran.code, "", ran.err)
    assert perfctl(f"{words} --store here.db --dry-run").code == 0
    assert list(Path().iterdir()) == []


def test_an_out_folder_that_is_a_file_is_one_line(perfctl, recorded):
    Path("taken").touch()
    said = perfctl(f"replay {recorded / 'torch'} --out taken").ends(1, "taken")
    assert "Traceback" not in said.err


@pytest.mark.parametrize("columns", ["abc", "0", ""])
def test_a_strange_number_of_columns_is_ignored(perfctl, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    said = perfctl("doctor").ok()
    assert "perfctl torch" in said.out
