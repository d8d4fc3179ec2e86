"""PyTorch's kernels whose work follows from the shapes of one operation: pooling and dropout, and
what works on rows (sums and means, softmax, layer norm and batch norm).

What each does with an element, a thread and a block follows from its source (``Reduce.cuh``,
``PersistentSoftmax.cuh``, ``layer_norm_kernel.cu``, ``Normalization.cuh``) and from the loops of
its machine code in torch 2.14.1, which are the same for sm_75, sm_80, sm_90 and sm_100. Of those, a
sum and a softmax were counted on an A100; the norms are not verified on hardware.

Pooling and dropout: instructions of an output, a pair of an output and an input of its window, or
an element, from the loops of their machine code in torch 2.14.1 (sm_80). None is verified
on hardware.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from math import ceil, prod
from typing import NamedTuple

from perfctl.orchestrator.counts.derived.records import DerivedInstructions, Launch, RowWork
from perfctl.orchestrator.counts.kernels.grids import Grid
from perfctl.orchestrator.estimate.flops.formulas import get_shape_or_empty
from perfctl.records.paper import OpShape

Rule = Callable[[Launch, RowWork, re.Match[str]], DerivedInstructions | None]
"""A launch, what its operation works on, and what was read in the kernel's name."""

WARP = 32
_CODE = "from the machine code of torch 2.14.1"

_SUMS = ("sum", "mean")
_SOFTMAX = (
    "_softmax",
    "_log_softmax",
    "_safe_softmax",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
)
_LAYER_NORM = ("native_layer_norm", "native_layer_norm_backward")
_BATCH_NORM = (
    "native_batch_norm",
    "native_batch_norm_backward",
    "_native_batch_norm_legit",
    "cudnn_batch_norm",
    "cudnn_batch_norm_backward",
    "_batch_norm_with_update",
    "batch_norm_backward",
)
_AVERAGE = ("avg_pool2d", "avg_pool2d_backward")
_MAX = ("max_pool2d_with_indices", "max_pool2d_with_indices_backward")
_HALF = ("c10::Half", "c10::BFloat16")
CONVOLUTION_GRADIENTS = ("aten.convolution_backward", "aten.convolution_backward_overrideable")
_TYPE = r"(?:float|c10::Half|c10::BFloat16)"
_DROPOUT = (
    rf"fused_dropout_kernel_vec<{_TYPE}, ?float, ?unsigned \w+, ?(?:\(int\))?\d+, "
    r"?(?:\(int\))?(\d+),"
)
_NO, _YES = r"(?:\(bool\))?(?:false|0)", r"(?:\(bool\))?(?:true|1)"


