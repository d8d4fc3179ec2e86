"""Decide which events end a step of a user's script. Independent of torch.

An optimizer's step ends a step. With two optimizers (a GAN), a step ends with the last one before the first steps again:
five steps of the critic and one of the generator are one step. Without an optimizer of torch, each backward pass ends a
step; without training, each call of a model does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

PATIENCE = 12
"""How often the first optimizer may step while one that has never stepped is waited for."""


@dataclass(slots=True)
class Cycle:
    """Learns which of several sources of events is the last of a round."""

    expected: Callable[[], int] | None = None
    """Number of sources; None when only a second round can tell."""
    order: list[int] = field(default_factory=list)
    last: int | None = None
    """The source that ends a round; None while unknown."""
    frozen: bool = False
    """No more learning: the window is open."""
    _rounds: int = 0

    def event(self, source: int) -> bool:
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
class StepMarker:
    """Turns a script's events into ends of steps, by the requested rule."""

    kind: str
    named: str | None
    """Only events of this class; None for any."""
    optimizers_alive: Callable[[], int]
    """Number of the script's optimizers that are not stepped by another one."""
    optimizers: Cycle = field(init=False)
    models: Cycle = field(default_factory=Cycle)
    steps: int = 0
    optimizer_steps: int = 0
    calls: int = 0
    """Number of outermost calls of models."""
    _by_backward: bool = False
    """The script trains without an optimizer of torch: each backward pass ends a step."""
    _heard: dict[int, int] = field(default_factory=dict)
    _ender: int = 0

    def __post_init__(self) -> None:
        self.optimizers = Cycle(self.optimizers_alive)

    def optimizer_stepped(self, source: int, name: str) -> bool:
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
        self._hear(source)
        return self._count(self.named is not None or self.optimizers.event(source))

    def model_called(self, source: int) -> bool:
        self.calls += 1
        if self.named is not None or self.kind not in ("auto", "forward"):
            return False
        if self.kind == "auto" and (self._by_backward or self.optimizers_alive() or self.optimizers.order):
            return False
        self._hear(source)
        return self._count(self.models.event(source))

    def module_called(self, name: str) -> bool:
        return self._count(self.kind == "forward" and self.named == name)

    def backward_ended(self) -> bool:
        if self.kind == "auto" and not self.models.frozen:
            alone = not (self.optimizers_alive() or self.optimizers.order)
            if alone != self._by_backward:
                self.steps = 0  # earlier calls were not steps, nor were passes before there was an optimizer
            self._by_backward = alone
        return self._count(self.ends_with_backward)

    @property
    def ends_with_backward(self) -> bool:
        return self.kind == "backward" or self._by_backward

    def listen(self) -> None:
        """Start observing for ``is_whole``."""
        self._heard.clear()

    @property
    def is_whole(self) -> bool:
        """Whether exactly one step passed since ``listen``: its last source had a single event."""
        return self._heard.get(self._ender, 1) == 1

    def freeze(self) -> None:
        """Keep the rule from now on, if there is one: the window opens."""
        self.optimizers.frozen = self.models.frozen = self.steps > 0

    def in_words(self) -> str:
        if self.ends_with_backward:
            return "a backward pass"
        if self.named is not None:
            return f"each step of {self.named}" if self.kind == "optimizer" else f"each call of {self.named}"
        if self.kind == "forward" or (self.kind == "auto" and not self.optimizers.order):
            return "an outermost call of the model"
        several = len(self.optimizers.order) > 1
        return f"the last of {len(self.optimizers.order)} optimizers' steps" if several else "the optimizer's step"

    def _hear(self, source: int) -> None:
        self._heard[source] = self._heard.get(source, 0) + 1
        self._ender = source

    def _count(self, ends: bool) -> bool:
        self.steps += ends
        return ends
