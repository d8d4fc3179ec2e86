"""perfctl serve"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console

HERE = "127.0.0.1"


def serve(
    folder: Annotated[Path, typer.Argument(help="Folder with pages and perfctl-runs.")] = Path(),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8765,
    host: Annotated[
        str, typer.Option(help="Address; any other than this machine's own lets others in.")
    ] = HERE,
    store: Annotated[
        Path,
        typer.Option("--store", help="Its runs are used for the calculator where it is there."),
    ] = DEFAULT,
) -> None:
    """Show the pages of a folder in the browser, and how far its sweeps are. Ctrl-C ends it.

    Calculator pages opened through it take the parameters of the families: depth, width, image size
    and others. From a laptop: ssh -L 8765:127.0.0.1:8765 LOGIN-NODE, then open
    http://127.0.0.1:8765/.
    """
    from perfctl.orchestrator.actions import serve as actions

    server = actions.server(folder, host, port, store)
    server.failed = console.warning
    try:
        with server:
            if not server.local:
                console.warning(f"everybody who reaches {host} can read the pages in {folder}")
            console.result(f"Serving {folder} on {server.url}  (Ctrl-C ends it)")
            console.flush()
            server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        console.note("ended")
