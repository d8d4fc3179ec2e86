"""Set the estimate of a model's forward pass against other FLOP counters, and name why they differ.

Each counter runs on the same model, layer by layer, and is put into multiply-adds or FLOPs as it
says itself. Rules of a counter are tried on each layer's own numbers; a difference that no rule
gives exactly stays unexplained.
"""

from __future__ import annotations

import logging
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from math import prod
from typing import Any, NamedTuple

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.flops.engine import build_layer_calls_with_flops as work_out
from perfctl.orchestrator.estimate.session import Session, silence_driver_warning
from perfctl.orchestrator.estimate.sheets import reasons
from perfctl.orchestrator.estimate.sheets.network import list_forward_and_backward_totals
from perfctl.orchestrator.estimate.sheets.sheet import SheetFigure
from perfctl.orchestrator.estimate.sheets.slips import diagnose_stated_value, parse_stated_value
from perfctl.orchestrator.estimate.step import Estimate

Counts = Mapping[str, float]
"""Dotted path of a module -> what a counter counts for the module itself, without its children."""
FLOP, MAC = "FLOP", "MAC"
VALUES_MAX = 4 << 30
"""Bytes of parameters that are made for a counter that needs values."""
EMBEDDING, SOFTMAX = "Embedding", "aten._softmax"
ATTENTION = ("scaled_dot_product", "bmm", "baddbmm", "matmul")
"""Parts of the names of operations that multiply two activations."""


class FlopCounter(NamedTuple):
    """A FLOP counter: the package that it comes from, its unit, and how it is run."""

    package: str
    unit: str
    run: Callable[[Any, tuple[Any, ...]], Counts]
    needs_values: bool = False


class CountDifference(NamedTuple):
    """What a counter counts otherwise, for one reason."""

    reason: str
    amount: float
    """In the unit of the counter, summed over ``layers``; negative where it counts less."""
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CounterResult:
    """What one counter says of the model."""

    counter: str
    unit: str
    total: float | None
    """In ``unit``; null: it failed."""
    estimate: int | None
    """perfctl's figure in the same unit."""
    differences: tuple[CountDifference, ...] = ()
    problem: str | None = None
    layers: Mapping[str, float] | None = None
    """Layer -> its count; null for a figure that was typed."""


@dataclass(frozen=True, slots=True)
class CounterComparison:
    """What counters say of the forward pass of one model. 1 multiply-add = 2 FLOPs."""

    model: str
    batch: int
    macs: Mapping[str, int]
    """Layer -> estimated multiply-adds."""
    counts: Sequence[CounterResult]


class LayerNumbers(NamedTuple):
    """Numbers of one module that counters count differently."""

    macs: int = 0
    attention: int = 0
    """Multiply-adds between activations, part of ``macs``."""
    elementwise: int = 0
    """Bias additions of a layer with ``macs``, else all its arithmetic."""
    parameters: int = 0
    softmax: int = 0
    """Values of softmax beside multiply-adds."""
    rows: int = 1
    """First size of the output, the batch in most layers."""


def validate_counter_names_and_figures(texts: Iterable[str]) -> list[str]:
    """Return names of counters and figures such as "paper=4.1e9". Raises UsageError for others."""
    names = list(texts)
    for text in names:
        name, is_figure, value = text.partition("=")
        if is_figure:
            parse_stated_value(value)
        elif name not in COUNTERS:
            choices = ", ".join(COUNTERS)
            raise UsageError(
                f"`against`: unknown counter '{name}'", f"Choose {choices}, or NAME=VALUE"
            )
    return names


