"""What each layer and functional operation of a step saw: :class:`OpShape` records, from the real process.

::

    with Recorder(model) as recorder:
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
    recorder.ops

Operations are seen at the dispatcher, so nothing of the model is edited and functional calls are seen too.
An operation belongs to the innermost module of ``model`` that is running; in backward it belongs to the module
whose forward made the autograd node that is running (by sequence number), which finds the first layer's too.
torch is imported when a Recorder is made, not before.
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
    """Shape of the (first) output tensor of its first call; None when it was not called or gave no tensor."""
    parameters: int
    """Elements of its own parameters, not its children's; a shared tensor counts at its first owner."""
    trainable: int
    parameter_bytes: int
    buffer_bytes: int
    called: bool


class Recorder:
    """Context manager that records the operations of whatever runs inside it. Results do not change.

    Works with tensors of any device, in train or eval, with or without gradients. Attention and nn.LSTM, GRU, RNN
    are recorded as one operation each, the same on every device. Keep it to one step: identical calls add up.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, live: Live | None = None, names: Names | None = None
    ) -> None:
        """``model``: layers go by their path below it; without one, modules get their names as they are called.

        ``live``: also follow which storages live when. ``names``: shared with an Annotator, so that both say the same.
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
        """What was seen, in order of first call; identical calls are one record with their number."""
        return self._watch.op_shapes()

    @property
    def modules(self) -> tuple[ModuleSeen, ...]:
        """Every module of the model, in the model's order; without a model, of all that were called."""
        return self._watch.modules_seen()

    @property
    def gaps(self) -> list[Gap]:
        """What could not be seen: one for each compiled region that ran."""
        from perfctl.workloads.compiled import COMPILED

        return [Gap("layer shapes", "not_available", COMPILED, name) for name in self._watch.regions]

    @property
    def data_dependent(self) -> tuple[str, ...]:
        """Operations whose result sizes depend on the data: what comes after them is right for this input only."""
        return tuple(self._watch.dynamic)

    @property
    def failed_in(self) -> str | None:
        """Dotted path of the innermost module in which an exception was raised; None when there was none."""
        return self._watch.failed_in
