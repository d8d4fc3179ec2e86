"""The price table for the terminal and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.analyse.prices import Price
from perfctl.orchestrator.report.numbers import DASH
from perfctl.orchestrator.report.text_tables import add_rows, grid

if TYPE_CHECKING:
    from rich.table import Table


HEADS = ("provider", "instance", "GPU", "count", "$/h", "spot $/h", "region", "date", "source")


def table(prices: Sequence[Price]) -> Table:
    """One line an offer, without columns that no offer fills, and without a source that all share."""
    rows = [
        (price.provider, price.instance or DASH, price.gpu, str(price.count),
         *(f"{value:.2f}" if value is not None else DASH for value in (price.on_demand, price.spot)),
         price.region or DASH, price.date, price.source or DASH)
        for price in prices
    ]  # fmt: skip
    shared = {"source"} if len(sources(prices)) == 1 else set()
    kept = [at for at, head in enumerate(HEADS) if any(row[at] != DASH for row in rows) and head not in shared]
    sides = [(HEADS[at], "right" if HEADS[at] in ("count", "$/h", "spot $/h") else "left") for at in kept]
    whole = [head for head in HEADS if head not in ("region", "source")]
    return add_rows(grid(*sides, whole=whole), [[row[at] for at in kept] for row in rows])


def sources(prices: Sequence[Price]) -> tuple[str, ...]:
    """Who publishes these prices, each once."""
    return tuple(dict.fromkeys(price.source or "source not stated" for price in prices))


def days(prices: Sequence[Price]) -> str:
    """ "2025-04", or "2025-04 to 2026-11"."""
    found = sorted({price.date for price in prices})
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def as_json(price: Price) -> dict[str, Any]:
    """The columns of the table, and which boards its GPU may be."""
    return {
        "provider": price.provider, "instance": price.instance or None, "gpu": price.gpu,
        "boards": [board.name for board in price.boards], "count": price.count,
        "on_demand_usd_per_hour": price.on_demand, "spot_usd_per_hour": price.spot, "region": price.region or None,
        "date": price.date, "source": price.source or None,
    }  # fmt: skip
