"""Prefill, decode and mixed steps by part of the model: time, estimated FLOPs, bytes and the bound
of each. 1 multiply-add = 2 FLOPs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import cycle
from math import ceil, prod
from typing import Annotated, ClassVar, NamedTuple

from perfctl.orchestrator.counts.counters.amd import is_amd_run
from perfctl.orchestrator.counts.hardware.peaks import PATH_OF, DevicePeaks, find_peaks
from perfctl.orchestrator.counts.kernels.layers import SHARED, split_shared_kernels
from perfctl.orchestrator.counts.kernels.names import recognise_kernel
from perfctl.orchestrator.estimate.flops.engine import build_layer_calls_with_flops
from perfctl.orchestrator.ledger.timing import count_kernel_steps
from perfctl.orchestrator.ledger.usage.blocks import (
    RepeatedBlockLayer,
    map_layers_to_repeated_block,
)
from perfctl.orchestrator.ledger.usage.intervals import get_start_ns
from perfctl.orchestrator.ledger.usage.readings import sum_if_all_known
from perfctl.orchestrator.ledger.usage.served import PHASES, MixedSteps, count_output_rows
from perfctl.orchestrator.statistics import group_by
from perfctl.records.paper import OpShape
from perfctl.records.report import Kernel
from perfctl.records.run import Run

PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}
NO_PRODUCT = (
    "it has no operator with a formula: the estimate includes GEMMs, but not norms and activations"
)
NO_SHAPES = "the trace has no operator shapes"
EITHER = "its shapes come from steps of several phases"
NO_KEYS = "the steps do not state their number of keys"
OUTSIDE = "no module"


class TilePadding(NamedTuple):
    """One product and the tiles that its kernel covers it with."""

    rows: int
    columns: int
    tile: tuple[int, int]
    """Along rows and along columns, as torch has them."""

    @property
    def tile_counts(self) -> tuple[int, int]:
        return ceil(self.rows / self.tile[0]), ceil(self.columns / self.tile[1])

    @property
    def executed_over_estimated_macs(self) -> float:
        """Executed / paper multiply-adds: outputs of all tiles over outputs of the product, 1
        or more."""
        return prod((*self.tile_counts, *self.tile)) / (self.rows * self.columns)


def is_main_gemm_kernel(kernel: Kernel) -> bool:
    """Return True for a matrix product by its name, not the sum of its parts or a copy before
    it."""
    recognised = recognise_kernel(kernel.name)
    return recognised.family == "gemm" and recognised.role == "main"


def compute_tile_padding(
    kernel: Kernel, rows: int, columns: int, *, grid_counts_work_items: bool
) -> TilePadding | None:
    """Return the tiles over a product of ``rows`` x ``columns`` outputs; None where the name states
    none or their direction is open.

    BLAS libraries keep matrices by columns, so a product of torch is computed transposed: the first
    side of the tile lies along torch's columns (features), the second along its rows (tokens).
    Tensile's grids confirm that: MT256x192 for 15,360 x 6,144 launches 24 x 80 work-groups.
    Elsewhere the grid decides, and without one nothing does, unless both ways need as many tiles.
    ``grid_counts_work_items``: the grid counts work-items, as HIP reports it, not blocks.
    """
    tile = recognise_kernel(kernel.name).tile
    if tile is None or not rows or not columns:
        return None
    transposed = TilePadding(rows, columns, (tile[1], tile[0]))
    straight = TilePadding(rows, columns, (tile[0], tile[1]))
    if (
        transposed.executed_over_estimated_macs == straight.executed_over_estimated_macs
        or kernel.name.startswith("Cijk_")
    ):
        return transposed
    grid = (kernel.grid_x, kernel.grid_y, kernel.grid_z)
    block = (kernel.block_x, kernel.block_y, kernel.block_z) if grid_counts_work_items else (1,)
    if None in grid or None in block:
        return None
    blocks = prod(side or 1 for side in grid) // prod(side or 1 for side in block)
    fitting = [way for way in (transposed, straight) if blocks and blocks == prod(way.tile_counts)]
    return fitting[0] if len(fitting) == 1 else None


@dataclass(frozen=True, slots=True)
class KvCacheWidths:
    """What attention reads of the cache of keys and values in one block, from the widths of the
    projections."""

    queries: int
    """Query heads x head dimension: inputs of the output projection."""
    keys: int
    """Key-value heads x head dimension, of this GPU."""
    element: int
    """Bytes, if the cache has the type of the projections."""
    blocks: int


class _PartEstimate(NamedTuple):
    """Estimated FLOPs and bytes of a part, and why they are not known."""

    flops: int | None
    flops_why: str | None
    bytes: int | None
    bytes_why: str | None


@dataclass(frozen=True, slots=True)
class ModelPartUse:
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
        "flops": "estimated_flops",
        "flops_why": "estimated_reason",
        "bytes_why": "bytes_reason",
        "estimated": "bytes_approximate",
        "intensity": "flops_per_byte",
        "ridge": "ridge_flops_per_byte",
        "path": "peak",
        "padded": "executed_per_estimated",
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
    padding: tuple[TilePadding, ...]
    """One for each kind of product whose tiles are known."""
    padded: float | None
    """Executed / estimated multiply-adds of its GEMMs, 1 or more; None if the tile of one is
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
        """Estimated FLOPs per byte."""
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
        "cache_why": "cache_reason",
    }

    run: Run
    phase: Annotated[str, PHASES]
    steps: int
    tokens: int | None
    parts: tuple[ModelPartUse, ...]
    cache_bytes: int | None
    """Keys and values that its steps read, of all blocks; if the cache has the type of the
    projections."""
    cache_why: str | None
    """What is missing, or how it was worked out."""
    peaks: DevicePeaks
    launches: int = 0

    @property
    def run_id(self) -> int:
        return self.run.id

    @property
    def is_inferred(self) -> bool:
        """Whether no annotation names the steps: their phase follows from shapes."""
        return any(step.is_inferred_from_shapes for step in self.run.report.served_steps)

    @property
    def kernel_ns(self) -> float | None:
        """None where one kernel was not timed."""
        return sum_if_all_known(part.kernel_ns for part in self.parts)


