"""Prefill, decode and mixed steps by part of the model: time, paper FLOPs, bytes and what bounds
each. 1 multiply-add = 2 FLOPs.

Repeated blocks of a language model are found in the paths of its layers: the same part of every
block has one name.

``Qwen3DecoderLayer_0.Qwen3Attention_0.RMSNorm_1`` and
``Qwen3DecoderLayer_7.Qwen3Attention_7.RMSNorm_29`` are the same part of blocks 0 and 7:
``Qwen3DecoderLayer.Qwen3Attention.RMSNorm 1``, where the attention has a second RMSNorm. A trace
numbers the instances of a class over the whole model, so a part is found by its place among those
of its class in its block.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Annotated, ClassVar, NamedTuple, TypeVar

from perfctl.orchestrator.counts.counters.amd import is_amd
from perfctl.orchestrator.counts.hardware.peaks import PATH_OF, Peaks, peaks_of
from perfctl.orchestrator.counts.kernels.shared import SHARED, by_layer
from perfctl.orchestrator.estimate.flops.engine import estimate
from perfctl.orchestrator.ledger.timing import kernel_steps
from perfctl.orchestrator.ledger.usage.padding import Padding, is_product, padding
from perfctl.orchestrator.ledger.usage.served import PHASES, MixedSteps, rows_of
from perfctl.records.paper import OpShape
from perfctl.records.report import Kernel
from perfctl.records.run import Run
from perfctl.records.serving import ServedStep

_NUMBERED = re.compile(r"(.*?)_?(\d{1,9})\Z")
LEAST = 2
"""Blocks from which a model is said to repeat one."""
N = TypeVar("N", int, float)
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}
NO_PRODUCT = (
    "no operator with a formula in it: only products are on paper, not norms and activations"
)
NO_SHAPES = "the trace has no shapes of its operators"
EITHER = "its shapes are of steps of more than one phase"
OUTSIDE = "no module"


class Part(NamedTuple):
    """Where a layer lies."""

    name: str
    """Without the numbers of instances."""
    block: int | None
    """Which block; None outside of them."""


def fold(layers: Iterable[str]) -> Mapping[str, Part]:
    """Layer -> its part of the repeated block. Layers outside, and all layers where nothing
    repeats, keep their names."""
    paths = {layer: tuple(layer.split(".")) for layer in layers}
    depth, prefix, kind = _block(paths.values())
    found = {layer: Part(layer, None) for layer in paths}
    inside = {
        layer: (int(number[2]), path[depth + 1 :])
        for layer, path in paths.items()
        if depth >= 0
        and len(path) > depth
        and path[:depth] == prefix
        and (number := _NUMBERED.match(path[depth]))
        and number[1] == kind
    }
    instances: defaultdict[tuple[int, tuple[str, ...], str], set[int]] = defaultdict(set)
    for block, rest in inside.values():
        for at, name in enumerate(rest):
            if number := _NUMBERED.match(name):
                instances[block, rest[:at], number[1]].add(int(number[2]))
    most: defaultdict[tuple[tuple[str, ...], str], int] = defaultdict(int)
    places: dict[str, list[tuple[str, int]]] = {}
    for layer, (block, rest) in inside.items():
        said: list[tuple[str, int]] = []
        for at, name in enumerate(rest):
            number = _NUMBERED.match(name)
            place = (
                sorted(instances[block, rest[:at], number[1]]).index(int(number[2])) + 1
                if number
                else 0
            )
            said.append((number[1] if number else name, place))
            above = tuple(name for name, _ in said[:-1])
            most[above, said[-1][0]] = max(most[above, said[-1][0]], place)
        places[layer] = said
    outer = ".".join((*prefix, kind)) if kind else ".".join((*prefix, "*"))
    for layer, said in places.items():
        names = [outer]
        for at, (name, place) in enumerate(said):
            above = tuple(name for name, _ in said[:at])
            names.append(f"{name} {place}" if most[above, name] > 1 else name)
        found[layer] = Part(".".join(names), inside[layer][0])
    return found


def _block(paths: Iterable[tuple[str, ...]]) -> tuple[int, tuple[str, ...], str]:
    """(depth, path above, class) of the component with children that has most instances; depth -1
    where none has LEAST."""
    numbers: defaultdict[tuple[int, tuple[str, ...], str], set[int]] = defaultdict(set)
    for path in paths:
        for depth, name in enumerate(path[:-1]):
            if found := _NUMBERED.match(name):
                numbers[depth, path[:depth], found[1]].add(int(found[2]))
    best = max(numbers, key=lambda key: (len(numbers[key]), -key[0]), default=None)
    return best if best is not None and len(numbers[best]) >= LEAST else (-1, (), "")


@dataclass(frozen=True, slots=True)
class Cache:
    """What attention reads of the cache of keys and values in one block, from the widths of the
    projections."""

    queries: int
    """Query heads x head dimension: inputs of the output projection."""
    keys: int
    """Key-value heads x head dimension, of this GPU."""
    element: int
    """Bytes, if the cache has the type of the projections."""
    blocks: int


@dataclass(frozen=True, slots=True)
class PartUse:
    """One part of the model in all steps of one phase, for the whole capture."""

    JSON_KEYS = (
        "part",
        "blocks",
        "launches",
        "kernel_ns",
        "share",
        "token_ns",
        "shared",
        "prompts_ns",
        "decodes_ns",
        "split_by",
        "flops",
        "flops_why",
        "bytes",
        "bytes_why",
        "estimated",
        "intensity",
        "ridge",
        "path",
        "bound",
        "padded",
    )
    JSON_NAMES: ClassVar = {
        "shared": "kernel_ns_shared",
        "flops": "paper_flops",
        "flops_why": "paper_why",
        "estimated": "bytes_estimated",
        "intensity": "flops_per_byte",
        "ridge": "ridge_flops_per_byte",
        "path": "roof",
        "padded": "executed_per_paper",
    }

    phase: str
    part: str
    blocks: int | None
    """Repeated blocks that have it; None outside of them."""
    launches: int
    kernel_ns: float | None
    share: float | None
    """Of the phase's kernel time."""
    token_ns: float | None
    """Kernel time a token."""
    flops: int | None
    flops_why: str | None
    bytes: int | None
    """Weights and activations, read and written once each; of attention the cache that it
    reads, too."""
    bytes_why: str | None
    estimated: bool
    """True where the bytes hold those of a cache whose type is taken from the projections."""
    path: str | None
    """Peak that it is held against: "tensor bf16"."""
    ridge: float | None
    """FLOPs per byte at which the device's roofs meet; None where it is not known."""
    padding: tuple[Padding, ...]
    """One for each kind of product whose tiles are known."""
    padded: float | None
    """Executed / paper multiply-adds of its products, 1 or more; None where the tile of one is
    not known."""
    names: tuple[str, ...]
    """Of its kernels that multiply."""
    shared: bool = False
    """True where a fused kernel belongs to it and to other parts: its time is an estimate then."""
    prompts_ns: float | None = None
    """Of mixed steps: kernel time of the prompts, by work (an estimate); the decodes have the rest.
    None: not known, not mixed."""
    split_by: str | None = None
    """What ``prompts_ns`` goes by."""

    @property
    def decodes_ns(self) -> float | None:
        """Of mixed steps: the rest of the kernel time, of the decodes."""
        if self.prompts_ns is None or self.kernel_ns is None:
            return None
        return self.kernel_ns - self.prompts_ns

    @property
    def intensity(self) -> float | None:
        """Paper FLOPs per byte."""
        return self.flops / self.bytes if self.flops and self.bytes else None

    @property
    def bound(self) -> str | None:
        """memory or compute: on which side of the ridge it lies; None where either is not known."""
        if self.intensity is None or self.ridge is None:
            return None
        return "compute" if self.intensity >= self.ridge else "memory"


