"""Derived counts of a whole run without counters: every launch of a layer whose shapes are known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from perfctl.orchestrator.analyse.counters.flops import KernelFlops
from perfctl.orchestrator.analyse.counters.sums import NO_INTEGER
from perfctl.orchestrator.analyse.derived.foreach import over_parameters, parameters_of
from perfctl.orchestrator.analyse.derived.pointwise import pointwise
from perfctl.orchestrator.analyse.derived.pooling import pooled
from perfctl.orchestrator.analyse.derived.records import Derived, Launch
from perfctl.orchestrator.analyse.derived.rows import by_rows
from perfctl.orchestrator.analyse.derived.rules import derive, error_of
from perfctl.orchestrator.analyse.derived.works import LayerWork, layer_work
from perfctl.orchestrator.analyse.figure import Figure, missing
from perfctl.orchestrator.analyse.kernels.names import recognise
from perfctl.records.paper import OpShape
from perfctl.records.report import Kernel

Key = tuple[str, str]
"""Layer and direction."""
NO_RULE = "no rule for this kernel"
NOTHING_KNOWN = LayerWork((), frozenset())


def derived_counts(
    launches: Iterable[tuple[Kernel, Key | None]], ops: Sequence[OpShape], capability: str | None = None
) -> dict[int, Derived]:
    """Launch -> its instructions, for launches of layers with a rule for their kernel.

    ``capability``: of the GPU, "8.0"; kernels whose code differs between architectures have no rule without it.
    """
    works = _works(ops)
    tensors = parameters_of(ops)
    known: dict[tuple[object, ...], Derived | None] = {}
    found = {}
    for kernel, key in launches:
        grid = None if kernel.grid_x is None else (kernel.grid_x, kernel.grid_y or 1, kernel.grid_z or 1)
        block = None if kernel.block_x is None else (kernel.block_x, kernel.block_y or 1, kernel.block_z or 1)
        place = kernel.name, grid, block, key
        if place not in known:
            launch = Launch(kernel.name, grid, block)
            of_layer = _one(launch, works.get(_side(key), NOTHING_KNOWN), capability)
            known[place] = of_layer or over_parameters(launch, tensors, capability)
        if (counts := known[place]) is not None:
            found[kernel.launch] = counts
    return found


def _side(key: Key | None) -> Key | None:
    return None if key is None else (key[0], "forward" if key[1] in ("forward", "recompute") else "backward")


def _works(ops: Sequence[OpShape]) -> Mapping[Key | None, LayerWork]:
    sides: dict[Key | None, list[OpShape]] = defaultdict(list)
    for op in ops:
        if op.direction in ("forward", "backward"):
            sides[op.layer, op.direction].append(op)
    return {side: layer_work(mine) for side, mine in sides.items()}


def _one(launch: Launch, work: LayerWork, capability: str | None) -> Derived | None:
    """The counts of a launch, where all products that its grid fits say the same."""
    said = {found for product in work.products if (found := derive(launch, product)) is not None}
    if len({(one.ffma, one.tensor) for one in said}) == 1:
        return min(said, key=lambda one: one.rule)
    if said:
        return None
    rows = by_rows(launch, work.rows) or pooled(launch, work.rows)
    return rows or pointwise(launch, recognise(launch.name), work.sizes, capability)


def as_flops(found: Derived) -> KernelFlops:
    """The launch's FLOPs by path, all of them derived."""
    rule = f"{found.rule} ({error_of([found.family])})"
    nothing = Figure(0, "derived", rule)
    fp32, tensor = nothing, nothing
    if found.ffma is not None:
        lacking = tuple(name for name in ("fmul", "fadd") if getattr(found, name) is None)
        fp32 = Figure(2 * found.ffma + (found.fmul or 0) + (found.fadd or 0), "derived", rule, missing=lacking)
    elif found.tensor is not None:  # scaling and sums of the epilogue are in no rule
        fp32 = missing("not_available", "no rule for what a tensor kernel does beside its products")
    if found.tensor is not None:
        tensor = Figure(found.tensor, "derived", rule)
    parts = (*fp32.missing, *(("fp32",) if fp32.value is None else ()))
    total = Figure((fp32.value or 0) + (tensor.value or 0), "derived", rule, missing=parts)
    types = ((found.math, tensor),) if found.math and found.tensor else ()
    return KernelFlops(fp32, nothing, nothing, tensor, total, types, NO_INTEGER)


def as_values(found: Derived) -> dict[str, float | None]:
    """The launch's instructions under the names of the counters that would have counted them."""
    values: dict[str, float | None] = {
        f"sm__sass_thread_inst_executed_op_{name}_pred_on.sum": value
        for name in ("ffma", "fmul", "fadd")
        if (value := getattr(found, name)) is not None
    }
    if found.tensor is not None:
        values["sm__ops_path_tensor_src_" + (found.math or "fp16") + ".sum"] = found.tensor
    return values
