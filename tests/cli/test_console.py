from __future__ import annotations

import time

import pytest

from perfctl.orchestrator.cli import console


def test_what_takes_long_says_so_once_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with console.patience("still reading", after_s=0.01):
        time.sleep(0.1)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "still reading\n")


def test_what_is_quick_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with console.patience("still reading", after_s=60):
        pass
    assert capsys.readouterr().err == ""


def test_control_characters_from_reports_never_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console.result("kernel\x1b[31m\x9b\x07")
    assert capsys.readouterr().out == "kernel\\x1b[31m\\x9b\\x07\n"


def test_an_error_is_one_line_whatever_the_name_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    console.error("a\nb: cannot be read")
    assert capsys.readouterr().err == "perfctl: a b: cannot be read\n"
