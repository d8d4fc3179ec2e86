"""The price table: its view and its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Literal

from perfctl.orchestrator.predict.prices import Price, PriceTable
from perfctl.orchestrator.report.numbers import DASH
from perfctl.orchestrator.report.tables import (
    Column,
    Table,
    dense_table,
    nothing,
    text_cell,
    text_columns,
)
from perfctl.orchestrator.report.view import View

NO_SOURCE = "source not stated"
COLUMNS = (
    *text_columns("provider", "instance"),
    Column("GPU", style="word"),
    Column("count"),
    Column("$/h"),
    Column("spot"),
    Column("region", style="text"),
    Column("date", style="word"),
)


@dataclass(frozen=True, slots=True)
class PriceList:
    """The price table, or the part of it that has one GPU."""

    table: PriceTable
    gpu: str | None
    """Only offers that have, or may have, this GPU; None: all."""


@dataclass(frozen=True, slots=True)
class PriceChange:
    """What was done to the user's own price table."""

    table: PriceTable
    """The table that is now in use."""
    path: Path
    """Of the user's own table."""
    action: Literal["written", "removed", "absent"]


def when(price: Price, today: date) -> str:
    """Return the date of the price, marked "undated", "promotional" or "old" (of more than a year
    ago)."""
    mark = price.doubt or ("old" if price.is_old(today) else "")
    return f"{price.date} {mark}".rstrip()


def prices_view(prices: PriceList) -> View:
    """Return the offers with their dates and sources."""
    offers = prices.table.prices
    if not offers:
        return View(f"No offer of {prices.gpu} in {prices.table.where}")
    publishers = sources(offers)
    source = f", source: {publishers[0]}" if len(publishers) == 1 else ""
    title = (
        f"{len(offers)} offer{'s' * (len(offers) != 1)} of {prices.table.where}, US dollars per "
        f"hour and instance. Prices of {days(offers)}{source}"
    )
    notes = [f"[{number}] {name}" for number, name in enumerate(publishers, 1)]
    return View(
        title,
        tables=(_offers(offers, publishers),),
        notes=(*(notes if len(notes) > 1 else ()), *_marks(offers), *old(prices.table, offers)),
    )


def price_change_view(change: PriceChange) -> View:
    """Return what was done, how to undo it, and how many offers no prediction will use."""
    if change.action == "removed":
        return View(f"Removed {change.path}")
    if change.action == "absent":
        return View(f"No price table of your own ({change.path})")
    offers = change.table.prices
    unsure = sum(price.board is None for price in offers)
    warning = (
        f"no prediction uses {unsure} of {len(offers)} offers, because their GPU name matches "
        "several models. Use for example A100 SXM4 80 GB instead of A100 80 GB"
    )
    return View(
        f"Wrote {change.path} ({len(offers)} offer{'s' * (len(offers) != 1)})",
        (
            "perfctl predict now uses it; run 'perfctl predict --reset-prices' to return to "
            "perfctl's table",
        ),
        warnings=(warning,) if unsure else (),
    )


def _offers(offers: Sequence[Price], publishers: Sequence[str]) -> Table:
    """Return a row for each offer, without columns that no offer fills. Sources are numbered; one
    alone is not."""
    marks = {
        source: f" [{number}]" if len(publishers) > 1 else ""
        for number, source in enumerate(publishers, 1)
    }
    rows = [
        (
            price.provider,
            text_cell(price.instance or DASH),
            price.gpu + ("" if price.board else " *"),
            price.count,
            *(
                text_cell(f"{value:.2f}") if value is not None else nothing("not offered")
                for value in (price.on_demand, price.spot)
            ),
            price.region or nothing("not stated"),
            price.date + (" ?" if price.doubt else "") + marks[price.source or NO_SOURCE],
        )
        for price in offers
    ]
    # of several publishers: too wide; the source says the region
    left_out = {"region"} if len(publishers) > 1 else set()
    shown = [index for index, column in enumerate(COLUMNS) if column.label not in left_out]
    return dense_table(
        "Offers",
        [COLUMNS[index] for index in shown],
        [[row[index] for index in shown] for row in rows],
    )


def _marks(offers: Sequence[Price]) -> Iterator[str]:
    """Yield what the marks of the list mean."""
    if doubtful := sum(price.doubt is not None for price in offers):
        yield (
            "? undated (earliest possible date shown) or promotional price; predictions use it "
            f"only with --undated ({doubtful} here)"
        )
    if unsure := sum(price.board is None for price in offers):
        yield (
            "* unknown form (PCIe or SXM) or memory; predictions do not use such an offer "
            f"({unsure} here)"
        )


def old(table: PriceTable, shown: Sequence[Price]) -> tuple[str, ...]:
    """Return a sentence if some of ``shown`` are more than a year old."""
    late = table.old(shown)
    if not late:
        return ()
    return (
        f"prices of {days(late)} are more than a year old: check them, or use your own table "
        "(perfctl predict --use-prices FILE)",
    )


def sources(prices: Sequence[Price]) -> tuple[str, ...]:
    """Return who publishes these prices, each once."""
    return tuple(dict.fromkeys(price.source or NO_SOURCE for price in prices))


def days(prices: Sequence[Price]) -> str:
    """Return "2025-04", or "2025-04 to 2026-11"."""
    dates = sorted({price.date for price in prices})
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"


@dataclass(frozen=True, slots=True)
class PriceRow:
    """One offer."""

    provider: str
    instance: str | None
    gpu: str
    boards: list[str]
    """Products that it may be."""
    count: int
    """GPUs."""
    on_demand_usd_per_hour: float | None
    spot_usd_per_hour: float | None
    region: str | None
    date: str
    """When the price was seen."""
    older_than_a_year: bool
    in_doubt: str | None
    """Why the price may not hold."""
    source: str | None


@dataclass(frozen=True, slots=True)
class PricesOutput:
    """A table of prices."""

    table: str
    """Where the prices are from."""
    prices: list[PriceRow]


def price_row(price: Price, today: date) -> PriceRow:
    """Return the columns of the table, which boards its GPU may be, and whether the price is more
    than a year old."""
    return PriceRow(
        price.provider,
        price.instance or None,
        price.gpu,
        [board.name for board in price.boards],
        price.count,
        price.on_demand,
        price.spot,
        price.region or None,
        price.date,
        price.is_old(today),
        price.doubt,
        price.source or None,
    )


def prices_output(table: PriceTable) -> PricesOutput:
    """Return every offer of the table."""
    return PricesOutput(table.where, [price_row(price, table.today) for price in table.prices])
