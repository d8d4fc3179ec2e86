"""The one place that prints. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfctl.orchestrator.cli.flags import with_flags
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.report.tables import TURNING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from perfctl.orchestrator.outputs import JsonLists
    from perfctl.orchestrator.report.view import Layout, Lines, View

BAR = 16
"""Columns of a bar: beside it there is room for what is going on."""
PLAIN_WIDTH = 80
"""Columns when the output is not a terminal."""

_C1 = range(0x7F, 0xA0)
"""Delete, and the control characters that terminals obey although no key has them."""
_CONTROL = {
    code: f"\\x{code:02x}" for code in (*(code for code in range(32) if code not in (9, 10)), *_C1)
}
_CONTROL |= {code: f"\\u{code:04x}" for code in TURNING}
_JSON_CONTROL = {code: f"\\u{code:04x}" for code in (*_C1, *TURNING)}
"""JSON itself only escapes what is below 32; these stand in its texts alone, so the value stays
the same."""

SPOOLED = 4 << 20
"""Bytes of each list that are held."""

Force = Annotated[bool, typer.Option("--force", help="Overwrite a file of that name.")]


def safe(text: str) -> str:
    """Text from reports without the characters that a terminal would obey, and without what it
    cannot be sent."""
    return text if text.isascii() and text.isprintable() else _sent(text.translate(_CONTROL))


def _sent(text: str) -> str:
    """Names of files need not be text, and reports may hold half a surrogate pair: both as JSON
    writes them."""
    return text.encode("utf-8", "backslashreplace").decode()


def _console(*, error: bool = False, lasting: bool = False) -> Console:
    """``lasting``: it keeps the width and colours that it has now."""
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    columns = os.environ.get("COLUMNS", "")
    asked = int(columns) if columns.isdecimal() and int(columns) >= 20 else PLAIN_WIDTH
    width = None if stream.isatty() else asked
    made = partial(
        Console, file=stream, highlight=False, markup=False, emoji=False, soft_wrap=False
    )
    found = made(width=width)
    return made(width=found.width, force_terminal=found.is_terminal) if lasting else found


def result(text: str) -> None:
    """One line of the command's result."""
    print(safe(text))


def show(renderable: RenderableType) -> None:
    """A table or text of the command's result."""
    _console().print(renderable)


def printer() -> Callable[[Iterable[RenderableType]], str]:
    """Makes of tables and texts what ``show`` prints of them here, also in a child, whose output is
    another one."""
    console = _console(lasting=True)

    def text(parts: Iterable[RenderableType]) -> str:
        with console.capture() as caught:
            for part in parts:
                console.print(part)
        return caught.get()

    return text


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
    return _sent(text.translate(_JSON_CONTROL))


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
            for name, more in texts.items():
                for text in more:
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


def document(form: str, parts: Iterable[Any]) -> None:
    """Parts of a result as Markdown or LaTeX; ``form``: what :func:`form_of` let through."""
    from perfctl.orchestrator.report.files.documents import FORMS

    raw(FORMS[form](parts))


def view(answer: View | Layout | Lines, form: str | None) -> None:
    """An answer as text for the terminal, or as the document that ``form`` names; fields in it are
    the options of the command."""
    from perfctl.orchestrator.report.view import Layout, Lines, Paper, as_parts, on_terminal

    if isinstance(answer, Lines):
        if form is not None:
            raise UsageError(f"--format and {answer.asked_by} both write to stdout", "Choose one")
        for line in answer.lines:
            raw(safe(line) if answer.has_names else line)
        return
    if isinstance(answer, Layout):
        if form is not None:
            document(form, answer.parts())
            return
        for block in answer.draw(Paper(width(), printer())):
            if isinstance(block, str):
                sys.stdout.write(block)
            else:
                show(block)
        return
    answer = replace(
        answer,
        findings=tuple(map(with_flags, answer.findings)),
        warnings=tuple(map(with_flags, answer.warnings)),
        notes=tuple(map(with_flags, answer.notes)),
    )
    if form is not None:
        document(form, as_parts(answer))
        return
    for part in on_terminal(answer, width()):
        show(part)


def form_of(form: str | None, as_json: bool) -> str | None:
    """The format asked for; None is text. Raises UsageError for one that is not known, and
    beside --json."""
    if form is not None and form not in ("md", "tex"):
        raise UsageError(f"--format: '{form}' is not known", "Use md or tex; without it, text")
    if form is not None and as_json:
        raise UsageError("--format and --json together", "Choose one")
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
    note(f"warning: {with_flags(text)}")


def error(text: str) -> None:
    """One line, whatever stands in the names and texts in it; what looks like a secret is
    not printed."""
    from perfctl.redact import mask

    note("perfctl: " + mask(" ".join(with_flags(text).split("\n"))))


@contextmanager
def bar() -> Iterator[Any]:
    """A bar of rich's that goes away at the end; what is printed meanwhile stands above it."""
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    # what does not fit is cut at its end
    columns = (BarColumn(BAR), TextColumn("{task.description}", markup=False))
    with Bar(*columns, console=_console(error=True), transient=True) as shown:
        yield shown


class Progress:
    """A bar on a terminal, plain lines elsewhere: which batch size, which stage, how long still."""

    def __init__(self, total: int, bar: Any | None) -> None:
        self._total = total
        self._bar = bar
        self._task = bar.add_task("", total=total) if bar else None
        self._label = ""
        self._began = time.monotonic()
        self._seconds: list[float] = []

    def stage(self, label: str) -> None:
        """``label``: what is running now, as in "batch 64: profile"."""
        self._label = label = safe(label)
        if self._bar is None:
            note(label)
        else:
            self._bar.update(self._task, description=label)

    def tick(self, seconds: float) -> None:
        """``seconds``: how long the current process has run."""
        if self._bar is not None:
            self._bar.update(
                self._task, description=f"{self._label} ({seconds:.0f} s{self._left(seconds)})"
            )

    def _left(self, seconds: float) -> str:
        """What is left if each part takes as long as the ones before did on average; nothing before
        the first is done."""
        if not self._seconds:
            return ""
        mean = sum(self._seconds) / len(self._seconds)
        share = min(
            (len(self._seconds) + min(seconds / mean, 1.0) if mean else 0.0) / self._total, 1.0
        )
        left = max(mean * (self._total - len(self._seconds)) - seconds, 1)
        return f", {share * 100:.0f}%, about {left:.0f} s left"

    def done(self, line: str, *, ran: bool = True) -> None:
        """One part is finished; ``line`` says how. ``ran``: it took its time, and was
        not skipped."""
        now = time.monotonic()
        if ran:
            self._seconds.append(now - self._began)
        else:
            self._total -= 1
        self._began = now
        if self._bar is None:
            note(line)
        else:
            self._bar.console.print(safe(line))
            self._bar.advance(self._task)


@contextmanager
def progress(total: int) -> Iterator[Progress]:
    """Progress over ``total`` parts, on stderr."""
    if not sys.stderr.isatty():
        yield Progress(total, None)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(BAR), MofNCompleteColumn())
    with Bar(*columns, console=_console(error=True), transient=True) as bar:
        yield Progress(total, bar)
