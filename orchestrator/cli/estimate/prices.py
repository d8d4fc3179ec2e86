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
    gpu: Annotated[str | None, typer.Option(help="Only offers that have this GPU.")] = None,
    as_json: options.Json = False,
) -> None:
    """List what GPUs cost to rent, with the date of every price, or use a table of your own."""
    if action not in ACTIONS:
        raise UsageError(f"prices: '{action}' is not known", f"Say {', '.join(ACTIONS)}")
    if (file is None) == (action == "update"):
        said = "needs a file" if file is None else "takes no file"
        raise UsageError(f"prices {action} {said}", "Only update takes one: perfctl prices update my-prices.csv")
    if action == "update" and file is not None:
        _update(file)
    elif action == "reset":
        _reset()
    else:
        _list(gpu, as_json)


def _list(gpu: str | None, as_json: bool) -> None:
    from perfctl.orchestrator.actions.predict import prices as actions
    from perfctl.orchestrator.report import prices as prices_text

    table = actions.prices(gpu)
    shown = table.prices
    if as_json:
        console.as_json({"table": table.where, "prices": [prices_text.as_json(price) for price in shown]})
        return
    if not shown:
        console.result(f"No offer of {gpu} in {table.where}")
        return
    console.show(prices_text.table(shown))
    said = prices_text.sources(shown)
    console.result(
        f"\n{len(shown)} offers of {table.where}, US dollars an hour and instance. Prices of {prices_text.days(shown)}"
        + (f", source: {said[0]}" if len(said) == 1 else "")
    )


def _update(file: Path) -> None:
    from perfctl.orchestrator.actions.predict import prices as actions

    mine = actions.update(file)
    console.result(f"Wrote {mine.path} ({mine.offers} offers)")
    console.note("perfctl predict now uses it; 'perfctl prices reset' goes back")


def _reset() -> None:
    from perfctl.orchestrator.actions.predict import prices as actions

    removed = actions.reset()
    console.result(f"Removed {removed}" if removed else f"There is no table of your own ({actions.own_file()})")
