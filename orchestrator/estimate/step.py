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
    Casts,
    Totals,
    TypeWork,
    casts_of,
    fused_only,
    integer_macs,
    totals,
    work_by_type,
)
from perfctl.orchestrator.estimate.flops.formulas import shape_of
from perfctl.orchestrator.estimate.memory import Memory
from perfctl.records.paper import LayerCall, MemoryTrace, OpShape

if TYPE_CHECKING:
    import pandas as pd

    from perfctl.records.paper import ModuleSeen


class Experts(NamedTuple):
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
    def idle(self) -> int:
        """Parameters that one token does not meet."""
        return self.parameters // self.experts * (self.experts - self.per_token)


def experts_of(ops: Iterable[OpShape], modules: Sequence[ModuleSeen]) -> tuple[Experts, ...]:
    """Return the layers whose forward is a grouped product of E matrices over tokens x top_k
    rows."""
    module_of = {module.path: module for module in modules}
    layers: dict[str, Experts] = {}
    for op in ops:
        module = module_of.get(op.layer)
        if op.op != "aten._grouped_mm" or op.direction != "forward" or module is None:
            continue
        rows, matrices = shape_of(op.inputs, 0), shape_of(op.inputs, 1)
        tokens = prod(module.output[:-1]) if module.output else 0
        if len(matrices) != 3 or not tokens or rows[0] % tokens:
            continue
        if module.parameters % matrices[0] == 0:
            per_token = rows[0] // tokens
            layers[op.layer] = Experts(op.layer, matrices[0], per_token, module.parameters)
    return tuple(layers.values())


def experts_assumption(layers: Sequence[Experts]) -> str:
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
    modules: tuple[ModuleSeen, ...]
    ops: tuple[OpShape, ...]
    problem: str | None
    """Where and why the trace stopped early, in one line; the record then has only what came
    before. None when whole."""
    memory: Memory | None
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
        return work_by_type(self.ops, self.precision)

    @property
    def casts(self) -> Casts:
        return casts_of(self.ops)

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
    def experts(self) -> tuple[Experts, ...]:
        """The layers that are mixtures of experts."""
        return experts_of(self.ops, self.modules)

    @property
    def active_parameters(self) -> int | None:
        """Parameters that one token meets: of experts only its own. None if the model has no
        experts."""
        experts = self.experts
        return self.parameters - sum(layer.idle for layer in experts) if experts else None

    @property
    def forward(self) -> Totals:
        return self._totals(("forward",))

    @property
    def backward(self) -> Totals:
        return self._totals(BACKWARD)

    def _totals(self, directions: Sequence[str]) -> Totals:
        """Return the sums; those of a trace that stopped early are lower bounds."""
        sums = totals(self.calls, directions)
        if self.problem is None:
            return sums
        stopped = self.problem.partition(": ")[0].removeprefix("after ")
        after = (f"everything after {stopped}, where the trace stopped", 1)
        return replace(sums, missing=(*sums.missing, after))

    @property
    def integer_macs(self) -> int:
        """Multiply-adds of integers, in every direction: no FLOPs, and in no other total."""
        return integer_macs(self.ops)

    @property
    def recompute(self) -> Totals:
        """Forward operations that activation checkpointing repeats in backward."""
        return totals((call for call in self.calls if not fused_only(call)), ("recompute",))

    @property
    def fused(self) -> Totals:
        """What a fused attention kernel computes again in backward; the math kernel does not. Part
        of no other total."""
        return totals(filter(fused_only, self.calls), ("recompute",))

    def frame(self) -> pd.DataFrame:
        """The layer calls as a DataFrame: one row for each layer, kind and direction."""
        import pandas as pd

        return pd.DataFrame(
            [call._asdict() for call in self.calls], columns=list(LayerCall._fields)
        )


def part_of(step: Estimate, layer: str) -> Estimate | None:
    """Return only ``layer`` and what is inside it; None if the model has no such module."""
    if layer not in {module.path for module in step.modules}:
        return None

    return replace(
        step,
        calls=tuple(
            call for call in step.calls if is_inside(call.layer, layer) and (layer or call.kind)
        ),
        ops=tuple(op for op in step.ops if is_inside(op.layer, layer)),
        modules=tuple(module for module in step.modules if is_inside(module.path, layer)),
    )


def is_inside(path: str, layer: str) -> bool:
    """Return whether a layer's path is ``layer`` or inside it; "" is the model."""
    return not layer or path == layer or path.startswith(f"{layer}.")
