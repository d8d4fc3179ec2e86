"""The sheet of a whole network as text, Markdown, LaTeX or HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape

from perfctl.orchestrator.estimate.sheets.network import NetworkLine, NetworkSheet
from perfctl.orchestrator.report.estimate import columns, html_page, mark
from perfctl.orchestrator.report.files.documents import latex_page, latex_table

Row = tuple[str, ...]
UNKNOWN = "not known"


def _words(sheet: NetworkSheet) -> int:
    """Columns that hold words; the others hold numbers."""
    return 4 if sheet.types else 3


def _heads(sheet: NetworkSheet) -> Row:
    backward = ("backward FLOP",) if sheet.backward else ()
    return (
        "layer",
        "kind",
        *(["type"] if sheet.types else []),
        "output",
        "parameters",
        "MAC",
        "forward FLOP",
        *backward,
        "elementwise FLOP",
        "parameter B",
        "written B",
    )


def _cells(line: NetworkLine, sheet: NetworkSheet) -> Row:
    shape = (
        " x ".join(map(str, line.output))
        if line.output is not None
        else ""
        if line.called
        else "not called"
    )
    unknown = UNKNOWN if line.called else ""
    backward = (line.backward_flops,) if sheet.backward else ()
    numbers = (
        line.parameters,
        line.macs,
        line.flops,
        *backward,
        line.elementwise_flops,
        line.parameter_bytes,
        line.written_bytes,
    )
    kind = (line.kind, line.type) if sheet.types else (line.kind,)
    return (
        line.layer,
        *kind,
        shape,
        *(unknown if value is None else f"{value:,}" for value in numbers),
    )


def _rows(sheet: NetworkSheet) -> list[Row]:
    """Every line, then the totals: "at least" where a line has no figure."""
    lines = [_cells(line, sheet) for line in sheet.lines]
    missing = [UNKNOWN in column for column in zip(*lines, strict=True)] or [False] * len(
        _heads(sheet)
    )
    total = (
        f"at least {cell}" if least else cell
        for cell, least in zip(_cells(sheet.total, sheet), missing, strict=True)
    )
    return [*lines, tuple(total)]


def _notes(sheet: NetworkSheet) -> list[str]:
    again = (
        "Computed again in backward (activation checkpointing), in no line: "
        f"{sheet.recompute_flops:,} FLOP."
    )
    missing = [f"Not known: {'; '.join(sheet.unknown)}."] if sheet.unknown else []
    types = [
        (
            f"{row.type}: {'at least ' if row.unknown else ''}{2 * row.forward_macs:,} FLOP "
            f"forward, {2 * row.backward_macs:,} backward, {row.elementwise_flops:,} elementwise "
            "forward; "
            f"{row.forward_bytes:,} B read and written forward, {row.backward_bytes:,} backward."
        )
        for row in sheet.types
    ]
    return [*types, *missing, *([again] if sheet.recompute_flops else []), *sheet.conventions]


def _title(model: str, batch: int) -> str:
    return f"{model}, batch {batch:,}"


def as_text(model: str, sheets: Mapping[int, NetworkSheet]) -> str:
    """Aligned columns for a terminal."""
    parts = []
    for batch, sheet in sheets.items():
        heads, rule, *lines, total = columns(_heads(sheet), _rows(sheet), left=_words(sheet))
        title = _title(model, batch)
        parts.append(
            "\n".join(
                [title, "=" * len(title), "", heads, rule, *lines, rule, total, "", *_notes(sheet)]
            )
        )
    return "\n\n".join(parts) + "\n"


def as_markdown(model: str, sheets: Mapping[int, NetworkSheet]) -> str:
    """One table a batch size."""
    out: list[str] = []
    for batch, sheet in sheets.items():
        heads = _heads(sheet)
        out += [f"# {mark(_title(model, batch))}", "", f"| {' | '.join(heads)} |"]
        out += [f"|{'---|' * _words(sheet)}{'---:|' * (len(heads) - _words(sheet))}"]
        out += [f"| {' | '.join(map(mark, row))} |" for row in _rows(sheet)]
        out += ["", *(f"- {mark(note)}" for note in _notes(sheet)), ""]
    return "\n".join(out)


def as_latex(model: str, sheets: Mapping[int, NetworkSheet]) -> str:
    """A document that stands alone, one table a batch size."""
    parts = [
        (
            _title(model, batch),
            latex_table(_heads(sheet), _rows(sheet), _words(sheet), last_is_total=True),
            _notes(sheet),
        )
        for batch, sheet in sheets.items()
    ]
    return latex_page(parts, landscape=True)


def as_html(model: str, sheets: Mapping[int, NetworkSheet]) -> str:
    """A page that stands alone: no script, nothing loaded."""
    body = ""
    for batch, sheet in sheets.items():
        head = "".join(f"<th scope=col>{escape(name)}</th>" for name in _heads(sheet))
        *lines, total = (
            "".join(_cell(cell, at) for at, cell in enumerate(row)) for row in _rows(sheet)
        )
        table = "".join(f"<tr>{line}</tr>" for line in lines)
        notes = "".join(f"<li>{escape(note)}</li>" for note in _notes(sheet))
        body += (
            f"<h2>{escape(_title(model, batch))}</h2><div "
            f"class=wide><table><thead><tr>{head}</tr></thead><tbody>{table}</tbody>"
        )
        body += f"<tfoot><tr>{total}</tr></tfoot></table></div><ul>{notes}</ul>"
    first = max((_words(sheet) for sheet in sheets.values()), default=3) + 1
    style = (
        f".wide{{overflow-x:auto}}td:nth-child(n+{first}),th:nth-child(n+{first})"
        f"{{text-align:right}}"
    )
    style += "tfoot{font-weight:bold}body{max-width:90rem}"
    return html_page(model, body, style)


def _cell(text: str, place: int) -> str:
    return f"<th scope=row>{escape(text)}</th>" if place == 0 else f"<td>{escape(text)}</td>"


FORMS: dict[str, Callable[[str, Mapping[int, NetworkSheet]], str]] = {
    "text": as_text,
    "md": as_markdown,
    "tex": as_latex,
    "html": as_html,
}
"""--format -> how the sheet is written."""
