"""Report files and the values in them: every folder of tests/data with an expected.json is a case.

``pytest --accept tests/parsers/test_cases.py`` writes the values that perfctl reads now; look at
the difference before you commit it. A new case is a folder with one or more reports, an empty
expected.json and a note on where the reports come from and what each shows. ``NAME.sql`` is the
text of an SQLite report, which may begin with ``.read OTHER.sql``; a folder inside a case holds
files that are read together.
"""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from perfctl.parsers import (
    ReportError,
    find_graph_capture_traces,
    find_report_paths,
    parse_every_run,
)
from perfctl.records.bulk import SqlKernels
from tests.make.nsys_sqlite import copied

DATA = Path(__file__).resolve().parents[1] / "data"
CASES = sorted(path.parent for path in DATA.rglob("expected.json"))
NOTES = {"expected.json", "HOW.md", "SYNTHETIC.txt"}
ROWS_MAX = 100
"""Longer tables are held by their number of rows, their sums and their first and last row."""
FACT = re.compile(r"(?<!\w)'[^']*'|(?<![\w.])\d+(?:\.\d+)?")
"""What a sentence states: quoted texts and numbers."""


def inputs(case):
    """Return the reports of a case, sorted."""
    return sorted(path for path in case.iterdir() if path.name not in NOTES)


def values_of_input(path, scratch):
    """Return what a report holds, or each report in a folder by its name."""
    if path.suffix == ".sql":
        database = scratch / f"{path.stem}.sqlite"
        with closing(sqlite3.connect(database)) as connection:
            connection.executescript("PRAGMA synchronous = OFF;" + read_sql(path))
        return values_of_file(database)
    found = find_report_paths(path) if path.is_dir() else [path]
    if found == [path]:
        return values_of_file(path)
    not_measured = [
        one for folder in {one.parent for one in found} for one in find_graph_capture_traces(folder)
    ]
    return {one.name: values_of_file(one) for one in found if one not in not_measured}


def read_sql(path):
    """Return the text with the files that it reads by ``.read``, as the shell of SQLite does."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    read = (
        read_sql(path.parent / line.split()[1]) if line[:6] == ".read " else line for line in lines
    )
    return "".join(read)


def values_of_file(path):
    """Return what each report in the file holds; "refused" where it is refused."""
    try:
        found = [
            values_of_report(part.report) if part.report else "refused"
            for part in parse_every_run(path)
        ]
    except ReportError:
        return "refused"
    return found[0] if len(found) == 1 else found


def values_of_report(report):
    """Return the fields that are not empty; of gaps and diagnostics what they are about and the
    facts in their sentences, not the sentences."""
    values: dict[str, Any] = {}
    for field in fields(report):
        value = getattr(report, field.name)
        if field.name == "gaps":
            value = sorted(values_of_gap(gap) for gap in value)
        elif field.name == "diagnostics":
            value = sorted(values_of_message(message) for message in value)
        elif isinstance(value, SqlKernels):
            value = table([row_values(row) for row in copied(value)])
        elif field.name not in ("path", "environment") and hasattr(value, "__iter__"):
            value = value if isinstance(value, str) else table([row_values(row) for row in value])
        if field.name != "path" and value not in (None, [], {}, ()):
            values[field.name] = value
    return values


def values_of_gap(gap):
    where = f" in {gap.scope}" if gap.scope else ""
    return f"{gap.quantity}: {gap.state}{where}{facts(gap.reason)}"


def values_of_message(message):
    """Return who says it with the facts, or the complete text of a profiler's own message."""
    is_ours = message.source.startswith("perfctl")
    text = facts(message.text) if is_ours else f": {message.text}"
    return f"{message.severity} of {message.source}{text}"


def facts(sentence):
    found = FACT.findall(sentence)
    return f" ({', '.join(found)})" if found else ""


def row_values(row):
    names = getattr(row, "_fields", None) or [field.name for field in fields(row)]
    cells = {name: getattr(row, name) for name in names}
    return {name: value for name, value in cells.items() if value is not None}


def table(rows):
    if len(rows) <= ROWS_MAX:
        return rows
    sums: dict[str, int | float] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, int | float):
                sums[name] = sums.get(name, 0) + value
    return {"rows": len(rows), "sums": sums, "first": rows[0], "last": rows[-1]}


def lay_out(value, indent=""):
    """Return JSON with a line per row."""
    if isinstance(value, list):
        lines = [lay_out(one, indent + " ") for one in value]
    elif isinstance(value, dict) and any(isinstance(one, dict | list) for one in value.values()):
        lines = [f"{json.dumps(key)}: {lay_out(one, indent + ' ')}" for key, one in value.items()]
    else:
        return json.dumps(value, ensure_ascii=False)
    opening, closing = "[]" if isinstance(value, list) else "{}"
    return opening + ",".join(f"\n{indent} {line}" for line in lines) + f"\n{indent}{closing}"


@pytest.mark.parametrize("case", CASES, ids=[str(case.relative_to(DATA)) for case in CASES])
def test_the_values_of_a_report_are_those_that_were_accepted(case, accept, tmp_path):
    values = {path.name: values_of_input(path, tmp_path) for path in inputs(case)}
    read = json.loads(json.dumps(values))
    expected = case / "expected.json"
    if accept:
        expected.write_text(lay_out(values) + "\n")
    assert read and read == json.loads(expected.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=[str(case.relative_to(DATA)) for case in CASES])
def test_a_case_says_where_its_reports_come_from(case):
    assert (case / "HOW.md").exists() or (case / "SYNTHETIC.txt").exists()