def find_operation_rows_and_columns(op: OpShape) -> RowWork | None:
    """Return what one operation sums, normalises, turns into probabilities, pools or drops; None if
    it does none of these, or if its windows differ in size."""
    name = op.op.removeprefix("aten.")
    source, output = get_shape_or_empty(op.inputs, 0), get_shape_or_empty(op.outputs, 0)
    if name == "native_dropout" and output:
        return RowWork("dropout", prod(output), 1)
    if name in _MAX:  # an output's gradient goes to one input
        return RowWork("max_pool", prod(source if name.endswith("_backward") else output), 1)
    if name in _AVERAGE:
        return _find_average_pool_rows(op, name.endswith("_backward"))
    if not source or not prod(source):
        return None
    if name == "_adaptive_avg_pool2d":
        sides = zip(source[-2:], output[-2:], strict=True)
        if len(source) < 3 or any(size % part for size, part in sides):
            return None
        return RowWork("adaptive_pool", prod(output), prod(source) // prod(output))
    if op.op in CONVOLUTION_GRADIENTS and get_shape_or_empty(op.outputs, 2):  # of the bias
        return RowWork("sum", source[1], prod(source) // source[1])
    if name in _SUMS and op.outputs and op.outputs[0] is not None:
        sums = prod(output)
        return (
            RowWork("sum", sums, prod(source) // sums)
            if sums and prod(source) % sums == 0
            else None
        )
    if name in _SOFTMAX:
        return RowWork("softmax", prod(source[:-1]), source[-1])
    if name in _LAYER_NORM:
        is_forward = name == "native_layer_norm"
        statistics = (
            get_shape_or_empty(op.outputs, 1) if is_forward else get_shape_or_empty(op.inputs, 2)
        )
        rows = prod(statistics)
        learned = (1, 2) if is_forward else (4,)  # weight and bias; weight
        affine = all(get_shape_or_empty(op.inputs, index) for index in learned)
        if not statistics or not rows:
            return None
        return RowWork("layer_norm", rows, prod(source) // rows, affine=affine)
    if name in _BATCH_NORM and len(source) > 1:
        training = bool(op.attributes.get("training", op.attributes.get("train", True)))
        return RowWork("batch_norm", source[1], prod(source) // source[1], training=training)
    return None


def _find_average_pool_rows(op: OpShape, backward: bool) -> RowWork | None:
    """Return the outputs and the window of an average; None with padding, or if a window leaves the
    image: windows then differ in size."""
    outputs, inputs = (
        (get_shape_or_empty(op.inputs, index) for index in (0, 1))
        if backward
        else (get_shape_or_empty(op.outputs, 0), get_shape_or_empty(op.inputs, 0))
    )
    window = _read_pair_attribute(op.attributes, "kernel_size")
    stride = _read_pair_attribute(op.attributes, "stride") or window
    if (
        not outputs
        or not inputs
        or len(window) != 2
        or any(_read_pair_attribute(op.attributes, "padding"))
    ):
        return None
    ends = (
        (count - 1) * step + size
        for count, step, size in zip(outputs[-2:], stride, window, strict=True)
    )
    inside = all(end <= full_size for end, full_size in zip(ends, inputs[-2:], strict=True))
    return RowWork("average_pool", prod(outputs), prod(window)) if inside else None


def _read_pair_attribute(attributes: Mapping[str, object], name: str) -> tuple[int, ...]:
    value = attributes.get(name)
    if isinstance(value, int):
        return (value, value)
    return (
        tuple(int(str(size)) for size in value) * (2 // len(value))
        if isinstance(value, list | tuple) and value
        else ()
    )


class _InstructionCounts(NamedTuple):
    """Instructions of a launch."""

    ffma: float = 0
    fmul: float = 0
    fadd: float = 0

    def scale(self, number: float) -> _InstructionCounts:
        return _InstructionCounts(self.ffma * number, self.fmul * number, self.fadd * number)

    def add_counts(self, *addends: _InstructionCounts) -> _InstructionCounts:
        return _InstructionCounts(*(sum(values) for values in zip(self, *addends, strict=True)))


EXP = _InstructionCounts(4, 1, 1)
"""e to the power of a value, as nvcc compiles it; the last FMUL becomes an FFMA where the result is
added to a sum."""
DIVIDE = _InstructionCounts(5, 0, 0)
"""A quotient on its usual path. The one build that was counted (PyTorch 1.13, an A100) fits 7; its
code was not seen."""
LOG = _InstructionCounts(11, 1, 1)
RECIPROCAL = _InstructionCounts(2, 0, 1)


def derive_row_kernel(launch: Launch, rows: Collection[RowWork]) -> DerivedInstructions | None:
    """Return the instructions of a kernel that works on rows; None if it is another kernel or fits
    no shape, or several."""
    kind, rule, match = _find_row_rule_for_kernel(launch.name)
    if rule is None or match is None:
        return None
    shapes = (shape for shape in rows if shape.kind == kind)
    results = {result for shape in shapes if (result := rule(launch, shape, match)) is not None}
    return (
        results.pop()
        if len({(derived.ffma, derived.fmul, derived.fadd) for derived in results}) == 1
        else None
    )


def _round_into_derived_instructions(
    family: str, rule: str, counts: _InstructionCounts
) -> DerivedInstructions:
    return DerivedInstructions(
        family, rule, round(counts.ffma), round(counts.fmul), round(counts.fadd)
    )


def _derive_from_rows(
    family: str,
    work: RowWork,
    per_element: _InstructionCounts,
    per_row: _InstructionCounts,
    rule_suffix: str = "",
) -> DerivedInstructions:
    """Return the counts of ``per_element`` for each element and of ``per_row`` for each row, with
    what the latter are in words."""
    counted = ((per_element.ffma, "FFMA"), (per_element.fmul, "FMUL"), (per_element.fadd, "FADD"))
    counts = ", ".join(f"{value:g} {name}" for value, name in counted if value)
    rule = f"{counts} for each of {work.rows * work.columns:,} elements{rule_suffix}, {_CODE}"
    total = per_element.scale(work.columns).add_counts(per_row).scale(work.rows)
    return _round_into_derived_instructions(family, rule, total)


def _derive_warp_softmax(
    launch: Launch, shape: RowWork, match: re.Match[str]
) -> DerivedInstructions | None:
    """A warp for one or two rows of up to 2,048 elements, filled up to a power of two; all of it is
    exponentiated and summed."""
    if match[4] in ("true", "1"):
        return None
    padded = 2 ** int(match[2])
    lanes, rows_per_warp = min(padded, WARP), 2 if padded <= 128 else 1
    per_block = 128 // lanes * rows_per_warp
    blocks = launch.grid[0] if launch.grid else 0
    if not padded // 2 < shape.columns <= padded or ceil(shape.rows / per_block) != blocks:
        return None
    filled, real = blocks * per_block * padded, shape.rows * shape.columns
    shuffles = _InstructionCounts(fadd=blocks * per_block * lanes * (lanes.bit_length() - 1))
    logarithm = match[3] in ("true", "1")
    if match[1] == "backward":
        element = EXP.add_counts(_InstructionCounts(1)) if logarithm else _InstructionCounts(1)
        counts = _InstructionCounts(fadd=filled).add_counts(shuffles, element.scale(real))
        rule = f"a sum over {filled:,} filled elements, {element.ffma:g} FFMA for each of {real:,}"
    elif logarithm:
        element = _InstructionCounts(EXP.ffma + 1, 0, 2)
        counts = element.scale(filled).add_counts(
            shuffles, LOG.scale(shape.rows * lanes), _InstructionCounts(fadd=real)
        )
        rule = (
            f"{element.ffma:g} FFMA and {element.fadd:g} FADD for each of {filled:,} filled "
            "elements, a logarithm in each lane"
        )
    else:
        counts = (
            EXP.add_counts(_InstructionCounts(fadd=2))
            .scale(filled)
            .add_counts(shuffles, DIVIDE.scale(real))
        )
        rule = (
            f"an exponential for each of {filled:,} filled elements, a quotient for each of "
            f"{real:,}"
        )
    family = f"{'log ' if logarithm else ''}softmax{' backward' if match[1] == 'backward' else ''}"
    return _round_into_derived_instructions(family, f"{rule}, {_CODE}", counts)


def _derive_block_softmax(
    launch: Launch, shape: RowWork, match: re.Match[str]
) -> DerivedInstructions | None:
    """A block for a row: exponentials summed, then made again for the output, or its logarithm
    taken off."""
    threads = _count_row_block_threads(launch, shape)
    if threads is None:
        return None
    first = _InstructionCounts(EXP.ffma + 1, 0, EXP.fadd + 1)
    second = (
        _InstructionCounts(fadd=2)
        if match[1]
        else EXP.add_counts(DIVIDE, _InstructionCounts(fadd=1))
    )
    row = _InstructionCounts(fadd=5 * (threads + WARP)).add_counts(
        LOG.scale(threads if match[1] else 0)
    )
    family = f"{'log ' if match[1] else ''}softmax by block"
    also = f", a sum over each row's {threads:,} threads"
    return _derive_from_rows(family, shape, first.add_counts(second), row, also)


def _derive_sum_or_mean(
    launch: Launch, shape: RowWork, match: re.Match[str]
) -> DerivedInstructions | None:
    """A sum or mean of ``columns`` values for each of ``rows`` outputs, with the block and grid
    that PyTorch gives it."""
    if match[3] not in ("float", *_HALF):
        return None
    operation = match[4].lower()
    mean = operation.startswith(("at::native::meanops", "meanops"))
    if not mean and "sum_functor" not in operation.split("unsigned int")[0]:
        return None
    wide = re.search(
        r"(?:float|c10::\w+), ?(?:\(int\))?(\d+)(?:, ?(?:\(int\))?(\d+))?>>",
        match[4].replace("> >", ">>"),
    )
    if wide is None or launch.grid is None or launch.block is None:
        return None
    sums = int(match[2]), int(wide[1]), int(wide[2] or wide[1])
    fitting = [
        (counts, inner)
        for inner in (True, False)
        if (counts := _count_reduction_additions(launch.grid, launch.block, shape, inner, *sums))
        is not None
    ]
    if len({counts for counts, _ in fitting}) != 1:
        return None
    counts, inner = fitting[-1]
    if mean:
        counts = counts.add_counts(_InstructionCounts(fmul=shape.rows))
    rule = (
        f"{shape.rows:,} {'means' if mean else 'sums'} of {shape.columns:,}: {counts.fadd:,.0f} "
        "FADD for"
    )
    rule += " the values, the partial sums of each thread and those between threads"
    return _round_into_derived_instructions(
        f"{'mean' if mean else 'sum'}{' of neighbours' if inner else ''}", rule, counts
    )


def _count_reduction_additions(
    grid: Grid,
    block: Grid,
    shape: RowWork,
    is_contiguous: bool,
    outputs_per_thread: int,
    partial_sums_per_thread: int,
    vector_width: int,
) -> _InstructionCounts | None:
    """FADD by ``setReduceConfig`` and ``ReduceOp`` of Reduce.cuh; None where they give another
    block or grid.

    ``is_contiguous``: the values of a sum lie side by side.
    """
    columns, rows = shape.columns, shape.rows
    wide = is_contiguous and columns >= 128
    if (is_contiguous and outputs_per_thread > 1) or rows % outputs_per_thread:
        return None
    x = (
        columns // vector_width
        if wide
        else columns
        if is_contiguous
        else rows // outputs_per_thread
    )
    width, height = _choose_block_size(
        x, rows if is_contiguous else columns, 512 // outputs_per_thread
    )
    if (width, height) != block[:2]:
        return None
    steps, across = width if is_contiguous else 1, 1 if is_contiguous else width
    split = ceil(columns / steps) >= min(height * 16, 256)
    steps, across = (steps * height, across) if split else (steps, across * height)
    parts = grid[1]
    if ceil(rows // outputs_per_thread / across) != grid[0] or (parts > 1 and not split):
        return None
    partial = vector_width if wide else partial_sums_per_thread
    threads = rows * min(columns, steps * parts)
    within = (_count_block_additions(width, height) if is_contiguous else 0) + (
        width * (height - 1) * outputs_per_thread if split else 0
    )
    added = rows * columns + threads * (partial - 1) + grid[0] * parts * within
    if parts > 1:  # the last block of each output adds up the others
        once_more = _count_block_additions(width, height) if is_contiguous else 0
        added += rows * parts + grid[0] * (width * (height - 1) * outputs_per_thread + once_more)
    return _InstructionCounts(fadd=added)


def _choose_block_size(x: int, y: int, max_threads: int) -> tuple[int, int]:
    """``set_block_dimension``: powers of two, x for lanes of a warp first."""
    x, y = (min(max_threads, 2 ** (max(size, 1).bit_length() - 1)) for size in (x, y))
    height = min(y, max_threads // min(x, WARP))
    return min(x, max_threads // height), height


def _count_block_additions(width: int, height: int) -> int:
    """FADD of a block whose threads in x add up: in shared memory down to a warp, then by shuffles
    of all threads."""
    return height * (max(width - WARP, 0) + width * (min(width, WARP).bit_length() - 1))


def _derive_layer_norm(
    launch: Launch, shape: RowWork, match: re.Match[str]
) -> DerivedInstructions | None:
    """Welford's mean and variance with a reciprocal for each element, then scale and shift; a block
    for a row."""
    threads = _count_row_block_threads(launch, shape)
    if threads is None or launch.block is None or shape.columns % 4 or not shape.affine:
        return None
    if shape.columns < 4 * threads:  # lanes without values skip their part of the tree
        return None
    element = _InstructionCounts(2, 0, 3).add_counts(RECIPROCAL, _InstructionCounts(1, 1, 1))
    merges = threads * 5 + WARP * (launch.block[1] - 1)
    row = _InstructionCounts(2, 5, 3).add_counts(RECIPROCAL).scale(merges)
    row = row.add_counts(DIVIDE.scale(threads), _InstructionCounts(fadd=threads))
    also = f", {merges:,} merges of partial results for each row"
    return _derive_from_rows("layer norm", shape, element, row, also)


def _derive_layer_norm_backward(
    launch: Launch, shape: RowWork, match: re.Match[str]
) -> DerivedInstructions | None:
    """Gradient of the input: two sums over a row, then an element at a time; a block for a row."""
    threads = _count_row_block_threads(launch, shape)
    if threads is None or shape.columns % 4:
        return None
    element = _InstructionCounts(2, 6 if shape.affine else 4, 4)
    row = _InstructionCounts(fadd=10 * (threads + WARP)).add_counts(
        RECIPROCAL.add_counts(_InstructionCounts(fmul=1)).scale(threads)
    )
    return _derive_from_rows("layer norm backward", shape, element, row, ", two sums over each row")


def _count_row_block_threads(launch: Launch, shape: RowWork) -> int | None:
    """Return the threads of a block; None unless each row has a block."""
    if launch.block is None or launch.grid != (shape.rows, 1, 1):
        return None
    return launch.block[0] * launch.block[1]


def _derive_batch_norm_statistics(
    launch: Launch, shape: RowWork, match: re.Match[str]
) -> DerivedInstructions | None:
    """Welford's mean and variance of each channel, with a quotient for each element; a block for
    a channel."""
    threads = _count_row_block_threads(launch, shape)
    if threads is None:
        return None
    merges = 5 * (threads + WARP)
    row, also = (
        _InstructionCounts(2, 5, 2).add_counts(RECIPROCAL).scale(merges),
        f", {merges:,} merges each channel",
    )
    return _derive_from_rows(
        "batch norm statistics", shape, DIVIDE.add_counts(_InstructionCounts(1, 0, 3)), row, also
    )


def _derive_batch_norm_transform(
    launch: Launch, shape: RowWork, match: re.Match[str]
) -> DerivedInstructions | None:
    """A difference, a product and a multiply-add for each element; a block of x for a channel."""
    if not launch.grid or launch.grid[0] != shape.rows:
        return None
    return _derive_from_rows(
        "batch norm transform", shape, _InstructionCounts(1, 1, 1), _InstructionCounts()
    )


def _derive_batch_norm_backward(
    launch: Launch, shape: RowWork, match: re.Match[str]
) -> DerivedInstructions | None:
    """Two sums over a channel, then the gradient of the input; a block for a channel."""
    threads = _count_row_block_threads(launch, shape)
    if threads is None or not shape.training:
        return None
    half = any(kind in launch.name for kind in _HALF)
    element = _InstructionCounts(1, 2, 5) if half else _InstructionCounts(2, 1, 4)
    row = RECIPROCAL.add_counts(_InstructionCounts(fmul=5)).scale(threads)
    row = row.add_counts(
        _InstructionCounts(fadd=8 * threads + 2 * ceil(threads / WARP) + 10 * WARP)
    )
    return _derive_from_rows(
        "batch norm backward", shape, element, row, ", two sums over each channel"
    )


def _make_pooling_rule(
    per_output: _InstructionCounts, per_window_input: _InstructionCounts
) -> Rule:
    """Return the rule of a pooling kernel: instructions of an output, and of a pair of an output
    and an input of its window."""

    def derive_pooling(
        launch: Launch, shape: RowWork, match: re.Match[str]
    ) -> DerivedInstructions | None:
        """Outputs of a layer whose windows have the same size."""
        counts = per_output.add_counts(per_window_input.scale(shape.columns)).scale(shape.rows)
        text = f"{shape.rows:,} outputs of {shape.columns:,} inputs, {_CODE}"
        return _round_into_derived_instructions(shape.kind.replace("_", " "), text, counts)

    return derive_pooling


def _derive_dropout(
    launch: Launch, shape: RowWork, match: re.Match[str]
) -> DerivedInstructions | None:
    """A random number and two products for each element, a reciprocal in each thread that has
    elements."""
    if launch.grid is None or launch.block is None:
        return None
    threads = min(launch.grid[0] * launch.block[0], ceil(shape.rows / int(match[1])))
    row = RECIPROCAL.scale(threads / shape.rows)
    return _derive_from_rows("dropout", shape, _InstructionCounts(1, 2), row)


_BY_NAME: tuple[tuple[str, Rule, str], ...] = (
    (
        "softmax",
        _derive_warp_softmax,
        r"softmax_warp_(forward|backward)<[\w:]+, ?[\w:]+, ?float, ?(?:\(int\))?(\d+), "
        r"?(?:\(bool\))?(\w+), ?(?:\(bool\))?(\w+)[,>]",
    ),
    (
        "softmax",
        _derive_block_softmax,
        r"cunn_SoftMaxForward(?:Smem)?<(?:\(int\))?\d+, ?[\w:]+, ?float, ?[\w:]+, "
        "?[^>]*?(Log)?SoftMaxForwardEpilogue",
    ),
    (
        "sum",
        _derive_sum_or_mean,
        r"reduce_kernel<(?:\(int\))?(\d+), ?(?:\(int\))?(\d+), .*?ReduceOp<(\w+|c10::\w+), ?(.*)",
    ),
    (
        "layer_norm",
        _derive_layer_norm,
        rf"vectorized_layer_norm_kernel<{_TYPE}, ?float(?:, ?{_NO})?>",
    ),
    (
        "layer_norm",
        _derive_layer_norm_backward,
        rf"layer_norm_grad_input_kernel_vectorized<{_TYPE}, ?float(?:, ?{_NO})?>",
    ),
    (
        "batch_norm",
        _derive_batch_norm_statistics,
        rf"batch_norm_collect_statistics_kernel<[\w:]*InvStd, ?{_TYPE}, ?{_TYPE}, ?float, ?int",
    ),
    (
        "batch_norm",
        _derive_batch_norm_transform,
        rf"batch_norm_transform_input_kernel<{_TYPE}, ?{_TYPE}, ?float, ?{_YES}, ?int",
    ),
    (
        "batch_norm",
        _derive_batch_norm_backward,
        rf"batch_norm_backward_kernel<{_TYPE}, ?{_TYPE}, ?float, ?int",
    ),
    (
        "average_pool",
        _make_pooling_rule(_InstructionCounts(5), _InstructionCounts(fadd=1)),
        rf"avg_pool2d_out_cuda_frame<{_TYPE}",
    ),
    (
        "average_pool",
        _make_pooling_rule(_InstructionCounts(), _InstructionCounts(5, 0, 1)),
        rf"avg_pool2d_backward_out_cuda_frame<{_TYPE}",
    ),
    (
        "adaptive_pool",
        _make_pooling_rule(_InstructionCounts(10), _InstructionCounts(fadd=1)),
        rf"adaptive_average_pool<{_TYPE}",
    ),
    (
        "max_pool",
        _make_pooling_rule(_InstructionCounts(fadd=1), _InstructionCounts()),
        rf"max_pool_backward_nchw<{_TYPE}",
    ),
    ("dropout", _derive_dropout, _DROPOUT),
)
"""Kind of rows, rule, and pattern of the names of its kernels."""
_RULES = tuple((kind, rule, re.compile(pattern)) for kind, rule, pattern in _BY_NAME)


@lru_cache(maxsize=4096)
def _find_row_rule_for_kernel(name: str) -> tuple[str, Rule | None, re.Match[str] | None]:
    for kind, rule, pattern in _RULES:
        if (match := pattern.search(name)) is not None:
            return kind, rule, match
    return "", None, None
