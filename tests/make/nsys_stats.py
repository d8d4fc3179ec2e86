"""Writes tables as ``nsys stats`` does: CSV, columns under a ruler, boxes."""

from __future__ import annotations

from collections.abc import Sequence

Row = Sequence[str]


def csv_table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """By hand, as nsys up to 2022.4: a cell with a comma is quoted, quotes in it stay as
    they are."""
    lines = [
        ",".join(f'"{cell}"' if "," in cell else cell for cell in row) for row in (columns, *rows)
    ]
    return "\n".join(lines) + "\n\n"


def column_table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Columns as wide as their cells; the last to the left, the others to the right."""
    widths = [max(len(row[at]) for row in (columns, *rows)) for at in range(len(columns))]

    def line(row: Row) -> str:
        *numbers, text = row
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths, strict=False)]
        return " " + "  ".join([*cells, text.ljust(widths[-1])])

    ruler = " " + "  ".join("-" * width for width in widths)
    head = " " + "  ".join(cell.center(width) for cell, width in zip(columns, widths, strict=True))
    return "\n".join([head, ruler, *map(line, rows)]) + "\n\n"


def box_table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Cells between bars."""
    widths = [max(len(row[at]) for row in (columns, *rows)) for at in range(len(columns))]
    ruler = "+" + "+".join("-" * (width + 2) for width in widths) + "+"

    def line(row: Row) -> str:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        return "| " + " | ".join(cells) + " |"

    return "\n".join([ruler, line(columns), ruler, *map(line, rows), ruler]) + "\n\n"


def processing(report: str) -> str:
    folder = "/opt/nvidia/nsight-systems/2024.6.2/host-linux-x64/reports"
    return f"Processing [app.sqlite] with [{folder}/{report}.py]... \n"