def compare_estimate_with_flop_counters(
    session: Session, batch: int, counter_names_and_figures: Sequence[str]
) -> CounterComparison:
    """Return what each counter says of the forward pass of ``batch`` samples. A counter that fails
    or is not installed has a ``problem``."""
    with silence_driver_warning():
        estimated = session.estimate_batch(batch)
    facts = _collect_forward_numbers_by_layer(estimated)
    counts = []
    for text in counter_names_and_figures:
        name, is_figure, value = text.partition("=")
        if is_figure:
            counts.append(_explain_user_figure(name, value, estimated))
            continue
        counter = COUNTERS[name]
        problem = None
        size = sum(module.parameter_bytes for module in estimated.modules)
        if find_spec(counter.package) is None:
            problem = f"{counter.package} is not installed: pip install 'perfctl[peers]'"
        elif counter.needs_values and size > VALUES_MAX:
            problem = f"{name} needs the values of the parameters, {size / 1e9:.1f} GB"
        else:
            try:
                layers = _run_counter(counter, session, batch)
            except Exception as error:  # whatever another package raises
                line = str(error).strip().partition("\n")[0]
                problem = f"{name} failed: {type(error).__name__}: {line[:200]}"
        if problem is not None:
            counts.append(CounterResult(name, counter.unit, None, None, problem=problem))
            continue
        scale = 2 if counter.unit == FLOP else 1
        total = sum(layers.values())
        differences = tuple(_explain_differences(layers, facts, counter.unit))
        expected = scale * estimated.forward.macs
        counts.append(CounterResult(name, counter.unit, total, expected, differences, None, layers))
    macs = {path: layer_facts.macs for path, layer_facts in facts.items() if layer_facts.macs}
    return CounterComparison(session.request.model, batch, macs, counts)


def make_executed_flops_result(
    executed_flops_by_layer: Counts,
    cause_by_layer: Mapping[str, str],
    estimated_macs_by_layer: Mapping[str, int],
) -> CounterResult:
    """Return executed FLOPs of layers as a counter; ``cause_by_layer``: why a layer differs, if
    known."""
    differences: dict[str, list[str]] = defaultdict(list)
    for layer, count in executed_flops_by_layer.items():
        if count != 2 * estimated_macs_by_layer.get(layer, 0):
            differences[cause_by_layer.get(layer) or reasons.UNEXPLAINED].append(layer)
    return CounterResult(
        "executed",
        FLOP,
        sum(executed_flops_by_layer.values()),
        2 * sum(estimated_macs_by_layer.get(layer, 0) for layer in executed_flops_by_layer),
        tuple(
            CountDifference(
                reason,
                sum(
                    executed_flops_by_layer[name] - 2 * estimated_macs_by_layer.get(name, 0)
                    for name in names
                ),
                tuple(names),
            )
            for reason, names in differences.items()
        ),
        layers=executed_flops_by_layer,
    )


def _run_counter(counter: FlopCounter, session: Session, batch: int) -> Counts:
    """Return what a counter counts on a model of its own, because counters leave marks."""
    import torch

    from perfctl.workloads.models import find
    from perfctl.workloads.tracing import recorder

    request, device = session.request, "cpu" if counter.needs_values else "meta"
    model = find.build_referenced_model(
        request.model, device, request.own, request.seq
    ).model.eval()
    shapes = [shape.insert_batch(batch) for shape in session.facts.inputs]
    inputs = recorder.make_zero_inputs(
        shapes, [shape.dtype for shape in session.facts.inputs], device
    )
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            redirect_stdout(StringIO()),
            silence_driver_warning(),
            torch.no_grad(),
        ):
            warnings.simplefilter("ignore")
            return counter.run(model, inputs)
    finally:
        logging.disable(logging.NOTSET)


def _subtract_child_counts(inclusive: Mapping[str, float]) -> Counts:
    """Return what each module counts itself, from counts that include those of its children."""
    exclusive = dict(inclusive)
    for path, count in inclusive.items():
        if path:
            parent = path
            while parent:
                parent = parent.rpartition(".")[0]
                if parent in inclusive:
                    exclusive[parent] -= count
                    break
    return {path: count for path, count in exclusive.items() if count}


