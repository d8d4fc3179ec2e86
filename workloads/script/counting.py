"""Decide which events end a step of a user's script, which thread's events count, and how many
samples a step has. A script that never imports torch must not get it from here.

An optimizer's step ends a step. With two optimizers (a GAN), a step ends with the last one before
the first steps again: five steps of the critic and one of the generator are one step. Without an
optimizer of torch, each backward pass ends a step; without training, each call of a model does.

Models may be called in many threads: a warm-up, a pool that answers requests, the replicas of
DataParallel. Steps are those of one thread at a time, the lead. Another thread takes over when the
lead has ended, when it trains and the lead did not, or when the lead is idle.

With gradient accumulation, several batches make one step: a step of one optimizer is as many
batches as there are backward passes in it, each after a call of the model. Calls by other threads
during a step of inference add theirs.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from perfctl.records.report import BATCHES_PER_STEP, SAMPLES_PER_STEP, Gap, Summary
from perfctl.workloads.run.record import WorkloadRecord

if TYPE_CHECKING:
    from torch import Tensor

PATIENCE = 12
"""How often the first optimizer may step while one that has never stepped is waited for."""
IDLE_AFTER = 3
"""Calls in a row of another thread, without an event of the lead, after which the lead counts
as idle."""


@dataclass(slots=True)
class EventCycle:
    """Learns which of several sources of events is the last of a round."""

    expected: Callable[[], int] | None = None
    """Number of sources; None when only a second round can tell."""
    order: list[int] = field(default_factory=list)
    last: int | None = None
    """The source that ends a round; None while unknown."""
    frozen: bool = False
    """No more learning: the window is open."""
    _rounds: int = 0

    def detect_round_end(self, source: int) -> bool:
        """Note an event of ``source``. Whether it ends a round, as far as is known."""
        if source not in self.order and not self.frozen:
            self.order.append(source)
            self.last, self._rounds = None, 0
            if self.expected is not None and len(self.order) >= self.expected():
                self.last = source
        elif self.last is None and source in self.order[:1]:
            self._rounds += 1
            if self.expected is None or self._rounds >= PATIENCE:
                self.last = self.order[-1]
        return source == self.last


@dataclass(slots=True)
class StepEndDetector:
    """Turns a script's events into ends of steps, by the requested rule."""

    kind: str
    named: str | None
    """Only events of this class; None for any."""
    optimizers_alive: Callable[[], int]
    """Number of the script's optimizers that are not stepped by another one."""
    optimizers: EventCycle = field(init=False)
    models: EventCycle = field(default_factory=EventCycle)
    steps: int = 0
    optimizer_steps: int = 0
    calls: int = 0
    """Number of outermost calls of models."""
    _by_backward: bool = False
    """The script trains without an optimizer of torch: each backward pass ends a step."""
    _heard: dict[int, int] = field(default_factory=dict)
    _ender: int = 0

    def __post_init__(self) -> None:
        self.optimizers = EventCycle(self.optimizers_alive)

    def count_and_check_optimizer_step(self, source: int, name: str) -> bool:
        """Note a step of an optimizer. Whether this ends a step of the script; likewise below."""
        self.optimizer_steps += 1
        if self.kind not in ("auto", "optimizer") or self.named not in (None, name):
            return False
        if (
            self.kind == "auto"
            and (self.models.order or self._by_backward)
            and not self.optimizers.order
            and not self.optimizers.frozen
        ):
            self.steps = 0  # calls before the first optimizer's step were not steps
        if not self.optimizers.frozen:
            self._by_backward = False
        self._count_source_event(source)
        return self._count_if_step_end(
            self.named is not None or self.optimizers.detect_round_end(source)
        )

    def count_and_check_model_call(self, source: int) -> bool:
        self.calls += 1
        if self.named is not None or self.kind not in ("auto", "forward"):
            return False
        if self.kind == "auto" and (
            self._by_backward or self.optimizers_alive() or self.optimizers.order
        ):
            return False
        self._count_source_event(source)
        return self._count_if_step_end(self.models.detect_round_end(source))

    def count_and_check_module_call(self, name: str) -> bool:
        return self._count_if_step_end(self.kind == "forward" and self.named == name)

    def count_and_check_backward_end(self) -> bool:
        if self.kind == "auto" and not self.models.frozen:
            without_optimizer = not (self.optimizers_alive() or self.optimizers.order)
            if without_optimizer != self._by_backward:
                # earlier calls were not steps, nor were passes before there was an optimizer
                self.steps = 0
            self._by_backward = without_optimizer
        return self._count_if_step_end(self.ends_with_backward)

    @property
    def ends_with_backward(self) -> bool:
        return self.kind == "backward" or self._by_backward

    def reset_event_counts(self) -> None:
        """Start observing for ``has_single_step``."""
        self._heard.clear()

    @property
    def has_single_step(self) -> bool:
        """Whether exactly one step passed since ``reset_event_counts``, because its last source had
        a single event."""
        return self._heard.get(self._ender, 1) == 1

    def freeze_rule(self) -> None:
        """Keep the rule from now on, if there is one: the window opens."""
        self.optimizers.frozen = self.models.frozen = self.steps > 0

    def describe_step_end_rule(self) -> str:
        if self.ends_with_backward:
            return "a backward pass"
        if self.named is not None:
            return (
                f"each step of {self.named}"
                if self.kind == "optimizer"
                else f"each call of {self.named}"
            )
        if self.kind == "forward" or (self.kind == "auto" and not self.optimizers.order):
            return "an outermost call of the model"
        several = len(self.optimizers.order) > 1
        return (
            f"the last of {len(self.optimizers.order)} optimizers' steps"
            if several
            else "the optimizer's step"
        )

    def _count_source_event(self, source: int) -> None:
        self._heard[source] = self._heard.get(source, 0) + 1
        self._ender = source

    def _count_if_step_end(self, ends: bool) -> bool:
        self.steps += ends
        return ends


