"""Tells a profiler where the measured steps begin and end."""

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
    """The context that the measured steps run in."""
    if options.window == "torch":
        assert options.trace is not None
        return _torch_window(options.trace, options.device)
    if options.window == "cuda" and options.device == "cuda":
        return _cuda_window()
    return nullcontext()


def window_gaps(options: Options) -> list[Gap]:
    """What the wanted window cannot do on this device."""
    if options.window == "cuda" and options.device != "cuda":
        reason = "cudaProfilerStart needs a GPU; the range perfctl:window marks the measured steps instead"
        return [Gap("window:cuda", "not_available", reason)]
    return []


@contextmanager
def _cuda_window() -> Iterator[None]:
    """cudaProfilerStart and cudaProfilerStop, with no kernel of a neighbouring step inside."""
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
    """torch.profiler over the block; its trace appears under ``trace`` whole or not at all, also when a step raises."""
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
    """Rank 0 of a program that is not distributed: HTA asks for a rank. torch names it itself where there are several."""
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
        raise WorkloadError(f"the trace {trace} could not be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
