"""Prefill and decode from the shapes of operators, in traces whose steps no range names (transformers' generate, nano-vLLM).

A step begins with the look-up of its tokens (aten::embedding). Where a trace begins inside a step, and none of its modules is
called twice, all of it is one. What a step is follows from its shapes:

- Look-ups and linear layers of (sequences, tokens of each, ...): one token of each is decode, more are prefill.
- Where no product with a weight has shapes, either (a trace of attention alone), the tokens are the rows of the tensors of queries and
  of keys, (tokens, heads, head dimension), that operators in the module of flash-attention's kernel read before its launch. The
  kernel's name states the head dimension, and its grid has to fit the heads.
- Where all tokens are in one row of sequences (nano-vLLM, vLLM), the rows of the products are the tokens. The kernels of attention
  then tell: those that read a cache in parts for one token of a sequence (split-KV with one block of queries, paged attention)
  are decode's, those of varying lengths prefill's. In decode each row is then a sequence, if it checks no drafts. A single row is
  decode where no kernel says otherwise.

Nothing is told of training, of traces without attention, and of those in which nothing reads a cache.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from perfctl.parsers.kineto.events import MODULE, Events
from perfctl.parsers.kineto.nesting import Nesting
from perfctl.parsers.kineto.records import Launches
from perfctl.records.report import Gap
from perfctl.records.serving import FROM_SHAPES, PART_FROM_SHAPES, ServedStep

_LINEAR = {"aten::mm": 0, "aten::linear": 0, "aten::_scaled_mm": 0, "aten::addmm": 1}
"""Products of a weight -> which argument has a row a token."""
_ATTENDS = re.compile(r"attention|attn|softmax|fmha|flash_fwd|splitkv", re.IGNORECASE)
_CACHE = re.compile(r"kv_?cache|paged|cache_flash|splitkv|flash_?decod|batch_?decode", re.IGNORECASE)
_DECODES = re.compile(r"paged_attention|flash_?decod|batch_?decode|single_?decode|decode_attention", re.IGNORECASE)
_SPLIT = re.compile(r"flash_fwd_splitkv_kernel", re.IGNORECASE)
_PREFILLS = re.compile(r"varlen|batch_?prefill|flash_fwd_kernel(?!_traits)|prefill_with|fmha_fwd", re.IGNORECASE)
_FLASH = re.compile(r"\bflash_fwd_(splitkv_)?kernel<Flash_fwd_kernel_traits<\(?(?:int\)\(?)?(\d+)")
"""flash-attention 2: whether it splits the keys, and the head dimension."""
_ALWAYS = 1 << 62


class ShapeSteps(NamedTuple):
    """Steps with their times on the host's clock, or why there are none."""

    steps: tuple[tuple[int, int, ServedStep], ...] = ()
    """(begin, end, step): the first begins before the capture, the last ends after it."""
    gap: Gap | None = None


def shape_steps(events: Events, nesting: Nesting, launches: Launches) -> ShapeSteps:
    """The steps; empty where ranges name them already, or where nothing was generated."""
    named = bool(nesting.served) or any(meaning.step is not None for meaning in nesting.meanings.values())
    if named or any(is_backward for _, _, is_backward in events.sequences):
        return ShapeSteps()
    if not events.kernels:
        return _without_kernels(events)
    names = {span.name for span in events.spans} | {kernel.name for kernel in events.kernels}
    if not any(map(_ATTENDS.search, names)):
        return ShapeSteps()
    cached = any(map(_CACHE.search, names))
    found, why = _steps(events, nesting, launches)
    if not cached and not any(step.phase == "decode" for _, _, step in found):
        return ShapeSteps()
    if found:
        return ShapeSteps(found)
    text = f"no range names a step and its shapes do not tell prefill from decode: {why}"
    return ShapeSteps(gap=Gap("served_step", "not_available", text))


def _without_kernels(events: Events) -> ShapeSteps:
    """A gap for a trace of attention's modules on the host alone; an encoder has such modules, too, so it names no server."""
    modules = [
        span.name.removeprefix(MODULE) for span in events.spans if span.is_range and span.name.startswith(MODULE)
    ]
    mine = next((name for name in reversed(modules) if _ATTENDS.search(name)), None)
    if mine is None or any(not span.is_range for span in events.spans):
        return ShapeSteps()
    text = f"no range names a step, and the trace has neither kernels nor operators with shapes inside its modules ({mine} and others)"
    return ShapeSteps(gap=Gap("served_step", "not_available", text))


def _steps(
    events: Events, nesting: Nesting, launches: Launches
) -> tuple[tuple[tuple[int, int, ServedStep], ...], str | None]:
    begins, looked = _look_ups(events)
    if not begins:
        calls = Counter(span.name for span in events.spans if span.is_range and span.name.startswith(MODULE))
        if not calls or max(calls.values()) > 1:
            return (), "nothing marks where a step begins"
    limits = [-_ALWAYS, *begins[1:], _ALWAYS]
    products: list[Counter[tuple[int, ...]]] = [Counter() for _ in limits[1:]]
    for index, call in events.operators.items():
        span = events.spans[index]
        place = _LINEAR.get(span.name)
        if place is None or call is None or len(call.shapes) <= place or not (shape := call.shapes[place]):
            continue
        if len(shape) > 1:
            products[bisect_right(limits, span.start) - 1][shape[:-1]] += 1
    hints: list[Counter[str]] = [Counter() for _ in limits[1:]]
    for event in events.kernels:
        hint = _hint(event.name, event.args[2] if len(event.args) > 2 else None)
        if hint and (at := launches.place(event)) is not None:
            hints[bisect_right(limits, at.at) - 1][hint] += 1
    keys = _keys(events, limits)
    if not begins and not products[0] and (rows := _attended(events, launches)) is not None:
        products[0][(rows,)] += 1
    found = []
    for number, (begin, end) in enumerate(pairwise(limits)):
        shape = looked[number] if looked else None
        step = _step(number, shape, products[number], hints[number], keys[number])
        if isinstance(step, str):
            return (), step
        if not begins:
            step = step._replace(name=step.name.replace(FROM_SHAPES, PART_FROM_SHAPES))
        found.append((begin, end, step))
    return tuple(found), None


