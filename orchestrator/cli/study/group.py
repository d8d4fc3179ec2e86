"""perfctl study: the list of its commands."""

from __future__ import annotations

import typer

study = typer.Typer(no_args_is_help=True, help="Do a whole study: measure, compare, and write a page and a summary.")
