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
UNITS = {
    "byte": ("byte", 1),
    "Mbyte": ("byte", 10**6),
    "inst": ("inst", 1),
    "usecond": ("ns", 1000),
    "Ghz": ("Hz", 10**9),
    "": (None, 1),
}


def line(*cells: object) -> str:
    return ",".join(f'"{cell}"' for cell in cells) + "\n"


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
