"""Results as Markdown, LaTeX and HTML: headings, sentences and whole tables, for ``--format``.

A LaTeX document stands alone and compiles with pdflatex, lualatex or xelatex; its tables use
booktabs and longtable, and can be copied out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfctl.orchestrator.report.tables import Cell, Column, Table

LONG = 28
"""Characters from which on a column of words wraps in LaTeX."""

_BLANKS = str.maketrans({"\u2007": None, "\u2008": None, "\u202f": " ", "\u00a0": " "})

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "|": "&#124;", "#": "&#35;"}

_LATEX = str.maketrans(
    {
        "\\": "\\textbackslash{}",
        "~": "\\textasciitilde{}",
        "^": "\\textasciicircum{}",
        "<": "\\textless{}",
        ">": "\\textgreater{}",
        "|": "\\textbar{}",
        '"': "\\textquotedbl{}",
        **{mark: f"\\{mark}" for mark in "&%$#_{}"},
        "\u2212": "$-$",
        "\u2192": "$\\to$",
        "\u00d7": "$\\times$",
        "\u00b1": "$\\pm$",
        "\u2264": "$\\leq$",
        "\u2265": "$\\geq$",
        "\u00b5": "\\textmu{}",
        "\u03bc": "\\textmu{}",
        "\u2026": "\\ldots{}",
        "\u2013": "--",
        "\u2014": "---",
        "\u00b7": "$\\cdot$",
        "\u2007": None,
        "\u2008": None,
        "\u202f": "~",
        "\u00a0": "~",
    }
)
_LAST_LETTER = 0x17F
"""The last letter of Latin Extended-A, which T1 fonts mostly have."""
PAGE = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>perfctl</title><style>'
    "body{font:16px/1.5 system-ui,sans-serif;margin:2rem}table{border-collapse:collapse}"
    "th,td{padding:.3rem .6rem;border-bottom:1px solid #ddd;text-align:left}"
    ".n{text-align:right}</style></head><body>"
)
"""Start of an HTML document."""


@dataclass(frozen=True, slots=True)
class Part:
    """One section."""

    title: str | None = None
    sentences: tuple[str, ...] = ()
    """A list, above the table."""
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    """As many cells as there are heads."""
    numbers: tuple[bool, ...] = ()
    """Which columns hold numbers, and stand at the right."""
    notes: tuple[str, ...] = ()
    """Below the table."""


def of_view(view: Table, left_out: Collection[str] = ()) -> Part:
    """A table of the page, with every row that it holds. Columns of dashes alone are left out; a
    note says why."""
    kept = [at for at, column in enumerate(view.columns) if column.label not in left_out]
    heads = tuple(head_text(view.columns[at]) for at in kept)
    rows = tuple(tuple(cell_text(row[at]) for at in kept) for row in view.rows)
    more = (f"{view.hidden:,} more rows are not shown.",) if view.hidden else ()
    return Part(
        view.caption,
        (),
        heads,
        rows,
        tuple(view.columns[at].style == "num" for at in kept),
        (*view.notes, *more),
    )


def head_text(column: Column) -> str:
    """ "time", "achieved (FLOP/s)": the head of a column with its unit, where it has one."""
    return f"{column.label} ({column.unit})" if column.unit and not column.carried else column.label


def cell_text(cell: Cell) -> str:
    """ "24.7 ms": a cell with its unit, without the blanks that line its number up on a screen."""
    shown = cell.text.translate(_BLANKS).strip()
    return f"{shown} {cell.unit}".strip() if cell.unit else shown


def markdown(parts: Iterable[Part]) -> str:
    """Markdown with tables, as GitHub and pandoc read it."""
    out: list[str] = []
    for part in parts:
        if part.title:
            out += [f"## {markdown_text(part.title)}", ""]
        if part.sentences:
            out += [*(f"- {markdown_text(one)}" for one in part.sentences), ""]
        if part.rows:
            sides = ("--:" if number else "---" for number in part.numbers)
            out += [_row(part.heads), f"| {' | '.join(sides)} |", *map(_row, part.rows), ""]
        if part.notes:
            out += [markdown_text(" ".join(part.notes)), ""]
    return "\n".join(out).rstrip("\n") + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(markdown_text, cells)) + " |"


def markdown_text(words: str) -> str:
    """Names from reports as text: no HTML, no Markdown, no mention of anybody, one line."""
    shown = "".join(_ENTITIES.get(c, c if c.isprintable() else " ") for c in words)
    return "".join(f"\\{c}" if c in "\\`*_[]~" else c for c in shown)


def tex(parts: Iterable[Part]) -> str:
    """A document of LaTeX, on pages in landscape."""
    return latex_page(
        [
            (part.title or "", (part.sentences, _longtable(part) if part.rows else ""), part.notes)
            for part in parts
        ],
        landscape=True,
    )


def _longtable(part: Part) -> str:
    texts = [max(map(len, column)) > LONG for column in zip(*part.rows, strict=True)]
    wide = 0.6 / max(
        sum(long and not number for long, number in zip(texts, part.numbers, strict=True)), 1
    )
    kinds = (
        "r" if number else f"p{{{wide:.2f}\\textwidth}}" if long else "l"
        for long, number in zip(texts, part.numbers, strict=True)
    )
    return _table("".join(kinds), part.heads, part.rows)


def _table(kinds: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    # A row that begins with [ would be read as an argument of the \\\\ before it.
    lines = [f"{{}}{' & '.join(map(latex, row))} \\\\" for row in (heads, *rows)]
    start = f"\\begin{{longtable}}{{{kinds}}}"
    return "\n".join(
        (
            start,
            "\\toprule",
            lines[0],
            "\\midrule",
            "\\endhead",
            *lines[1:],
            "\\bottomrule",
            "\\end{longtable}",
        )
    )


def latex_page(
    parts: Sequence[tuple[str, str | tuple[Sequence[str], str], Sequence[str]]],
    landscape: bool = False,
) -> str:
    """Sections: a title, a table in LaTeX (or sentences and a table), sentences below it."""
    options = "a4paper,margin=15mm" + (",landscape" if landscape else "")
    out = [
        "\\documentclass{article}",
        "\\usepackage[T1]{fontenc}",
        "\\usepackage{textcomp}",
        "\\usepackage{booktabs,longtable}",
        f"\\usepackage[{options}]{{geometry}}",
        "\\begin{document}",
        "\\scriptsize",
    ]
    for title, body, notes in parts:
        above, table = body if isinstance(body, tuple) else ((), body)
        out += [f"\\section*{{{latex(title)}}}"] if title else []
        out += [*_items(above), table, *_items(notes)]
    return "\n".join(filter(None, [*out, "\\end{document}"])) + "\n"


def _items(sentences: Sequence[str]) -> list[str]:
    # What begins with [ would be the label of its item.
    items = (f"\\item {{}}{latex(one)}" for one in sentences)
    return ["\\begin{itemize}", *items, "\\end{itemize}"] if sentences else []


def latex(text: str) -> str:
    """With every character that LaTeX takes for a command made a plain one; line ends
    become spaces.

    Letters that T1 fonts lack are named by their number, "(U+4E2D)", so that every engine takes
    the text.
    """
    shown = "".join(
        c if ord(c) <= _LAST_LETTER or ord(c) in _LATEX else f"(U+{ord(c):04X})"
        for c in text
        if c.isprintable() or c.isspace()
    )
    return " ".join(shown.split(None)).translate(_LATEX)


def html(parts: Iterable[Part]) -> str:
    """Return a page that stands alone: no script, nothing loaded."""
    out = [PAGE]
    for part in parts:
        out += [f"<h2>{escape(part.title)}</h2>"] if part.title else []
        if part.sentences:
            out += ["<ul>", *(f"<li>{escape(one)}</li>" for one in part.sentences), "</ul>"]
        if part.rows:
            out += ["<table><thead>", _html_row(part.heads, part.numbers, "th"), "</thead><tbody>"]
            out += [*(_html_row(row, part.numbers, "td") for row in part.rows), "</tbody></table>"]
        out += [f"<p>{escape(note)}</p>" for note in part.notes]
    return "\n".join((*out, "</body></html>")) + "\n"


def _html_row(cells: Sequence[str], numbers: Sequence[bool], tag: str) -> str:
    made = (
        f"<{tag}{' class=n' if number else ''}>{escape(cell)}</{tag}>"
        for cell, number in zip(cells, numbers, strict=True)
    )
    return f"<tr>{''.join(made)}</tr>"


FORMS: dict[str, Callable[[Iterable[Part]], str]] = {"md": markdown, "tex": tex, "html": html}
"""--format -> how a result is written."""
