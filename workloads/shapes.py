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

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from perfctl.parsers.paper import OpShape
from perfctl.parsers.records import Gap

if TYPE_CHECKING:
    import torch

    from perfctl.workloads.live import Live
    from perfctl.workloads.names import Names
    from perfctl.workloads.watch import Watch


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
        from perfctl.workloads.watch import Watch

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
        from perfctl.workloads.compiled import COMPILED

        return [Gap("layer shapes", "not_available", COMPILED, name) for name in self._watch.regions]

    @property
    def data_dependent(self) -> tuple[str, ...]:
        """Operations whose output sizes depend on the data: later records are valid for this input only."""
        return tuple(self._watch.dynamic)

    @property
    def failed_in(self) -> str | None:
        """Dotted path of the innermost module that raised an exception; None without one."""
        return self._watch.failed_in
