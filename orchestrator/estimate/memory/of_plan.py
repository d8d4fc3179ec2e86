"""Memory of a step of a network of a family, from its plan and without torch: lines over the batch
size, by precision.

Follows autograd, as the trace of the built model does: what each layer keeps, makes and frees, in
the order of the step. Under autocast of CUDA (``half``) activations and casts of the weights take 2
bytes; parameters, their gradients, the optimizer's state and the statistics of a normalisation stay
float32. Types of each operation: PyTorch, aten/src/ATen/autocast_mode.h. ``cross_entropy`` asks for
the logits' own type, so that its softmax stays in 16 bits and its ``nll_loss`` is in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from perfctl.orchestrator.estimate.memory.by_batch import STATE, MemoryLine, upper
from perfctl.records.paper import Plan, PlanLayer
from perfctl.records.precision import PRECISIONS

COPIES = {"sgd": 0, "momentum": 0, "adam": 1, "adamw": 1, "adadelta": 2, "rmsprop": 1}
"""Values for each parameter that its update takes at once, as on a GPU (``foreach``,
torch/optim)."""
FLOAT, HALF, PLACE = 4, 2, 8
"""Bytes of a value; of one in 16 bits; of an index (of a pool's maximum, of a class)."""
KEEPS_OUTPUT = ("relu", "tanh")
"""Activations whose backward reads their output; others read their input."""
PRODUCTS = ("conv", "linear")
"""Layers that multiply: autocast runs them in 16 bits, with casts of their parameters."""


@dataclass(slots=True)
class _Gradient:
    per_sample: int
    holders: int = 0


@dataclass(slots=True)
class _Step:
    fixed: int
    per_sample: int
    half: bool = False
    """Under autocast, in fp16 or bf16."""
    unread_casts: int = 0
    """Bytes of the parameters' casts that backward does not read: autocast's cache holds them until
    the forward ends."""
    moments: list[MemoryLine] = field(default_factory=list)

    @property
    def value(self) -> int:
        """Bytes of an activation's value."""
        return HALF if self.half else FLOAT

    def take(self, fixed: int, per_sample: int) -> None:
        self.fixed += fixed
        self.per_sample += per_sample
        self.moments.append(MemoryLine(self.fixed, self.per_sample))

    def free(self, fixed: int, per_sample: int) -> None:
        self.fixed -= fixed
        self.per_sample -= per_sample


def lines_of_plan(plan: Plan, optimizer: str, precision: str = "fp32") -> tuple[MemoryLine, ...]:
    """Lines of one training step, with the optimizer's update as a GPU runs it. ``optimizer``: one
    of STATE.

    precision: "fp32", "tf32", "bf16" or "fp16", as
    :data:`perfctl.records.precision.PRECISIONS` says.
    """
    step = _start(plan, 1 + STATE[optimizer], precision)
    _train(step, plan)
    if COPIES[optimizer]:
        # the loss, its gradient and the answers are gone
        step.free(2 * FLOAT, step.value * plan.classes)
        step.take(COPIES[optimizer] * FLOAT * plan.parameters, 0)
    return upper(step.moments)


def _train(step: _Step, plan: Plan) -> None:
    owners = _owners(plan.layers)
    needed = _needed_by(plan, owners)
    _forward(step, plan.layers, owners, needed)
    _loss(step, plan.classes)
    _backward(step, plan, owners, needed)


def _loss(step: _Step, classes: int) -> None:
    """Cross-entropy: the log-softmax (under autocast its float32 copy too), the loss, and
    their gradients."""
    step.take(2 * FLOAT, step.value * classes + (FLOAT * classes if step.half else 0))
    step.free(step.unread_casts, 0)
    step.take(FLOAT if step.half else 0, FLOAT * classes)
    if step.half:
        step.free(FLOAT, 2 * FLOAT * classes)
    else:
        step.take(0, FLOAT * classes)
        step.free(0, 2 * FLOAT * classes)


def _start(plan: Plan, values: int, precision: str) -> _Step:
    """Before the step: ``values`` of each parameter, buffers, and the input with its class."""
    buffers = sum(
        2 * FLOAT * layer.given[0] + PLACE for layer in plan.layers if layer.kind == "norm"
    )
    half = PRECISIONS[precision].autocast is not None
    return _Step(
        FLOAT * plan.parameters * values + buffers, FLOAT * plan.layers[0].inputs + PLACE, half
    )


def inference_lines(plan: Plan, precision: str = "fp32") -> tuple[MemoryLine, ...]:
    """Lines of a forward pass alone, where an output lives until its last reader is done; as
    :func:`lines_of_plan`."""
    layers, owners = plan.layers, _owners(plan.layers)
    step = _start(plan, 1, precision)
    last_use = {
        owner: place for place, layer in enumerate(layers) for owner in _read(layer, owners)
    }
    for place, layer in enumerate(layers):
        if owners[place] != place:
            continue
        cast = _cast(step, layer, owners)
        fixed, each = _kept_beside(layer)
        step.take(fixed, step.value * layer.outputs + each)
        done = [layers[owner].outputs for owner in _read(layer, owners) if last_use[owner] == place]
        step.free(fixed, each + cast + step.value * sum(done))
    return upper(step.moments)


def _cast(step: _Step, layer: PlanLayer, owners: list[int]) -> int:
    """Autocast's copies for a layer that multiplies: its parameters, and the network's input. Bytes
    a sample of the input's."""
    if not step.half or layer.kind not in PRODUCTS:
        return 0
    own = HALF * layer.inputs if _reads_input(layer, owners) else 0
    step.take(HALF * layer.parameters, own)
    step.unread_casts += HALF * (layer.parameters - _read_weights(layer, owners))
    return own


def _reads_input(layer: PlanLayer, owners: list[int]) -> bool:
    return layer.of[0] < 0 or owners[layer.of[0]] < 0


def _read_weights(layer: PlanLayer, owners: list[int]) -> int:
    """Weights that backward reads: those of a linear layer only for its input's gradient, of a
    convolution always."""
    return 0 if layer.kind == "linear" and _reads_input(layer, owners) else _parameters(layer)[0]


def _parameters(layer: PlanLayer) -> tuple[int, int]:
    """(weights, biases) of a layer that multiplies."""
    biases = layer.gives[0] if layer.bias else 0
    return layer.parameters - biases, biases


def _read(layer: PlanLayer, owners: list[int]) -> set[int]:
    return {owners[of] for of in layer.of if of >= 0 and owners[of] >= 0}


def _owners(layers: tuple[PlanLayer, ...]) -> list[int]:
    """The layer whose storage holds each layer's output: flatten shares its input's; -1 is the
    network's input."""
    owners: list[int] = []
    for place, layer in enumerate(layers):
        of = layer.of[0]
        owners.append(place if layer.kind != "flatten" else owners[of] if of >= 0 else -1)
    return owners


def _needed_by(plan: Plan, owners: list[int]) -> dict[int, int]:
    """Layer whose output backward reads -> the first layer (the last in backward) that reads it."""
    needed: dict[int, int] = {}
    for place, layer in enumerate(plan.layers):
        if layer.kind in (*PRODUCTS, "norm", "max_pool", "activation"):
            own = layer.kind == "activation" and plan.settings["activation"] in KEEPS_OUTPUT
            read = place if own else layer.of[0]
            if read >= 0 and owners[read] >= 0:
                needed.setdefault(owners[read], place)
    return needed


def _kept_beside(layer: PlanLayer) -> tuple[int, int]:
    """(bytes, bytes per sample) that a layer makes besides its output, for backward: statistics,
    indices of maxima."""
    if layer.kind == "norm":
        return 2 * FLOAT * layer.given[0], 0
    return 0, PLACE * layer.outputs if layer.kind == "max_pool" else 0


def _forward(
    step: _Step, layers: tuple[PlanLayer, ...], owners: list[int], needed: dict[int, int]
) -> None:
    last_use = {
        owner: place for place, layer in enumerate(layers) for owner in _read(layer, owners)
    }
    for place, layer in enumerate(layers):
        if owners[place] == place:
            _cast(step, layer, owners)
            beside = _kept_beside(layer)
            step.take(beside[0], step.value * layer.outputs + beside[1])
            for owner in _read(layer, owners):
                if last_use[owner] == place and owner not in needed:
                    step.free(0, step.value * layers[owner].outputs)


def _backward(step: _Step, plan: Plan, owners: list[int], needed: dict[int, int]) -> None:
    layers, last = plan.layers, len(plan.layers) - 1
    gradients: dict[int, _Gradient] = {last: _Gradient(step.value * plan.classes, 1)}
    for place in range(last, -1, -1):
        layer, mine = layers[place], gradients.pop(place, None)
        casts = step.half and layer.kind in PRODUCTS
        given: list[tuple[int, _Gradient]] = []
        if mine is not None:
            step.take((HALF if casts else FLOAT) * layer.parameters, 0)
            given = _gradients_of_inputs(step, layer, owners, mine)
            _let_go(step, mine)
        _let_go_of_kept(step, layers, owners, needed, place)
        for of, gradient in given:
            _gather(step, layers[of], of, gradient, gradients)
        if mine is not None and casts:
            for size in reversed(_parameters(layer)):
                step.take(FLOAT * size, 0)
                step.free(HALF * size, 0)


def _let_go_of_kept(
    step: _Step,
    layers: tuple[PlanLayer, ...],
    owners: list[int],
    needed: dict[int, int],
    place: int,
) -> None:
    """What backward of one layer read for the last time: outputs, and what :func:`_kept_beside` and
    :func:`_cast` made."""
    layer = layers[place]
    fixed, each = _kept_beside(layer)
    each += sum(
        step.value * layers[owner].outputs
        for owner, at in needed.items()
        if at == place and owner != len(layers) - 1
    )
    if step.half and layer.kind in PRODUCTS:
        fixed += HALF * _read_weights(layer, owners)
        each += HALF * layer.inputs if _reads_input(layer, owners) else 0
    step.free(fixed, each)


def _gradients_of_inputs(
    step: _Step, layer: PlanLayer, owners: list[int], mine: _Gradient
) -> list[tuple[int, _Gradient]]:
    """(input, its gradient): new ones, or the layer's own for additions, concatenations
    and views."""
    found = []
    for of in layer.of:
        if of < 0 or owners[of] < 0:
            continue
        given = mine
        if layer.kind not in ("add", "concat", "flatten"):
            given = _Gradient(step.value * layer.inputs)
            step.take(0, given.per_sample)
        given.holders += 1
        found.append((of, given))
    return found


def _gather(
    step: _Step, layer: PlanLayer, of: int, given: _Gradient, gradients: dict[int, _Gradient]
) -> None:
    """Put a gradient to those that other readers of the same layer gave: a new sum of two, as a
    trace has it.

    Autograd adds in place where nobody else holds the first (torch/csrc/autograd/input_buffer.cpp):
    a step may need less.
    """
    there = gradients.get(of)
    if there is None:
        gradients[of] = given
        return
    both = _Gradient(step.value * layer.outputs, 1)
    step.take(0, both.per_sample)
    _let_go(step, there)
    _let_go(step, given)
    gradients[of] = both


def _let_go(step: _Step, gradient: _Gradient) -> None:
    gradient.holders -= 1
    if gradient.holders == 0:
        step.free(0, gradient.per_sample)
