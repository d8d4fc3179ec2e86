"""Ranges of PyTorch's ``emit_nvtx(record_shapes=True)``: the operators' shapes, and the rows of the
kernels they launch.

The text is "aten::addmm, seq = 5, op_id = 9, sizes = [[128], [32, 64], [64, 128], [], []]": the
operator, autograd's sequence number, a running number (since 1.9) and the inputs' shapes, with []
for what is not a tensor (torch/csrc/profiler/util.cpp, ``getNvtxStr``). Types and other arguments
are not in it.

PyProf, and DLProf's plugin for PyTorch, write a Python dictionary for each function: {'mod':
'torch.nn.functional', 'op': 'conv2d', 'args': [{'name': '', 'type': 'tensor', 'shape': (1, 3, 32,
32), 'dtype': 'float32'}, ...]}. Of what is not a tensor the plugin writes nothing.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from perfctl.parsers.operators import (
    GRADIENT_OF,
    READERS,
    OperatorCall,
    OperatorRow,
    OperatorRows,
    OperatorShapes,
    Shape,
    parse_shape,
)
from perfctl.records.ranges import RangeName
from perfctl.records.report import Gap

_TEXT = re.compile(
    r"(?P<name>[^,]+?)(?:, seq = (?P<seq>\d{1,18}))?(?:, op_id = \d+)?(?:, sizes = "
    r"(?P<sizes>\[.*?\]))?(?:, input_op_ids = .*)?\Z",
    re.DOTALL,
)
_NODE = re.compile(r"[A-Za-z_]\w*Backward\d*\Z")
"""A node of autograd: AddmmBackward0."""
_SHAPES = (", sizes = [", "'type': 'tensor', 'shape': (")

_OPERATORS = READERS.keys() | GRADIENT_OF.keys()
_LONGEST = 20_000
"""Characters of a function's dictionary that are read."""


class _OperatorText(NamedTuple):
    """What the text of a range states of an operator or function."""

    operator: str
    number: int | None = None
    """Autograd's sequence number."""
    call: OperatorCall | None = None
    is_function: bool = False


class OperatorRanges(NamedTuple):
    """Which ranges name a row, and what the operators are."""

    rows: OperatorRows
    labels: Mapping[int, RangeName]
    """Range -> the row of the kernels that are launched inside it."""
    owners: Mapping[int, OperatorRow]
    """Operator that counts -> its row."""

    def collect_operator_shapes(self, launching_ranges: Iterable[int] | None) -> OperatorShapes:
        """``launching_ranges``: the innermost range around each launch of a kernel; None where no
        kernel was recorded."""
        return self.rows.collect_operator_shapes(
            lambda index: (self.owners[index], None), (), launching_ranges
        )


def read_operator_ranges(
    texts: Sequence[str],
    text_indices: Sequence[int],
    process_ids: Sequence[int],
    parent_indices: Sequence[int],
) -> OperatorRanges:
    """``text_indices``: which of ``texts`` each range has; all other arrays have one element a
    range, in order of start."""
    kinds = list(map(_parse_operator_range_text, texts))
    ranges = [kinds[code] for code in text_indices]
    backward = [index for index, operator in enumerate(ranges) if _NODE.match(operator.operator)]
    calls = {
        index: operator.call
        for index, operator in enumerate(ranges)
        if operator.operator in _OPERATORS
    }
    inputs = {
        index: operator.call.shape_of_argument(0)
        for index, operator in enumerate(ranges)
        if operator.is_function and operator.call is not None
    }
    next_inputs = _find_next_function_input_shapes(inputs, process_ids, parent_indices)
    names = [operator.operator for operator in ranges]
    rows = OperatorRows(
        names, parent_indices, range(len(ranges)), calls, set(backward), next_inputs
    )
    labels: dict[int, RangeName] = {}
    made_by: dict[tuple[int, int | None], str | None] = {}
    for index, owner in enumerate(rows.owners):
        if rows.inside[index]:
            continue
        row = rows.labels.get(owner)
        if owner == index and row is not None:
            labels[index] = RangeName(row, "forward")
        if ranges[index].number is not None:
            # of several the last one begins at the node's own operator
            made_by[process_ids[index], ranges[index].number] = row
    for index in backward:
        if (row := made_by.get((process_ids[index], ranges[index].number))) is not None:
            labels[index] = RangeName(row, "backward")
    owners = {}
    for index in rows.shapes:
        outer = index
        while outer >= 0 and outer not in labels:
            outer = parent_indices[outer]
        if outer < 0:
            outer, direction = index, "backward" if rows.inside[index] else "forward"
            labels[index] = RangeName(rows.labels[index], direction)
        owners[index] = OperatorRow(labels[outer].layer, labels[outer].direction)
    return OperatorRanges(rows, labels, owners)


def _parse_operator_range_text(text: str) -> _OperatorText:
    if text.startswith("{'mod': ") and len(text) <= _LONGEST:
        with suppress(ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
            function = ast.literal_eval(text)
            tensors = [tensor for tensor in function["args"] if tensor["type"] == "tensor"]
            shapes = tuple(parse_shape(list(tensor["shape"])) or None for tensor in tensors)
            call = OperatorCall(shapes, tuple(str(tensor["dtype"]) for tensor in tensors))
            return _OperatorText(
                f"{function['mod']}.{function['op']}", None, call, is_function=True
            )
    match = _TEXT.match(text)
    if match is None:
        return _OperatorText(text.partition(",")[0])
    operator, sizes = match["name"], None
    if operator in _OPERATORS:
        with suppress(ValueError, RecursionError):
            sizes = json.loads(match["sizes"] or "")
    number = int(match["seq"]) if match["seq"] else None
    if not isinstance(sizes, list):
        return _OperatorText(operator, number)
    return _OperatorText(
        operator, number, OperatorCall(tuple(parse_shape(item) or None for item in sizes))
    )


def _find_next_function_input_shapes(
    inputs: Mapping[int, Shape], process: Sequence[int], parents: Sequence[int]
) -> dict[int, Shape]:
    """Return function -> shape of the first tensor of the function that comes next in its process,
    after it and not inside."""
    following: dict[int, Shape] = {}
    last: dict[int, int] = {}
    for index in sorted(inputs):
        outer = parents[index]
        while outer >= 0 and outer not in inputs:
            outer = parents[outer]
        if outer >= 0:
            continue
        if (before := last.get(process[index])) is not None:
            following[before] = inputs[index]
        last[process[index]] = index
    return following


def has_operator_shapes(text: str) -> bool:
    """Return whether a range states the shapes of an operator."""
    return any(sign in text for sign in _SHAPES)


def explain_missing_operator_shapes(texts: Iterable[str]) -> tuple[Gap, ...]:
    """Return a gap if operators are among the ranges without their shapes."""
    reason = "the operators' ranges have no shapes. Use emit_nvtx(record_shapes=True)"
    gap = Gap("op_shape", "not_collected", reason)
    return (gap,) if any(text.partition(",")[0] in READERS for text in texts) else ()
