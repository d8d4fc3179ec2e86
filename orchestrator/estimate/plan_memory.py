"""Memory of a step of a network of a family, from its plan and without torch: lines over the batch
size, by precision.

Follows autograd, as the trace of the built model does: what each layer keeps, makes and frees, in
the order of the step. Under autocast of CUDA activations and casts of the weights take 2 bytes;
parameters, their gradients, the optimizer's state and the statistics of a normalisation stay
float32. Types of each operation: PyTorch, aten/src/ATen/autocast_mode.h. ``cross_entropy`` asks for
the logits' own type, so that its softmax stays in 16 bits and its ``nll_loss`` is in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfctl.orchestrator.estimate.memory import STATE, MemoryLine, select_upper_envelope_lines
from perfctl.records.paper import Plan, PlanLayer
from perfctl.records.precision import PRECISIONS

COPIES = {"sgd": 0, "momentum": 0, "adam": 1, "adamw": 1, "adadelta": 2, "rmsprop": 1}
"""Values for each parameter that its update takes at once, as on a GPU (``foreach``,
torch/optim)."""
FLOAT, HALF, INDEX = 4, 2, 8
"""Bytes of a value; of one in 16 bits; of an index (of a pool's maximum, of a class)."""
KEEPS_OUTPUT = ("relu", "tanh")
"""Activations whose backward reads their output; others read their input."""
PRODUCTS = ("conv", "linear")
"""Layers that multiply: autocast runs them in 16 bits, with casts of their parameters."""


def compute_training_memory_envelope(
    plan: Plan, optimizer: str, precision: str = "fp32"
) -> tuple[MemoryLine, ...]:
    """Return the lines of one training step, with the optimizer's update as a GPU runs it.
    ``optimizer``: one of STATE.

    precision: "fp32", "tf32", "bf16" or "fp16", as
    :data:`perfctl.records.precision.PRECISIONS` says.
    """
    step = PlanStepReplay(plan, 1 + STATE[optimizer], precision)
    step.replay_training_step()
    if COPIES[optimizer]:
        # the loss, its gradient and the answers are gone
        step.free(2 * FLOAT, step.value * plan.classes)
        step.allocate(COPIES[optimizer] * FLOAT * plan.parameters, 0)
    return select_upper_envelope_lines(step.moments)


def compute_inference_memory_envelope(
    plan: Plan, precision: str = "fp32"
) -> tuple[MemoryLine, ...]:
    """Return the lines of a forward pass alone, where an output lives until its last reader is
    done; as :func:`compute_training_memory_envelope`."""
    step = PlanStepReplay(plan, 1, precision)
    step.replay_forward(None)
    return select_upper_envelope_lines(step.moments)


@dataclass(slots=True)
class _LiveGradient:
    per_sample: int
    holders: int = 0
    is_view: bool = False
    """Whether it is a view of another gradient."""


class PlanStepReplay:
    """The bytes that are alive while one step of a plan runs."""

    def __init__(self, plan: Plan, values: int, precision: str) -> None:
        """Begin with ``values`` of each parameter, buffers, and the input with its class."""
        self.plan, self.layers = plan, plan.layers
        self.half = PRECISIONS[precision].autocast is not None
        """Under autocast, in fp16 or bf16."""
        self.value = HALF if self.half else FLOAT
        """Bytes of an activation's value."""
        norms = [layer for layer in plan.layers if layer.kind == "norm"]
        buffers = sum(2 * FLOAT * layer.given[0] + INDEX for layer in norms)
        self.fixed = FLOAT * plan.parameters * values + buffers
        self.per_sample = FLOAT * plan.layers[0].all_input_elements + INDEX
        self.unread_casts = 0
        """Bytes of the parameters' casts that backward does not read: autocast's cache holds them
        until the forward ends."""
        self.moments: list[MemoryLine] = []
        self.gradients: dict[int, _LiveGradient] = {}
        self.owners: list[int] = []
        """The layer whose storage holds each layer's output: flatten shares its input's; -1 is the
        network's input."""
        for index, layer in enumerate(plan.layers):
            source_index = layer.of[0]
            shared = self.owners[source_index] if source_index >= 0 else -1
            self.owners.append(shared if layer.kind == "flatten" else index)

    def allocate(self, fixed_bytes: int, bytes_per_sample: int) -> None:
        """Allocate bytes, and record the moment."""
        self.fixed += fixed_bytes
        self.per_sample += bytes_per_sample
        self.moments.append(MemoryLine(self.fixed, self.per_sample))

    def free(self, fixed_bytes: int, bytes_per_sample: int) -> None:
        """Free bytes."""
        self.fixed -= fixed_bytes
        self.per_sample -= bytes_per_sample

    def replay_training_step(self) -> None:
        """Run forward, loss and backward."""
        needed: dict[int, int] = {}
        for index, layer in enumerate(self.layers):
            if layer.kind in (*PRODUCTS, "norm", "max_pool", "activation"):
                of_output = self.plan.settings.get("activation") in KEEPS_OUTPUT
                read = index if layer.kind == "activation" and of_output else layer.of[0]
                if read >= 0 and self.owners[read] >= 0:
                    needed.setdefault(self.owners[read], index)
        self.replay_forward(needed)
        # Cross-entropy: the log-softmax (under autocast its float32 copy too), the loss, and
        # their gradients.
        classes = FLOAT * self.plan.classes
        self.allocate(2 * FLOAT, self.value * self.plan.classes + (classes if self.half else 0))
        self.free(self.unread_casts, 0)
        self.allocate(FLOAT if self.half else 0, classes)
        if self.half:
            self.free(FLOAT, 2 * classes)
        else:
            self.allocate(0, classes)
            self.free(0, 2 * classes)
        self.replay_backward(needed)

    def replay_forward(self, last_backward_reader_by_output: dict[int, int] | None) -> None:
        """Run the layers. ``last_backward_reader_by_output``: layer whose output backward reads ->
        the first layer (the last in backward) that reads it; None: there is no backward."""
        inputs = [
            {
                self.owners[source_index]
                for source_index in layer.of
                if source_index >= 0 and self.owners[source_index] >= 0
            }
            for layer in self.layers
        ]
        last_use = {owner: index for index, read in enumerate(inputs) for owner in read}
        for index, layer in enumerate(self.layers):
            if self.owners[index] != index:
                continue
            cast = 0
            if self.half and layer.kind in PRODUCTS:
                weights, cast = self._count_saved_cast_bytes(layer)
                self.allocate(HALF * layer.parameters, cast)
                self.unread_casts += HALF * layer.parameters - weights
            fixed, per_sample = _count_bytes_saved_besides_output(layer)
            self.allocate(fixed, self.value * layer.output_elements + per_sample)
            if last_backward_reader_by_output is None:
                self.free(fixed, per_sample + cast)
            for owner in inputs[index]:
                if last_use[owner] == index and owner not in (last_backward_reader_by_output or ()):
                    self.free(0, self.value * self.layers[owner].output_elements)

    def replay_backward(self, last_backward_reader_by_output: dict[int, int]) -> None:
        """Run backward: gradients of the parameters and of each layer's inputs, the last layer
        first."""
        last = len(self.layers) - 1
        self.gradients[last] = _LiveGradient(self.value * self.plan.classes, 1)
        for index in range(last, -1, -1):
            layer, gradient = self.layers[index], self.gradients.pop(index, None)
            casts = self.half and layer.kind in PRODUCTS
            of_inputs: list[tuple[int, _LiveGradient]] = []
            if gradient is not None:
                self.allocate((HALF if casts else FLOAT) * layer.parameters, 0)
                of_inputs = self._allocate_input_gradients(layer, gradient)
                self._release_gradient(gradient)
            # What backward read for the last time: outputs, and what forward made beside them.
            fixed, per_sample = _count_bytes_saved_besides_output(layer)
            for owner, reader in last_backward_reader_by_output.items():
                if reader == index and owner != last:
                    per_sample += self.value * self.layers[owner].output_elements
            weights, data = self._count_saved_cast_bytes(layer) if casts else (0, 0)
            self.free(fixed + weights, per_sample + data)
            for source_index, new in of_inputs:
                self._accumulate_gradient(source_index, new)
            if gradient is not None and casts:
                biases = layer.gives[0] if layer.bias else 0
                for size in (biases, layer.parameters - biases):
                    self.allocate(FLOAT * size, 0)
                    self.free(HALF * size, 0)

    def _count_saved_cast_bytes(self, layer: PlanLayer) -> tuple[int, int]:
        """Return bytes of a multiplying layer's casts that backward reads: of its weights, of a
        linear layer only for its input's gradient; and of a sample of the network's input."""
        reads_input = layer.of[0] < 0 or self.owners[layer.of[0]] < 0
        weights = layer.parameters - (layer.gives[0] if layer.bias else 0)
        if reads_input and layer.kind == "linear":
            weights = 0
        return HALF * weights, HALF * layer.all_input_elements if reads_input else 0

    def _allocate_input_gradients(
        self, layer: PlanLayer, output_gradient: _LiveGradient
    ) -> list[tuple[int, _LiveGradient]]:
        """Return (input, its gradient): new ones, or the layer's own for additions, concatenations
        and views."""
        pairs = []
        for source_index in layer.of:
            if source_index < 0 or self.owners[source_index] < 0:
                continue
            gradient = output_gradient
            if layer.kind not in ("add", "concat", "flatten"):
                gradient = _LiveGradient(self.value * layer.all_input_elements)
                self.allocate(0, gradient.per_sample)
            gradient.holders += 1
            gradient.is_view |= layer.kind in ("concat", "flatten")
            pairs.append((source_index, gradient))
        return pairs

    def _accumulate_gradient(self, source_index: int, gradient: _LiveGradient) -> None:
        """Put a gradient to those that other readers of the same layer gave.

        Autograd adds in place if no other tensor holds the first, and it is no view
        (torch/csrc/autograd/input_buffer.cpp).
        """
        before = self.gradients.get(source_index)
        if before is None:
            self.gradients[source_index] = gradient
            return
        if before.holders == 1 and not before.is_view:
            self._release_gradient(gradient)
            return
        both = _LiveGradient(self.value * self.layers[source_index].output_elements, 1)
        self.allocate(0, both.per_sample)
        self._release_gradient(before)
        self._release_gradient(gradient)
        self.gradients[source_index] = both

    def _release_gradient(self, gradient: _LiveGradient) -> None:
        gradient.holders -= 1
        if gradient.holders == 0:
            self.free(0, gradient.per_sample)


def _count_bytes_saved_besides_output(layer: PlanLayer) -> tuple[int, int]:
    """Return (bytes, bytes per sample) that a layer makes besides its output, for backward:
    statistics, indices of maxima."""
    if layer.kind == "norm":
        return 2 * FLOAT * layer.given[0], 0
    return 0, INDEX * layer.output_elements if layer.kind == "max_pool" else 0
