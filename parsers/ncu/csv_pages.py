"""Reads the pages of ncu's CSV. Headers of 12, 15 (two kinds), 20 and 21 columns are known, each
with or without two NVTX columns, so columns are found by name. Metric rows of a header with rule
columns end after the value and one comma; rows of rules have no metric, and the stream of the rule
engine ("1") instead of the launch's (seen in 2022.3)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

from perfctl.parsers.ncu.advice import percent
from perfctl.parsers.ncu.agreement import of_summary
from perfctl.parsers.ncu.facts import PUSH_POP, START_END
from perfctl.parsers.ncu.launches import Launch, Table
from perfctl.parsers.ncu.log import Rows, cells, diagnostics, gaps
from perfctl.parsers.text.doubts import others
from perfctl.parsers.text.lines import Log
from perfctl.parsers.text.numbers import (
    AmbiguousNumber,
    DecimalStyle,
    StyleEvidence,
    base_unit,
    read_number,
    to_base,
)
from perfctl.records.report import Diagnostic, Gap, Report, Summary

VALUE = "Metric Value"
_NEVER = "\n"
"""A text that no row begins with."""
NOT_USED = frozenset(
    (
        "Process Name",
        "Host Name",
        "Kernel Time",
        "Device Id",
        "Invocations",
    )
)
"""Known columns that are skipped."""
_NEEDED = ("ID", "Process ID", "Kernel Name")
_IDENTITY = (
    "Kernel Name",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
    "Process ID",
    "Context",
    PUSH_POP,
    START_END,
)
"""In the order of the fields of Launch."""
_VARYING = ("Section Name", "Body Item Label", "Metric Name", "Metric Unit", VALUE)
_OF_RULE = (
    "Rule Name",
    "Rule Type",
    "Rule Description",
    "Estimated Speedup",
    "Estimated Speedup Type",
)
USED = frozenset((*_NEEDED, *_IDENTITY[:-2], *_VARYING, *_OF_RULE))
LONGEST_ID = 18
"""Digits that a launch ID may have."""

FIGURES = ("Minimum", "Maximum", "Average")
_OF_SUMMARY = ("Kernel Name", "Invocations", "Metric Name", "Metric Unit", *FIGURES)


class Columns(dict[str, int]):
    """Positions of the columns of one header by their names; -1 for a missing column."""

    def __init__(self, header: list[str]) -> None:
        super().__init__({name: index for index, name in reversed(list(enumerate(header)))})
        self.header = header
        for kind in (PUSH_POP, START_END):
            self[kind] = next((index for index, name in enumerate(header) if kind in name), -1)
        self.last = max(self[name] for name in ("ID", "Process ID", *_VARYING))
        """The last column that a metric's row must have; the value, unless somebody put the columns
        in another order."""

    def __missing__(self, name: str) -> int:
        return -1

    def missing(self) -> list[str]:
        """Required columns that the header lacks."""
        of_metric = _VARYING[2:] if "Metric Name" in self or VALUE in self else ()
        return [name for name in (*_NEEDED, *of_metric) if name not in self]

    def unknown(self) -> list[str]:
        """Unknown names; NVTX columns and the metrics of the wide page are not among them."""
        metrics = () if VALUE in self else {self.header[at] for at in metric_columns(self.header)}
        return [
            name for name in others(self.header, USED, NOT_USED, metrics) if not _is_range(name)
        ]

    def first_of_metric(self) -> int:
        """The first column that is not the same for all rows of a launch, when all such columns
        come last; else 0."""
        first = min(self[name] for name in _VARYING if name in self)
        return first if max(self[name] for name in (*_NEEDED, *_IDENTITY)) < first else 0

    def launch(self, row: list[str]) -> Launch:
        """The identity cells of a row."""
        columns = [self[name] for name in _IDENTITY]
        return Launch(
            int(row[self["ID"]]), *[row[at] if 0 <= at < len(row) else "" for at in columns]
        )


def _is_range(name: str) -> bool:
    return PUSH_POP in name or START_END in name


def read_long(reader: Rows, header: list[str], table: Table, log: Log) -> bool:
    """Read one long table to its end; False where the header of a further table follows. Files of a
    million rows are common: the rows of a launch begin with the same identity cells, so that what
    follows these comes many rows at a time (``Lines.run``), and where all of it has been seen
    before, or ends with a plain value, no more is looked at."""
    columns = Columns(header)
    at = columns.first_of_metric()
    launches, metrics = _Launches(columns, table), _Metrics(columns, at, table, log)
    launch, start = -1, _NEVER
    for line in reader.source:
        row = reader.feed(line)
        if row.startswith(start):
            metrics.add(launch, row[len(start) :])
        elif row:
            found = cells(row)
            if found is not None and is_header(found):
                return False
            if found is None or len(found) <= columns.last or not _is_id(found[columns["ID"]]):
                log.cut_rows += 1
                continue
            table.cells.end(launch)
            launch = launches.number(found, is_rule=not found[columns["Metric Name"]])
            start = '"' + '","'.join(found[:at]) + '",' if at else _NEVER
            metrics.add_cells(launch, found[at:])
        while not reader.pending and (rests := reader.source.run(start)):
            if metrics.add_known(launch, rests):
                continue
            for rest in rests:
                if row := reader.feed(f"{start}{rest}\n"):
                    metrics.add(launch, row[len(start) :])
    table.cells.end(launch)
    reader.end()
    return True


class _Metrics:
    def __init__(self, columns: Columns, at: int, table: Table, log: Log) -> None:
        self._name, self._unit, self._value = (columns[name] - at for name in _VARYING[2:])
        self._section, self._label, *self._rule = (
            columns[name] - at if name in columns else -1 for name in (*_VARYING[:2], *_OF_RULE)
        )
        self._last = columns.last - at
        self._table, self._log = table, log
        self._known: dict[str, int] = {}
        """Text of a row from the section up to the value -> number of the metric."""

    def add_known(self, launch: int, rests: list[str]) -> bool:
        """Take in the texts of some rows from the section on; False where not all of them are of a
        kind seen before."""
        known, numbers = self._known, self._table.cells.endings
        parts = [rest.rpartition('","') for rest in rests]
        try:
            keys = [known[head] for head, _, _ in parts]
            texts = [numbers[ending] for _, _, ending in parts]
        except KeyError:
            return False
        self._table.add(launch, keys, texts)
        return True

    def add(self, launch: int, rest: str) -> None:
        """Read a row's text from the section on, and remember its texts for later rows."""
        text = rest.rstrip("\r\n,")
        tail = cells(text)
        key = self.add_cells(launch, tail or [])
        if tail and key >= 0 and len(tail) == self._value + 1 and text.count('"') == 2 * len(tail):
            self._known[rest.rpartition('","')[0]] = key

    def add_cells(self, launch: int, tail: list[str]) -> int:
        """Take in the cells of a row from the section on: number of its metric, -1 of a rule's row
        or one that is cut."""
        if len(tail) <= self._last:
            self._log.cut_rows += 1
            return -1
        name = tail[self._name]
        if not name:
            rule, kind, text, speedup, scope = (
                tail[at] if 0 <= at < len(tail) else "" for at in self._rule
            )
            if rule:
                self._table.rules.add(launch, rule, kind, text, percent(speedup), scope)
            return -1
        section: str | None = tail[self._section] if self._section >= 0 else None
        if self._label >= 0 and tail[self._label]:
            section = f"{section}: {tail[self._label]}"
        key = self._table.key(name, tail[self._unit], section)
        self._table.add(launch, [key], [self._table.cells.ids[tail[self._value]]])
        return key


