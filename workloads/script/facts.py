"""What a script's run says of itself: precision, device, ranks, and profilers that the script uses.
Imports torch."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler import profile

from perfctl.records.paper import OpShape
from perfctl.records.report import INPUT_SHAPE, SAMPLES_PER_STEP, Gap, Summary
from perfctl.workloads.run import setup as run_setup
from perfctl.workloads.run.record import WorkloadRecord
from perfctl.workloads.run.setup import are_matmul_conv_tf32_enabled
from perfctl.workloads.script.shapes import Shapes
from perfctl.workloads.tracing.composites import CompiledRegion
from perfctl.workloads.tracing.versions import get_autocast_dtype, replace_attribute

_NAMES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float64: "fp64",
}
_KNOWN = {"fp32", "fp16", "bf16"}
_MULTIPLY = ("conv", "mm", "linear", "lstm", "gru", "rnn", "attention")

SCRIPTS_OWN = (
    "the script runs torch.profiler itself, and two cannot run at once, so perfctl measures steps "
    "only while it is off. Use perfctl ingest for the script's own trace, or perfctl nsys"
)


class ScriptFacts:
    """Observes each outermost call of a model with parameters; copies no data."""

    def __init__(self) -> None:
        self.trained = False
        """Whether there was a backward pass or an optimizer step."""
        self.device: torch.device | None = None
        self.precisions: set[str] = set()
        self.inputs: dict[int | None, tuple[int, ...]] = {}
        """Step (None before the window) -> shape of the first input tensor of its first model."""

    @property
    def device_kind(self) -> str | None:
        """cpu, cuda, ...: where the model's parameters are; for a program without any (kernels of
        its own, tensors alone) cuda if it has used a GPU. None where nothing shows it."""
        if self.device is not None:
            return self.device.type
        return "cuda" if torch.cuda.is_initialized() else None

    def observe_model_call(self, model: nn.Module, shapes: Shapes, step: int | None) -> None:
        """Observe a call of ``model``; ``shapes``: of its input tensors."""
        weight = next(model.parameters(), None)
        if weight is None and not isinstance(model, CompiledRegion):
            return
        if weight is not None:
            self.device, kind = weight.device, weight.device.type
            if (dtype := get_autocast_dtype(kind)) is not None:
                self.precisions.add(_NAMES.get(dtype, "other"))
            elif weight.is_floating_point():
                self.precisions.add(_NAMES.get(weight.dtype, "other"))
        if shapes and (step is None or step not in self.inputs):
            self.inputs[step] = shapes[0]

    def fill_record(self, record: WorkloadRecord) -> None:
        """Fill in the record, with gaps for what was not observed."""
        record.environment.update(run_setup.collect_software_and_cpu_facts())
        kind = self.device_kind
        if kind is not None:
            record.device = run_setup.describe_device(kind)
        record.mode = "train" if self.trained else "infer" if self.inputs else None
        record.precision, problem = self._infer_precision_or_reason(kind, record.ops)
        if problem is not None:
            record.gaps.append(Gap("precision", "ambiguous", problem))
        # the samples of several batches say how the batch size fits
        if all(summary.name != SAMPLES_PER_STEP for summary in record.summaries):
            self._note_batch_size_mismatch(record)

    def _note_batch_size_mismatch(self, record: WorkloadRecord) -> None:
        """Note an input that does not begin with the requested batch size, and correct the samples
        of a step: those that the model received, or unknown where both fit."""
        requested = record.batch_size
        shapes = {shape for step, shape in self.inputs.items() if step is not None and shape}
        leading = sorted({shape[0] for shape in shapes})
        if requested is None or not leading or leading == [requested]:
            return
        reason = (
            f"the requested batch size is {requested}, but the first dimension of the model's "
            f"input is {', '.join(map(str, leading))}"
        )
        if len(shapes) == 1:
            (shape,) = shapes
            record.environment[INPUT_SHAPE] = "x".join(map(str, shape))
            if requested not in shape[:2]:  # recurrent networks have the batch second
                is_multiple = shape[0] % requested == 0
                reason += ": samples per second are unknown" if is_multiple else ""
                samples = None if is_multiple else float(shape[0])
                record.summaries.append(Summary(SAMPLES_PER_STEP, samples, "1"))
        record.gaps.append(Gap("batch_size", "ambiguous", reason))

    def _infer_precision_or_reason(
        self, kind: str | None, ops: Sequence[OpShape]
    ) -> tuple[str | None, str | None]:
        """Return (precision, why it is unknown)."""
        precisions = {
            _NAMES.get(getattr(torch, op.dtypes[0]), "other")
            for op in ops
            if op.dtypes and op.direction == "forward" and any(name in op.op for name in _MULTIPLY)
        } or self.precisions
        if not precisions:
            return None, "no model was called"
        if len(precisions) > 1 or not precisions <= _KNOWN:
            return None, f"the layers use {', '.join(sorted(precisions))}"
        precision = next(iter(precisions))
        if precision != "fp32" or kind != "cuda" or torch.cuda.get_device_capability()[0] < 8:
            return precision, None
        matmul, convolution = are_matmul_conv_tf32_enabled()
        if matmul == convolution:
            return ("tf32" if matmul else "fp32"), None
        allowed = "matrix products" if matmul else "convolutions and recurrent layers"
        return (
            None,
            (
                f"fp32 with TF32 enabled only in {allowed} (torch's default enables it in "
                "convolutions)"
            ),
        )


def read_rank_and_world_size() -> dict[str, str]:
    """Return the rank and world size that a launcher set; empty without one."""
    values = {key: os.environ.get(key.upper(), "") for key in ("rank", "world_size")}
    return {key: text for key, text in values.items() if text.isdecimal()}


class ScriptProfilerWatch:
    """Tracks whether a profiler of the script is prepared or running; calls ``begins`` before one
    is prepared."""

    def __init__(self, begins: Callable[[], None]) -> None:
        self._begins = begins
        self._running: set[int] = set()
        self._ours = False
        self._undo = ExitStack()

    @property
    def is_profiler_running(self) -> bool:
        return bool(self._running)

    @contextmanager
    def ignore_profilers_in_block(self) -> Iterator[None]:
        """Profilers started or stopped in the block are perfctl's."""
        before, self._ours = self._ours, True
        try:
            yield
        finally:
            self._ours = before

    def start(self) -> None:
        for name in ("_prepare_trace", "__exit__"):
            if hasattr(profile, name):
                self._undo.callback(self._patch_profiler_method(name))

    def stop(self) -> None:
        self._undo.close()

    def _patch_profiler_method(self, name: str) -> Callable[[], None]:
        function = getattr(profile, name)

        @functools.wraps(function)
        def wrapped(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._ours and name == "__exit__":
                self._running.discard(id(profiler))
            elif not self._ours:
                self._begins()
                self._running.add(id(profiler))
            return function(profiler, *args, **kwargs)

        return replace_attribute(profile, name, wrapped)
