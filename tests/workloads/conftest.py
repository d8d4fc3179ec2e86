"""One process with torch for all tests that start scripts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.workloads import forked


@pytest.fixture(scope="session")
def forks() -> Iterator[forked.Forks]:
    """Starts scripts in processes that need not load torch."""
    with forked.forks() as found:
        yield found
