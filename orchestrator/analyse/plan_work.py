"""From a family's plan to :class:`Operation`: the same rows that tracing the built model gives, without building it.

Left out are the single elements that a trace sees beside them (the counter of a normalisation's batches, the mean of the
loss): fewer than one element a sample.
"""

from __future__ import annotations

from perfctl.orchestrator.analyse.work_records import Operation
from perfctl.parsers.planned import Plan, PlanLayer

KINDS = {
    "conv": "conv",
    "linear": "linear",
    "norm": "norm",
    "activation": "activation",
    "max_pool": "pool",
    "mean_pool": "elementwise",
    "add": "elementwise",
    "concat": "memory",
}
"""Kind of a plan's layer -> kind of work; what is not here (flatten) computes and copies nothing."""


def operations_of_plan(plan: Plan) -> tuple[Operation, ...]:
    """The forward operations of one sample, in order, with the loss (cross-entropy) at the end."""
    first = next((place for place, layer in enumerate(plan.layers) if layer.parameters), None)
    layers = [_work(layer, place == first) for place, layer in enumerate(plan.layers) if layer.kind in KINDS]
    answers = float(plan.classes)
    return (
        *layers,
        Operation("", "softmax", 1, 0.0, answers, answers, 0.0, 0.0, 0.0, 0.0),
        Operation("", "loss", 1, 0.0, answers + 1, 1.0, 0.0, 0.0, 0.0, 0.0),  # answers and one target in, one loss out
    )


def _work(layer: PlanLayer, first: bool) -> Operation:
    product = layer.macs > 0
    area = float(layer.kernel**2) if layer.kind in ("conv", "max_pool") else 1.0
    return Operation(
        layer=layer.name,
        kind=KINDS[layer.kind],
        calls=1,
        macs=float(layer.macs),
        inputs=float(layer.inputs),
        # The largest of a window is written with its place.
        outputs=float(layer.outputs * (2 if layer.kind == "max_pool" else 1)),
        weights=float(layer.parameters),
        rows=float(layer.gives[1] * layer.gives[2]) if product else 0.0,
        columns=float(layer.gives[0]) if product else 0.0,
        depth=float(layer.given[0] * layer.kernel**2) if product else 0.0,
        kernel=area,
        stride=float(layer.stride),
        first=first,
    )
