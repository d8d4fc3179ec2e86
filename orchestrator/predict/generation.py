"""How long a language model takes to generate text: to its first token, and for each token
after it.

Two ways to run it, whose times differ by up to ten at batch 1:

- ``eager``: PyTorch in eager mode, as generate() of transformers. A step is a forward pass,
  predicted by the fit of whole steps (:mod:`published`); it takes at least what the host needs to
  start its operations, and what its weights and cache take to read.
- ``tensorrt-llm``: a server with fused kernels and CUDA graphs (the fit to published times of
  TensorRT-LLM, in engines.json).

One step of such a server, prefill or one of decode, takes for the whole batch (1 multiply-add is
2 FLOPs; the first line counts for the layers and for the head)::

    seconds = max(products * FLOPs of products / peak, weights * their bytes / bandwidth)
            + attention * FLOPs of attention / peak + cache * bytes of the KV cache / bandwidth
            + launch * layers with products + sequence * sequences

Eight costs hold for all devices; there is no factor of a device. All are positive and every amount
grows with batch and context, so a larger batch, a longer context or a chip with lower peaks never
takes less time. ``scripts/proof/accuracy/engines/publish_engines.py`` makes the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, log
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from perfctl.orchestrator.counts.hardware.machines import Device, Machine
from perfctl.orchestrator.estimate.generation import GenerationEstimate, GenerationPhase, LayerWork
from perfctl.orchestrator.estimate.memory import get_default_reserve_bytes
from perfctl.orchestrator.estimate.step import Estimate
from perfctl.orchestrator.predict import published
from perfctl.orchestrator.predict.answer import DeviceAndPrices, Question
from perfctl.orchestrator.predict.cost import Span
from perfctl.orchestrator.predict.operations import StepSpec, list_forward_operations_per_sample
from perfctl.orchestrator.predict.prices import Price, PriceTable
from perfctl.orchestrator.predict.published import (
    WIDER,
    list_board_table_machines,
    strip_memory_size,
)
from perfctl.orchestrator.predict.step_parts import get_peak_flops_or_raise

FORMAT = "perfctl engines 1"
FILE = Path(__file__).with_name("engines.json")
COSTS = (
    "products",
    "fp8",
    "attention",
    "weights",
    "cache",
    "launch prefill",
    "launch decode",
    "sequence",
)
"""products to cache: seconds for a second at the peak; fp8 multiplies products. launch and
sequence: seconds for one."""
ENGINES_COVER = 0.9
"""Share of held-out times that lie in the interval."""
TRACED_IN = {
    "fp32": "fp32",
    "tf32": "fp32",
    "fp16": "fp16-true",
    "bf16": "bf16-true",
    "fp8": "fp16-true",
}
"""Precision -> the one in which the model is traced; of fp8 the bytes are halved."""
MILLION = 1e6
LAYER_WEIGHTS = (4e9, 10e9)
"""Least and most weights of the layers of the models that were measured (GPT-J 6B, Llama 2 7B,
Llama 3.1 8B), with
some room."""
SIZES = {"gpt-j-6b": 6.05e9, "Llama-2-7b-hf": 6.74e9, "Llama-3.1-8B": 8.03e9}
"""Parameters of the models that were measured."""
NO_DECODE = (
    "perfctl found no licensed measurements of decode in eager mode: its parts cost the same as "
    "in a forward pass"
)


@dataclass(frozen=True, slots=True)
class GenerationStepWork:
    """What one step of generation does, for the whole batch. FLOPs: 1 multiply-add is 2."""

    prefill: bool
    sequences: int
    products: float
    """FLOPs of products with weights, without the head; with the bytes of these weights."""
    weight_bytes: float
    head: float
    """FLOPs of the product that gives the logits; with the bytes of its weights."""
    head_bytes: float
    attention: float
    """FLOPs of queries with keys and of scores with values."""
    cache_bytes: float
    """Of the KV cache, read and written."""
    layers: int
    """Layers with a product."""

    @property
    def moved_bytes(self) -> float:
        """Bytes of weights and cache."""
        return self.weight_bytes + self.head_bytes + self.cache_bytes

    def compute_overhead_seconds(self, costs: Mapping[str, float]) -> float:
        """Return the time that launches and sequences take whatever their size."""
        launch = costs["launch prefill" if self.prefill else "launch decode"]
        return launch * self.layers + costs["sequence"] * self.sequences


class PublishedFigure(NamedTuple):
    """One published figure."""

    device: str
    model: str
    precision: str
    batch: int
    """0: the server filled the memory."""
    prompt: int
    generate: int
    kind: str
    """first: seconds to the first token; next: seconds between tokens; run: seconds of the
    whole batch."""
    seconds: float
    said: str
    """The figure as it was published: "26,150 tokens/s"."""


@dataclass(frozen=True, slots=True)
class EngineFit:
    """The contents of engines.json."""

    costs: Mapping[str, float]
    spread: Mapping[str, float]
    """"known prefill", "new decode", ...: half the 90% interval, in logarithms; known: another
    model on a measured device."""
    rows: tuple[PublishedFigure, ...]
    sources: tuple[Mapping[str, str], ...]
    devices: tuple[str, ...]
    """Of the rows, without the size of the memory."""


@lru_cache(maxsize=1)
def load_engine_fit() -> EngineFit:
    """Raises ValueError for another format."""
    return parse_engine_fit(json.loads(FILE.read_text(encoding="utf-8")))


def parse_engine_fit(document: Mapping[str, Any]) -> EngineFit:
    """Raises ValueError for another format or other costs than this version's."""
    if document.get("format") != FORMAT or set(document.get("costs", ())) != set(COSTS):
        raise ValueError(
            f"published engine: format {document.get('format')!r} or its costs are not this "
            "version's"
        )
    rows = tuple(PublishedFigure(*row) for row in document["rows"])
    devices = tuple(dict.fromkeys(strip_memory_size(row.device) for row in rows))
    return EngineFit(
        document["costs"], document["spread"], rows, tuple(document["sources"]), devices
    )


