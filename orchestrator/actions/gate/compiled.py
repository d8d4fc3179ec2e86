"""What torch.compile makes of a model, worked out in a process of its own and kept for the next call.

The user's file is code: it runs in the process that :mod:`.compiler` is, never in this one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from perfctl.orchestrator.actions.estimate_request import Request
from perfctl.orchestrator.actions.traces.named import kept_traces
from perfctl.orchestrator.errors import PerfctlError, ToolMissing, UsageError
from perfctl.records import codec
from perfctl.records.compiled import CompiledStep

COMPILER = "perfctl.orchestrator.actions.gate.compiler"
_LIMIT_S = 900
ERRORS = {"missing": ToolMissing, "usage": UsageError, "failed": PerfctlError}
StepAsked = tuple[Request, int]


def compiled_step(request: Request, batch: int) -> CompiledStep:
    """What torch.compile makes of a model that :func:`.estimate_model` has just built. Raises PerfctlError."""
    kept = kept_traces(request)
    found = kept.get(CompiledStep, "compiled", batch) if kept is not None else None
    if found is None:
        found = _ask(request, batch)
        again = kept_traces(request)  # None of its files changed while it was compiled
        if again is not None and found.problem is None:
            again.put(CompiledStep, found, "compiled", batch)
    return found


def _ask(request: Request, batch: int) -> CompiledStep:
    """What the compiler's process answers."""
    line = json.dumps(codec.encode((request, batch), StepAsked))
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    try:
        done = subprocess.run(
            (sys.executable, "-P", "-m", COMPILER), input=line, capture_output=True, text=True, errors="replace",
            timeout=_LIMIT_S, check=False, env=environment, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise PerfctlError(f"the compiler did not end within {_LIMIT_S} s") from error
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        said = [one.strip() for one in done.stderr.splitlines() if one.strip()][-1:]
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        words = said[0][:200] if said else "no word"
        raise PerfctlError(f"the process that compiles ended with {ended}: {words}") from None
    if "error" in answer:
        told = answer["error"]
        raise ERRORS[told["kind"]](told["message"], told["remedy"])
    found: CompiledStep = codec.decode(answer["found"], CompiledStep)
    return found