@dataclass(frozen=True, slots=True)
class PhaseParts:
    """One phase of a run, part by part in the order of their first launch."""

    JSON_KEYS = (
        "run_id",
        "phase",
        "steps",
        "tokens",
        "is_inferred",
        "cache_bytes",
        "cache_why",
    )
    JSON_NAMES: ClassVar = {
        "run_id": "run",
        "is_inferred": "inferred",
        "cache_bytes": "cache_read_bytes",
    }

    run: Run
    phase: Annotated[str, PHASES]
    steps: int
    tokens: int | None
    parts: tuple[PartUse, ...]
    cache_bytes: int | None
    """Keys and values that its steps read, of all blocks; if the cache has the type of the
    projections."""
    cache_why: str | None
    """What is missing, or how it was worked out."""
    peaks: Peaks
    launches: int = 0

    @property
    def run_id(self) -> int:
        return self.run.id

    @property
    def is_inferred(self) -> bool:
        """Whether no annotation names the steps: their phase follows from shapes."""
        return any(step.from_shapes for step in self.run.report.served_steps)

    @property
    def kernel_ns(self) -> float | None:
        """None where one kernel was not timed."""
        times = [part.kernel_ns for part in self.parts]
        return None if None in times else sum(time or 0 for time in times)


def phase_parts(
    run: Run, measured: Sequence[Peaks] = (), *, each: bool = False
) -> tuple[PhaseParts, ...]:
    """The phases of a run in the order of PHASES; empty where no step is known. ``each``: every
    block by itself."""
    steps = list(run.report.served_steps)
    found = [phase for phase in PHASES if any(step.phase == phase for step in steps)]
    if not found or not isinstance(run.report.kernels, Sequence):
        return ()
    kernels = by_layer(run.report) or run.report.kernels
    layers = {kernel.layer for kernel in kernels if kernel.layer} | {
        op.layer for op in run.report.ops
    }
    where = {layer: Part(layer, None) for layer in layers} if each else fold(layers)
    peaks = peaks_of(run.device, measured)
    return tuple(_phase(run, phase, kernels, where, fold(layers), peaks) for phase in found)


