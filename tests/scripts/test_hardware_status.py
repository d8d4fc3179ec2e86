"""The tests that the status of hardware names are there."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_tests_that_prove_a_row_exist():
    path = ROOT / "scripts" / "proof" / "hardware_status.py"
    spec = importlib.util.spec_from_file_location("hardware_status", path)
    assert spec is not None
    assert spec.loader is not None
    status = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(status)
    named = [test for row in status.STATUS for test in row.tests]
    assert named
    assert [test for test in named if not (ROOT / "tests" / test).is_file()] == []