def split_serving_phases_by_model_part(
    run: Run, measured_peaks: Sequence[DevicePeaks] = (), *, separates_blocks: bool = False
) -> tuple[PhaseParts, ...]:
    """Return the phases of a run in the order of PHASES; empty where no step is known.
    ``separates_blocks``: every block by itself."""
    phases = {step.phase for step in run.report.served_steps}
    if not phases or not isinstance(run.report.kernels, Sequence):
        return ()
    kernels = split_shared_kernels(run.report) or run.report.kernels
    layers = {kernel.layer for kernel in kernels if kernel.layer}
    layers |= {op.layer for op in run.report.ops}
    folded = map_layers_to_repeated_block(layers)
    parts = (
        {layer: RepeatedBlockLayer(layer, None) for layer in layers} if separates_blocks else folded
    )
    peaks = find_peaks(run.device, measured_peaks)
    return tuple(
        _PhaseReader(run, phase, kernels, parts, folded, peaks).build_phase_parts()
        for phase in PHASES
        if phase in phases
    )


class _PhaseReader:
    """Steps, kernels and operators of one phase, from which its parts are read."""

    def __init__(
        self,
        run: Run,
        phase: str,
        kernels: Sequence[Kernel],
        parts: Mapping[str, RepeatedBlockLayer],
        folded: Mapping[str, RepeatedBlockLayer],
        peaks: DevicePeaks,
    ) -> None:
        """``kernels``: the run's, those of several layers once for each."""
        self.run, self.phase, self.parts, self.peaks = run, phase, parts, peaks
        self.steps = [step for step in run.report.served_steps if step.phase == phase]
        self.numbers = {step.number for step in self.steps}
        self.kernels = [kernel for kernel in kernels if kernel.step in self.numbers]
        self.ops, self.unsure = _split_phase_ops_and_ambiguous_layers(run, phase)
        self.cache, self.cache_why = _infer_kv_cache_widths_or_reason(self.ops)
        self.tokens = sum_if_all_known(step.tokens for step in self.steps)
        self.keys = sum_if_all_known(step.attention_keys for step in self.steps)
        self.names = {layer: part.name for layer, part in parts.items() if layer}
        self.split = MixedSteps(run)

    def build_phase_parts(self) -> PhaseParts:
        """Return the phase, part by part."""
        ordered = sorted(self.kernels, key=get_start_ns)
        rows = group_by(ordered, lambda kernel: self.names.get(kernel.layer or "", OUTSIDE))
        ops = group_by(self.ops, lambda op: self.names.get(op.layer, OUTSIDE))
        total = sum_if_all_known(kernel.duration_ns for kernel in self.kernels)
        # attention itself runs in parts of that name without products; of nested ones the innermost
        part_names = [
            name
            for name in rows
            if name not in ops and "attention" in name.rpartition(".")[2].lower()
        ]
        attention = {
            name
            for name in part_names
            if not any(other.startswith(f"{name}.") for other in part_names)
        }
        cache_bytes, cache_why = self._compute_kv_cache_read_bytes_and_note()
        return PhaseParts(
            run=self.run,
            phase=self.phase,
            steps=len(self.steps),
            tokens=self.tokens,
            parts=tuple(
                self._build_part_use(
                    name, kernels, ops.get(name, []), total, is_attention=name in attention
                )
                for name, kernels in rows.items()
            ),
            cache_bytes=cache_bytes,
            cache_why=cache_why,
            peaks=self.peaks,
            launches=sum(kernel.step in self.numbers for kernel in self.run.report.kernels),
        )

    def _build_part_use(
        self,
        name: str,
        kernels: Sequence[Kernel],
        ops: Sequence[OpShape],
        phase_kernel_ns: float | None,
        *,
        is_attention: bool,
    ) -> ModelPartUse:
        layers = {kernel.layer for kernel in kernels if kernel.layer}
        blocks = len({self.parts[layer].block for layer in layers} - {None})
        paper = self._estimate_operator_flops_and_bytes(ops, layers)
        if is_attention and self.cache is not None:
            paper = self._estimate_attention_flops_and_bytes(self.cache, blocks or 1)
        estimated = is_attention and self.cache is not None and paper.bytes is not None
        typed = (op for op in (self.ops if estimated else ops) if op.dtypes)
        precisions = {PRECISIONS.get(op.dtypes[0]) for op in typed}
        path = PATH_OF.get(next(iter(precisions)) or "") if len(precisions) == 1 else None
        took = sum_if_all_known(kernel.duration_ns for kernel in kernels)
        tiles, padded = self._compute_gemm_tile_padding(kernels, ops)
        prompts_ns, split_by = self.split.sum_prompt_ns_and_basis(kernels)
        return ModelPartUse(
            phase=self.phase,
            part=name,
            blocks=blocks or None,
            launches=len(kernels),
            kernel_ns=took,
            share=took / phase_kernel_ns if took is not None and phase_kernel_ns else None,
            token_ns=took / self.tokens if took is not None and self.tokens else None,
            flops=paper.flops,
            flops_why=paper.flops_why,
            bytes=paper.bytes,
            bytes_why=paper.bytes_why,
            estimated=estimated,
            path=path,
            ridge=self.peaks.compute_ridge_point(path) if path else None,
            padding=tiles,
            padded=padded,
            names=tuple(
                dict.fromkeys(kernel.name for kernel in kernels if is_main_gemm_kernel(kernel))
            ),
            shared=any(kernel.layer_source == SHARED for kernel in kernels),
            prompts_ns=prompts_ns,
            split_by=split_by,
        )

    def _estimate_operator_flops_and_bytes(
        self, ops: Sequence[OpShape], layers: Set[str]
    ) -> _PartEstimate:
        """Return FLOPs and bytes of a part's operators, and why they are not known."""
        calls = build_layer_calls_with_flops(ops)
        if not self.run.report.ops:
            has_shapes = self.run.report.environment.get("record_shapes") == "1"
            reason = NO_PRODUCT if has_shapes else NO_SHAPES
            return _PartEstimate(None, reason, None, reason)
        if not ops and layers & self.unsure:
            return _PartEstimate(None, EITHER, None, EITHER)
        flops = sum_if_all_known(call.flops for call in calls)
        if not calls or flops is None:
            return _PartEstimate(None, NO_PRODUCT, None, NO_PRODUCT)
        moved = sum_if_all_known(
            size for call in calls for size in (call.read_bytes, call.write_bytes)
        )
        untyped = "the data types of its operators are unknown"
        return _PartEstimate(flops, None, moved, untyped if moved is None else None)

    def _estimate_attention_flops_and_bytes(
        self, cache: KvCacheWidths, block_count: int
    ) -> _PartEstimate:
        """Return FLOPs and bytes of attention itself: scores and their product with the values are
        two products of pairs x queries multiply-adds; the whole square, no mask."""
        pairs = sum_if_all_known(step.attention_query_key_pairs for step in self.steps)
        flops = None if pairs is None else 2 * 2 * pairs * cache.queries * block_count
        moved = None
        if self.keys is not None and self.tokens is not None:
            width = 2 * cache.queries + 2 * cache.keys
            moved = (self.keys * 2 * cache.keys + self.tokens * width) * cache.element * block_count
        return _PartEstimate(
            flops, NO_KEYS if flops is None else None, moved, NO_KEYS if moved is None else None
        )

    def _compute_kv_cache_read_bytes_and_note(self) -> tuple[int | None, str | None]:
        """Return keys and values that the steps read, and how they were computed or what is
        missing."""
        if (cache := self.cache) is None:
            return None, self.cache_why
        if self.keys is None:
            return None, NO_KEYS
        return self.keys * 2 * cache.keys * cache.element * cache.blocks, (
            f"{self.keys:,} keys x 2 (keys, values) x {cache.keys:,} (key-value heads x head "
            f"dimension) x {cache.element} B x {cache.blocks} blocks, if the cache has the data "
            "type of the projections"
        )

    def _compute_gemm_tile_padding(
        self, kernels: Sequence[Kernel], ops: Sequence[OpShape]
    ) -> tuple[tuple[TilePadding, ...], float | None]:
        """Return the tiles of a part's products, and executed / paper of all of them; a kernel is a
        product's by their order in the layer."""
        multiplying = group_by(filter(is_main_gemm_kernel, kernels), lambda kernel: kernel.layer)
        products = group_by(sorted(ops, key=lambda op: op.position), lambda op: op.layer)
        tiles: dict[TilePadding, None] = {}
        executed = paper = 0.0
        amd, is_complete = is_amd_run(self.run), True
        for layer, of_layer in products.items():
            calls = sum(op.calls for op in of_layer)
            is_even = len(of_layer) == 1 or calls == len(of_layer) * max(len(self.steps), 1)
            of_kernels = multiplying.get(layer, [])
            if len(of_kernels) != calls or not is_even:
                is_complete = False
                continue
            for kernel, op in zip(of_kernels, cycle(of_layer)):
                product = compute_tile_padding(
                    kernel,
                    count_output_rows(op),
                    _get_output_columns(op),
                    grid_counts_work_items=amd,
                )
                if product is None:
                    is_complete = False
                    continue
                tiles[product] = None
                macs = product.rows * product.columns * _get_k_dimension(op)
                paper += macs
                executed += macs * product.executed_over_estimated_macs
        return tuple(tiles), executed / paper if is_complete and paper else None