def _phase(
    run: Run,
    phase: str,
    parted: Sequence[Kernel],
    where: Mapping[str, Part],
    folded: Mapping[str, Part],
    peaks: Peaks,
) -> PhaseParts:
    """``parted``: the run's kernels, those of several layers once for each."""
    all_steps = list(run.report.served_steps)
    steps = [step for step in all_steps if step.phase == phase]
    numbers = {step.number for step in steps}
    whole = [kernel for kernel in run.report.kernels if kernel.step in numbers]
    kernels = [kernel for kernel in parted if kernel.step in numbers]
    split = MixedSteps(run)
    tokens = _sum(_tokens(step) for step in steps)
    work, unsure = _work(run, phase, all_steps)
    cache, why = _cache(work, folded)
    keys = _sum(_both(step.prompt_keys, step.decode_keys) for step in steps)
    pairs = _sum(_both(step.prompt_pairs, step.decode_pairs) for step in steps)
    total = _sum(kernel.duration_ns for kernel in kernels)
    rows: dict[str, list[Kernel]] = {}
    for kernel in sorted(kernels, key=lambda kernel: kernel.start_ns or 0):
        rows.setdefault(where[kernel.layer].name if kernel.layer else OUTSIDE, []).append(kernel)
    by_row: defaultdict[str, list[OpShape]] = defaultdict(list)
    for op in work:
        by_row[where[op.layer].name if op.layer else OUTSIDE].append(op)
    attends = _attention(rows, by_row) if cache else frozenset()
    made = []
    for name, mine in rows.items():
        ops, layers = by_row.get(name, []), {kernel.layer for kernel in mine if kernel.layer}
        blocks = {where[layer].block for layer in layers} - {None}
        flops, bytes_, flops_why, bytes_why = _on_paper(ops)
        if not run.report.ops:
            flops_why = bytes_why = (
                NO_PRODUCT if run.report.environment.get("record_shapes") == "1" else NO_SHAPES
            )
        elif not ops and layers & unsure:
            flops_why = bytes_why = EITHER
        estimated = False
        if cache and not ops and name in attends:
            flops, flops_why, bytes_, bytes_why = _attended(
                cache, len(blocks) or 1, tokens, keys, pairs
            )
            estimated = bytes_ is not None
        kinds = {PRECISIONS.get(op.dtypes[0]) for op in ops if op.dtypes} or (
            {_precision(work)} if estimated else set()
        )
        kind = next(iter(kinds)) if len(kinds) == 1 else None
        path = PATH_OF.get(kind) if kind else None
        took = _sum(kernel.duration_ns for kernel in mine)
        pads, padded = _padding(run, mine, ops, len(steps))
        of_prompts, split_by = _prompts(split, mine)
        made.append(
            PartUse(
                phase,
                name,
                len(blocks) or None,
                len(mine),
                took,
                took / total if took is not None and total else None,
                took / tokens if took is not None and tokens else None,
                flops,
                flops_why,
                bytes_,
                bytes_why,
                estimated,
                path,
                peaks.ridge(path) if path else None,
                pads,
                padded,
                tuple(dict.fromkeys(kernel.name for kernel in mine if is_product(kernel))),
                any(kernel.layer_source == SHARED for kernel in mine),
                of_prompts,
                split_by,
            )
        )
    cached = None
    if cache and keys is not None:
        cached = keys * 2 * cache.keys * cache.element * cache.blocks
        why = (
            f"{keys:,} keys x 2 (keys, values) x {cache.keys:,} (key-value heads x head dimension) "
            f"x {cache.element} B x {cache.blocks} blocks, if the cache has the type of the "
            "projections"
        )
    elif cache:
        why = "the steps do not say how many keys they attend to"
    return PhaseParts(run, phase, len(steps), tokens, tuple(made), cached, why, peaks, len(whole))


