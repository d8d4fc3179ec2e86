"""Tables as files for other programs: CSV, JSON, Parquet, Excel. Rows are written as they come.

NULL stays empty (CSV, Excel) or null (JSON, Parquet). What each column means, in which unit, and
what NULL means in it is in a table of its own, ``columns``. FLOPs count 1 multiply-add as 2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

from perfctl.orchestrator.errors import PerfctlError, ToolMissing
from perfctl.redact import neutralize_text

_QUOTED = re.compile(r'[",\r\n]|^\s|\s$')
AT_ONCE = 50_000
SHEET_ROWS = 1_048_576
"""What an Excel sheet holds, its head counted."""
CELL_CHARACTERS = 32_767
EXACT = 10**15
"""Spreadsheets keep 15 digits: larger whole numbers go in as text, so that none is changed."""

_AS_JSON = json.JSONEncoder(ensure_ascii=False, default=str).encode


def format_csv_lines(
    names: Sequence[str], rows: Iterable[Sequence[Any]], *, keeps_formulas: bool = False
) -> Iterator[str]:
    """Yield the head, then one text for each row, each with its line feed."""
    for row in chain([names], rows):
        yield (
            ",".join([format_csv_cell(value, keeps_formulas=keeps_formulas) for value in row])
            + "\n"
        )


def format_csv_cell(value: Any, *, keeps_formulas: bool) -> str:
    """Return one cell. Lists and dictionaries are JSON text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    return _quote_csv_text(convert_value_to_text(value), keeps_formulas)


@lru_cache(maxsize=512)
def _quote_csv_text(text: str, keeps_formulas: bool) -> str:
    """Return a text as a cell; millions of cells have the same few names."""
    if not keeps_formulas:
        text = neutralize_text(text, "csv")
    return '"' + text.replace('"', '""') + '"' if not text or _QUOTED.search(text) else text


def convert_value_to_text(value: Any) -> str:
    """Any value as text: bytes as hexadecimal digits, lists and dictionaries as JSON."""
    if isinstance(value, str):
        return value
    return value.hex() if isinstance(value, bytes) else _AS_JSON(value)


def make_names_unique(names: Sequence[str]) -> tuple[str, ...]:
    """Unique column names: id, id -> id, id_2."""
    unique_names: dict[str, None] = {}
    for name in names:
        number, candidate = 1, name
        while candidate in unique_names:
            number += 1
            candidate = f"{name}_{number}"
        unique_names[candidate] = None
    return tuple(unique_names)