def get_bytes_per_layer_weight(precision: str) -> int:
    """Of a weight of the layers."""
    return 1 if precision == "fp8" else 2


def predict_engine_step_seconds(
    costs: Mapping[str, float], work: GenerationStepWork, precision: str, machine: Machine
) -> float:
    """Return the time of one step. Raises ValueError when the machine has no peak for the
    precision."""
    peak, wide_peak = _get_product_and_16_bit_peaks(machine, precision)
    bandwidth, rate = machine.bytes_per_second, costs["products"]
    layers = rate * (costs["fp8"] if precision == "fp8" else 1.0)
    return (
        max(layers * work.products / peak, costs["weights"] * work.weight_bytes / bandwidth)
        + max(rate * work.head / wide_peak, costs["weights"] * work.head_bytes / bandwidth)
        + costs["attention"] * work.attention / wide_peak
        + costs["cache"] * work.cache_bytes / bandwidth
        + work.compute_overhead_seconds(costs)
    )


def compute_engine_step_floor_seconds(
    work: GenerationStepWork, precision: str, machine: Machine
) -> float:
    """Return the least time of a step: all FLOPs at their peaks, or all bytes at the bandwidth."""
    peak, wide_peak = _get_product_and_16_bit_peaks(machine, precision)
    arithmetic = work.products / peak + (work.head + work.attention) / wide_peak
    return max(arithmetic, work.moved_bytes / machine.bytes_per_second)


def _get_product_and_16_bit_peaks(machine: Machine, precision: str) -> tuple[float, float]:
    """Return FLOP/s of the layers' products, and of everything that fp8 leaves in 16 bits."""
    return get_peak_flops_or_raise(machine, precision), get_peak_flops_or_raise(
        machine, "fp16" if precision == "fp8" else precision
    )


def compute_engine_interval_factor(engine: EngineFit, machine: Machine, is_prefill: bool) -> float:
    """Return the factor from the prediction to either end of its 90% interval."""
    is_measured = strip_memory_size(machine.name) in engine.devices
    half = engine.spread[
        f"{'known' if is_measured else 'new'} {'prefill' if is_prefill else 'decode'}"
    ]
    return exp(
        half
        * WIDER
        ** (0 if is_measured else len(tuple(list_device_facts_beyond_engine_fit(engine, machine))))
    )


