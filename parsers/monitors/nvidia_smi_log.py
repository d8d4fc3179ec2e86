"""``nvidia-smi -q``: names and values, indented below the sections of each GPU; a log with
``-l SECONDS`` repeats the whole. What has no field in a sample is left out, but for the states that
explain one: performance state, power limit, fan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from perfctl.parsers.common.numbers import Timestamp, parse_timestamp
from perfctl.parsers.common.tables import FieldColumn
from perfctl.parsers.monitors import readings as monitor
from perfctl.parsers.monitors.readings import DeviceReadings, MonitorTextFile, RoundCounter
from perfctl.records.errors import ReportError
from perfctl.records.report import Report

TOOL = "nvidia-smi"
_TITLE = re.compile(r"=+NVSMI LOG=+")
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)")
_LINE = re.compile(r"(?P<blanks> *)(?P<name>\S.*?)(?: +: (?P<value>.*))?")
_LINE_LIMIT = 400
_COLUMNS = {
    "FB Memory Usage/Used": FieldColumn("memory.used", "", monitor.MEMORY_USED),
    "FB Memory Usage/Total": FieldColumn("memory.total", "", monitor.MEMORY_TOTAL),
    **dict.fromkeys(
        ("Utilization/Gpu", "Utilization/GPU"),
        FieldColumn("utilization.gpu", "", monitor.UTILIZATION),
    ),
    "Temperature/GPU Current Temp": FieldColumn("temperature.gpu", "", monitor.TEMPERATURE),
    **dict.fromkeys(
        (
            "Power Readings/Power Draw",
            "GPU Power Readings/Power Draw",
            "GPU Power Readings/Average Power Draw",
        ),
        FieldColumn("power.draw", "", monitor.POWER),
    ),
    "Clocks/SM": FieldColumn("clocks.sm", "", monitor.SM_CLOCK),
    "Utilization/Memory": FieldColumn("utilization.memory"),
    "Fan Speed": FieldColumn("fan.speed"),
    "Performance State": FieldColumn("pstate"),
}
"""Section and name, as drivers since 390 print them."""


def has_nvsmi_log_title(lines: list[str]) -> bool:
    """Return whether the log's title is among these lines."""
    return any(_TITLE.fullmatch(line.strip()) for line in lines if len(line) < _LINE_LIMIT)


def parse(path: Path) -> Report:
    """Read the log. Raises ReportError when no GPU in it has a figure."""
    text = MonitorTextFile(path, TOOL)
    readings, rounds = DeviceReadings(), RoundCounter()
    facts: dict[str, str] = {}
    gpus: dict[str, int] = {}
    names: dict[int | None, dict[str, str]] = {}
    stamp: Timestamp | None = None
    for bus, values in _read_gpu_blocks(text):
        if bus is None:
            facts |= values
            stamp = parse_timestamp(values["Timestamp"]) if "Timestamp" in values else stamp
            continue
        index = gpus.setdefault(bus, len(gpus))
        driver = facts.get("Driver Version", "")
        names[index] = {"name": values.get("Product Name", ""), "driver_version": driver}
        cells = {
            _COLUMNS[name].name: (_COLUMNS[name], values[name])
            for name in _COLUMNS
            if name in values
        }
        readings.add_reading(stamp, rounds.assign_round_number(index), index, list(cells.values()))
    if not readings.samples:
        raise ReportError(
            path, TOOL, "the log has no value of a GPU", "Create the log with nvidia-smi -q"
        )
    environment = {
        name: facts[line]
        for name, line in (("driver", "Driver Version"), ("cuda", "CUDA Version"))
        if facts.get(line)
    }
    return text.make_report(
        "nvidia-smi -q",
        readings,
        devices=tuple(readings.make_devices(names)),
        environment=environment,
    )


def _read_gpu_blocks(text: MonitorTextFile) -> Iterator[tuple[str | None, dict[str, str]]]:
    """Yield (bus id, values by section and name) of each GPU; None and the values above the GPUs.
    A value stands below its innermost section."""
    bus: str | None = None
    values: dict[str, str] = {}
    sections: list[tuple[int, str]] = []
    for line in text:
        match = _LINE.fullmatch(line.rstrip()) if len(line) < _LINE_LIMIT else None
        if match is None:
            continue
        gpu = _GPU.fullmatch(line.strip())
        if gpu or _TITLE.fullmatch(line.strip()):
            yield bus, values
            bus, values, sections = gpu[1] if gpu else None, {}, []
            continue
        depth = len(match["blanks"])
        sections = [section for section in sections if section[0] < depth]
        if match["value"] is None:
            sections.append((depth, match["name"]))
        else:
            name = "/".join([*(section for _, section in sections[-1:]), match["name"]])
            values.setdefault(name, match["value"].strip())
    yield bus, values
