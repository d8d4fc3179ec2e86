"""Rental prices: the view of the price table, and what every prediction states about its prices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfctl.orchestrator.predict.prices import Price, PriceTable
from perfctl.orchestrator.report.tables import (
    Column,
    Table,
    build_complete_table,
    missing_cell,
    text_cell,
    text_columns,
)
from perfctl.orchestrator.report.view import View
from perfctl.records.report import pluralize_count

NO_SOURCE = "source not stated"


@dataclass(frozen=True, slots=True)
class PriceList:
    """The price table, or the part of it that has one GPU."""

    table: PriceTable
    gpu: str | None
    """Only offers that have, or may have, this GPU; None: all."""


@dataclass(frozen=True, slots=True)
class PriceChange:
    """A change of the user's own price table."""

    table: PriceTable
    """The table that is now in use."""
    path: Path
    """Path of the user's own table."""
    action: str
    """written, removed, or absent if there is none to remove."""


def format_price_date(price: Price) -> str:
    """Return the date of the price, marked "undated", "promotional" or "old" (of more than a year
    ago)."""
    mark = price.uncertain or ("old" if price.is_old else "")
    return f"{price.date} {mark}".rstrip()


def build_prices_view(prices: PriceList) -> View:
    """Return the offers with their dates and sources."""
    offers, name = prices.table.prices, prices.table.name
    if not offers:
        return View(f"No offer of {prices.gpu} in {name}")
    publishers = list_price_publishers(offers)
    source, notes = f", source: {publishers[0]}", []
    if len(publishers) > 1:
        source, notes = "", [f"[{number}] {text}" for number, text in enumerate(publishers, 1)]
    return View(
        f"{pluralize_count(len(offers), 'offer')} of {name}, US dollars per hour and instance. "
        f"Prices of {format_price_dates(offers)}{source}",
        tables=(_build_offers_table(offers, publishers),),
        notes=(*notes, *_explain_offer_marks(offers), *warn_of_old_prices(offers)),
    )


def build_price_table_change_view(change: PriceChange) -> View:
    """Return the change, how to undo it, and how many offers no prediction will use."""
    if change.action == "removed":
        return View(f"Removed {change.path}")
    if change.action == "absent":
        return View(f"No price table of your own ({change.path})")
    offers = change.table.prices
    uncertain = sum(price.board is None for price in offers)
    warning = (
        f"no prediction uses {uncertain} of {len(offers)} offers, because their GPU name matches "
        "several models. Use for example A100 SXM4 80 GB instead of A100 80 GB"
    )
    return View(
        f"Wrote {change.path} ({pluralize_count(len(offers), 'offer')})",
        (
            "perfctl predict now uses it; run 'perfctl predict --reset-prices' to return to "
            "perfctl's table",
        ),
        warnings=(warning,) if uncertain else (),
    )


def _build_offers_table(offers: Sequence[Price], publishers: Sequence[str]) -> Table:
    """Return a row for each offer. If there are several sources, their numbers replace the
    region."""
    is_single = len(publishers) == 1
    rows = [
        (
            price.provider,
            price.instance or missing_cell("not stated"),
            price.gpu + ("" if price.board else " *"),
            price.count,
            *(
                text_cell(f"{value:.2f}") if value is not None else missing_cell("not offered")
                for value in (price.on_demand, price.spot)
            ),
            price.region if is_single and price.region else missing_cell("not stated"),
            price.date
            + (" ?" if price.uncertain else "")
            + ("" if is_single else f" [{publishers.index(price.source or NO_SOURCE) + 1}]"),
        )
        for price in offers
    ]
    columns = [
        *text_columns("provider", "instance"),
        Column("GPU", style="word"),
        *map(Column, ("count", "$/h", "spot")),
        *text_columns("region"),
        Column("date", style="word"),
    ]
    return build_complete_table("Offers", columns, rows, is_dense=True)


def _explain_offer_marks(offers: Sequence[Price]) -> Iterator[str]:
    """Yield the meaning of each mark in the list."""
    if undated := sum(price.uncertain is not None for price in offers):
        yield (
            "? undated (earliest possible date shown) or promotional price; predictions use it "
            f"only with --undated ({undated} here)"
        )
    if ambiguous := sum(price.board is None for price in offers):
        yield (
            "* unknown form (PCIe or SXM) or memory; predictions do not use such an offer "
            f"({ambiguous} here)"
        )


def list_notes_on_prices(table: PriceTable, prices: Sequence[Price]) -> list[str]:
    """Return where the prices are from, and which are old."""
    return [f"{describe_price_origin(prices, f', {table.name}')}", *warn_of_old_prices(prices)]


def describe_price_origin(prices: Sequence[Price], table_name_suffix: str = "") -> str:
    """Return the dates and publishers of prices; "" without prices."""
    publishers = "; ".join(list_price_publishers(prices))
    return (
        f"prices of {format_price_dates(prices)}{table_name_suffix} ({publishers})"
        if prices
        else ""
    )


def warn_of_old_prices(prices: Sequence[Price]) -> list[str]:
    """Return a sentence if some of the prices are more than a year old."""
    old = [price for price in prices if price.is_old]
    if not old:
        return []
    return [
        f"prices of {format_price_dates(old)} are more than a year old: check them, or use your "
        "own table (perfctl predict --use-prices FILE)"
    ]


def list_price_publishers(prices: Sequence[Price]) -> tuple[str, ...]:
    """Return who publishes these prices, each once."""
    return tuple(dict.fromkeys(price.source or NO_SOURCE for price in prices))


def format_price_dates(prices: Sequence[Price]) -> str:
    """Return "2025-04", or "2025-04 to 2026-11"."""
    dates = sorted({price.date for price in prices})
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
