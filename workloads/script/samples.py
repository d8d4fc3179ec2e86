"""Count the samples of a step: with gradient accumulation, several batches make one step. Imports torch.

A step of one optimizer is as many batches as there are backward passes in it, each after a call of the model. Calls by
other threads during a step of inference add theirs.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from torch import Tensor

from perfctl.records.report import BATCHES_PER_STEP, SAMPLES_PER_STEP, Gap, Summary
from perfctl.workloads.run.record import Record


class _Call(NamedTuple):
    size: int
    """First dimension of the first input."""
    given: weakref.ref[Tensor]


class Samples:
    """Hears the calls and backward passes of the thread whose steps count, and calls of others."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._passes = 0
        self._inferred = self._inferences = 0
        """Samples and calls without gradients, of any thread."""
        self._before: list[_Call] = []
        """Calls of the step before."""
        self._steps: list[tuple[int | None, int]] = []
        """(samples, or None when unknown; batches) of each measured step."""

    def called(self, inputs: Any, grad: bool) -> None:
        """A call of a model. ``inputs``: its input tensors, in order."""
        first = next(iter(inputs), None)
        if first is None or not first.dim():
            return
        if grad:
            self._calls.append(_Call(int(first.shape[0]), weakref.ref(first)))
        else:
            self._inferred += int(first.shape[0])
            self._inferences += 1

    def passed_backward(self) -> None:
        self._passes += 1

    def step_ended(self, measured: bool, optimizers: int) -> None:
        """``optimizers``: how many of them make a step."""
        if measured:
            self._steps.append(self._of_step(optimizers))
        self._before = self._calls
        self.forget()

    def forget(self) -> None:
        """What came since the last step belongs to none."""
        self._calls = []
        self._inferred = self._inferences = self._passes = 0

    def _of_step(self, optimizers: int) -> tuple[int | None, int]:
        if not self._passes and not self._calls:
            return self._inferred, self._inferences
        batches = min(self._passes, self._distinct())
        if optimizers > 1 or batches <= 1:
            return None, 1  # two optimizers see the same batch
        sizes = {call.size for call in self._calls}
        if len(self._calls) == batches:
            return sum(call.size for call in self._calls), batches
        return (sizes.pop() * batches if len(sizes) == 1 else None), batches

    def _distinct(self) -> int:
        """Calls with data of their own. The same tensor given twice is one batch (optimizers that look ahead), unless the
        step before had it too: a script that computes on made-up data may have no other."""
        ids = {id(tensor) for call in self._calls if (tensor := call.given()) is not None}
        alive = sum(call.given() is not None for call in self._calls)
        reused = ids & {id(tensor) for call in self._before if (tensor := call.given()) is not None}
        return len(self._calls) - (alive - len(ids) if not reused else 0)

    def fill(self, record: Record) -> None:
        """Add the summaries when some step had several batches; the samples are None when they do not fit the batch size."""
        if all(batches <= 1 for _, batches in self._steps):
            return
        batches = sum(each for _, each in self._steps) / len(self._steps)
        known = [samples for samples, _ in self._steps if samples is not None]
        samples = sum(known) / len(known) if len(known) == len(self._steps) else None
        asked = record.batch_size
        if samples is None or asked not in (None, samples, samples / batches):
            seen = "an unknown number of" if samples is None else f"{samples:g}"
            what = f"a step has {batches:g} batches with {seen} samples"
            reason = f"{what}, which does not fit the requested batch size of {asked}: samples a second are not known"
            record.gaps.append(Gap(SAMPLES_PER_STEP, "ambiguous", reason))
            samples = None
        record.summaries += [Summary(SAMPLES_PER_STEP, samples, "1"), Summary(BATCHES_PER_STEP, batches, "1")]
