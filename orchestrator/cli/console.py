"""The one place that prints. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.errors import UsageError
from perfctl.redact import escape_hidden_letters, find_hidden_letters, mask_secrets

if TYPE_CHECKING:
    from rich.console import Console

    from perfctl.orchestrator.outputs import JsonLists
    from perfctl.orchestrator.report.tables import Table
    from perfctl.orchestrator.report.view import RawLines, View

BAR = 16
"""Columns of a bar: beside it there is room for what is going on."""
PLAIN_WIDTH = 80
"""Columns when the output is not a terminal."""

SPOOLED = 4 << 20
"""Bytes of each list that are held."""


def escape_control_characters(text: str) -> str:
    """Return a text from reports without the characters that a terminal would obey."""
    return escape_hidden_letters(text, "\t\n")


def _make_console(*, error: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    columns = os.environ.get("COLUMNS", "")
    stated_width = int(columns) if columns.isdecimal() and int(columns) >= 20 else PLAIN_WIDTH
    width = None if stream.isatty() else stated_width
    return Console(
        file=stream, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False
    )


def print_result_line(text: str) -> None:
    """One line of the command's result."""
    print(escape_control_characters(text))


def format_command_line() -> str:
    """What the user typed, ready to paste."""
    import shlex

    return shlex.join(["perfctl", *sys.argv[1:]])


def print_json(value: Any, schema: str | None = None) -> None:
    """Print the command's result for programs: records, or what ``json.dumps`` takes. ``schema``:
    its name in ``outputs``, which an object states first."""
    from perfctl.orchestrator.outputs import JsonLists, convert_to_json, format_schema_name

    if schema is not None and isinstance(value, JsonLists):
        _print_json_lists(value, schema)
        return
    value = convert_to_json(value)
    if schema is not None and isinstance(value, dict):
        value = {"schema": format_schema_name(schema), **value}
    print(format_json(value))


def format_json(value: Any) -> str:
    """Return a value as ``as_json`` prints it."""
    import json

    from perfctl.orchestrator.outputs import convert_to_json

    text = json.dumps(convert_to_json(value), indent=1, ensure_ascii=False, default=str)
    hidden = find_hidden_letters(text) - {"\n"}
    return text.translate({ord(letter): json.dumps(letter)[1:-1] for letter in hidden})


def _print_json_lists(lists: JsonLists[Any], schema: str) -> None:
    """Print an object of lists as ``as_json`` prints it, and nothing if they cannot be made. What
    does not fit into SPOOLED bytes waits in temporary files."""
    from shutil import copyfileobj
    from tempfile import SpooledTemporaryFile

    from perfctl.orchestrator.outputs import format_schema_name

    with ExitStack() as stack:
        files = {
            name: stack.enter_context(SpooledTemporaryFile(SPOOLED, "w+", encoding="utf-8"))
            for name in lists.names
        }
        begun: set[str] = set()
        for texts in lists.batches(format_json):
            for name, new_texts in texts.items():
                for text in new_texts:
                    separator = "," if name in begun else ""
                    files[name].write(f"{separator}\n  " + text.replace("\n", "\n  "))
                    begun.add(name)
        sys.stdout.write(f'{{\n "schema": {format_json(format_schema_name(schema))}')
        for name, file in files.items():
            sys.stdout.write(f",\n {format_json(name)}: [")
            file.seek(0)
            copyfileobj(file, sys.stdout)
            sys.stdout.write("\n ]" if name in begun else "]")
        sys.stdout.write("\n}\n")


def print_raw_text(text: str) -> None:
    """Part of the command's result for programs, to the byte; control characters are shown as such
    on a terminal."""
    sys.stdout.write(escape_control_characters(text) if sys.stdout.isatty() else text)


def print_view(
    answer: View | RawLines,
    document_format: str | None,
    replace_field_names: Callable[[str], str] = str,
) -> None:
    """An answer as text for the terminal, or as the document that ``document_format`` names.
    ``replace_field_names``: puts options in the place of fields."""
    from perfctl.orchestrator.report.files.documents import FORMS
    from perfctl.orchestrator.report.view import RawLines, draw_view_on_terminal

    if isinstance(answer, RawLines):
        if document_format is not None:
            raise UsageError(
                f"--format and {answer.asked_by} both write to standard output", "Choose one"
            )
        for line in answer.lines:
            print_raw_text(escape_control_characters(line) if answer.has_names else line)
        return
    if document_format is not None:
        document = answer if answer.document is None else answer.document()
        print_raw_text(
            FORMS[document_format](_replace_field_names_in_view(document, replace_field_names))
        )
        return
    console = _make_console()
    console.width = max(console.width, answer.least_width)
    for block in draw_view_on_terminal(
        _replace_field_names_in_view(answer, replace_field_names), console.width
    ):
        console.print(block)
    for line in answer.lines:
        print_result_line(line)


def _replace_field_names_in_view(view: View, replace_field_names: Callable[[str], str]) -> View:
    """Return the view with options in place of fields in its sentences; its chapters are yielded
    one by one."""
    return replace(
        view,
        findings=tuple(
            replace_field_names(finding)
            if isinstance(finding, str)
            else replace(finding, text=replace_field_names(finding.text))
            for finding in view.findings
        ),
        warnings=tuple(map(replace_field_names, view.warnings)),
        notes=tuple(map(replace_field_names, view.notes)),
        tables=tuple(
            _replace_field_names_in_table(table, replace_field_names) for table in view.tables
        ),
        chapters=(
            _replace_field_names_in_view(chapter, replace_field_names) for chapter in view.chapters
        ),
    )


def _replace_field_names_in_table(table: Table, replace_field_names: Callable[[str], str]) -> Table:
    """Return the table with options in place of fields, in its notes, and in its cells if it has no
    heads: they are sentences then, and no names."""
    rows = table.rows
    if not any(column.label for column in table.columns):
        rows = tuple(
            tuple(replace(cell, text=replace_field_names(cell.text)) for cell in row)
            for row in rows
        )
    return replace(table, rows=rows, notes=tuple(map(replace_field_names, table.notes)))


def validate_document_format(document_format: str | None, as_json: bool) -> str | None:
    """The format asked for; None is text. Raises UsageError for one that is not known, and
    beside --json."""
    if document_format is not None and document_format not in ("md", "tex", "html"):
        raise UsageError(
            f"invalid value '{document_format}' for --format; choose md, tex or html "
            f"(default: text)"
        )
    if document_format is not None and as_json:
        raise UsageError("--format and --json exclude each other", "Choose one")
    return document_format


def print_note(text: str) -> None:
    """What is going on; never part of the result."""
    print(escape_control_characters(text), file=sys.stderr, flush=True)


def print_error(text: str) -> None:
    """One line, whatever stands in the names and texts in it; what looks like a secret is
    not printed."""
    print_note("perfctl: " + mask_secrets(" ".join(text.split("\n"))))


@contextmanager
def open_progress_bar() -> Iterator[Any]:
    """A bar of rich's that goes away at the end; what is printed meanwhile stands above it."""
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    # what does not fit is cut at its end
    columns = (BarColumn(BAR), TextColumn("{task.description}", markup=False))
    with Bar(*columns, console=_make_console(error=True), transient=True) as progress_bar:
        yield progress_bar