def convert_to_json_value(value: Any) -> Any:
    """A value that JSON has: bytes as hexadecimal digits, infinities as text."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not -1e400 < value < 1e400:
        return None if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): convert_to_json_value(inner) for key, inner in value.items()}
    return (
        [convert_to_json_value(inner) for inner in value]
        if isinstance(value, (list, tuple))
        else value
    )


@dataclass(frozen=True, slots=True)
class ExportColumn:
    """One column: its name (with the unit in it where it has one), type and description."""

    name: str
    kind: str
    """INTEGER, REAL, NUMERIC (either), TEXT, BOOLEAN or JSON."""
    meaning: str
    unit: str
    null: str


@dataclass(frozen=True, slots=True)
class ExportTable:
    """One table; ``rows`` may be read once."""

    name: str
    columns: tuple[ExportColumn, ...]
    rows: Iterable[Sequence[Any]]

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


def build_column_descriptions_table(tables: Iterable[ExportTable]) -> ExportTable:
    """The table ``columns``: the meaning of every column of ``tables``."""
    heads = ("table", "column", "meaning", "unit", "null_means")
    rows = [
        (table.name, c.name, c.meaning, c.unit, c.null) for table in tables for c in table.columns
    ]
    return ExportTable(
        "columns", tuple(ExportColumn(head, "TEXT", "", "-", "") for head in heads), rows
    )


def write_csv(path: Path, table: ExportTable, *, keeps_formulas: bool) -> None:
    """One table; ``keeps_formulas`` leaves text as it is that a spreadsheet would run as a
    formula."""
    with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
        file.writelines(
            format_csv_lines(table.column_names, table.rows, keeps_formulas=keeps_formulas)
        )


def write_tables_as_json(path: Path, tables: Sequence[ExportTable], about: dict[str, str]) -> None:
    """One object: {"about": ..., "tables": {name: [{column: value}, ...]}}; a row a line."""
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f'{{"about": {json.dumps(about, ensure_ascii=False)},\n"tables": {{')
        for number, table in enumerate(tables):
            file.write(f"{',' if number else ''}\n{json.dumps(table.name)}: [")
            for index, row in enumerate(table.rows):
                record = dict(zip(table.column_names, map(convert_to_json_value, row), strict=True))
                file.write(
                    f"{',' if index else ''}\n"
                    f"{json.dumps(record, ensure_ascii=False, allow_nan=False)}"
                )
            file.write("\n]")
        file.write("\n}}\n")


def write_parquet_and_count_rows(path: Path, table: ExportTable) -> int:
    """Write one table and return how many rows it has. Needs pyarrow; a column that holds whole
    numbers and others (NUMERIC) becomes float64."""
    arrow, parquet = (
        _import_library_or_raise("pyarrow"),
        _import_library_or_raise("pyarrow.parquet"),
    )
    types = {
        "INTEGER": arrow.int64(),
        "BOOLEAN": arrow.bool_(),
        "REAL": arrow.float64(),
        "NUMERIC": arrow.float64(),
    }
    fields = [
        arrow.field(
            column.name,
            types.get(column.kind, arrow.string()),
            metadata={"meaning": column.meaning, "unit": column.unit},
        )
        for column in table.columns
    ]
    schema = arrow.schema(fields)
    rows, total = iter(table.rows), 0
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        while part := list(islice(rows, AT_ONCE)):
            arrays = [
                arrow.array(
                    [None if value is None else cast(value) for value in values]
                    if (cast := _CASTS.get(column.kind))
                    else values,
                    type=field.type,
                )
                for column, field, values in zip(
                    table.columns, fields, zip(*part, strict=True), strict=True
                )
            ]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))
            total += len(part)
    return total


def write_xlsx(path: Path, tables: Sequence[ExportTable]) -> None:
    """One workbook, a sheet a table. Needs openpyxl. Text never becomes a formula."""
    workbook = _import_library_or_raise("openpyxl").Workbook(write_only=True)
    for table in tables:
        sheet = workbook.create_sheet(table.name)
        sheet.freeze_panes = "A2"
        for number, row in enumerate(chain([table.column_names], table.rows), 1):
            if number > SHEET_ROWS:
                text = f"{table.name}: has more rows than the {SHEET_ROWS:,} of an Excel sheet"
                raise PerfctlError(text, "Use --format parquet or csv, or fewer runs (--run)")
            sheet.append([_make_sheet_cell(sheet, value) for value in row])
    workbook.save(path)


def _make_sheet_cell(sheet: Any, value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)) and abs(value) < EXACT:
        return value
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    text = ILLEGAL_CHARACTERS_RE.sub(
        "\ufffd", repr(value) if isinstance(value, (int, float)) else convert_value_to_text(value)
    )
    if len(text) > CELL_CHARACTERS:
        text = text[: CELL_CHARACTERS - 4] + " ..."
    cell = WriteOnlyCell(sheet, value="")
    cell.value = text
    cell.data_type = "s"  # else a text that begins with = would be a formula
    return cell


def raise_if_format_library_missing(form: str) -> None:
    """Raises ToolMissing where the library for this format is not installed."""
    for library in {"parquet": ("pyarrow", "pyarrow.parquet"), "xlsx": ("openpyxl",)}.get(form, ()):
        _import_library_or_raise(library)


_CASTS: dict[str, Callable[[Any], Any]] = {
    "TEXT": convert_value_to_text,
    "JSON": convert_value_to_text,
    "REAL": float,
    "NUMERIC": float,
}


def _import_library_or_raise(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        library = name.partition(".")[0]
        raise ToolMissing(
            f"this format needs {library}, which is not installed",
            "pip install 'perfctl[export]', or --format csv",
        ) from error


def build_ledger_export_table(rows: Iterable[Sequence[Any]]) -> ExportTable:
    """Return the ledger's rows (values in the order of its columns) as a table; lists in them
    become JSON."""
    from perfctl.orchestrator.report.ledger.rows import read_ledger_column_definitions

    columns = [
        ExportColumn(name, kind, meaning, unit, "not known")
        for name, (kind, unit, meaning) in read_ledger_column_definitions().items()
    ]
    return ExportTable("ledger", tuple(columns), rows)