def list_device_facts_beyond_engine_fit(engine: EngineFit, machine: Machine) -> Iterator[str]:
    """Sentences: in what this device is unlike all that were measured."""
    measured = [
        machine_
        for machine_ in list_board_table_machines()
        if strip_memory_size(machine_.name) in engine.devices
    ]
    if machine.process_nm not in {machine_.process_nm for machine_ in measured}:
        subject = (
            f"its process ({machine.process_nm} nm)"
            if machine.process_nm
            else "its process (unknown)"
        )
        yield f"{subject} was not measured"
    low, high = (pick(machine_.bytes_per_second for machine_ in measured) for pick in (min, max))
    if not low <= machine.bytes_per_second <= high:
        bandwidth, least, most = (value / 1e9 for value in (machine.bytes_per_second, low, high))
        yield (
            f"{bandwidth:,.0f} GB/s is outside the measured range of {least:,.0f} to {most:,.0f} "
            "GB/s"
        )


def list_engine_extrapolations(
    engine: EngineFit, machine: Machine, work: GenerationStepWork, precision: str
) -> tuple[str, ...]:
    """Return what was not measured, in words."""
    outside: tuple[str, ...] = ()
    if strip_memory_size(machine.name) not in engine.devices:
        outside = (
            f"the fit has no data for {machine.name}",
            *list_device_facts_beyond_engine_fit(engine, machine),
        )
    elements, (least, most) = (
        work.weight_bytes / get_bytes_per_layer_weight(precision),
        LAYER_WEIGHTS,
    )
    if not least <= elements <= most:
        models = f"models of {least / 1e9:g} to {most / 1e9:g} billion parameters were measured"
        outside += (f"{elements / 1e9:.3g} billion weights in the layers; {models}",)
    return outside


def find_nearest_published_engine_run(
    engine: EngineFit, machine: Machine, precision: str, generation: GenerationEstimate
) -> PublishedFigure | None:
    """Return the published run that is most like this one."""

    def measure_distance(row: PublishedFigure) -> float:
        other = next(
            (
                candidate
                for candidate in list_board_table_machines()
                if candidate.name == row.device
            ),
            None,
        )
        far = 1.0
        if other is not None:
            far = abs(log(other.bytes_per_second / machine.bytes_per_second))
        sizes = (
            (row.prompt, generation.prompt),
            (row.generate, generation.generate + 1),
            (row.batch or generation.batch, generation.batch),
            (SIZES.get(row.model, 7e9), generation.parameters),
        )
        return (
            2 * far
            + 0.5 * (strip_memory_size(row.device) != strip_memory_size(machine.name))
            + 0.5 * (row.precision != precision)
            + (0.0 if row.batch else 1.0)
            + sum(abs(log(max(size, 1) / max(published, 1))) for size, published in sizes)
        )

    return min(engine.rows, key=measure_distance, default=None)


@dataclass(frozen=True, slots=True)
class GenerationStepTime:
    """One step of prefill or decode."""

    JSON_NAMES: ClassVar = {"time": "seconds", "floor": "roofline_s"}

    time: Span
    floor: float
    """Seconds at the machine's peaks."""
    limit: str
    """What takes the most of it: host, overhead (what each operation takes whatever its size),
    arithmetic or bandwidth."""
    context: int
    """Tokens that its last token attends to, itself included."""


@dataclass(frozen=True, slots=True)
class GenerationMemory:
    """Bytes on the device, without the activations of prefill: more is needed."""

    JSON_KEYS = ("weights", "cache", "reserve", "total", "limit", "fits", "largest")
    JSON_NAMES: ClassVar = {
        "weights": "weights_bytes",
        "cache": "kv_cache_bytes",
        "reserve": "reserve_bytes",
        "total": "needed_bytes",
        "limit": "limit_bytes",
        "largest": "largest_batch",
    }

    batch: int

    weights: float
    cache: float
    """At the end, of the whole batch."""
    reserve: float
    limit: float | None
    """Of the device; None: not known."""

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.reserve

    @property
    def fits(self) -> bool | None:
        """False if weights and cache alone do not fit; None otherwise: activations may not."""
        return False if self.limit is not None and self.total > self.limit else None

    @property
    def largest(self) -> int | None:
        """The largest batch whose cache fits beside the weights, an upper bound; None if the limit
        is unknown, or no cache is kept."""
        if self.limit is None or not self.cache:
            return None
        return max(0, int((self.limit - self.reserve - self.weights) * self.batch / self.cache))


@dataclass(frozen=True, slots=True)
class TokenCost:
    """US dollars for a million generated tokens, at the price of one GPU of an offer."""

    JSON_NAMES: ClassVar = {"dollars": "usd_per_million_tokens"}
    JSON_INLINED = ("price",)

    price: Price
    dollars: Span


