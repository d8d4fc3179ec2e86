"""Layers of CUDA graphs: a graph that is captured before the window opens gets ranges while it
is captured.

Replays call no module, so the ranges of the window do not reach their kernels. nsys notes on which
thread and when each node of a graph was created; with the ranges of that time it says whose kernel
it is. Imports torch.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import torch

from perfctl.workloads.run.annotate import LayerRangeAnnotator
from perfctl.workloads.run.clock import RangeBackend
from perfctl.workloads.script.options import ScriptOptions
from perfctl.workloads.tracing.layers import ModuleNames
from perfctl.workloads.tracing.versions import replace_attribute

_UNDER_NSYS = "NSYS_PROFILING_SESSION_ID"
"""Set by nsys in the program that it starts. Under ncu an early start would count the kernels of
the warm-up, too."""


class GraphCaptureWatch:
    """While started: opens the ranges of layers during each capture, and lets nsys record from the
    first one on."""

    def __init__(
        self,
        options: ScriptOptions,
        ranges: RangeBackend,
        names: ModuleNames,
        is_open: Callable[[], bool],
    ) -> None:
        """``is_open``: whether the window is open, whose ranges a capture inside it has."""
        self._ranges, self._names, self._is_open = ranges, names, is_open
        self._wanted = options.annotate != "none"
        self._starts_early = options.window == "cuda" and _UNDER_NSYS in os.environ
        self._annotator: LayerRangeAnnotator | None = None
        self._undo = ExitStack()

    def start(self) -> None:
        graph: Any = getattr(torch.cuda, "CUDAGraph", None)
        if self._wanted and hasattr(graph, "capture_begin"):
            for name in ("capture_begin", "capture_end"):
                self._undo.callback(
                    replace_attribute(
                        graph, name, self._wrap_capture_call(name, getattr(graph, name))
                    )
                )

    def stop(self) -> None:
        self._close_capture_ranges()
        self._undo.close()

    def _wrap_capture_call(self, name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        is_begin = name == "capture_begin"

        @functools.wraps(inner)
        def capture(*args: Any, **kwargs: Any) -> Any:
            if is_begin:
                with suppress(Exception):  # an error of perfctl's own is none of the script's
                    self._open_capture_ranges()
            try:
                result = inner(*args, **kwargs)
            except BaseException:
                self._close_capture_ranges()
                raise
            if not is_begin:
                self._close_capture_ranges()
            return result

        return capture

    def _open_capture_ranges(self) -> None:
        """Before the capture begins: during it CUDA refuses what is no work of a stream."""
        if self._is_open() or self._annotator is not None:
            return
        if self._starts_early:
            self._starts_early = False
            torch.cuda.profiler.start()
        self._annotator = LayerRangeAnnotator(self._ranges, None, self._names)
        self._annotator.__enter__()

    def _close_capture_ranges(self) -> None:
        annotator, self._annotator = self._annotator, None
        if annotator is not None:
            annotator.__exit__()
