"""perfctl tensorboard"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.cli import console


def tensorboard(
    folder: Annotated[Path, typer.Argument(help="Folder of a sweep or a speed-up study, with traces in it.")] = Path(
        "perfctl-runs"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for a free one.")] = 6006,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but this machine's own lets others in.")
    ] = "127.0.0.1",
) -> None:
    """Start TensorBoard on the traces of a folder, where it is installed. Ctrl-C ends it."""
    from perfctl.orchestrator.actions import export as actions

    found = actions.tensorboard(folder, port=port, host=host, messages=console)
    console.note(f"TensorBoard on {folder} ({found.traces} trace{'s' if found.traces > 1 else ''}); Ctrl-C ends it")
    console.flush()
    # In perfctl's place, so that whatever ends perfctl ends it.
    os.execv(found.command[0], found.command)  # noqa: S606  # a list, no shell  # nosec B606