@dataclass(frozen=True, slots=True)
class GenerationPoint:
    """One batch size. Times in seconds."""

    JSON_KEYS = (
        "batch",
        "prefill",
        "first",
        "last",
        "total",
        "tokens_per_second",
        "source",
        "coverage",
        "outside",
        "nearest",
        "memory",
        "cost",
    )
    JSON_NAMES: ClassVar = {
        "first": "decode_first_step",
        "last": "decode_last_step",
        "total": "total_s",
        "tokens_per_second": "tokens_per_s",
        "outside": "extrapolations",
    }

    batch: int
    prefill: GenerationStepTime
    """To the first token."""
    first: GenerationStepTime | None
    """First step of decode: to the second token; None where one token is asked for."""
    last: GenerationStepTime | None
    total: Span
    """The complete batch, from the prompt to the last token."""
    tokens_per_second: Span
    """Generated tokens of all sequences, prefill included."""
    memory: GenerationMemory
    source: str
    nearest: str | None
    outside: tuple[str, ...]
    coverage: float | None
    """Share of held-out times that ranges like these cover; None for a device that was not
    measured, and eager decode."""
    cost: TokenCost | None = None


@dataclass(frozen=True, slots=True)
class GenerationAnswer:
    """What ``perfctl predict --prompt`` answers."""

    JSON_KEYS = (
        "model",
        "engine",
        "precision",
        "kv_cache",
        "prompt",
        "generate",
        "parameters",
        "device",
        "notes",
    )

    model: str
    device: Device
    engine: str
    precision: str
    kv_cache: str
    """Type of the cache's values, in torch's name, or "none"."""
    prompt: int
    generate: int
    parameters: int
    points: tuple[GenerationPoint, ...]
    prices: PriceTable
    notes: tuple[str, ...]


def predict_generation_time_and_cost(
    question: Question,
    device_and_prices: DeviceAndPrices,
    generations: Sequence[GenerationEstimate],
) -> GenerationAnswer:
    """Return the prediction for each traced batch size.

    Raises ValueError when the device has no peak for the precision.
    """
    first, device = generations[0], device_and_prices.device
    notes = (
        device.note,
        *first.model_notes,
        *_list_generation_notes(question),
        device_and_prices.describe_unused_offers(),
    )
    return GenerationAnswer(
        first.name,
        device,
        question.engine,
        question.precision_or_default,
        " and ".join(first.cache.dtypes) if first.cache is not None else "none",
        first.prompt,
        question.generate,
        first.parameters,
        tuple(
            predict_generation_point(
                generation,
                question.engine,
                question.precision_or_default,
                device.machine,
                device_and_prices.offers,
            )
            for generation in generations
        ),
        device_and_prices.prices,
        tuple(filter(None, notes)),
    )


def _list_generation_notes(question: Question) -> Iterator[str]:
    if question.engine == "eager":
        yield (
            "the prediction covers the forward pass of the model; generate() of transformers adds "
            "host work between steps"
        )
    else:
        yield ("all sequences begin together. Times exclude queues, scheduling and the network")
    if question.precision_or_default == "fp8":
        yield (
            "fp8: weights of the layers and the cache; the head, embeddings and the scores of "
            "attention stay in 16 bits"
        )
    yield "memory: weights and cache; activations of prefill are not included"


def predict_generation_steps(
    generation: GenerationEstimate, engine: str, precision: str, machine: Machine
) -> tuple[GenerationStepTime, ...]:
    """Prefill, and the first and the last step of decode where there is one.

    Raises ValueError when the machine has no peak for the precision.
    """
    phases = [phase for phase in generation.phases if phase.steps == 1 and phase.name != "total"]
    if engine == "eager":
        traces = (generation.prefill, *generation.decode)
        return tuple(
            _predict_eager_step(generation, phase, trace, precision, machine)
            for phase, trace in zip(phases, traces, strict=True)
        )
    return tuple(
        _predict_served_step(
            sum_generation_step_work(generation, phase, precision),
            phase.last_step_context,
            precision,
            machine,
        )
        for phase in phases
    )


