"""Memory of a step at any batch size: the largest of a few lines ``fixed + per_sample * batch``, one for each moment.

Rounding, workspaces and the CUDA context are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from perfctl.orchestrator.analyse.memory.trace import events
from perfctl.records.paper import MemoryTrace, Plan, PlanLayer


class MemoryLine(NamedTuple):
    """Bytes at one moment of a step."""

    fixed: int
    """Independent of batch: parameters, gradients, optimizer state."""
    per_sample: int


class LinesError(ValueError):
    """Two traces whose steps differ in more than their sizes."""


def peak_at(lines: Iterable[MemoryLine], batch: int) -> int:
    """Peak bytes of a step."""
    return max(line.fixed + line.per_sample * batch for line in lines)


def largest_fitting(lines: Iterable[MemoryLine], limit: float) -> int | None:
    """The largest batch whose peak is at most ``limit`` bytes; 0 if no sample fits, None if every batch fits."""
    ends = []
    for line in lines:
        if line.per_sample > 0:
            ends.append(max(int((limit - line.fixed) // line.per_sample), 0))
        elif line.fixed > limit:
            return 0
    return min(ends, default=None)


def upper(lines: Iterable[MemoryLine]) -> tuple[MemoryLine, ...]:
    """The lines that are the largest at some batch size, the steepest first."""
    kept: list[MemoryLine] = []
    for line in sorted(set(lines), reverse=True, key=lambda one: (one.per_sample, one.fixed)):
        if not kept or line.fixed > kept[-1].fixed:
            kept.append(line)
    return tuple(kept)


def lines_of(one: MemoryTrace, other: MemoryTrace, batches: tuple[int, int]) -> tuple[MemoryLine, ...]:
    """From the traces of one step at two batch sizes. Raises LinesError when the steps are not the same."""
    return upper(line for _, line in moments(one, other, batches))


def lines_by_part(
    one: MemoryTrace, other: MemoryTrace, batches: tuple[int, int]
) -> tuple[tuple[MemoryLine, ...], tuple[MemoryLine, ...]]:
    """As :func:`lines_of`: of forward and backward, and of the optimizer's step."""
    found = list(moments(one, other, batches))
    before = upper(line for moment, line in found if moment <= one.backward_ends)
    return before, upper(line for moment, line in found if moment > one.backward_ends)


def moments(one: MemoryTrace, other: MemoryTrace, batches: tuple[int, int]) -> Iterator[tuple[int, MemoryLine]]:
    """(moment, its line) of a step, from traces at two batch sizes. Raises LinesError if their tensors differ."""
    if len(one.allocations) != len(other.allocations) or not (one.whole and other.whole):
        raise LinesError("the two traces have different tensors")
    slopes = {}
    for a, b in zip(one.allocations, other.allocations, strict=True):
        if (a.born, a.died) != (b.born, b.died):
            raise LinesError("a tensor is born or freed at another moment at the other batch size")
        slopes[id(a)] = (b.bytes - a.bytes) // (batches[1] - batches[0])
    fixed = per_sample = 0
    for moment, sign, storage in events(one):
        slope = slopes[id(storage)]
        fixed += sign * (storage.bytes - slope * batches[0])
        per_sample += sign * slope
        yield moment, MemoryLine(fixed, per_sample)


STATE = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2, "adadelta": 2, "rmsprop": 1}
"""Values that an optimizer keeps for each parameter, besides the parameter and its gradient."""
COPIES = {"sgd": 0, "momentum": 0, "adam": 1, "adamw": 1, "adadelta": 2, "rmsprop": 1}
"""Values for each parameter that its update takes at once, as on a GPU (``foreach``, torch/optim)."""
FLOAT, PLACE = 4, 8
"""Bytes of a value; of an index (of a pool's maximum, of a class)."""
KEEPS_OUTPUT = ("relu", "tanh")
"""Activations whose backward reads their output; others read their input."""


@dataclass(slots=True)
class _Gradient:
    per_sample: int
    holders: int = 0


@dataclass(slots=True)
class _Step:
    fixed: int
    per_sample: int
    moments: list[MemoryLine] = field(default_factory=list)

    def take(self, fixed: int, per_sample: int) -> None:
        self.fixed += fixed
        self.per_sample += per_sample
        self.moments.append(MemoryLine(self.fixed, self.per_sample))

    def free(self, fixed: int, per_sample: int) -> None:
        self.fixed -= fixed
        self.per_sample -= per_sample


def lines_of_plan(plan: Plan, optimizer: str) -> tuple[MemoryLine, ...]:
    """Lines of one training step, with the optimizer's update as a GPU runs it. ``optimizer``: one of STATE."""
    step = _start(plan, 1 + STATE[optimizer])
    _train(step, plan)
    if COPIES[optimizer]:
        step.take(COPIES[optimizer] * FLOAT * plan.parameters, 0)
    return upper(step.moments)


def _train(step: _Step, plan: Plan) -> None:
    owners = _owners(plan.layers)
    needed = _needed_by(plan, owners)
    _forward(step, plan.layers, owners, needed)
    # Cross-entropy: the loss and its gradient, the log-softmax and its gradient, then the gradient of the logits.
    step.take(2 * FLOAT, FLOAT * plan.classes)
    step.take(0, FLOAT * plan.classes)
    step.take(0, FLOAT * plan.classes)
    step.free(0, 2 * FLOAT * plan.classes)
    _backward(step, plan, owners, needed)


