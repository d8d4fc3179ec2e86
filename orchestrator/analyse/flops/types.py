"""Work by type: which type the inputs of each product have, as the tensor cores or CUDA cores take them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perfctl.orchestrator.analyse.flops.engine import BACKWARD, PRODUCTS, kind_of, parts_of
from perfctl.orchestrator.analyse.flops.formulas import ADDED, CONVOLUTIONS, FUSED, integer, shape_of, tensors_of
from perfctl.records.paper import OpShape

SHORT = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8", "complex128": "fp64", "complex64": "fp32", "complex32": "fp16",
}  # fmt: skip
"""torch's name -> the name of the precision; complex numbers are pairs of real ones."""
UNKNOWN = "not known"
_WIDTH = {"fp8": 1, "fp16": 2, "bf16": 2, "fp32": 3, "fp64": 4}
CAST = "aten._to_copy"
_TF32 = (
    *CONVOLUTIONS, "aten.convolution_backward", "aten.convolution_backward_overrideable", "torchvision.deform_conv2d",
    "torchvision._deform_conv2d_backward", *(f"perfctl.{kind}{side}" for kind in ("lstm", "gru", "rnn") for side in ("", "_backward")),
    "aten.mm", "aten.bmm", "aten.matmul", "aten.linear", "aten.linear_backward", "aten.addmm", "aten.addmm_", "aten._addmm_activation",
    "aten.baddbmm", "aten.baddbmm_", "aten.addbmm", "aten.addbmm_", "aten._euclidean_dist",
)  # fmt: skip
"""Products of float32 that cuBLAS and cuDNN run on TF32 where it is allowed. Not: attention, whose kernels ignore the switch, products
with a vector, sparse products. https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices"""


@dataclass(frozen=True, slots=True)
class TypeWork:
    """What one step computes in one type. Multiply-adds (2 FLOPs each) count under the type of the factors, other arithmetic under the
    widest type of its tensors."""

    type: str
    """fp32, tf32, bf16, fp16, fp8, fp64, or torch's name of another type; "not known" for operations that were not read."""
    forward_macs: int
    backward_macs: int
    recompute_macs: int
    """Of activation checkpointing, in backward."""
    elementwise_flops: int
    """Of forward."""
    forward_bytes: int
    """Read and written by these operations, every tensor at the size of its own type."""
    backward_bytes: int
    """With what activation checkpointing repeats."""
    unknown: int
    """Calls of operations without a formula: with any, the figures are lower bounds."""

    @property
    def forward_flops(self) -> int:
        return 2 * self.forward_macs

    @property
    def backward_flops(self) -> int:
        return 2 * self.backward_macs


@dataclass(frozen=True, slots=True)
class Casts:
    """Copies from one floating-point type to another, forward and backward. They are part of the bytes of :class:`TypeWork`."""

    calls: int
    read_bytes: int
    write_bytes: int


def work_by_type(ops: Iterable[OpShape], precision: str = "fp32") -> tuple[TypeWork, ...]:
    """One row a type, the one with the most multiply-adds first. The optimizer is not included."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for op in ops:
        if op.direction == "optimizer":
            continue
        name, parts = type_of(op, precision), parts_of(op)
        # The bias of a product is added to its result.
        mine, rest = sums[name], sums[SHORT.get(op.dtypes[-1], name) if name in ("tf32", "fp8") else name]
        side = "forward" if op.direction == "forward" and not op.attributes.get("recompute") else "backward"
        if parts is None:
            tensors = tensors_of(op)
            mine["unknown"] += op.calls
            mine[f"{side}_bytes"] += (tensors.read() + tensors.write()) * op.calls
        for part in parts or ():
            if part.label == FUSED:
                continue
            again = bool(op.attributes.get("recompute")) and part.direction == "forward"
            where = "backward" if part.direction in BACKWARD else "recompute" if again else part.direction
            mine[f"{where}_macs"] += part.macs * op.calls
            mine[f"{side}_bytes"] += (part.read_bytes + part.write_bytes) * op.calls
            rest["elementwise"] += part.elementwise * op.calls if where == "forward" else 0
    rows = (
        TypeWork(
            name, found["forward_macs"], found["backward_macs"], found["recompute_macs"], found["elementwise"],
            found["forward_bytes"], found["backward_bytes"], found["unknown"],
        )
        for name, found in sums.items()
    )  # fmt: skip
    return tuple(sorted(rows, key=lambda row: (-row.forward_macs - row.backward_macs, -row.forward_bytes, row.type)))


def casts_of(ops: Iterable[OpShape]) -> Casts:
    """Every copy that changes a floating-point type; the optimizer is not included."""
    calls = read = write = 0
    for op in ops:
        if op.op == CAST and len(op.dtypes) == 2 and op.dtypes[0] != op.dtypes[1] and set(op.dtypes) <= set(SHORT):
            tensors = tensors_of(op)
            calls, read, write = calls + op.calls, read + tensors.read() * op.calls, write + tensors.write() * op.calls
    return Casts(calls, read, write)


def types_of_products(ops: Iterable[OpShape], precision: str = "fp32") -> Mapping[tuple[str, str], str]:
    """(layer, kind) -> the types of its products in forward, as "bf16" or "fp32, bf16"; only where there are products."""
    found: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for op in ops:
        if op.direction == "forward" and op.op in PRODUCTS and not op.attributes.get("recompute"):
            found[op.layer, kind_of(op)][type_of(op, precision)] = None
    return {key: ", ".join(types) for key, types in found.items()}


def type_of(op: OpShape, precision: str = "fp32") -> str:
    """The type of a product's factors; of another operation, the widest floating-point type among its tensors."""
    if op.op in PRODUCTS and op.dtypes:
        before = sum(shape is not None for shape in op.inputs[:1]) if op.op in ADDED else 0
        name = op.dtypes[min(before, len(op.dtypes) - 1)]
        return "tf32" if precision == "tf32" and name == "float32" and _on_tf32(op) else SHORT.get(name, name)
    names = [SHORT[name] for name in op.dtypes if name in SHORT]
    return max(names, key=lambda name: _WIDTH[name], default=op.dtypes[0] if op.dtypes else UNKNOWN)


def _on_tf32(op: OpShape) -> bool:
    if "nnz" in op.attributes or op.op not in _TF32:
        return False
    if not op.op.startswith("aten.convolution"):
        return True
    weight = shape_of(op.inputs, 2 if "backward" in op.op else 1)
    groups = integer(op, "groups", 1)  # torch's own kernels run depthwise convolutions of float32, on CUDA cores
    depthwise = groups > 1 and len(weight) > 1 and weight[1] == 1 and not op.attributes.get("transposed")
    return not depthwise
