"""perfctl serve"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console
from perfctl.orchestrator.errors import PerfctlError, UsageError

if TYPE_CHECKING:
    from perfctl.orchestrator.actions.predict.calculator import FamilyAnswers
    from perfctl.orchestrator.report.page.server import Answers

HERE = "127.0.0.1"


def serve(
    folder: Annotated[Path, typer.Argument(help="Folder with pages and perfctl-runs.")] = Path(),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8765,
    host: Annotated[str, typer.Option(help="Address; any other than this machine's own lets others in.")] = HERE,
    store: Annotated[
        Path, typer.Option("--db", "--store", help="Its runs are used for the calculator where it is there.")
    ] = DEFAULT,
) -> None:
    """Show the pages of a folder in the browser, and how far its sweeps are. Ctrl-C ends it.

    Calculator pages opened through it take the parameters of the families: depth, width, image size and others.
    From a laptop: ssh -L 8765:127.0.0.1:8765 LOGIN-NODE, then open http://127.0.0.1:8765/.
    """
    from perfctl.orchestrator.report.page.server import PageServer

    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such folder", "Name the folder that holds the pages")
    try:
        server = PageServer(folder, host, port, lambda: _listing(folder), _answers(store))
    except OSError as error:
        raise PerfctlError(
            f"{host}:{port} cannot be used ({error.strerror or error})", "Name another --port, or --port 0"
        ) from error
    try:
        with server:
            if not server.local:
                console.warning(f"everybody who reaches {host} can read the pages in {folder}")
            console.result(f"Serving {folder} on {server.url}  (Ctrl-C ends it)")
            console.flush()
            server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        console.note("ended")


def _answers(store: Path) -> Answers:
    """Answers the calculator's page; what it rests on is read when it first asks."""
    found: list[FamilyAnswers] = []

    def answer(query: str) -> tuple[HTTPStatus, Mapping[str, Any]]:
        from perfctl.orchestrator.actions.predict.calculator import FamilyAnswers

        if not found:
            found.append(FamilyAnswers(store))
        return found[0].answer(query)

    return answer


def _listing(folder: Path) -> str:
    from perfctl.orchestrator.launch.sweep import parallel
    from perfctl.orchestrator.report.page import page
    from perfctl.orchestrator.report.page import server as page_server

    found, left = page_server.pages(folder)
    sweeps = [_sweep(state) for state in parallel.sweeps(folder)]
    return page.listing(
        {
            "folder": folder.resolve().name or "/",
            "pages": [(address, name, _moment(when)) for address, name, when in found],
            "left": left,
            "sweeps": sweeps,
            "running": sum(sweep["running"] for sweep in sweeps),
        }
    )


def _sweep(state: Any) -> dict[str, Any]:
    from perfctl.orchestrator.report.numbers import time
    from perfctl.redact import masked, masked_line

    return {
        "name": state.name,
        "command": state.command and masked_line(state.command),
        "host": state.host,
        "running": state.running,
        "runs": [
            {
                "batch": f"{run.batch_size}" + (f" (attempt {run.attempt})" if run.attempt else ""),
                "status": run.status + (f": {masked(run.reason)}" if run.reason else ""),
                "started": (run.started_at or "")[:19].replace("T", " "),
                "took": "" if run.duration_ns is None else time(run.duration_ns),
            }
            for run in state.runs
        ],
    }


def _moment(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M UTC")
