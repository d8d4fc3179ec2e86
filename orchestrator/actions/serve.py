"""A server for the pages of a folder: their list, how far its sweeps are, and answers for
the calculator."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.faults import whole
from perfctl.orchestrator.launch.sweep import parallel
from perfctl.orchestrator.report.numbers import time
from perfctl.orchestrator.report.page import page
from perfctl.orchestrator.report.page.server import Answers, PageServer, pages
from perfctl.redact import mask, mask_line

if TYPE_CHECKING:
    from perfctl.orchestrator.report.calculator import FamilyAnswers


def server(folder: Path, host: str, port: int, store: Path) -> PageServer:
    """A server that listens, not yet serving; ``port`` 0 takes a free one. Questions of calculator
    pages use ``store``.

    Raises UsageError where there is no such folder, PerfctlError where the address cannot be used.
    """
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: there is no such folder", "Name the folder that holds the pages"
        )
    try:
        return PageServer(folder, host, port, lambda: listing(folder), _answers(store))
    except OSError as error:
        raise PerfctlError(
            f"{host}:{port} cannot be used ({error.strerror or error})",
            "Name another `port`, or `port` 0",
        ) from error


def _answers(store: Path) -> Answers:
    """Answers the calculator's page; what it rests on is read when it first asks."""
    found: list[FamilyAnswers] = []

    def answer(query: str) -> tuple[HTTPStatus, Mapping[str, Any]]:
        from perfctl.orchestrator.evidence import store_and_devices
        from perfctl.orchestrator.report.calculator import FamilyAnswers

        if not found:
            found.append(FamilyAnswers(partial(store_and_devices, store)))
        return found[0].answer(query)

    return answer


def listing(folder: Path) -> str:
    """HTML of the pages in the folder and of the state of its sweeps."""
    found, left = pages(folder)
    sweeps = whole(
        list(parallel.sweeps(folder)),
        lambda states: list(map(_sweep, states)),
        lambda one: f"sweep {one.name}",
    )
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
    return {
        "name": state.name,
        "command": state.command and mask_line(state.command),
        "host": state.host,
        "running": state.running,
        "runs": [
            {
                "batch": f"{run.batch_size}" + (f" (attempt {run.attempt})" if run.attempt else ""),
                "status": run.status + (f": {mask(run.reason)}" if run.reason else ""),
                "started": (run.started_at or "")[:19].replace("T", " "),
                "took": "" if run.duration_ns is None else time(run.duration_ns),
            }
            for run in state.runs
        ],
    }


def _moment(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M UTC")
