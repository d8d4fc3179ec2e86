"""Write the record of a script's run at its start and end. Does not import torch."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler import profile

from perfctl.records.paper import OpShape
from perfctl.records.report import Gap
from perfctl.workloads.run import setup as run_setup
from perfctl.workloads.run.record import Record
from perfctl.workloads.run.setup import tf32_is_on
from perfctl.workloads.script.options import ScriptOptions
from perfctl.workloads.script.shapes import Shapes
from perfctl.workloads.script.steps import StepMarker
from perfctl.workloads.spec import WorkloadError, first_line, utf8
from perfctl.workloads.tracing.composites import Region

OTHER_LOOPS = "If it trains in other processes, start it with torchrun; if its steps end differently, set --step-marker"


def why_fewer(name: str, options: ScriptOptions, marker: StepMarker, done: int) -> str:
    """Why ``done`` measured steps are fewer than requested; "" when they are not. Names options of this process."""
    if done >= options.steps:
        return ""
    if not marker.optimizer_steps and not marker.calls and not marker.steps:
        return f"{name}: no optimizer stepped and no module was called. {OTHER_LOOPS}"
    if done:
        return f"{name} ended after {done} of {options.steps} measured steps. Give it more data, or reduce --steps"
    seen = f"{marker.optimizer_steps} optimizer steps and {marker.calls} calls of models"
    if not marker.steps and (marker.kind, marker.named) != ("auto", None):
        asked = marker.kind if marker.named is None else f"{marker.kind}:{marker.named}"
        return f"{name}: {seen}, but --step-marker {asked} found no end of a step. Use another marker, or omit it"
    if not marker.steps:
        return f"{name}: {seen}, but no end of a step. Set --step-marker to what ends one"
    few = f"{marker.steps} steps (each ends with {marker.in_words()}; {seen})"
    return f"{name} ended after {few}, before one was measured. Give it more data, or reduce --warmup"


class Keeper:
    """Writes the record of a script at its start, when the window closes, and at its end."""

    def __init__(self, options: ScriptOptions) -> None:
        self.options = options
        self.name = utf8(options.command.name)
        template = options.template()
        self.record = Record(
            workload=self.name,
            batch_size=options.batch_size,
            mode=None,
            precision=None,
            seed=None,
            variant=None if template is None else utf8(template),
            options={
                "command": utf8(shlex.join(options.command.words)),
                "steps": options.steps,
                "warmup": options.warmup,
                "batch_env": options.batch_env,
                "batch_size": options.batch_size,
            },
        )
        self._process = os.getpid()
        self.before_end: Callable[[], str] | None = None
        """Ends watching and returns why there are too few steps; None until torch is imported."""

    def write(self) -> None:
        """Raises WorkloadError when the record cannot be written."""
        path = self.options.record
        if path is None:
            return
        try:
            self.record.write(path)
        except OSError as error:
            raise WorkloadError(f"cannot write the record {path}: {error.strerror or error}") from error

    def end(self, error: BaseException | None) -> None:
        """Note the end of the script, and its exception. Does nothing in a forked child."""
        if os.getpid() != self._process:
            return
        lack = f"{self.name} ended without importing torch, so nothing was measured"
        if self.before_end is not None:
            lack = self.before_end()
        self.judge(error, lack)
        try:
            self.write()
        except WorkloadError as problem:
            say(str(problem))

    def judge(self, error: BaseException | None, lack: str) -> None:
        """Set status and reason. ``lack``: why there are too few steps; "" for enough."""
        record = self.record
        some = any(row.phase == "step" for row in record.steps)
        why = _how_it_ended(self.name, error)
        if why is None and not lack:
            record.status, record.reason = "ok", None
            return
        record.status = "partial" if some else "failed"
        record.reason = why or lack
        if lack:
            if why:
                record.gaps.append(Gap("step", "not_collected", lack))
            else:
                say(lack)


def _how_it_ended(name: str, error: BaseException | None) -> str | None:
    """The failure in one line; None for a script that succeeded."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return None
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
        said = f": {utf8(str(error.code))}" if not isinstance(error.code, int) else ""
        return f"{name} ended with exit code {code}{said}"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        return f"out of memory: {utf8(first_line(error))} Try a smaller batch size."
    return f"{name} raised {type(error).__name__}: {utf8(first_line(error))}"


def say(text: str) -> None:
    """Print a line of perfctl to stderr, unless the script closed it."""
    with suppress(OSError, ValueError):
        print(f"perfctl: {text}", file=sys.stderr)


_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}
_KNOWN = ("fp32", "fp16", "bf16")
_MULTIPLY = ("conv", "mm", "linear", "lstm", "gru", "rnn", "attention")


