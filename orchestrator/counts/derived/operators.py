"""PyTorch's kernels whose work follows from the shapes of one operation: pooling and dropout, and
what works on rows (sums and means, softmax, layer norm and batch norm).

What each does with an element, a thread and a block follows from its source (``Reduce.cuh``,
``PersistentSoftmax.cuh``, ``layer_norm_kernel.cu``, ``Normalization.cuh``) and from the loops of
its machine code in torch 2.14.1, which are the same for sm_75, sm_80, sm_90 and sm_100. Of those, a
sum and a softmax were counted on an A100; the norms are not verified on hardware.

Pooling and dropout: Instructions of an output, a pair of an output and an input of its window, or
an element, from the loops of their machine code in torch 2.14.1 (sm_80). None is verified
on hardware.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from math import ceil, prod
from typing import NamedTuple

from perfctl.orchestrator.counts.derived.records import Derived, Launch, Rows
from perfctl.orchestrator.counts.kernels.grids import Grid
from perfctl.orchestrator.estimate.flops.formulas import shape_of
from perfctl.records.paper import OpShape

WARP = 32
_CODE = "from the machine code of torch 2.14.1"

_SOFTMAX = re.compile(
    r"softmax_warp_(forward|backward)<[\w:]+, ?[\w:]+, ?float, ?(?:\(int\))?(\d+), "
    r"?(?:\(bool\))?(\w+), ?(?:\(bool\))?(\w+)[,>]"
)

_SOFTMAX_BLOCK = re.compile(
    r"cunn_SoftMaxForward(?:Smem)?<(?:\(int\))?\d+, ?[\w:]+, ?float, ?[\w:]+, "
    "?[^>]*?(Log)?SoftMaxForwardEpilogue"
)

_REDUCE = re.compile(
    r"reduce_kernel<(?:\(int\))?(\d+), ?(?:\(int\))?(\d+), .*?ReduceOp<(\w+|c10::\w+), ?(.*)"
)
_HALF = ("c10::Half", "c10::BFloat16")

Rule = Callable[[Launch, Rows], Derived | None]


class _Pool(NamedTuple):
    """(FFMA, FMUL, FADD) for each output and for each pair of an output and an input; what the
    operation is."""

    kind: str
    output: tuple[int, int, int]
    pair: tuple[int, int, int]


_TYPE = r"(?:float|c10::Half|c10::BFloat16)"
_KERNELS: tuple[tuple[re.Pattern[str], _Pool], ...] = (
    (
        re.compile(rf"avg_pool2d_out_cuda_frame<{_TYPE}"),
        _Pool("average_pool", (5, 0, 0), (0, 0, 1)),
    ),
    (
        re.compile(rf"avg_pool2d_backward_out_cuda_frame<{_TYPE}"),
        _Pool("average_pool", (0, 0, 0), (5, 0, 1)),
    ),
    (re.compile(rf"adaptive_average_pool<{_TYPE}"), _Pool("adaptive_pool", (10, 0, 0), (0, 0, 1))),
    (re.compile(rf"max_pool_backward_nchw<{_TYPE}"), _Pool("max_pool", (0, 0, 1), (0, 0, 0))),
)
_DROPOUT = re.compile(rf"fused_dropout_kernel_vec<{_TYPE}, ?float, ")
_AVERAGE = ("avg_pool2d", "avg_pool2d_backward")
_MAX = ("max_pool2d_with_indices", "max_pool2d_with_indices_backward")


def pooled(launch: Launch, shapes: Collection[Rows]) -> Derived | None:
    """The instructions of a pooling or dropout kernel; None where it is another, or its layer has
    no shape for it, or several."""
    if not shapes:
        return None
    pool = next((pool for pattern, pool in _KERNELS if pattern.search(launch.name)), None)
    kind = "dropout" if _DROPOUT.search(launch.name) else pool.kind if pool is not None else None
    mine = [shape for shape in shapes if shape.kind == kind]
    if kind is None or len(mine) != 1:
        return None
    outputs, window = mine[0].rows, mine[0].columns
    if pool is None:
        return _dropout(launch, outputs)
    ffma, fmul, fadd = (
        outputs * (one + window * pair) for one, pair in zip(pool.output, pool.pair, strict=True)
    )
    rule = f"{outputs:,} outputs of {window:,} inputs, from the machine code of torch 2.14.1"
    return Derived(kind.replace("_", " "), rule, ffma, fmul, fadd)


def _dropout(launch: Launch, elements: int) -> Derived | None:
    """A random number and two products for each element, a reciprocal in each thread."""
    if launch.grid is None or launch.block is None:
        return None
    threads = launch.grid[0] * launch.block[0]
    rule = (
        f"1 FFMA and 2 FMUL for each of {elements:,} elements, from the machine code of torch "
        "2.14.1"
    )
    return Derived("dropout", rule, elements + 2 * threads, 2 * elements, threads)


def pool_of(op: OpShape) -> Rows | None:
    """Outputs and inputs of a window of a pooling operation, elements of a dropout; None where
    windows differ in size."""
    name = op.op.removeprefix("aten.")
    output = shape_of(op.outputs, 0)
    if name == "native_dropout" and output:
        return Rows("dropout", prod(output), 1)
    if name == "_adaptive_avg_pool2d":
        source = shape_of(op.inputs, 0)
        if len(source) < 3 or any(
            whole % part for whole, part in zip(source[-2:], output[-2:], strict=True)
        ):
            return None
        return Rows("adaptive_pool", prod(output), prod(source) // prod(output))
    if name in _MAX:  # an output's gradient goes to one input
        return Rows(
            "max_pool", prod(shape_of(op.inputs, 0) if name.endswith("_backward") else output), 1
        )
    return _average(op, name.endswith("_backward")) if name in _AVERAGE else None


def _average(op: OpShape, backward: bool) -> Rows | None:
    """Without padding and where no window leaves the image: all are of the same size."""
    outputs, inputs = (
        (shape_of(op.inputs, place) for place in (0, 1))
        if backward
        else (op.outputs[0], op.inputs[0])
    )
    window = _pair(op.attributes, "kernel_size")
    stride = _pair(op.attributes, "stride") or window
    if not outputs or not inputs or len(window) != 2 or any(_pair(op.attributes, "padding")):
        return None
    ends = (
        (count - 1) * step + size
        for count, step, size in zip(outputs[-2:], stride, window, strict=True)
    )
    inside = all(end <= whole for end, whole in zip(ends, inputs[-2:], strict=True))
    return Rows("average_pool", prod(outputs), prod(window)) if inside else None


def _pair(attributes: Mapping[str, object], name: str) -> tuple[int, ...]:
    found = attributes.get(name)
    if isinstance(found, int):
        return (found, found)
    return (
        tuple(int(str(size)) for size in found) * (2 // len(found))
        if isinstance(found, list | tuple) and found
        else ()
    )


class _Counts(NamedTuple):
    """Instructions of a launch."""

    ffma: float = 0
    fmul: float = 0
    fadd: float = 0

    def times(self, number: float) -> _Counts:
        return _Counts(self.ffma * number, self.fmul * number, self.fadd * number)

    def plus(self, *others: _Counts) -> _Counts:
        return _Counts(*(sum(values) for values in zip(self, *others, strict=True)))


EXP = _Counts(4, 1, 1)
"""e to the power of a value, as nvcc compiles it; the last FMUL becomes an FFMA where the result is
added to a sum."""
DIVIDE = _Counts(5, 0, 0)
"""A quotient on its usual path. The one build that was counted (PyTorch 1.13, an A100) fits 7; its
code was not seen."""
LOG = _Counts(11, 1, 1)
RECIPROCAL = _Counts(2, 0, 1)


def by_rows(launch: Launch, rows: Collection[Rows]) -> Derived | None:
    """The instructions of a kernel that works on rows; None where it is another kernel or fits no
    shape, or several."""
    rule = _rule_of(launch.name)
    if rule is None or launch.grid is None:
        return None
    found = {one for one in (rule(launch, shape) for shape in rows) if one is not None}
    return found.pop() if len({(one.ffma, one.fmul, one.fadd) for one in found}) == 1 else None


def _derived(family: str, rule: str, counts: _Counts) -> Derived:
    return Derived(family, rule, round(counts.ffma), round(counts.fmul), round(counts.fadd))


def _each(counts: _Counts, shape: Rows) -> str:
    """``counts`` of an element, in words."""
    named = ((counts.ffma, "FFMA"), (counts.fmul, "FMUL"), (counts.fadd, "FADD"))
    said = ", ".join(f"{value:g} {name}" for value, name in named if value)
    return f"{said} for each of {shape.rows * shape.columns:,} elements"


def _softmax(launch: Launch, shape: Rows) -> Derived | None:
    """A warp for one or two rows of up to 2,048 elements, filled up to a power of two; all of it is
    exponentiated and summed."""
    named = _SOFTMAX.search(launch.name)
    if named is None or shape.kind != "softmax" or named[4] in ("true", "1"):
        return None
    whole = 2 ** int(named[2])
    lanes, together = min(whole, WARP), 2 if whole <= 128 else 1
    per_block = 128 // lanes * together
    blocks = launch.grid[0] if launch.grid else 0
    if not whole // 2 < shape.columns <= whole or ceil(shape.rows / per_block) != blocks:
        return None
    filled, real = blocks * per_block * whole, shape.rows * shape.columns
    shuffles = _Counts(fadd=blocks * per_block * lanes * (lanes.bit_length() - 1))
    logarithm = named[3] in ("true", "1")
    if named[1] == "backward":
        each = EXP.plus(_Counts(1)) if logarithm else _Counts(1)
        counts = _Counts(fadd=filled).plus(shuffles, each.times(real))
        said = f"a sum over {filled:,} filled elements, {each.ffma:g} FFMA for each of {real:,}"
    elif logarithm:
        each = _Counts(EXP.ffma + 1, 0, 2)
        counts = each.times(filled).plus(
            shuffles, LOG.times(shape.rows * lanes), _Counts(fadd=real)
        )
        said = (
            f"{each.ffma:g} FFMA and {each.fadd:g} FADD for each of {filled:,} filled elements, a "
            "logarithm in each lane"
        )
    else:
        counts = EXP.plus(_Counts(fadd=2)).times(filled).plus(shuffles, DIVIDE.times(real))
        said = (
            f"an exponential for each of {filled:,} filled elements, a quotient for each of "
            f"{real:,}"
        )
    family = f"{'log ' if logarithm else ''}softmax{' backward' if named[1] == 'backward' else ''}"
    return _derived(family, f"{said}, {_CODE}", counts)


def _softmax_block(launch: Launch, shape: Rows) -> Derived | None:
    """A block for a row: exponentials summed, then made again for the output, or its logarithm
    taken off."""
    named = _SOFTMAX_BLOCK.search(launch.name)
    if (
        named is None
        or shape.kind != "softmax"
        or launch.grid != (shape.rows, 1, 1)
        or launch.block is None
    ):
        return None
    threads = launch.block[0]
    first = _Counts(EXP.ffma + 1, 0, EXP.fadd + 1)
    second = _Counts(fadd=2) if named[1] else EXP.plus(DIVIDE, _Counts(fadd=1))
    row = first.plus(second).times(shape.columns).plus(_Counts(fadd=5 * (threads + WARP)))
    if named[1]:
        row = row.plus(LOG.times(threads))
    said = f"{_each(first.plus(second), shape)}, a sum over each row's {threads:,} threads, {_CODE}"
    return _derived(f"{'log ' if named[1] else ''}softmax by block", said, row.times(shape.rows))


def _reduce(launch: Launch, shape: Rows) -> Derived | None:
    """A sum or mean of ``columns`` values for each of ``rows`` outputs, with the block and grid
    that PyTorch gives it."""
    named = _REDUCE.search(launch.name)
    if named is None or shape.kind != "sum" or named[3] not in ("float", *_HALF):
        return None
    operation = named[4].lower()
    mean = operation.startswith(("at::native::meanops", "meanops"))
    if not mean and "sum_functor" not in operation.split("unsigned int")[0]:
        return None
    wide = re.search(
        r"(?:float|c10::\w+), ?(?:\(int\))?(\d+)(?:, ?(?:\(int\))?(\d+))?>>",
        named[4].replace("> >", ">>"),
    )
    if wide is None or launch.block is None:
        return None
    parallel, vector = int(wide[1]), int(wide[2] or wide[1])
    found = {
        counts: inner
        for inner in (True, False)
        if (
            counts := _reduced(
                launch.grid or (0, 0, 0),
                launch.block,
                shape,
                inner,
                int(named[2]),
                parallel,
                vector,
            )
        )
        is not None
    }
    if len(found) != 1:
        return None
    counts, inner = found.popitem()
    if mean:
        counts = counts.plus(_Counts(fmul=shape.rows))
    rule = (
        f"{shape.rows:,} {'means' if mean else 'sums'} of {shape.columns:,}: {counts.fadd:,.0f} "
        "FADD for"
    )
    rule += " the values, the partial sums of each thread and those between threads"
    return _derived(f"{'mean' if mean else 'sum'}{' of neighbours' if inner else ''}", rule, counts)


def _reduced(
    grid: Grid, block: Grid, shape: Rows, inner: bool, outputs: int, parallel: int, vector: int
) -> _Counts | None:
    """FADD by ``setReduceConfig`` and ``ReduceOp`` of Reduce.cuh; None where they give another
    block or grid.

    ``inner``: the values of a sum lie side by side. ``outputs``: of a thread. ``parallel``: partial
    sums of a thread.
    """
    columns, rows = shape.columns, shape.rows
    wide = inner and columns >= 128
    if (inner and outputs > 1) or rows % outputs:
        return None
    x = columns // vector if wide else columns if inner else rows // outputs
    width, height = _block(x, rows if inner else columns, 512 // outputs)
    if (width, height) != block[:2]:
        return None
    steps, across = width if inner else 1, 1 if inner else width
    split = ceil(columns / steps) >= min(height * 16, 256)
    steps, across = (steps * height, across) if split else (steps, across * height)
    parts = grid[1]
    if ceil(rows // outputs / across) != grid[0] or (parts > 1 and not split):
        return None
    partial = vector if wide else parallel
    threads = rows * min(columns, steps * parts)
    within = (_lanes(width, height) if inner else 0) + (
        width * (height - 1) * outputs if split else 0
    )
    added = rows * columns + threads * (partial - 1) + grid[0] * parts * within
    if parts > 1:  # the last block of each output adds up the others
        once_more = _lanes(width, height) if inner else 0
        added += rows * parts + grid[0] * (width * (height - 1) * outputs + once_more)
    return _Counts(fadd=added)


def _block(x: int, y: int, most: int) -> tuple[int, int]:
    """``set_block_dimension``: powers of two, x for lanes of a warp first."""
    x, y = (min(most, 2 ** (max(size, 1).bit_length() - 1)) for size in (x, y))
    height = min(y, most // min(x, WARP))
    return min(x, most // height), height


def _lanes(width: int, height: int) -> int:
    """FADD of a block whose threads in x add up: in shared memory down to a warp, then by shuffles
    of all threads."""
    return height * (max(width - WARP, 0) + width * (min(width, WARP).bit_length() - 1))


def _layer_norm(launch: Launch, shape: Rows) -> Derived | None:
    """Welford's mean and variance with a reciprocal for each element, then scale and shift; a block
    for a row."""
    if (
        shape.kind != "layer_norm"
        or not _fits(launch, shape)
        or launch.block is None
        or not shape.affine
    ):
        return None
    threads = launch.block[0] * launch.block[1]
    if shape.columns < 4 * threads:  # lanes without values skip their part of the tree
        return None
    element = _Counts(2, 0, 3).plus(RECIPROCAL, _Counts(1, 1, 1))
    merge = _Counts(2, 5, 3).plus(RECIPROCAL)
    merges = threads * 5 + WARP * (launch.block[1] - 1)
    row = element.times(shape.columns).plus(
        merge.times(merges), DIVIDE.times(threads), _Counts(fadd=threads)
    )
    said = _each(element, shape)
    return _derived(
        "layer norm",
        f"{said}, {merges:,} merges of partial results for each row, {_CODE}",
        row.times(shape.rows),
    )


def _layer_norm_backward(launch: Launch, shape: Rows) -> Derived | None:
    """Gradient of the input: two sums over a row, then an element at a time; a block for a row."""
    if shape.kind != "layer_norm" or not _fits(launch, shape) or launch.block is None:
        return None
    threads = launch.block[0] * launch.block[1]
    element = _Counts(2, 6 if shape.affine else 4, 4)
    row = element.times(shape.columns).plus(
        _Counts(fadd=10 * (threads + WARP)), RECIPROCAL.plus(_Counts(fmul=1)).times(threads)
    )
    said = _each(element, shape)
    return _derived(
        "layer norm backward", f"{said}, two sums over each row, {_CODE}", row.times(shape.rows)
    )


def _fits(launch: Launch, shape: Rows) -> bool:
    return launch.grid == (shape.rows, 1, 1) and shape.columns % 4 == 0


def _batch_statistics(launch: Launch, shape: Rows) -> Derived | None:
    """Welford's mean and variance of each channel, with a quotient for each element; a block for
    a channel."""
    if shape.kind != "batch_norm" or launch.grid != (shape.rows, 1, 1) or launch.block is None:
        return None
    threads = launch.block[0] * launch.block[1]
    merge = _Counts(2, 5, 2).plus(RECIPROCAL)
    channel = (
        _Counts(1, 0, 3).plus(DIVIDE).times(shape.columns).plus(merge.times(5 * (threads + WARP)))
    )
    said = (
        f"6 FFMA and 3 FADD for each of {shape.rows * shape.columns:,} elements, "
        f"{5 * (threads + WARP):,} merges for each channel"
    )
    return _derived("batch norm statistics", f"{said}, {_CODE}", channel.times(shape.rows))


def _batch_transform(launch: Launch, shape: Rows) -> Derived | None:
    if shape.kind != "batch_norm" or not launch.grid or launch.grid[0] != shape.rows:
        return None
    elements = shape.rows * shape.columns
    said = f"1 FFMA, 1 FMUL and 1 FADD for each of {elements:,} elements, {_CODE}"
    return _derived("batch norm transform", said, _Counts(1, 1, 1).times(elements))


def _batch_backward(launch: Launch, shape: Rows) -> Derived | None:
    """Two sums over a channel, then the gradient of the input; a block for a channel."""
    if (
        shape.kind != "batch_norm"
        or launch.grid != (shape.rows, 1, 1)
        or launch.block is None
        or not shape.training
    ):
        return None
    threads = launch.block[0] * launch.block[1]
    half = any(kind in launch.name for kind in ("c10::Half", "c10::BFloat16"))
    element = _Counts(1, 2, 5) if half else _Counts(2, 1, 4)
    sums = _Counts(fadd=8 * threads + 2 * ceil(threads / WARP) + 10 * WARP)
    channel = element.times(shape.columns).plus(
        sums, RECIPROCAL.plus(_Counts(fmul=5)).times(threads)
    )
    said = _each(element, shape)
    return _derived(
        "batch norm backward",
        f"{said}, two sums over each channel, {_CODE}",
        channel.times(shape.rows),
    )


_ROW_TYPE, _NO, _YES = (
    r"(?:float|c10::Half|c10::BFloat16)",
    r"(?:\(bool\))?(?:false|0)",
    r"(?:\(bool\))?(?:true|1)",
)
_RULES: tuple[tuple[re.Pattern[str], Rule], ...] = (
    (_SOFTMAX, _softmax),
    (_SOFTMAX_BLOCK, _softmax_block),
    (_REDUCE, _reduce),
    (re.compile(rf"vectorized_layer_norm_kernel<{_ROW_TYPE}, ?float(?:, ?{_NO})?>"), _layer_norm),
    (
        re.compile(rf"layer_norm_grad_input_kernel_vectorized<{_ROW_TYPE}, ?float(?:, ?{_NO})?>"),
        _layer_norm_backward,
    ),
    (
        re.compile(
            rf"batch_norm_collect_statistics_kernel<[\w:]*InvStd, ?{_ROW_TYPE}, ?{_ROW_TYPE}, "
            "?float, ?int"
        ),
        _batch_statistics,
    ),
    (
        re.compile(
            rf"batch_norm_transform_input_kernel<{_ROW_TYPE}, ?{_ROW_TYPE}, ?float, ?{_YES}, ?int"
        ),
        _batch_transform,
    ),
    (
        re.compile(rf"batch_norm_backward_kernel<{_ROW_TYPE}, ?{_ROW_TYPE}, ?float, ?int"),
        _batch_backward,
    ),
)


@lru_cache(maxsize=4096)
def _rule_of(name: str) -> Rule | None:
    return next((rule for pattern, rule in _RULES if pattern.search(name)), None)
