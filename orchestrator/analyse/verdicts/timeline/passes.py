"""Needless passes over memory: casts between float types, and chains of kernels that each read what the former wrote."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from perfctl.orchestrator.analyse.kernels.names import family
from perfctl.orchestrator.analyse.verdicts.rule import amount, percent
from perfctl.orchestrator.analyse.verdicts.timeline.records import RunVerdict, Timeline, milliseconds, named
from perfctl.records.report import Kernel, OpCall

WORTH = 0.05
"""A smaller share of the kernel time makes no verdict."""
SIZES = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
    "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2fnuz": 1,
}  # fmt: skip
"""Bytes of an element by the names that Kineto writes; float types only."""
_CASTS = re.compile(
    r"(b?float(?:16|8\w*))_copy_kernel|(?:b?float16|float8\w*)tofloat(?:32)?_copy_kernel|triton_poi_fused__to_copy_\d+\b",
    re.IGNORECASE,
)
"""Kernels that do nothing but convert between float types."""
CAST_TODO = (
    "Keep weights and activations in the type of the products (model.to(torch.bfloat16), autocast around the whole step and not "
    "around single layers), or let torch.compile fuse casts into their neighbours"
)


@lru_cache(maxsize=8192)
def _is_cast(kernel: str) -> bool:
    return _CASTS.search(kernel) is not None


def cast_storm(found: Timeline) -> RunVerdict | None:
    """Casts between float types: by the types and shapes of aten::copy_ where they were recorded, else by kernel names.

    A cast reads each element once and writes it once; bytes are known only with shapes.
    """
    calls = [call for call in found.run.report.waiting_calls if call.name == "aten::copy_" and call.device_ns]
    steps = {piece.step for piece in found.pieces}
    mine = [call for call in calls if call.dtypes is not None and call.step in steps]
    casts = [cast for call in mine if (cast := read_cast(call)) is not None]
    kernels = [kernel for piece in found.pieces for kernel in piece.kernels if _is_cast(kernel.name)]
    by_name, by_call = sum(kernel.duration_ns or 0 for kernel in kernels), sum(cast.took for cast in casts)
    took, often = (by_call, len(casts)) if by_call > by_name else (by_name, len(kernels))
    share = took / found.kernel_ns
    if share < WORTH:
        return None
    text = f"Casts: {percent(share)} of the kernel time ({milliseconds(took)}, {often:,} kernels) only converts between float types"
    if by_call > by_name:
        text += f" and moves {amount(sum(cast.moved for cast in casts))}B"
        pairs: dict[str, float] = defaultdict(float)
        for cast in casts:
            pairs[f"{cast.source} to {cast.target}"] += cast.took
        text += f", most of it {max(pairs, key=lambda pair: pairs[pair])}"
    names = named([kernel.name for kernel in kernels], {})
    return RunVerdict("dtype casts", f"{text}.", share, "the kernel time", f"{CAST_TODO}.", kernels=names)


class Cast(NamedTuple):
    source: str
    target: str
    moved: int
    """Bytes read and written."""
    took: float
    """ns on the GPU."""


def read_cast(call: OpCall) -> Cast | None:
    """What a call of aten::copy_(target, source) converts; None where both have one type, or one is no float type."""
    try:
        types, shapes = json.loads(call.dtypes or "[]"), json.loads(call.shapes or "[]")
        target, source = types[:2]
        elements = prod(shapes[0])
    except (ValueError, TypeError, IndexError):
        return None
    if source == target or source not in SIZES or target not in SIZES:
        return None
    before, after = (name.removeprefix("c10::").lower() for name in (source, target))
    return Cast(before, after, elements * (SIZES[source] + SIZES[target]), call.device_ns or 0)


SMALL_NS = 5_000
"""A shorter kernel waits for its launch and not for memory."""
ALIKE = 3.0
"""Kernels whose times differ by more cannot both move the same tensor at the memory's rate."""
_LINKS = ("elementwise", "norm", "copy")
_NO_LINK = re.compile(
    r"fill|arange|index|gather|scatter|rand|dropout.*backward|foreach|multi_tensor|optimizer|memset", re.IGNORECASE
)
_BLOCK = re.compile(r"(?<!vectorized_)(?<!unrolled_)elementwise_kernel<(?:\(int\))?(\d+), ?(?:\(int\))?(\d+)")
_TYPE = re.compile(r"BFloat16|Half|double|float")
CHAIN_TODO = "Let torch.compile fuse them, or use fused operators (F.rms_norm, F.layer_norm, F.gelu, a fused optimizer)"


