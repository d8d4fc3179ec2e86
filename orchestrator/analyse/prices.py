"""What GPUs cost to rent: a table of facts, each with its date and source. Text in, records out."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from math import isfinite

from perfctl.orchestrator.analyse.hardware import gpus
from perfctl.orchestrator.analyse.hardware.gpus import Board

COLUMNS = (
    "provider", "instance", "gpu", "count", "on_demand_usd_per_hour", "spot_usd_per_hour", "region", "date", "source",
)  # fmt: skip
NEEDED = ("provider", "gpu", "count", "date")
"""Columns whose cells may not be empty; of the two prices one may be."""
_DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?")


class PriceTableError(ValueError):
    """A table that cannot be used: which line, and why. ``remedy``: what to do."""

    def __init__(self, line: int, message: str, remedy: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Price:
    """One offer. US dollars an hour for the whole instance."""

    provider: str
    instance: str
    """"" where the provider gives it no name."""
    gpu: str
    """As written in the table."""
    boards: tuple[Board, ...]
    """What ``gpu`` may mean: several where the provider states no form."""
    count: int
    """GPUs of one instance."""
    on_demand: float | None
    spot: float | None
    """None: not offered, or not known."""
    region: str
    """"" where not stated."""
    date: str
    """YYYY-MM or YYYY-MM-DD of the price."""
    source: str


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices and where they come from."""

    prices: tuple[Price, ...]
    where: str
    """In words, for whoever reads a cost."""


def read_prices(text: str) -> tuple[Price, ...]:
    """The rows of a CSV with :data:`COLUMNS` (others are passed over). Raises PriceTableError naming the line."""
    rows = csv.reader(io.StringIO(text.removeprefix("\ufeff")), strict=True)
    try:
        heads = [head.strip() for head in next(rows, [])]
        missing = [name for name in COLUMNS if name not in heads]
        if missing:
            raise PriceTableError(
                1, f"column{'s' * (len(missing) > 1)} {', '.join(missing)} missing", f"The head is {','.join(COLUMNS)}"
            )
        found = [
            _price(dict(zip(heads, _whole(cells, heads, rows.line_num), strict=True)), rows.line_num)
            for cells in rows
            if any(cell.strip() for cell in cells)
        ]
    except csv.Error as error:
        raise PriceTableError(
            rows.line_num, f"no CSV ({error})", "Separate by commas; quote texts that have one"
        ) from None
    if not found:
        raise PriceTableError(1, "a head and no prices", "One line a price")
    return tuple(found)


def _whole(cells: list[str], heads: list[str], line: int) -> list[str]:
    if len(cells) != len(heads):
        raise PriceTableError(
            line,
            f"{len(cells)} cells under {len(heads)} columns",
            "Leave cells empty, and quote texts that have a comma",
        )
    return [cell.strip() for cell in cells]


def _price(row: dict[str, str], line: int) -> Price:
    for name in NEEDED:
        if not row[name]:
            raise PriceTableError(line, f"{name} is empty", f"Only {', '.join(set_apart())} may be")
    if not row["count"].isdecimal() or int(row["count"]) < 1:
        raise PriceTableError(line, f"count '{row['count']}' is no number of GPUs", "Say 1, 2, 4, 8")
    if not _DATE.fullmatch(row["date"]):
        raise PriceTableError(line, f"date '{row['date']}' is none", "Say YYYY-MM or YYYY-MM-DD")
    on_demand, spot = (_dollars(row, name, line) for name in ("on_demand_usd_per_hour", "spot_usd_per_hour"))
    if on_demand is None and spot is None:
        raise PriceTableError(line, "no price", "Fill on_demand_usd_per_hour, spot_usd_per_hour or both")
    meant = gpus.meant(row["gpu"])
    if not meant:
        close = gpus.nearest(row["gpu"])
        remedy = f"Near it: {', '.join(close)}" if close else "docs/devices.md says which are known"
        raise PriceTableError(line, f"gpu '{row['gpu']}' is not in the table of devices", remedy)
    return Price(
        row["provider"], row["instance"], row["gpu"], meant, int(row["count"]), on_demand, spot, row["region"],
        row["date"], row["source"],
    )  # fmt: skip


def set_apart() -> tuple[str, ...]:
    """Columns whose cells may be empty."""
    return tuple(name for name in COLUMNS if name not in NEEDED)


def _dollars(row: dict[str, str], name: str, line: int) -> float | None:
    text = row[name]
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not isfinite(value) or value < 0:
        raise PriceTableError(line, f"{name} '{text}' is no price", "Dollars an hour as 3.06; empty where not known")
    if value == 0:
        raise PriceTableError(line, f"{name} is 0", "Leave it empty where it is not known")
    return value


def for_board(prices: tuple[Price, ...], board: Board) -> tuple[Price, ...]:
    """The offers that have this board, or may have it."""
    return tuple(price for price in prices if board in price.boards)