def sum_generation_step_work(
    generation: GenerationEstimate, phase: GenerationPhase, precision: str
) -> GenerationStepWork:
    """Return what a server does in a step, from its trace in 16 bits."""
    products = [row for row in phase.layers if row.macs and row.weight_bytes]
    head = [row for row in products if is_lm_head(row)]
    layers = [row for row in products if not is_lm_head(row)]
    other_layers = [row for row in phase.layers if not (row.macs and row.weight_bytes)]
    share = get_bytes_per_layer_weight(precision) / 2
    return GenerationStepWork(
        phase.name == "prefill",
        generation.batch,
        2.0 * sum(row.macs for row in layers),
        share * sum(row.weight_bytes for row in layers),
        2.0 * sum(row.macs for row in head),
        float(sum(row.weight_bytes for row in head)),
        2.0 * sum(row.macs for row in other_layers),
        float(
            phase.sum_layer_field("cache_read_bytes") + phase.sum_layer_field("cache_written_bytes")
        ),
        len(products),
    )


def is_lm_head(row: LayerWork) -> bool:
    """The product that gives the logits: in models of transformers the one outside of the decoder
    ("lm_head")."""
    return "." not in row.layer


def compute_weight_bytes_in_precision(generation: GenerationEstimate, precision: str) -> float:
    """Bytes of all weights: in fp8 of the layers' products one byte, of embeddings, norms and
    head two."""
    item = {"fp32": 4, "tf32": 4}.get(precision, 2)
    if precision != "fp8":
        return float(generation.parameters * item)
    layers = {
        row.layer
        for row in generation.get_phase("prefill").layers
        if row.macs and row.weight_bytes and not is_lm_head(row)
    }
    return float(
        2 * generation.parameters
        - sum(module.parameters for module in generation.prefill.modules if module.path in layers)
    )


def _predict_served_step(
    work: GenerationStepWork, context_tokens: int, precision: str, machine: Machine
) -> GenerationStepTime:
    fit = load_engine_fit()
    seconds = predict_engine_step_seconds(fit.costs, work, precision, machine)
    width, floor = (
        compute_engine_interval_factor(fit, machine, work.prefill),
        compute_engine_step_floor_seconds(work, precision, machine),
    )
    limit = "arithmetic"
    if work.compute_overhead_seconds(fit.costs) > seconds / 2:
        limit = "host"
    elif work.moved_bytes / machine.bytes_per_second >= floor:
        limit = "bandwidth"
    time = Span(seconds, max(seconds / width, floor), seconds * width)
    return GenerationStepTime(time, floor, limit, context_tokens)


def build_eager_step_spec(
    generation: GenerationEstimate, trace: Estimate, precision: str
) -> StepSpec:
    """Return a step of eager mode as the fit of whole steps sees it."""
    works = list_forward_operations_per_sample(trace.ops, generation.batch)
    return StepSpec(
        generation.name, "llm", works, generation.batch, False, precision, "", generation.parameters
    )


def _predict_eager_step(
    generation: GenerationEstimate,
    phase: GenerationPhase,
    trace: Estimate,
    precision: str,
    machine: Machine,
) -> GenerationStepTime:
    fit, case = (
        published.load_shipped_fit("gpu"),
        build_eager_step_spec(generation, trace, precision),
    )
    peak, _, rate = published.get_product_depthwise_and_byte_peaks(machine, precision)
    moved, flops = phase.sum_layer_field("bytes") / rate, phase.totals.flops / peak
    bounds, bare = (
        published.compute_host_time_and_interval_factors(fit, case, machine),
        max(moved, flops),
    )
    # without autocast, in whatever type
    host = published.predict_host_launch_seconds(fit, replace(case, precision="fp32"))
    gpu = max(published.predict_device_step_seconds(fit, case, machine), moved)
    wider = 1.0 if phase.name == "prefill" else published.WIDER
    step_seconds = bounds._replace(
        host=host, gpu_width=bounds.gpu_width**wider, host_width=bounds.host_width**wider
    ).combine_with_gpu(gpu)
    rates = published.scale_fit_to_machine(fit, case, machine).rates
    fixed = sum(
        rates[part_index] * amount
        for part_index, amount in published.list_nonzero_part_amounts(case)
        if published.KINDS[part_index] == "H"
    )
    works = "overhead" if fixed > gpu / 2 else "bandwidth" if moved >= flops else "arithmetic"
    limit = "host" if host > gpu else works
    return GenerationStepTime(
        Span(step_seconds.seconds, max(step_seconds.low, moved), step_seconds.high),
        bare,
        limit,
        phase.last_step_context,
    )


