"""Derived counts of a whole run without counters: every launch of a layer whose shapes are known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any

from perfctl.orchestrator.analyse.counters.flops import KernelFlops
from perfctl.orchestrator.analyse.counters.sums import INTEGER, NO_INTEGER
from perfctl.orchestrator.analyse.derived.operators import by_rows, pooled
from perfctl.orchestrator.analyse.derived.pointwise import lists_of, over_parameters, parameters_of, pointwise
from perfctl.orchestrator.analyse.derived.records import TENSOR_FLOP, Derived, Launch
from perfctl.orchestrator.analyse.derived.rules import Verified, derive, error_of, verified
from perfctl.orchestrator.analyse.derived.works import LayerWork, layer_work
from perfctl.orchestrator.analyse.figure import Figure, missing
from perfctl.orchestrator.analyse.kernels.grids import Grid
from perfctl.orchestrator.analyse.kernels.names import recognise
from perfctl.records.paper import OpShape
from perfctl.records.report import CODE, DerivedCount, Kernel

Key = tuple[str, str]
"""Layer and direction."""
NO_RULE = "no rule for this kernel"
NOTHING_KNOWN = LayerWork((), frozenset())


def derived_counts(
    launches: Sequence[tuple[Kernel, Key | None]], ops: Sequence[OpShape], capability: str | None = None
) -> dict[int, Derived]:
    """Launch -> its instructions, for launches of layers with a rule for their kernel.

    ``capability``: of the GPU, "8.0"; kernels whose code differs between architectures have no rule without it.
    """
    works = _works(ops)
    tensors = parameters_of(ops)

    kept: dict[Key | None, dict[_Facts, Derived | None]] = {}
    found: dict[int, Derived] = {}
    for number, facts, key in _in_order(launches):
        if (known := kept.get(key)) is None:
            known = kept[key] = _known(works.get(_side(key), NOTHING_KNOWN), capability)
        try:
            counts = known[facts]
        except KeyError:
            counts = known[facts] = _one(_launch(facts), works.get(_side(key), NOTHING_KNOWN), capability)
        if counts is None and lists_of(facts[0][0]) is not None:
            counts = over_parameters(_launch(facts), tensors, capability)
        if counts is not None:
            found[number] = counts
    return found


_Own = tuple[Any, ...]
"""Name, grid and block of a launch: what a network repeats."""
_Facts = tuple[_Own, bool, _Own | None]
"""With whether the next launch adds up the parts of its sum; and of such a one, the launch before it."""
_own = attrgetter("name", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


def _in_order(launches: Sequence[tuple[Kernel, Key | None]]) -> Iterator[tuple[int, _Facts, Key | None]]:
    """(number, launch, layer and direction), each with what the launches before and after it in its layer say of it."""
    layers: dict[Key | None, list[Kernel]] = defaultdict(list)
    for kernel, key in launches:
        layers[key].append(kernel)
    reduces = {name: "splitkreduce" in name.lower() for name in {kernel.name for kernel, _ in launches}}
    for key, kernels in layers.items():
        kernels.sort(key=attrgetter("launch"))
        before: _Own | None = None
        following = chain((reduces[kernel.name] for kernel in kernels[1:]), [False])
        for kernel, is_reduced in zip(kernels, following, strict=True):
            own = _own(kernel)
            yield kernel.launch, (own, is_reduced, before if reduces[kernel.name] else None), key
            before = own


def _launch(facts: _Facts) -> Launch:
    own, is_reduced, before = facts
    return Launch(*_bare(own), reduced=is_reduced, before=None if before is None else Launch(*_bare(before)))


def _bare(own: _Own) -> tuple[str, Grid | None, Grid | None]:
    name, grid_x, grid_y, grid_z, block_x, block_y, block_z = own
    grid = None if grid_x is None else (grid_x, grid_y or 1, grid_z or 1)
    block = None if block_x is None else (block_x, block_y or 1, block_z or 1)
    return name, grid, block


def _side(key: Key | None) -> Key | None:
    return None if key is None else (key[0], "forward" if key[1] in ("forward", "recompute") else "backward")


def _works(ops: Sequence[OpShape]) -> Mapping[Key | None, LayerWork]:
    sides: dict[Key | None, list[OpShape]] = defaultdict(list)
    for op in ops:
        if op.direction in ("forward", "backward"):
            sides[op.layer, op.direction].append(op)
    return {side: layer_work(mine) for side, mine in sides.items()}


@lru_cache(maxsize=256)
def _known(work: LayerWork, capability: str | None) -> dict[_Facts, Derived | None]:
    """Launch -> its counts in a layer of this work, as far as somebody asked: runs of one model ask for the same again."""
    return {}


def _one(launch: Launch, work: LayerWork, capability: str | None) -> Derived | None:
    """The counts of a launch, where all products that its grid fits say the same."""
    said = {found for product in work.products if (found := derive(launch, product)) is not None}
    if len({(one.ffma, one.fmul, one.fadd, one.tensor) for one in said}) == 1:
        return min(said, key=lambda one: one.rule)
    if said:
        return None
    rows = by_rows(launch, work.rows) or pooled(launch, work.rows)
    return rows or pointwise(launch, recognise(launch.name), work.sizes, capability)


MACHINE_CODE = "machine code"
_OF_CODE = {"FADD": "fadd", "FMUL": "fmul", "FFMA": "ffma", TENSOR_FLOP: "tensor"}


def from_code(rows: Iterable[DerivedCount]) -> dict[int, Derived]:
    """Launch -> instructions that perfctl 1.0.0 read from its kernel's code.

    None for a launch with a lower bound, or with arithmetic in other types than fp32 and tensor cores.
    """
    launches: dict[int, list[DerivedCount]] = defaultdict(list)
    for row in rows:
        launches[row.launch].append(row)
    found = {}
    for launch, mine in launches.items():
        known = {_OF_CODE[row.instruction]: row for row in mine if row.instruction in _OF_CODE}
        others = {row.instruction for row in mine} - _OF_CODE.keys()
        if any("at least" in row.rule for row in mine) or any("MMA" not in name for name in others):
            continue
        rule = "; ".join(f"{name.upper()} {row.rule.removeprefix(f'{CODE}: ')}" for name, row in known.items())
        value = {name: row.value or 0 for name, row in known.items()}
        found[launch] = Derived(
            MACHINE_CODE,
            f"{CODE}: {rule}",
            value.get("ffma", 0),
            value.get("fmul", 0),
            value.get("fadd", 0),
            value.get("tensor"),
        )
    return found


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the kernel time a run's derived counts of products stand for, and how well their rules are known."""

    share: float
    """Of the kernel time, 0..1: launches whose multiply-adds a rule gives."""
    verified: float
    """Of that time, 0..1: launches by rules that were held against counters."""
    within: float
    """Largest error of the verified rules that were used, on 95 of 100 launches."""
    chips: tuple[str, ...]


