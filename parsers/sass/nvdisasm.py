"""Text of ``nvdisasm -c`` as instructions: CUDA 11 to 13, for sm_70 and later, whose instructions are 16 bytes long."""

from __future__ import annotations

import re
from pathlib import PurePath

from perfctl.parsers.sass.elf import BrokenCode
from perfctl.records.sass import Instruction

_INSTRUCTION = re.compile(
    r"^\s*\{?\s*/\*(?P<at>[0-9a-f]{4,})\*/\s+(?:@(?P<predicate>!?U?P\w+)\s+)?(?P<opcode>[A-Z]\w*(?:\.\w+)*)\s*(?P<rest>[^;]*);?"
)
_LABEL = re.compile(r"^(?P<label>[.$\w][^\s:]*):\s*$")
_LINE = re.compile(r'^\s*//## File "(?P<file>[^"]*)", line (?P<line>\d+)')
_NAMED = re.compile(r"`\((?P<label>[^\s()]+)\)")
_TABLE = re.compile(r'"BRANCH_TARGETS (?P<labels>[^"]+)"')
_SPLIT = re.compile(r",\s*(?![^\[]*\])")


def parse(text: str, name: str) -> tuple[Instruction, ...]:
    """The instructions of the kernel ``name``, with those of functions in its section. Raises BrokenCode when it has none."""
    rows, labels = _read(text, name)
    if not rows:
        raise BrokenCode(f"nvdisasm printed no instruction of {name}")
    return tuple(
        Instruction(
            at, predicate, opcode, tuple(part for part in _SPLIT.split(rest.strip()) if part),
            tuple(labels[label] for label in named if label in labels), line,
        )
        for at, predicate, opcode, rest, named, line in rows
    )  # fmt: skip


def sections(text: str) -> dict[str, str]:
    """Name of a kernel -> the part of a whole file's text that :func:`parse` needs for it."""
    found: dict[str, list[str]] = {}
    inside: list[str] = []
    for line in text.splitlines():
        if line.startswith(".text."):
            inside = found.setdefault(line.rstrip().removesuffix(":").removeprefix(".text."), [])
        inside.append(line)
    return {name: "\n".join(lines) for name, lines in found.items()}


_Row = tuple[int, str, str, str, list[str], str]


def _read(text: str, name: str) -> tuple[list[_Row], dict[str, int]]:
    rows: list[_Row] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []
    inside, line = False, ""
    for words in text.splitlines():
        if words.startswith(".text."):
            inside = words.rstrip().removesuffix(":") == f".text.{name}"
            waiting, line = [], ""
        if not inside:
            if words.rstrip() == f"{name}:":
                labels[name] = 0
            continue
        if found := _LINE.match(words):
            line = f"{PurePath(found['file']).name}:{found['line']}"
        elif found := _INSTRUCTION.match(words):
            at = int(found["at"], 16)
            labels |= dict.fromkeys(waiting, at)
            waiting = []
            rest = found["rest"]
            named = [one["label"] for one in _NAMED.finditer(rest)]
            if table := _TABLE.search(rest):
                named += table["labels"].split(",")
            rows.append((at, found["predicate"] or "", found["opcode"], rest.partition("(*")[0], named, line))
        elif found := _LABEL.match(words):
            waiting.append(found["label"])
    return rows, labels
