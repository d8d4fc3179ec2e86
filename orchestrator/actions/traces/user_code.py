"""Which files a user's factory consists of, and whether they alone say what model it makes.

They do when the factory and the local modules it imports import nothing but each other, the libraries of ``key.LIBRARIES``
and modules of Python that compute (``COMPUTING``), and read no file, no environment and no network.
"""

from __future__ import annotations

import ast
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import resolve_name
from pathlib import Path

from perfctl.orchestrator.actions.traces.key import LIBRARIES

COMPUTING = {
    "__future__", "abc", "bisect", "cmath", "collections", "contextlib", "copy", "dataclasses", "decimal", "enum",
    "fractions", "functools", "heapq", "itertools", "math", "numbers", "operator", "re", "string", "textwrap", "types",
    "typing", "typing_extensions", "warnings", "weakref",
}  # fmt: skip
"""Modules of Python that give the same answers everywhere and at any time."""
_BUILT_IN = {"__import__", "eval", "exec", "open"}
_READS = {
    "device_count", "environ", "from_file", "from_pretrained", "fromfile", "genfromtxt", "getenv", "hub", "is_available",
    "load", "load_from_checkpoint", "load_state_dict_from_url", "loadtxt", "memmap", "open", "pretrained", "random",
    "read_bytes", "read_text", "urandom",
}  # fmt: skip
"""Names of what reads a file, the machine or the network, or draws by chance; ``_BUILT_IN``: Python's own, or runs text."""


def names_beside(folder: Path) -> list[str] | None:
    """The modules and folders that a factory in ``folder`` may import; None when it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(
                one.name for one in entries
                if one.name.endswith((".py", ".so", ".pyd")) or (one.is_dir() and not one.name.startswith((".", "__")))
            )  # fmt: skip
    except OSError:
        return None


def files_of(module: str) -> list[Path] | None:
    """The local files that ``module``, which is imported, consists of; None where they do not say everything.

    A file that was written since this process started may not be what was imported.
    """
    since, files = _started(), list[Path]()
    waiting, seen = list(_parents(module)), set[str]()
    while waiting:
        name = waiting.pop()
        top = name.partition(".")[0]
        if name in seen or top in COMPUTING or top in LIBRARIES:
            continue
        seen.add(name)
        if top in sys.stdlib_module_names:
            return None
        found = sys.modules.get(name)
        if found is None:
            if top in sys.modules and name != top:  # a class or function of a module, not a module
                continue
            return None
        place = getattr(found, "__file__", None)
        if place is None and hasattr(found, "__path__"):  # a folder without __init__.py
            continue
        path = Path(place or "").absolute()
        tree = _tree(path, since)
        if tree is None:
            return None
        files.append(path)
        package = getattr(found, "__package__", None) or ""
        waiting += (part for wanted in _imports(tree, package) for part in _parents(wanted))
    return files


def _started() -> float:
    """When this process did, as times of files say it. Linux tells its age to 10 ms; psutil starts from the second in which the
    machine did, so that a file of the second before the call would be newer."""
    with suppress(OSError, ValueError, AttributeError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    import psutil

    return float(psutil.Process().create_time())


def _parents(name: str) -> Iterator[str]:
    """ "a.b.c" -> "a", "a.b", "a.b.c": all of them are run."""
    pieces = name.split(".")
    return (".".join(pieces[: length + 1]) for length in range(len(pieces)))


def _tree(path: Path, since: float) -> ast.Module | None:
    """The source of a local module; None where it is not one, was just written, or reads more than its arguments."""
    if path.suffix != ".py" or "site-packages" in path.parts or "dist-packages" in path.parts:
        return None
    try:
        if path.stat().st_mtime >= since:
            return None
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    own = set(_names_of_triton(tree))
    return None if any(_reads(node) and not _of_triton(node, own) for node in ast.walk(tree)) else tree


def _names_of_triton(tree: ast.Module) -> Iterator[str]:
    """What a file calls ``triton.language``, whose ``load`` reads a GPU's memory."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.asname for one in node.names if one.name == "triton.language" and one.asname)
        elif isinstance(node, ast.ImportFrom) and node.module == "triton" and not node.level:
            yield from (one.asname or one.name for one in node.names if one.name == "language")


def _of_triton(node: ast.AST, own: set[str]) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in own


def _reads(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword) and node.arg == "pretrained":
        return not (isinstance(node.value, ast.Constant) and not node.value.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "input":
        return True
    if isinstance(node, ast.ImportFrom):
        return not _READS.isdisjoint(alias.name for alias in node.names)
    return (isinstance(node, ast.Name) and node.id in _BUILT_IN) or (
        isinstance(node, ast.Attribute) and node.attr in _READS
    )


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = resolve_name("." * node.level + base, package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
