"""A store to write to, and processes that are killed in the middle of that."""

import multiprocessing
import signal

import pytest

from perfctl.orchestrator.store import database


@pytest.fixture
def path(tmp_path):
    """Where a store can be made."""
    return tmp_path / "perfctl.db"


@pytest.fixture
def writing(path):
    """An empty store, open for writing."""
    with database.open_store_for_writing(path) as connection:
        yield connection


@pytest.fixture
def is_killed():
    """Runs a function in a process of its own, in which it has to kill itself."""

    def run(target, *arguments):
        writer = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
        writer.start()
        writer.join()
        assert writer.exitcode == -signal.SIGKILL

    return run
