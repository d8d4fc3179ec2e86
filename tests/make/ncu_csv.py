"""Rows of ncu's CSV, as ncu prints them."""

from __future__ import annotations

from pathlib import Path

from perfctl.parsers.ncu import csv as ncu_csv
from perfctl.records.report import Report

METRIC = ["Metric Name", "Metric Unit", "Metric Value"]
HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block '
    'Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"\n'
)
FFMA = "sm__sass_thread_inst_executed_op_ffma_pred_on.sum"


def line(*cells: object) -> str:
    return ",".join('"' + str(cell).replace('"', '""') + '"' for cell in cells) + "\n"


def row(
    launch: int,
    value: str,
    name: str = "k(int)",
    metric: str = FFMA,
    unit: str = "inst",
    *,
    device: str = "0",
    capability: str = "8.0",
) -> str:
    """One counter of a launch, below HEADER."""
    place = "127.0.0.1", name, "1", "7", "(32, 1, 1)", "(4, 1, 1)", device, capability
    return line(launch, "42", "app", *place, "Metrics", metric, unit, value)


def read(folder: Path, *lines: str) -> Report:
    path = folder / "report.csv"
    path.write_text("".join(lines))
    return ncu_csv.parse(path)
