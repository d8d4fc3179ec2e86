from __future__ import annotations

import pytest

from perfctl.orchestrator.cli import console


def test_control_characters_from_reports_never_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console.result("kernel\x1b[31m\x9b\x07")
    assert capsys.readouterr().out == "kernel\\x1b[31m\\x9b\\x07\n"


def test_an_error_is_one_line_whatever_the_name_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    console.error("a\nb: cannot be read")
    assert capsys.readouterr().err == "perfctl: a b: cannot be read\n"
