"""Passes of a training trace (forward, backward for the input, for the weights): time, exchanges,
tokens of a call of attention."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar

from perfctl.orchestrator.counts.kernels.names import recognise_family
from perfctl.orchestrator.ledger.timing import GRADIENTS, assign_kernels_to_layers, has_kernel_times
from perfctl.orchestrator.ledger.usage.intervals import (
    Intervals,
    has_start_and_duration,
    sum_durations_ns,
)
from perfctl.orchestrator.ledger.usage.run_usage import COLLECTIVE
from perfctl.records.ranges import DIRECTIONS
from perfctl.records.report import Kernel
from perfctl.records.run import Run

_NUMBER = r"(?:\(int\)|\(\(int\)|cute::C<)?\(?(\d+)"
_FORWARD = rf"Flash_fwd_kernel_traits<{_NUMBER}>?\)?, {_NUMBER}"
_ATTENTION = (
    # flash-attention's kernels with a block for each tile of queries; grid: which of y and z counts
    # sequences, which heads
    (re.compile(rf"\bflash_fwd_kernel<(?:\w+::)?{_FORWARD}"), 2, "y"),
    (re.compile(rf"\bcompute_attn_ws<(?:\w+::)?{_FORWARD}.*SingleTileScheduler"), 2, "z"),
    (re.compile(rf"\bFlashAttnBwdPreprocess<cute::tuple<{_NUMBER}"), 1, "z"),
    (
        re.compile(
            rf"\bflash_bwd_dot_do_o_kernel<.*Flash_bwd_kernel_traits<{_NUMBER}>?\)?, {_NUMBER}"
        ),
        2,
        "y",
    ),
)
"""(name, which number in it is the tile's side along the queries, place of the sequences)."""
_ATTENDS = re.compile(r"attention|attn|fmha|flash_", re.IGNORECASE)
AGREEING_NAMES_MIN = 2
"""Kernels of different names whose grids have one block a row, and as many, before that number
stands for the tokens."""


@dataclass(frozen=True, slots=True)
class AttentionQueries:
    """What one call of attention computes, by its kernel's tile and grid."""

    calls: int
    blocks: int
    tile: int
    sequences: int
    heads: int
    rows: int | None
    """Tokens, inferred: blocks of other kernels that have one for each row. None where these do
    not agree."""
    kernels: int
    """Kernels, by name, that have so many rows."""

    @property
    def max_tokens(self) -> int:
        """Tokens at most: whole tiles."""
        return self.blocks * self.tile * self.sequences

    @property
    def min_tokens(self) -> int:
        return ((self.blocks - 1) * self.tile + 1) * self.sequences


@dataclass(frozen=True, slots=True)
class PassTimes:
    """All kernels of one direction, of all recorded steps."""

    JSON_KEYS = (
        "run_id",
        "direction",
        "layers",
        "launches",
        "kernel_ns",
        "share",
        "running_ns",
        "collective_ns",
    )
    JSON_NAMES: ClassVar = {"run_id": "run", "collective_ns": "communication_ns"}

    run: Run
    direction: Annotated[str, DIRECTIONS] | None
    """One of DIRECTIONS; None for kernels that nothing says it of."""
    layers: int
    launches: int
    kernel_ns: float
    share: float
    """Of the kernel time."""
    running_ns: float
    """Time in which at least one of its kernels ran."""
    collective_ns: float
    """Kernel time in exchanges between GPUs."""
    queries: AttentionQueries | None

    @property
    def run_id(self) -> int:
        return self.run.id


def list_ingested_training_pass_times(run: Run) -> tuple[PassTimes, ...]:
    """Return the passes of a report made elsewhere, in the order of DIRECTIONS; empty for perfctl's
    own runs (the ledger has them by layer), without gradients, without times, for a server's steps,
    and where more of the kernel time, exchanges left out, is of no layer than of one: then nothing
    says the pass of most kernels."""
    kernels = run.report.kernels
    is_foreign = run.origin == "ingested" and not list(run.report.served_steps)
    if not is_foreign or not isinstance(kernels, Sequence) or not has_kernel_times(run):
        return ()
    if run.profiler == "ncu" or not all(map(has_start_and_duration, kernels)):
        return ()
    by_direction: defaultdict[str | None, list[Kernel]] = defaultdict(list)
    for kernel, key in zip(kernels, assign_kernels_to_layers(run), strict=True):
        by_direction[key[1] if key is not None else None].append(kernel)
    if not by_direction.keys() & {"backward", *GRADIENTS}:
        return ()
    total = sum_durations_ns(kernels)
    uses = tuple(
        _build_pass_times(run, direction, by_direction[direction], total)
        for direction in (*DIRECTIONS, None)
        if direction in by_direction
    )
    attributed = sum(use.kernel_ns for use in uses if use.direction is not None)
    unattributed_ns = sum(
        use.kernel_ns - use.collective_ns for use in uses if use.direction is None
    )
    return uses if attributed >= unattributed_ns else ()


def _build_pass_times(
    run: Run, direction: str | None, kernels: Sequence[Kernel], total_kernel_ns: float
) -> PassTimes:
    took = sum_durations_ns(kernels)
    return PassTimes(
        run=run,
        direction=direction,
        layers=len({kernel.layer for kernel in kernels if kernel.layer}),
        launches=len(kernels),
        kernel_ns=took,
        share=took / total_kernel_ns if total_kernel_ns else 0.0,
        running_ns=Intervals.make_from_items(kernels).total_ns,
        collective_ns=sum_durations_ns(
            kernel for kernel in kernels if recognise_family(kernel.name) == COLLECTIVE
        ),
        queries=infer_attention_call_shape(kernels),
    )


def infer_attention_call_shape(kernels: Sequence[Kernel]) -> AttentionQueries | None:
    """Return what a call of attention computes; None where no kernel's name and grid tell, or where
    the calls differ."""
    calls: Counter[tuple[int, int, int, int]] = Counter()
    for kernel in kernels:
        for tile, sequences_axis in _parse_query_tile_and_sequence_axis(kernel.name):
            if kernel.grid_x and kernel.grid_y and kernel.grid_z:
                sides = kernel.grid_y, kernel.grid_z
                sequences, heads = reversed(sides) if sequences_axis == "z" else sides
                calls[kernel.grid_x, tile, sequences, heads] += 1
    if len(calls) != 1:
        return None
    ((sizes, count),) = calls.items()
    call = AttentionQueries(count, *sizes, None, 0)
    names: defaultdict[int, set[str]] = defaultdict(set)
    for kernel in kernels:
        rows = kernel.grid_x
        if (
            kernel.grid_y == kernel.grid_z == 1
            and rows
            and call.min_tokens <= rows <= call.max_tokens
        ):
            names[rows].add(kernel.name)
    if len(names) != 1:
        return call
    ((rows, agreeing),) = names.items()
    is_sure = len(agreeing) >= AGREEING_NAMES_MIN
    return replace(call, rows=rows if is_sure else None, kernels=len(agreeing))


@lru_cache(maxsize=16384)
def _parse_query_tile_and_sequence_axis(kernel_name: str) -> Sequence[tuple[int, str]]:
    """Return the side of a tile and the place of the sequences, of a kernel of attention."""
    matches = ((pattern.search(kernel_name), group, axis) for pattern, group, axis in _ATTENTION)
    return [(int(match[group]), axis) for match, group, axis in matches if match]


def has_attention_kernels(run: Run) -> bool:
    """Return whether kernels of attention ran, so that there are tokens to ask for."""
    return any(map(_ATTENDS.search, {kernel.name for kernel in run.report.kernels}))
