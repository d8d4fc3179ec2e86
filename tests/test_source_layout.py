"""How source files are laid out: attribute docstrings stand below what they describe."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("orchestrator", "parsers", "perfctl", "scripts", "workloads")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
NEIGHBOURS = (
    "Of those", "Of these", "Of that", "Of them", "Such ", "The same ", "The rest", "The others", "Another",
    "This ", "That ", "These ", "Those ", "It ", "They ", "Their ", "And ", "Also ", "Likewise",
)  # fmt: skip
"""Beginnings of a docstring that needs the constant above to be understood."""


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def bodies(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    return (node.body for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef)))


def orphans(tree: ast.Module) -> list[int]:
    """Lines of strings that describe nothing: neither the docstring of their module or class nor below an assignment."""
    return [
        text.lineno
        for body in bodies(tree)
        for above, text in pairwise(body)
        if is_text(text)
        and not isinstance(above, ast.AnnAssign)
        and not (isinstance(above, ast.Assign) and len(above.targets) == 1)
    ]


def references(tree: ast.Module) -> list[int]:
    """Lines of attribute docstrings that speak of the constant above them."""
    return [
        node.lineno
        for body in bodies(tree)
        for node in body[1:]
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and str(node.value.value).lstrip().startswith(NEIGHBOURS)
    ]


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('"""Module."""\nA = 1\n"""One."""\n', []),
        ('"""Module."""\n"""Of nothing."""\nA = 1\n', [2]),
        ('"""Module."""\nimport os\n"""Of nothing."""\n', [3]),
        ('A = B = 1\n"""Of which?"""\n', [2]),
        ('A = 1\n"""One."""\n"""Two."""\n', [3]),
        ('class A:\n    """Class."""\n\n    b: int\n    """Field."""\n\n    """Of nothing."""\n', [7]),
    ],
)
def test_an_orphan_is_found(source: str, lines: list[int]) -> None:
    assert orphans(ast.parse(source)) == lines


def test_every_attribute_docstring_stands_below_its_own_constant() -> None:
    assert not [f"{path.relative_to(ROOT)}:{line}" for path in FILES for line in orphans(parse(path))]


def test_every_attribute_docstring_stands_alone() -> None:
    assert references(ast.parse('A = 1\n"""Seconds."""\nB = 2\n"""The same for others."""\n')) == [4]
    assert not [f"{path.relative_to(ROOT)}:{line}" for path in FILES for line in references(parse(path))]
