"""Progress: silent when quick and where nobody watches; on a terminal a bar, with percent and
time left."""

import io
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfctl.orchestrator.cli import progress
from tests.launch.programs import wait_until


class Terminal(io.StringIO):
    def isatty(self):
        return True


def wait_for(terminal, text):
    wait_until(lambda: text in terminal.getvalue(), terminal.getvalue)


@pytest.fixture(autouse=True)
def _hasty(monkeypatch):
    monkeypatch.setattr(progress, "AFTER_S", 0.05)
    monkeypatch.setattr(progress, "BAR_S", 0.02)


def test_what_is_quick_says_nothing(capsys, monkeypatch):
    monkeypatch.setattr(progress, "AFTER_S", 60)
    with progress.show_progress() as now:
        now("reading", 0, 1, Path("a.json"))
    assert capsys.readouterr().err == ""


def test_what_is_slow_says_nothing_either_where_nobody_watches(capsys):
    with progress.show_progress() as now, progress.show_progress() as steps:
        now("reading", 0, 3, Path("a.json"))
        steps("tracing", 1, 3)
        time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_a_line_says_which_file_of_how_many_and_how_far(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(b"x" * 4_000_000)
    now = progress.ProgressSteps()
    now("reading", 0, 2, tmp_path / "other.csv")
    assert now.format_percent_and_time_left() == "", (
        "nothing is done, so nothing is known of the time left"
    )
    now("reading", 1, 2, path)
    now._start -= 60
    with path.open("rb", buffering=0) as file:
        file.read(3_000_000)
        place = ", 3 of 4 MB" if Path("/proc/self/fdinfo").is_dir() else ""
        assert now.format_line() == f"2 of 2: trace.json: reading{place}, 0 s"
        done = 1.75 if place else 1.0  # of 2 files, in 60 s
        seconds = round(60 * (2 / done - 1))
        left = f"{seconds} s" if seconds < 60 else "1 min 0 s"
        assert now.format_percent_and_time_left() == f"{done / 2 * 100:.0f}%, about {left} left  "


def test_a_calculation_says_its_part_its_share_and_the_time_left(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with progress.show_progress() as steps:
        clock = SimpleNamespace(monotonic=lambda: steps._start + 30)
        monkeypatch.setattr(progress, "time", clock)
        steps("working out vgg16", 2, 8)
        wait_for(terminal, f"25%, about 1 min {30 * 3 - 60} s left  3 of 8: working out vgg16")


def test_a_file_that_is_not_read_in_order_shows_no_bytes(tmp_path):
    path = tmp_path / "a.sqlite"
    path.write_bytes(b"x" * 1_000_000)
    now = progress.ProgressSteps()
    now("reading", 0, 1, path)
    assert now.format_line() == "a.sqlite: reading, 0 s"
    assert progress.measure_read_and_total_bytes(tmp_path / "missing") == (0, 0)


def test_on_a_terminal_a_bar_is_drawn_and_taken_away(tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress.show_progress() as now:
        now("reading", 0, 2, tmp_path / "[bold]a\x1b[31m.csv")
        wait_for(terminal, "1 of 2: [bold]a\\x1b[31m.csv")
    said = terminal.getvalue()
    assert "\x1b[31m.csv" not in said
    assert sys.stderr is terminal, "given back"
