"""Shared fixtures. What needs material outside the repository skips, saying so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real reports and public measurements, which is not part of the repository.

    ``PERFCTL_SHARED`` names it; else ``shared`` beside the checkout is taken.
    """
    folder = Path(os.environ.get("PERFCTL_SHARED", ROOT.parent / "shared"))
    if not (folder / "reports").is_dir():
        pytest.skip("no folder of real reports here (set PERFCTL_SHARED to one)")
    return folder


@pytest.fixture(scope="session")
def reports(shared: Path) -> Path:
    """The real profiler reports inside ``shared``."""
    return shared / "reports"
