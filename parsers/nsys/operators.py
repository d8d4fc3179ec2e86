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
from dataclasses import dataclass, field

from perfctl.parsers.operators import (
    GRADIENT_OF,
    READERS,
    Call,
    OperatorRows,
    Operators,
    Row,
    Shape,
    shape_in,
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

_LONGEST = 20_000
"""Characters of a function's dictionary that are read."""


@dataclass(frozen=True, slots=True)
class OperatorRanges:
    """Which ranges name a row, and what the operators are."""

    rows: OperatorRows
    labels: Mapping[int, RangeName]
    """Range -> the row of the kernels that are launched inside it."""
    owners: Mapping[int, RangeName] = field(default_factory=dict)
    """Operator that counts -> its row."""

    def collect(self, launchers: Iterable[int] | None) -> Operators:
        """``launchers``: the innermost range around each launch of a kernel; None where no kernel
        was recorded."""

        def find_row(index: int) -> tuple[Row, None]:
            label = self.owners[index]
            return Row(label.layer, label.direction), None

        return self.rows.collect(find_row, (), launchers)


def read(
    texts: Sequence[str], name: Sequence[int], process: Sequence[int], parents: Sequence[int]
) -> OperatorRanges:
    """``name``: which of ``texts`` each range has; all other arrays have one element a range, in
    order of start."""
    found = [_TEXT.match(text) for text in texts]
    functions = {
        code: function
        for code, text in enumerate(texts)
        if (function := _function(text)) is not None
    }
    names = [
        match["name"] if match else text.partition(",")[0]
        for match, text in zip(found, texts, strict=True)
    ]
    for code, (said, _) in functions.items():
        names[code] = said
    numbers = [int(match["seq"]) if match and match["seq"] else None for match in found]
    calls = {
        code: functions[code][1] if code in functions else _call(match["sizes"] if match else None)
        for code, (match, text) in enumerate(zip(found, names, strict=True))
        if text in READERS or text in GRADIENT_OF
    }
    spans = [names[code] for code in name]
    backward = {index for index, text in enumerate(spans) if _NODE.match(text)}
    own = {index: calls[code] for index, code in enumerate(name) if code in calls}
    inputs = {
        index: functions[code][1].shape(0) for index, code in enumerate(name) if code in functions
    }
    taken = _taken(inputs, process, parents)
    rows = OperatorRows(spans, parents, range(len(spans)), own, backward, taken)
    labels: dict[int, RangeName] = {}
    made_by: dict[tuple[int, int], str | None] = {}
    for index, owner in enumerate(rows.owners):
        number = numbers[name[index]]
        if rows.inside[index]:
            continue
        row = rows.labels[owner] if owner >= 0 else None
        if owner == index and row is not None:
            labels[index] = RangeName(row, "forward")
        if number is not None:
            # of several the last one begins at the node's own operator
            made_by[process[index], number] = row
    for index in sorted(backward):
        number = numbers[name[index]]
        row = made_by.get((process[index], number)) if number is not None else None
        if row is not None:
            labels[index] = RangeName(row, "backward")
    owners = {}
    for index in rows.shapes:
        around = index
        while around >= 0 and around not in labels:
            around = parents[around]
        if around < 0:
            labels[index] = RangeName(
                rows.labels[index], "backward" if rows.inside[index] else "forward"
            )
        owners[index] = labels[around if around >= 0 else index]
    return OperatorRanges(rows, labels, owners)


def _function(text: str) -> tuple[str, Call] | None:
    """("torch.nn.functional.conv2d", its tensors); None for what PyProf did not write."""
    if not text.startswith("{'mod': ") or len(text) > _LONGEST:
        return None
    try:
        said = ast.literal_eval(text)
        given = [one for one in said["args"] if one["type"] == "tensor"]
        shapes = tuple(shape_in(list(one["shape"])) or None for one in given)
        return f"{said['mod']}.{said['op']}", Call(
            shapes, tuple(str(one["dtype"]) for one in given)
        )
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        return None


def _taken(
    inputs: Mapping[int, Shape], process: Sequence[int], parents: Sequence[int]
) -> dict[int, Shape]:
    """Function -> shape of the first tensor of the function that comes next in its process, beside
    it and not inside."""
    found: dict[int, Shape] = {}
    last: dict[int, int] = {}
    for index in sorted(inputs):
        around = parents[index]
        while around >= 0 and around not in inputs:
            around = parents[around]
        if around >= 0:
            continue
        if (before := last.get(process[index])) is not None:
            found[before] = inputs[index]
        last[process[index]] = index
    return found


def _call(sizes: str | None) -> Call | None:
    try:
        shapes = json.loads(sizes) if sizes else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(shapes, list):
        return None
    return Call(tuple(shape_in(item) or None for item in shapes))


def has_shapes(text: str) -> bool:
    """Whether a range says the shapes of an operator."""
    return any(sign in text for sign in _SHAPES)


def without_sizes(texts: Iterable[str]) -> Gap | None:
    """Why there is no paper, where operators stand in the ranges without their shapes."""
    if not any(text.partition(",")[0] in READERS for text in texts):
        return None
    return Gap(
        "op_shape",
        "not_collected",
        "the operators' ranges have no shapes: use emit_nvtx(record_shapes=True)",
    )
