"""Time steps and phases: with CUDA events on a GPU, with the monotonic clock on a CPU."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from perfctl.records.report import CPU_OTHERS, CPU_WAIT, Gap, Step, Summary
from perfctl.workloads.spec import WorkloadError, write_file_atomically
from perfctl.workloads.tracing.versions import get_profiler_range_functions

_TASKS = Path("/proc/self/task")
_ORIGINS = "TORCH_COMPILE_DEBUG_EXTEND"

_everywhere: list[bool] = []
"""Whether the running window records all threads; each is then told that no profiler runs in it."""


class DeviceClock:
    """For a CPU, where a call returns when its operation is complete.

    Marks are cheap and never wait; their times are read after ``wait_for_marks``.
    """

    kind = "monotonic"

    def record_mark(self) -> Any:
        return time.monotonic_ns()

    def wait_for_marks(self) -> None:
        """Wait for the device to reach every mark."""

    def get_mark_time_ns(self, mark: Any) -> int:
        """On the host's monotonic clock."""
        return int(mark)

    def measure_ns_between(self, start: Any, end: Any) -> int:
        return int(end - start)


class CpuWaitMeter:
    """From here on: how much of the time that the threads of this process wanted to run they waited
    for a core, and how busy other processes kept the cores.

    The Linux scheduler counts both: /proc/PID/task/TID/schedstat has nanoseconds on a core and in
    its queue, /proc/stat the ticks of all cores. Caches that others fill are in neither.
    """

    def __init__(self) -> None:
        self._threads, self._cores, self._own_s = (
            _read_thread_run_wait_ns(),
            _read_busy_total_core_seconds(),
            time.process_time(),
        )

    def summarize_cpu_wait_shares(self) -> list[Summary]:
        """Shares, 0..1; none where the system does not count them."""
        own_s, cores, summaries = (
            time.process_time() - self._own_s,
            _read_busy_total_core_seconds(),
            [],
        )
        ran = waited = 0
        for thread, times in _read_thread_run_wait_ns().items():
            before = self._threads.get(thread, (0, 0))
            ran, waited = ran + times[0] - before[0], waited + times[1] - before[1]
        if ran > 0:
            summaries.append(Summary(CPU_WAIT, waited / (ran + waited), "ratio"))
        if self._cores is not None and cores is not None:
            busy, total = cores[0] - self._cores[0], cores[1] - self._cores[1]
            if total > 0:
                other_share = min(max((busy - own_s) / total, 0.0), 1.0)
                summaries.append(Summary(CPU_OTHERS, other_share, "ratio"))
        return summaries


def _read_thread_run_wait_ns() -> dict[str, tuple[int, int]]:
    """Thread -> nanoseconds that it ran, and that it waited to run."""
    times = {}
    with suppress(OSError):
        for thread in _TASKS.iterdir():
            with suppress(OSError, ValueError):  # it ended meanwhile
                ran, waited, _ = (thread / "schedstat").read_text().split()
                times[thread.name] = int(ran), int(waited)
    return times


def _read_busy_total_core_seconds() -> tuple[float, float] | None:
    """Return seconds of all cores since the system began: busy, and in all; None where the system
    does not say."""
    with suppress(OSError, ValueError):
        name, *ticks = Path("/proc/stat").read_text().partition("\n")[0].split()
        seconds = [int(count) / os.sysconf("SC_CLK_TCK") for count in ticks[:8]]
        if name == "cpu":
            # user, nice, system, idle, waiting for devices; what a hypervisor took is busy, too
            return sum(seconds) - seconds[3] - seconds[4], sum(seconds)
    return None


class CudaEventClock(DeviceClock):
    """For a GPU: events in the stream, so that no phase waits for the one before."""

    kind = "device_events"

    def __init__(self) -> None:
        torch.cuda.synchronize()
        self._base = self.record_mark()
        torch.cuda.synchronize()
        self._base_ns = time.monotonic_ns()

    def record_mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait_for_marks(self) -> None:
        torch.cuda.synchronize()

    def get_mark_time_ns(self, mark: torch.cuda.Event) -> int:
        return self._base_ns + self.measure_ns_between(self._base, mark)

    def measure_ns_between(self, start: torch.cuda.Event, end: torch.cuda.Event) -> int:
        # elapsed_time returns milliseconds with a resolution of about half a microsecond.
        milliseconds: float = start.elapsed_time(end)
        return round(milliseconds * 1e6)


