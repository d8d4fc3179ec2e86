"""Steps of a server in a trace where no range names them (transformers' generate, nano-vLLM):
the shapes of operators show which is prefill and which is decode.

A step begins with the look-up of its tokens (aten::embedding). Where a trace begins inside a step,
and none of its modules is called twice, all of it is one. What a step is follows from its shapes:

- Look-ups and linear layers of (sequences, tokens of each, ...): one token of each is decode, more
  are prefill.
- Where no product with a weight has shapes, either (a trace of attention alone), the tokens are the
  rows of the tensors of queries and of keys, (tokens, heads, head dimension), that operators in the
  module of flash-attention's kernel read before its launch. The kernel's name states the head
  dimension, and its grid has to fit the heads.
- Where all tokens are in one row of sequences (nano-vLLM, vLLM), the rows of the products are the
  tokens. The kernels of attention then show it: those that read a cache in parts for one token of a
  sequence (split-KV with one block of queries, paged attention) are decode's, those of varying
  lengths prefill's. In decode each row is then a sequence, if it checks no drafts. A single row is
  decode unless a kernel is prefill's.

It finds no steps in traces of training, traces without attention, and traces in which nothing
reads a cache.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from perfctl.parsers.kineto.events import MODULE, DeviceEvent, SortedEvents
from perfctl.parsers.kineto.nesting import SpanNesting
from perfctl.parsers.operators import Shape
from perfctl.records.report import Gap
from perfctl.records.serving import FROM_SHAPES, PART_FROM_SHAPES, ServedStep

_LINEAR = {"aten::mm": 0, "aten::linear": 0, "aten::_scaled_mm": 0, "aten::addmm": 1}
"""Products of a weight -> which argument has a row a token."""
_ATTENDS = re.compile(r"attention|attn|softmax|fmha|flash_fwd|splitkv", re.IGNORECASE)
_CACHE = re.compile(
    r"kv_?cache|paged|cache_flash|splitkv|flash_?decod|batch_?decode", re.IGNORECASE
)
_DECODES = re.compile(
    r"paged_attention|flash_?decod|batch_?decode|single_?decode|decode_attention", re.IGNORECASE
)
_SPLIT = re.compile(r"flash_fwd_splitkv_kernel", re.IGNORECASE)
_PREFILLS = re.compile(
    r"varlen|batch_?prefill|flash_fwd_kernel(?!_traits)|prefill_with|fmha_fwd", re.IGNORECASE
)
_FLASH = re.compile(r"\bflash_fwd_(splitkv_)?kernel<Flash_fwd_kernel_traits<\(?(?:int\)\(?)?(\d+)")
"""flash-attention 2: whether it splits the keys, and the head dimension."""
_ALWAYS = 1 << 62


class _UnclearPhaseError(Exception):
    """Prefill and decode cannot be told apart; the text states why."""


TimedStep = tuple[int, int, ServedStep]
"""(begin, end, step), by the host's clock."""


@dataclass(slots=True)
class _StepEvidence:
    """What ran in one step."""

    looked_up: Shape = ()
    """Shape of the tokens whose embeddings it looked up; () for none."""
    products: Counter[Shape] = field(default_factory=Counter)
    """Shape of the tokens of a product with a weight -> calls."""
    phases: set[str] = field(default_factory=set)
    """Of its kernels of attention."""
    keys: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Of torch's own attention: (keys of all sequences, pairs of tokens and keys) -> calls."""


