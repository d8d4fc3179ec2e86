"""Tell a profiler where the measured steps start and end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from perfctl.parsers.records import Gap
from perfctl.workloads.spec import Options, WorkloadError


def make_window(options: Options) -> AbstractContextManager[None]:
    """The context for the measured steps."""
    if options.window == "torch":
        assert options.trace is not None
        return _torch_window(options.trace, options.device)
    if options.window == "cuda" and options.device == "cuda":
        return _cuda_window()
    return nullcontext()


def window_gaps(options: Options) -> list[Gap]:
    """A gap when the window does not work on this device."""
    if options.window == "cuda" and options.device != "cuda":
        reason = "cudaProfilerStart needs a GPU; the NVTX range perfctl:window marks the measured steps instead"
        return [Gap("window:cuda", "not_available", reason)]
    return []


@contextmanager
def _cuda_window() -> Iterator[None]:
    """cudaProfilerStart and cudaProfilerStop, synchronised so that no kernel of another step is inside."""
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    try:
        yield
    finally:
        try:
            torch.cuda.synchronize()
        finally:
            torch.cuda.profiler.stop()


@contextmanager
def _torch_window(trace: Path, device: str) -> Iterator[None]:
    """torch.profiler over the block; writes ``trace`` atomically, even when a step raises."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        torch.cuda.synchronize()
    profiler = torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True)
    profiler.start()
    _name_rank(profiler)
    try:
        yield
    finally:
        try:
            if device == "cuda":
                torch.cuda.synchronize()
        finally:
            profiler.stop()
            _export(profiler, trace)


def _name_rank(profiler: Any) -> None:
    """Set rank 0 in the trace of a program that is not distributed, for HTA. torch sets the ranks of a distributed one."""
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not several:
        profiler.add_metadata_json("distributedInfo", json.dumps({"rank": 0}))


def _export(profiler: Any, trace: Path) -> None:
    part = trace.with_name(f".part-{trace.name}")
    try:
        trace.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(part))
        part.replace(trace)
    except OSError as error:
        raise WorkloadError(f"cannot write the trace {trace}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
