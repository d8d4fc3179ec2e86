"""The price table for the terminal and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.analyse.prices import Price
from perfctl.orchestrator.report.numbers import DASH

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

HEADS = ("provider", "instance", "GPU", "count", "$/h", "spot $/h", "region", "date", "source")
_RIGHT = ("count", "$/h", "spot $/h")


def table(prices: Sequence[Price]) -> Table:
    """One line an offer; columns that no offer fills, and a source that all share, are left out."""
    from rich.table import Table

    rows = [_cells(price) for price in prices]
    shared = len(sources(prices)) == 1
    kept = [
        place
        for place, head in enumerate(HEADS)
        if any(row[place] != DASH for row in rows) and not (shared and head == "source")
    ]
    grid = Table(box=None, header_style="dim", pad_edge=False)
    for place in kept:
        grid.add_column(
            HEADS[place],
            justify="right" if HEADS[place] in _RIGHT else "left",
            no_wrap=HEADS[place] not in ("region", "source"),
        )
    for row in rows:
        grid.add_row(*(text(row[place]) for place in kept))
    return grid


def sources(prices: Sequence[Price]) -> tuple[str, ...]:
    """Who says these prices, each once."""
    return tuple(dict.fromkeys(price.source or "source not stated" for price in prices))


def days(prices: Sequence[Price]) -> str:
    """ "2025-04", or "2025-04 to 2026-11"."""
    found = sorted({price.date for price in prices})
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def text(words: str, style: str = "") -> Text:
    """What others wrote is no markup, and its control characters are not sent to the terminal."""
    from rich.text import Text

    return Text("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in words), style=style)


def _cells(price: Price) -> tuple[str, ...]:
    money = (f"{value:.2f}" if value is not None else DASH for value in (price.on_demand, price.spot))
    words = (price.region or DASH, price.date, price.source or DASH)
    return (price.provider, price.instance or DASH, price.gpu, str(price.count), *money, *words)


def as_json(price: Price) -> dict[str, Any]:
    """The columns of the table, and which boards its GPU may be."""
    return {
        "provider": price.provider,
        "instance": price.instance or None,
        "gpu": price.gpu,
        "boards": [board.name for board in price.boards],
        "count": price.count,
        "on_demand_usd_per_hour": price.on_demand,
        "spot_usd_per_hour": price.spot,
        "region": price.region or None,
        "date": price.date,
        "source": price.source or None,
    }
