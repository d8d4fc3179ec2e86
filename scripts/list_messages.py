"""Every message that a command can end with, out of the source: ``python scripts/list_messages.py`` prints docs/messages.md.

Read from the syntax tree, so no message can be forgotten; what is filled in when it is said is "…".
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from perfctl.orchestrator.cli.flags import OTHER_NAMES

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("orchestrator", "parsers", "workloads")
KINDS = {
    "UsageError": "The request makes no sense (exit code 2)",
    "ToolMissing": "Something is not installed (exit code 1)",
    "RunFailed": "A run failed (exit code 1)",
    "StoreError": "The store (exit code 1)",
    "PerfctlError": "Other (exit code 1)",
    "ReportError": "A report cannot be read (exit code 1, or 4 where others could)",
    "WorkloadError": "Inside the profiled program, whose run is then failed, and in perfctl prepare",
    "PartlyDone": "Partly done (exit code 4)",
    "Interrupted": "Stopped (exit code 130 or 143)",
}
"""Class of an error -> heading; ``orchestrator/errors.py`` and ``perfctl.parsers.ReportError`` define them."""
_FIELD = re.compile(r"`([a-z][a-z0-9_]*)`")
_HEAD = """\
# Every message

What a command can end with, by exit code, and what it says to do next. "…" stands for what is filled in: a path, an
option, what a tool said. Options are shown as the command line prints them; Python users read the name of the field
(`guess_layers` for --guess-layers). The common ones are explained in [troubleshooting](troubleshooting.md). A message whose words
come from elsewhere (a profiler's log, the operating system) is not listed.

This page is made from the source: `python scripts/accept_docs.py`.
"""


class Message(NamedTuple):
    """``kind``: name of the error's class; ``text`` and ``remedy`` with … for what is filled in."""

    kind: str
    text: str
    remedy: str


def messages() -> list[Message]:
    """All of them, each once, in the order of files and lines."""
    found: dict[Message, None] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            found |= dict.fromkeys(_of_file(ast.parse(path.read_text(encoding="utf-8"))))
    return list(found)


def with_options(text: str) -> str:
    """A message as the command line prints it, whatever command it is: `guess_layers` is --guess-layers."""
    return _FIELD.sub(lambda field: "--" + OTHER_NAMES.get(field[1], field[1]).replace("_", "-"), text)


def markdown() -> str:
    """docs/messages.md."""
    parts = [_HEAD]
    everything = messages()
    for kind, heading in KINDS.items():
        rows = [f"| {_cell(m.text)} | {_cell(m.remedy)} |" for m in sorted(everything) if m.kind == kind]
        parts.append("\n".join([f"## {heading}", "", "| message | what to do |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def _of_file(tree: ast.Module) -> Iterator[Message]:
    constants = _strings(tree.body)
    inside = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for function in inside:
        known = constants | _strings(ast.walk(function))
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and _name(node.func) in KINDS:
                yield from _messages(node, known)


def _messages(call: ast.Call, known: dict[str, list[str]]) -> Iterator[Message]:
    kind = _name(call.func)
    skipped = 2 if kind == "ReportError" else 0  # path and tool come before the reason
    words = list(call.args[skipped:])
    words += [key.value for key in call.keywords if key.arg in ("reason", "remedy", "message")]
    if kind == "Interrupted" and len(words) == 3:
        del words[1]
    texts = _texts(words[0], known) if words else []
    remedies = _texts(words[1], known) if len(words) > 1 else [""]
    for text in texts:
        if _says_something(text):
            remedy = " / ".join(remedy for remedy in remedies if _says_something(remedy))
            yield Message(kind, with_options(text), with_options(remedy))


def _strings(nodes: Iterator[ast.AST] | list[ast.stmt]) -> dict[str, list[str]]:
    """Names that are given strings, and which."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            texts = [text for text in _texts(node.value, {}) if _says_something(text)]
            found.setdefault(node.targets[0].id, []).extend(texts)
    return {name: texts for name, texts in found.items() if texts}


def _texts(node: ast.expr, known: dict[str, list[str]]) -> list[str]:
    """What an expression can say; one text for each branch of a condition."""
    if isinstance(node, ast.IfExp):
        return _texts(node.body, known) + _texts(node.orelse, known)
    if isinstance(node, ast.Name):
        return known.get(node.id, ["…"])
    return [_text(node, known)]


def _text(node: ast.expr, known: dict[str, list[str]]) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, known) for part in node.values)
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
        texts = known.get(node.value.id, [])
        return texts[0] if len(texts) == 1 else "…"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, known) + _text(node.right, known)
    return "…"


def _says_something(text: str) -> bool:
    return sum(letter.isalpha() for letter in text) > 3


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_").split())


if __name__ == "__main__":
    print(markdown(), end="")