class Facts:
    """Observes each outermost call of a model with parameters; copies no data."""

    def __init__(self) -> None:
        self.trained = False
        """Whether there was a backward pass or an optimizer step."""
        self.device: torch.device | None = None
        self.precisions: set[str] = set()
        self.inputs: dict[int | None, tuple[int, ...]] = {}
        """Step (None before the window) -> shape of the first input tensor of its first model."""
        self.parameters: dict[str, int] = {}
        self._counted: set[int] = set()

    def note_call(self, model: nn.Module, shapes: Shapes, step: int | None) -> None:
        """Observe a call of ``model``; ``shapes``: of its input tensors."""
        weight = next(model.parameters(), None)
        if weight is not None:
            self._note_weight(weight)
        elif not isinstance(model, Region):
            return
        if shapes and (step is None or step not in self.inputs):
            self.inputs[step] = shapes[0]

    def _note_weight(self, weight: torch.Tensor) -> None:
        self.device = weight.device
        kind = weight.device.type
        if torch.is_autocast_enabled(kind):
            self.precisions.add(_NAMES.get(torch.get_autocast_dtype(kind), "other"))
        elif weight.is_floating_point():
            self.precisions.add(_NAMES.get(weight.dtype, "other"))

    def note_name(self, name: str, module: nn.Module) -> None:
        """For Names.follow: count the parameters of each layer, each parameter once."""
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in self._counted and not isinstance(parameter, nn.UninitializedParameter):
                self._counted.add(id(parameter))
                self.parameters[name] = self.parameters.get(name, 0) + parameter.numel()

    def fill(self, record: Record) -> None:
        """Fill in the record, with gaps for what was not observed."""
        record.environment |= run_setup.environment()
        kind = self.device.type if self.device is not None else None
        if kind is not None:
            record.device = run_setup.describe_device(kind)
        record.parameters = dict(self.parameters)
        record.mode = "train" if self.trained else "infer" if self.inputs else None
        record.precision, why = self._precision(kind, record.ops)
        if why is not None:
            record.gaps.append(Gap("precision", "ambiguous", why))
        record.gaps += self._batch_gaps(record.batch_size)

    def _precision(self, kind: str | None, ops: Sequence[OpShape]) -> tuple[str | None, str | None]:
        """(precision, why it is unknown)."""
        seen = {
            _NAMES.get(getattr(torch, op.dtypes[0]), "other")
            for op in ops
            if op.dtypes and op.direction == "forward" and any(word in op.op for word in _MULTIPLY)
        } or self.precisions
        if not seen:
            return None, "no model was called"
        if len(seen) > 1 or not seen <= set(_KNOWN):
            return None, f"the layers use {', '.join(sorted(seen))}"
        found = next(iter(seen))
        if found != "fp32" or kind != "cuda" or torch.cuda.get_device_capability()[0] < 8:
            return found, None
        matmul, convolution = tf32_is_on()
        if matmul == convolution:
            return ("tf32" if matmul else "fp32"), None
        allowed = "matrix products" if matmul else "convolutions and recurrent layers"
        return None, f"fp32 with TF32 enabled only in {allowed} (torch's default enables it in convolutions)"

    def _batch_gaps(self, asked: int | None) -> list[Gap]:
        gaps = []
        measured = [shape for step, shape in self.inputs.items() if step is not None]
        leading = {shape[0] for shape in measured if shape}
        if asked is not None and leading and leading != {asked}:
            seen = ", ".join(map(str, sorted(leading)))
            reason = f"the requested batch size is {asked}, but the first dimension of the model's input is {seen}"
            gaps.append(Gap("batch_size", "ambiguous", reason))
        return gaps


def ranks() -> dict[str, str]:
    """The rank and world size that a launcher set; empty without one."""
    names = {"RANK": "rank", "WORLD_SIZE": "world_size"}
    return {key: os.environ[name] for name, key in names.items() if os.environ.get(name, "").isdecimal()}


SCRIPTS_OWN = (
    "the script runs torch.profiler itself, and two cannot run at once, so steps are measured only while it is off. "
    "Use perfctl ingest for the script's own trace, or perfctl nsys"
)


class OtherProfilers:
    """Tracks whether a profiler of the script is prepared or running; calls ``begins`` before one is prepared."""

    def __init__(self, begins: Callable[[], None]) -> None:
        self._begins = begins
        self._running: set[int] = set()
        self._ours = False
        self._undo: list[Callable[[], None]] = []

    @property
    def running(self) -> bool:
        return bool(self._running)

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Profilers started or stopped in the block are perfctl's."""
        before, self._ours = self._ours, True
        try:
            yield
        finally:
            self._ours = before

    def start(self) -> None:
        self._before("_prepare_trace", self._prepared)
        self._before("__exit__", self._left)

    def stop(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _prepared(self, which: int) -> None:
        self._begins()
        self._running.add(which)

    def _left(self, which: int) -> None:
        self._running.discard(which)

    def _before(self, name: str, then: Callable[[int], None]) -> None:
        function = getattr(profile, name)

        @functools.wraps(function)
        def wrapped(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._ours:
                then(id(profiler))
            return function(profiler, *args, **kwargs)

        setattr(profile, name, wrapped)
        self._undo.append(lambda: setattr(profile, name, function))