def _count_flops_with_torch(model: Any, inputs: tuple[Any, ...]) -> Counts:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model(*inputs)
    root = type(model).__name__
    sums = {
        name: sum(counts_by_operator.values())
        for name, counts_by_operator in counter.get_flop_counts().items()
    }
    inclusive = {
        name.removeprefix(root).removeprefix("."): float(count)
        for name, count in sums.items()
        if name.split(".")[0] == root
    }
    inclusive[""] = float(counter.get_total_flops())
    return _subtract_child_counts(inclusive)


def _count_macs_with_fvcore(model: Any, inputs: tuple[Any, ...]) -> Counts:
    from fvcore.nn import FlopCountAnalysis

    analysis = FlopCountAnalysis(model, inputs)
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    return _subtract_child_counts(
        {path: float(count) for path, count in analysis.by_module().items()}
    )


def _count_macs_with_thop(model: Any, inputs: tuple[Any, ...]) -> Counts:
    from thop import profile

    counts: dict[str, float] = {}

    def collect_inclusive_counts(path: str, total: float, children: Mapping[str, Any]) -> None:
        counts[path] = total
        for name, (child, _, below) in children.items():
            collect_inclusive_counts(f"{path}.{name}" if path else name, child, below)

    total, _, children = profile(model, inputs=inputs, verbose=False, ret_layer_info=True)
    collect_inclusive_counts("", total, children)
    return _subtract_child_counts(counts)


def _count_macs_with_torchinfo(model: Any, inputs: tuple[Any, ...]) -> Counts:
    import torchinfo

    device = inputs[0].device.type
    summary = torchinfo.summary(model, input_data=inputs, verbose=0, device=device)
    paths = {id(module): path for path, module in model.named_modules()}
    counts: dict[str, float] = defaultdict(float)
    for layer in summary.summary_list:
        if layer.is_leaf_layer and not layer.is_recursive:
            counts[paths.get(layer.layer_id, layer.var_name)] += layer.macs
    return {path: count for path, count in counts.items() if count}


def _count_flops_with_deepspeed(model: Any, inputs: tuple[Any, ...]) -> Counts:
    from deepspeed.profiling.flops_profiler import FlopsProfiler

    profiler = FlopsProfiler(model)
    profiler.start_profile()
    try:
        model(*inputs)
        profiler.stop_profile()
        counts = {path: float(module.__flops__) for path, module in model.named_modules()}
    finally:
        profiler.end_profile()
    return {path: count for path, count in counts.items() if count}


COUNTERS = {
    "torch": FlopCounter("torch", FLOP, _count_flops_with_torch),
    "fvcore": FlopCounter("fvcore", MAC, _count_macs_with_fvcore, needs_values=True),
    "thop": FlopCounter("thop", MAC, _count_macs_with_thop),
    "deepspeed": FlopCounter("deepspeed", FLOP, _count_flops_with_deepspeed, needs_values=True),
    "torchinfo": FlopCounter("torchinfo", MAC, _count_macs_with_torchinfo),
}


def _collect_forward_numbers_by_layer(estimated: Estimate) -> dict[str, LayerNumbers]:
    """Return the numbers of every module of the forward pass. An embedding without parameters of
    its own has those of the largest one."""
    tables = (module for module in estimated.modules if module.kind == EMBEDDING)
    shared = max((table.parameters for table in tables), default=0)
    facts = {}
    for module in estimated.modules:
        parameters = module.parameters or shared * (module.kind == EMBEDDING)
        facts[module.path] = LayerNumbers(parameters=parameters, rows=(module.output or (1,))[0])
    for op in estimated.ops:
        for call in work_out([op]):
            if call.direction == "forward":
                macs, layer_facts = call.macs or 0, facts.get(op.layer, LayerNumbers())
                is_attention = any(name in op.op for name in ATTENTION)
                softmax = op.calls * prod(op.outputs[0] or ()) if op.op == SOFTMAX else 0
                facts[op.layer] = layer_facts._replace(
                    macs=layer_facts.macs + macs,
                    attention=layer_facts.attention + macs * is_attention,
                    elementwise=layer_facts.elementwise + (call.elementwise_flops or 0),
                    softmax=layer_facts.softmax + softmax,
                )
    return facts


