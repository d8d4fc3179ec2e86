"""Parser of nvidia-smi's output, in every form that ends up in files.

``--query-gpu`` CSV (``nvidia_smi_query``: with and without header and units, header repeated by
loops, several GPUs in turn), the log of ``-q`` (``nvidia_smi_log``), the table that it prints
without options, and the rolling lists ``dmon`` and ``pmon``. Timestamps are the local time of the
machine without a zone: they are taken as written, as if they were UTC, and a diagnostic says so.

The table has two lines (a third with MIG, since 450) a GPU inside three cells; the first line of
each pair has the index, the name (cut off with "..." by older drivers) and the bus id.
``Thu Jun 22 18:56:56 2023`` above a table is its time. Seen: 570.133; the layouts of 390 to 560,
which differ in widths, are read by what stands in the cells.

Columns of the lists depend on -s and the driver and are found by the line "# gpu ...", which is
repeated every few rows, with units below it. -o D, T puts the date and the time first. "-" is no
value; MB is 2**20 bytes. Layouts from 390 to 580 were seen in print, not as real files. pmon lists
processes: their figures become summaries by process name, and the sm column, added up over the
processes of a GPU, the sample's utilization; above 100 % that sum means nothing and stays empty.
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfctl.parsers.common.doubts import (
    list_unknown_names,
    make_several_runs_error,
    make_unknown_names_warning,
    split_words,
)
from perfctl.parsers.common.lines import HEAD_BYTES, decode_head_lines
from perfctl.parsers.common.numbers import (
    Timestamp,
    is_not_available_text,
    parse_quantity_in_base_units,
    parse_timestamp,
)
from perfctl.parsers.common.tables import FieldColumn
from perfctl.parsers.monitors import nvidia_smi_log, nvidia_smi_query
from perfctl.parsers.monitors import readings as monitor
from perfctl.parsers.monitors.readings import (
    Cells,
    DeviceReadings,
    MonitorTextFile,
    RoundCounter,
    parse_ordinal,
)
from perfctl.records.errors import ReportError
from perfctl.records.report import Diagnostic, Gap, Report

TOOL = "nvidia-smi"
_TITLE = re.compile(
    r"\|\s*NVIDIA-SMI (?P<smi>[\w.]+)\s+(?:KMD|Driver) Version: (?P<driver>[\w.]+)(?:\s+CUDA "
    r"(?:UMD )?Version: (?P<cuda>[\w./]+))?"
)
_BUS = re.compile(r"(?:[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d|N/A)\s+\S+\Z")
_NAME = re.compile(r"(?P<index>\d{1,4})\s+(?P<name>\S.*?)\s+\S+\Z")
_VALUE = r"(?:[\d.]+|N/A|ERR!|\[?Unknown Error\]?)"
_STATE = re.compile(
    rf"(?P<fan>{_VALUE}%?)\s+(?P<temperature>{_VALUE}C?)\s+(?P<perf>P\d+|N/A|ERR!)\s+"
    rf"(?P<draw>{_VALUE}W?)\s*/\s*(?P<limit>{_VALUE}W?)\Z"
)
_MEMORY = re.compile(rf"(?P<used>{_VALUE}(?:[KMG]iB)?)\s*/\s*(?P<total>{_VALUE}(?:[KMG]iB)?)\Z")
_WORK = re.compile(rf"(?P<gpu>{_VALUE}%?)\s+(?P<compute>\S.*)\Z")
_PROCESS = re.compile(
    r"(?P<index>\d{1,4})\s+(?:(?:N/A|\d+)\s+(?:N/A|\d+)\s+)?(?P<pid>\d{1,10})\s+(?P<type>C\+G|M\+C|"
    r"[CGM])\s+(?P<name>\S.*?)\s+(?P<memory>\d{1,9}MiB|N/A)\Z"
)
_COLUMNS = {
    "gpu": FieldColumn("utilization.gpu", "%", monitor.UTILIZATION),
    "used": FieldColumn("memory.used", "", monitor.MEMORY_USED),
    "total": FieldColumn("memory.total", "", monitor.MEMORY_TOTAL),
    "draw": FieldColumn("power.draw", "W", monitor.POWER),
    "temperature": FieldColumn("temperature.gpu", "C", monitor.TEMPERATURE),
    "fan": FieldColumn("fan.speed", "%"),
    "perf": FieldColumn("pstate"),
    "limit": FieldColumn("power.limit", "W"),
    "compute": FieldColumn("compute_mode"),
}
_HEADER_WORDS = split_words(
    "GPU Name Persistence-M TCC/WDDM Driver-Model Bus-Id Disp.A Volatile Uncorr. ECC Fan Temp Perf "
    "Pwr:Usage/Cap Memory-Usage GPU-Util Compute M. MIG Processes: PID Type Process name Memory GI "
    "CI ID Usage No running processes found Not Supported devices: devices Dev Shared Vol SM Unc "
    "CE ENC DEC OFA JPG BAR1-Usage Memory N/A Enabled Enabled* Disabled Disabled* ERR!"
)
_ROW = re.compile(r"\d+\s")
"""Begins a row of a process that has no figure."""
_MOST_STRANGE = 100
_ENVIRONMENT = {"driver_version": "driver", "cuda_driver": "cuda"}
_TABLE_LINE_LIMIT = 300
"""Longest line that can be part of the table (its lines are 79 or 91 wide): a bound for the
patterns above."""
_QUANTITY = {
    "pwr": monitor.POWER,
    "gtemp": monitor.TEMPERATURE,
    "temp": monitor.TEMPERATURE,
    "sm": monitor.UTILIZATION,
    "pclk": monitor.SM_CLOCK,
    "fb": monitor.MEMORY_USED,
}
_UNITS = {
    "pwr": "W",
    **dict.fromkeys(("gtemp", "temp", "mtemp"), "C"),
    **dict.fromkeys(("sm", "mem", "enc", "dec", "jpg", "ofa", "pviol"), "%"),
    **dict.fromkeys(("pclk", "mclk"), "MHz"),
    **dict.fromkeys(("fb", "bar1", "ccpm"), "MiB"),
    **dict.fromkeys(("rxpci", "txpci"), "MB/s"),
}
"""Units by the tool's own manual, for files that do not have the line of units; they are the same
in all versions."""
_PROCESS_FIGURES = ("sm", "mem", "enc", "dec", "jpg", "ofa", "fb", "ccpm")
_CODES = split_words("gpu date time idx pid type command tviol sbecc dbecc pci")
"""Columns without a unit."""
_TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d{2}):(\d{2})\Z")
_DAY_NS = 86_400 * 10**9
_LINE_LIMIT = 4096
_ROUNDS = 8
"""dmon prints its header again after more rounds than this: a header below fewer, and below another
program's output, begins another log."""


