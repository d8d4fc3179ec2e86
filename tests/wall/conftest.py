"""What one file or run may cost: commands as a user calls them, and parsers that fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.orchestrator import pool
from tests.cli.conftest import perfctl, recorded, replayed

__all__ = ["perfctl", "recorded", "replayed"]
Break = Callable[[str, Callable[[], object]], None]


@pytest.fixture(autouse=True)
def own_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(
        pool, "_is_own", lambda thread: True
    )  # the tests' own threads do not keep a worker from being forked


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forked, so that they have what the test changed: a test before may have left a
    thread, beside which a new interpreter would be started."""
    monkeypatch.setattr(pool, "can_fork", lambda store=None: True)


@pytest.fixture
def break_parser(monkeypatch: pytest.MonkeyPatch, forked_workers: None) -> Break:
    """From now on something happens while a file is parsed whose path has a word in it."""
    whole = parsers.Parser.parse

    def break_it(word: str, how: Callable[[], object]) -> None:
        def parse(self: parsers.Parser, path: Path, **options: bool) -> object:
            if word in str(path):
                how()
            return whole(self, path, **options)

        monkeypatch.setattr(parsers.Parser, "parse", parse)

    return break_it
