"""The process that compiles for a gate; ``compiled.py`` starts it::

    python -P -m perfctl.orchestrator.actions.gate.compiler

It gets one line of JSON on stdin, answers with one on stdout, and ends. It imports torch, and runs the user's file.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from perfctl.orchestrator.actions.estimate import as_perfctl_error, open_session, without_driver_warning
from perfctl.orchestrator.actions.gate.compiled import ERRORS, StepAsked
from perfctl.orchestrator.errors import PerfctlError
from perfctl.records import codec
from perfctl.records.compiled import CompiledStep


def main() -> None:
    """The process."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    given = json.loads(sys.stdin.read())
    try:
        with without_driver_warning(), as_perfctl_error():
            found = {"found": _step(given)}
    except PerfctlError as error:
        kind = next(name for name, one in ERRORS.items() if isinstance(error, one))
        found = {"error": {"kind": kind, "message": error.message, "remedy": error.remedy}}
    with answers:
        print(json.dumps(found), file=answers)


def _step(given: Any) -> Any:
    from perfctl.workloads.compiling import inductor

    request, batch = codec.decode(given, StepAsked)
    session = open_session(request)
    shapes = [one.at(batch) for one in session.facts.inputs]
    dtypes = [one.dtype for one in session.facts.inputs]
    found = inductor.compiled_step(
        session.source, shapes, dtypes, train=request.mode == "train", precision=request.precision
    )
    return codec.encode(found, CompiledStep)


if __name__ == "__main__":
    main()
