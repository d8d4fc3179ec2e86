"""Writes tables as ``nsys stats`` does: CSV, columns under a ruler, boxes, in the spellings
since 2019."""

from __future__ import annotations

from collections.abc import Sequence

Row = Sequence[str]
YEARS = {
    "2019": ("Time(%)", "Total Time", "{count}", "Average", "Minimum", "Maximum"),
    "2020": ("Time(%)", "Total Time (ns)", "{count}", "Average", "Minimum", "Maximum"),
    "2021": (
        "Time(%)",
        "Total Time (ns)",
        "{count}",
        "Average (ns)",
        "Minimum (ns)",
        "Maximum (ns)",
        "StdDev (ns)",
    ),
    "2022": (
        "Time (%)",
        "Total Time (ns)",
        "{count}",
        "Avg (ns)",
        "Med (ns)",
        "Min (ns)",
        "Max (ns)",
        "StdDev (ns)",
    ),
}
"""Year since which nsys spells columns so -> the columns before the name."""


def header(count: str, name: str, year: str = "2022") -> list[str]:
    return [*(column.format(count=count) for column in YEARS.get(year, YEARS["2022"])), name]


def csv_table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """By hand, as nsys up to 2022.4: a cell with a comma is quoted, quotes in it stay as
    they are."""
    lines = [
        ",".join(f'"{cell}"' if "," in cell else cell for cell in row) for row in (columns, *rows)
    ]
    return "\n".join(lines) + "\n\n"


def column_table(
    columns: Sequence[str],
    rows: Sequence[Row],
    *,
    gap: str = "  ",
    indent: str = " ",
    texts: int = 1,
) -> str:
    """Columns as wide as their cells; the last ``texts`` to the left, the others to the right."""
    widths = [max(len(row[at]) for row in (columns, *rows)) for at in range(len(columns))]

    def line(row: Row) -> str:
        cells = zip(row, widths, strict=True)
        numbers = len(columns) - texts
        return indent + gap.join(
            c.ljust(w) if at >= numbers else c.rjust(w) for at, (c, w) in enumerate(cells)
        )

    ruler = indent + gap.join("-" * width for width in widths)
    head = indent + gap.join(
        cell.center(width) for cell, width in zip(columns, widths, strict=True)
    )
    return "\n".join([head, ruler, *map(line, rows)]) + "\n\n"


def box_table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Cells between bars."""
    widths = [max(len(row[at]) for row in (columns, *rows)) for at in range(len(columns))]
    ruler = "+" + "+".join("-" * (width + 2) for width in widths) + "+"

    def line(row: Row) -> str:
        return (
            "| "
            + " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            + " |"
        )

    return "\n".join([ruler, line(columns), ruler, *map(line, rows), ruler]) + "\n\n"


def processing(report: str, source: str = "app.sqlite", version: str = "2024.6.2") -> str:
    folder = f"/opt/nvidia/nsight-systems/{version}/host-linux-x64/reports"
    return f"Processing [{source}] with [{folder}/{report}.py]... \n"


def titled(title: str, report: str) -> str:
    return f"\n ** {title} ({report}):\n\n"
