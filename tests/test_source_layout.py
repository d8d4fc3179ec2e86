"""How source files are laid out: constants before functions, attribute docstrings below what
they describe."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("orchestrator", "parsers", "perfctl", "scripts", "workloads")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
NEIGHBOURS = (
    "Of those",
    "Of these",
    "Of that",
    "Of them",
    "Such ",
    "The same ",
    "The rest",
    "The others",
    "Another",
    "This ",
    "That ",
    "These ",
    "Those ",
    "It ",
    "They ",
    "Their ",
    "And ",
    "Also ",
    "Likewise",
)
"""Beginnings of a docstring that needs the constant above to be understood."""

VAGUE = frozenset(
    re.findall(
        r"\w+",
        "found one said told place mine own given known taken take of at whole alone some more rest"
        " held asked wanted made kept seen shown who what why where this word words named around"
        " together instead others",
    )
)
"""Names that do not say what a value is."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
PLAIN_DECORATORS = {
    "asynccontextmanager",
    "cache",
    "contextmanager",
    "dataclass",
    "final",
    "fixture",
    "lru_cache",
    "overload",
    "runtime_checkable",
    "singledispatch",
    "total_ordering",
    "unique",
    "wraps",
}
"""Decorators that register nothing: a constant may move across what they decorate."""


@cache
def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def is_text(node):
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def bodies(node):
    """The statements of a module and of the classes in it."""
    yield node.body
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            yield from bodies(child)


def orphans(tree):
    """Lines of strings that describe nothing: neither the docstring of their module or class nor
    below an assignment."""
    return [
        text.lineno
        for body in bodies(tree)
        for above, text in pairwise(body)
        if is_text(text)
        and not isinstance(above, ast.AnnAssign)
        and not (isinstance(above, ast.Assign) and len(above.targets) == 1)
    ]


def references(tree):
    """Lines of attribute docstrings that speak of the constant above them."""
    return [
        node.lineno
        for body in bodies(tree)
        for node in body[1:]
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and str(node.value.value).lstrip().startswith(NEIGHBOURS)
    ]


def vague_names(tree):
    """Parameters, local values and functions of a module that have a name of VAGUE."""
    names = []
    for function in (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)):
        arguments = function.args
        parameters = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        stored = [
            inner.id
            for inner in ast.walk(function)
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
        ]
        names += [name for name in (*(item.arg for item in parameters), *stored) if name in VAGUE]
    functions = (node.name for node in tree.body if isinstance(node, FUNCTIONS))
    return names + [name for name in functions if name.strip("_") in VAGUE]


def code_words(node):
    """The words of a node's names and strings, without its docstrings."""
    texts = {id(inner.value) for inner in ast.walk(node) if is_text(inner)}
    inner_nodes = (inner for inner in ast.walk(node) if id(inner) not in texts)
    values = (value for inner in inner_nodes for _, value in ast.iter_fields(inner))
    return {word for text in values if isinstance(text, str) for word in re.findall(r"\w+", text)}


def stale_names(tree, known):
    """Names in docstrings of functions that no code has, or not the function that explains them."""
    pattern = re.compile("``([a-z][a-z0-9_]*)``(:?)")
    return [
        name
        for function in ast.walk(tree)
        if isinstance(function, FUNCTIONS)
        for name, colon in pattern.findall(ast.get_docstring(function) or "")
        if name not in (code_words(function) if colon else known)
    ]


def is_plain(decorator):
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in PLAIN_DECORATORS