def chains(found: Timeline) -> RunVerdict | None:
    """Consecutive kernels of a stream that are elementwise, casts or normalisation and work on as many elements.

    Fused, a chain reads its first input and writes its last output: each kernel but one saves a write and a read. The share
    is an upper bound: all of a chain's time but that of its longest kernel, of the kernel time.
    """
    known = list(_chains(found))
    saved = sum(sum(times := _times(chain)) - max(times) for chain in known)
    share = saved / found.kernel_ns
    if share < WORTH:
        return None
    passes, took = sum(len(chain) - 1 for chain in known), sum(sum(_times(chain)) for chain in known)
    sizes = [size for chain in known for kernel in chain[:-1] if (size := least_bytes(kernel)) is not None]
    text = (
        f"Memory-bound chains: {len(known):,} chains of {passes + len(known):,} elementwise and normalisation kernels take "
        f"{percent(took / found.kernel_ns)} of the kernel time ({milliseconds(took)}), and each may read what the one before it "
        f"wrote. Fused, {passes:,} passes over memory go"
    )
    if sizes:
        which = "" if len(sizes) == passes else f" ({len(sizes):,} of them known)"
        text += f": at least {amount(2 * sum(sizes))}B less to read and write{which}"
    text += f", and {percent(share)} of the kernel time at most"
    names = [kernel.name for chain in known for kernel in chain]
    sums: dict[str, float] = defaultdict(float)
    for chain in known:
        for kernel in chain:
            sums[kernel.name] += kernel.duration_ns or 0
    return RunVerdict(
        "memory-bound chain", f"{text}.", share, "the kernel time", f"{CHAIN_TODO}.", "plausible", named(names, sums)
    )


def _times(chain: Sequence[Kernel]) -> list[float]:
    return [kernel.duration_ns or 0 for kernel in chain]


def _chains(found: Timeline) -> Iterator[list[Kernel]]:
    for piece in found.pieces:
        streams: dict[int | None, list[Kernel]] = defaultdict(list)
        for kernel in piece.kernels:
            streams[kernel.stream].append(kernel)
        for kernels in streams.values():
            chain: list[Kernel] = []
            for kernel in kernels:
                if chain and not _follows(chain[-1], kernel):
                    if len(chain) > 1:
                        yield chain
                    chain = []
                if _is_link(kernel.name) and (kernel.duration_ns or 0) >= SMALL_NS and kernel.direction != "optimizer":
                    chain.append(kernel)
            if len(chain) > 1:
                yield chain


@lru_cache(maxsize=16384)
def _is_link(name: str) -> bool:
    return family(name) in _LINKS and not _NO_LINK.search(name)


def _follows(before: Kernel, after: Kernel) -> bool:
    """Whether ``after`` may read what ``before`` wrote, by their sizes; where a grid says none, by their times."""
    if not _is_link(after.name) or (after.duration_ns or 0) < SMALL_NS:
        return False
    low, high = sorted((before.duration_ns or 1, after.duration_ns or 1))
    if high > ALIKE * low:
        return False
    sizes = elements(before), elements(after)
    return None in sizes or sizes[0] == sizes[1]


def elements(kernel: Kernel) -> int | None:
    """Most elements that the blocks of an elementwise kernel of PyTorch hold at 4 a thread (newer versions: up to 16); None
    for other kernels."""
    if kernel.grid_x is None or "elementwise_kernel" not in kernel.name:
        return None
    each = int(match[1]) * int(match[2]) if (match := _BLOCK.search(kernel.name)) else 4 * (kernel.block_x or 128)
    return kernel.grid_x * (kernel.grid_y or 1) * (kernel.grid_z or 1) * each


def least_bytes(kernel: Kernel) -> int | None:
    """Bytes that an elementwise kernel of PyTorch writes, at least: whole blocks but the last, in the smallest type that its
    name has; None for other kernels."""
    held, types = elements(kernel), _TYPE.findall(kernel.name)
    if held is None or not types or kernel.grid_x is None:
        return None
    each = held // (kernel.grid_x * (kernel.grid_y or 1) * (kernel.grid_z or 1))
    return (held - each) * min({"BFloat16": 2, "Half": 2, "float": 4, "double": 8}[one] for one in types)
