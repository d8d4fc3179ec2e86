"""The price table: the user's own where there is one, else the one that comes with perfctl."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, date, datetime
from importlib import resources
from pathlib import Path

from perfctl.orchestrator.counts.hardware.machines import meant, nearest
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.files import user_folder, write_text
from perfctl.orchestrator.predict.prices import (
    Price,
    PriceTable,
    PriceTableError,
    read_prices,
)

VARIABLE = "PERFCTL_PRICES"
"""Environment variable with the path of the user's own table."""
LARGEST = 10_000_000
"""Bytes: a larger file is not a price table."""


def list_prices(gpu: str | None = None, file: Path | None = None) -> PriceTable:
    """Return the offers of the table in use, or of ``file``, in US dollars per hour; ``gpu``: only
    those that have, or may have, this GPU.

    Raises UsageError for a GPU that is not in the table of devices, PerfctlError when the user's
    table cannot be read.
    """
    table = load(file)
    if gpu is None:
        return table
    wanted = set(meant(gpu))
    if not wanted:
        close = nearest(gpu)
        near = (
            f"Near it: {', '.join(close)}" if close else "'perfctl predict --list-prices' lists all"
        )
        raise UsageError(f"`gpu`: '{gpu}' is not in the table of devices", near)
    return replace(
        table, prices=tuple(price for price in table.prices if wanted & set(price.boards))
    )


def use_prices(file: Path) -> PriceTable:
    """Use the price table in ``file`` (CSV) from now on, and return it. Raises PerfctlError, with
    file and line, if it is wrong."""
    prices = read_file(file)
    own = own_file()
    try:
        own.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        remedy = "Set XDG_CONFIG_HOME to a folder"
        raise PerfctlError(f"{own.parent}: cannot be created ({error.strerror})", remedy) from error
    write_text(own, file.read_text(encoding="utf-8"))
    return PriceTable(prices, str(own), today())


def reset_prices() -> bool:
    """Go back to perfctl's table, and return whether the user's own was removed.

    Raises UsageError where PERFCTL_PRICES names the table: that file is the user's to remove.
    """
    own = own_file()
    if os.environ.get(VARIABLE):
        raise UsageError(
            f"`reset_prices`: {VARIABLE} names {own} as the table", f"Unset {VARIABLE} instead"
        )
    is_there = own.exists()
    own.unlink(missing_ok=True)
    return is_there


def own_file() -> Path:
    """Where the user's table is kept, present or not: where PERFCTL_PRICES says, else below
    XDG_CONFIG_HOME or ~/.config."""
    if asked := os.environ.get(VARIABLE):
        return Path(asked)
    return user_folder("XDG_CONFIG_HOME", "~/.config") / "prices.csv"


def today() -> date:
    """Return the day by the clock, in UTC: prices more than a year older are marked."""
    return datetime.now(UTC).date()


def load(file: Path | None = None) -> PriceTable:
    """Return the table in use, or that of ``file``. Raises PerfctlError when it cannot be read."""
    day = today()
    if file is not None:
        return PriceTable(read_file(file), str(file), day)
    own = own_file()
    if own.exists():
        remedy = (
            "Replace it with 'perfctl predict --use-prices FILE', or go back with 'perfctl predict "
            "--reset-prices'"
        )
        return PriceTable(read_file(own, remedy), f"your own table, {own}", day)
    if os.environ.get(VARIABLE):
        raise PerfctlError(
            f"{VARIABLE}: there is no {own}",
            "'perfctl predict --use-prices FILE' writes it; or unset it",
        )
    text = resources.files("perfctl.templates").joinpath("prices.csv").read_text(encoding="utf-8")
    return PriceTable(read_prices(text), "perfctl's own table", day)


def read_file(path: Path, remedy: str | None = None) -> tuple[Price, ...]:
    """Prices of one CSV file. Raises PerfctlError with file, line and reason in one line."""
    try:
        if path.stat().st_size > LARGEST:
            raise PerfctlError(
                f"{path}: {path.stat().st_size:,} bytes, too large for a price table", remedy
            )
        return read_prices(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise PerfctlError(f"{path}: cannot be read ({error.strerror})", remedy) from error
    except UnicodeDecodeError as error:
        raise PerfctlError(
            f"{path}: not UTF-8 (byte {error.start:,})", remedy or "Save it as CSV in UTF-8"
        ) from error
    except PriceTableError as error:
        raise PerfctlError(
            f"{path}, {error}", f"{error.remedy}. {remedy}" if remedy else error.remedy
        ) from error
