"""Views as Markdown and LaTeX: headings, sentences and complete tables, for ``--format``.

A LaTeX document stands alone and compiles with pdflatex, lualatex or xelatex; its tables use
booktabs and longtable, and can be copied out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfctl.orchestrator.report.tables import Table
    from perfctl.orchestrator.report.view import View

WRAPPED_TEXT_MIN = 28
"""Characters from which on a column of words wraps in LaTeX."""
PREAMBLE = (
    "\\documentclass{article}",
    "\\usepackage[T1]{fontenc}",
    "\\usepackage{textcomp}",
    "\\usepackage{booktabs,longtable}",
    "\\usepackage[a4paper,margin=15mm,landscape]{geometry}",
    "\\begin{document}",
    "\\scriptsize",
)

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


def _extract_table_texts(table: Table) -> tuple[list[str], list[list[str]], list[bool], list[str]]:
    """Return the heads of a table, its rows, which columns hold numbers, and the notes below it."""
    return (
        [
            f"{column.label} ({column.unit})"
            if column.unit and not column.carried
            else column.label
            for column in table.columns
        ],
        # without the blanks that align a cell on a screen
        [
            [f"{cell.text.translate(_BLANKS).strip()} {cell.unit or ''}".strip() for cell in row]
            for row in table.rows
        ],
        [column.style == "num" for column in table.columns],
        [*table.notes, *([f"{table.hidden:,} more rows are not shown."] if table.hidden else [])],
    )


def write_markdown(view: View, heading_level: int = 2, chart_file_names: Sequence[str] = ()) -> str:
    """Return Markdown with tables, as GitHub and pandoc read it.

    heading_level: of the heading of the view. chart_file_names: names of the files in the folder
    ``charts`` beside it, each starting with its chapter's key.
    """
    return "\n\n".join(_write_markdown_blocks(view, heading_level, chart_file_names)) + "\n"


def _write_markdown_blocks(
    view: View, heading_level: int, chart_file_names: Sequence[str]
) -> Iterator[str]:
    if view.title:
        yield f"{'#' * heading_level} {escape_markdown(view.title)}"
        heading_level += 1
    findings, warnings = view.finding_and_warning_sentences
    properties = (f"- {escape_markdown(f'{name}: {value}')}" for name, value in view.properties)
    numbered = (f"{number}. {escape_markdown(text)}" for number, text in enumerate(findings, 1))
    for items in (
        properties,
        ("\n\n".join(map(escape_markdown, view.facts)),),
        numbered,
        (f"- ⚠ {escape_markdown(text)}" for text in warnings),
    ):
        if block := "\n".join(items):
            yield block
    images_of_view = (
        name for name in chart_file_names if view.key and name.startswith(f"{view.key}-")
    )
    yield from (f"![{escape_markdown(view.title)}](charts/{name})" for name in images_of_view)
    for table in view.tables:
        if table.caption:
            yield f"{'#' * heading_level} {escape_markdown(table.caption)}"
        yield from _write_markdown_table(table)
    for table in view.folded:
        yield f"<details><summary>{escape_markdown(table.caption)}</summary>"
        yield from _write_markdown_table(table)
        yield "</details>"
    for chapter in view.chapters:
        yield from _write_markdown_blocks(chapter, heading_level, chart_file_names)
    if view.notes:
        yield escape_markdown(" ".join(view.notes))
    yield from (f"[{escape_markdown(text)}](<{file}>)" for text, file in view.links)
    if view.lines:
        lines = "\n".join(view.lines)
        yield f"```\n{lines}\n```"


def _write_markdown_table(table: Table) -> Iterator[str]:
    heads, rows, numbers, notes = _extract_table_texts(table)
    if rows:
        sides = " | ".join("--:" if is_number else "---" for is_number in numbers)
        lines = [" | ".join(map(escape_markdown, cells)) for cells in (heads, *rows)]
        yield "\n".join(f"| {line} |" for line in (lines[0], sides, *lines[1:]))
    if notes:
        yield escape_markdown(" ".join(notes))


def escape_markdown(plain: str) -> str:
    """Return names from reports as text: no HTML, no Markdown, no mention of anybody, one line."""
    text = "".join(_ENTITIES.get(c, c if c.isprintable() else " ") for c in plain)
    return "".join(f"\\{c}" if c in "\\`*_[]~" else c for c in text)


def write_latex(view: View) -> str:
    """Return a document of LaTeX, on pages in landscape."""
    return "\n".join([*PREAMBLE, *_write_latex_blocks(view), "\\end{document}"]) + "\n"


def _write_latex_blocks(view: View) -> Iterator[str]:
    if view.title:
        yield f"\\section*{{{escape_latex(view.title)}}}"
    findings, warnings = view.finding_and_warning_sentences
    properties = (f"{name}: {value}" for name, value in view.properties)
    yield from _write_latex_items((*properties, *view.facts, *findings, *warnings))
    for table in (*view.tables, *view.folded):
        yield from _write_latex_longtable(table)
    for chapter in view.chapters:
        yield from _write_latex_blocks(chapter)
    yield from _write_latex_items((*view.notes, *view.lines))


def _write_latex_longtable(table: Table) -> Iterator[str]:
    heads, rows, numbers, notes = _extract_table_texts(table)
    if table.caption:
        yield f"\\section*{{{escape_latex(table.caption)}}}"
    if rows:
        lengths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        is_wrapped = [
            length > WRAPPED_TEXT_MIN and not is_number
            for length, is_number in zip(lengths, numbers, strict=True)
        ]
        kinds = (
            f"p{{{0.6 / sum(is_wrapped):.2f}\\textwidth}}" if wraps else "r" if is_number else "l"
            for wraps, is_number in zip(is_wrapped, numbers, strict=True)
        )
        # A row that begins with [ would be read as an argument of the \\ before it.
        lines = [f"{{}}{' & '.join(map(escape_latex, row))} \\\\" for row in (heads, *rows)]
        yield f"\\begin{{longtable}}{{{''.join(kinds)}}}"
        yield from ("\\toprule", lines[0], "\\midrule", "\\endhead", *lines[1:])
        yield from ("\\bottomrule", "\\end{longtable}")
    yield from _write_latex_items(notes)


def _write_latex_items(sentences: Sequence[str]) -> Iterable[str]:
    # What begins with [ would be the label of its item.
    items = (f"\\item {{}}{escape_latex(sentence)}" for sentence in sentences)
    return ("\\begin{itemize}", *items, "\\end{itemize}") if sentences else ()


def escape_latex(text: str) -> str:
    """Return the text with every character that LaTeX takes for a command made a plain one; line
    ends become spaces.

    Letters that T1 fonts lack are named by their number, "(U+4E2D)", so that every engine takes
    the text.
    """
    printable = "".join(
        c if ord(c) <= _LAST_LETTER or ord(c) in _LATEX else f"(U+{ord(c):04X})"
        for c in text
        if c.isprintable() or c.isspace()
    )
    return " ".join(printable.split(None)).translate(_LATEX)


def write_html(view: View) -> str:
    """Return an HTML report, which stands alone."""
    from perfctl.orchestrator.report.page.page import render_view_as_html

    return render_view_as_html(view)


FORMS: dict[str, Callable[[View], str]] = {
    "md": write_markdown,
    "tex": write_latex,
    "html": write_html,
}
"""--format -> how a result is written."""
