"""The worked sheet as terminal text, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from perfctl.orchestrator.analyse.sheet import Sheet
from perfctl.orchestrator.analyse.sheet_records import Line

WIDTH = 110
"""Columns of text beside each other; what is wider goes below each other."""
HEADS = ("", "formula", "numbers", "result")


def heading(sheet: Sheet) -> str:
    """conv2 (Conv2d)"""
    return f"{sheet.layer or 'the model'} ({sheet.kind})" if sheet.kind else sheet.layer


def as_text(sheet: Sheet) -> str:
    """Aligned columns for a terminal."""
    first = max((len(line.what) for section in sheet.sections for line in section.lines), default=0)
    out = [heading(sheet), "=" * len(heading(sheet))]
    for section in sheet.sections:
        rows = [_cells(line) for line in section.lines]
        widths = [first, *(max(len(row[place]) for row in rows) for place in (1, 2, 3))]
        out += ["", section.title, "-" * len(section.title)]
        for line in section.lines:
            out += _lines(line, widths)
    return "\n".join(out) + "\n"


def _cells(line: Line) -> tuple[str, str, str, str]:
    return line.what, line.formula, line.numbers, line.result


def _lines(line: Line, widths: list[int]) -> list[str]:
    """One line where it is short; formula, numbers and result below each other where it is not."""
    if sum(widths) <= WIDTH:
        what, formula, numbers, result = (text.ljust(width) for text, width in zip(_cells(line), widths, strict=True))
        return ["  " + "  ".join((what, formula, numbers, result)).rstrip()]
    terms = [f"{term};" for term in line.formula.split("; ")] if line.formula else []
    parts = [*(terms[:-1]), *(f"= {text}" if terms else text for text in (line.numbers, line.result) if text)]
    if terms:
        parts.insert(len(terms) - 1, terms[-1].rstrip(";"))
    front = [line.what, *[""] * (len(parts) - 1)]
    return [f"  {what.ljust(widths[0])}  {part}".rstrip() for what, part in zip(front, parts, strict=True)]


def as_markdown(sheet: Sheet) -> str:
    """One table a section."""
    out = [f"# {_mark(heading(sheet))}"]
    for section in sheet.sections:
        out += ["", f"## {section.title}", "", f"| {' | '.join(HEADS)} |", "|---|---|---|---:|"]
        out += [f"| {' | '.join(_mark(cell) for cell in _cells(line))} |" for line in section.lines]
    return "\n".join(out) + "\n"


def _mark(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;")


STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}"
    "table{border-collapse:collapse;width:100%;margin-bottom:1.5rem}th,td{text-align:left;padding:.3rem .6rem;"
    "border-bottom:1px solid #ddd;vertical-align:top}td:last-child,th:last-child{text-align:right;"
    "font-variant-numeric:tabular-nums}td:nth-child(n+2){font-family:ui-monospace,monospace;font-size:.9em}"
    "@media(prefers-color-scheme:dark){body{color:#eee;background:#161616}th,td{border-color:#444}}"
)


def as_html(sheet: Sheet) -> str:
    """A page that stands alone: no script, nothing loaded."""
    title = escape(heading(sheet))
    body = [f"<h1>{title}</h1>"]
    for section in sheet.sections:
        head = "".join(f"<th scope=col>{name}</th>" for name in HEADS)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(line)) + "</tr>" for line in section.lines
        )
        body.append(
            f"<h2>{escape(section.title)}</h2><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


FORMS: dict[str, Callable[[Sheet], str]] = {"text": as_text, "markdown": as_markdown, "html": as_html}
"""--format -> how the sheet is written."""
