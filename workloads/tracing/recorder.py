"""Record the operations of a step, per layer, with their shapes: :class:`OpShape` records.

::

    with Recorder(model) as recorder:
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
    recorder.ops

Operations are observed at the dispatcher, without editing the model, and include functional calls. An operation belongs
to the innermost running module of ``model``; in backward, to the module whose forward created the running autograd node
(by sequence number), which works for the first layer too. torch is imported when a Recorder is created.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from perfctl.records.paper import MemoryTrace, OpShape
from perfctl.records.report import Gap
from perfctl.workloads.models.find import MODEL_ERRORS
from perfctl.workloads.spec import first_line

if TYPE_CHECKING:
    import torch

    from perfctl.workloads.tracing.layers import Names
    from perfctl.workloads.tracing.memory import Live
    from perfctl.workloads.tracing.watch import Watch


@dataclass(frozen=True, slots=True)
class ModuleSeen:
    """One module of the model, for the model table."""

    path: str
    """Dotted; "" for the model itself."""
    kind: str
    depth: int
    output: tuple[int, ...] | None
    """Shape of the first output tensor of its first call; None when it was not called or returned no tensor."""
    parameters: int
    """Elements of its own parameters, without its children's; a shared tensor counts at its first owner."""
    trainable: int
    parameter_bytes: int
    buffer_bytes: int
    called: bool


class Recorder:
    """Context manager that records the operations inside it. Does not change results.

    Works with tensors of any device, in train or eval, with or without gradients. Attention and nn.LSTM, GRU, RNN
    are recorded as one operation each, the same on every device. Use it for a single step: identical calls add up.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, live: Live | None = None, names: Names | None = None
    ) -> None:
        """``model``: layers are named by their path below it; without it, modules are named when they are called.

        ``live``: also trace the lifetimes of storages. ``names``: shared with an Annotator, for equal names.
        """
        from perfctl.workloads.tracing.watch import Watch

        self._watch: Watch = Watch(model, live, names)

    def __enter__(self) -> Recorder:
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.stop()

    @property
    def ops(self) -> tuple[OpShape, ...]:
        """The recorded operations, in order of first call; identical calls are one record with a count."""
        return self._watch.op_shapes()

    @property
    def modules(self) -> tuple[ModuleSeen, ...]:
        """Every module of the model, in the model's order; without a model, every module that was called."""
        return self._watch.modules_seen()

    @property
    def gaps(self) -> list[Gap]:
        """One gap per compiled region that ran, whose operations cannot be recorded."""
        from perfctl.workloads.tracing.composites import COMPILED

        return [Gap("layer shapes", "not_available", COMPILED, name) for name in self._watch.regions]

    @property
    def data_dependent(self) -> tuple[str, ...]:
        """Operations whose output sizes depend on the data: later records are valid for this input only."""
        return tuple(self._watch.dynamic)

    @property
    def failed_in(self) -> str | None:
        """Dotted path of the innermost module that raised an exception; None without one."""
        return self._watch.failed_in


OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.1}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}),
    "adam": ("Adam", {"lr": 0.001}),
    "adamw": ("AdamW", {"lr": 0.001}),
    "adadelta": ("Adadelta", {"lr": 1.0}),
    "rmsprop": ("RMSprop", {"lr": 0.01}),
}
"""Name of an optimizer -> class in torch.optim and settings; learning rates do not affect counts."""


@dataclass(frozen=True, slots=True)
class Traced:
    """The trace of one step."""

    ops: tuple[OpShape, ...]
    modules: tuple[ModuleSeen, ...]
    problem: str | None
    """Where and why the step ended early, in one line; None when it was complete."""
    memory: MemoryTrace | None
    data_dependent: tuple[str, ...] = ()
    """Operations whose output sizes depend on the data."""
    input_bytes: int = 0
    """Bytes of all input tensors."""


def without_data(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of ``model`` on meta, made without copying parameters; ``model`` does not change."""
    import torch

    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        empty = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = torch.nn.Parameter(empty, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, memo)


def make_inputs(shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str], device: str) -> tuple[Any, ...]:
    """Tensors of zeros (without data on meta); ``shapes`` include the batch dimension."""
    import torch

    return tuple(
        torch.zeros(shape, dtype=getattr(torch, dtype), device=device)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    )


def as_inputs(given: Any, device: str) -> tuple[Any, ...]:
    """Inputs on ``device``: tensors are moved, shapes become float32 tensors; a single input becomes a tuple."""
    import torch

    if isinstance(given, torch.Tensor) or (given and isinstance(given, (tuple, list)) and isinstance(given[0], int)):
        given = (given,)
    return tuple(torch.zeros(tuple(item), device=device) if _is_shape(item) else _moved(item, device) for item in given)


def _is_shape(item: Any) -> bool:
    return isinstance(item, (tuple, list)) and all(isinstance(size, int) for size in item)


def _moved(item: Any, device: str) -> Any:
    if hasattr(item, "to"):
        return item.to(device)
    if isinstance(item, (tuple, list)):
        return type(item)([_moved(piece, device) for piece in item])
    if isinstance(item, dict):
        return {name: _moved(piece, device) for name, piece in item.items()}
    return item


def make_optimizer(model: torch.nn.Module, optimizer: str | tuple[str, dict[str, Any]] | None) -> Any:
    """An optimizer for the model's trainable parameters; None for none."""
    import torch

    if optimizer is None:
        return None
    name, settings = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return getattr(torch.optim, name)(parameters, **settings) if parameters else None


def trace(
    model: torch.nn.Module,
    inputs: tuple[Any, ...],
    *,
    mode: str = "train",
    grad: bool | None = None,
    optimizer: str | tuple[str, dict[str, Any]] | None = None,
    loss: Callable[[Any], Any] | None = None,
    held: tuple[Any, ...] = (),
    memory: bool = False,
) -> Traced:
    """Run one step and record it. ``mode``: train or infer; ``grad`` overrides whether there is a backward.

    ``loss`` computes a loss from the output; without it backward starts at the output. ``held``: tensors besides the
    inputs (the loss's targets), for the memory trace.

    With ``memory``, an extra step comes first, so that the optimizer's state exists as in later steps. An exception of the
    model ends the trace: the operations before it are kept, and ``problem`` describes it.
    """
    model.train(mode == "train")
    backward = (mode == "train") if grad is None else grad
    stepper = make_optimizer(model, optimizer) if backward else None
    step = _Step(model, inputs, held, backward, stepper, loss)
    if memory:
        from perfctl.workloads.tracing.memory import Live

        first = next(iter([*model.parameters(), *inputs]), None)
        step.live = Live(first.device.type if first is not None else "cpu")
    recorder, problem = _run(step)
    lives = step.live.trace(problem is None) if step.live is not None else None
    size = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(inputs))
    return Traced(recorder.ops, recorder.modules, problem, lives, recorder.data_dependent, size)