def make_device_clock(device: str) -> DeviceClock:
    return CudaEventClock() if device == "cuda" else DeviceClock()


def sort_steps_by_start(rows: Iterable[Step]) -> list[Step]:
    """By start time, a step before its phases."""
    return sorted(rows, key=lambda row: (row.start_ns or 0, -(row.duration_ns or 0)))


class StepTimeline:
    """Collects marks while steps run, and turns them into Step rows afterwards."""

    def __init__(self, clock: DeviceClock) -> None:
        self.clock = clock
        self._spans: list[tuple[int, str, Any, Any]] = []
        self._scores: dict[tuple[int, str], tuple[Tensor | float | None, float | None]] = {}

    @contextmanager
    def time_block(self, number: int, phase: str) -> Iterator[None]:
        """Time a block; a block that raises leaves no row."""
        start = self.clock.record_mark()
        yield
        self._spans.append((number, phase, start, self.clock.record_mark()))

    def set_loss_and_accuracy(
        self, number: int, phase: str, loss: Tensor | float | None, accuracy: float | None = None
    ) -> None:
        """Set a row's loss (a scalar, left on its device until ``build_step_rows``) and accuracy
        (0..1)."""
        self._scores[number, phase] = loss.detach() if isinstance(loss, Tensor) else loss, accuracy

    def build_step_rows(self) -> list[Step]:
        self.clock.wait_for_marks()
        rows = []
        for number, phase, start, end in self._spans:
            loss, accuracy = self._scores.get((number, phase), (None, None))
            times = self.clock.get_mark_time_ns(start), self.clock.measure_ns_between(start, end)
            rows.append(
                Step(number, phase, *times, None if loss is None else float(loss), accuracy)
            )
        return sort_steps_by_start(rows)


def make_measured_window(
    window: str, device: str, trace: Path | None, all_threads: bool = False
) -> AbstractContextManager[None]:
    """Return the context for the measured steps; ``window``: one of spec.WINDOWS. ``all_threads``:
    torch.profiler records every thread, where it can."""
    if window == "torch":
        assert trace is not None
        return _record_with_torch_profiler(trace, device, all_threads)
    if window == "cuda" and device == "cuda":
        return _capture_with_cuda_profiler()
    return nullcontext()


def explain_unusable_window(window: str, device: str) -> list[Gap]:
    """Return a gap when the window does not work on this device."""
    if window == "cuda" and device != "cuda":
        reason = (
            "cudaProfilerStart needs a GPU; the NVTX range perfctl:window marks the measured steps "
            "instead"
        )
        return [Gap("window:cuda", "not_available", reason)]
    return []


