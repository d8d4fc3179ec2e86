"""The one place that prints. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.errors import UsageError
from perfctl.redact import hidden_letters, make_visible, mask

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from perfctl.orchestrator.outputs import JsonLists
    from perfctl.orchestrator.report.tables import Table
    from perfctl.orchestrator.report.view import Lines, View

BAR = 16
"""Columns of a bar: beside it there is room for what is going on."""
PLAIN_WIDTH = 80
"""Columns when the output is not a terminal."""

SPOOLED = 4 << 20
"""Bytes of each list that are held."""


def safe(text: str) -> str:
    """Return a text from reports without the characters that a terminal would obey."""
    return make_visible(text, "\t\n")


def _console(*, error: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    columns = os.environ.get("COLUMNS", "")
    stated_width = int(columns) if columns.isdecimal() and int(columns) >= 20 else PLAIN_WIDTH
    width = None if stream.isatty() else stated_width
    return Console(
        file=stream, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False
    )


def result(text: str) -> None:
    """One line of the command's result."""
    print(safe(text))


def show(renderable: RenderableType, width: int | None = None) -> None:
    """A table or text of the command's result; ``width``: None for that of the output."""
    console = _console()
    console.width = width or console.width
    console.print(renderable)


def command_line() -> str:
    """What the user typed, ready to paste."""
    import shlex

    return shlex.join(["perfctl", *sys.argv[1:]])


def as_json(value: Any, schema: str | None = None) -> None:
    """Print the command's result for programs: records, or what ``json.dumps`` takes. ``schema``:
    its name in ``outputs``, which an object states first."""
    from perfctl.orchestrator.outputs import JsonLists, name_of, to_json

    if schema is not None and isinstance(value, JsonLists):
        _print_lists(value, schema)
        return
    value = to_json(value)
    if schema is not None and isinstance(value, dict):
        value = {"schema": name_of(schema), **value}
    print(json_text(value))


def json_text(value: Any) -> str:
    """Return a value as ``as_json`` prints it."""
    import json

    from perfctl.orchestrator.outputs import to_json

    text = json.dumps(to_json(value), indent=1, ensure_ascii=False, default=str)
    hidden = hidden_letters(text) - {"\n"}
    return text.translate({ord(letter): json.dumps(letter)[1:-1] for letter in hidden})


def _print_lists(lists: JsonLists[Any], schema: str) -> None:
    """Print an object of lists as ``as_json`` prints it, and nothing if they cannot be made. What
    does not fit into SPOOLED bytes waits in temporary files."""
    from shutil import copyfileobj
    from tempfile import SpooledTemporaryFile

    from perfctl.orchestrator.outputs import name_of

    with ExitStack() as stack:
        files = {
            name: stack.enter_context(SpooledTemporaryFile(SPOOLED, "w+", encoding="utf-8"))
            for name in lists.names
        }
        begun: set[str] = set()
        for texts in lists.batches(json_text):
            for name, new_texts in texts.items():
                for text in new_texts:
                    separator = "," if name in begun else ""
                    files[name].write(f"{separator}\n  " + text.replace("\n", "\n  "))
                    begun.add(name)
        sys.stdout.write(f'{{\n "schema": {json_text(name_of(schema))}')
        for name, file in files.items():
            sys.stdout.write(f",\n {json_text(name)}: [")
            file.seek(0)
            copyfileobj(file, sys.stdout)
            sys.stdout.write("\n ]" if name in begun else "]")
        sys.stdout.write("\n}\n")


def raw(text: str) -> None:
    """Part of the command's result for programs, to the byte; control characters are shown as such
    on a terminal."""
    sys.stdout.write(safe(text) if sys.stdout.isatty() else text)


def view(answer: View | Lines, form: str | None, name_options: Callable[[str], str] = str) -> None:
    """An answer as text for the terminal, or as the document that ``form`` names.
    ``name_options``: puts options in the place of fields."""
    from perfctl.orchestrator.report.files.documents import FORMS
    from perfctl.orchestrator.report.view import Lines, on_terminal

    if isinstance(answer, Lines):
        if form is not None:
            raise UsageError(
                f"--format and {answer.asked_by} both write to standard output", "Choose one"
            )
        for line in answer.lines:
            raw(safe(line) if answer.has_names else line)
        return
    if form is not None:
        document = answer if answer.document is None else answer.document()
        raw(FORMS[form](_with_options(document, name_options)))
        return
    columns = max(width(), answer.least_width)
    for block in on_terminal(_with_options(answer, name_options), columns):
        show(block, columns)
    for line in answer.lines:
        result(line)


def _with_options(view: View, name_options: Callable[[str], str]) -> View:
    """Return the view with options in place of fields in its sentences; its chapters are yielded
    one by one."""
    return replace(
        view,
        findings=tuple(
            name_options(finding)
            if isinstance(finding, str)
            else replace(finding, text=name_options(finding.text))
            for finding in view.findings
        ),
        warnings=tuple(map(name_options, view.warnings)),
        notes=tuple(map(name_options, view.notes)),
        tables=tuple(_name_options_in(table, name_options) for table in view.tables),
        chapters=(_with_options(chapter, name_options) for chapter in view.chapters),
    )


def _name_options_in(table: Table, name_options: Callable[[str], str]) -> Table:
    """Return the table with options in place of fields, in its notes, and in its cells if it has no
    heads: they are sentences then, and no names."""
    rows = table.rows
    if not any(column.label for column in table.columns):
        rows = tuple(
            tuple(replace(cell, text=name_options(cell.text)) for cell in row) for row in rows
        )
    return replace(table, rows=rows, notes=tuple(map(name_options, table.notes)))


def form_of(form: str | None, as_json: bool) -> str | None:
    """The format asked for; None is text. Raises UsageError for one that is not known, and
    beside --json."""
    if form is not None and form not in ("md", "tex", "html"):
        raise UsageError(
            f"invalid value '{form}' for --format; choose md, tex or html (default: text)"
        )
    if form is not None and as_json:
        raise UsageError("--format and --json exclude each other", "Choose one")
    return form


def flush() -> None:
    """What was printed reaches whoever reads it now: the command goes on for long."""
    sys.stdout.flush()


def width() -> int:
    """Columns of the output."""
    return int(_console().width)


def note(text: str) -> None:
    """What is going on; never part of the result."""
    print(safe(text), file=sys.stderr, flush=True)


def warning(text: str) -> None:
    note(f"warning: {text}")


def error(text: str) -> None:
    """One line, whatever stands in the names and texts in it; what looks like a secret is
    not printed."""
    note("perfctl: " + mask(" ".join(text.split("\n"))))


@contextmanager
def bar() -> Iterator[Any]:
    """A bar of rich's that goes away at the end; what is printed meanwhile stands above it."""
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    # what does not fit is cut at its end
    columns = (BarColumn(BAR), TextColumn("{task.description}", markup=False))
    with Bar(*columns, console=_console(error=True), transient=True) as progress_bar:
        yield progress_bar
