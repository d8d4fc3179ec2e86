"""What a page is made of, and what a terminal shows."""

from __future__ import annotations

import io
import json
from base64 import b64decode
from collections.abc import Iterable
from html.parser import HTMLParser
from itertools import accumulate
from typing import Any

from rich.console import Console

from perfctl.orchestrator.ledger.analysis import Analysis, analyse_study
from perfctl.orchestrator.ledger.prepared import group_into_studies
from perfctl.orchestrator.report import terminal
from perfctl.orchestrator.report.view import View, draw_view_on_terminal
from perfctl.records.run import Run

HOSTILE = (
    "</script><script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>' onfocus='alert(2)",
    "k" * 4000,
    "abc\u202egnp.exe\u2028\u2029",
)


class Outline(HTMLParser):
    """Elements, attributes and JSON blocks of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.ids: list[str] = []
        self.blocks: list[str] = []
        self.words: list[str] = []
        self._json = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self._json = tag == "script" and ("type", "application/json") in attrs

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._json:
            self.blocks.append(data)
            self._json = False


def launch_columns(page: str) -> Any:
    """The long table of launches that the page carries."""
    blocks = [json.loads(block) for block in outline(page).blocks]
    (found,) = [
        block
        for block in blocks
        if isinstance(block, dict)
        and "columns" in block
        and block["columns"][-1]["label"] != "largest"
    ]
    return found


def read_integers(text: str, count: int, *, differences: bool = False) -> list[int]:
    """What table.js reads out of packed integers; nothing stands for zeros alone."""
    values, value, bits = [], 0, 0
    for byte in b64decode(text):
        value |= (byte & 127) << bits
        bits += 7
        if byte < 128:
            values.append(value)
            value = bits = 0
    values = values or [0] * count
    assert len(values) == count
    steps = (-(value + 1) // 2 if value % 2 else value // 2 for value in values)
    return list(accumulate(steps)) if differences else values


def analysed(*runs: Run) -> Analysis:
    """Return the only run group of these runs, analysed."""
    (study,) = group_into_studies(runs)
    return analyse_study(study)


def outline(page: str) -> Outline:
    found = Outline()
    found.feed(page)
    return found


def printed(things: Iterable[Any], width: int = 80) -> str:
    """On a terminal without colours."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False, emoji=False)
    for thing in things:
        console.print(thing)
    return out.getvalue()


def terminal_run(run: Run) -> Iterable[Any]:
    """What ``perfctl show --all`` draws of a run."""
    return draw_view_on_terminal(View(chapters=terminal.build_run_views(run, show_all=True)), 80)


def unpacked(column, rows):
    """What page.js reads out of a column."""
    if "c" in column:
        return [column["c"]] * rows
    if "r" in column:
        pairs = zip(column["r"][::2], column["r"][1::2], strict=True)
        return [column["d"][place] for place, often in pairs for _ in range(often)]
    if "d" in column:
        return [column["d"][place] for place in read_integers(column["i"], rows)]
    if "s" in column:
        return [column["b"] + value for value in read_integers(column["s"], rows, differences=True)]
    return list(column["v"])
