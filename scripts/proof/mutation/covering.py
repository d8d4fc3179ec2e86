"""Runs the tests that execute the lines in which the mutated tree differs from the clean one.
cosmic-ray's test command.

Exits 0 when all pass: the mutant survives. For a line that is executed at import (a constant, a
default), the tests of its whole file run: coverage names only the test that happened to import it
first. Where more than MOST tests run a line, MOST of them, taken in turn from every test file, run
first; the others only where those pass. Test files given as arguments are run instead.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path

from copied import CODE
from coverage import CoverageData

MOST = 150


def changed(tree: Path, clean: Path, code: tuple[str, ...]) -> dict[Path, set[int]]:
    """File in the tree -> lines of the clean file that the mutation touched."""
    found = {}
    for name in code:
        for path in [tree / name] if name.endswith(".py") else (tree / name).rglob("*.py"):
            before = (clean / path.relative_to(tree)).read_text(encoding="utf-8").splitlines()
            after = path.read_text(encoding="utf-8").splitlines()
            if before != after:
                matcher = SequenceMatcher(None, before, after, autojunk=False)
                blocks = (block for block in matcher.get_opcodes() if block[0] != "equal")
                found[path.relative_to(tree)] = {
                    line + 1
                    for block in blocks
                    for line in range(block[1], max(block[2], block[1] + 1))
                }
    return found


def tests_of(lines: dict[Path, set[int]], clean: Path, data: CoverageData) -> list[str]:
    """Node ids of the tests, in turn from every test file, so that near and far tests both have a
    say early."""
    nodes: set[str] = set()
    for path, numbers in lines.items():
        by_line = data.contexts_by_lineno(str(path))
        asked = numbers & inside_functions(clean / path)
        found = {name for number in asked for name in by_line.get(number, ()) if name}
        if numbers - asked or not found:
            found = {name for number in by_line for name in by_line[number] if name}
        nodes.update(name.partition("|")[0] for name in found)
    by_file: dict[str, list[str]] = {}
    for node in sorted(nodes):
        by_file.setdefault(node.partition("::")[0], []).append(node)
    turns = zip_longest(*(by_file[name] for name in sorted(by_file)))
    return [node for turn in turns for node in turn if node]


def inside_functions(path: Path) -> set[int]:
    """Lines that run when a function of the file is called, not when the file is imported."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.update(range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1))
    return found


def main() -> int:
    """Exit code of pytest: 0 when all of them pass, or when there is none."""
    work = Path(os.environ["PERFCTL_MUTATION"])
    tree = work / "tree"
    if given := sys.argv[1:]:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *given]
        return subprocess.run(command, cwd=tree, check=False).returncode
    data = CoverageData(str(work / "coverage"))
    data.read()
    nodes = tests_of(changed(tree, work / "clean", CODE), work / "clean", data)
    if not nodes:
        print("no test executes these lines")
        return 0
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    first = subprocess.run([*command, *nodes[:MOST]], cwd=tree, check=False).returncode
    if first or len(nodes) <= MOST:
        return first
    return subprocess.run([*command, *nodes[MOST:]], cwd=tree, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
