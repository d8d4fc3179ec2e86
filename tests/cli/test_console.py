from __future__ import annotations

import io
import json
import time

import pytest

from perfctl.orchestrator.cli import console, progress

PRINTS_ITS_OWN = True


def test_control_characters_from_reports_never_reach_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console.result("kernel\x1b[31m\x9b\x07")
    assert capsys.readouterr().out == "kernel\\x1b[31m\\x9b\\x07\n"


def test_an_error_is_one_line_whatever_the_name_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    console.error("a\nb: cannot be read")
    assert capsys.readouterr().err == "perfctl: a b: cannot be read\n"


def test_marks_that_turn_a_line_around_and_halves_of_pairs_are_shown_as_such(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console.result("a\u202eb\u2066c\udcffd")
    console.as_json({"name": "a\u202eb\udcff\x9b"})
    out = capsys.readouterr().out
    out.encode("utf-8")
    assert out.startswith("a\\u202eb\\u2066c\\udcffd\n")
    assert json.loads(out.partition("\n")[2]) == {"name": "a\u202eb\udcff\x9b"}
    assert not any(mark in out for mark in ("\u202e", "\u2066", "\x9b"))


def test_letters_of_any_language_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    console.result("Größe 大きさ → 1\tµs")
    assert capsys.readouterr().out == "Größe 大きさ → 1\tµs\n"


def test_an_error_says_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    console.error("cannot fetch https://bob:hunter22@host/x")
    assert capsys.readouterr().err == "perfctl: cannot fetch https://bob:(removed)@host/x\n"


def test_brackets_in_a_name_are_no_markup_in_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    monkeypatch.setattr(progress, "BAR_S", 0.01)
    with progress.working() as steps:
        steps("batch [/16]: \x1b]0;title\x07 run", 0, 2)
        time.sleep(0.5)
    assert "[/16]" in stream.getvalue()
    assert "\x1b]0;" not in stream.getvalue()
