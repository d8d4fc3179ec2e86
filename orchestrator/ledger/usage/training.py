"""Passes of a training trace (forward, backward for the input, for the weights): time, exchanges,
tokens of a call of attention."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from perfctl.orchestrator.counts.kernels.names import family
from perfctl.orchestrator.ledger.timing import GRADIENTS, kernel_keys, times_kernels
from perfctl.orchestrator.ledger.usage.busy import COLLECTIVE, spans, union
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
ROWS_SURE = 2
"""Kernels of different names whose grids have one block a row, and as many, before that number
stands for the tokens."""


@dataclass(frozen=True, slots=True)
class Queries:
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
    def most(self) -> int:
        """Tokens at most: whole tiles."""
        return self.blocks * self.tile * self.sequences

    @property
    def least(self) -> int:
        return ((self.blocks - 1) * self.tile + 1) * self.sequences


@dataclass(frozen=True, slots=True)
class PassUse:
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
    JSON_NAMES: ClassVar = {"run_id": "run", "collective_ns": "exchange_ns"}

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
    queries: Queries | None

    @property
    def run_id(self) -> int:
        return self.run.id


def passes(run: Run) -> tuple[PassUse, ...]:
    """The passes of a report made elsewhere, in the order of DIRECTIONS; empty for perfctl's own
    runs (the ledger has them by layer), without gradients, without times, for a server's steps, and
    where more of the kernel time, exchanges left out, is of no layer than of one: then nothing says
    the pass of most kernels."""
    kernels = run.report.kernels
    if (
        run.origin != "ingested"
        or not isinstance(kernels, Sequence)
        or not times_kernels(run)
        or list(run.report.served_steps)
    ):
        return ()
    if run.profiler == "ncu" or any(
        kernel.start_ns is None or kernel.duration_ns is None for kernel in kernels
    ):
        return ()
    found: defaultdict[str | None, list[Kernel]] = defaultdict(list)
    for kernel, key in zip(kernels, kernel_keys(run), strict=True):
        found[key[1] if key is not None else None].append(kernel)
    if not found.keys() & {"backward", *GRADIENTS}:
        return ()
    total = sum(kernel.duration_ns or 0 for kernel in kernels)
    order = [direction for direction in (*DIRECTIONS, None) if direction in found]
    made = tuple(_of(run, direction, found[direction], total) for direction in order)
    unsaid = sum(one.kernel_ns - one.collective_ns for one in made if one.direction is None)
    return made if sum(one.kernel_ns for one in made if one.direction is not None) >= unsaid else ()


def _of(run: Run, direction: str | None, kernels: Sequence[Kernel], total: float) -> PassUse:
    starts, ends = spans(kernels)
    running = union(starts, ends, (int(starts.min()), int(ends.max())))[0] if len(starts) else 0
    took = sum(kernel.duration_ns or 0 for kernel in kernels)
    sent = sum(kernel.duration_ns or 0 for kernel in kernels if family(kernel.name) == COLLECTIVE)
    layers = {kernel.layer for kernel in kernels if kernel.layer}
    return PassUse(
        run,
        direction,
        len(layers),
        len(kernels),
        took,
        took / total if total else 0.0,
        running,
        sent,
        queries(kernels),
    )


def queries(kernels: Sequence[Kernel]) -> Queries | None:
    """None where no kernel's name and grid tell, or where the calls differ."""
    told = Counter(_tiles(kernels))
    if len(told) != 1:
        return None
    (blocks, tile, sequences, heads), calls = told.most_common(1)[0]
    found = Queries(calls, blocks, tile, sequences, heads, None, 0)
    names: defaultdict[int, set[str]] = defaultdict(set)
    for kernel in kernels:
        if (
            kernel.grid_y == kernel.grid_z == 1
            and kernel.grid_x
            and found.least <= kernel.grid_x <= found.most
        ):
            names[kernel.grid_x].add(kernel.name)
    if len(names) != 1:
        return found
    ((rows, those),) = names.items()
    return Queries(
        calls, blocks, tile, sequences, heads, rows if len(those) >= ROWS_SURE else None, len(those)
    )


def _tiles(kernels: Sequence[Kernel]) -> Iterator[tuple[int, int, int, int]]:
    """(blocks along the queries, tile, sequences, heads) of each call."""
    for kernel in kernels:
        for pattern, place, of_sequences in _ATTENTION:
            if (
                (match := pattern.search(kernel.name))
                and kernel.grid_x
                and kernel.grid_y
                and kernel.grid_z
            ):
                sequences, heads = kernel.grid_y, kernel.grid_z
                if of_sequences == "z":
                    sequences, heads = heads, sequences
                yield kernel.grid_x, int(match[place]), sequences, heads


def attends(run: Run) -> bool:
    """Whether kernels of attention ran, so that there are tokens to ask for."""
    return any(_ATTENDS.search(kernel.name) for kernel in run.report.kernels)
