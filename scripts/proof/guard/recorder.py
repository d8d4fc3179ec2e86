"""Calls perfctl through its outside interfaces, and turns what it prints into keys and values."""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

Values = Iterator[tuple[str, object]]
Thing = TypeVar("Thing")
SENTENCES = re.compile(
    "(why|text|sentence|note|advice|said|message|todo|fix|title|label|path|artifact|host|created|"
    "started|version|schema|command|sha|source|prices|help|guess|explan|reason|hint|says|worked|"
    "formula$|took|date|time_zone)",
    re.IGNORECASE,
)
"""JSON keys whose value is a sentence, or differs from machine to machine and from day to day."""
IDENTITY = (
    "workload",
    "variant",
    "model",
    "device",
    "gpu",
    "precision",
    "mode",
    "batch",
    "layer",
    "kind",
    "direction",
    "phase",
    "name",
    "rule",
    "cause",
    "quantity",
    "what",
    "formula",
    "key",
    "moment",
    "operation",
)
"""JSON keys that together name an item of a list."""
SKIPPED = {"estimate": re.compile(r"\.modules\["), "predict": re.compile(r"\.layers\[")}
"""Command -> keys of its JSON that are too many."""
LONGEST_NAME, LONGEST_VALUE, MOST_SPACES = 160, 60, 3
"""A text with more characters or spaces is a sentence."""


class Stored(NamedTuple):
    """A results database that perfctl wrote."""

    path: Path
    exit_code: int


