"""perfctl prices"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.errors import UsageError

ACTIONS = ("list", "update", "reset")


def prices(
    action: Annotated[
        str, typer.Argument(help="list, update FILE (your own table), reset (back to perfctl's).")
    ] = "list",
    file: Annotated[
        Path | None, typer.Argument(help="CSV for update; docs/commands/prices.md has its columns.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="Only offers that have, or may have, this GPU.")
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="List this table (CSV) instead of the one in use."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List what GPUs cost to rent, with the date of every price, or use a table of your own."""
    if action not in ACTIONS:
        raise UsageError(f"prices: '{action}' is not known", f"Say {', '.join(ACTIONS)}")
    if (file is None) == (action == "update"):
        said = "needs a file" if file is None else "takes no file"
        raise UsageError(
            f"prices {action} {said}", "Only update takes one: perfctl prices update my-prices.csv"
        )
    if action == "update" and file is not None:
        _update(file)
    elif action == "reset":
        _reset()
    else:
        _list(gpu, prices, as_json)


def _list(gpu: str | None, file: Path | None, as_json: bool) -> None:
    from perfctl.orchestrator.actions.predict import prices as actions
    from perfctl.orchestrator.report import prices as prices_text

    table = actions.prices(gpu, file)
    shown = table.prices
    if as_json:
        rows = [prices_text.price_row(price, table.today) for price in shown]
        console.as_json(prices_text.PricesOutput(table.where, rows), "prices")
        return
    if not shown:
        console.result(f"No offer of {gpu} in {table.where}")
        return
    console.show(prices_text.table(shown))
    console.result("\n" + "\n".join(prices_text.below(table)))
    if (said := prices_text.old(table, shown)) is not None:
        console.warning(said)


def _update(file: Path) -> None:
    from perfctl.orchestrator.actions.predict import prices as actions

    mine = actions.update(file)
    console.result(f"Wrote {mine.path} ({mine.offers} offer{'s' * (mine.offers != 1)})")
    console.note("perfctl predict now uses it; 'perfctl prices reset' goes back")
    if mine.unsure:
        console.warning(
            f"no prediction uses {mine.unsure} of {mine.offers} offers, because their GPU may be "
            "several boards: write for example A100 SXM4 80 GB instead of A100 80 GB"
        )


def _reset() -> None:
    from perfctl.orchestrator.actions.predict import prices as actions

    removed = actions.reset()
    console.result(
        f"Removed {removed}" if removed else f"There is no table of your own ({actions.own_file()})"
    )
