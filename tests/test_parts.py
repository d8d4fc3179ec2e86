"""The parts of the tests that run alone."""

import re
from pathlib import Path

from tests.conftest import PARTS

TESTS = Path(__file__).resolve().parent


def test_every_part_is_a_marker_whose_fixture_is_there(pytestconfig):
    declared = {line.partition(":")[0] for line in pytestconfig.getini("markers")}
    assert {*PARTS.values(), "docs", "nsight"} <= declared
    defined = "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("conftest.py"))
    assert [name for name in PARTS if not re.search(rf"^def {name}\(", defined, re.MULTILINE)] == []