def infer_served_steps_from_shapes(
    events: SortedEvents, nesting: SpanNesting
) -> tuple[list[TimedStep], list[Gap]]:
    """Return the steps, of which the first begins before the capture and the last ends after it, or
    why there are none; nothing where ranges name them already, or where nothing was generated."""
    is_named = any(meaning.step is not None for meaning in nesting.meanings.values())
    if is_named or any(is_backward for _, _, is_backward in events.sequences):
        return [], []
    if not events.kernels:
        return [], _explain_host_only_attention_trace(events)
    names = {span.name for span in events.spans} | {kernel.name for kernel in events.kernels}
    if not any(map(_ATTENDS.search, names)):
        return [], []
    reads_cache = any(map(_CACHE.search, names))
    try:
        steps = _infer_steps(events)
    except _UnclearPhaseError as error:
        reason = (
            f"no range names a step, and the shapes do not separate prefill from decode: {error}"
        )
        return [], [Gap("served_step", "not_available", reason)] if reads_cache else []
    is_generated = reads_cache or any(step.phase == "decode" for _, _, step in steps)
    return steps if is_generated else [], []


def _explain_host_only_attention_trace(events: SortedEvents) -> list[Gap]:
    """Return a gap for a trace of attention's modules on the host alone; an encoder has such
    modules, too, so it names no server."""
    modules = [name for name in _list_module_calls(events) if _ATTENDS.search(name)]
    if not modules or any(not span.is_range for span in events.spans):
        return []
    reason = (
        "no range names a step, and the trace has neither kernels nor operators with shapes "
        f"inside its modules ({modules[-1].removeprefix(MODULE)} and others)"
    )
    return [Gap("served_step", "not_available", reason)]


def _list_module_calls(events: SortedEvents) -> list[str]:
    return [span.name for span in events.spans if span.is_range and span.name.startswith(MODULE)]


def _infer_steps(events: SortedEvents) -> list[TimedStep]:
    """Return the steps. Raises _UnclearPhaseError."""
    look_ups = _find_token_lookups(events)
    if not look_ups:
        calls = Counter(_list_module_calls(events))
        if not calls or max(calls.values()) > 1:
            raise _UnclearPhaseError("nothing marks where a step begins")
    limits = [-_ALWAYS, *(start for start, _ in look_ups[1:]), _ALWAYS]
    evidence = [_StepEvidence(shape) for _, shape in look_ups] or [_StepEvidence()]

    def find_evidence_at(time: int) -> _StepEvidence:
        return evidence[bisect_right(limits, time) - 1]

    for index, call in events.operators.items():
        span = events.spans[index]
        argument = _LINEAR.get(span.name)
        shape = (
            call.shape_of_argument(argument) if call is not None and argument is not None else ()
        )
        if len(shape) > 1:
            find_evidence_at(span.start).products[shape[:-1]] += 1
    for event in events.kernels:
        phase = _find_phase_of_attention_kernel(event)
        if phase and (origin := event.place) is not None:
            find_evidence_at(origin.at).phases.add(phase)
    for index, span in enumerate(events.spans):
        if span.name == "aten::scaled_dot_product_attention":
            shapes = _read_input_shapes(events, index)
            if len(shapes) > 1 and len(shapes[0]) == len(shapes[1]) == 4:
                (sequences, _, tokens, _), (_, _, keys, _) = shapes[:2]
                pairs = sequences * tokens * keys
                find_evidence_at(span.start).keys[sequences * keys, pairs] += 1
    if not look_ups and not evidence[0].products:
        rows = _infer_flash_attention_tokens(events)
        if rows is not None:
            evidence[0].products[(rows,)] += 1
    steps = []
    for number, (begin, end) in enumerate(pairwise(limits)):
        served = _infer_step(number, evidence[number])
        if not look_ups:
            served = served._replace(name=served.name.replace(FROM_SHAPES, PART_FROM_SHAPES))
        steps.append((begin, end, served))
    return steps


def _find_token_lookups(events: SortedEvents) -> list[tuple[int, Shape]]:
    """Return when tokens were looked up, and the shape of each; look-ups in other tables
    (positions) are left out."""
    look_ups = sorted(
        (span.start, shapes[0], shapes[1])
        for index, span in enumerate(events.spans)
        if span.name == "aten::embedding" and len(shapes := _read_input_shapes(events, index)) > 1
    )
    return [(start, shape) for start, table, shape in look_ups if table == look_ups[0][1] and shape]


