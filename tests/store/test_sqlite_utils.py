"""A store after the ordinary operations of sqlite-utils' own command line: perfctl shows and takes
in what it did before."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from sqlite_utils.cli import cli

from perfctl.orchestrator.cli.main import run_command_line
from tests.make.stored import rows

DATA = Path(__file__).resolve().parents[1] / "data"
FILES = (
    "ncu-nvtx/layers.csv",
    "nvidia-smi-synthetic/query.csv",
    "kineto-synthetic/trace.json",
    "dlprof-synthetic",
)
Perfctl = Callable[..., str]


@pytest.fixture
def perfctl(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call(*words, wanted=""):
        """What the command prints; ``wanted`` has to be among its notes, and no other note of
        the store's."""
        capsys.readouterr()
        assert run_command_line([str(word) for word in words]) == 0
        said = capsys.readouterr()
        notes = [line for line in said.err.splitlines() if line.startswith("note: ")]
        assert len(notes) == bool(wanted), notes
        assert wanted in "".join(notes)
        return said.out

    return call


@pytest.fixture(scope="module")
def ingested(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ingested")
    with chdir(folder):
        assert run_command_line(["ingest", *(str(DATA / name) for name in FILES)]) == 0
        assert (
            run_command_line(["replay", "--batches", "16", str(DATA / "recorded-cpu" / "torch")])
            == 0
        )
    return folder / "perfctl.db"


@pytest.fixture(scope="module")
def before(ingested):
    """What perfctl makes of the store that nobody changed."""

    def call(*words):
        with redirect_stdout(StringIO()) as said:
            assert run_command_line([str(word) for word in words]) == 0
        return said.getvalue()

    with chdir(ingested.parent):
        return shown(call)


@pytest.fixture
def store(ingested, tmp_path):
    return Path(shutil.copy(ingested, tmp_path / "perfctl.db"))


def sqlite_utils(command, store, *words):
    """What the command ``sqlite-utils`` calls, without the second that a process of its own takes
    to load pandas."""
    cli.main([command, str(store), *words], standalone_mode=False)


def shown(perfctl):
    """What perfctl makes of the store, but for times of day."""
    whole: dict[str, Any] = {
        f"show {n}": json.loads(perfctl("show", n, "--json")) for n in (1, 2, 3, 4, 5)
    }
    whole["runs"] = json.loads(perfctl("runs", "--json"))
    whole["ledger"] = json.loads(perfctl("ledger", "--json"))
    perfctl("export", "--all", "--out", "all.json", "--force")
    whole["export"] = json.loads(Path("all.json").read_text())["tables"]
    return whole


OPERATIONS: dict[str, list[list[str]]] = {
    "columns, indexes, views and tables of one's own": [
        *(
            ["add-column", table, "mine", "text", "--not-null-default", "x"]
            for table in ("run", "gap", "kernel_launch")
        ),
        *(["add-column", table, "note", "text"] for table in ("sweep", "device", "metric")),
        ["create-index", "kernel_launch", "duration_ns", "stream"],
        ["create-view", "slow", "select name, sum(duration_ns) from kernel group by name"],
        [
            "create-table",
            "my notes",
            "run_id",
            "integer",
            "text",
            "text",
            "--fk",
            "run_id",
            "run",
            "id",
        ],
        ["insert", "own", str(DATA / "nvidia-smi-synthetic/query.csv"), "--csv"],
        ["analyze"],
        ["vacuum"],
        ["disable-wal"],
    ],
    "triggers": [
        ["enable-fts", "kernel_name", "name", "short_name", "--create-triggers"],
        ["enable-fts", "gap", "reason", "--fts4", "--create-triggers"],
        ["enable-counts", "run", "gap"],
    ],
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_after_it_perfctl_shows_what_it_showed_and_takes_in_what_it_took_in(
    store, perfctl, before, operation
):
    for command, *words in OPERATIONS[operation]:
        sqlite_utils(command, store, *words)
    assert shown(perfctl) == before
    perfctl("report", "--out", "page.html")
    for name in FILES:
        assert "already" in perfctl("ingest", DATA / name)
    triggers = rows(
        store, "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY rowid"
    )
    perfctl(
        "ingest",
        "--again",
        *(DATA / name for name in FILES),
        wanted="disables triggers" * (operation == "triggers"),
    )
    assert (
        rows(store, "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY rowid")
        == triggers
    )
    for old, new in zip((1, 2, 3, 4), (6, 7, 8, 9), strict=True):
        one, other = (json.loads(perfctl("show", number, "--json")) for number in (old, new))
        for same in ("kernels", "counters", "gaps", "copies", "operations", "samples"):
            assert one.get(same) == other.get(same), same
    assert rows(store, "PRAGMA integrity_check") == [("ok",)]


def test_a_search_index_and_counts_that_triggers_kept_are_up_to_date_after_perfctl_wrote(
    store, perfctl
):
    sqlite_utils("enable-fts", store, "kernel_name", "name", "--create-triggers")
    sqlite_utils("enable-fts", store, "gap", "reason", "--fts4", "--create-triggers")
    sqlite_utils("enable-counts", store, "kernel_name")
    perfctl(
        "ingest",
        "--again",
        DATA / FILES[0],
        wanted="updated instead: kernel_name_fts, gap_fts, _counts",
    )
    names = rows(store, "SELECT id FROM kernel_name WHERE name LIKE '%sgemm%'")
    assert len(names) > 1
    search = [
        sys.executable,
        "-m",
        "sqlite_utils",
        "search",
        str(store),
        "kernel_name",
        "sgemm",
        "-c",
        "id",
    ]
    done = subprocess.run(search, capture_output=True, text=True, timeout=600, check=True)
    assert sorted(row["id"] for row in json.loads(done.stdout)) == sorted(
        number for (number,) in names
    )
    ((indexed,),) = rows(store, "SELECT count(*) FROM kernel_name_fts_docsize")
    ((there,),) = rows(store, "SELECT count(*) FROM kernel_name")
    assert (
        indexed
        == there
        == rows(store, "SELECT count FROM _counts WHERE \"table\" = 'kernel_name'")[0][0]
    )
    assert rows(store, "SELECT count(*) FROM gap_fts_docsize") == rows(
        store, "SELECT count(*) FROM gap"
    )


def test_sqlite_utils_and_pandas_are_not_loaded_by_help_runs_and_query(store):
    code = (
        "import sys; from perfctl.orchestrator.cli.main import run_command_line as run\n"
        "for words in (['--help'], ['runs'], ['query', 'select 1']): assert run(words) == 0\n"
        "print('loaded', sorted({'sqlite_utils', 'pandas', 'numpy'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=store.parent, capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout.splitlines()[-1] == "loaded []"