def has_smi_table_title(lines: list[str]) -> bool:
    """Return whether the title of the table is among these lines."""
    return any(_TITLE.match(line) for line in lines if len(line) < _TABLE_LINE_LIMIT)


@dataclass(slots=True)
class SmiTables:
    """What the tables of one file say."""

    readings: DeviceReadings = field(default_factory=DeviceReadings)
    names: dict[int, str] = field(default_factory=dict)
    """Of the GPUs, by index."""
    versions: dict[str, str] = field(default_factory=dict)
    number: int = -1
    """Of the last table, from 0."""
    begun: int = 0
    """Count of first lines of GPUs; some may have no second line that can be read."""
    unknown: dict[str, None] = field(default_factory=dict)
    """Words of headings and of third lines of GPUs."""


def parse_smi_table(path: Path) -> Report:
    """Read the tables. Raises ReportError when there is no GPU in any of them."""
    text = MonitorTextFile(path, TOOL)
    tables = read_smi_tables(text)
    readings, versions = tables.readings, tables.versions
    if not readings.samples:
        reason = "nvidia-smi's table has no complete row of a GPU"
        raise ReportError(path, TOOL, reason, "Copy the file again")
    gaps = [
        Gap("device.name", "unreadable", f"nvidia-smi truncated the name: '{name}'", f"GPU {index}")
        for index, name in tables.names.items()
        if name.endswith("...")
    ]
    if unread := tables.begun - len(readings.samples):
        reason = f"{unread} GPUs have unreadable lines"
        gaps.append(Gap("sample", "unreadable", reason))
    rounded = "nvidia-smi's table rounds to whole watts, percent and degrees"
    driver = versions.get("driver", "")
    facts: dict[int | None, dict[str, str]] = {
        index: {"name": name, "driver_version": driver} for index, name in tables.names.items()
    }
    report = text.make_report(
        "nvidia-smi table",
        readings,
        gaps,
        leading_diagnostics=[Diagnostic("info", "perfctl", rounded)],
        trailing_diagnostics=make_unknown_names_warning({"parts": tables.unknown}),
        tool_version=versions.get("smi"),
        devices=tuple(readings.make_devices(facts)),
        environment={key: versions[name] for key, name in _ENVIRONMENT.items() if name in versions},
    )
    return report if tables.number > 0 else replace(report, duration_ns=None)


