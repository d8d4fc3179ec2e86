"""Records of the hand calculation: shapes of operations, results of formulas, memory of a step; 1
multiply-add is 2 FLOPs.

Shapes are recorded inside the profiled process (``perfctl.workloads.tracing``), formulas live in
``estimate.flops``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, Tuple

CAPABILITY = (8, 0)
"""Of the GPU where none is named: Ampere, from which on PyTorch has all its attention kernels."""

ATTENTION = ("auto", "flash", "efficient", "cudnn", "math")
UPDATES = ("auto", "foreach", "fused", "for-loop")

Shape = Tuple[int, int, int]
"""Channels, height, width; features, 1, 1 where an image has been flattened."""

KINDS = (
    "conv",
    "linear",
    "norm",
    "activation",
    "max_pool",
    "mean_pool",
    "add",
    "concat",
    "flatten",
)


UPPER_BOUND = "; upper bound: "
"""In a formula's text: before the reason why fewer FLOPs may be required."""


class LayerCall(NamedTuple):
    """Calculated work of one layer (or functional operation) in one direction, for one step."""

    layer: str
    kind: str
    direction: str
    macs: int | None
    """Multiply-adds. None when there is no formula; 0 when the operation has none."""
    flops: int | None
    """2 x macs, and 1 for an odd registered formula; elementwise work is not included."""
    parameters: int | None
    read_bytes: int | None
    write_bytes: int | None
    output_elements: int | None
    formula: str | None
    """The formula with its numbers filled in."""
    elementwise_flops: int | None = None
    """Counted apart: bias adds, activations, normalisation, pooling, softmax, reductions."""
    calls: int = 1
    """How often the layer ran in this direction in the step; the figures are for all of them."""
    position: int | None = None
    """Order of first call in the network, from 0."""

    @property
    def upper_bound_reason(self) -> str:
        """Why fewer FLOPs may be required; "" if none."""
        return (self.formula or "").partition(UPPER_BOUND)[2].partition(";")[0]


@dataclass(frozen=True, slots=True)
class OpShape:
    """Shapes and attributes of one operation of a step: all that a formula needs for a LayerCall,
    without times."""

    layer: str
    """Dotted module path; "" when no module was running."""
    kind: str
    """Class of that module (Conv2d, Linear, ...) or "" outside of modules."""
    op: str
    """Dispatcher name without overload: aten.convolution, aten.addmm,
    aten.convolution_backward, ..."""
    direction: str
    """forward, backward or optimizer: in which phase of the step the dispatcher saw it."""
    inputs: tuple[tuple[int, ...] | None, ...]
    """Shape of each positional argument that is a tensor, None in the place of one that is not."""
    outputs: tuple[tuple[int, ...] | None, ...]
    dtypes: tuple[str, ...] = ()
    """Of the tensors among the inputs, then of the outputs: float32, bfloat16, ..."""
    attributes: dict[str, object] = field(default_factory=dict)
    """What the formula needs beyond shapes, JSON types only: stride, padding, groups,
    output_mask, ..."""
    parameters: int = 0
    """Elements of the module's own parameters (not its children's), each counted once per model."""
    calls: int = 1
    """Identical calls in the step."""
    position: int = 0
    """Order of the first of them."""


def parse_op_shape(row: dict[str, Any]) -> OpShape:
    """An OpShape from its JSON form (``dataclasses.asdict``). Raises KeyError or TypeError when the
    row is not one."""
    shapes = {
        key: tuple(shape if shape is None else tuple(shape) for shape in row[key])
        for key in ("inputs", "outputs")
    }
    return OpShape(**{**row, **shapes, "dtypes": tuple(row.get("dtypes", ()))})


class LayerTraffic(NamedTuple):
    """What one layer reads in one step of tensors that were there before it: weights, and the cache
    of keys and values."""

    layer: str
    """Dotted module path."""
    weight_bytes: int
    """Each parameter once; of an embedding the rows that are looked up, of experts those that have
    a token."""
    cache_values: int
    """Elements of the cache, each once."""
    cache_bytes: int


class CacheTensor(NamedTuple):
    """One tensor of a model's cache after a step."""

    name: str
    """Where it is in the cache: layers.0.keys, 0.1."""
    layer: str | None
    """The first layer that read it in the step; None when none did."""
    before: tuple[int, ...] | None
    """Shape before the step; None when it was not there."""
    shape: tuple[int, ...]
    dtype: str
    written: bool
    """False: the step left it as it was (cross-attention's keys)."""


class TensorAllocation(NamedTuple):
    """One tensor storage of a traced step, from its first to its last moment. Moments
    count operations."""

    bytes: int
    category: str
    """parameter, buffer, input, activation (kept for backward), gradient, optimizer, temporary."""
    born: int
    """0: it was there before the step."""
    died: int | None
    """None: it was still there at the end of the trace."""
    layer: str
    """Dotted module path of the operation that made it; "" outside of modules."""
    direction: str
    """forward, backward or optimizer; "" when it was there before."""
    op: str
    """Dispatcher name; "" when it was there before."""


