"""Rental prices of GPUs, each with its date and source, from a CSV table: the user's own where
there is one, else the one that comes with perfctl."""

from __future__ import annotations

import csv
import io
import os
import re
from calendar import monthrange
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from datetime import date as Date
from importlib import resources
from math import inf
from pathlib import Path
from typing import ClassVar

from perfctl.orchestrator.counts.hardware import machines
from perfctl.orchestrator.counts.hardware.machines import Board
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.files import get_perfctl_user_folder, write_text

COLUMNS = (
    "provider",
    "instance",
    "gpu",
    "count",
    "on_demand_usd_per_hour",
    "spot_usd_per_hour",
    "region",
    "date",
    "source",
)
NEEDED = ("provider", "gpu", "count", "date")
"""Columns that must be filled; so must one of the two prices."""
VARIABLE = "PERFCTL_PRICES"
"""Environment variable with the path of the user's own table."""
LARGEST = 10_000_000
"""Bytes: a larger file is not a price table."""
YEAR = timedelta(days=366)
"""Prices older than this are marked."""
DOUBTS = ("undated", "promotional")
"""Words in the source of a price that nobody may be offered today: of an undated one the date is
the earliest possible."""


class PriceTableError(ValueError):
    """A wrong table: the line and the reason. ``remedy``: what to do."""

    def __init__(self, line: int, message: str, remedy: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Price:
    """One offer. US dollars per hour for the complete instance."""

    JSON_KEYS = (
        "provider",
        "instance",
        "gpu",
        "gpu_models",
        "count",
        "on_demand",
        "spot",
        "region",
        "date",
        "is_old",
        "uncertain",
        "source",
    )
    JSON_NAMES: ClassVar = {
        "on_demand": "on_demand_usd_per_hour",
        "spot": "spot_usd_per_hour",
        "is_old": "older_than_a_year",
    }

    provider: str
    instance: str | None
    gpu: str
    boards: tuple[Board, ...]
    count: int
    """GPUs."""
    on_demand: float | None
    spot: float | None
    region: str | None
    date: str
    """When the price was seen: YYYY-MM or YYYY-MM-DD."""
    source: str | None

    @property
    def gpu_models(self) -> list[str]:
        """Models that the GPU may be."""
        return [board.name for board in self.boards]

    @property
    def uncertain(self) -> str | None:
        """Why the price may not hold: "undated" or "promotional", if the source states it."""
        return next((doubt for doubt in DOUBTS if doubt in (self.source or "").lower()), None)

    @property
    def board(self) -> Board | None:
        """The board it has; None where the provider does not say which form or memory, so that it
        may be several."""
        return self.boards[0] if len(self.boards) == 1 else None

    @property
    def is_old(self) -> bool:
        """Whether the price is more than a year old; a month counts to its end."""
        year, month, *day = map(int, self.date.split("-"))
        return get_today() - Date(year, month, day[0] if day else monthrange(year, month)[1]) > YEAR


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices, and where the table is."""

    JSON_NAMES: ClassVar = {"name": "table"}

    name: str
    """Where the prices are from."""
    prices: tuple[Price, ...]

    @property
    def without_doubtful_prices(self) -> PriceTable:
        """The table without uncertain prices."""
        certain = (price for price in self.prices if price.uncertain is None)
        return replace(self, prices=tuple(certain))


def parse_price_table(text: str) -> tuple[Price, ...]:
    """The rows of a CSV with :data:`COLUMNS` (others are ignored). Raises PriceTableError with
    the line."""
    rows = csv.reader(io.StringIO(text.removeprefix("\ufeff")), strict=True)
    try:
        heads = [head.strip() for head in next(rows, [])]
        missing = [name for name in COLUMNS if name not in heads]
        if missing:
            columns = f"column{'s' * (len(missing) > 1)} {', '.join(missing)} missing"
            raise PriceTableError(1, columns, f"The header must be {','.join(COLUMNS)}")
        price_rows = []
        for cells in rows:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(heads):
                wrong = f"{len(cells)} cells under {len(heads)} columns"
                raise PriceTableError(
                    rows.line_num, wrong, "Leave unknown cells empty, and quote texts with a comma"
                )
            price_rows.append(
                _parse_price_row(
                    dict(zip(heads, map(str.strip, cells), strict=True)), rows.line_num
                )
            )
    except csv.Error as error:
        wrong = f"not CSV ({error})"
        raise PriceTableError(
            rows.line_num, wrong, "Separate cells by commas, and quote texts with a comma"
        ) from None
    if not price_rows:
        raise PriceTableError(1, "a header without prices", "Add one line per price")
    return tuple(price_rows)


def _parse_price_row(row: dict[str, str], line: int) -> Price:
    if empty := [name for name in NEEDED if not row[name]]:
        optional_columns = ", ".join(name for name in COLUMNS if name not in NEEDED)
        raise PriceTableError(line, f"{empty[0]} is empty", f"Only {optional_columns} may be")
    if not row["count"].isdecimal() or int(row["count"]) < 1:
        raise PriceTableError(
            line, f"count '{row['count']}' is not a number of GPUs", "For example 8"
        )
    if not _is_date(row["date"]):
        raise PriceTableError(
            line, f"date '{row['date']}' is not a date", "Use YYYY-MM or YYYY-MM-DD"
        )
    on_demand, spot = (
        _parse_dollars(row[name], name, line)
        for name in ("on_demand_usd_per_hour", "spot_usd_per_hour")
    )
    if on_demand is None and spot is None:
        raise PriceTableError(
            line, "no price", "Fill on_demand_usd_per_hour, spot_usd_per_hour or both"
        )
    meant = machines.find_boards(row["gpu"])
    if not meant:
        close = ", ".join(machines.suggest_board_names(row["gpu"]))
        remedy = f"Similar names: {close}" if close else "For example A100 SXM 80GB"
        raise PriceTableError(line, f"gpu '{row['gpu']}' is not in the table of devices", remedy)
    return Price(
        row["provider"],
        row["instance"] or None,
        row["gpu"],
        meant,
        int(row["count"]),
        on_demand,
        spot,
        row["region"] or None,
        row["date"],
        row["source"] or None,
    )


def _is_date(text: str) -> bool:
    """Return whether a text is YYYY-MM or YYYY-MM-DD, and a day that exists."""
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}(-[0-9]{2})?", text):
        return False
    try:
        Date.fromisoformat(text if len(text) > 7 else f"{text}-01")
    except ValueError:
        return False
    return True


def _parse_dollars(text: str, name: str, line: int) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < inf:
        remedy = "Dollars per hour, such as 3.06; empty if not known"
        raise PriceTableError(line, f"{name} '{text}' is not a price", remedy)
    if value == 0:
        raise PriceTableError(line, f"{name} is 0", "Leave it empty if it is unknown")
    return value


def select_board_offers(prices: tuple[Price, ...], board: Board | None) -> tuple[Price, ...]:
    """Return the offers that have this board, none without one. One whose form or memory is not
    stated is not guessed; see :func:`select_ambiguous_offers`."""
    return tuple(price for price in prices if price.board == board) if board is not None else ()


def select_ambiguous_offers(prices: tuple[Price, ...], board: Board) -> tuple[Price, ...]:
    """Return the offers that may have this board, or another of the same name."""
    return tuple(price for price in prices if price.board is None and board in price.boards)


def load_prices_for_gpu_model(model: str | None = None, file: Path | None = None) -> PriceTable:
    """Return the offers of the table in use, or of ``file``, in US dollars per hour; ``model``:
    only those that have, or may have, this GPU.

    Raises UsageError for a GPU that is not in the table of devices, PerfctlError when the user's
    table cannot be read.
    """
    table = load_price_table(file)
    if model is None:
        return table
    boards = set(machines.find_boards(model))
    if not boards:
        close = machines.suggest_board_names(model)
        near = (
            f"Similar names: {', '.join(close)}"
            if close
            else "Run 'perfctl predict --list-prices' to list all"
        )
        raise UsageError(f"`model`: '{model}' is not in the table of devices", near)
    return replace(
        table, prices=tuple(price for price in table.prices if boards & set(price.boards))
    )


def install_user_price_table(file: Path) -> PriceTable:
    """Use the price table in ``file`` (CSV) from now on, and return it. Raises PerfctlError, with
    file and line, if it is wrong."""
    prices = read_price_file(file)
    table_file = get_user_price_file_path()
    try:
        table_file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        remedy = "Set XDG_CONFIG_HOME to a writable folder"
        raise PerfctlError(
            f"{table_file.parent}: cannot be created ({error.strerror})", remedy
        ) from error
    write_text(table_file, file.read_text(encoding="utf-8"), force=True)
    return PriceTable(str(table_file), prices)


def reset_prices() -> bool:
    """Go back to perfctl's table, and return whether the user's own was removed.

    Raises UsageError where PERFCTL_PRICES names the table: that file is the user's to remove.
    """
    table_file = get_user_price_file_path()
    if os.environ.get(VARIABLE):
        raise UsageError(
            f"`reset_prices`: {VARIABLE} names {table_file} as the table",
            f"Unset {VARIABLE} instead",
        )
    is_there = table_file.exists()
    table_file.unlink(missing_ok=True)
    return is_there


def get_user_price_file_path() -> Path:
    """Where the user's table is kept, present or not: where PERFCTL_PRICES says, else below
    XDG_CONFIG_HOME or ~/.config."""
    if configured := os.environ.get(VARIABLE):
        return Path(configured)
    return get_perfctl_user_folder("XDG_CONFIG_HOME", "~/.config") / "prices.csv"


def get_today() -> Date:
    """Return the day by the clock, in UTC: prices more than a year older are marked."""
    return datetime.now(UTC).date()


def load_price_table(file: Path | None = None) -> PriceTable:
    """Return the table in use, or that of ``file``. Raises PerfctlError when it cannot be read."""
    if file is not None:
        return PriceTable(str(file), read_price_file(file))
    table_file = get_user_price_file_path()
    if table_file.exists():
        remedy = (
            "Replace it with 'perfctl predict --use-prices FILE', or return to perfctl's table "
            "with 'perfctl predict --reset-prices'"
        )
        return PriceTable(f"your table {table_file}", read_price_file(table_file, remedy))
    if os.environ.get(VARIABLE):
        raise PerfctlError(
            f"{VARIABLE}: {table_file} not found",
            "Run 'perfctl predict --use-prices FILE' to create it, or unset the variable",
        )
    text = resources.files("perfctl.templates").joinpath("prices.csv").read_text(encoding="utf-8")
    return PriceTable("perfctl's own table", parse_price_table(text))


def read_price_file(path: Path, remedy: str | None = None) -> tuple[Price, ...]:
    """Prices of one CSV file. Raises PerfctlError with file, line and reason in one line."""
    try:
        if path.stat().st_size > LARGEST:
            raise PerfctlError(
                f"{path}: {path.stat().st_size:,} bytes, too large for a price table", remedy
            )
        return parse_price_table(path.read_bytes().decode("utf-8"))
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
