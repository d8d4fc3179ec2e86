"""Rows and numbers of ncu's CSV, as ncu prints them."""

from __future__ import annotations

from pathlib import Path

from perfctl.parsers.ncu import csv as ncu_csv
from perfctl.records.report import Report

METRIC = ["Metric Name", "Metric Unit", "Metric Value"]
NVTX = [
    "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
    "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
]
HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block '
    'Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"\n'
)
FFMA = "sm__sass_thread_inst_executed_op_ffma_pred_on.sum"
UNITS = {
    "byte": ("byte", 1),
    "Mbyte": ("byte", 10**6),
    "inst": ("inst", 1),
    "usecond": ("ns", 1000),
    "Ghz": ("Hz", 10**9),
    "": (None, 1),
}


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


def number(hundredths: int, locale: str) -> str:
    """Whole numbers without a fraction, others with two digits."""
    whole, rest = divmod(hundredths, 100)
    text = f"{whole:,}" + (f".{rest:02d}" if rest else "")
    if locale == "C":
        return text.replace(",", "")
    return text if locale == "en_US" else text.translate(str.maketrans(",.", ".,"))


def exact(hundredths: int, unit: str) -> tuple[float, str | None]:
    """The value of such a number in base units, and its base unit."""
    base, scale = UNITS[unit]
    whole, rest = divmod(hundredths * scale, 100)
    return (hundredths * scale / 100 if rest else whole), base
