"""``make accuracy`` shows a kept table only while nothing that it was made from has changed."""

import pytest

from scripts.proof.accuracy import all_tables

SCRIPT = """import sys
from pathlib import Path
said = Path(__file__).with_name("measured.csv").read_text()
print("line of", said)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Stands for the folder of measurements; its scripts are the tables."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "measured.csv").write_text("first")
    monkeypatch.setenv("PERFCTL_SHARED", str(tmp_path))
    monkeypatch.setattr(all_tables, "HERE", tmp_path)
    monkeypatch.setattr(all_tables, "KEPT", tmp_path / "kept")
    return tmp_path


def made(folder, script):
    (folder / "table.py").write_text(script)
    all_tables.digest.cache_clear()
    return all_tables.run("table")


def kept():
    all_tables.digest.cache_clear()
    return all_tables.kept("table")


def change_library(folder, monkeypatch):
    monkeypatch.setattr(all_tables, "libraries", lambda: "others")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            lambda folder, _: (folder / "measured.csv").write_text("second"), id="what it read"
        ),
        pytest.param(
            lambda folder, _: (folder / "table.py").write_text(SCRIPT + "# another"),
            id="its script",
        ),
        pytest.param(change_library, id="a library"),
    ],
)
def test_a_table_is_kept_until_something_changes(folder, monkeypatch, change):
    assert made(folder, SCRIPT)["lines"] == ["line of first\n"]
    found = kept()
    assert found is not None and found["lines"] == ["line of first\n"]
    change(folder, monkeypatch)
    assert kept() is None


def test_a_table_that_misses_is_kept_with_its_exit_code(folder):
    made(folder, SCRIPT + "print('median 9% < 5% NO')\nsys.exit(1)\n")
    found = kept()
    assert found is not None
    assert found["code"] == 1
    (said, missed) = all_tables.short("table", found, True)
    assert "a line misses" in said
    assert missed.endswith("NO")


@pytest.mark.parametrize(
    "end", ["raise ValueError('broken')", "sys.exit(2)", "sys.exit('no such file')"]
)
def test_a_script_that_fails_is_not_kept_and_said_to_have_failed(folder, end):
    found = made(folder, SCRIPT + end + "\n")
    assert found["code"] != 0
    assert kept() is None
    assert "FAILED" in next(iter(all_tables.short("table", found, False)))


def test_every_table_has_a_script():
    for name in all_tables.TABLES:
        assert (all_tables.HERE / f"{name}.py").is_file()