def _read_input_shapes(events: SortedEvents, index: int) -> list[Shape]:
    text = events.spans[index].inputs[0]
    try:
        return [tuple(map(int, shape)) for shape in json.loads(text or "[]")]
    except (TypeError, ValueError):
        return []


def _infer_flash_attention_tokens(events: SortedEvents) -> int | None:
    """Return the tokens of a call of flash-attention: rows of the tensors of queries and of keys
    before it. None if they disagree."""
    answers = set()
    for event in events.kernels:
        match, origin, grid = _FLASH.search(event.name), event.place, event.args.grid
        if match is None or origin is None or grid is None or grid[2] is None:
            continue
        heads = grid[2]
        heads_of_rows: dict[int, set[int]] = {}
        for index, span in enumerate(events.spans):
            if span.thread == origin.thread and span.start < origin.at and not span.is_range:
                for shape in _read_input_shapes(events, index)[:1]:
                    if len(shape) == 3 and shape[2] == int(match[2]):
                        heads_of_rows.setdefault(shape[0], set()).add(shape[1])
        # Queries have as many heads as keys or a multiple. The grid has a block for each head, and
        # where keys are split for each sequence and head of keys: fewer than all where some
        # sequences are attended to elsewhere.
        fitting = []
        for rows, counts in heads_of_rows.items():
            least, most = min(counts), max(counts)
            fits_grid = heads == most
            if match[1]:
                fits_grid = heads % least == 0 and heads <= rows * least
            if len(counts) == 2 and most % least == 0 and fits_grid:
                fitting.append(rows)
        answers.update(fitting if len(fitting) == 1 else [0])
    return answers.pop() if len(answers) == 1 and 0 not in answers else None


def _find_phase_of_attention_kernel(event: DeviceEvent) -> str | None:
    """Return which phase a kernel of attention is of; None for other kernels, and for those of
    either."""
    kernel, grid = event.name, event.args.grid
    if _SPLIT.search(kernel):
        return "decode" if grid and grid[0] == 1 else "prefill"
    return "decode" if _DECODES.search(kernel) else "prefill" if _PREFILLS.search(kernel) else None


def _infer_step(number: int, evidence: _StepEvidence) -> ServedStep:
    products, phases = evidence.products, evidence.phases
    if not evidence.looked_up and not products:
        raise _UnclearPhaseError(
            "no matrix multiplication with a weight has shapes, and the tensors around attention "
            "do not state its tokens"
        )
    shape = evidence.looked_up or max(products, key=lambda shape: (len(shape), products[shape]))
    keys, pairs = next(iter(evidence.keys)) if len(evidence.keys) == 1 else (None, None)
    if len(shape) == 2 and shape[0] == 1 and phases == {"decode"}:
        shape = shape[1:]  # sequences of one token each, packed into one row
    rows, tokens = shape[0], shape[0]
    sequences: int | None = None
    if len(shape) == 2:
        sequences, tokens = rows, rows * shape[1]
        name = f"{FROM_SHAPES}{rows:,} x {shape[1]:,} tokens"
        phases = {"decode" if shape[1] == 1 else "prefill"}
    else:
        name = f"{FROM_SHAPES}{rows:,} {'row' if rows == 1 else 'rows'}"
        if rows == 1 and "prefill" not in phases:
            phases = {"decode"}
    if len(phases) != 1:
        kinds = "of both phases" if phases else "of either phase"
        raise _UnclearPhaseError(
            f"its products have {rows:,} rows, and its kernels of attention may be {kinds}"
        )
    if "decode" in phases:
        return ServedStep(number, name, "decode", 0, 0, 0, 0, rows, rows, keys, pairs)
    return ServedStep(number, name, "prefill", sequences, tokens, keys, pairs, 0, 0, 0, 0)
