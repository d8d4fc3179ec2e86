"""perfctl.ingest as Python users call it: a record comes back, nothing is printed, errors
name fields."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import perfctl
from perfctl.orchestrator.errors import PartlyDone, UsageError
from perfctl.orchestrator.ingest.context import UserHints
from perfctl.orchestrator.ingest.derive import derive_store
from perfctl.orchestrator.ingest.ingest import ingest
from tests.make.stored import execute, rows

DERIVED = "DELETE FROM derived_value", "DELETE FROM derived_rule"


@pytest.fixture(scope="module")
def trace(recorded: Path) -> Path:
    return recorded / "torch" / "b16" / "report.pt.trace.json.gz"


def test_a_report_goes_into_a_store_that_is_made_with_the_command_line_that_is_given(
    trace: Path, tmp_path: Path
) -> None:
    store = tmp_path / "perfctl.db"
    hints = UserHints(batch=16, workload="mnist_cnn")
    done = ingest(trace, store, hints=hints, command_line="perfctl ingest trace")
    ((path, written),) = done.taken
    assert (done.store, path, written.new, done.failed) == (store, trace, True, ())
    (run,) = perfctl.runs(store)
    assert (run.id, run.workload, run.batch_size) == (written.run_id, "mnist_cnn", 16)
    done.check()
    assert rows(store, "SELECT kind, command FROM sweep") == [("ingest", "perfctl ingest trace")]
    again = perfctl.ingest([trace], store)
    assert [(one.run_id, one.new) for _, one in again.taken] == [(written.run_id, False)]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        pytest.param("N", "invalid value 'N'", id="without a value"),
        pytest.param("N=", "invalid value 'N='", id="with an empty value"),
        pytest.param("2N=3", "invalid value '2N=3'", id="with a name that no formula can use"),
        pytest.param("batch=64", "cannot set the batch size", id="that has an option of its own"),
    ],
)
def test_a_parameter_is_refused(given: str, problem: str, trace: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{problem}.*|`parameters` {problem}"):
        perfctl.ingest(trace, tmp_path / "perfctl.db", parameters=[given])


def test_a_run_has_the_parameters_that_the_user_gave_and_its_batch_size(
    trace: Path, tmp_path: Path
) -> None:
    store = tmp_path / "perfctl.db"
    perfctl.ingest(trace, store, batch=16, parameters=["N=1024", "precision=a=b"])
    stored = rows(store, "SELECT name, value, number FROM parameter ORDER BY rowid")
    assert stored == [("batch", "16", 16), ("N", "1024", 1024), ("precision", "a=b", None)]


def test_formulas_are_worked_out_for_each_run_also_of_a_report_that_is_there_already(
    trace: Path, heard: Any, tmp_path: Path
) -> None:
    store = tmp_path / "perfctl.db"
    perfctl.ingest(trace, store, batch=16, parameters=["N=1024"])
    hints = UserHints(expect=["nosuch: flops=2*N*batch, bytes=4*N"])
    (pair,) = ingest(trace, store, hints=hints, listener=heard).taken
    assert not pair[1].new
    stored = "SELECT pattern, flops, bytes, formula, source FROM expectation"
    text = "flops=2*N*batch, bytes=4*N"
    assert rows(store, stored) == [("nosuch", 2 * 1024 * 16, 4 * 1024, text, "option")]
    assert any("run 1: no kernel or range matches 'nosuch'" in line for line in heard.lines)
    with pytest.raises(UsageError, match=r"no parameter 'L' .*known: batch, N"):
        perfctl.ingest(trace, store, expect=["x: flops=L"])
    with pytest.raises(UsageError, match="'x' has several formulas"):
        perfctl.ingest(trace, store, expect=["x: flops=1", "x: flops=2"])
    assert len(rows(store, stored)) == 1


def test_what_cannot_be_read_is_in_the_record_and_the_listener_hears_it(
    trace: Path, heard: Any, tmp_path: Path
) -> None:
    done = ingest([trace, tmp_path / "gone.csv"], tmp_path / "perfctl.db", listener=heard)
    said = f"{tmp_path / 'gone.csv'}: file not found"
    assert (len(done.taken), done.failed, heard.total) == (1, (said,), 2)
    listed = f"batch size 16, from the name: {trace.name}"
    read = [listed, f"reading {trace.name}", "end"]
    assert heard.lines == [*read, "reading gone.csv", f"failed: {said}", "end"]
    with pytest.raises(PartlyDone, match="1 of 2 could not be read"):
        done.check()


def test_two_calls_within_a_second_are_two_sweeps(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfctl.orchestrator.store.write.now", lambda: "2026-11-20T10:00:00Z")
    store = tmp_path / "perfctl.db"
    perfctl.ingest(trace, store)
    perfctl.ingest(trace.parent.parent / "b32" / trace.name, store)
    assert rows(store, "SELECT count(DISTINCT sweep_id) FROM run") == [(2,)]


def test_derived_counts_and_families_are_derived_again_from_the_rows(tmp_path: Path) -> None:
    store = tmp_path / "perfctl.db"
    folder = tmp_path / "made"
    script = Path(__file__).parents[2] / "scripts" / "speed" / "make_sweeps.py"
    subprocess.run([sys.executable, script, "1", "1", "2", "30", folder], check=True)
    perfctl.ingest(folder, store)
    tables = (
        "SELECT kernel_id, instruction, value, rule FROM derived_count ORDER BY 1, 2",
        "SELECT name, family FROM kernel_name ORDER BY id",
        "SELECT launch, source FROM kernel ORDER BY run_id, launch",
    )
    before = [rows(store, table) for table in tables]
    execute(store, "UPDATE kernel_name SET family = 'none'", *DERIVED)
    assert derive_store(store) == 1
    assert [rows(store, table) for table in tables] == before


def test_what_an_ended_ingest_did_not_derive_is_derived_by_the_next_for_every_rank(
    tmp_path: Path,
) -> None:
    store = tmp_path / "perfctl.db"
    folder = Path(__file__).parents[1] / "data" / "h100" / "nsys" / "b16"
    perfctl.ingest(folder, store)
    perfctl.ingest(folder, store, again=True)
    count = "SELECT run_id, count(*) FROM kernel WHERE source = 'derived' GROUP BY run_id"
    before = rows(store, count)
    assert len(before) == 2, "a run and, as the database says from now on, its second rank"
    execute(
        store,
        "UPDATE run SET world_size = 2, rank = 2 - id, sweep_id = 1, origin = 'measured'",
        "UPDATE kernel_launch SET source = NULL WHERE source = 'derived'",
        "UPDATE kernel_name SET family = NULL",
        *DERIVED,
    )
    perfctl.ingest(folder, store)
    assert rows(store, count) == before