def bound_names(node):
    """Names that a statement of a module binds there."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return {node.name}
    names = {
        inner.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load)
    }
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in inner.names}
        elif isinstance(inner, (*FUNCTIONS, ast.ClassDef)):
            names.add(inner.name)
    return names


def late_constants(tree):
    """Constants below the first function that need nothing that is defined there."""
    first = next(
        (index for index, node in enumerate(tree.body) if isinstance(node, FUNCTIONS)),
        len(tree.body),
    )
    bound = [name for node in tree.body for name in bound_names(node)]
    changed = {name for name in bound if bound.count(name) > 1}
    changed |= {
        name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names
    }
    below: set[str] = set()
    registered = False
    late = []
    for node in tree.body[first:]:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            below.add(node.name)
            registered |= not all(map(is_plain, node.decorator_list))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            name = targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else None
            if name is None:
                break
            needed = {inner.id for inner in ast.walk(node.value) if isinstance(inner, ast.Name)}
            if (
                name in changed
                or needed & (below | changed)
                or (registered and (needed or "Call" in ast.dump(node.value)))
            ):
                below.add(name)
            else:
                late.append(name)
        elif not is_text(node):
            break  # a statement with effects: what follows it may depend on them
    return late


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('"""Module."""\nA = 1\n"""One."""\n', []),
        ('"""Module."""\n"""Of nothing."""\nA = 1\n', [2]),
        ('"""Module."""\nimport os\n"""Of nothing."""\n', [3]),
        ('A = B = 1\n"""Of which?"""\n', [2]),
        ('A = 1\n"""One."""\n"""Two."""\n', [3]),
        (
            'class A:\n    """Class."""\n\n    b: int\n    """Field."""\n\n    """Of nothing."""\n',
            [7],
        ),
    ],
)
def test_an_orphan_is_found(source, lines):
    assert orphans(ast.parse(source)) == lines


def test_every_attribute_docstring_stands_below_its_own_constant():
    assert not [
        f"{path.relative_to(ROOT)}:{line}" for path in FILES for line in orphans(parse(path))
    ]


def test_no_function_uses_a_name_that_says_nothing():
    assert vague_names(ast.parse("def take(one):\n    found = one\n")) == ["one", "found", "take"]
    product = [path for path in FILES if path.relative_to(ROOT).parts[0] != "scripts"]
    assert not {
        str(path.relative_to(ROOT)): names
        for path in product
        if (names := vague_names(parse(path)))
    }


def test_docstrings_of_functions_name_what_exists():
    source = 'def f(a):\n    """``a``: one; ``old``: another, of ``g`` and ``gone``."""\n'
    assert stale_names(ast.parse(source), {"g", "old"}) == ["old", "gone"]
    known = set().union(*(code_words(parse(path)) for path in FILES))
    assert not {
        str(path.relative_to(ROOT)): names
        for path in FILES
        if "counts" not in path.parts  # whose docstrings name kernels
        if (names := stale_names(parse(path), known))
    }


def test_every_attribute_docstring_stands_alone():
    assert references(ast.parse('A = 1\n"""Seconds."""\nB = 2\n"""The same for others."""\n')) == [
        4
    ]
    assert not [
        f"{path.relative_to(ROOT)}:{line}" for path in FILES for line in references(parse(path))
    ]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("A = 1\ndef f(): pass\n", []),
        ("def f(): pass\nA = 1\nB = A + 1\n", ["A", "B"]),
        ("def f(): pass\nA = f()\nB = (A, 1)\n", []),
        ("def f(): pass\nclass C: pass\nA = C()\nB = 2\n", ["B"]),
        ("RULES = []\n@rule\ndef f(): pass\nA = tuple(RULES)\nB = 2\n", ["B"]),
        ("def f(): pass\nprint()\nA = 1\n", []),
        ("def f():\n    global A\nA = 1\n", []),
    ],
)
def test_a_late_constant_is_found(source, names):
    assert late_constants(ast.parse(source)) == names


def test_constants_stand_above_the_first_function():
    assert not [
        f"{path.relative_to(ROOT)}: {name}"
        for path in FILES
        for name in late_constants(parse(path))
    ]


def test_the_formatter_formats_everything():
    skipped = re.compile(r"# fmt: (?:skip|off)")
    assert not [
        str(path.relative_to(ROOT))
        for path in FILES
        if skipped.search(path.read_text(encoding="utf-8"))
    ]
