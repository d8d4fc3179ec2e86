"""Kernels without products: what moves or compares values, PyTorch's elementwise kernels, an
element at a time, and its kernels over lists of tensors (optimizers, gradient clipping and other
``_foreach_`` operations).

``elementwise.csv`` holds FFMA, FMUL and FADD for an element, which perfctl 1.0.0 read from
PyTorch's machine code for several architectures. Counters of an A100 confirm ``add`` (a + alpha b:
one FFMA and no FADD) and ``mul``.

Kernels over lists cut every tensor into chunks and give each launch as many chunks and tensors as
fit (``MultiTensorApply.cuh``), so a launch's grid and the sizes of the parameters tell
its elements.

nsys and Kineto write the functor of an elementwise kernel as ``{lambda(float)#1}`` and
``(anonymous namespace)``, ncu writes ``[lambda(float) (instance 1)]`` and ``<unnamed>``; the table
of counts and the kernels of a report must come to the same word.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import ceil, prod
from pathlib import Path
from typing import NamedTuple

from perfctl.orchestrator.counts.derived.records import DerivedInstructions, Launch
from perfctl.orchestrator.counts.kernels.names import Algorithm
from perfctl.records.paper import OpShape

_NOISE = re.compile(
    r"\(anonymous namespace\)::|<unnamed>::|\bunnamed>::|_global__n__\w+?::|_internal_\w+?::|"
    r"\(int\)|\(bool\)|\bat::native::|\bc10::|binary_internal::|\bat::|\boperator ?\(\) ?\(\) "
    r"?(?:const)?(?:::)?|\bconst\b"
)
_NCU_LAMBDA = re.compile(r"(?:\[|\{|(?<=::)|(?<= ))lambda\(([^()]*)\) \(instance (\d+)\)\]?")
_LAMBDA = re.compile(r"\{lambda\(([^()]*)\)#(\d+)\}")
_HEAD = re.compile(
    r"(?:^|[ :])(?:vectorized_elementwise_kernel<\d+, ?(?:void )?|unrolled_elementwise_kernel<"
    r"|elementwise_kernel<\d+, ?\d+, ?(?:void )?gpu_kernel_impl(?:_nocast)?<)"
)
_FOREACH = re.compile(r"(?:^|[ :])multi_tensor_apply_kernel<(?:\w+::)*\w+<[\w ,]+>, ?")
_DISPATCH = re.compile(r"\{#\d+\}(?=\{[a-z])")
CHUNK = 65_536
"""Elements of a chunk."""
_LISTS = re.compile(
    r"(TensorListMetadata|TensorListScalarListMetadata|FusedOptimizerTensorListMetadata)<(?:[\w:]+,"
    r" ?)?(?:\(int\))?([1-5])>"
)
_MOST: Mapping[str, tuple[tuple[int, tuple[int, ...]], ...]] = {
    "Tensor": ((320, (110, 64, 48, 36, 30)), (2240, (770, 448, 336, 252, 210))),
    "Scalar": ((320, (96, 64, 48, 36, 30)), (2240, (672, 448, 336, 252, 210))),
}
"""Chunks of a launch at most, and its tensors by the number of lists: built for CUDA 12 and older,
for CUDA 13 and newer."""
_MOVES = ("copy", "layout")
_CHANGES_LAYOUT = re.compile(r"nchwToNhwcKernel|nhwcToNchwKernel")
_COMPARES = re.compile(
    "max_pool_forward|max_?pool.*forward|launch_clamp_scalar|clamp_(?:min|max)_scalar|"
    "threshold_kernel|comparefunctor|fillfunctor|(?:^|::)relu_?kernel|masked_fill|bool_tensor|"
    "isnan|argmax|tril_kernel|triu_kernel|triu_tril_kernel|"
    "scal_kernel<.*cublastransposeparams"  # beta is 0: it fills C before parts are added to it
)
_VERIFIED = (
    (re.compile(r"cudafunctor(?:onself|onother)?_add<float>"), "add"),
    (re.compile(r"functor<float, ?float, ?float,.*mulfunctor<float>"), "mul"),
)
"""Functors that hardware counters confirmed are families of their own."""
_PER_BLOCK = re.compile(
    r"(?:^|::|\s)(?:unrolled_|vectorized_|legacy_)?elementwise_kernel<(?:\(int\))?(\d+)(?:, "
    r"?(?:\(int\))?(\d+))?"
)
_ITEMS = (512, 1024, 2048)
"""Elements of a block of vectorized and unrolled kernels: 128 threads of 4, 8 or 16."""


@lru_cache(maxsize=4096)
def extract_functor(name: str) -> str | None:
    """``gelucudakernelimpl{#2}{float#1}``, ``cudafunctor_add<float>``, ...; None where ``name`` is
    no elementwise kernel.

    The numbers of lambdas tell the variants of one function (GELU exact or by tanh) apart, but for
    the last without arguments: it stands for the type, which the innermost lambda's arguments say
    again. Kernels of optimizers and ``_foreach_`` operations give ``foreach `` and the template's
    arguments: ``foreach unaryopfunctor<float,2,1,1>,sqrt<float>``.
    """
    plain = _NOISE.sub(
        "", _NCU_LAMBDA.sub(r"{lambda(\1)#\2}", name.lower().replace("(anonymous namespace)::", ""))
    )
    if (foreach := _FOREACH.search(plain)) is not None:
        return "foreach " + _cut_at_closing_bracket(plain[foreach.end() :]).replace(" ", "")
    if (head := _HEAD.search(plain)) is None:
        return None
    functor = _cut_at_closing_bracket(plain[head.end() :], ",")
    marked = _LAMBDA.sub(lambda found: f"{{{found[1]}#{found[2]}}}", functor)
    marked = re.sub(r"\([^()]*\)", "", marked).replace("::", "").replace(" ", "")
    return _DISPATCH.sub("", marked)


def drop_lambda_numbers(functor: str) -> str:
    """``functor`` without the numbers of its lambdas: ``gelucudakernelimpl{float}``."""
    return re.sub(r"#\d+(?=\})", "", re.sub(r"\{#\d+\}", "", functor))


def _cut_at_closing_bracket(text: str, end: str = "") -> str:
    """Return the text up to the bracket that ends the arguments, or to ``end`` outside of inner
    brackets."""
    depth = 0
    for index, letter in enumerate(text):
        if letter in "<({[":
            depth += 1
        elif letter in ">)}]":
            depth -= 1
        if depth < 0 or (letter == end and depth == 0):
            return text[:index]
    return text


def derive_foreach_kernel(
    launch: Launch, tensor_sizes: Sequence[int] | None, capability: str | None = None
) -> DerivedInstructions | None:
    """Instructions of a kernel over lists as long as ``tensor_sizes`` (elements of each parameter,
    in order; None: not known)."""
    lists = match_foreach_tensor_lists(launch.name)
    if lists is None or not tensor_sizes or launch.grid is None:
        return None
    counts = find_instructions_per_element(extract_functor(launch.name), capability)
    if counts is None:
        return None
    fits = {
        elements
        for blocks, limits in _MOST["Scalar" if "Scalar" in lists[1] else "Tensor"]
        for chunks, elements in pack_chunks_into_launches(
            tensor_sizes, limits[int(lists[2]) - 1], blocks
        )
        if chunks == launch.grid[0]
    }
    return multiply_by_elements("optimizer", counts, fits.pop()) if len(fits) == 1 else None


@lru_cache(maxsize=8192)
def match_foreach_tensor_lists(name: str) -> re.Match[str] | None:
    """What a kernel's name says of the lists that it works on; None for a kernel over no lists."""
    return _LISTS.search(name)


def pack_chunks_into_launches(
    tensor_sizes: Iterable[int], max_tensors: int, max_chunks: int
) -> Iterator[tuple[int, int]]:
    """(chunks, elements) of each launch."""
    blocks = tensor_count = elements = 0
    for size in tensor_sizes:
        tensor_count += 1
        chunks = ceil(size / CHUNK)
        for chunk in range(chunks):
            last = chunk == chunks - 1
            blocks += 1
            elements += size - chunk * CHUNK if last else CHUNK
            if blocks == max_chunks or (tensor_count == max_tensors and last):
                yield blocks, elements
                blocks = elements = 0
                tensor_count = 0 if last else 1
    if blocks:
        yield blocks, elements


def list_parameter_sizes(ops: Iterable[OpShape]) -> tuple[int, ...] | None:
    """Elements of each parameter in order of use; None where a module's own parameters are not read
    off its operations' inputs."""
    totals: dict[str, int] = {}
    sizes_by_layer: dict[str, set[int]] = {}
    for op in sorted(ops, key=lambda op: op.position):
        if op.direction == "forward" and op.parameters:
            totals[op.layer] = op.parameters
            sizes_by_layer.setdefault(op.layer, set()).update(
                prod(shape) for shape in op.inputs if shape
            )
    elements: list[int] = []
    for layer, total in totals.items():
        sizes = sizes_by_layer[layer]
        pairs = {
            (size, total - size) for size in sizes if total - size in sizes and size >= total - size
        }
        if total in sizes:
            pairs.add((total, 0))
        if len(pairs) != 1:
            return None
        elements += [size for size in pairs.pop() if size]
    return tuple(elements)


class InstructionsPerElement(NamedTuple):
    """Instructions that a functor executes for one element."""

    ffma: float
    fmul: float
    fadd: float
    spread: float
    """By how much of its FLOPs values can change the count, up or down: 0.05 is 5%."""
    source: str
    """Whose machine code says so."""


@lru_cache(maxsize=1)
def _read_functor_table() -> Mapping[tuple[str, str], InstructionsPerElement]:
    """(functor, architecture or "" for all) -> counts; also without the variant, where all variants
    do the same."""
    by_functor: dict[tuple[str, str], InstructionsPerElement] = {}
    variants: dict[tuple[str, str], set[InstructionsPerElement]] = {}
    text = Path(__file__).with_name("elementwise.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(line for line in text.splitlines() if not line.startswith("#")):
        ffma, fmul, fadd, spread = (float(row[name]) for name in ("ffma", "fmul", "fadd", "spread"))
        counts = InstructionsPerElement(ffma, fmul, fadd, spread, row["source"])
        by_functor[row["functor"], row["arch"]] = counts
        variants.setdefault((drop_lambda_numbers(row["functor"]), row["arch"]), set()).add(counts)
    for key, all_counts in variants.items():
        if len(all_counts) == 1:
            by_functor.setdefault(key, next(iter(all_counts)))
    return by_functor


def find_instructions_per_element(
    functor: str | None, capability: str | None
) -> InstructionsPerElement | None:
    """Instructions of ``functor`` for an element on a GPU of compute capability "8.6"; None:
    not known.

    Where architectures differ, the newest that is not newer than the GPU counts; without a
    capability there is no answer.
    """
    if functor is None:
        return None
    table = _read_functor_table()
    for name in (functor, drop_lambda_numbers(functor)):
        if (same := table.get((name, ""))) is not None:
            return same
        if capability is None:
            continue
        number = int(capability.replace(".", ""))
        measured = sorted(
            int(arch)
            for functor_name, arch in table
            if functor_name == name and arch and int(arch) <= number
        )
        if measured:
            return table[name, str(measured[-1])]
    return None


def derive_pointwise_kernel(
    launch: Launch,
    algorithm: Algorithm,
    tensor_sizes: Collection[int],
    capability: str | None = None,
    nchw_shapes: Collection[tuple[int, ...]] = (),
) -> DerivedInstructions | None:
    """Instructions of a kernel without products; ``tensor_sizes``: elements of the tensors that it
    may work on, ``nchw_shapes``: the shapes of those that are N x C x H x W."""
    if _CHANGES_LAYOUT.search(launch.name):
        return _derive_cudnn_layout_change(launch, nchw_shapes)
    is_move = algorithm.family in _MOVES or algorithm.role in ("layout", "offsets")
    if is_move or "flip_filter<" in launch.name:
        return DerivedInstructions("moves values", "moves values: no FADD, FMUL or FFMA", 0, 0, 0)
    if _is_comparison_or_fill_kernel(launch.name):
        return DerivedInstructions(
            "compares values", "compares and fills: no FADD, FMUL or FFMA", 0, 0, 0
        )
    counts = find_instructions_per_element(extract_functor(launch.name), capability)
    if counts is None:
        return None
    if not (counts.ffma or counts.fmul or counts.fadd):
        return DerivedInstructions(
            "elementwise", "no FADD, FMUL or FFMA in its machine code", 0, 0, 0
        )
    name = launch.name.lower()
    elements = _find_element_count(launch, name, tensor_sizes)
    if elements is None:
        return None
    verified = (family for pattern, family in _VERIFIED if pattern.search(name))
    return multiply_by_elements(next(verified, "elementwise"), counts, elements)


def _derive_cudnn_layout_change(
    launch: Launch, nchw_shapes: Collection[tuple[int, ...]]
) -> DerivedInstructions:
    """cuDNN scales each value as it changes the layout: one FMUL. A block moves 32 places of 32
    channels of one image; counted on an H100 (cuDNN 9.19)."""
    fits = {
        prod(shape)
        for shape in nchw_shapes
        if (ceil(shape[2] * shape[3] / 32), ceil(shape[1] / 32), shape[0]) == launch.grid
    }
    if len(fits) != 1:
        rule = "1 FMUL for each value; the moved tensor is unknown"
        return DerivedInstructions("layout of cuDNN", rule, 0, None, 0)
    (values,) = fits
    return DerivedInstructions(
        "layout of cuDNN", f"1 FMUL for each of {values:,} values", 0, values, 0
    )


@lru_cache(maxsize=4096)
def _is_comparison_or_fill_kernel(name: str) -> bool:
    return _COMPARES.search(name.lower()) is not None


def _find_element_count(launch: Launch, name: str, sizes: Collection[int]) -> int | None:
    """Elements of the launch: the one size that fits its grid; None where several or none do."""
    match = _PER_BLOCK.search(name)
    if launch.grid is None:
        return None
    if "vectorized_" in name or "unrolled_" in name:
        per_block: tuple[int, ...] = _ITEMS
    elif match is not None and match[2] is not None:
        per_block = (int(match[1]) * int(match[2]),)
    else:
        return None
    fits = {
        size
        for size in sizes
        for block_elements in per_block
        if ceil(size / block_elements) == launch.grid[0]
    }
    return fits.pop() if len(fits) == 1 else None


def multiply_by_elements(
    family: str, counts: InstructionsPerElement, elements: int
) -> DerivedInstructions:
    """``counts`` for each of ``elements``."""
    terms = ", ".join(
        f"{value:g} {name}"
        for name, value in (("FFMA", counts.ffma), ("FMUL", counts.fmul), ("FADD", counts.fadd))
        if value
    )
    rule = f"{terms} for each of {elements:,} elements, from the machine code of {counts.source}"
    if counts.spread:
        rule += f", {counts.spread:.0%} up or down by the values"
    ffma, fmul, fadd = (round(value * elements) for value in counts[:3])
    return DerivedInstructions(family, rule, ffma, fmul, fadd)
