"""Text and tables for the terminal, and the two that need no analysis: runs of a store, findings of the doctor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.report.numbers import DASH

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def runs_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """One line a run, for ``perfctl runs``. A row has the columns of the store's table run, device_name, kernels."""
    table = grid(("run", "right"), ("profiler", "left"), ("workload", "left"), ("batch", "right"), ("mode", "left"),
                 ("device", "left"), ("kernels", "right"), ("status", "left"), ("origin", "left"))  # fmt: skip
    columns = ("id", "profiler", "workload", "batch_size", "mode", "device_name", "kernels", "status", "origin")
    words = [[DASH if row[column] is None else str(row[column]) for column in columns] for row in rows]
    return add_rows(table, [[text(word, "bold red" if word == "failed" else "") for word in row] for row in words])


def doctor_table(findings: Iterable[tuple[str, str, str | None, str | None]]) -> Table:
    """(name, state, value, detail) of each finding, for ``perfctl doctor``; states also stand as words."""
    table = grid(("", "left"), ("", "left"), ("", "left"), heads=False)
    styles = {"ok": "green", "warning": "yellow", "missing": "dim"}
    return add_rows(table, [[name, text(state, styles.get(state, "")), "\n".join(filter(None, (value, detail)))]
                            for name, state, value, detail in findings])  # fmt: skip


def grid(*columns: tuple[str, str], heads: bool = True, whole: Collection[str] = (), code: int = 36) -> Table:
    """A table of these columns: (label, "left", "right" or "code").

    ``whole``: labels of columns that are cut rather than broken over lines; ``code``: characters of a name at most.
    """
    from rich.table import Table

    table = Table(
        box=None, show_header=heads, header_style="dim", pad_edge=False, caption_justify="left", caption_style="dim"
    )
    for label, side in columns:
        if side == "code":
            table.add_column(text(label), no_wrap=True, overflow="ellipsis", min_width=16, max_width=code)
        else:
            table.add_column(
                text(label), justify="right" if side == "right" else "left", no_wrap=label in whole,
                overflow="ellipsis" if label in whole else "fold",
            )  # fmt: skip
    return table


def add_rows(table: Table, rows: Iterable[Iterable[str | Text]]) -> Table:
    """The same table; words become :func:`text`."""
    for row in rows:
        table.add_row(*(text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def text(words: str, style: str = "") -> Text:
    """Text as it is: brackets in names are no markup, control characters are not sent to the terminal."""
    from rich.text import Text

    return Text("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in words), style=style)
