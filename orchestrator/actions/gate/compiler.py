"""The process that compiles for a gate; ``compiled.py`` starts it::

    python -P -m perfctl.orchestrator.actions.gate.compiler

It gets one line of JSON on stdin, answers with one on stdout, and ends. It imports torch and triton, and runs the user's file.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from perfctl.orchestrator.actions.estimate import as_perfctl_error, open_session, without_driver_warning
from perfctl.orchestrator.actions.gate.compiled import ERRORS, KernelsFound, StepAsked
from perfctl.orchestrator.errors import PerfctlError, ToolMissing
from perfctl.records import codec
from perfctl.records.compiled import CompiledStep, KernelAsked


def main() -> None:
    """The process."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    given = json.loads(sys.stdin.read())
    try:
        with without_driver_warning(), as_perfctl_error():
            found: dict[str, Any] = {"found": _HOW[given["what"]](given["asked"])}
    except PerfctlError as error:
        kind = next(name for name, one in ERRORS.items() if isinstance(error, one))
        found = {"error": {"kind": kind, "message": error.message, "remedy": error.remedy}}
    with answers:
        print(json.dumps(found), file=answers)


def _triton(given: Any) -> Any:
    from perfctl.orchestrator.actions.count.static import static
    from perfctl.orchestrator.actions.traces import user_code
    from perfctl.workloads.compiling import triton_kernel

    asked = codec.decode(given, KernelAsked)
    missing = triton_kernel.lacking(asked.targets)
    if missing is not None:
        raise ToolMissing(missing, "Install it again: pip install triton (a CUDA build of torch brings it)")
    with tempfile.TemporaryDirectory(prefix="perfctl-") as made:
        cubins = triton_kernel.compiled(asked, Path(made))
        kernels = tuple(one for cubin in cubins for one in static(cubin, keep=False))
    files = user_code.files_of(triton_kernel.module_name(asked))
    listed = None if files is None else tuple(map(str, files))
    found = KernelsFound(kernels, triton_kernel.versions(asked.targets), listed)
    return codec.encode(found, KernelsFound)


def _model(given: Any) -> Any:
    from perfctl.workloads.compiling import inductor

    request, batch = codec.decode(given, StepAsked)
    session = open_session(request)
    shapes = [one.at(batch) for one in session.facts.inputs]
    dtypes = [one.dtype for one in session.facts.inputs]
    found = inductor.compiled_step(
        session.source, shapes, dtypes, train=request.mode == "train", precision=request.precision
    )
    return codec.encode(found, CompiledStep)


_HOW = {"triton": _triton, "model": _model}

if __name__ == "__main__":
    main()