def _prompts(split: MixedSteps, kernels: Sequence[Kernel]) -> tuple[float | None, str | None]:
    """Kernel time of the prompts of mixed steps, and what it goes by; None where one kernel's is
    not known."""
    told = [(kernel.duration_ns, split.prompts(kernel)) for kernel in kernels]
    if any(took is None or share is None for took, share in told):
        return None, None
    by = dict.fromkeys(share[1] for _, share in told if share is not None)
    return sum((took or 0) * share[0] for took, share in told if share is not None), " and ".join(
        by
    )


def _work(run: Run, phase: str, steps: Sequence[ServedStep]) -> tuple[list[OpShape], set[str]]:
    """Operators of the phase, ``calls`` of all its steps; and the layers whose operators may be of
    several phases.

    Where steps of several phases ran, an operator is of the phase whose steps compute as many
    tokens as it has rows. A layer that ran in a phase without such an operator (of a prompt, the
    last projection takes the last token only) is unsure.
    """
    scale = kernel_steps(run) or 1
    forward = [op for op in run.report.ops if op.direction == "forward"]
    if len({step.phase for step in steps}) == 1:
        return [_times(op, scale) for op in forward], set()
    rows: defaultdict[int, set[str]] = defaultdict(set)
    for step in steps:
        if (tokens := _tokens(step)) is not None:
            rows[tokens].add(step.phase)
    by_step = {step.number: step.phase for step in steps}
    ran: defaultdict[str, set[str]] = defaultdict(set)
    for kernel in run.report.kernels:
        if kernel.layer and kernel.step in by_step:
            ran[kernel.layer].add(by_step[kernel.step])
    told: defaultdict[str, list[set[str]]] = defaultdict(list)
    for op in forward:
        told[op.layer].append(rows.get(rows_of(op), set(PHASES)))
    sure = {
        layer
        for layer, each in told.items()
        if all(len(phases) == 1 for phases in each) and ran[layer] <= set().union(*each)
    }
    found = [
        _times(op, scale) for op in forward if op.layer in sure and rows[rows_of(op)] == {phase}
    ]
    return found, set(told) - sure


def _times(op: OpShape, scale: int) -> OpShape:
    return op if scale == 1 else replace(op, calls=op.calls * scale)


def _on_paper(ops: Sequence[OpShape]) -> tuple[int | None, int | None, str | None, str | None]:
    """FLOPs and bytes, and why they are not known."""
    calls = estimate(ops)
    if not calls or any(call.flops is None for call in calls):
        return None, None, NO_PRODUCT, NO_PRODUCT
    flops = sum(call.flops or 0 for call in calls)
    if any(call.read_bytes is None or call.write_bytes is None for call in calls):
        return flops, None, None, "the types of its operators are not known"
    return (
        flops,
        sum((call.read_bytes or 0) + (call.write_bytes or 0) for call in calls),
        None,
        None,
    )


