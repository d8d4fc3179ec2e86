"""What an nsys that was killed leaves in shared memory goes, where that harms nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.orchestrator.launch.profilers import nsys


def machine(folder: Path, name: str, state: str = "S") -> tuple[Path, Path]:
    """(shared memory with nsys's file in it, /proc with one process)."""
    shared, processes = folder / "shm", folder / "proc"
    (processes / "7").mkdir(parents=True)
    (processes / "7" / "comm").write_text(f"{name}\n")
    (processes / "7" / "stat").write_text(f"7 ({name}) {state} 1 7 7 0\n")
    (processes / "meminfo").touch()
    shared.mkdir()
    for file in ("NSys-2022.4.2.1", "sem.other"):
        (shared / file).touch()
    return shared, processes


@pytest.mark.parametrize(("name", "state"), [("bash", "S"), ("nsys", "Z")])
def test_it_is_removed_where_no_nsys_runs_and_said(tmp_path, name, state):
    shared, processes = machine(tmp_path, name, state)
    assert nsys.clear(shared, processes).startswith(f"removed {shared}/NSys-2022.4.2.1, ")
    assert [path.name for path in shared.iterdir()] == ["sem.other"]
    assert nsys.clear(shared, processes) is None


@pytest.mark.parametrize("name", ["nsys", "nsys-launcher"])
def test_it_stays_while_another_nsys_runs(tmp_path, name):
    shared, processes = machine(tmp_path, name)
    assert nsys.clear(shared, processes) is None
    assert (shared / "NSys-2022.4.2.1").exists()


def test_a_link_is_left_alone(tmp_path):
    shared, processes = machine(tmp_path, "bash")
    (shared / "NSys-2022.4.2.1").unlink()
    (shared / "NSys-2022.4.2.1").symlink_to(tmp_path)
    assert nsys.clear(shared, processes) is None
    assert tmp_path.is_dir()
