"""A server for the pages of a folder: their list, how far its sweeps are, and answers for
the calculator."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from perfctl.orchestrator.commands.declare import (
    DEFAULT_STORE,
    Command,
    Events,
    Option,
)
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.evidence import find_store_evidence
from perfctl.orchestrator.faults import work_without_failing_items
from perfctl.orchestrator.report.numbers import format_time
from perfctl.orchestrator.report.page.server import Answers, PageServer, has_single_name
from perfctl.orchestrator.report.view import View
from perfctl.redact import mask_command_line, mask_secrets

if TYPE_CHECKING:
    from perfctl.orchestrator.report.calculator import FamilyAnswers

SHOWN = 500
"""Reports in the list, the newest."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Serve the HTML reports of a folder, and the progress of its sweeps, to a browser. Press
    Ctrl-C to stop.

    Calculators that it serves also accept the parameters of the families: depth, width, image size
    and others. From a laptop: ssh -L 8765:127.0.0.1:8765 LOGIN-NODE, then open
    http://127.0.0.1:8765/.

    Raises UsageError if there is no such folder, PerfctlError if the address cannot be used.
    """

    folder: Annotated[
        Path,
        Option(
            "Folder with HTML reports and perfctl-runs. Default: this folder.", is_argument=True
        ),
    ] = Path()
    port: Annotated[int, Option("Port; 0 chooses a free one.", least=0, most=65535)] = 8765
    host: Annotated[
        str, Option("Address to listen on; other machines can connect unless it is a local one.")
    ] = "127.0.0.1"
    store: Annotated[
        Path, Option("Results database whose runs the calculator uses, if it exists.")
    ] = DEFAULT_STORE


def serve_reports(options: ServeOptions, events: Events) -> None:
    """Serve until Ctrl-C."""
    from perfctl.orchestrator.report.page.page import compute_calculator_digest

    folder, host, port = options.folder, options.host, options.port
    if not folder.is_dir():
        raise UsageError(f"{folder}: folder not found", "Name the folder of the HTML reports")
    try:
        answers = _make_calculator_answers(options.store)
        server = PageServer(
            folder, host, port, lambda: render_listing(folder), answers, compute_calculator_digest()
        )
    except OSError as error:
        raise PerfctlError(
            f"{host}:{port} cannot be used ({error.strerror or error})",
            "Choose another `port`, or `port` 0",
        ) from error
    server.failed = events.warning
    try:
        with server:
            if not server.local:
                events.warning(f"everyone who can reach {host} can read the reports in {folder}")
            events.note(f"Serving {folder} on {server.url}  (Ctrl-C ends it)")
            server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        events.note("ended")


def _make_calculator_answers(store: Path) -> Answers:
    """Return the answers of the calculator. perfctl reads its tables at the first question."""

    @cache
    def load_family_answers() -> FamilyAnswers:
        from perfctl.orchestrator.report.calculator import FamilyAnswers

        return FamilyAnswers(partial(find_store_evidence, store))

    return lambda query: load_family_answers().answer(query)


def render_listing(folder: Path) -> str:
    """Return HTML of the reports in the folder and of the state of its sweeps."""
    from perfctl.orchestrator.launch.sweep import parallel
    from perfctl.orchestrator.report.page import page

    root, reports = folder.resolve(), []
    for file in (*root.glob("*.html"), *root.glob("*/*.html")):
        name = str(file.relative_to(root))
        is_hidden = name.startswith(".") or file.name.startswith(".")
        if has_single_name(file.lstat()) and not file.parent.is_symlink() and not is_hidden:
            address = quote(name, errors="surrogateescape")
            reports.append((-file.stat().st_mtime, name, address))
    sweeps = work_without_failing_items(
        list(parallel.list_sweep_states(folder)),
        lambda states: list(map(_describe_sweep_state, states)),
        lambda state: f"sweep {state.name}",
    )
    return page.render_view(
        {
            "folder": root.name or "/",
            "reports": [
                (address, name, f"{datetime.fromtimestamp(-when, UTC):%Y-%m-%d %H:%M} UTC")
                for when, name, address in sorted(reports)[:SHOWN]
            ],
            "omitted": max(0, len(reports) - SHOWN),
            "sweeps": sweeps,
            "running": sum(sweep["running"] for sweep in sweeps),
        },
        "sweeps.html",
    )


def _describe_sweep_state(state: Any) -> dict[str, Any]:
    return {
        "name": state.name,
        "command": state.command and mask_command_line(state.command),
        "host": state.host,
        "running": state.running,
        "runs": [
            (
                f"{run.setting if run.setting.others else run.setting.batch or run.setting}"
                + (f" (attempt {run.attempt})" if run.attempt else ""),
                run.status + (f": {mask_secrets(run.reason)}" if run.reason else ""),
                (run.started_at or "")[:19].replace("T", " "),
                "" if run.duration_ns is None else format_time(run.duration_ns),
            )
            for run in state.runs
        ],
    }


COMMAND = Command(
    ServeOptions, serve_reports, lambda _: View(""), has_document=False, has_json=False
)
