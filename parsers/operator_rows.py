"""The operators of a trace that multiply, as rows: which of nested ones counts, whose kernels are
theirs, how often a step runs them.

Of nested operators the outermost counts (aten::convolution, not the cudnn_convolution that it
calls). Outside of modules an operator gives its launches a row of its own, named by its shapes. A
backward belongs to the row of its forward.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from perfctl.parsers.operators import (
    COMPOSITE,
    GRADIENT_OF,
    RUNS_AGAIN,
    Call,
    Shape,
    label,
    next_input,
    operator,
    with_mask,
    with_output,
)
from perfctl.records.paper import OpShape
from perfctl.records.report import COVERS, WHOLE_CAPTURE, Gap

ENGINE = "autograd::engine::evaluate_function: "
"""Range of autograd's engine around a node."""
_INSTANCE = re.compile(r"_\d+\Z")


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans of a trace, by position."""

    names: Sequence[str]
    parents: Sequence[int]
    """The span around each; -1 for none."""
    order: Iterable[int]
    """Every parent before its children."""
    calls: Mapping[int, Call | None]
    """Operators of READERS and GRADIENT_OF -> arguments; None where the trace has no shapes."""
    backward: Collection[int]
    """Nodes of autograd."""
    taken: Mapping[int, Shape] = field(default_factory=dict)
    """Operator -> shape of what the operator after it takes."""


class Place(NamedTuple):
    """The row of one call."""

    layer: str | None
    direction: str | None
    step: int | None
    optimizer: bool = False
    """Launched by the optimizer."""


@dataclass(frozen=True, slots=True)
class Operators:
    """What a trace's operators say."""

    ops: tuple[OpShape, ...] = ()
    """With the calls of one step, where the steps are alike; else of the whole capture."""
    environment: Mapping[str, str] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    precision: str | None = None
    """bf16 or fp16, where all products are of that type."""


