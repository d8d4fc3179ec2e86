"""One estimated step of one model: its layer calls, modules, FLOPs and memory; and how many
parameters one token meets in a mixture of experts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from perfctl.orchestrator.estimate.flops.engine import (
    BACKWARD,
    CastTotals,
    TypeWork,
    WorkTotals,
    count_integer_macs,
    is_fused_kernel_recomputation,
    sum_float_type_casts,
    sum_layer_call_work,
    sum_work_by_data_type,
)
from perfctl.orchestrator.estimate.flops.formulas import get_shape_or_empty
from perfctl.orchestrator.estimate.memory import StepMemorySummary
from perfctl.records.paper import LayerCall, MemoryTrace, OpShape

if TYPE_CHECKING:
    import pandas as pd

    from perfctl.records.paper import TracedModule


class ExpertLayer(NamedTuple):
    """The experts of one layer.

    Which experts a token goes to depends on values. How many does not: top_k of E. So work is
    counted as tokens x top_k, without a capacity limit and without padding; a grouped product
    (``aten._grouped_mm``) does exactly that.
    """

    layer: str
    experts: int
    per_token: int
    """top_k: experts that each token goes to."""
    parameters: int
    """Of all experts of the layer."""

    @property
    def idle_parameters_per_token(self) -> int:
        """Parameters that one token does not meet."""
        return self.parameters // self.experts * (self.experts - self.per_token)


def find_grouped_matmul_expert_layers(
    ops: Iterable[OpShape], modules: Sequence[TracedModule]
) -> tuple[ExpertLayer, ...]:
    """Return the layers whose forward is a grouped product of E matrices over tokens x top_k
    rows."""
    module_of = {module.path: module for module in modules}
    layers: dict[str, ExpertLayer] = {}
    for op in ops:
        module = module_of.get(op.layer)
        if op.op != "aten._grouped_mm" or op.direction != "forward" or module is None:
            continue
        rows, matrices = get_shape_or_empty(op.inputs, 0), get_shape_or_empty(op.inputs, 1)
        tokens = prod(module.output[:-1]) if module.output else 0
        if len(matrices) != 3 or not tokens or rows[0] % tokens:
            continue
        if module.parameters % matrices[0] == 0:
            per_token = rows[0] // tokens
            layers[op.layer] = ExpertLayer(op.layer, matrices[0], per_token, module.parameters)
    return tuple(layers.values())


def describe_expert_count(layers: Sequence[ExpertLayer]) -> str:
    """Return one line: how the work of experts was counted."""
    kinds = Counter((layer.experts, layer.per_token) for layer in layers)
    counts = ", ".join(
        f"{per_token} of {experts} in {number} {'layer' if number == 1 else 'layers'}"
        for (experts, per_token), number in kinds.items()
    )
    return (
        f"experts: {counts}; each token uses exactly this number, independent of the routing; no "
        "capacity limit, no padding"
    )


@dataclass(frozen=True, slots=True)
class Estimate:
    """One estimated step of one model. FLOPs count 1 multiply-add as 2."""

    JSON_KEYS = (
        "parameters",
        "uninitialized",
        "trainable",
        "input_bytes",
        "active_parameters",
        "experts",
        "forward",
        "backward",
        "recompute",
        "fused",
        "integer_macs",
        "precision",
        "types",
        "casts",
        "calls",
        "modules",
        "memory",
        "data_dependent",
        "problem",
    )
    JSON_NAMES: ClassVar = {"fused": "fused_attention", "calls": "layers"}

    calls: tuple[LayerCall, ...]
    modules: tuple[TracedModule, ...]
    ops: tuple[OpShape, ...]
    problem: str | None
    """Where and why the trace stopped early, in one line; the record then has only what came
    before. None when whole."""
    memory: StepMemorySummary | None
    data_dependent: tuple[str, ...] = ()
    """Operations whose result sizes depend on the data; the figures are then right for the traced
    input only."""
    input_bytes: int = 0
    memory_trace: MemoryTrace | None = None
    """Which storages were alive when; ``memory`` is worked out from it. None when it was not
    asked for."""
    precision: str = "fp32"
    """A name of :data:`perfctl.records.precision.PRECISIONS`."""

    @property
    def types(self) -> tuple[TypeWork, ...]:
        """Multiply-adds, elementwise FLOPs and bytes by type, forward and backward."""
        return sum_work_by_data_type(self.ops, self.precision)

    @property
    def casts(self) -> CastTotals:
        return sum_float_type_casts(self.ops)

    @property
    def parameters(self) -> int:
        """Elements of all parameters; shared ones count once. At least, if some are
        ``uninitialized``."""
        return sum(module.parameters for module in self.modules)

    @property
    def uninitialized(self) -> tuple[str, ...]:
        """Parameters without a shape, because their lazy module did not run."""
        return tuple(
            f"{module.path}.{name}".lstrip(".")
            for module in self.modules
            for name in module.uninitialized
        )

    @property
    def trainable(self) -> int:
        return sum(module.trainable for module in self.modules)

    @property
    def experts(self) -> tuple[ExpertLayer, ...]:
        """The layers that are mixtures of experts."""
        return find_grouped_matmul_expert_layers(self.ops, self.modules)

    @property
    def active_parameters(self) -> int | None:
        """Parameters that one token meets: of experts only its own. None if the model has no
        experts."""
        experts = self.experts
        return (
            self.parameters - sum(layer.idle_parameters_per_token for layer in experts)
            if experts
            else None
        )

    @property
    def forward(self) -> WorkTotals:
        return self._sum_work_in_directions(("forward",))

    @property
    def backward(self) -> WorkTotals:
        return self._sum_work_in_directions(BACKWARD)

    def _sum_work_in_directions(self, directions: Sequence[str]) -> WorkTotals:
        """Return the sums; those of a trace that stopped early are lower bounds."""
        sums = sum_layer_call_work(self.calls, directions)
        if self.problem is None:
            return sums
        stopped = self.problem.partition(": ")[0].removeprefix("after ")
        after = (f"everything after {stopped}, where the trace stopped", 1)
        return replace(sums, missing=(*sums.missing, after))

    @property
    def integer_macs(self) -> int:
        """Multiply-adds of integers, in every direction: no FLOPs, and in no other total."""
        return count_integer_macs(self.ops)

    @property
    def recompute(self) -> WorkTotals:
        """Forward operations that activation checkpointing repeats in backward."""
        return sum_layer_call_work(
            (call for call in self.calls if not is_fused_kernel_recomputation(call)), ("recompute",)
        )

    @property
    def fused(self) -> WorkTotals:
        """What a fused attention kernel computes again in backward; the math kernel does not. Part
        of no other total."""
        return sum_layer_call_work(
            filter(is_fused_kernel_recomputation, self.calls), ("recompute",)
        )

    def frame(self) -> pd.DataFrame:
        """Return the layer calls as a DataFrame: one row for each layer, kind and direction."""
        import pandas as pd

        return pd.DataFrame(
            [call._asdict() for call in self.calls], columns=list(LayerCall._fields)
        )


def extract_layer_estimate(step: Estimate, layer: str) -> Estimate | None:
    """Return only ``layer`` and what is inside it; None if the model has no such module."""
    if layer not in {module.path for module in step.modules}:
        return None

    return replace(
        step,
        calls=tuple(
            call
            for call in step.calls
            if is_layer_inside(call.layer, layer) and (layer or call.kind)
        ),
        ops=tuple(op for op in step.ops if is_layer_inside(op.layer, layer)),
        modules=tuple(module for module in step.modules if is_layer_inside(module.path, layer)),
    )


def is_layer_inside(path: str, layer: str) -> bool:
    """Return whether a layer's path is ``layer`` or inside it; "" is the model."""
    return not layer or path == layer or path.startswith(f"{layer}.")
