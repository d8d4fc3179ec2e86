"""Estimate generation of text: trace prefill and a few steps of decode, then add up all steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.flops.formulas import ITEM_BYTES
from perfctl.orchestrator.estimate.generation import (
    Amounts,
    GenerationEstimate,
    GenerationPhase,
    KvCache,
    build_layer_work_rows,
    count_cache_writes_by_layer,
    describe_kv_cache,
    find_growing_axis,
    sum_step_forward_work,
    sum_step_work_over_contexts,
)
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import (
    convert_model_errors,
    estimate_from_trace,
    format_layer_names_hint,
    require_torch,
    silence_driver_warning,
)
from perfctl.orchestrator.estimate.step import Estimate, describe_expert_count
from perfctl.orchestrator.estimate.trace_cache import TraceCache, open_trace_cache_if_reproducible
from perfctl.orchestrator.options import raise_if_invalid_batch_sizes
from perfctl.records.paper import StepTrace
from perfctl.records.precision import PRECISIONS

if TYPE_CHECKING:
    from perfctl.records.paper import CacheTensor
    from perfctl.workloads.models.generation import TextGenerator

CACHE_TYPES: Mapping[str, str | None] = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp8": "float8_e4m3fn",
    "int8": "int8",
    "none": None,
}
"""Names of types of a cache; "none": no cache, every step runs all tokens so far."""

StepAmounts = tuple[Estimate, Amounts, StepTrace]


def estimate_generation(
    request: Request, batches: Sequence[int] = (1,)
) -> Mapping[int, GenerationEstimate]:
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
    _raise_if_invalid_generation_request(request, batches)
    require_torch()
    with silence_driver_warning():
        model = _TracedGenerator(request)
        return {batch: _estimate_batch_generation(model, batch) for batch in batches}


def extract_layer_generation(generation: GenerationEstimate, layer: str) -> GenerationEstimate:
    """Only ``layer`` and what is inside it; "(model)" is all. Raises UsageError when the model has
    no such layer."""
    part = generation.extract_layer("" if layer == "(model)" else layer)
    if part is None:
        names = [module.path for module in generation.prefill.modules if module.path]
        raise UsageError(
            f"`layer`: layer '{layer}' not found in the model",
            format_layer_names_hint("It has", names),
        )
    return part


def _raise_if_invalid_generation_request(request: Request, batches: Sequence[int]) -> None:
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
    for name in ("inputs", "seq", "optimizer", "memory"):
        if getattr(request, name):
            raise UsageError(f"`{name}` and `prompt` exclude each other", f"Omit `{name}`")
    if PRECISIONS[request.precision].autocast is not None or request.precision == "tf32":
        remedy = "Use bf16-true or fp16-true: weights, cache and arithmetic in that type"
        raise UsageError(f"`precision` {request.precision} is not available with `prompt`", remedy)
    raise_if_invalid_batch_sizes(batches)


@dataclass(frozen=True, slots=True)
class _GeneratorFacts:
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


class _TracedGenerator:
    """The model of a request. It is built when a step is traced that no earlier call traced."""

    def __init__(self, request: Request) -> None:
        """Raises UsageError for a model that cannot generate, PerfctlError when its own
        code fails."""
        self.request = request
        self._kept = open_trace_cache_if_reproducible(request) or TraceCache()
        self._built: TextGenerator | None = None
        self.facts = self._kept.get(_GeneratorFacts, "generator") or self._collect_generator_facts()

    def _collect_generator_facts(self) -> _GeneratorFacts:
        source, prompt = self._build_generator_once(), self.request.prompt or 1
        facts = _GeneratorFacts(
            source.name,
            type(source.model).__name__,
            source.cache,
            source.count_decoder_prefill_tokens(prompt),
            source.notes,
            source.positions,
            source.latent,
            source.model_note,
            source.weights_note,
        )
        self._kept.put(facts, "generator")
        return facts

    def _build_generator_once(self) -> TextGenerator:
        from perfctl.workloads.models.generation import build_text_generator

        if self._built is None:
            request = self.request
            with convert_model_errors():
                self._built = build_text_generator(
                    request.model, request.device, request.own, request.prompt or 1
                )
            self._kept.record_source_file_digests(self._built.files)
        return self._built

    def load_or_trace_step(self, batch: int, context: int | None, has_kv_cache: bool) -> StepTrace:
        """The step whose token is number ``context`` of the decoder; None: prefill."""
        cache_key = ("step", batch, context, has_kv_cache)
        step = self._kept.get(StepTrace, *cache_key)
        if step is None:
            step = self._trace_step(batch, context, has_kv_cache)
            if step.traced.problem is None:
                self._kept.put(step, *cache_key)
        return step

    def _trace_step(self, batch: int, context: int | None, has_kv_cache: bool) -> StepTrace:
        from perfctl.workloads.tracing.generation import GenerationStepTracer

        request = self.request
        stepper = GenerationStepTracer(
            self._build_generator_once(),
            batch,
            request.prompt or 1,
            request.device,
            has_kv_cache,
            request.precision,
        )
        return stepper.trace_prefill() if context is None else stepper.trace_decode_step(context)


@dataclass(frozen=True, slots=True)
class _StepTraces:
    """The traced steps of one model at one batch size, each traced once."""

    model: _TracedGenerator
    batch: int
    cached: bool
    probe: Sequence[CacheTensor]
    item_bytes: int | None
    traced: dict[int | None, StepAmounts] = field(default_factory=dict)

    def get_or_trace_step(self, context: int | None) -> StepAmounts:
        """Return the step whose token is number ``context`` of the decoder; None: prefill. Raises
        _TraceStopped when its trace stopped early."""
        if context not in self.traced:
            self.traced[context] = self._trace_step_amounts(context)
        return self.traced[context]

    def get_step_work_amounts(self, context: int) -> Amounts:
        return self.get_or_trace_step(context)[1]

    def _trace_step_amounts(self, context: int | None) -> StepAmounts:
        step = self.model.load_or_trace_step(self.batch, context, self.cached)
        estimate_ = estimate_from_trace(step.traced)
        if estimate_.problem is not None:
            raise _TraceStopped(estimate_)
        types = {
            tensor.name: self.item_bytes or ITEM_BYTES.get(tensor.dtype, 4) for tensor in step.cache
        }
        written: dict[str, int] = {}
        for tensor in step.cache:
            for layer, values in count_cache_writes_by_layer(
                self.probe, (tensor,), context is None
            ).items():
                written[layer] = written.get(layer, 0) + values * types[tensor.name]
        return (
            estimate_,
            sum_step_forward_work(estimate_.calls, step.traffic, written, self.item_bytes),
            step,
        )


class _TraceStopped(Exception):
    def __init__(self, estimate_: Estimate) -> None:
        super().__init__(estimate_.problem)
        self.found = estimate_


def _estimate_batch_generation(model: _TracedGenerator, batch: int) -> GenerationEstimate:
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
    empty = GenerationEstimate(
        facts.name, batch, prompt, generate, (), cached, None, Estimate((), (), (), None, None), ()
    )
    try:
        probe = _trace_cache_after_second_token(model) if cached else ()
        steps = _StepTraces(model, batch, cached, probe, item_bytes)
        prefill, work, trace = steps.get_or_trace_step(None)
        modules = prefill.modules
        phases = [
            GenerationPhase(
                "prefill", 1, start, start, start, build_layer_work_rows(work, modules), 1
            )
        ]
        if generate:
            trace = steps.get_or_trace_step(end)[2]
            axes = {tensor.name: find_growing_axis(tensor) for tensor in probe}
            kept_sizes = [
                tensor.shape[axis]
                for tensor in trace.cache
                if (axis := axes.get(tensor.name)) is not None
            ]
            total = sum_step_work_over_contexts(
                start + 1,
                end,
                steps.get_step_work_amounts,
                1 if cached else 2,
                {size + 1 for size in kept_sizes if size < end},
            )
            traced, both = len(steps.traced) - 1, Counter(work) + Counter(total)
            rows = (
                ("decode", generate, start + 1, end, total, traced),
                ("total", generate + 1, start, end, both, traced + 1),
                (
                    "decode, first step",
                    1,
                    start + 1,
                    start + 1,
                    steps.get_step_work_amounts(start + 1),
                    1,
                ),
                ("decode, last step", 1, end, end, steps.get_step_work_amounts(end), 1),
            )
            phases += [
                GenerationPhase(
                    name,
                    count,
                    1 if cached else context,
                    first,
                    context,
                    build_layer_work_rows(layer_amounts, modules),
                    estimate_,
                )
                for name, count, first, context, layer_amounts, estimate_ in rows
            ]
    except _TraceStopped as error:
        return replace(empty, prefill=error.found, problem=error.found.problem)
    cache = (
        describe_kv_cache(probe, trace.cache, end, batch, cache_type, facts.latent)
        if cached
        else None
    )
    precision_note = PRECISIONS[request.precision].said
    weights_note = (
        f"{request.precision}: {precision_note}" if precision_note else facts.weights_note
    )
    model_notes = _list_model_notes(facts, prefill, end)
    notes = (
        *(facts.model_note, *facts.notes, weights_note),
        *_list_counting_notes(cache, generate, len(steps.traced) - 1),
        *model_notes[1:],
    )
    ends = (
        (steps.get_or_trace_step(start + 1)[0], steps.get_or_trace_step(end)[0]) if generate else ()
    )
    return replace(
        empty,
        phases=tuple(phases),
        cache=cache,
        prefill=prefill,
        notes=tuple(filter(None, notes)),
        model_notes=model_notes,
        decode=ends,
    )


def _trace_cache_after_second_token(model: _TracedGenerator) -> tuple[CacheTensor, ...]:
    """The cache of one sequence after its second token, which shows how it grows and which layer
    reads what."""
    first_step = model.load_or_trace_step(1, 2, True)
    if first_step.traced.problem is not None:
        raise _TraceStopped(estimate_from_trace(first_step.traced))
    if not first_step.cache:
        problem = f"{model.facts.kind} does not return {model.facts.cache}"
        raise UsageError(
            f"{model.request.model}: {problem}", "`kv_cache` none: each step runs all tokens again"
        )
    return first_step.cache


def _list_model_notes(
    facts: _GeneratorFacts, prefill: Estimate, final_context: int
) -> tuple[str, ...]:
    """Return sentences that hold for the model, whatever runs it; the first, "" if not known, says
    which model it is."""
    notes = [facts.model_note]
    if prefill.experts:
        notes.append(describe_expert_count(prefill.experts))
        notes.append("experts read per step: at most tokens x top_k different experts")
    if facts.positions is not None and final_context > facts.positions:
        notes.append(
            f"the model was made for {facts.positions:,} positions; {final_context:,} are asked for"
        )
    return tuple(notes)


def _list_counting_notes(cache: KvCache | None, generate: int, traced: int) -> list[str]:
    notes = [
        (
            "attention: a causal mask does not reduce the count, a sliding window does: decode "
            "computes the keys of the cache and the new one"
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
    if cache is not None and cache.has_compressed_latent_cache:
        notes.append(
            "latent attention: each step expands the whole compressed cache again, as "
            "transformers does; kernels that merge this matrix multiplication into others do less"
        )
    return notes
