"""Backends for ranges: NVTX for nsys and ncu, record_function for torch.profiler, or none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from perfctl.workloads.spec import WorkloadError

_enter: Any = torch._C._autograd._record_function_with_args_enter
_leave: Any = torch._C._autograd._record_function_with_args_exit
_is_listening: Any = torch._C._autograd._profiler_enabled
"""Whether torch.profiler records this thread; also right for autograd's threads."""


class Backend(Protocol):
    """Receives ranges. Both methods are called from any thread; ranges nest per thread."""

    def push(self, name: str) -> None: ...

    def pop(self) -> None: ...


class NvtxRanges:
    """NVTX push/pop ranges, for nsys and ncu. Raises WorkloadError when this torch has no NVTX."""

    def __init__(self) -> None:
        nvtx = getattr(torch._C, "_nvtx", None)
        if nvtx is None:
            raise WorkloadError(
                "`annotate` nvtx needs a CUDA build of torch, which also runs without a GPU; "
                "set `annotate` to record_function for this build"
            )
        self.push = nvtx.rangePushA
        self.pop = nvtx.rangePop


class RecordFunctionRanges:
    """torch.profiler ranges ("user_annotation" in a Kineto trace).

    Uses the functions of torch's own tracers, at a quarter of the cost of torch.profiler.record_function, which goes
    through the dispatcher. Without a running profiler there are no ranges.
    """

    def __init__(self) -> None:
        self._local = _OpenRanges()

    def push(self, name: str) -> None:
        self._local.handles.append(_enter(name) if _is_listening() else None)

    def pop(self) -> None:
        handle = self._local.handles.pop()
        if handle is not None:
            _leave(handle)


class _OpenRanges(threading.local):
    """Handles of the open ranges of one thread."""

    def __init__(self) -> None:
        self.handles: list[Any] = []


class NoRanges:
    """Ignores ranges."""

    def push(self, name: str) -> None:
        pass

    def pop(self) -> None:
        pass


def make_backend(kind: str) -> Backend:
    """The backend ``kind``, one of spec.ANNOTATIONS. Raises WorkloadError when it cannot work here."""
    if kind == "nvtx":
        return NvtxRanges()
    return RecordFunctionRanges() if kind == "record_function" else NoRanges()


@contextmanager
def span(backend: Backend, name: str) -> Iterator[None]:
    """A range around the block, closed even after an exception."""
    backend.push(name)
    try:
        yield
    finally:
        backend.pop()