def _split_phase_ops_and_ambiguous_layers(run: Run, phase: str) -> tuple[list[OpShape], set[str]]:
    """Return operators of the phase, ``calls`` of all its steps; and the layers whose operators may
    be of several phases.

    Where steps of several phases ran, an operator is of the phase whose steps compute as many
    tokens as it has rows. A layer that ran in a phase without such an operator (of a prompt, the
    last projection takes the last token only) is unsure.
    """
    scale = count_kernel_steps(run) or 1
    forward = [
        op if scale == 1 else replace(op, calls=op.calls * scale)
        for op in run.report.ops
        if op.direction == "forward"
    ]
    phase_of = {step.number: step.phase for step in run.report.served_steps}
    if len(set(phase_of.values())) == 1:
        return forward, set()
    by_rows: defaultdict[int | None, set[str]] = defaultdict(set)
    for step in run.report.served_steps:
        by_rows[step.tokens].add(step.phase)
    ran: defaultdict[str, set[str]] = defaultdict(set)
    for kernel in run.report.kernels:
        if kernel.layer and kernel.step in phase_of:
            ran[kernel.layer].add(phase_of[kernel.step])
    candidates: defaultdict[str, list[set[str]]] = defaultdict(list)
    for op in forward:
        candidates[op.layer].append(by_rows.get(count_output_rows(op), set(PHASES)))
    sure = {
        layer
        for layer, choices in candidates.items()
        if all(len(phases) == 1 for phases in choices) and ran[layer] <= set().union(*choices)
    }
    ops = [op for op in forward if op.layer in sure and by_rows[count_output_rows(op)] == {phase}]
    return ops, set(candidates) - sure


