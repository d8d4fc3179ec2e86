"""Kernels without products: what moves or compares values, and PyTorch's elementwise kernels, an element at a time.

``elementwise.csv`` holds FFMA, FMUL and FADD for an element, which perfctl 1.0.0 read from PyTorch's machine code for several
architectures. Counters of an A100 confirm ``add`` (a + alpha b: one FFMA and no FADD) and ``mul``.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import NamedTuple

from perfctl.orchestrator.analyse.derived.functors import functor_of, without_variant
from perfctl.orchestrator.analyse.derived.records import Derived, Launch
from perfctl.orchestrator.analyse.kernels.names import Algorithm

_MOVES = ("copy", "layout")
_COMPARES = re.compile(
    r"max_pool_forward|max_?pool.*forward|launch_clamp_scalar|clamp_(?:min|max)_scalar|threshold_kernel|comparefunctor|fillfunctor"
    r"|(?:^|::)relu_?kernel|masked_fill|bool_tensor|isnan|argmax|tril_kernel|triu_kernel|triu_tril_kernel"
)
_VERIFIED = (
    (re.compile(r"cudafunctor(?:onself|onother)?_add<float>"), "add"),
    (re.compile(r"functor<float, ?float, ?float,.*mulfunctor<float>"), "mul"),
)
"""Functors that hardware counters confirmed are families of their own."""
_PER_BLOCK = re.compile(
    r"(?:^|::|\s)(?:unrolled_|vectorized_|legacy_)?elementwise_kernel<(?:\(int\))?(\d+)(?:, ?(?:\(int\))?(\d+))?"
)
_ITEMS = (512, 1024, 2048)
"""Elements of a block of vectorized and unrolled kernels: 128 threads of 4, 8 or 16."""


class PerElement(NamedTuple):
    """Instructions that a functor executes for one element."""

    ffma: float
    fmul: float
    fadd: float
    spread: float
    """By how much of its FLOPs values can change the count, up or down: 0.05 is 5 %."""
    source: str
    """Whose machine code says so."""


@lru_cache(maxsize=1)
def _table() -> Mapping[tuple[str, str], PerElement]:
    """(functor, architecture or "" for all) -> counts; also without the variant, where all variants do the same."""
    found: dict[tuple[str, str], PerElement] = {}
    variants: dict[tuple[str, str], set[PerElement]] = {}
    text = Path(__file__).with_name("elementwise.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(line for line in text.splitlines() if not line.startswith("#")):
        ffma, fmul, fadd, spread = (float(row[name]) for name in ("ffma", "fmul", "fadd", "spread"))
        counts = PerElement(ffma, fmul, fadd, spread, row["source"])
        found[row["functor"], row["arch"]] = counts
        variants.setdefault((without_variant(row["functor"]), row["arch"]), set()).add(counts)
    for place, all_counts in variants.items():
        if len(all_counts) == 1:
            found.setdefault(place, next(iter(all_counts)))
    return found


def per_element(functor: str, capability: str | None) -> PerElement | None:
    """Instructions of ``functor`` for an element on a GPU of compute capability "8.6"; None: not known.

    Where architectures differ, the newest that is not newer than the GPU counts; without a capability there is no answer.
    """
    table = _table()
    for name in (functor, without_variant(functor)):
        if (same := table.get((name, ""))) is not None:
            return same
        if capability is None:
            continue
        number = int(capability.replace(".", ""))
        known = sorted(int(arch) for word, arch in table if word == name and arch and int(arch) <= number)
        if known:
            return table[name, str(known[-1])]
    return None


def pointwise(
    launch: Launch, algorithm: Algorithm, sizes: Collection[int], capability: str | None = None
) -> Derived | None:
    """Instructions of a kernel without products; ``sizes``: elements of the tensors that it may work on."""
    if algorithm.family in _MOVES or algorithm.role in ("layout", "offsets"):
        return Derived("moves values", "moves values: no FADD, FMUL or FFMA", 0, 0, 0)
    if _compares(launch.name):
        return Derived("compares values", "compares and fills: no FADD, FMUL or FFMA", 0, 0, 0)
    functor = functor_of(launch.name)
    counts = per_element(functor, capability) if functor is not None else None
    if counts is None:
        return None
    if not (counts.ffma or counts.fmul or counts.fadd):
        return Derived("elementwise", "no FADD, FMUL or FFMA in its machine code", 0, 0, 0)
    name = launch.name.lower()
    elements = _elements(launch, name, sizes)
    family = next((word for pattern, word in _VERIFIED if pattern.search(name)), "elementwise")
    return None if elements is None else of_elements(family, counts, elements)


@lru_cache(maxsize=4096)
def _compares(name: str) -> bool:
    return _COMPARES.search(name.lower()) is not None


def _elements(launch: Launch, name: str, sizes: Collection[int]) -> int | None:
    """Elements of the launch: the one size that fits its grid; None where several or none do."""
    found = _PER_BLOCK.search(name)
    if launch.grid is None:
        return None
    if "vectorized_" in name or "unrolled_" in name:
        per_block: tuple[int, ...] = _ITEMS
    elif found is not None and found[2] is not None:
        per_block = (int(found[1]) * int(found[2]),)
    else:
        return None
    fits = {size for size in sizes for each in per_block if ceil(size / each) == launch.grid[0]}
    return fits.pop() if len(fits) == 1 else None


def of_elements(family: str, counts: PerElement, elements: int) -> Derived:
    """``counts`` for each of ``elements``."""
    said = ", ".join(
        f"{value:g} {name}"
        for name, value in (("FFMA", counts.ffma), ("FMUL", counts.fmul), ("FADD", counts.fadd))
        if value
    )
    rule = f"{said} for each of {elements:,} elements, from the machine code of {counts.source}"
    if counts.spread:
        rule += f", {counts.spread:.0%} up or down by the values"
    ffma, fmul, fadd = (round(value * elements) for value in counts[:3])
    return Derived(family, rule, ffma, fmul, fadd)
