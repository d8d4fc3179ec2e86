"""What a predictor sees of a network, and no numbers of time: its forward operations, each for one sample.

Training is derived from the forward rows by rule: grad_input (unless ``first``) and grad_weight each cost the forward's
multiply-adds. 1 multiply-add is 2 FLOPs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

KINDS = (
    "conv", "grouped_conv", "transposed_conv", "linear", "matmul", "attention", "rnn", "norm", "activation",
    "elementwise", "pool", "softmax", "loss", "memory", "other",
)  # fmt: skip
"""What kind of work one operation is; "other" has no formula, so that its multiply-adds are not known."""

HEAVY = ("conv", "grouped_conv", "transposed_conv", "linear", "matmul", "attention", "rnn")
"""The kinds with multiply-adds."""

OPTIMIZERS = ("sgd", "momentum", "adam")
STATE = {"sgd": 0, "momentum": 1, "adam": 2}
"""Values an optimizer keeps for each parameter, beside parameter and gradient."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One forward operation of a network, for one SAMPLE: batch multiplies rows, inputs, outputs and macs, never weights.

    ``macs == groups * rows * columns * depth`` wherever the operation is a product.
    """

    layer: str
    """Dotted module path; "" when not known."""
    kind: str
    """One of :data:`KINDS`."""
    calls: int
    """Identical operations in a step; the figures below are for one of them."""
    macs: float
    """Multiply-adds per sample; 0 where there are none."""
    inputs: float
    """Activation elements read per sample."""
    outputs: float
    """Elements written per sample."""
    weights: float
    """Parameter elements the operation reads, whatever the batch; 0 without parameters."""
    rows: float
    """m of the product per sample: a convolution's output positions, a Linear's rows; 0 without a product."""
    columns: float
    """n of the product: output channels or features, of one group."""
    depth: float
    """k of the product: input channels of one group times the kernel's area, or input features."""
    groups: float = 1
    """Independent products of these sizes per sample."""
    kernel: float = 1
    """Area of the window, in elements (convolution, pooling)."""
    stride: float = 1
    """Of the window, in one dimension."""
    first: bool = False
    """Its input needs no gradient: there is no grad_input."""


@dataclass(frozen=True, slots=True)
class StepSpec:
    """What is predicted: one step of a network."""

    model: str
    family: str
    works: tuple[Operation, ...]
    batch: int
    training: bool
    """False: forward alone."""
    precision: str
    """fp32, tf32, fp16, bf16: what the products run in."""
    optimizer: str
    """One of :data:`OPTIMIZERS`; "" without training."""
    parameters: int
    """Elements of all parameters, shared ones once."""

    @property
    def macs(self) -> float:
        """Multiply-adds of the forward pass at this batch."""
        return self.batch * sum(work.calls * work.macs for work in self.works)


@dataclass(frozen=True, slots=True)
class Machine:
    """A device as far as a predictor knows it. Figures are peaks (dense, sustained clock) unless measured."""

    name: str
    kind: str
    """cpu or gpu."""
    flops_per_second: Mapping[str, float]
    """By path: fp32, fp16, "tensor tf32", "tensor fp16", ... (1 multiply-add = 2 FLOPs)."""
    bytes_per_second: float
    memory_bytes: float | None = None
    sms: int | None = None
    """Streaming multiprocessors; of a CPU its cores. None: not known."""
    clock_hz: float | None = None
    l2_bytes: float | None = None
    """Last-level cache. None: not known."""
    launch_seconds: float | None = None
    """Host time to start one operation. None: not known."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A case and how long its step took on a machine."""

    case: StepSpec
    machine: str
    """Name of the :class:`Machine`."""
    seconds: float
    """Median over the measured steps."""
    low: float
    high: float
    """Spread over the steps: first and third quartile, or the extremes where only those are known."""
    forward: float | None = None
    backward: float | None = None
    optimizer: float | None = None
    """Seconds of each phase. None: not measured."""
    peak_bytes: float | None = None
    layer_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(layer, direction) -> seconds of a step. Empty: not measured by layer."""


def element_bytes(precision: str) -> int:
    """Bytes of one activation in memory: tf32 is stored as fp32."""
    return {"fp64": 8, "fp16": 2, "bf16": 2, "int8": 1, "fp8": 1}.get(precision, 4)


def flops(work: Operation, batch: float) -> float:
    """Of one call, forward, 1 multiply-add = 2."""
    return 2.0 * batch * work.macs


def bytes_moved(work: Operation, batch: float, precision: str = "fp32") -> float:
    """Least bytes of one call, forward: everything read once, everything written once."""
    return (batch * (work.inputs + work.outputs) + work.weights) * element_bytes(precision)