def _infer_kv_cache_widths_or_reason(
    ops: Iterable[OpShape],
) -> tuple[KvCacheWidths | None, str | None]:
    """Return the widths of attention from its projections: a fused one (...QKV...) or three, and
    that of the output beside them."""
    attending = (op for op in ops if "attention" in op.layer.lower() and len(op.inputs) > 1)
    ordered = sorted(attending, key=lambda op: op.position)
    products = group_by(ordered, lambda op: op.layer.rpartition(".")[0])
    blocks: Counter[tuple[int, int, int]] = Counter()
    for of_block in products.values():
        fused = [op for op in of_block if "qkv" in op.layer.rpartition(".")[2].lower()]
        other_ops = [op for op in of_block if op not in fused]
        precision = PRECISIONS.get(of_block[0].dtypes[0]) if of_block[0].dtypes else None
        if len(fused) == len(other_ops) == 1:
            width, queries = _get_output_columns(fused[0]), _get_k_dimension(other_ops[0])
        elif len(of_block) == 4 and _get_output_columns(of_block[1]) == _get_output_columns(
            of_block[2]
        ):
            # queries, keys, values, output
            width, queries = (
                sum(map(_get_output_columns, of_block[:3])),
                _get_k_dimension(of_block[3]),
            )
            if queries != _get_output_columns(of_block[0]):
                continue
        else:
            continue
        keys, odd = divmod(width - queries, 2)
        if precision is not None and keys > 0 and not odd and not queries % keys:
            blocks[queries, keys, _BYTES[precision]] += 1
    if len(blocks) == 1:
        ((widths, count),) = blocks.items()
        return KvCacheWidths(*widths, count), None
    problem = (
        "its blocks differ in their number of heads"
        if blocks
        else "no block shows its projections of queries, keys, values and output under a module "
        "named attention"
    )
    return None, f"key-value heads x head dimension are unknown: {problem}"


def _get_output_columns(op: OpShape) -> int:
    return next((shape[-1] for shape in op.outputs if shape), 0)


def _get_k_dimension(op: OpShape) -> int:
    rows = count_output_rows(op)
    shapes = (shape for shape in op.inputs if shape and len(shape) > 1)
    return next((shape[-1] for shape in shapes if prod(shape[:-1]) == rows), 0)


def list_largest_parts(
    phases: Iterable[PhaseParts], min_share: float
) -> Iterator[tuple[PhaseParts, ModelPartUse]]:
    """Yield the parts with that share of their phase's kernel time, the largest first."""
    pairs = [(phase, part) for phase in phases for part in phase.parts]
    pairs = [pair for pair in pairs if pair[1].share is not None and pair[1].share >= min_share]
    yield from sorted(pairs, key=lambda pair: -(pair[1].share or 0))
