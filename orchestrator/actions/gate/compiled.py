"""What compilers make of a Triton kernel and of a model, worked out in a process of its own and kept for the next call.

The user's file is code: it runs in the process that :mod:`.compiler` is, never in this one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from perfctl.orchestrator.actions.count.static import tools
from perfctl.orchestrator.actions.estimate import Request
from perfctl.orchestrator.actions.traces.kept import kept_for
from perfctl.orchestrator.actions.traces.named import kept_traces
from perfctl.orchestrator.analyse.derived.code.records import Static
from perfctl.orchestrator.errors import PerfctlError, ToolMissing, UsageError
from perfctl.records import codec
from perfctl.records.compiled import WARPS, CompiledStep, KernelAsked

COMPILER = "perfctl.orchestrator.actions.gate.compiler"
_LIMIT_S = 900
_OLDEST = 75
"""sm_75: the ptxas of Triton 3 knows none before."""
_TYPE = re.compile(r"(?P<name>\w+)=(?P<type>\*?\w+(?:<[^>]*>)?(?::\d+)?)")
_ARCH = re.compile(r"sm_(\d{2,3})")
_ITEM = re.compile(r",(?![^<\[(]*[>\])])")
ERRORS = {"missing": ToolMissing, "usage": UsageError, "failed": PerfctlError}
StepAsked = tuple[Request, int]


@dataclass(frozen=True, slots=True)
class KernelsFound:
    """A Triton kernel, compiled."""

    kernels: tuple[Static, ...]
    """One a target."""
    versions: dict[str, str]
    """Of Triton and ptxas."""
    files: tuple[str, ...] | None
    """Files that alone say what the kernel is; None where it reads more than these."""


def kernel_asked(given: Mapping[str, Any], folder: Path) -> KernelAsked:
    """A subject's kernel. Raises UsageError for what cannot be one."""
    place, colon, kernel = str(given["triton"]).rpartition(":")
    if not colon or not place.endswith(".py") or not kernel.isidentifier():
        raise UsageError(f"`triton`: '{given['triton']}' is not a kernel", "Write file.py:kernel")
    named = tuple(given.get("targets") or ())
    if not named:
        raise UsageError("`triton` needs `targets`", "Say for which GPU: `targets` sm_80, sm_90 or sm_100")
    targets = tuple(map(_target, named))
    warps = int(given.get("warps", WARPS))
    if warps not in (1, 2, 4, 8, 16, 32):
        raise UsageError(f"`warps` must be 1, 2, 4, 8, 16 or 32, got {warps}")
    stages = given.get("stages")
    if stages is not None and not (isinstance(stages, int) and stages > 0):
        raise UsageError(f"`stages` must be 1 or more, got {stages}")
    return KernelAsked(
        str(folder / place), kernel, targets, _pairs(given.get("signature", "")),
        tuple((name, str(value)) for name, value in dict(given.get("constants", {})).items()), warps, stages,
    )  # fmt: skip


def _target(words: str) -> int:
    found = _ARCH.fullmatch(words)
    if found is None:
        raise UsageError(f"`targets`: {words!r} is not a GPU that Triton compiles for", "Say sm_80, sm_90, sm_100, ...")
    if int(found[1]) < _OLDEST:
        raise UsageError(f"`targets`: Triton does not compile for {words}", f"It knows sm_{_OLDEST} and later")
    return int(found[1])


def _pairs(signature: str) -> tuple[tuple[str, str], ...]:
    found = []
    for item in filter(None, (one.strip() for one in _ITEM.split(signature))):
        said = _TYPE.fullmatch(item.replace(" ", ""))
        if said is None:
            raise UsageError(f"`signature`: '{item}' is not understood", "Write for instance x=*fp32,y=*fp32:16,n=i32")
        found.append((said["name"], said["type"]))
    return tuple(found)


def triton_kernels(asked: KernelAsked) -> KernelsFound:
    """A kernel's machine code for each target. Raises ToolMissing, UsageError, or PerfctlError for what does not compile."""
    if find_spec("triton") is None:
        raise ToolMissing(
            "Triton, which compiles the kernel, is not installed",
            "pip install triton (a CUDA build of torch brings it)",
        )
    if not Path(asked.file).is_file():
        raise UsageError(f"`triton`: there is no file {asked.file}", "Write file.py:kernel")
    path = Path(asked.file).absolute()
    kept = kept_for(replace(asked, file=str(path)), beside=path.parent)
    found = kept.get(KernelsFound, "kernels", tools()) if kept is not None else None
    if found is None:
        found = _ask("triton", asked, KernelAsked, KernelsFound)
        if kept is not None and all(one.instructions is not None for one in found.kernels):
            kept.made_from(None if found.files is None else list(map(Path, found.files)))
            kept.put(KernelsFound, found, "kernels", tools())
    return found


def compiled_step(request: Request, batch: int) -> CompiledStep:
    """What torch.compile makes of a model that :func:`.estimate_model` has just built. Raises PerfctlError."""
    kept = kept_traces(request)
    found = kept.get(CompiledStep, "compiled", batch) if kept is not None else None
    if found is None:
        found = _ask("model", (request, batch), StepAsked, CompiledStep)
        again = kept_traces(request)  # None of its files changed while it was compiled
        if again is not None and found.problem is None:
            again.put(CompiledStep, found, "compiled", batch)
    return found


def _ask(what: str, asked: Any, kind: Any, answers: Any) -> Any:
    """What the compiler's process answers, of type ``answers``; asked: of type ``kind``."""
    line = json.dumps({"what": what, "asked": codec.encode(asked, kind)})
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
    return codec.decode(answer["found"], answers)
