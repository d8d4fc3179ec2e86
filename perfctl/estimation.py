"""Pen and paper for any model: :func:`estimate` traces one step without data and works every layer out.

This is where two stages meet: the trace (perfctl.workloads) and the formulas (perfctl.orchestrator.analyse).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.analyse.estimate import BACKWARD, Totals, fused_only, on_paper, totals
from perfctl.orchestrator.analyse.estimate import estimate as work_out
from perfctl.orchestrator.analyse.memory import Fit, Memory, largest_batch, memory_of
from perfctl.orchestrator.errors import PartlyDone, ToolMissing, UsageError
from perfctl.parsers.paper import LayerCall, MemoryTrace, OpShape

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from perfctl.workloads.shapes import ModuleSeen


@dataclass(frozen=True, slots=True)
class Estimate:
    """One step of one model on paper. FLOPs count 1 multiply-add as 2."""

    calls: tuple[LayerCall, ...]
    modules: tuple[ModuleSeen, ...]
    ops: tuple[OpShape, ...]
    problem: str | None
    """Where and why the trace ended early, in one line: what is here is then only what came before. None when whole."""
    memory: Memory | None
    """None when it was not asked for."""
    data_dependent: tuple[str, ...] = ()
    """Operations whose result sizes depend on the data: the figures are then right for the traced input only."""
    input_bytes: int = 0
    """Of all inputs together."""
    memory_trace: MemoryTrace | None = None
    """Which storages lived when, behind ``memory``. None when it was not asked for."""

    @property
    def parameters(self) -> int:
        """Elements of all parameters, shared ones once."""
        return sum(module.parameters for module in self.modules)

    @property
    def trainable(self) -> int:
        """Elements of the parameters that ask for a gradient."""
        return sum(module.trainable for module in self.modules)

    @property
    def forward(self) -> Totals:
        return totals(self.calls, ("forward",))

    @property
    def backward(self) -> Totals:
        return totals(self.calls, BACKWARD)

    @property
    def recompute(self) -> Totals:
        """What activation checkpointing runs again in backward."""
        return totals((call for call in self.calls if not fused_only(call)), ("recompute",))

    @property
    def fused(self) -> Totals:
        """What a fused attention kernel would compute again in backward; the math path does not. In no other total."""
        return totals(filter(fused_only, self.calls), ("recompute",))

    def frame(self) -> pd.DataFrame:
        """The layer calls as a DataFrame: one row a layer, kind and direction."""
        import pandas as pd

        return pd.DataFrame([call._asdict() for call in self.calls], columns=list(LayerCall._fields))


def estimate(
    model: torch.nn.Module,
    inputs: Any,
    *,
    mode: str = "train",
    grad: bool | None = None,
    optimizer: str | tuple[str, dict[str, Any]] | None = None,
    loss: Callable[[Any], Any] | None = None,
    device: str | None = "meta",
    memory: bool = False,
) -> Estimate:
    """Work out one step of ``model``.

    inputs: a tensor, a tuple of tensors, or shapes with the batch dimension (``(64, 1, 28, 28)`` or a list of such).
    mode: ``train`` (forward and backward) or ``infer``; ``grad`` overrides whether there is a backward.
    optimizer: sgd, momentum, adam, adamw, adadelta, rmsprop, or (class name, settings); None for no step.
    loss: output -> scalar; None takes the output's gradient as given.
    device: ``meta`` needs no data and no memory; None runs a copy of the model where its parameters are, which
        models that look at their data need. The model itself is not changed.
    memory: also follow which tensors live when (``Estimate.memory``).

    Never raises for what the model does: ``problem`` says where it stopped.
    """
    import copy

    from perfctl.workloads import trace

    worker = trace.without_data(model) if device == "meta" else copy.deepcopy(model)
    if device not in (None, "meta"):
        worker = worker.to(device)
    place = device or next((str(tensor.device) for tensor in model.parameters()), "cpu")
    traced = trace.trace(
        worker,
        trace.as_inputs(inputs, place),
        mode=mode,
        grad=grad,
        optimizer=optimizer,
        loss=loss,
        memory=memory,
    )
    return from_trace(traced)


def from_trace(traced: Any, gpu: tuple[int, int] | None = None) -> Estimate:
    """An estimate from what :func:`perfctl.workloads.trace.trace` gave; ``gpu``: compute capability, for memory."""
    ops = tuple(on_paper(op) for op in traced.ops)
    return Estimate(
        calls=work_out(ops),
        modules=traced.modules,
        ops=ops,
        problem=traced.problem,
        memory=memory_of(traced.memory, gpu) if traced.memory is not None else None,
        data_dependent=traced.data_dependent,
        input_bytes=traced.input_bytes,
        memory_trace=traced.memory,
    )


MODES = ("train", "infer")
OPTIMIZER_NAMES = ("sgd", "momentum", "adam", "adamw", "adadelta", "rmsprop")


@dataclass(frozen=True, slots=True)
class Request:
    """What ``perfctl estimate`` was asked."""

    model: str
    """A built-in workload, torchvision:NAME, package.module:factory or file.py:factory."""
    inputs: tuple[str, ...] = ()
    """As written after --input; empty takes the model's own."""
    mode: str = "train"
    optimizer: str | None = None
    device: str = "meta"
    memory: bool = False
    gpu: tuple[int, int] | None = None
    """Compute capability of the device that memory is worked out for; None: not said."""
    own: tuple[str, ...] = ()
    """A built-in workload's own options, as words of a command line; empty takes its defaults."""