def _tensors(given: Any) -> list[Any]:
    import torch

    if isinstance(given, torch.Tensor):
        return [given]
    if isinstance(given, dict):
        given = tuple(given.values())
    return [tensor for item in given for tensor in _tensors(item)] if isinstance(given, (tuple, list)) else []


@dataclass(slots=True)
class _Step:
    model: Any
    inputs: tuple[Any, ...]
    held: tuple[Any, ...]
    backward: bool
    optimizer: Any
    loss: Callable[[Any], Any] | None
    live: Any = None

    def run(self) -> None:
        import torch

        if self.optimizer is not None:
            self.optimizer.zero_grad()
        if not self.backward:
            with torch.no_grad():
                output = self.model(*self.inputs)
            if self.live is not None:
                self.live.forward_done()
            return
        output = self.model(*self.inputs)
        ends = [self.loss(output)] if self.loss is not None else _differentiable(output)
        if self.live is not None:
            self.live.forward_done()
        if ends:
            torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
        if self.live is not None:
            self.live.mark_gradients(self.model)
            self.live.backward_done()
        del output, ends
        if self.optimizer is not None:
            self.optimizer.step()


def _run(step: _Step) -> tuple[Recorder, str | None]:
    """Trace one step, after an extra one when memory is traced."""
    if step.live is not None:
        for tensor in step.model.parameters():
            step.live.adopt(tensor, "parameter")
        for tensor in step.model.buffers():
            step.live.adopt(tensor, "buffer")
        for tensor in (*step.inputs, *step.held):
            if hasattr(tensor, "untyped_storage"):
                step.live.adopt(tensor, "input")
        first, problem = _attempt(step)
        if problem is not None:
            return first, problem
        if step.optimizer is not None:
            step.optimizer.zero_grad()
        else:
            step.model.zero_grad()
        step.live.begin()
    return _attempt(step)


def _attempt(step: _Step) -> tuple[Recorder, str | None]:
    recorder = Recorder(step.model, step.live)
    try:
        with recorder:
            step.run()
    except MODEL_ERRORS as error:
        if _raised_by_recorder(error):
            raise
        return recorder, explain(error, recorder.failed_in)
    return recorder, None


def _raised_by_recorder(error: BaseException) -> bool:
    """Whether the recorder itself raised it, which must not be blamed on the model."""
    from perfctl.workloads.tracing import composites, layers, operations, watch
    from perfctl.workloads.tracing import memory as tracing_memory

    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    module = step.tb_frame.f_globals.get("__name__", "") if step is not None else ""
    return module in {part.__name__ for part in (composites, tracing_memory, layers, operations, operations, watch)}


def explain(error: BaseException, path: str | None) -> str:
    """One line: the module's path, what happened, and advice when the step needs data."""
    place = "the model" if path == "" else path or "after the model"
    text = _first_sentence(first_line(error))
    if "meta" in text.lower() and any(word in text for word in ("item()", "no data", "nonzero", "tolist", "Boolean")):
        return f"{place}: needs actual data ({text}), and so does everything after it. Set `device` to cpu to run it"
    if isinstance(error, NotImplementedError) or "is not registered" in text or "meta" in text.lower():
        return f"{place}: an operator without a meta implementation ({text}). Set `device` to cpu to run it"
    return f"{place}: {type(error).__name__}: {text}"


def _first_sentence(text: str) -> str:
    """The first sentence of a long message."""
    return text.partition(". ")[0].rstrip(". ") if len(text) > 100 else text.rstrip(". ")


def _differentiable(output: Any) -> list[Any]:
    """The tensors in an output from which backward can start."""
    import torch

    if isinstance(output, torch.Tensor):
        return [output] if output.requires_grad and output.is_floating_point() else []
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, (tuple, list)):
        return [end for item in output for end in _differentiable(item)]
    data = getattr(output, "data", None)
    return _differentiable(data) if isinstance(data, torch.Tensor) else []
