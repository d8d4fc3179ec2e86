"""What ingest makes of reports: records come back, errors name fields, nothing is printed, and a
report that fails costs itself alone."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.ingest.context import (
    FileEnded,
    FileStarted,
    NoteSent,
    ReportFailed,
    SourcesCounted,
    WarningSent,
)
from tests.cli.conftest import (
    break_parser,
    forked_workers,
    own_log,
    perfctl,
    replayed,
)

__all__ = ["break_parser", "forked_workers", "own_log", "perfctl", "replayed"]


@pytest.fixture(autouse=True)
def nothing_is_printed(own_log, capsys):
    """No test here leaves words on the terminal, or a log outside of its folder."""
    yield
    assert capsys.readouterr() == ("", "")


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self):
        self.total = 0
        self.lines: list[str] = []

    def __call__(self, event):
        match event:
            case SourcesCounted(total):
                self.total = total
            case FileStarted(path):
                self.lines.append(f"reading {path.name}")
            case FileEnded():
                self.lines.append("end")
            case ReportFailed(text):
                self.lines.append(f"failed: {text}")
            case NoteSent(text) | WarningSent(text):
                self.lines.append(text)


@pytest.fixture
def heard():
    return Heard()