class _Launches:
    """Numbers the launches of one table in the order in which they first appear."""

    def __init__(self, columns: Columns, table: Table) -> None:
        self._columns, self._table = columns, table
        self._numbers: dict[tuple[str, str], int] = {}
        self._unfilled: set[int] = set()

    def number(self, row: list[str], *, is_rule: bool) -> int:
        """Number of this row's launch; one first seen in a rule row gets its stream from its first
        metric row."""
        now = (row[self._columns["Process ID"]], row[self._columns["ID"]])
        launch = self._numbers.get(now, -1)
        if launch < 0:
            launch = self._numbers[now] = len(self._table.launches)
            identity = self._columns.launch(row)
            if is_rule:
                self._unfilled.add(launch)
                identity = identity._replace(stream="", context="")
            self._table.launches.append(identity)
        elif launch in self._unfilled and not is_rule:
            self._unfilled.discard(launch)
            self._table.launches[launch] = self._columns.launch(row)
        return launch


def _is_id(text: str) -> bool:
    return text.isdecimal() and len(text) <= LONGEST_ID


def is_header(row: list[str]) -> bool:
    """Return whether this row is the header of a further table, as in a file to which several runs
    were appended."""
    return row[:2] == ["ID", "Process ID"] or row[:2] == ["Process ID", "Process Name"]


