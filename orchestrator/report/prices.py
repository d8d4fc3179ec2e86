"""The price table for the terminal and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from perfctl.orchestrator.predict.prices import Price, PriceTable
from perfctl.orchestrator.report.numbers import DASH
from perfctl.orchestrator.report.text_tables import add_rows, grid

if TYPE_CHECKING:
    from rich.table import Table


NO_SOURCE = "source not stated"
HEADS = ("provider", "instance", "GPU", "count", "$/h", "spot", "region", "date")


def when(price: Price, today: date) -> str:
    """The date of the price, marked "undated", "promotional" or "old" (of more than a year ago)."""
    mark = price.doubt or ("old" if price.is_old(today) else "")
    return f"{price.date} {mark}".rstrip()


def table(prices: Sequence[Price]) -> Table:
    """One line an offer, without columns that no offer fills. Sources are numbered, see
    :func:`below`; one alone is not."""
    said = sources(prices)
    number = {
        source: f" [{place}]" if len(said) > 1 else "" for place, source in enumerate(said, 1)
    }
    rows = [
        (
            price.provider,
            price.instance or DASH,
            price.gpu + ("" if price.board else " *"),
            str(price.count),
            *(
                f"{value:.2f}" if value is not None else DASH
                for value in (price.on_demand, price.spot)
            ),
            price.region or DASH,
            price.date + (" ?" if price.doubt else "") + number[price.source or NO_SOURCE],
        )
        for price in prices
    ]
    kept = [at for at, head in enumerate(HEADS) if any(row[at] != DASH for row in rows)]
    if len(said) > 1:  # of several publishers: too wide; the source says the region
        kept = [at for at in kept if HEADS[at] != "region"]
    sides = [
        (HEADS[at], "right" if HEADS[at] in ("count", "$/h", "spot") else "left") for at in kept
    ]
    whole = [head for head in HEADS if head not in ("provider", "instance", "region")]
    found = grid(*sides, whole=whole)
    found.padding = (0, 1, 0, 0)
    return add_rows(found, [[row[at] for at in kept] for row in rows])


def below(found: PriceTable) -> Iterator[str]:
    """Lines under the list: how many, of when, from where, and what the mark means."""
    shown, said = found.prices, sources(found.prices)
    source = f", source: {said[0]}" if len(said) == 1 else ""
    offers = f"{len(shown)} offer{'s' * (len(shown) != 1)} of {found.where}"
    yield f"{offers}, US dollars an hour and instance. Prices of {days(shown)}{source}"
    if len(said) > 1:
        yield from (f"[{number}] {one}" for number, one in enumerate(said, 1))
    if doubtful := sum(price.doubt is not None for price in shown):
        why = (
            "? the price has no known date (the earliest possible is shown), or is promotional; "
            "predictions take it only"
        )
        yield f"{why} with --undated ({doubtful} here)"
    if unsure := sum(price.board is None for price in shown):
        yield (
            "* the form (PCIe or SXM) or memory is not stated: no prediction uses such an offer "
            f"({unsure} here)"
        )


def old(found: PriceTable, shown: Sequence[Price]) -> str | None:
    """A sentence if some of ``shown`` are more than a year old."""
    late = found.old(shown)
    if not late:
        return None
    return (
        f"prices of {days(late)} are more than a year old: check them, or use your own (perfctl "
        "prices update FILE)"
    )


def sources(prices: Sequence[Price]) -> tuple[str, ...]:
    """Who publishes these prices, each once."""
    return tuple(dict.fromkeys(price.source or NO_SOURCE for price in prices))


def days(prices: Sequence[Price]) -> str:
    """ "2025-04", or "2025-04 to 2026-11"."""
    found = sorted({price.date for price in prices})
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


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
