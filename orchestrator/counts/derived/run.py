"""Derived counts of a run: what each operation of a traced step computes, every launch of a layer
whose shapes are known, and the other instructions of launches of which some were counted.

A rule holds for a launch only where it gives exactly what was counted. So the counters also tell
how many samples the launch worked on, which the study's batch size need not be.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import cycle, zip_longest
from math import prod
from operator import attrgetter, itemgetter
from typing import Any

from perfctl.orchestrator.counts.counters.sums import (
    INTEGER,
    PREFIX,
    make_instruction_counter_name,
)
from perfctl.orchestrator.counts.counters.work import KernelFlops
from perfctl.orchestrator.counts.derived.operators import (
    CONVOLUTION_GRADIENTS,
    derive_row_kernel,
    find_operation_rows_and_columns,
)
from perfctl.orchestrator.counts.derived.pointwise import (
    derive_foreach_kernel,
    derive_pointwise_kernel,
    list_parameter_sizes,
    match_foreach_tensor_lists,
)
from perfctl.orchestrator.counts.derived.records import (
    TENSOR_FLOP,
    AttentionShape,
    DerivedInstructions,
    Launch,
    LaunchWork,
    RowWork,
)
from perfctl.orchestrator.counts.derived.rules import (
    derive_instructions,
    describe_rule_error,
    read_rule_verifications,
)
from perfctl.orchestrator.counts.figure import Figure, make_missing_figure
from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape
from perfctl.orchestrator.counts.kernels.names import recognise_kernel
from perfctl.orchestrator.estimate.flops.formulas import (
    CONVOLUTIONS,
    LINEAR,
    Shape,
    get_left_factor_shape,
    get_shape_or_empty,
    read_integers_of_attribute,
)
from perfctl.orchestrator.statistics import group_by
from perfctl.records.paper import OpShape
from perfctl.records.report import CODE, DerivedCount, Kernel

_PER_OUTPUT = ("fadd", "fmul")
"""Instructions of an epilogue: a whole number for each output."""
LARGEST_BATCH = 1 << 20
_LAYOUT = re.compile(r"_(nn|nt|tn)[nt]?(?=_|$)")
"""Of a product's factors, in the words of cuBLAS, which works column by column."""
BATCHED = ("aten.bmm", "aten.baddbmm")
_ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_flash_attention",
    "_efficient_attention",
    "scaled_dot_product_attention",
)

Key = tuple[str, str]
"""Layer and direction."""
NO_RULE = "no rule for this kernel"

_Own = tuple[Any, ...]
"""Name, grid, block and cluster of a launch: what a network repeats."""
_Facts = tuple[_Own, bool, _Own | None]
"""With whether the next launch adds up the parts of its sum; and of such a one, the launch
before it."""
_own = attrgetter(
    "name",
    "grid_x",
    "grid_y",
    "grid_z",
    "block_x",
    "block_y",
    "block_z",
    "cluster_x",
    "cluster_y",
)

_PRODUCTS = ("conv", "winograd", "fft", "depthwise", "gemm", "attention")
"""Families whose main kernels do a product."""
MACHINE_CODE = "machine code"
_OF_CODE = {"FADD": "fadd", "FMUL": "fmul", "FFMA": "ffma", TENSOR_FLOP: "tensor"}


def infer_uncounted_instructions(
    launch: Launch, counts: Mapping[str, float], candidate_works: Iterable[LaunchWork], batch: int
) -> DerivedInstructions | None:
    """All instructions of a launch, from some that were counted; None unless one work alone fits
    what was counted.

    ``counts``: instruction ("fadd", "fmul") -> how often it was executed. ``candidate_works``: what
    the launch may compute, each at ``batch`` samples.
    """
    counted = {name: counts[name] for name in _PER_OUTPUT if counts.get(name)}
    if not counted or counts.get("ffma") is not None:
        return None
    samples = (
        (work, _infer_sample_count_from_outputs(work, batch, value))
        for work in candidate_works
        for value in counted.values()
    )
    fitting = {
        scale_work_to_sample_count(work, batch, number)
        for work, number in samples
        if number is not None
    }
    results = {
        result
        for work in fitting
        if (result := derive_instructions(launch, work)) is not None
        and result.ffma is not None
        and all(getattr(result, name) == value for name, value in counted.items())
    }
    return results.pop() if len(results) == 1 else None


