"""Mixture of experts: how many parameters one token meets.

Which experts a token goes to depends on values. How many does not: top_k of E. So work is counted
as tokens x top_k, without a capacity limit and without padding; a grouped product
(``aten._grouped_mm``) does exactly that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

from perfctl.orchestrator.estimate.flops.formulas import shape_of
from perfctl.records.paper import ModuleSeen, OpShape


class Experts(NamedTuple):
    """The experts of one layer."""

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
    """The layers whose forward is a grouped product of E matrices over tokens x top_k rows; ()
    where there are none."""
    seen = {module.path: module for module in modules}
    found: dict[str, Experts] = {}
    for op in ops:
        rows, matrices = shape_of(op.inputs, 0), shape_of(op.inputs, 1)
        module = seen.get(op.layer)
        if (
            op.op != "aten._grouped_mm"
            or op.direction != "forward"
            or len(matrices) != 3
            or module is None
        ):
            continue
        tokens = prod(module.output[:-1]) if module.output else 0
        if tokens and rows[0] % tokens == 0 and module.parameters % matrices[0] == 0:
            found[op.layer] = Experts(op.layer, matrices[0], rows[0] // tokens, module.parameters)
    return tuple(found.values())


def assumption(found: Sequence[Experts]) -> str:
    """One line: how the work of experts was counted."""
    kinds: dict[tuple[int, int], int] = {}
    for one in found:
        kinds[one.experts, one.per_token] = kinds.get((one.experts, one.per_token), 0) + 1
    said = ", ".join(
        f"{per_token} of {experts} in {layers} {'layer' if layers == 1 else 'layers'}"
        for (experts, per_token), layers in kinds.items()
    )
    return (
        f"experts: {said}; each token meets exactly these many, whatever the routing; no capacity "
        "limit, no padding"
    )
