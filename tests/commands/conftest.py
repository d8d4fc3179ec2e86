"""Actions as Python users call them: records come back, errors name fields, and no test here
prints anything."""

from pathlib import Path

import pytest

import perfctl


@pytest.fixture(autouse=True)
def nothing_is_printed(capsys):
    yield
    assert capsys.readouterr() == ("", "")


@pytest.fixture(scope="session")
def recorded():
    """A recorded sweep of two batch sizes under torch.profiler."""
    return Path(__file__).resolve().parents[1] / "data" / "recorded-cpu" / "torch"


@pytest.fixture(scope="session")
def store(recorded, tmp_path_factory):
    """A store with that sweep, for tests that only read it."""
    path = tmp_path_factory.mktemp("store") / "perfctl.db"
    perfctl.ingest(recorded, path)
    return path
