"""What torch.compile makes of a model, worked out in a process of its own and kept for the next call.

The user's file is code: it runs in that process, ``python -P -m perfctl.orchestrator.actions.gate.compiled``, and never in this
one. The process gets a request and a batch size as JSON on stdin, answers with one line on stdout, and ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from perfctl.orchestrator.actions.estimate import as_perfctl_error, open_session, without_driver_warning
from perfctl.orchestrator.actions.estimate_request import Request
from perfctl.orchestrator.actions.trace_cache import kept_traces
from perfctl.orchestrator.errors import PerfctlError, ToolMissing, UsageError
from perfctl.records import codec
from perfctl.records.compiled import CompiledStep

COMPILER = "perfctl.orchestrator.actions.gate.compiled"
"""The module that is run as a process; its ``__name__`` there is another."""
_LIMIT_S = 900
_ERRORS = {"missing": ToolMissing, "usage": UsageError, "failed": PerfctlError}
_Compilation = tuple[Request, int]


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
    """What the process answers."""
    line = json.dumps(codec.encode((request, batch), _Compilation))
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
        kind, *text = answer["error"]
        raise _ERRORS[kind](*text)
    found: CompiledStep = codec.decode(answer["found"], CompiledStep)
    return found


def main() -> None:
    """The process."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    request, batch = codec.decode(json.loads(sys.stdin.read()), _Compilation)
    try:
        with without_driver_warning(), as_perfctl_error():
            answer = {"found": codec.encode(_compile(request, batch), CompiledStep)}
    except PerfctlError as error:
        kind = next(name for name, one in _ERRORS.items() if isinstance(error, one))
        answer = {"error": [kind, error.message, error.remedy]}
    with answers:
        print(json.dumps(answer), file=answers)


def _compile(request: Request, batch: int) -> CompiledStep:
    from perfctl.workloads.compiling import inductor

    session = open_session(request)
    shapes = [one.at(batch) for one in session.facts.inputs]
    dtypes = [one.dtype for one in session.facts.inputs]
    return inductor.compiled_step(
        session.source, shapes, dtypes, train=request.mode == "train", precision=request.precision
    )


if __name__ == "__main__":
    main()
