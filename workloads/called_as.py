"""Find the name under which a script calls a module: "model" in ``model(x)``, "netD" in ``self.netD(real)``.

The name comes from the source line of the call. Local variables are not inspected: CPython 3.11 and 3.12 keep a frame's
``f_locals`` with the frame, which would keep tensors alive and change the memory of a step.
"""

from __future__ import annotations

import linecache
import re
import sys
from itertools import islice
from types import CodeType, FrameType
from typing import Any

_CALLED = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*|\[\d+\])*)\s*\(")
_GENERIC = frozenset({"fn", "func", "function", "f", "callable", "forward"})
"""Parameter names that say nothing about the module."""
_BETWEEN = ("torch.nn.modules.module", "torch._dynamo", "torch.utils._contextlib", "perfctl.workloads")
"""Modules with frames between the script and the hook."""


def called_as(module: object) -> str | None:
    """Dotted name, without ``self``, of ``module`` in the calling frame; None when it cannot be determined."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_BETWEEN):
        frame = frame.f_back
    if frame is None:
        return None
    found = _CALLED.match(_source(frame))
    if found is None:
        return None
    parts = found[1].replace("[", ".").replace("]", "").split(".")
    if not _is_local(frame.f_code, parts[0]) and _resolve(frame.f_globals, parts) is not module:
        return None
    if parts[-1] in ("__call__", "forward"):
        del parts[-1]
    if parts and parts[0] in ("self", "cls"):
        del parts[0]
    name = ".".join(parts)
    return None if not name or name in _GENERIC else name


def _source(frame: FrameType) -> str:
    """The source line, from the start of the running call; "" without source."""
    place = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    if place is None or place[0] is None or place[2] is None:
        return ""
    line = linecache.getline(frame.f_code.co_filename, place[0], frame.f_globals)
    return line.encode()[place[2] :].decode(errors="replace")


def _is_local(code: CodeType, name: str) -> bool:
    return name in code.co_varnames or name in code.co_cellvars or name in code.co_freevars


def _resolve(scope: dict[str, Any], parts: list[str]) -> object:
    """The object with a dotted global name, found without running code of the script."""
    found: Any = scope.get(parts[0])
    for part in parts[1:]:
        own = getattr(found, "__dict__", {})
        below = own.get("_modules") or {}
        found = own[part] if part in own else below.get(part)
    return found
