"""Fixtures of tests that run a stand-in for nsys."""

import gc
import shutil
import tempfile

import pytest

from tests.make.files import write
from tests.make.nsys_rep import END, MAGIC


@pytest.fixture
def report(tmp_path):
    """A file that looks like a report; synthetic, no nsys could read it."""
    return write(
        tmp_path / "my run.nsys-rep",
        MAGIC + b"NSIGHT_SYSTEMS_VERSION 2021.3.2.4-027534f" + bytes(70_000) + END,
    )


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder that takes temporary files; after the test it must be empty again."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    gc.collect()
    assert list(folder.iterdir()) == []


@pytest.fixture
def fake_nsys(tmp_path, monkeypatch):
    """A folder that alone is searched for tools; ``install`` puts scripts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    real = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, *rest: real(name, path=str(folder)))
    return folder