@dataclass
class Recorder:
    """A perfctl of some version, and a folder to work in."""

    perfctl: list[str]
    """The command, with the path of its environment."""
    project: Path
    """The checkout whose files are read and built."""
    shared: Path
    """Folder with reports and data sets that are not in the repository."""
    work: Path
    quick: bool = False
    stores: dict[str, Stored] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of every program that is started."""

    @property
    def python(self) -> str:
        """The interpreter of perfctl's environment."""
        return str(Path(self.perfctl[0]).parent / "python")

    def run(
        self, *command: str, timeout: int = 600, given: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in the working folder. A timeout gives exit code 124."""
        surroundings = {
            **os.environ,
            "COLUMNS": "200",
            "NO_COLOR": "1",
            "TERM": "dumb",
            **self.environment,
        }
        try:
            return subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                cwd=self.work,
                input=given or "",
                env=surroundings,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", "")

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run perfctl."""
        return self.run(*self.perfctl, *arguments)

    def json(self, *arguments: str) -> dict[str, object]:
        """Return the exit code and the values that perfctl prints with --json."""
        done = self.call(*arguments, "--json")
        try:
            values = dict(flatten(json.loads(done.stdout)))
        except ValueError:
            return {"exit": done.returncode}
        skipped = SKIPPED.get(arguments[0])
        return {"exit": done.returncode} | {
            key: value for key, value in values.items() if not (skipped and skipped.search(key))
        }

    def child(self, name: str, *arguments: str, given: str | None = None) -> dict[str, object]:
        """Run a program of this folder in perfctl's environment, and return the JSON that
        it prints."""
        done = self.run(
            self.python, str(Path(__file__).with_name(name)), *arguments, given=given, timeout=1800
        )
        return (
            json.loads(done.stdout)
            if done.returncode == 0
            else {f"{name} failed": done.stderr[-200:]}
        )

    def some(self, things: list[Thing]) -> list[Thing]:
        """Return all things, or a third of them for a quick recording."""
        return things[::3] if self.quick else things

    def reports(self) -> list[Path]:
        """Return the shared reports and the study of the repository."""
        found = sorted(path for path in (self.shared / "reports").rglob("*") if path.is_file())
        study = self.project / "examples/mnist_v100_study"
        kept = self.some([path for path in found if path.suffix not in {".md", ".py"}])
        return [*kept, *([study] if study.exists() else [])]

    def store_of(self, path: Path) -> Stored:
        """Ingest a report into a results database of its own, once."""
        key = self.name(path)
        if key not in self.stores:
            store = self.work / (re.sub(r"\W+", "_", key) + ".db")
            code = self.call("ingest", str(path), "--store", str(store)).returncode
            self.stores[key] = Stored(store, code)
        return self.stores[key]

    def name(self, path: Path) -> str:
        """Return the path without the folder that differs between machines."""
        for root in (self.shared, self.project):
            if path.is_relative_to(root):
                return str(path.relative_to(root))
        return path.name

    def plain(self, text: str) -> Counter[str]:
        """Count the lines of a text, without what differs between machines."""
        text = text.replace(str(self.work), "WORK").replace(str(self.project), "PROJECT")
        text = re.sub(
            r"-[0-9a-f]{8}\b", "-HASH", re.sub(r"[^\s'\"=]*/bin/python[\d.]*", "PYTHON", text)
        )
        return Counter(line.strip() for line in text.splitlines() if line.strip())


def flatten(value: Any, path: str = "", named: bool = False) -> Values:
    """Yield the keys and values of JSON.

    An item of a list is named by its identifying values, which then are not values themselves.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            identifies = named and key in IDENTITY and isinstance(inner, str | int)
            if not SENTENCES.search(str(key)) and not identifies:
                yield from flatten(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        seen: Counter[str] = Counter()
        for item in value:
            name = ""
            if isinstance(item, dict):
                parts = [item.get(key) for key in IDENTITY]
                name = " ".join(
                    str(part)
                    for part in parts
                    if isinstance(part, str | int) and not isinstance(part, bool)
                )
            number = f"#{seen[name]}" if seen[name] or not name else ""
            seen[name] += 1
            yield from flatten(item, f"{path}[{name[:LONGEST_NAME]}{number}]", bool(name))
    elif isinstance(value, str):
        if (
            len(value) <= LONGEST_VALUE
            and value.count(" ") <= MOST_SPACES
            and not value.startswith("/")
        ):
            yield path, value
    else:
        yield path, rounded(value)


def rounded(value: object) -> object:
    """Return a number with nine digits, everything else as it is."""
    return float(f"{value:.9g}") if isinstance(value, float) and math.isfinite(value) else value


def query_runs(
    store: Path, queries: dict[str, str], most: int = 60
) -> Iterator[tuple[int, str, list[list[object]]]]:
    """Yield run, query and rows of each query about the first runs of a results database."""
    if not store.exists():
        return
    with sqlite3.connect(store) as base:
        try:
            runs = [row[0] for row in base.execute(f"select id from run order by id limit {most}")]
        except sqlite3.Error as error:
            yield 0, "error", [[str(error)]]
            return
        for run in runs:
            for what, query in queries.items():
                try:
                    rows = [[rounded(cell) for cell in row] for row in base.execute(query, (run,))]
                except sqlite3.Error as error:
                    rows = [[f"error: {error}"]]
                yield run, what, rows


def options_in(text: str) -> list[str]:
    """Return the options that a help text lists."""
    return sorted(set(re.findall(r"^\W*(?:-\w[,/ ]+)?(--[a-z][\w-]*)", text, re.MULTILINE)))


def commands_in(text: str) -> list[str]:
    """Return the commands that a help text lists."""
    heading = r"^\W*(?:Commands|Measure|Read|Understand|Predict|Cluster):?.*$"
    blocks = re.split(heading, text, flags=re.MULTILINE)[1:]
    line = re.compile(r"^\W{1,6}([a-z][a-z-]+)\s{2,}\S", re.MULTILINE)
    return [name for block in blocks for name in line.findall(block) if name != "perfctl"]


def help_texts(recorder: Recorder) -> Iterator[tuple[list[str], str]]:
    """Yield every command, as words, with its help text."""

    def texts(prefix: list[str]) -> Iterator[tuple[list[str], str]]:
        text = recorder.call(*prefix, "--help").stdout
        usage = rf"Usage:\s+perfctl {' '.join(prefix)}(\s*\[|\s*$)".replace("  ", " ")
        if not re.search(usage, text, re.MULTILINE):
            return  # not a command: perfctl printed the help of the one before it
        yield prefix, text
        if len(prefix) < 2:
            for name in commands_in(text):
                yield from texts([*prefix, name])

    return texts([])