def read_smi_tables(text: MonitorTextFile) -> SmiTables:
    """Read the lines of a table: three cells for each of the two lines of a GPU, one for a
    process."""
    tables = SmiTables()
    stamp: Timestamp | None = None
    pending: tuple[int, str, str] | None = None  # index, name, ECC cell
    for line in text:
        line = line.strip() if len(line) < _TABLE_LINE_LIMIT else ""
        is_row = line[:1] == "|" == line[-1:]
        cells = [cell.strip() for cell in line.split("|")[1:-1]] if is_row else []
        if title := _TITLE.match(line):
            pending = None
            tables.number += 1
            versions = {key: value for key, value in title.groupdict().items() if value}
            tables.versions = versions | tables.versions
        elif tables.number < 0 or not cells:
            if moment := parse_timestamp(line):
                stamp, pending = moment, None
            elif line and line[0] not in "+|":
                text.record_stray_line(line)
        elif len(cells) == 3 and (name := _NAME.match(cells[0])) and _BUS.match(cells[1]):
            pending = int(name["index"]), name["name"], cells[2]
            tables.begun += 1
        elif pending and (values := _parse_gpu_state_line(cells)):
            index, printed, ecc = pending
            pending = None
            gpu = [(column, values.get(key, "N/A")) for key, column in _COLUMNS.items()]
            gpu.append((FieldColumn("ecc.errors.uncorrected.volatile"), ecc))
            tables.readings.add_reading(stamp, tables.number, index, gpu)
            tables.names.setdefault(index, printed)
        elif len(cells) == 1 and (process := _PROCESS.match(cells[0])):
            column = FieldColumn(f"process {process['name']}: memory")
            memory = [(column, process["memory"])]
            tables.readings.add_reading(stamp, tables.number, int(process["index"]), memory)
        elif not pending and len(tables.unknown) < _MOST_STRANGE:
            parts = " ".join(cells).replace("=+", " ").replace("=", " ").split()
            if len(cells) > 1 or not _ROW.match(cells[0]):
                tables.unknown |= dict.fromkeys(list_unknown_names(parts, _HEADER_WORDS))
    return tables


def _parse_gpu_state_line(cells: list[str]) -> dict[str, str]:
    """Return the values in the second line of a GPU; {} for any other line."""
    if len(cells) != 3 or not (state := _STATE.match(cells[0])):
        return {}
    if not (work := _WORK.match(cells[2])):
        return {}
    memory = _MEMORY.match(cells[1])
    return state.groupdict() | work.groupdict() | (memory.groupdict() if memory else {})