def _cache(ops: Iterable[OpShape], where: Mapping[str, Part]) -> tuple[Cache | None, str | None]:
    """Widths of attention from its projections: a fused one (...QKV...) or three, and that of the
    output beside them."""
    products: defaultdict[str, list[OpShape]] = defaultdict(list)
    for op in sorted(ops, key=lambda op: op.position):
        if "attention" in op.layer.lower() and len(op.inputs) > 1:
            above = ".".join(name for name in op.layer.split(".")[:-1])
            products[above].append(op)
    found: dict[tuple[int, int, int], int] = {}
    for several in products.values():
        fused = [op for op in several if "qkv" in op.layer.rpartition(".")[2].lower()]
        others = [op for op in several if op not in fused]
        kind = PRECISIONS.get(several[0].dtypes[0]) if several[0].dtypes else None
        if len(fused) == len(others) == 1:
            width, queries = _columns(fused[0]), _depth(others[0])
        elif len(several) == 4 and len({_columns(op) for op in several[1:3]}) == 1:
            # queries, keys, values, output
            width, queries = sum(map(_columns, several[:3])), _depth(several[3])
            if queries != _columns(several[0]):
                continue
        else:
            continue
        if (
            kind is None
            or width <= queries
            or (width - queries) % 2
            or queries % ((width - queries) // 2)
        ):
            continue
        key = queries, (width - queries) // 2, _BYTES[kind]
        found[key] = found.get(key, 0) + 1
    if len(found) != 1:
        what = (
            "no block shows its projections of queries, keys, values and output under a module "
            "named attention"
        )
        if found:
            what = "its blocks differ in their heads"
        return None, f"key-value heads x head dimension are not known: {what}"
    (((queries, keys, element), blocks),) = found.items()
    return Cache(queries, keys, element, blocks), None


def _columns(op: OpShape) -> int:
    return next((shape[-1] for shape in op.outputs if shape), 0)


def _depth(op: OpShape) -> int:
    rows = rows_of(op)
    left = next(
        (shape for shape in op.inputs if shape and len(shape) > 1 and prod(shape[:-1]) == rows),
        None,
    )
    return left[-1] if left else 0


def _attention(rows: Mapping[str, Sequence[Kernel]], ops: Mapping[str, object]) -> frozenset[str]:
    """The parts in which attention itself runs: named so, without products; of nested ones
    the innermost."""
    named = [
        name for name in rows if "attention" in name.rpartition(".")[2].lower() and name not in ops
    ]
    return frozenset(
        name for name in named if not any(other.startswith(f"{name}.") for other in named)
    )


def _attended(
    cache: Cache, blocks: int, tokens: int | None, keys: int | None, pairs: int | None
) -> tuple[int | None, str | None, int | None, str | None]:
    """Scores and their product with the values: two products of pairs x queries multiply-adds; the
    whole square, no mask."""
    unsaid = "the steps do not say how many keys they attend to"
    flops = None if pairs is None else 2 * 2 * pairs * cache.queries * blocks
    if keys is None or tokens is None:
        return flops, None if flops is not None else unsaid, None, unsaid
    moved = keys * 2 * cache.keys + tokens * (2 * cache.queries + 2 * cache.keys)
    return flops, None if flops is not None else unsaid, moved * cache.element * blocks, None


def _precision(ops: Iterable[OpShape]) -> str | None:
    kinds = {PRECISIONS.get(op.dtypes[0]) for op in ops if op.dtypes}
    return next(iter(kinds)) if len(kinds) == 1 else None


def _padding(
    run: Run, kernels: Sequence[Kernel], ops: Sequence[OpShape], steps: int
) -> tuple[tuple[Padding, ...], float | None]:
    """Tiles of a part's products, and executed / paper of all of them; a kernel is a product's by
    their order in the layer."""
    multiplying: defaultdict[str | None, list[Kernel]] = defaultdict(list)
    products: defaultdict[str, list[OpShape]] = defaultdict(list)
    for kernel in kernels:
        if is_product(kernel):
            multiplying[kernel.layer].append(kernel)
    for op in sorted(ops, key=lambda op: op.position):
        products[op.layer].append(op)
    found: dict[Padding, None] = {}
    executed = paper = 0.0
    amd, whole = is_amd(run), True
    for layer, mine in products.items():
        several = multiplying.get(layer, [])
        calls = sum(op.calls for op in mine)
        same = len(mine) == 1 or calls == len(mine) * max(steps, 1)
        if len(several) != calls or not same:
            whole = False
            continue
        for at, kernel in enumerate(several):
            op = mine[at % len(mine)]
            one = padding(kernel, rows_of(op), _columns(op), amd=amd)
            if one is None:
                whole = False
                continue
            found[one] = None
            macs = one.rows * one.columns * _depth(op)
            paper += macs
            executed += macs * one.factor
    return tuple(found), executed / paper if whole and paper else None


def _tokens(step: ServedStep) -> int | None:
    return _both(step.prompt_tokens, step.decode_tokens)


def _both(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _sum(numbers: Iterable[N | None]) -> N | None:
    """None where one is not known."""
    kept = list(numbers)
    found = [number for number in kept if number is not None]
    return None if len(found) < len(kept) else sum(found)


def weighty(found: Iterable[PhaseParts], least: float) -> Iterator[tuple[PhaseParts, PartUse]]:
    """Parts with that share of their phase's kernel time, the largest first."""
    pairs = [
        (phase, part)
        for phase in found
        for part in phase.parts
        if part.share is not None and part.share >= least
    ]
    yield from sorted(pairs, key=lambda pair: -(pair[1].share or 0))
