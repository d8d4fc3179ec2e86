"""The price table that is used: the user's own where there is one, else the one that comes with perfctl."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

from perfctl.orchestrator.analyse.prices import Price, PriceTable, PriceTableError, read_prices
from perfctl.orchestrator.errors import PerfctlError

LARGEST = 10_000_000
"""Bytes: a file beyond this is no price table."""


def own_file() -> Path:
    """Where the user's table is, whether or not it is there: below XDG_CONFIG_HOME, else ~/.config."""
    asked = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(asked) if asked and Path(asked).is_absolute() else Path("~/.config").expanduser()
    return folder / "perfctl" / "prices.csv"


def load() -> PriceTable:
    """Raises PerfctlError when the user's table cannot be read."""
    mine = own_file()
    if mine.exists():
        return PriceTable(read_file(mine, "Bring a right one with 'perfctl prices update FILE', or 'perfctl prices reset'"),
                          f"your own table, {mine}")  # fmt: skip
    text = resources.files("perfctl.templates").joinpath("prices.csv").read_text(encoding="utf-8")
    return PriceTable(read_prices(text), "the table that comes with perfctl")


def read_file(path: Path, remedy: str | None = None) -> tuple[Price, ...]:
    """Prices of one CSV file. Raises PerfctlError with file, line and reason in one line."""
    try:
        if path.stat().st_size > LARGEST:
            raise PerfctlError(f"{path}: {path.stat().st_size:,} bytes, which is no price table", remedy)
        return read_prices(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise PerfctlError(f"{path}: cannot be read ({error.strerror})", remedy) from error
    except UnicodeDecodeError as error:
        raise PerfctlError(f"{path}: not UTF-8 (byte {error.start:,})", remedy or "Save it as CSV in UTF-8") from error
    except PriceTableError as error:
        raise PerfctlError(f"{path}, {error}", f"{error.remedy}. {remedy}" if remedy else error.remedy) from error