def has_dmon_or_pmon_header(lines: list[str]) -> bool:
    """Return whether there is a line "# gpu ..." with columns of dmon or pmon."""
    return any(map(_parse_dmon_or_pmon_header, lines))


def _parse_dmon_or_pmon_header(line: str) -> list[str]:
    """Return the names of the columns in lower case, "gpu" among them; [] for any other line."""
    text = line.lstrip()
    if len(line) > _LINE_LIMIT or not text.startswith("#"):
        return []
    names = [name.lower() for name in _split_cells(text.lstrip(" #"), "," in text)]
    is_known = any(name in _UNITS or name in ("pid", "type", "command") for name in names)
    begins = names[:1] in (["date"], ["time"], ["gpu"])
    return names if begins and "gpu" in names and is_known else []


def _split_cells(line: str, by_comma: bool, max_splits: int = -1) -> list[str]:
    """Return the cells of a line. ``max_splits``: at blanks; -1 splits at all of them."""
    return (
        [cell.strip() for cell in line.split(",")]
        if by_comma
        else line.strip().split(None, max_splits)
    )


def parse_dmon_or_pmon(path: Path) -> Report:
    """Read the output of dmon or pmon. Raises ReportError when no row follows a header."""
    text = MonitorTextFile(path, TOOL)
    rows = _read_dmon_or_pmon_rows(text)
    if not rows:
        reason = "the header of dmon or pmon has no complete row below it"
        raise ReportError(path, TOOL, reason, "Run nvidia-smi longer")
    readings, rounds, last = DeviceReadings(text.interval_ns), RoundCounter(), 0
    moments: dict[tuple[int, int], tuple[Timestamp | None, list[dict[str, str]]]] = {}
    for row, stamp in zip(rows, _read_row_timestamps(rows, readings), strict=True):
        device = int(row["gpu"])
        # a GPU with a lower number begins the next round: pmon lists processes that change
        number = rounds.assign_round_number(
            (device, row.get("pid")), starts_new_round=device < last
        )
        last = device
        moments.setdefault((number, device), (stamp, []))[1].append(row)
    for (number, device), (stamp, members) in moments.items():
        is_pmon = "pid" in members[0]
        cells = _make_pmon_cells(members) if is_pmon else _make_dmon_cells(members[0])
        readings.add_reading(stamp, number, device, cells)
    # columns in no list: dmon's become figures without a unit, pmon's are left out
    names = dict.fromkeys(name for row in rows for name in row)
    summed = (
        "gpu_utilisation is the sum of pmon's sm over the processes of a GPU; it is empty for a "
        "GPU without such a process"
    )
    is_pmon = "pid" in rows[-1]
    return text.make_report(
        "nvidia-smi pmon" if is_pmon else "nvidia-smi dmon",
        readings,
        missing_devices_reason="dmon and pmon do not print device names",
        leading_diagnostics=[Diagnostic("info", "perfctl", summed)] if is_pmon else (),
        trailing_diagnostics=make_unknown_names_warning(
            {"columns": list_unknown_names(names, _UNITS, _CODES)}, "kept without a unit, if at all"
        ),
    )