def _start(plan: Plan, values: int) -> _Step:
    """Before the step: ``values`` of each parameter, buffers, and the input with its class."""
    buffers = sum(2 * FLOAT * layer.given[0] + PLACE for layer in plan.layers if layer.kind == "norm")
    return _Step(FLOAT * plan.parameters * values + buffers, FLOAT * plan.layers[0].inputs + PLACE)


def inference_lines(plan: Plan) -> tuple[MemoryLine, ...]:
    """Lines of a forward pass alone, where an output lives until its last reader is done."""
    layers, step, owners = plan.layers, _start(plan, 1), _owners(plan.layers)
    last_use = {owner: place for place, layer in enumerate(layers) for owner in _read(layer, owners)}
    for place, layer in enumerate(layers):
        if owners[place] != place:
            continue
        places = PLACE * layer.outputs if layer.kind == "max_pool" else 0
        step.take(0, FLOAT * layer.outputs + places)
        done = [layers[owner].outputs for owner in _read(layer, owners) if last_use[owner] == place]
        step.free(0, places + FLOAT * sum(done))
    return upper(step.moments)


def _read(layer: PlanLayer, owners: list[int]) -> set[int]:
    return {owners[of] for of in layer.of if of >= 0 and owners[of] >= 0}


def _owners(layers: tuple[PlanLayer, ...]) -> list[int]:
    """The layer whose storage holds each layer's output: flatten shares its input's; -1 is the network's input."""
    owners: list[int] = []
    for place, layer in enumerate(layers):
        of = layer.of[0]
        owners.append(place if layer.kind != "flatten" else owners[of] if of >= 0 else -1)
    return owners


def _needed_by(plan: Plan, owners: list[int]) -> dict[int, int]:
    """Layer whose output backward reads -> the first layer (the last in backward) that reads it."""
    needed: dict[int, int] = {}
    for place, layer in enumerate(plan.layers):
        if layer.kind in ("conv", "linear", "norm", "max_pool", "activation"):
            own = layer.kind == "activation" and plan.settings["activation"] in KEEPS_OUTPUT
            read = place if own else layer.of[0]
            if read >= 0 and owners[read] >= 0:
                needed.setdefault(owners[read], place)
    return needed


def _kept_beside(layer: PlanLayer) -> tuple[int, int]:
    """(bytes, bytes per sample) that backward needs besides inputs and outputs: statistics, indices of maxima."""
    if layer.kind == "norm":
        return 2 * FLOAT * layer.given[0], 0
    return 0, PLACE * layer.outputs if layer.kind == "max_pool" else 0


def _forward(step: _Step, layers: tuple[PlanLayer, ...], owners: list[int], needed: dict[int, int]) -> None:
    last_use = {owner: place for place, layer in enumerate(layers) for owner in _read(layer, owners)}
    for place, layer in enumerate(layers):
        if owners[place] == place:
            beside = _kept_beside(layer)
            step.take(beside[0], FLOAT * layer.outputs + beside[1])
            for owner in _read(layer, owners):
                if last_use[owner] == place and owner not in needed:
                    step.free(0, FLOAT * layers[owner].outputs)


def _backward(step: _Step, plan: Plan, owners: list[int], needed: dict[int, int]) -> None:
    layers, last = plan.layers, len(plan.layers) - 1
    gradients: dict[int, _Gradient] = {last: _Gradient(FLOAT * plan.classes, 1)}
    for place in range(last, -1, -1):
        layer = layers[place]
        mine = gradients.pop(place, None)
        if mine is not None:
            step.take(FLOAT * layer.parameters, 0)
            _hand_on(step, layers, owners, place, mine, gradients)
            _let_go(step, mine)
        beside = _kept_beside(layer)
        kept = sum(FLOAT * layers[owner].outputs for owner, at in needed.items() if at == place and owner != last)
        step.free(beside[0], beside[1] + kept)


def _hand_on(
    step: _Step, layers: tuple[PlanLayer, ...], owners: list[int], place: int, mine: _Gradient,
    gradients: dict[int, _Gradient],
) -> None:  # fmt: skip
    """Gradients of the layer's inputs: new ones, or its own for additions, concatenations and views."""
    layer = layers[place]
    for of in layer.of:
        if of < 0 or owners[of] < 0:
            continue
        given = mine
        if layer.kind not in ("add", "concat", "flatten"):
            given = _Gradient(FLOAT * layer.inputs)
            step.take(0, given.per_sample)
        given.holders += 1
        there = gradients.get(of)
        if there is None:
            gradients[of] = given
        elif there.holders == 1 and there.per_sample == FLOAT * layers[of].outputs:
            _let_go(step, given)  # added in place
        else:
            both = _Gradient(FLOAT * layers[of].outputs, 1)
            step.take(0, both.per_sample)
            _let_go(step, there)
            _let_go(step, given)
            gradients[of] = both


def _let_go(step: _Step, gradient: _Gradient) -> None:
    gradient.holders -= 1
    if gradient.holders == 0:
        step.free(0, gradient.per_sample)
