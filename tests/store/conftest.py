"""A store to write to, and processes that are killed in the middle of that."""

from __future__ import annotations

import multiprocessing
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfctl.orchestrator.store import database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store can be made."""
    return tmp_path / "perfctl.db"


@pytest.fixture
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """An empty store, open for writing."""
    with database.open_store_for_writing(path) as connection:
        yield connection


@pytest.fixture
def is_killed() -> Callable[..., None]:
    """Runs a function in a process of its own, in which it has to kill itself."""

    def run(target: Callable[..., None], *arguments: Path) -> None:
        writer = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
        writer.start()
        writer.join()
        assert writer.exitcode == -signal.SIGKILL

    return run