def _read_dmon_or_pmon_rows(text: MonitorTextFile) -> list[dict[str, str]]:
    """Return every row below a header that has all its cells, by the names of the columns; a
    command may have blanks. Raises ReportError for several logs."""
    rows: list[dict[str, str]] = []
    starts: list[int] = []
    # rows before the last header; the line at which another program's output begins below the last
    # row, or 0
    first_row, other_line = 0, 0
    names: list[str] = []
    by_comma = False
    for line in text:
        if header := _parse_dmon_or_pmon_header(line):
            gpus = Tally(row["gpu"] for row in rows[first_row:])
            if other_line and gpus and max(gpus.values()) < _ROUNDS:
                starts.append(other_line)
            names, by_comma = header, "," in line
            first_row, other_line = len(rows), 0
            continue
        if line.lstrip().startswith("#"):
            continue
        most = len(names) - 1 if names[-1:] == ["command"] else -1
        cells = _split_cells(line, by_comma, most) if len(line) <= _LINE_LIMIT else []
        row = dict(zip(names, cells, strict=True)) if len(cells) == len(names) else {}
        # the file ends within this number
        if row and not text.ends_whole and cells[-1][-1:].isdigit():
            row[names[-1]] = "-"
        if row and parse_ordinal(row["gpu"]) is not None:
            rows.append(row)
            other_line = 0
        elif line.strip():
            other_line = other_line or (text.line if rows else 0)
            text.record_stray_line(line)
    if starts:
        raise make_several_runs_error(text.path, TOOL, starts)
    return rows


def _read_row_timestamps(
    rows: list[dict[str, str]], readings: DeviceReadings
) -> Iterator[Timestamp | None]:
    """Yield the time of each row; without a date they count from the first midnight."""
    days = last = 0
    for row in rows:
        date, time = row.get("date"), row.get("time", "")
        if date:
            yield parse_timestamp(f"{date} {time or '00:00:00'}")
        elif match := _TIME_OF_DAY.match(time):
            readings.since_midnight = True
            ns = (int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3])) * 10**9
            days += ns < last - _DAY_NS // 2
            last = ns
            yield Timestamp(days * _DAY_NS + ns, zoned=False)
        else:
            yield None


def _make_dmon_cells(row: dict[str, str]) -> Cells:
    """Return a row of dmon. Codes 0 and 1 and counts of errors have no unit."""
    return [
        (FieldColumn(name, _UNITS.get(name, ""), _QUANTITY.get(name)), cell)
        for name, cell in row.items()
        if name not in ("gpu", "date", "time")
    ]


def _make_pmon_cells(rows: list[dict[str, str]]) -> Cells:
    """Return the processes of one GPU at one moment: figures by process name, and the sum of
    their sm."""
    running = [row for row in rows if not is_not_available_text(row["pid"])]
    cells = [
        (FieldColumn(f"process {row.get('command', '')}: {name}", _UNITS[name]), row[name])
        for row in running
        for name in _PROCESS_FIGURES
        if name in row
    ]
    if "sm" in rows[0]:
        shares = [parse_quantity_in_base_units(row.get("sm", "-"), "%")[0] for row in running]
        stated = [share for share in shares if share is not None]
        total = f"{sum(stated):g}" if stated else "-"
        cells.insert(0, (FieldColumn("sm", "%", monitor.UTILIZATION), total))
    return cells


_FORMS: tuple[tuple[Callable[[list[str]], bool], Callable[[Path], Report]], ...] = (
    (has_dmon_or_pmon_header, parse_dmon_or_pmon),
    (has_smi_table_title, parse_smi_table),
    (nvidia_smi_log.has_nvsmi_log_title, nvidia_smi_log.parse),
    (nvidia_smi_query.has_query_header_or_rows, nvidia_smi_query.parse),
)


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the first lines have one of nvidia-smi's headers, or rows of its CSV."""
    return _find_output_form_parser(head) is not None


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it has no complete reading."""
    with path.open("rb") as file:
        parse_form = _find_output_form_parser(file.read(HEAD_BYTES))
    if parse_form is None:
        reason = "it contains no output of nvidia-smi"
        raise ReportError(path, TOOL, reason, "Pass the file that nvidia-smi wrote")
    return parse_form(path)


def _find_output_form_parser(head: bytes) -> Callable[[Path], Report] | None:
    """Return what reads the form of output whose header or rows are among the first lines."""
    lines = decode_head_lines(head)
    return next((parse for recognise, parse in _FORMS if recognise(lines)), None)