class _ModelCall(NamedTuple):
    size: int
    """First dimension of the first input."""
    given: weakref.ref[Tensor]
    model: int


class SampleCounter:
    """Hears the calls and backward passes of the thread whose steps count, and calls of others."""

    def __init__(self) -> None:
        self._calls: list[_ModelCall] = []
        self._passes = 0
        self._stepped = self._alternates = False
        """An optimizer stepped; a backward pass came after it, as in a GAN."""
        self._inferred = self._inferences = 0
        """Samples and calls without gradients, of any thread."""
        self._before: list[_ModelCall] = []
        """Calls of the step before."""
        self._steps: list[tuple[int | None, int]] = []
        """(samples, or None when unknown; batches) of each measured step."""

    def count_model_call(self, inputs: Any, grad_enabled: bool, model: int = 0) -> None:
        """A call of a model. ``inputs``: its input tensors, in order. ``model``: which one."""
        first = next(iter(inputs), None)
        if first is None or not first.dim():
            return
        if grad_enabled:
            self._calls.append(_ModelCall(int(first.shape[0]), weakref.ref(first), model))
        else:
            self._inferred += int(first.shape[0])
            self._inferences += 1

    def count_backward_pass(self) -> None:
        self._passes += 1
        self._alternates = self._alternates or self._stepped

    def note_optimizer_step(self) -> None:
        self._stepped = True

    def finish_step(
        self, is_measured: bool, optimizers_per_step: int, closure_calls: int = 0
    ) -> None:
        """``optimizers_per_step``: how many of them make a step. ``closure_calls``: how often the
        optimizer computed the loss of the step's batches."""
        if is_measured:
            self._steps.append(
                self._count_samples_and_batches(optimizers_per_step, max(closure_calls, 1))
            )
        self._before = self._calls
        self.drop_calls_since_step()

    def drop_calls_since_step(self) -> None:
        """What came since the last step belongs to none."""
        self._calls = []
        self._stepped = self._alternates = False
        self._inferred = self._inferences = self._passes = 0

    def _count_samples_and_batches(
        self, optimizers: int, evaluations: int
    ) -> tuple[int | None, int]:
        if not self._passes and not self._calls:
            return self._inferred, self._inferences
        batches = min(self._passes // evaluations, self._count_calls_with_distinct_inputs())
        calls_per_model = set(Counter(call.model for call in self._calls).values())
        accumulates = not self._alternates and calls_per_model == {self._passes}
        if (optimizers > 1 and not accumulates) or batches <= 1:
            return None, 1  # two optimizers see the same batch
        sizes = {call.size for call in self._calls}
        if len(self._calls) == batches:
            return sum(call.size for call in self._calls), batches
        return (sizes.pop() * batches if len(sizes) == 1 else None), batches

    def _count_calls_with_distinct_inputs(self) -> int:
        """Return calls with data of their own. The same tensor given twice is one batch (optimizers
        that look ahead), unless the step before had it too: a script that computes on made-up data
        may have no other."""
        ids = {id(tensor) for call in self._calls if (tensor := call.given()) is not None}
        alive = sum(call.given() is not None for call in self._calls)
        reused = ids & {id(tensor) for call in self._before if (tensor := call.given()) is not None}
        return len(self._calls) - (alive - len(ids) if not reused else 0)

    def fill_record(self, record: WorkloadRecord) -> None:
        """Add the summaries when some step had several batches; the samples are None when they do
        not fit the batch size."""
        if all(batches <= 1 for _, batches in self._steps):
            return
        batches = sum(each for _, each in self._steps) / len(self._steps)
        counts = [samples for samples, _ in self._steps if samples is not None]
        samples = sum(counts) / len(counts) if len(counts) == len(self._steps) else None
        requested = record.batch_size
        if samples is None or requested not in (None, samples, samples / batches):
            count = "an unknown number of" if samples is None else f"{samples:g}"
            problem = f"a step has {batches:g} batches with {count} samples"
            reason = (
                f"{problem}, which does not fit the requested batch size of {requested}: samples "
                "per second are unknown"
            )
            record.gaps.append(Gap(SAMPLES_PER_STEP, "ambiguous", reason))
            samples = None
        record.summaries += [
            Summary(SAMPLES_PER_STEP, samples, "1"),
            Summary(BATCHES_PER_STEP, batches, "1"),
        ]


class _ThreadState:
    """Lives as long as its thread. Thread ids are no good: the system gives those of ended threads
    to new ones."""

    __slots__ = ("__weakref__", "calls", "row", "seen", "trains")

    def __init__(self) -> None:
        self.trains = False
        self.calls: list[Any] = []
        """Modules that the thread is calling, outermost first."""
        self.row = 0
        """Calls since the lead's last event."""
        self.seen = -1
        """Number of the lead's events when the row began."""


class _CurrentThread(threading.local):
    def __init__(self) -> None:
        self.token = _ThreadState()
        me = threading.get_ident()
        threads = (thread for thread in threading.enumerate() if thread.ident == me)
        self.can_lead = any(not isinstance(thread, threading._DummyThread) for thread in threads)
        """Not autograd's own threads, in which checkpointing repeats forward work."""

    @property
    def running_modules(self) -> list[Any]:
        return self.token.calls


class LeadThread:
    """The thread whose events count."""

    def __init__(self, taken_over: Callable[[bool], None]) -> None:
        """``taken_over``: called in the new lead, with whether the one before had ended."""
        self.here = _CurrentThread()
        self.fixed = False
        """Steps are being measured: only a thread that ended or is idle is replaced."""
        self._taken_over = taken_over
        self._lead: weakref.ref[_ThreadState] | None = None
        self._callers: weakref.WeakSet[_ThreadState] = weakref.WeakSet()
        self._several = False
        self._events = 0
        self._own_calls = self._other_calls = 0
        """Calls of models in the measured steps: by the lead, and by others."""

    @property
    def is_multithreaded_or_not_main(self) -> bool:
        """Whether models were called in more than one thread, or the lead is not the main one."""
        return self._several or threading.current_thread() is not threading.main_thread()

    def is_or_becomes_lead_thread(self, trains: bool = False, called: bool = False) -> bool:
        """Return whether this thread's events count. ``trains``: it ended a backward pass or an
        optimizer's step. ``called``: it begins an outermost call of a model."""
        token = self.here.token
        token.trains = token.trains or trains
        if called and token not in self._callers:
            self._several = self._several or bool(self._callers)
            self._callers.add(token)
        lead = self._lead() if self._lead is not None else None
        if lead is not token and not (
            self.here.can_lead and self._should_take_over(token, lead, called)
        ):
            self._other_calls += called and self.fixed
            return False
        self._events += 1
        self._own_calls += called and self.fixed
        if lead is not token:
            first, self._lead = self._lead is None, weakref.ref(token)
            if not first:
                self._taken_over(lead is None)
        return True

    def _should_take_over(
        self, token: _ThreadState, lead: _ThreadState | None, called: bool
    ) -> bool:
        if lead is None:
            return True
        if token.trains != lead.trains and (lead.trains or not self.fixed):
            return token.trains
        if token.seen != self._events:
            token.seen, token.row = self._events, 0
        token.row += called
        if token.row <= IDLE_AFTER or lead.calls:
            return False
        self._other_calls -= (token.row - 1) * self.fixed  # those before this one belong to no step
        return True

    def gaps(self) -> list[Gap]:
        """Return a gap for calls of models by other threads during the measured
        steps."""
        if not self._other_calls:
            return []
        reason = (
            f"models were also called in other threads: {self._other_calls} calls in addition to "
            f"{self._own_calls} of the thread whose steps were measured. Kernels of a step include "
            "theirs; the estimate is for one thread's calls"
        )
        return [Gap("layer_call", "ambiguous", reason)]
