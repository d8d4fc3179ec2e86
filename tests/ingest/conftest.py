"""What ingest makes of reports: records come back, errors name fields, nothing is printed, and a
report that fails costs itself alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perfctl.orchestrator.ingest.context import (
    Event,
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
    recorded,
    replayed,
)

__all__ = ["break_parser", "forked_workers", "own_log", "perfctl", "recorded", "replayed"]


@pytest.fixture(autouse=True)
def nothing_is_printed(own_log: None, capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """No test here leaves words on the terminal, or a log outside of its folder."""
    yield
    assert capsys.readouterr() == ("", "")


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.total = 0
        self.lines: list[str] = []

    def __call__(self, event: Event) -> None:
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
def heard() -> Heard:
    return Heard()