def _look_ups(events: Events) -> tuple[list[int], list[tuple[int, ...]]]:
    """When tokens were looked up, and the shape of each; look-ups in other tables (positions) are left out."""
    found = []
    for index, span in enumerate(events.spans):
        if span.name == "aten::embedding" and len(shapes := _shapes(events, index)) > 1:
            found.append((span.start, shapes[0], shapes[1]))
    found.sort()
    mine = [item for item in found if item[1] == found[0][1] and item[2]]
    return [start for start, _, _ in mine], [shape for _, _, shape in mine]


def _shapes(events: Events, index: int) -> list[tuple[int, ...]]:
    text = events.arguments[events.signatures[index]][0] if events.signatures is not None else None
    try:
        given = json.loads(text) if text else []
        return [tuple(map(int, shape)) for shape in given]
    except (TypeError, ValueError):
        return []


def _keys(events: Events, limits: Sequence[int]) -> list[Counter[tuple[int, int]]]:
    """Of torch's own attention in each step: (keys of all sequences, pairs of tokens and keys) -> calls."""
    found: list[Counter[tuple[int, int]]] = [Counter() for _ in limits[1:]]
    for index, span in enumerate(events.spans):
        if span.name == "aten::scaled_dot_product_attention":
            shapes = _shapes(events, index)
            if len(shapes) > 1 and len(shapes[0]) == len(shapes[1]) == 4:
                (sequences, _, tokens, _), (_, _, keys, _) = shapes[:2]
                found[bisect_right(limits, span.start) - 1][sequences * keys, sequences * tokens * keys] += 1
    return found


def _attended(events: Events, launches: Launches) -> int | None:
    """Tokens of a call of flash-attention: rows of the tensors of queries and of keys before it. None where they do not tell."""
    told = set()
    for event in events.kernels:
        found, at = _FLASH.search(event.name), launches.place(event)
        if found is None or at is None or len(event.args) < 5 or not isinstance(heads := event.args[4], int):
            continue
        seen: dict[int, set[int]] = {}
        for index, span in enumerate(events.spans):
            if span.thread == at.thread and span.start < at.at and not span.is_range:
                for shape in _shapes(events, index)[:1]:
                    if len(shape) == 3 and shape[2] == int(found[2]):
                        seen.setdefault(shape[0], set()).add(shape[1])
        # Queries have as many heads as keys or a multiple. The grid has a block for each head, and where keys are split for each
        # sequence and head of keys: fewer than all where some sequences are attended to elsewhere.
        fits = [rows for rows, several in seen.items() if len(several) == 2 and not max(several) % min(several)
                and (not heads % min(several) and heads <= rows * min(several) if found[1] else heads == max(several))]  # fmt: skip
        told.update(fits if len(fits) == 1 else [0])
    return told.pop() if len(told) == 1 and 0 not in told else None


def _hint(kernel: str, grid_x: object) -> str | None:
    """Which phase a kernel of attention is of; None for other kernels, and for those of either."""
    if _SPLIT.search(kernel):
        return "decode" if grid_x == 1 else "prefill"
    return "decode" if _DECODES.search(kernel) else "prefill" if _PREFILLS.search(kernel) else None


def _step(
    number: int, looked: tuple[int, ...] | None, products: Counter[tuple[int, ...]], hints: Counter[str],
    keys: Counter[tuple[int, int]],
) -> ServedStep | str:  # fmt: skip
    """The step, or why it is not known."""
    if not looked and not products:
        return "no product with a weight has shapes, and the tensors around attention do not tell its tokens"
    shape = looked or max(products, key=lambda shape: (len(shape), products[shape]))
    told = keys.most_common(1)
    keyed, pairs = told[0][0] if len(keys) == 1 else (None, None)
    if len(shape) == 2 and shape[0] == 1 and set(hints) == {"decode"}:
        shape = shape[1:]  # sequences of one token each, packed into one row
    if len(shape) == 2:
        sequences, each = shape
        name = f"{FROM_SHAPES}{sequences:,} x {each:,} tokens"
        if each == 1:
            return ServedStep(number, name, "decode", 0, 0, 0, 0, sequences, sequences, keyed, pairs)
        return ServedStep(number, name, "prefill", sequences, sequences * each, keyed, pairs, 0, 0, 0, 0)
    rows = shape[0]
    name = f"{FROM_SHAPES}{rows:,} {'row' if rows == 1 else 'rows'}"
    if rows == 1 and "prefill" not in hints:
        hints = Counter(("decode",))
    if len(hints) != 1:
        kinds = "of both phases" if hints else "of either phase"
        return f"its products have {rows:,} rows, and its kernels of attention may be {kinds}"
    if "decode" in hints:
        return ServedStep(number, name, "decode", 0, 0, 0, 0, rows, rows, keyed, pairs)
    return ServedStep(number, name, "prefill", None, rows, keyed, pairs, 0, 0, 0, 0)
