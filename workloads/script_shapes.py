"""Records what the layers of a script saw in one whole step, outside the measured ones. Imports torch."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils import _python_dispatch as dispatch

from perfctl.parsers.records import Gap
from perfctl.workloads.names import Names
from perfctl.workloads.record import Record
from perfctl.workloads.shapes import Recorder


class StepRecorder:
    """From the first call of a model in a step to the step's end."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._running: Recorder | None = None
        self.wanted = True
        """No step has been recorded yet."""

    @property
    def running(self) -> bool:
        return self._running is not None

    def start(self, module: nn.Module | None = None, arguments: Any = ()) -> None:
        """``module``: is being called; its hooks have been collected already, so it is introduced by hand."""
        if self._running is not None or dispatch._get_current_dispatch_mode() is not None:
            return  # a mode of the script's own may end before the step does
        self._running = Recorder(None, names=self._names)
        self._running.__enter__()
        if module is not None:
            self._running._watch.enter(module, arguments)

    def stop(self, record: Record | None) -> None:
        """``record``: where it goes; None to forget it."""
        running, self._running = self._running, None
        if running is None:
            return
        running.__exit__(None, None, None)
        if record is not None:
            self.wanted = False
            record.ops = list(running.ops)
            record.gaps += running.gaps
            if running.data_dependent:
                names = ", ".join(running.data_dependent)
                reason = f"sizes that depend on the data ({names}): other steps may have computed more or less"
                record.gaps.append(Gap("layer_call", "ambiguous", reason))
