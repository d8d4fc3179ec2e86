"""Estimate generation of text: trace prefill and a few steps of decode, then add up all steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.estimate.flops.formulas import ITEM_BYTES
from perfctl.orchestrator.estimate.generation import (
    Amounts,
    Cache,
    Generation,
    Phase,
    add_up,
    amounts,
    cache_of,
    growing_axis,
    layers_of,
    written_by,
)
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import (
    from_trace,
    names_of,
    need_torch,
    without_driver_warning,
)
from perfctl.orchestrator.estimate.step import Estimate, experts_assumption
from perfctl.orchestrator.estimate.trace_cache import Kept, kept_traces
from perfctl.orchestrator.options import check_batches
from perfctl.records.paper import StepTrace
from perfctl.records.precision import PRECISIONS

if TYPE_CHECKING:
    from perfctl.records.paper import CacheTensor
    from perfctl.workloads.models.generation import Generator

CACHE_TYPES: Mapping[str, str | None] = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp8": "float8_e4m3fn",
    "int8": "int8",
    "none": None,
}
"""Names of types of a cache; "none": no cache, every step runs all tokens so far."""


def estimate_generation(
    request: Request, batches: Sequence[int] = (1,)
) -> Mapping[int, Generation]:
    """Prefill and decode of a model that writes one token after the other, at each batch size;
    forward only.

    ``request.prompt`` tokens go in at once; then come ``request.generate`` steps of one token each.
    ``request.kv_cache``: type of the cache's values (a key of CACHE_TYPES); None takes the type
    that the model keeps.

    Raises UsageError for a request that makes no sense and a model that takes no cache, ToolMissing
    without torch, PerfctlError when the model's own code fails while it is built. One that fails
    later is a ``problem``.
    """
    request.check()
    _check(request, batches)
    need_torch()
    with without_driver_warning():
        model = _Model(request)
        return {batch: _generation(model, batch) for batch in batches}


def part_of_model(generation: Generation, layer: str) -> Generation:
    """Only ``layer`` and what is inside it; "(model)" is all. Raises UsageError when the model has
    no such layer."""
    part = generation.part("" if layer == "(model)" else layer)
    if part is None:
        names = [module.path for module in generation.prefill.modules if module.path]
        raise UsageError(
            f"`layer`: layer '{layer}' not found in the model", names_of("It has", names)
        )
    return part


def _check(request: Request, batches: Sequence[int]) -> None:
    if request.prompt is None or request.prompt < 1:
        raise UsageError(
            f"`prompt` must be at least 1, got {request.prompt}", "For example `prompt` 512"
        )
    if (request.generate or 0) < 0:
        raise UsageError(
            f"`generate` must not be negative, got {request.generate}", "For example `generate` 128"
        )
    if request.kv_cache not in (None, *CACHE_TYPES):
        raise UsageError(
            f"invalid value '{request.kv_cache}' for `kv_cache`", f"Choose {', '.join(CACHE_TYPES)}"
        )
    for field in ("inputs", "seq", "optimizer", "memory"):
        if getattr(request, field):
            raise UsageError(f"`{field}` and `prompt` exclude each other", f"Omit `{field}`")
    if PRECISIONS[request.precision].autocast is not None or request.precision == "tf32":
        remedy = "Use bf16-true or fp16-true: weights, cache and arithmetic in that type"
        raise UsageError(f"`precision` {request.precision} is not available with `prompt`", remedy)
    check_batches(batches)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known of a model that generates, beside the model itself."""

    name: str
    kind: str
    """Name of its class."""
    cache: str | None
    """Parameter that takes the cache."""
    start: int
    """Tokens that prefill puts into the decoder."""
    notes: tuple[str, ...]
    positions: int | None
    latent: tuple[int, int] | None
    model_note: str
    weights_note: str