def integrate_generation_time(steps: Sequence[GenerationStepTime], generated_tokens: int) -> Span:
    """Return the time of prefill and all steps of decode, which lie on a line between the first and
    the last."""
    if len(steps) < 3:
        return steps[0].time
    prefill, first, last = (step.time for step in steps)
    pairs = (generated_tokens - 1) / 2
    return Span(
        prefill.value + pairs * (first.value + last.value),
        prefill.low + pairs * (first.low + last.low),
        prefill.high + pairs * (first.high + last.high),
    )


def compute_cheapest_token_cost(
    prices: Sequence[Price], tokens_per_second: Span
) -> TokenCost | None:
    """Return the cost at the lowest price an hour of one GPU; an instance of several is taken to
    have them all at work."""
    hourly_prices = [(price.on_demand / price.count, price) for price in prices if price.on_demand]
    if not hourly_prices:
        return None
    hour, price = min(hourly_prices, key=lambda pair: pair[0])
    dollars = hour / 3600 * MILLION
    return TokenCost(
        price,
        Span(
            dollars / tokens_per_second.value,
            dollars / tokens_per_second.high,
            dollars / tokens_per_second.low,
        ),
    )


class GenerationGrounds(NamedTuple):
    """What a prediction rests on, in words."""

    source: str
    nearest: str | None
    outside: tuple[str, ...]
    coverage: float | None


def _describe_eager_prediction_basis(
    generation: GenerationEstimate, precision: str, machine: Machine
) -> GenerationGrounds:
    """Return what a prediction of eager mode rests on: the fit of whole steps."""
    fit, case = (
        published.load_shipped_fit("gpu"),
        build_eager_step_spec(generation, generation.prefill, precision),
    )
    outside = published.list_fit_extrapolations(fit, case, machine)
    if generation.decode:
        outside = (*outside, NO_DECODE)
    coverage = published.COVERED if not outside else None
    nearest = published.describe_nearest_step(fit, case, machine)
    return GenerationGrounds(published.describe_fit_source(fit), nearest, outside, coverage)


def _describe_served_prediction_basis(
    generation: GenerationEstimate, precision: str, machine: Machine
) -> GenerationGrounds:
    engine = load_engine_fit()
    outside = list_engine_extrapolations(
        engine,
        machine,
        sum_generation_step_work(generation, generation.get_phase("prefill"), precision),
        precision,
    )
    if generation.active_parameters is not None:
        outside = (*outside, "no mixture of experts was measured")
    nearest, row = None, find_nearest_published_engine_run(engine, machine, precision, generation)
    if row is not None:
        batch = f"batch {row.batch:,}" if row.batch else "as many sequences at once as fit"
        nearest = (
            f"{row.device}, {row.model} in {row.precision}, prompt {row.prompt:,}, "
            f"{row.generate:,} generated, {batch}: {row.said}"
        )
    source = (
        f"{len(engine.rows)} published figures of TensorRT-LLM on {len(engine.devices)} devices"
    )
    return GenerationGrounds(source, nearest, outside, ENGINES_COVER if not outside else None)


def predict_generation_point(
    generation: GenerationEstimate,
    engine: str,
    precision: str,
    machine: Machine,
    offers: Sequence[Price],
) -> GenerationPoint:
    """Return the times, memory and cost of one batch size.

    Raises ValueError when the machine has no peak for the precision.
    """
    steps, generated = (
        predict_generation_steps(generation, engine, precision, machine),
        generation.generate + 1,
    )
    total, tokens = integrate_generation_time(steps, generated), generation.batch * generated
    rate = Span(tokens / total.value, tokens / total.high, tokens / total.low)
    memory = GenerationMemory(
        generation.batch,
        compute_weight_bytes_in_precision(generation, precision),
        float(generation.cache.bytes_at_end) if generation.cache is not None else 0.0,
        get_default_reserve_bytes(machine.kind),
        machine.memory_bytes,
    )
    first, last = (steps[1], steps[2]) if len(steps) > 2 else (None, None)
    grounds = (
        _describe_eager_prediction_basis if engine == "eager" else _describe_served_prediction_basis
    )
    return GenerationPoint(
        generation.batch,
        steps[0],
        first,
        last,
        total,
        rate,
        memory,
        *grounds(generation, precision, machine),
        compute_cheapest_token_cost(offers, rate) if memory.fits is not False else None,
    )