class OperatorRows:
    """The operators that count, and the row of each span inside them."""

    def __init__(self, spans: Spans) -> None:
        self.spans = spans
        self.owners = [-1] * len(spans.names)
        """For each span, the operator whose work it does; -1 for none."""
        self.inside = [False] * len(spans.names)
        """For each span, whether autograd runs it."""
        self._ops: dict[tuple[object, ...], OpShape] = {}
        masks: dict[int, list[bool]] = {}
        replaced: dict[int, int] = {}
        for index in spans.order:
            parent, name = spans.parents[index], spans.names[index]
            outer = self.owners[parent] if parent >= 0 else -1
            self.inside[index] = (
                (parent >= 0 and self.inside[parent])
                or index in spans.backward
                or name.startswith(ENGINE)
            )
            self.owners[index] = outer
            if name in GRADIENT_OF:
                if outer >= 0:
                    masks.setdefault(outer, [False] * 3)[GRADIENT_OF[name]] = True
            elif index in spans.calls:
                around = spans.names[outer] if outer >= 0 else None
                # autocast calls the operator once more
                if around is None or around in COMPOSITE or around == name:
                    self.owners[index] = index
                    replaced.setdefault(outer, index)
        # A network repeats the same few calls in every step: what follows from one is worked out
        # once, and shared.
        every = {
            owner: self._read(owner, masks.get(owner)) for owner in sorted(set(self.owners) - {-1})
        }
        self._learn_outputs(every)
        alike = {(spans.names[owner], id(op)): op for owner, op in every.items()}
        labels = {(name, number): label(name, op) for (name, number), op in alike.items()}
        self.labels = {owner: labels[spans.names[owner], id(op)] for owner, op in every.items()}
        # its casts are work of the operator inside
        for owner in sorted(replaced.keys() & every.keys(), reverse=True):
            self.labels[owner] = self.labels[replaced[owner]]
        self.shapes = {owner: op for owner, op in every.items() if owner not in replaced}
        """Of each operator that counts."""

    def _read(self, owner: int, mask: Sequence[bool] | None) -> OpShape:
        name, call = self.spans.names[owner], self.spans.calls[owner]
        alike = (name, id(call), mask and tuple(mask))
        if alike not in self._ops:
            self._ops[alike] = self._read_call(name, call, mask)
        return self._ops[alike]

    def _read_call(self, name: str, call: Call | None, mask: Sequence[bool] | None) -> OpShape:
        op = None if call is None else operator(name, call)
        if op is None:
            bare = name.replace("::", ".")
            return OpShape(
                "",
                "",
                bare,
                "forward",
                (),
                (),
                (),
                {"missed": "the trace does not have its shapes"},
            )
        return (
            with_mask(op, mask) if mask is not None and op.op == "aten.convolution_backward" else op
        )

    def _learn_outputs(self, every: dict[int, OpShape]) -> None:
        """A convolution's output has the shape of the gradient that comes back for the same input
        and weight, or of what the next operator takes."""
        told: dict[tuple[object, ...], set[tuple[int, ...] | None]] = defaultdict(set)
        for op in every.values():
            if op.op == "aten.convolution_backward":
                told[op.inputs[1:3]].add(op.inputs[0])
        with_outputs: dict[tuple[int, Shape], OpShape] = {}
        for index, op in every.items():
            if op.op != "aten.convolution" or op.outputs != (None,):
                continue
            known = told[op.inputs[:2]] or {next_input(op, self.spans.taken.get(index))}
            output = next(iter(known)) if len(known) == 1 else None
            if output is not None:
                alike = id(op), output
                if alike not in with_outputs:
                    with_outputs[alike] = with_output(op, output)
                every[index] = with_outputs[alike]

    def named(self, is_free: Callable[[int], bool]) -> Iterator[tuple[int, str]]:
        """(span, row) of the spans inside operators for which ``is_free``: they lie in no
        other row."""
        for index, owner in enumerate(self.owners):
            if owner >= 0 and is_free(index):
                yield index, self.labels[owner]

    def again(self) -> Iterator[int]:
        """Spans in backward that do a forward once more (checkpointing)."""
        for index, owner in enumerate(self.owners):
            if self.inside[index] and owner in self.shapes and self.shapes[owner].op in RUNS_AGAIN:
                yield index

    def collect(
        self,
        place_of: Callable[[int], Place],
        steps: Collection[int],
        launchers: Iterable[int] | None,
    ) -> Operators:
        """The shapes with their rows. ``steps``: those that the kernels say; only their
        operators count.

        ``launchers``: spans that launched a kernel; None where no kernel was recorded. An operator
        that launched none ran on the CPU, or while a CUDA graph was recorded, and does not count.
        """
        launched = (
            None if launchers is None else {self.owners[index] for index in launchers if index >= 0}
        )
        idle = 0
        calls: dict[tuple[object, ...], Counter[int | None]] = defaultdict(Counter)
        first: dict[tuple[object, ...], OpShape] = {}
        rows = set(self.labels.values())
        keys: dict[tuple[object, ...], tuple[object, ...]] = {}
        """Operator and its row -> what calls of it are counted by."""
        for index, op in self.shapes.items():
            if launched is not None and index not in launched:
                idle += 1
                continue
            place = place_of(index)
            one = (id(op), place.layer, place.direction, place.optimizer)
            if one not in keys:
                placed = _placed(op, place, own_row=place.layer in rows)
                key = (
                    placed.layer,
                    placed.op,
                    placed.direction,
                    placed.inputs,
                    placed.outputs,
                    str(placed.attributes),
                )
                first.setdefault(key, replace(placed, position=len(first)))
                keys[one] = key
            calls[keys[one]][place.step] += 1
        of_steps = {key: sum(tally[step] for step in steps) for key, tally in calls.items()}
        alike = bool(steps) and all(count % len(steps) == 0 for count in of_steps.values())
        if alike:
            counts = {key: count // len(steps) for key, count in of_steps.items()}
        else:
            counts = {key: tally.total() for key, tally in calls.items()}
        ops = tuple(replace(op, calls=counts[key]) for key, op in first.items() if counts[key])
        return Operators(
            ops,
            {} if alike or not ops else {COVERS: WHOLE_CAPTURE},
            tuple(_gaps(ops, alike=alike, steps=len(steps), idle=idle)),
            _precision(ops),
        )


def _placed(op: OpShape, place: Place, *, own_row: bool) -> OpShape:
    direction, layer = place.direction or "forward", place.layer or ""
    attributes = dict(op.attributes)
    if place.optimizer and not layer:
        return replace(op, direction="optimizer")
    if direction == "recompute":
        attributes["recompute"] = True
    elif direction not in ("forward", "recompute") and not op.op.endswith("_backward"):
        attributes["role"] = "backward"
    if own_row:
        # the row is the operator, not a layer that has a forward
        attributes |= {"functional": op.op, "row": True}
    side = "forward" if direction in ("forward", "recompute") else "backward"
    kind = "" if own_row else _INSTANCE.sub("", layer.rpartition(".")[2])
    return replace(op, layer=layer, kind=kind, direction=side, attributes=attributes)


def _precision(ops: Iterable[OpShape]) -> str | None:
    kinds = {op.dtypes[0] if op.dtypes else None for op in ops if "missed" not in op.attributes}
    return (
        {"bfloat16": "bf16", "float16": "fp16"}.get(kinds.pop() or "") if len(kinds) == 1 else None
    )


def _gaps(ops: Sequence[OpShape], *, alike: bool, steps: int, idle: int) -> Iterator[Gap]:
    why = Counter((str(op.attributes["missed"]), op.op) for op in ops if "missed" in op.attributes)
    for (reason, name), kinds in why.items():
        shapes = f" ({kinds} shapes)" if kinds > 1 else ""
        yield Gap("layer_call.flops", "not_available", f"{name}{shapes}: {reason}")
    if idle:
        where = "on the CPU, into a CUDA graph, or before the recording began"
        reason = (
            f"{idle} {'call' if idle == 1 else 'calls'} of operators launched no recorded kernel "
            f"({where}): left out"
        )
        yield Gap("op_shape", "not_available", reason)
    if not ops:
        return
    if not alike:
        unlike = (
            f"its {steps} steps run different operators"
            if steps
            else "no range names a step (ProfilerStep#N)"
        )
        yield Gap(
            "step", "not_available", f"{unlike}: the ledger takes the whole capture as one step"
        )
