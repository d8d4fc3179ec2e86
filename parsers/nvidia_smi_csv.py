"""``nvidia-smi --query-gpu=... --format=csv[,noheader][,nounits]``.

nvidia-smi quotes nothing and parts cells by ", ". Without units the header still has them ("utilization.gpu [%]");
rows without a header are refused but for one form (:mod:`nvidia_smi_headless`). A header again, or a line that
``date`` printed, begins another round.
"""

from __future__ import annotations

from pathlib import Path

from perfctl.parsers.errors import ReportError
from perfctl.parsers.monitor_text import Clock, MonitorText
from perfctl.parsers.nvidia_smi_devices import Placer, devices_of, environment_of
from perfctl.parsers.nvidia_smi_header import UNITS, Layout, read_header
from perfctl.parsers.nvidia_smi_headless import is_row, layout_of
from perfctl.parsers.nvidia_smi_rows import LINE_LIMIT, Row, Survey, rows, survey
from perfctl.parsers.readings import Readings, read_cell
from perfctl.parsers.records import Diagnostic, Gap, Report
from perfctl.parsers.timestamps import is_stamp, read_stamp
from perfctl.parsers.unknown import not_understood

TOOL = "nvidia-smi"


def recognise(found: list[str]) -> bool:
    """Return whether these lines have a header, or begin with rows of the CSV."""
    if any(read_header(line) for line in found if len(line) < LINE_LIMIT):
        return True
    first = [line for line in found if line.strip() and not is_stamp(line)][:3]
    return bool(first) and all(is_row(line) for line in first)


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it has no complete row, or no header for its rows."""
    known = survey(MonitorText(path, TOOL))
    if not known.count and known.first is None:
        raise ReportError(path, TOOL, "the header has no complete row below it", "Let nvidia-smi run longer")
    warnings: list[Diagnostic] = []
    layout = known.first
    if layout is None:
        layout, warning = layout_of(known.headless, path)
        warnings.append(warning)
    known.finish(layout)
    text = MonitorText(path, TOOL)
    rounds = _Rounds(known)
    for row in rows(text):
        row_layout = row.layout or layout
        if len(row.cells) != len(row_layout.columns):  # above the first header, and not of its kind
            text.stray(", ".join(row.cells))
        else:
            rounds.add(row, row_layout, text.interval_ns)
    if not rounds.devices:
        raise ReportError(path, TOOL, "no complete row fits the header", "Let nvidia-smi run longer")
    return _report(rounds, layout, text, warnings)


class _Rounds:
    """Turns the rows of a file into readings of devices over time."""

    def __init__(self, known: Survey) -> None:
        self.readings = Readings()
        self.clock = Clock()
        self.placer = Placer(known)
        self.devices: dict[int | None, dict[str, str]] = {}
        """Facts about each device other than readings: name, driver version."""
        self._halves: list[Gap] = []
        self._day_first = known.day_first()

    def add(self, row: Row, layout: Layout, interval_ns: int | None) -> None:
        last = len(layout.columns) - 1
        if row.is_cut and layout.bus == last and self.placer.is_half(row.cells[last]):
            reason = "the file ends inside this cell, which names the device; its row was left out"
            self._halves.append(Gap(f"sample:{layout.columns[last].name}", "unreadable", reason))
            return
        if row.is_cut and (half := _half_cell(row, layout)):
            self._halves.append(half)
            if layout.timestamp == last:
                return
        device, number = self.placer.place(row, layout)
        self.clock.interval_ns = interval_ns
        stamp = row.date if layout.timestamp is None else row.cells[layout.timestamp]
        at_ns = self.clock.at(read_stamp(stamp or "", day_first=bool(self._day_first)), number)
        facts = self.devices.setdefault(device, {})
        for name, place in layout.identity:
            facts.setdefault(name, row.cells[place])
        self.readings.add(at_ns, device, [(column, row.cells[place]) for column, place in layout.measured])

    def gaps(self) -> tuple[Gap, ...]:
        """Gaps for cells that could not be read reliably."""
        reason = "dates such as '03-11-2026' were read with the month first; nothing in the file says which comes first"
        dates = [Gap("sample.at_ns", "ambiguous", reason)] if self._day_first is None else []
        return (*self._halves, *dates, *self.clock.gaps(), *self.placer.gaps(), *self.readings.gaps())


def _report(rounds: _Rounds, first: Layout, text: MonitorText, warnings: list[Diagnostic]) -> Report:
    readings, clock, placer = rounds.readings, rounds.clock, rounds.placer
    return Report(
        tool=TOOL,
        path=text.path,
        form="nvidia-smi CSV" if not warnings else "nvidia-smi CSV, no header",
        devices=devices_of(rounds.devices, readings.samples),
        environment=environment_of(rounds.devices),
        samples=readings.samples,
        summaries=tuple(readings.summaries()),
        gaps=rounds.gaps(),
        diagnostics=(
            *warnings,
            *clock.diagnostics(),
            *placer.diagnostics(),
            *readings.diagnostics(),
            *text.diagnostics(),
            *unknown_units(first),
        ),
        started_at=clock.started_at,
        duration_ns=clock.duration_ns,
    )


def unknown_units(layout: Layout) -> tuple[Diagnostic, ...]:
    """Diagnostics for columns with an unknown unit, which keep that unit. Column names may be any."""
    strange = [f"{column.name} [{column.unit}]" for column, _ in layout.measured if column.unit not in UNITS]
    return not_understood({"units of": strange}, "kept as printed")


def _half_cell(row: Row, layout: Layout) -> Gap | None:
    """Clear the last number of a cut line, which may be incomplete unless its unit follows; return the gap."""
    name, cell = layout.columns[-1].name, row.cells[-1]
    if not cell[-1:].isdigit() or (name != "timestamp" and read_cell(cell, "")[0] is None):
        return None
    row.cells[-1] = ""
    return Gap(f"sample:{name}", "unreadable", "the file ends inside its last number, which was left out")