def scale_work_to_sample_count(work: LaunchWork, batch: int, samples: int) -> LaunchWork:
    """The work of ``samples`` samples in place of ``batch``."""
    shape = work.shape
    if isinstance(shape, GemmShape):
        return replace(work, shape=replace(shape, m=shape.m * samples // batch))
    return replace(work, shape=replace(shape, batch=shape.batch * samples // batch))


def _infer_sample_count_from_outputs(
    work: LaunchWork, batch: int, output_count: float
) -> int | None:
    """How many samples have ``output_count`` outputs; None where no whole number has."""
    shape = work.shape
    if isinstance(shape, AttentionShape):
        return None
    outputs = (
        shape.output_positions * shape.out_channels
        if isinstance(shape, ConvShape)
        else shape.batch * shape.m * shape.n
    )
    number = output_count * batch / outputs
    return int(number) if number == int(number) and 1 <= number <= LARGEST_BATCH else None


@dataclass(frozen=True, slots=True)
class LayerWork:
    """All that one layer computes in one direction."""

    products: tuple[LaunchWork, ...]
    sizes: frozenset[int]
    """Elements of the tensors that its operations read and write: what an elementwise kernel
    works on."""
    images: frozenset[tuple[int, ...]] = frozenset()
    """Shapes of the tensors that are images or filters: N x C x H x W."""
    rows: frozenset[RowWork] = frozenset()
    """What its operations sum, normalise or pool."""
    turns: tuple[LaunchWork, ...] = ()
    """The products in the order in which a step computes them; () where it is not known."""


def collect_layer_work(ops: Iterable[OpShape]) -> LayerWork:
    """The work of operations of one layer in one direction."""
    turns: list[LaunchWork] = []
    tensors: set[tuple[int, ...]] = set()
    rows = set()
    is_ordered = True
    for op in ops:
        tensors |= {tuple(shape) for shape in (*op.inputs, *op.outputs) if shape}
        works = list_gemm_conv_attention_work(op)
        turns += works
        is_ordered &= op.calls == 1 or not works
        if (row_shape := find_operation_rows_and_columns(op)) is not None:
            rows.add(row_shape)
    products = tuple(dict.fromkeys(turns))
    order = tuple(turns) if is_ordered and len(turns) > 1 else ()
    images = frozenset(shape for shape in tensors if len(shape) == 4)
    return LayerWork(products, frozenset(map(prod, tensors)), images, frozenset(rows), order)


def list_gemm_conv_attention_work(op: OpShape) -> tuple[LaunchWork, ...]:
    """The products of one operation: none, one, or the gradients of a convolution."""
    output = get_shape_or_empty(op.outputs, 0)
    if op.op in CONVOLUTION_GRADIENTS:
        return _list_convolution_gradient_work(op)
    if op.op in CONVOLUTIONS:
        source, weight, output = map(
            convert_conv1d_shape_to_2d,
            (get_shape_or_empty(op.inputs, 0), get_shape_or_empty(op.inputs, 1), output),
        )
        image = read_forward_conv2d_shape(op, source, weight, output)
        inside = _count_macs_inside_image(op, source, weight, output)
        return (LaunchWork(image, inside=inside),) if image else ()
    if op.op in LINEAR:
        factor = get_left_factor_shape(op)
        if not factor or not output:
            return ()
        onto = op.op in ("aten.addmm", "aten._addmm_activation")
        shape = GemmShape(prod(output[:-1]), output[-1], factor[-1])
        return (LaunchWork(shape, onto=onto, direction=str(op.attributes.get("role", "forward"))),)
    if op.op in BATCHED:
        factor = get_left_factor_shape(op)
        if len(factor) != 3 or len(output) != 3:
            return ()
        shape = GemmShape(output[1], output[2], factor[2], output[0])
        return (LaunchWork(shape, onto=op.op == "aten.baddbmm"),)
    work = _read_attention_work(op)
    return (work,) if work else ()


def convert_conv1d_shape_to_2d(shape: Shape) -> Shape:
    """PyTorch runs a 1-D convolution as one of height 1."""
    return (*shape[:2], 1, *shape[2:]) if len(shape) == 3 else shape


def read_forward_conv2d_shape(
    op: OpShape, source: Shape, weight: Shape, output: Shape
) -> ConvShape | None:
    """A 2-d convolution, forward; None for others and transposed ones."""
    if op.attributes.get("transposed") or not len(source) == len(weight) == len(output) == 4:
        return None
    groups = int(str(op.attributes.get("groups", 1)))
    same = set(read_integers_of_attribute(op, "stride")) == {1} and source[2:] == output[2:]
    return ConvShape(output[0], source[1], *output[1:], *weight[2:], groups, same_size=same)


def _count_macs_inside_image(
    op: OpShape, source: Shape, weight: Shape, output: Shape
) -> int | None:
    share = compute_macs_share_inside_image(op, source, weight, output)
    return None if share is None else round(share * output[0] * prod(output[2:]) * prod(weight))


def compute_macs_share_inside_image(
    op: OpShape, source: Shape, weight: Shape, output: Shape
) -> float | None:
    """Taps of a 2-d convolution's filter that fall on the image, of all that paper counts; None
    when not known."""
    steps = [read_integers_of_attribute(op, name) for name in ("stride", "padding", "dilation")]
    is_complete = len(source) == len(weight) == len(output) == 4 and all(
        len(step) == 2 for step in steps
    )
    if op.attributes.get("transposed") or not is_complete:
        return None
    share = 1.0
    for axis in (0, 1):
        stride, pad, dilation = (step[axis] for step in steps)
        size, taps, outs = source[2 + axis], weight[2 + axis], output[2 + axis]
        hits = sum(
            0 <= output_index * stride - pad + tap * dilation < size
            for output_index in range(outs)
            for tap in range(taps)
        )
        share *= hits / (outs * taps) if outs and taps else 1.0
    return share


def _list_convolution_gradient_work(op: OpShape) -> tuple[LaunchWork, ...]:
    """Of a convolution: inputs are grad_output, input and weight. The gradient of the input, at
    stride 1, is a convolution with the channels exchanged; that of the weight multiplies channels
    out by filters, summed over all outputs."""
    grad, source, weight = (
        convert_conv1d_shape_to_2d(get_shape_or_empty(op.inputs, index)) for index in range(3)
    )
    forward, strides = (
        read_forward_conv2d_shape(op, source, weight, grad),
        read_integers_of_attribute(op, "stride"),
    )
    if forward is None:
        return ()
    # where none is stated: an output as large as the input has stride 1
    stride = max(strides) if strides else 1 if source[2:] == grad[2:] else None
    forward = replace(forward, same_size=stride == 1 and source[2:] == grad[2:])
    inside = _count_macs_inside_image(op, source, weight, grad)
    mask = (
        read_integers_of_attribute(op, "output_mask")
        or tuple(int(shape is not None) for shape in op.outputs)
        or (1, 1)
    )
    shapes: dict[str, ConvShape | GemmShape] = {
        "grad_input": replace(
            forward.input_gradient_for_equal_sizes, out_h=source[2], out_w=source[3]
        ),
        "grad_weight": forward.weight_gradient_gemm,
    }
    return tuple(
        LaunchWork(shape, direction=direction, forward=forward, stride=stride, inside=inside)
        for (direction, shape), is_required in zip(shapes.items(), mask, strict=False)
        if is_required
    )


def _read_attention_work(op: OpShape) -> LaunchWork | None:
    _, _, name = op.op.partition(".")
    backward = name.endswith("_backward")
    if name.removesuffix("_backward").removesuffix("_forward") not in _ATTENTION:
        return None
    if "mask" in op.attributes and op.op.startswith("aten."):
        return None  # its kernel skips tiles
    # ATen's backward has the gradient of the output before them
    first = int(backward and op.op.startswith("aten."))
    query, key, value = (get_shape_or_empty(op.inputs, first + index) for index in range(3))
    if not len(query) == len(key) == len(value) == 4:
        return None
    batch, heads, queries, width = query
    causal = bool(op.attributes.get("is_causal"))
    return LaunchWork(
        AttentionShape(batch, heads, queries, key[2], width, value[3], causal, backward)
    )


NOTHING_KNOWN = LayerWork((), frozenset())


def derive_launch_instructions(
    launches: Sequence[tuple[Kernel, Key | None]],
    ops: Sequence[OpShape],
    capability: str | None = None,
) -> dict[int, DerivedInstructions]:
    """Launch -> its instructions, for launches of layers with a rule for their kernel.

    ``capability``: of the GPU, "8.0"; kernels whose code differs between architectures have no rule
    without it.
    """
    sides = group_by(
        (op for op in ops if op.direction in ("forward", "backward")),
        attrgetter("layer", "direction"),
    )
    works: dict[Key | None, LayerWork] = {
        side: collect_layer_work(side_ops) for side, side_ops in sides.items()
    }
    tensors = list_parameter_sizes(ops)
    caches: dict[Key | None, dict[_Facts, DerivedInstructions | None]] = {}
    derived: dict[int, DerivedInstructions] = {}
    products: dict[Key | None, list[tuple[int, _Facts]]] = defaultdict(list)
    for number, facts, key in _yield_layer_launches_with_neighbors(launches):
        side = key and (key[0], "forward" if key[1] in ("forward", "recompute") else "backward")
        work = works.get(side, NOTHING_KNOWN)
        if (cache := caches.get(key)) is None:
            cache = caches[key] = _get_shared_counts_cache(work, capability)
        if facts not in cache:
            cache[facts] = _derive_unambiguous_launch_counts(
                _build_launch(*facts), work, capability
            )
        counts, name = cache[facts], facts[0][0]
        if counts is None and match_foreach_tensor_lists(name) is not None:
            counts = derive_foreach_kernel(_build_launch(*facts), tensors, capability)
        if counts is not None:
            derived[number] = counts
        is_turn = work.turns and key is not None and key[1] != "recompute"
        if is_turn and _is_product_kernel(name):
            products[side].append((number, facts))
    return derived | _derive_ambiguous_products_by_order(products, works, derived)


def _derive_ambiguous_products_by_order(
    products: Mapping[Key | None, Sequence[tuple[int, _Facts]]],
    works: Mapping[Key | None, LayerWork],
    derived: Mapping[int, DerivedInstructions],
) -> dict[int, DerivedInstructions]:
    """Launch -> its counts, for products whose grid fits several of the layer's: each launch does
    the one whose turn it is, if all that have counts do."""
    by_turn: dict[int, DerivedInstructions] = {}
    for side, launches in products.items():
        turns = works[side].turns
        if len(launches) % len(turns) or all(number in derived for number, _ in launches):
            continue
        once: dict[tuple[_Facts, int], DerivedInstructions | None] = {}
        in_turn: dict[int, DerivedInstructions | None] = {}
        for (number, facts), turn in zip(sorted(launches), cycle(range(len(turns))), strict=False):
            if (facts, turn) not in once:
                once[facts, turn] = derive_instructions(_build_launch(*facts), turns[turn])
            in_turn[number] = once[facts, turn]
        if all(number not in derived or derived[number] == in_turn[number] for number in in_turn):
            by_turn |= {number: counts for number, counts in in_turn.items() if counts is not None}
    return by_turn


def _is_product_kernel(name: str) -> bool:
    algorithm = recognise_kernel(name)
    return algorithm.role == "main" and algorithm.family in _PRODUCTS


def _yield_layer_launches_with_neighbors(
    launches: Sequence[tuple[Kernel, Key | None]],
) -> Iterator[tuple[int, _Facts, Key | None]]:
    """(number, launch, layer and direction), each with what the launches before and after it in its
    layer say of it."""
    names = {kernel.name for kernel, _ in launches}
    reduces = {name: "splitkreduce" in name.lower() for name in names}
    for key, layer_launches in group_by(launches, itemgetter(1)).items():
        kernels = sorted((kernel for kernel, _ in layer_launches), key=attrgetter("launch"))
        before: _Own | None = None
        for kernel, following in zip_longest(kernels, kernels[1:]):
            kernel_facts = _own(kernel)
            is_reduced = following is not None and reduces[following.name]
            facts = kernel_facts, is_reduced, before if reduces[kernel.name] else None
            yield kernel.launch, facts, key
            before = kernel_facts


def _build_launch(
    kernel_facts: _Own, is_reduced: bool | None = None, before: _Own | None = None
) -> Launch:
    name, grid_x, grid_y, grid_z, block_x, block_y, block_z, cluster_x, cluster_y = kernel_facts
    grid = None if grid_x is None else (grid_x, grid_y or 1, grid_z or 1)
    block = None if block_x is None else (block_x, block_y or 1, block_z or 1)
    cluster = None if cluster_x is None else (cluster_x, cluster_y or 1)
    product = None if before is None else _build_launch(before)
    return Launch(name, grid, block, cluster, reduced=is_reduced, before=product)


@lru_cache(maxsize=256)
def _get_shared_counts_cache(
    work: LayerWork, capability: str | None
) -> dict[_Facts, DerivedInstructions | None]:
    """Launch -> its counts in a layer of this work, as far as somebody asked: runs of one model ask
    for the same again."""
    return {}


def _derive_unambiguous_launch_counts(
    launch: Launch, work: LayerWork, capability: str | None
) -> DerivedInstructions | None:
    """The counts of a launch, where all products that its grid fits say the same, or those that its
    layout allows."""
    by_product = [
        (product, result)
        for product in work.products
        if (result := derive_instructions(launch, product)) is not None
    ]
    results = {result for _, result in by_product}
    if _has_different_counts(results):
        results = {
            result
            for product, result in by_product
            if _is_layout_consistent_with_work(launch, product)
        }
    if _has_different_counts(results):
        return None
    if results:
        return min(results, key=attrgetter("rule"))
    rows = derive_row_kernel(launch, work.rows)
    return rows or derive_pointwise_kernel(
        launch, recognise_kernel(launch.name), work.sizes, capability, work.images
    )


def _has_different_counts(results: Iterable[DerivedInstructions]) -> bool:
    return len({(result.ffma, result.fmul, result.fadd, result.tensor) for result in results}) > 1


def _is_layout_consistent_with_work(launch: Launch, work: LaunchWork) -> bool:
    """Whether a product of a Linear layer has the layout that its kernel's name states: only the
    weight's gradient is a sum over rows of both factors, which cuBLAS calls nt."""
    layout = _LAYOUT.search((launch.before or launch).name.lower())
    if layout is None or work.forward is not None:
        return True
    return (layout[1] == "nt") == (work.direction == "grad_weight")


def build_instructions_from_code_counts(
    rows: Iterable[DerivedCount],
) -> dict[int, DerivedInstructions]:
    """Return launch -> instructions that perfctl 1.0.0 read from its kernel's code.

    Without launches that have a lower bound, or arithmetic in other types than fp32 and tensor
    cores.
    """
    derived = {}
    for launch, launch_rows in group_by(rows, attrgetter("launch")).items():
        by_name = {
            _OF_CODE[row.instruction]: row for row in launch_rows if row.instruction in _OF_CODE
        }
        if any(
            "at least" in row.rule
            or (row.instruction not in _OF_CODE and "MMA" not in row.instruction)
            for row in launch_rows
        ):
            continue
        rule = "; ".join(
            f"{name.upper()} {row.rule.removeprefix(f'{CODE}: ')}" for name, row in by_name.items()
        )
        values: dict[str, Any] = dict.fromkeys(("ffma", "fmul", "fadd"), 0)
        values |= {name: row.value or 0 for name, row in by_name.items()}
        derived[launch] = DerivedInstructions(MACHINE_CODE, f"{CODE}: {rule}", **values)
    return derived


@dataclass(frozen=True, slots=True)
class RuleCoverage:
    """How much of the kernel time a run's derived counts of products stand for, and how well their
    rules are known."""

    share: float
    """Of the kernel time, 0..1: launches whose multiply-adds a rule gives."""
    verified: float
    """Of the time that ``share`` covers, 0..1: launches by rules that were checked
    against counters."""
    within: float
    """Largest error of the verified rules that were used, on 95 of 100 launches."""
    chips: tuple[str, ...]


def compute_rule_kernel_time_coverage(
    kernels: Iterable[Kernel], derived: Mapping[int, DerivedInstructions]
) -> RuleCoverage | None:
    """None where no launch has a duration, or no product a rule."""
    total = ruled = verified_ns = within = 0.0
    chips: dict[str, None] = {}
    for kernel in kernels:
        took, result = kernel.duration_ns or 0, derived.get(kernel.launch)
        total += took
        if result is not None and (result.ffma or result.tensor):
            ruled += took
            if (stated := read_rule_verifications().get(result.family)) is not None:
                verified_ns += took
                within = max(within, stated.within)
                chips[stated.chip] = None
    if not ruled:
        return None
    return RuleCoverage(ruled / total, verified_ns / ruled, within, tuple(chips))


def convert_instructions_to_flops(derivation: DerivedInstructions) -> KernelFlops:
    """The launch's FLOPs by path, all of them derived."""
    rule = f"{derivation.rule} ({describe_rule_error(derivation.family)})"
    nothing = Figure(0, "derived", rule)
    fp32, tensor = nothing, nothing
    if derivation.ffma is not None:
        lacking = tuple(name for name in ("fmul", "fadd") if getattr(derivation, name) is None)
        value = 2 * derivation.ffma + (derivation.fmul or 0) + (derivation.fadd or 0)
        fp32 = Figure(value, "derived", rule, missing=lacking)
    elif derivation.tensor is not None:  # scaling and sums of the epilogue are in no rule
        fp32 = make_missing_figure(
            "not_available", "no rule for the work of a tensor kernel outside of its GEMMs"
        )
    if derivation.tensor is not None and derivation.math not in INTEGER:
        tensor = Figure(derivation.tensor, "derived", rule)
    parts = (*fp32.missing, *(("fp32",) if fp32.value is None else ()))
    total = Figure((fp32.value or 0) + (tensor.value or 0), "derived", rule, missing=parts)
    types = ((derivation.math, tensor),) if derivation.math and tensor.value else ()
    return KernelFlops(fp32, nothing, nothing, tensor, total, types)


def convert_instructions_to_counter_values(derived: DerivedInstructions) -> dict[str, float | None]:
    """The launch's instructions under the names of the counters that would have counted them."""
    values: dict[str, float | None] = {
        f"sm__{make_instruction_counter_name(name)}": value
        for name in ("ffma", "fmul", "fadd")
        if (value := getattr(derived, name)) is not None
    }
    if derived.tensor is not None:
        values[f"{PREFIX}src_{derived.math or 'fp16'}.sum"] = derived.tensor
    return values
