"""Where ranges go: NVTX for nsys and ncu, record_function for torch.profiler, or nowhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from perfctl.workloads.spec import WorkloadError


class Backend(Protocol):
    """Where ranges go. Both calls come from any thread; ranges nest per thread."""

    def push(self, name: str) -> None: ...

    def pop(self) -> None: ...


class NvtxRanges:
    """NVTX push/pop ranges, for nsys and ncu. Raises WorkloadError when this torch has no NVTX."""

    def __init__(self) -> None:
        from torch.cuda import nvtx

        if not hasattr(torch._C, "_nvtx"):
            raise WorkloadError(
                "--annotate nvtx needs a CUDA build of torch, which also runs without a GPU; "
                "use --annotate record_function with this one"
            )
        self.push = nvtx.range_push
        self.pop = nvtx.range_pop


class RecordFunctionRanges:
    """torch.profiler ranges ("user_annotation" in a Kineto trace)."""

    def __init__(self) -> None:
        self._local = threading.local()

    def push(self, name: str) -> None:
        if not hasattr(self._local, "open"):
            self._local.open = []
        entered = torch.profiler.record_function(name)
        entered.__enter__()
        self._local.open.append(entered)

    def pop(self) -> None:
        self._local.open.pop().__exit__(None, None, None)


class NoRanges:
    """Puts nothing down."""

    def push(self, name: str) -> None:
        pass

    def pop(self) -> None:
        pass


def make_backend(kind: str) -> Backend:
    """``kind`` is one of spec.ANNOTATIONS. Raises WorkloadError when it cannot work here."""
    if kind == "nvtx":
        return NvtxRanges()
    return RecordFunctionRanges() if kind == "record_function" else NoRanges()


@contextmanager
def span(backend: Backend, name: str) -> Iterator[None]:
    """A range around a block, closed whatever happens."""
    backend.push(name)
    try:
        yield
    finally:
        backend.pop()