def coverage(kernels: Iterable[Kernel], derived: Mapping[int, Derived]) -> Coverage | None:
    """None where no launch has a duration, or no product a rule."""
    total = ruled = held = 0.0
    used: dict[str, Verified] = {}
    for kernel in kernels:
        took, found = kernel.duration_ns or 0, derived.get(kernel.launch)
        total += took
        if found is not None and (found.ffma or found.tensor):
            ruled += took
            if (known := verified().get(found.family)) is not None:
                held += took
                used[found.family] = known
    if not ruled:
        return None
    chips = tuple(dict.fromkeys(one.chip for one in used.values()))
    return Coverage(ruled / total, held / ruled, max((one.within for one in used.values()), default=0.0), chips)


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
    integer = NO_INTEGER
    if found.tensor is not None and found.math in INTEGER:  # operations, no FLOPs
        integer = Figure(found.tensor, "derived", rule)
    elif found.tensor is not None:
        tensor = Figure(found.tensor, "derived", rule)
    parts = (*fp32.missing, *(("fp32",) if fp32.value is None else ()))
    total = Figure((fp32.value or 0) + (tensor.value or 0), "derived", rule, missing=parts)
    types = ((found.math, tensor),) if found.math and tensor.value else ()
    return KernelFlops(fp32, nothing, nothing, tensor, total, types, integer)


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
