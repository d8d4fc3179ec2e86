"""Progress of ``ingest``: silent when quick, a line now and then when not, a bar on a terminal."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

import pytest

from perfctl.orchestrator.cli import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "AFTER_S", 0.05)
    monkeypatch.setattr(progress, "PLAIN_S", 0.05)
    monkeypatch.setattr(progress, "BAR_S", 0.02)


def test_what_is_quick_says_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "AFTER_S", 60)
    with progress.reading(1) as now:
        now.begin(Path("a.json"))
        now.end()
    assert capsys.readouterr().err == ""


def test_lines_say_which_file_of_how_many_and_how_far(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b"x" * 4_000_000)
    with progress.reading(3) as now, path.open("rb", buffering=0) as file:
        now.begin(tmp_path / "other.csv")
        now.end()
        now.begin(path)
        file.read(3_000_000)
        time.sleep(0.25)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 1, "it goes on"
    place = ", 3 of 4 MB" if Path("/proc/self/fdinfo").is_dir() else ""
    assert set(lines) == {f"2 of 3: trace.json: reading{place}, 0 s"}


def test_a_file_that_is_not_read_in_order_shows_no_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(b"x" * 1_000_000)
    now = progress.ReadProgress(1)
    now.begin(path)
    assert now.line() == "1 of 1: a.sqlite: reading, 0 s"
    assert progress.position(tmp_path / "missing") == (0, 0)


def test_on_a_terminal_a_bar_is_drawn_and_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress.reading(2) as now:
        now.begin(tmp_path / "[bold]a\x1b[31m.csv")
        time.sleep(0.4)
    said = terminal.getvalue()
    assert "1 of 2: [bold]a\\x1b[31m.csv" in said
    assert "\x1b[31m.csv" not in said
    assert sys.stderr is terminal, "given back"
