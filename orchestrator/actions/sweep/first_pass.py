"""One plain step under torch.profiler before ncu: what it launches, and which layers repeat another."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from perfctl import parsers
from perfctl.orchestrator.actions.wall import memory
from perfctl.orchestrator.actions.wall.items import answer
from perfctl.orchestrator.analyse.kernels.repeats import FirstPass, first_pass, read_first_pass
from perfctl.orchestrator.errors import PerfctlError, RunFailed
from perfctl.orchestrator.launch.profilers.base import Profiler
from perfctl.orchestrator.launch.profilers.ncu import FIRST_PASS, Ncu
from perfctl.orchestrator.launch.profilers.torch import TorchProfiler
from perfctl.orchestrator.launch.sweep import sweep as sweeps
from perfctl.orchestrator.launch.sweep.folders import attempts, is_whole, read_run_record, write_json
from perfctl.orchestrator.launch.sweep.request import Listener, SweepRequest
from perfctl.records.report import Kernel


@dataclass(frozen=True, slots=True)
class PlainStep:
    """What one plain step at one batch size launched."""

    kernels: tuple[Kernel, ...]
    found: FirstPass


def plain_step(request: SweepRequest, batch: int, listener: Listener, plain: Profiler | None = None) -> PlainStep:
    """Run one step of the request's program without ncu. ``plain``: what records it; None for torch.profiler.

    What it leaves is read by a child with a limit on memory. Raises RunFailed when the step does not run, or its report
    cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="perfctl-first-") as folder:
        one = replace(
            request, profiler=plain or TorchProfiler(), batches=(batch,), out=Path(folder), given_name="first", again=False,
            repeat=1, alongside=False, sample_s=None,
        )  # fmt: skip
        result = sweeps.run(one, listener)[0]
        if result.status == "failed":
            raise RunFailed(f"the plain step did not run: {result.reason}", "perfctl torch --steps 1 shows why")
        try:
            kernels, found = answer("the plain step", partial(_read, result.folder), memory.bytes_of(None))
        except PerfctlError as error:
            raise RunFailed(f"what the plain step left cannot be read: {error}") from error
        return PlainStep(tuple(Kernel(*kernel) for kernel in kernels), read_first_pass(found))


def _read(folder: Path) -> tuple[list[Kernel], dict[str, Any]]:
    """The launches of the run in this folder, and the first pass in its JSON form. Raises ReportError."""
    record = read_run_record(folder) or {}
    kernels = list(parsers.parse(folder / str(record["artifact"])).kernels)
    own = folder / "workload.json"
    ops = parsers.parse(own).ops if own.is_file() else ()
    return kernels, first_pass(kernels, ops).as_json()


def with_first_pass(request: SweepRequest, listener: Listener) -> SweepRequest:
    """The request with a file for each batch size of what its plain step launched, where ncu is to leave out launches that
    repeat another; any other request as it is. The files are in the sweep's folder."""
    ncu = request.profiler
    if not isinstance(ncu, Ncu) or ncu.launches != "distinct" or request.origin != "measured":
        return request
    request = replace(request, given_name=request.name)
    folder = request.folder.absolute() / FIRST_PASS
    for batch in request.batches:
        whole = [path for path in attempts(request.folder, batch) if is_whole(path)]
        if len(whole) >= request.repeat and not request.again:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        found = plain_step(request, batch, replace(listener, finished=lambda result: None)).found
        write_json(folder / f"b{batch}.json", found.as_json())
        listener.noted(_said(batch, found))
    return replace(request, profiler=replace(ncu, first_pass=folder))


def _said(batch: int, found: FirstPass) -> str:
    return f"batch {batch}: {found.all_launches:,} launches; {found.saved:,} repeat another and are not replayed"