class _Model:
    """The model of a request. It is built when a step is traced that no earlier call traced."""

    def __init__(self, request: Request) -> None:
        """Raises UsageError for a model that cannot generate, PerfctlError when its own
        code fails."""
        self.request = request
        self._kept = kept_traces(request) or Kept()
        self._built: Generator | None = None
        self.facts = self._kept.get(_Facts, "generator") or self._facts()

    def _facts(self) -> _Facts:
        source, prompt = self._generator(), self.request.prompt or 1
        facts = _Facts(
            source.name,
            type(source.model).__name__,
            source.cache,
            source.start(prompt),
            source.notes,
            source.positions,
            source.latent,
            source.model_note,
            source.weights_note,
        )
        self._kept.put(facts, "generator")
        return facts

    def _generator(self) -> Generator:
        from perfctl.workloads.models.generation import find_generator
        from perfctl.workloads.models.source import ModelError

        if self._built is None:
            request = self.request
            try:
                self._built = find_generator(
                    request.model, request.device, request.own, request.prompt or 1
                )
            except ModelError as error:
                raise (PerfctlError if error.raised else UsageError)(
                    error.message, error.remedy
                ) from error
            self._kept.made_from(self._built.files)
        return self._built

    def step(self, batch: int, context: int | None, cached: bool) -> StepTrace:
        """The step whose token is number ``context`` of the decoder; None: prefill."""
        cache_key = ("step", batch, context, cached)
        step = self._kept.get(StepTrace, *cache_key)
        if step is None:
            step = self._trace(batch, context, cached)
            if step.traced.problem is None:
                self._kept.put(step, *cache_key)
        return step

    def _trace(self, batch: int, context: int | None, cached: bool) -> StepTrace:
        from perfctl.workloads.tracing.generation import Stepper

        request = self.request
        stepper = Stepper(
            self._generator(), batch, request.prompt or 1, request.device, cached, request.precision
        )
        return stepper.first() if context is None else stepper.at(context)


class _Steps:
    """The traced steps of one model at one batch size, each traced once."""

    def __init__(
        self,
        model: _Model,
        batch: int,
        cached: bool,
        probe: Sequence[CacheTensor],
        item_bytes: int | None,
    ) -> None:
        self.model, self.batch, self.cached, self.probe, self.item_bytes = (
            model,
            batch,
            cached,
            probe,
            item_bytes,
        )
        self.known: dict[int, tuple[Estimate, Amounts, StepTrace]] = {}

    def first(self) -> tuple[Estimate, Amounts, StepTrace]:
        """Prefill."""
        return self._read(self.model.step(self.batch, None, self.cached), True)

    def at(self, context: int) -> tuple[Estimate, Amounts, StepTrace]:
        if context not in self.known:
            self.known[context] = self._read(
                self.model.step(self.batch, context, self.cached), False
            )
        return self.known[context]

    def amounts(self, context: int) -> Amounts:
        return self.at(context)[1]

    def _read(self, step: StepTrace, prefill: bool) -> tuple[Estimate, Amounts, StepTrace]:
        """Raises _Stopped when the trace stopped early."""
        estimate_ = from_trace(step.traced)
        if estimate_.problem is not None:
            raise _Stopped(estimate_)
        types = {
            tensor.name: self.item_bytes or ITEM_BYTES.get(tensor.dtype, 4) for tensor in step.cache
        }
        written: dict[str, int] = {}
        for tensor in step.cache:
            for layer, values in written_by(self.probe, (tensor,), prefill).items():
                written[layer] = written.get(layer, 0) + values * types[tensor.name]
        return estimate_, amounts(estimate_.calls, step.traffic, written, self.item_bytes), step


class _Stopped(Exception):
    def __init__(self, estimate_: Estimate) -> None:
        super().__init__(estimate_.problem)
        self.found = estimate_