@dataclass(frozen=True, slots=True)
class GpuChoices:
    """What a CUDA GPU runs where PyTorch chooses a kernel by device, type and shape."""

    capability: tuple[int, int] = CAPABILITY
    attention: str = "auto"
    """Kernel of scaled_dot_product_attention: one of ATTENTION."""
    update: str = "auto"
    """How the optimizer updates the parameters: one of UPDATES."""


@dataclass(frozen=True, slots=True)
class MemoryTrace:
    """The storages of one step (after a first one that made the optimizer's state)."""

    allocations: tuple[TensorAllocation, ...]
    forward_ends: int
    """Moment at which backward (or, without it, nothing more) began."""
    backward_ends: int
    ends: int
    whole: bool = True
    """False when the step was cut off by an error."""
    on_gpu: bool = False
    """Whether the kernels are those that a GPU would run; False: those of the device it was
    traced on."""
    assumed: tuple[str, ...] = ()
    """Choices that were made for the GPU, one line each."""
    first: tuple[TensorAllocation, ...] = ()
    """The storages of the step before; those that never died are the first of ``allocations``, in
    the same order."""


class PlanLayer(NamedTuple):
    """One layer of a plan. What it computes follows from these numbers alone."""

    name: str
    """Dotted path of the module."""
    kind: str
    """One of KINDS."""
    of: tuple[int, ...]
    """Numbers of the layers whose outputs it takes, from 0 in the plan's order; -1 is the
    network's input."""
    given: Shape
    """Of its (first) input."""
    gives: Shape
    kernel: int = 1
    """Width of the window: square."""
    stride: int = 1
    padding: int = 0
    bias: bool = False

    @property
    def all_input_elements(self) -> int:
        """Elements that it reads, of all its inputs. A concatenation and an addition read what
        they give."""
        return self.output_elements if self.kind == "concat" else prod(self.given) * len(self.of)

    @property
    def output_elements(self) -> int:
        return prod(self.gives)

    @property
    def forward_macs_per_sample(self) -> int:
        """Multiply-adds of the forward pass; 0 for what multiplies no matrix."""
        return (
            self.output_elements * self.given[0] * self.kernel**2
            if self.kind in ("conv", "linear")
            else 0
        )

    @property
    def parameters(self) -> int:
        """Trainable elements."""
        if self.kind == "norm":
            return 2 * self.given[0]
        return (
            self.gives[0] * (self.given[0] * self.kernel**2 + self.bias)
            if self.kind in ("conv", "linear")
            else 0
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """One point of a family."""

    spec: str
    """Full specification: family and its parameters that differ from the default, in the
    family's order."""
    family: str
    settings: dict[str, int | str]
    """Every parameter of the family, defaults too."""
    layers: tuple[PlanLayer, ...]

    @property
    def input_shape(self) -> Shape:
        """The network's input: channels, height, width."""
        return (
            int(self.settings["channels"]),
            int(self.settings["image"]),
            int(self.settings["image"]),
        )

    @property
    def classes(self) -> int:
        return int(self.settings["classes"])

    @property
    def optimizer(self) -> str:
        """sgd, momentum or adam."""
        return str(self.settings["optimizer"])

    @property
    def forward_macs_per_sample(self) -> int:
        """Multiply-adds of one sample's forward pass."""
        return sum(layer.forward_macs_per_sample for layer in self.layers)

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)


@dataclass(frozen=True, slots=True)
class TracedModule:
    """A module of a traced model."""

    path: str
    """Dotted; "" for the model itself."""
    kind: str
    depth: int
    output: tuple[int, ...] | None
    """Shape of the first output tensor of its first call; None when it was not called or returned
    no tensor."""
    parameters: int
    """Elements of its own parameters, without its children's; a shared tensor counts at its
    first owner."""
    trainable: int
    parameter_bytes: int
    called: bool
    uninitialized: tuple[str, ...] = ()
    """Names of its parameters without a shape: a lazy module that did not run. No sum includes
    them."""


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One step of a model as it was traced: shapes, and no FLOPs yet."""

    ops: tuple[OpShape, ...]
    modules: tuple[TracedModule, ...]
    problem: str | None
    """Where and why the step ended early, in one line; None when it was complete."""
    memory: MemoryTrace | None
    data_dependent: tuple[str, ...] = ()
    input_bytes: int = 0
    precision: str = "fp32"


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step of generation as it was traced: the whole prompt, or one more token."""

    traced: TracedStep
    traffic: tuple[LayerTraffic, ...] = ()
    cache: tuple[CacheTensor, ...] = ()
    """As the step leaves it; () without a cache."""