def _explain_differences(
    counts: Counts, facts: Mapping[str, LayerNumbers], unit: str
) -> Iterator[CountDifference]:
    """Yield each reason with the sum of its differences, the largest first."""
    amounts: dict[str, float] = defaultdict(float)
    layers: dict[str, list[str]] = defaultdict(list)
    scale = 2 if unit == FLOP else 1
    for path in dict.fromkeys([*facts, *counts]):
        count, layer_facts = counts.get(path, 0.0), facts.get(path, LayerNumbers())
        if count != scale * layer_facts.macs:
            reason = _find_difference_reason(count, layer_facts, unit)
            amounts[reason] += count - scale * layer_facts.macs
            layers[reason].append(path or "(model)")
    for reason in sorted(amounts, key=lambda reason: -abs(amounts[reason])):
        yield CountDifference(reason, amounts[reason], tuple(layers[reason]))


def _find_difference_reason(count: float, layer_facts: LayerNumbers, unit: str) -> str:
    """Return why a counter counts this of a module."""
    macs, attention, elementwise, parameters, softmax, rows = layer_facts
    scale, other = (2, MAC) if unit == FLOP else (1, FLOP)
    outs = parameters * elementwise // (macs + elementwise) if macs else 0
    if elementwise and not macs and count not in (parameters, rows * parameters):
        return reasons.ELEMENTWISE
    values = (
        (scale * (macs - attention), reasons.NO_ATTENTION),
        (0, reasons.UNSEEN),
        (scale * macs + elementwise, reasons.BIAS),
        (scale * macs + softmax, reasons.ELEMENTWISE),
        (scale * macs + outs, reasons.BIAS_ONCE),
        (3 * macs - scale * macs, reasons.describe_wrong_unit(other, unit)),
        (2 * scale * macs, reasons.TWICE),
        (scale * (2 * macs - attention), reasons.TWICE),
        (rows * parameters, reasons.describe_values_counted_as_operations(reasons.PARAMETERS)),
        (parameters, reasons.describe_values_counted_as_operations(reasons.PARAMETERS)),
        (rows * parameters * outs, reasons.CHANNELS),
    )
    return next((reason for value, reason in values if value == count), reasons.UNEXPLAINED)


def _explain_user_figure(name: str, text: str, estimated: Estimate) -> CounterResult:
    """Return what a figure that was typed is of the model, as a manual estimate is checked."""
    stated = parse_stated_value(text)
    finding = diagnose_stated_value(stated, None, _list_candidate_published_totals(estimated))
    reason = reasons.UNEXPLAINED
    if finding.is_correct:
        reason = f"{finding.quantity} in {reasons.UNIT_NAMES[finding.unit]}"
    elif finding.mistakes:
        reason = " and ".join(finding.mistakes)
    amount = 0.0 if finding.is_correct else float(stated.value - finding.correct_value)
    difference = CountDifference(reason, amount, ())
    return CounterResult(
        name, finding.unit, float(stated.value), finding.correct_value, (difference,)
    )


def _list_candidate_published_totals(estimated: Estimate) -> list[SheetFigure]:
    """Return the totals that a published figure may be."""
    forward = estimated.forward
    total_flops = forward.flops + forward.elementwise_flops
    return [
        *list_forward_and_backward_totals(estimated),
        SheetFigure("3 x forward", 3 * forward.macs, MAC, ""),
        SheetFigure("3 x forward", 3 * forward.flops, FLOP, ""),
        SheetFigure("forward with elementwise operations", total_flops, FLOP, ""),
    ]