def _generation(model: _Model, batch: int) -> Generation:
    request, facts = model.request, model.facts
    prompt, generate, cached = (
        request.prompt or 1,
        request.generate or 0,
        request.kv_cache != "none",
    )
    cache_type = CACHE_TYPES[request.kv_cache] if request.kv_cache else None
    item_bytes = ITEM_BYTES[cache_type] if cache_type else None
    start = facts.start
    end = start + generate
    empty = Generation(facts.name, batch, prompt, generate, (), cached, None, _nothing(), ())
    try:
        probe = _probe(model) if cached else ()
        steps = _Steps(model, batch, cached, probe, item_bytes)
        prefill, work, trace = steps.first()
        modules = prefill.modules
        phases = [Phase("prefill", 1, start, start, start, layers_of(work, modules), 1)]
        if generate:
            trace = steps.at(end)[2]
            kept_sizes = [tensor.shape[axis] for tensor, axis in _grown(probe, trace.cache)]
            total = add_up(
                start + 1,
                end,
                steps.amounts,
                1 if cached else 2,
                {size + 1 for size in kept_sizes if size < end},
            )
            traced, both = len(steps.known), Counter(work) + Counter(total)
            rows = (
                ("decode", generate, start + 1, end, total, traced),
                ("total", generate + 1, start, end, both, traced + 1),
                ("decode, first step", 1, start + 1, start + 1, steps.amounts(start + 1), 1),
                ("decode, last step", 1, end, end, steps.amounts(end), 1),
            )
            phases += [
                Phase(
                    name,
                    count,
                    1 if cached else context,
                    first,
                    context,
                    layers_of(layer_amounts, modules),
                    estimate_,
                )
                for name, count, first, context, layer_amounts, estimate_ in rows
            ]
    except _Stopped as error:
        return replace(empty, prefill=error.found, problem=error.found.problem)
    cache = cache_of(probe, trace.cache, end, batch, cache_type, facts.latent) if cached else None
    precision_note = PRECISIONS[request.precision].said
    weights_note = (
        f"{request.precision}: {precision_note}" if precision_note else facts.weights_note
    )
    model_notes = _model_notes(facts, prefill, end)
    notes = (
        *(facts.model_note, *facts.notes, weights_note),
        *_notes(cache, generate, len(steps.known)),
        *model_notes[1:],
    )
    ends = (steps.at(start + 1)[0], steps.at(end)[0]) if generate else ()
    return replace(
        empty,
        phases=tuple(phases),
        cache=cache,
        prefill=prefill,
        notes=tuple(filter(None, notes)),
        model_notes=model_notes,
        decode=ends,
    )


def _probe(model: _Model) -> tuple[CacheTensor, ...]:
    """The cache of one sequence after its second token, which shows how it grows and which layer
    reads what."""
    first_step = model.step(1, 2, True)
    if first_step.traced.problem is not None:
        raise _Stopped(from_trace(first_step.traced))
    if not first_step.cache:
        problem = f"{model.facts.kind} does not return {model.facts.cache}"
        raise UsageError(
            f"{model.request.model}: {problem}", "`kv_cache` none: each step runs all tokens again"
        )
    return first_step.cache


def _nothing() -> Estimate:
    return Estimate((), (), (), None, None)


def _grown(
    probe: Sequence[CacheTensor], last: Sequence[CacheTensor]
) -> list[tuple[CacheTensor, int]]:
    axes = {tensor.name: growing_axis(tensor) for tensor in probe}
    return [(tensor, axis) for tensor in last if (axis := axes.get(tensor.name)) is not None]


def _model_notes(facts: _Facts, prefill: Estimate, end: int) -> tuple[str, ...]:
    """Return sentences that hold for the model, whatever runs it; the first, "" if not known, says
    which model it is."""
    notes = [facts.model_note]
    if prefill.experts:
        notes.append(experts_assumption(prefill.experts))
        notes.append("experts read per step: at most tokens x top_k different experts")
    if facts.positions is not None and end > facts.positions:
        notes.append(f"the model was made for {facts.positions:,} positions; {end:,} are asked for")
    return tuple(notes)


def _notes(cache: Cache | None, generate: int, traced: int) -> list[str]:
    notes = [
        (
            "attention: prefill computes the full square of scores, masked or not; decode "
            "computes every earlier key"
        )
    ]
    if generate:
        how = "a line" if cache is not None else "a polynomial of degree 2"
        follows = (
            f"the sum over {generate:,} steps, from {traced} traced: in between, work follows "
            f"{how} of the context, as checked"
        )
        notes.append(f"decode: {follows if traced < generate else 'every step traced'}")
        notes.append(
            f"decode: generate() of transformers runs {generate - 1:,} of these steps for "
            f"{generate:,} tokens, as the first comes from prefill"
        )
    notes.append(
        "bytes: weights once per step, cache reads and writes; activations stay on the chip "
        "(--all: op by op)"
    )
    if cache is not None and cache.keeps_latent:
        notes.append(
            "latent attention: each step expands the whole compressed cache again, as "
            "transformers does; kernels that merge this matrix multiplication into others do less"
        )
    return notes