@dataclass(frozen=True, slots=True)
class InputShape:
    """One input as written: sizes, and where the batch goes."""

    sizes: tuple[int, ...]
    batch_at: int
    dtype: str

    def at(self, batch: int) -> tuple[int, ...]:
        return (*self.sizes[: self.batch_at], batch, *self.sizes[self.batch_at :])


def read_input(text: str) -> InputShape:
    """ "3x224x224", "int64:128", "100xNx8". Raises UsageError naming what is wrong."""
    from perfctl.orchestrator.analyse.worked import ITEM_BYTES

    dtype, colon, shape = text.rpartition(":")
    pieces = [piece for piece in shape.lower().split("x") if piece]
    remedy = "Say for instance 3x224x224, int64:128 or 100xNx8"
    if colon and dtype not in ITEM_BYTES:
        raise UsageError(f"--input: '{dtype}' is no data type", remedy)
    if any(not piece.isdecimal() and piece != "n" for piece in pieces) or pieces.count("n") > 1:
        raise UsageError(f"--input: '{text}' is no shape", remedy)
    place = pieces.index("n") if "n" in pieces else 0
    return InputShape(tuple(int(piece) for piece in pieces if piece != "n"), place, dtype or "float32")


def need_torch() -> None:
    """Raises ToolMissing when torch is not here."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise ToolMissing("pen and paper needs torch, which is not installed", "pip install 'perfctl[torch]'")


class Session:
    """One model, built once and worked out at any batch size. Raises ModelError when it cannot be built."""

    def __init__(self, request: Request) -> None:
        from perfctl.workloads import models

        self.request = request
        shapes = tuple(read_input(text) for text in request.inputs)
        self.source = models.find(request.model, request.device, request.own)
        self.shapes = shapes or tuple(
            InputShape(sizes, 0, dtype) for sizes, dtype in zip(self.source.shapes, self.source.dtypes, strict=True)
        )
        if not self.shapes:
            raise UsageError(f"{request.model}: the shape of its input is not known", "Say it: --input 3x224x224")

    def at(self, batch: int, memory: bool | None = None) -> Estimate:
        """The estimate at one batch size."""
        from perfctl.workloads import trace

        source, request = self.source, self.request
        inputs = trace.make_inputs(
            [shape.at(batch) for shape in self.shapes], [shape.dtype for shape in self.shapes], request.device
        )
        loss: Callable[[Any], Any] | None = None
        held: tuple[Any, ...] = ()
        if source.loss is not None and source.target is not None:
            sizes, dtype = source.target
            held = trace.make_inputs([(batch, *sizes)], [dtype], request.device)
            loss = _with_target(source.loss, held[0])
        source.model.zero_grad(set_to_none=True)
        traced = trace.trace(
            source.model,
            inputs,
            mode=request.mode,
            optimizer=request.optimizer or source.optimizer,
            loss=loss,
            held=held,
            memory=request.memory if memory is None else memory,
        )
        return from_trace(traced, request.gpu)

    def largest(self, limit: int) -> Fit:
        """The largest batch whose step needs at most ``limit`` bytes, found by tracing."""

        def needed(batch: int) -> int:
            found = self.at(batch, memory=True)
            if found.problem is not None or found.memory is None:
                raise PartlyDone(f"batch {batch}: {found.problem}", None)
            return found.memory.needed

        return largest_batch(limit, needed)


def _with_target(loss: Callable[[Any, Any], Any], target: Any) -> Callable[[Any], Any]:
    return lambda output: loss(output, target)