@contextmanager
def _capture_with_cuda_profiler() -> Iterator[None]:
    """cudaProfilerStart and cudaProfilerStop, synchronised so that no kernel of another step
    is inside."""
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
def _record_with_torch_profiler(trace: Path, device: str, all_threads: bool) -> Iterator[None]:
    """torch.profiler over the block; writes ``trace`` atomically, even when a step raises."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        torch.cuda.synchronize()
    settings = _make_all_threads_profiler_arguments() if all_threads else {}
    # torch 1.9 and later; 1.8.1 never ends with it
    memory = hasattr(torch.profiler.profile, "add_metadata_json")
    profiler = torch.profiler.profile(
        activities=activities, record_shapes=True, profile_memory=memory, **settings
    )
    profiler.__enter__()  # torch 1.8 has neither start nor stop
    _everywhere.append(bool(settings))
    rank_is_known = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not rank_is_known and hasattr(profiler, "add_metadata_json"):
        # HTA needs a rank; torch sets those of a distributed program.
        profiler.add_metadata_json("distributedInfo", json.dumps({"rank": 0}))
    try:
        yield
    finally:
        try:
            if device == "cuda":
                torch.cuda.synchronize()
        finally:
            _everywhere.pop()
            profiler.__exit__(None, None, None)
            with write_file_atomically(trace, "trace") as part:
                _export_trace(profiler, part)


def _export_trace(profiler: torch.profiler.profile, path: Path) -> None:
    # torch itself compresses line by line, which takes three times as long
    if path.suffix == ".gz":
        with TemporaryDirectory() as folder:
            plain = Path(folder, "trace.json")
            _export_trace(profiler, plain)
            with plain.open("rb") as trace, gzip.open(path, "wb", compresslevel=6) as packed:
                shutil.copyfileobj(trace, packed, 1 << 20)
    else:
        profiler.export_chrome_trace(str(path))
        _add_inductor_source_lines(path)


def _add_inductor_source_lines(path: Path) -> None:
    """Where the user asked Inductor for them: the Python lines that each fused kernel comes from.
    torch (2.14) adds them only to traces that its own handler writes."""
    if os.environ.get(_ORIGINS) == "1":
        with suppress(Exception):  # the trace is whole without them
            importlib.import_module("torch._inductor.profiler")._add_inductor_provenance(str(path))


def _make_all_threads_profiler_arguments() -> dict[str, Any]:
    """Arguments for torch.profiler to record every thread, and to be stopped by any; empty for
    versions that cannot (2.4)."""
    try:
        return {
            "experimental_config": torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        }
    except (AttributeError, TypeError):
        return {}


_enter, _leave = get_profiler_range_functions()
_is_listening: Any = torch._C._autograd._profiler_enabled
"""Whether torch.profiler records this thread; also right for autograd's threads."""


class RangeBackend:
    """Receives ranges, and ignores them. Both methods are called from any thread; ranges nest
    per thread."""

    def push(self, name: str) -> None:
        pass

    def pop(self) -> None:
        pass


class NvtxRanges(RangeBackend):
    """NVTX push/pop ranges, for nsys and ncu. Raises WorkloadError when this torch has no NVTX."""

    def __init__(self) -> None:
        nvtx = getattr(torch._C, "_nvtx", None)
        if nvtx is None:
            needed = "`annotate` nvtx needs a CUDA build of torch, which also runs without a GPU"
            raise WorkloadError(f"{needed}; set `annotate` to record_function for this build")
        self.push, self.pop = nvtx.rangePushA, nvtx.rangePop  # type: ignore[method-assign]


class OpenRanges(threading.local):
    """What a backend keeps of the open ranges of one thread: autograd has its own thread for
    a GPU."""

    def __init__(self) -> None:
        self.stack: list[Any] = []


class RecordFunctionRanges(RangeBackend):
    """torch.profiler ranges ("user_annotation" in a Kineto trace).

    Uses the functions of torch's own tracers, at a quarter of the cost of
    torch.profiler.record_function, which goes through the dispatcher. Without a running profiler
    there are no ranges.
    """

    def __init__(self) -> None:
        self._open = OpenRanges()

    def push(self, name: str) -> None:
        self._open.stack.append(
            _enter(name) if _is_listening() or (_everywhere and _everywhere[-1]) else None
        )

    def pop(self) -> None:
        handle = self._open.stack.pop()
        if handle is not None:
            _leave(handle)


class OwnRanges(RangeBackend):
    """Passes ranges on, and closes only those that the same thread opened: another cannot
    close them."""

    def __init__(self, backend: RangeBackend) -> None:
        self._backend = backend
        self._open = OpenRanges()

    def push(self, name: str) -> None:
        self._backend.push(name)
        self._open.stack.append(name)

    def pop(self) -> None:
        if self._open.stack:
            self._open.stack.pop()
            self._backend.pop()


def make_range_backend(kind: str) -> RangeBackend:
    """Return the backend ``kind``, one of spec.ANNOTATIONS. Raises WorkloadError when it cannot
    work here."""
    if kind == "nvtx":
        return NvtxRanges()
    return RecordFunctionRanges() if kind == "record_function" else RangeBackend()


@contextmanager
def mark_range(backend: RangeBackend, name: str) -> Iterator[None]:
    """A range around the block, closed even after an exception."""
    backend.push(name)
    try:
        yield
    finally:
        backend.pop()
