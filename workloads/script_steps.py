"""Which events end a step of a script that nobody edited. Knows nothing of torch.

An optimizer's step ends one. With two (a GAN), the one that steps last before the first of them steps again does; so five
steps of the critic and one of the generator are one step. Where no optimizer of torch steps,
each backward pass ends one; where nothing is trained, calls of models take that place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

PATIENCE = 12
"""How often the first optimizer may step while another, which was made but never stepped, is waited for."""


@dataclass(slots=True)
class Cycle:
    """Learns which of several sources speaks last in a round."""

    expected: Callable[[], int] | None = None
    """How many sources there are; None when only the second round can tell."""
    order: list[int] = field(default_factory=list)
    """Sources in the order of their first word."""
    last: int | None = None
    """The source whose word ends a round; None while that is not known."""
    frozen: bool = False
    """Nothing more is learnt: the window is open."""
    _rounds: int = 0

    def word(self, source: int) -> bool:
        """One event of a source. True when it ends a round, as far as is known by now."""
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
    """Turns what is seen of a script into the ends of its steps, by the rule asked for."""

    kind: str
    """auto, optimizer, forward or backward."""
    named: str | None
    """Only events of this class; None for any."""
    optimizers_alive: Callable[[], int]
    """How many optimizers the script has made that step by themselves."""
    optimizers: Cycle = field(init=False)
    models: Cycle = field(default_factory=Cycle)
    steps: int = 0
    """Ends of steps so far."""
    optimizer_steps: int = 0
    calls: int = 0
    """Outermost calls of models."""
    _by_backward: bool = False
    """A script that trains without an optimizer of torch: each of its backward passes ends a step."""
    _heard: dict[int, int] = field(default_factory=dict)
    _ender: int = 0

    def __post_init__(self) -> None:
        self.optimizers = Cycle(self.optimizers_alive)

    def optimizer_stepped(self, source: int, name: str) -> bool:
        """True when this ends a step; likewise below."""
        self.optimizer_steps += 1
        if self.kind not in ("auto", "optimizer") or self.named not in (None, name):
            return False
        if (
            self.kind == "auto"
            and (self.models.order or self._by_backward)
            and not self.optimizers.order
            and not self.optimizers.frozen
        ):
            self.steps = 0  # calls before the first optimizer's step were no steps
        if not self.optimizers.frozen:
            self._by_backward = False
        self._hear(source)
        return self._count(self.named is not None or self.optimizers.word(source))

    def model_called(self, source: int) -> bool:
        """An outermost call of a model ended."""
        self.calls += 1
        if self.named is not None or self.kind not in ("auto", "forward"):
            return False
        if self.kind == "auto" and (self._by_backward or self.optimizers_alive() or self.optimizers.order):
            return False
        self._hear(source)
        return self._count(self.models.word(source))

    def module_called(self, name: str) -> bool:
        """A call of any module ended."""
        return self._count(self.kind == "forward" and self.named == name)

    def backward_ended(self) -> bool:
        if self.kind == "auto" and not self.models.frozen:
            alone = not (self.optimizers_alive() or self.optimizers.order)
            if alone != self._by_backward:
                self.steps = 0  # calls before were no steps, nor passes before there was an optimizer
            self._by_backward = alone
        return self._count(self.ends_with_backward)

    @property
    def ends_with_backward(self) -> bool:
        """Each backward pass ends a step."""
        return self.kind == "backward" or self._by_backward

    def listen(self) -> None:
        """From here on it is of interest whether one whole step passes, see ``is_whole``."""
        self._heard.clear()

    @property
    def is_whole(self) -> bool:
        """What passed since ``listen`` was one step: what ended it spoke once, and did not have to be found out first."""
        return self._heard.get(self._ender, 1) == 1

    def freeze(self) -> None:
        """The window opens: the rule stays as it is, if there is one yet."""
        self.optimizers.frozen = self.models.frozen = self.steps > 0

    def in_words(self) -> str:
        """For the record: what ended a step."""
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
