"""kernel and counter: views that read as the tables they are documented as."""

from __future__ import annotations

from pathlib import Path

from perfctl.orchestrator.store import database
from perfctl.orchestrator.store.schema.migrations import views


def test_every_column_of_a_view_says_meaning_unit_and_when_null(tmp_path: Path) -> None:
    described = views()
    assert sorted(described) == ["counter", "kernel"]
    with database.writing(tmp_path / "perfctl.db") as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'")]
        assert sorted(names) == sorted(described)
        for name in names:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
            assert columns == [column.name for column in described[name][1]]


def test_counting_kernels_of_a_run_needs_no_look_at_their_names(tmp_path: Path) -> None:
    with database.writing(tmp_path / "perfctl.db") as connection:
        plan = connection.execute("EXPLAIN QUERY PLAN SELECT count(*) FROM kernel WHERE run_id = 1").fetchall()
    assert any("kernel_launch_by_run" in row[3] for row in plan)
    assert not any("kernel_name" in row[3] for row in plan)
