"""docs/security.md names the test that holds each of its rows: they exist, and every row
names one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def named_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def rows() -> list[str]:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith(("| threat |", "|---"))]


def test_every_test_that_the_page_names_exists() -> None:
    for file, name in NAMED.findall(PAGE):
        assert (ROOT / file).is_file(), file
        assert named_in(ROOT / file), f"{file} holds no test"
        assert not name or name in named_in(ROOT / file), f"{file} has no {name}"


def test_every_threat_has_an_answer_and_a_test() -> None:
    assert len(rows()) > 30
    for row in rows():
        threat, answer, held = (cell.strip() for cell in row.strip("|").split(" | "))
        assert threat
        assert answer
        assert NAMED.search(held), threat