def metric_columns(header: list[str]) -> list[int]:
    """Return the columns that are metrics: names without spaces, with an underscore or a point."""
    return [
        index
        for index, name in enumerate(header)
        if " " not in name and ("_" in name or "." in name) and not _is_range(name)
    ]


def read_wide(text_rows: Iterable[str], header: list[str], table: Table, log: Log) -> bool:
    """Read one wide table to its end; False where the header of a further table follows. A file
    that another program stripped of its units row is read with unknown units (as ncu prints a
    report of a version it does not know)."""
    columns, metrics = Columns(header), metric_columns(header)
    keys: array[int] | None = None
    for text_row in text_rows:
        row = cells(text_row)
        if row is not None and is_header(row):
            return False
        if row is None or len(row) <= columns["Kernel Name"]:
            log.cut_rows += 1
            continue
        launch_id = row[columns["ID"]]
        if keys is None:
            units = [] if launch_id else row
            log.has_no_units = log.has_no_units or not units
            pairs = ((header[at], units[at] if at < len(units) else "") for at in metrics)
            keys = array("I", [table.key(*pair, None) for pair in pairs])
            if units:
                continue
        if not _is_id(launch_id):
            log.cut_rows += 1
            continue
        log.cut_rows += len(row) < len(header)
        launch = len(table.launches)
        table.launches.append(columns.launch(row))
        texts = list(map(table.cells.ids.__getitem__, [row[at] for at in metrics if at < len(row)]))
        # a row that was cut off gives the cells it has
        table.add(launch, keys[: len(texts)], texts)
        table.cells.end(launch)
    return True


def unknown(header: list[str]) -> list[str]:
    """Unknown columns of a summary page."""
    return others(header, USED, NOT_USED, FIGURES)


def is_summary(header: list[str]) -> bool:
    """Is this the header of a summary page?"""
    return set(_OF_SUMMARY).issubset(header)


def read_summary(
    text_rows: Iterable[str], header: list[str], log: Log
) -> list[dict[str, str]] | None:
    """The rows of the page; None when a further page follows."""
    kept = []
    for text_row in text_rows:
        row = cells(text_row)
        if row is not None and is_header(row):
            return None
        if row is None or len(row) < len(header):
            log.cut_rows += 1
        else:
            kept.append(dict(zip(header, row, strict=False)))
    return kept


def summary_report(
    path: Path,
    form: str,
    rows: list[dict[str, str]],
    log: Log,
    notes: Iterable[Diagnostic],
    printed: str = "CSV",
) -> Report:
    """The figures of rows that name their cells as the CSV does (_OF_SUMMARY; Grid Size and Block
    Size if known)."""
    evidence = StyleEvidence()
    for row in rows:
        for name in FIGURES:
            evidence.add(row[name])
    missing = [
        Gap(
            "kernel",
            "not_available",
            "a per-kernel summary has no launches; export without --print-summary",
        ),
        Gap(
            "counter",
            "not_available",
            "a per-kernel summary has averages instead; export without --print-summary",
        ),
    ]
    style = evidence.decide()
    return Report(
        tool="ncu",
        path=path,
        form=form,
        summaries=tuple(figure for row in rows for figure in _figures(row, style, missing)),
        gaps=(*missing, *gaps(log, printed)),
        diagnostics=(*diagnostics(log), *notes, *of_summary(rows)),
    )


def _figures(row: dict[str, str], style: DecimalStyle, missing: list[Gap]) -> Iterator[Summary]:
    unit, scale = base_unit(row["Metric Unit"])
    shape = (
        f" grid {row['Grid Size']} block {row['Block Size']}"
        if "Grid Size" in row and "Block Size" in row
        else ""
    )
    for figure in FIGURES:
        name = (
            f"{row['Metric Name']}, {figure.lower()} of {row['Invocations']} launches of "
            f"{row['Kernel Name']}{shape}"
        )
        try:
            number = read_number(row[figure], style)
        except AmbiguousNumber:
            number = None
            missing.append(
                Gap(
                    f"summary:{name}",
                    "ambiguous",
                    f'"{row[figure]}" may be a whole number or a fraction',
                )
            )
        if number is None:
            yield Summary(name, None, unit, row[figure])
        else:
            yield Summary(name, to_base(number, scale), unit)
