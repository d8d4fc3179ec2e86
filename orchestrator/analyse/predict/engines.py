"""Servers that generate text with fused kernels and CUDA graphs: the fit to published times of TensorRT-LLM, in engines.json.

One step, prefill or one of decode, of the whole batch (1 multiply-add is 2 FLOPs), the first line of the layers and of the head::

    seconds = max(products * FLOPs of products / peak, weights * their bytes / bandwidth)
            + attention * FLOPs of attention / peak + cache * bytes of the KV cache / bandwidth
            + launch * layers with products + sequence * sequences

Eight costs hold for all devices; there is no factor of a device. All are positive and every amount grows with batch and
context, so a larger batch, a longer context or a chip with lower peaks never takes less time.
``scripts/proof/accuracy/engines/publish_engines.py`` makes the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

from perfctl.orchestrator.analyse.hardware.machines import Machine
from perfctl.orchestrator.analyse.predict.published import WIDER, product_of, table_machines
from perfctl.orchestrator.analyse.predict.step_parts import peak_of

FORMAT = "perfctl engines 1"
FILE = Path(__file__).with_name("engines.json")
PRECISIONS = ("fp16", "bf16", "fp8")
"""Of the weights of the layers. In fp8 the head, embeddings and attention stay in 16 bits."""
COSTS = ("products", "fp8", "attention", "weights", "cache", "launch prefill", "launch decode", "sequence")
"""products to cache: seconds for a second at the peak; fp8 multiplies products. launch and sequence: seconds for one."""
COVERED = 0.9
"""Share of held-out times that lie in the interval."""


@dataclass(frozen=True, slots=True)
class StepWork:
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


class Published(NamedTuple):
    """One published figure."""

    device: str
    model: str
    precision: str
    batch: int
    """0: the server filled the memory."""
    prompt: int
    generate: int
    kind: str
    """first: seconds to the first token; next: seconds between tokens; run: seconds of the whole batch."""
    seconds: float
    said: str
    """The figure as it was published: "26,150 tokens/s"."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The contents of engines.json."""

    costs: Mapping[str, float]
    spread: Mapping[str, float]
    """"known prefill", "new decode", ...: half the 90 % interval, in logarithms; known: another model on a measured device."""
    rows: tuple[Published, ...]
    sources: tuple[Mapping[str, str], ...]
    devices: tuple[str, ...]
    """Of the rows, without the size of the memory."""


@lru_cache(maxsize=1)
def load() -> Engine:
    """Raises ValueError for another format."""
    return from_json(json.loads(FILE.read_text(encoding="utf-8")))


def from_json(found: Mapping[str, Any]) -> Engine:
    """Raises ValueError for another format or other costs than this version's."""
    if found.get("format") != FORMAT or set(found.get("costs", ())) != set(COSTS):
        raise ValueError(f"published engine: format {found.get('format')!r} or its costs are not this version's")
    rows = tuple(Published(*row) for row in found["rows"])
    devices = tuple(dict.fromkeys(product_of(row.device) for row in rows))
    return Engine(found["costs"], found["spread"], rows, tuple(found["sources"]), devices)


@lru_cache(maxsize=8)
def _measured(devices: tuple[str, ...]) -> tuple[Machine, ...]:
    return tuple(one for one in table_machines() if product_of(one.name) in devices)


def item_bytes(precision: str) -> int:
    """Of a weight of the layers."""
    return 1 if precision == "fp8" else 2


def seconds(costs: Mapping[str, float], work: StepWork, precision: str, machine: Machine) -> float:
    """Of one step. Raises ValueError when the machine has no peak for the precision."""
    peak, wide = peak_of(machine, precision), peak_of(machine, "fp16" if precision == "fp8" else precision)
    moved, rate = machine.bytes_per_second, costs["products"]
    layers = rate * (costs["fp8"] if precision == "fp8" else 1.0)
    return (
        max(layers * work.products / peak, costs["weights"] * work.weight_bytes / moved)
        + max(rate * work.head / wide, costs["weights"] * work.head_bytes / moved)
        + costs["attention"] * work.attention / wide
        + costs["cache"] * work.cache_bytes / moved
        + costs[f"launch {'prefill' if work.prefill else 'decode'}"] * work.layers
        + costs["sequence"] * work.sequences
    )


def floor(work: StepWork, precision: str, machine: Machine) -> float:
    """Least seconds of a step: the larger of all FLOPs at their peaks and all bytes at the bandwidth."""
    peak, wide = peak_of(machine, precision), peak_of(machine, "fp16" if precision == "fp8" else precision)
    flops = work.products / peak + (work.head + work.attention) / wide
    return max(flops, (work.weight_bytes + work.head_bytes + work.cache_bytes) / machine.bytes_per_second)


def is_measured(engine: Engine, machine: Machine) -> bool:
    return product_of(machine.name) in engine.devices


def width_of(engine: Engine, machine: Machine, prefill: bool) -> float:
    """The factor from the prediction to either end of its 90 % interval."""
    known = is_measured(engine, machine)
    half = engine.spread[f"{'known' if known else 'new'} {'prefill' if prefill else 'decode'}"]
    return exp(half * WIDER ** (0 if known else len(tuple(unseen(engine, machine)))))


def unseen(engine: Engine, machine: Machine) -> Iterator[str]:
    """Sentences: in what this device is unlike all that were measured."""
    measured = _measured(engine.devices)
    if machine.process_nm not in {one.process_nm for one in measured}:
        said = f"its process ({machine.process_nm} nm)" if machine.process_nm else "its process, which is not known,"
        yield f"{said} was not measured"
    low, high = (pick(one.bytes_per_second for one in measured) for pick in (min, max))
    if not low <= machine.bytes_per_second <= high:
        bandwidth, least, most = (value / 1e9 for value in (machine.bytes_per_second, low, high))
        yield f"{bandwidth:,.0f} GB/s is outside of {least:,.0f} to {most:,.0f} GB/s, which were measured"


def outside(engine: Engine, machine: Machine, work: StepWork, precision: str) -> tuple[str, ...]:
    """What was not measured, in words."""
    said = []
    if not is_measured(engine, machine):
        said = [f"the fit has no figures of {machine.name}", *unseen(engine, machine)]
    elements = work.weight_bytes / item_bytes(precision)
    if not LEAST <= elements <= MOST:
        said.append(
            f"{elements / 1e9:.3g} billion weights in the layers; models of {LEAST / 1e9:g} to {MOST / 1e9:g} billion were measured"
        )
    return tuple(said)


LEAST, MOST = 4e9, 10e9
"""Weights of the layers of the models that were measured (GPT-J 6B, Llama 2 7B, Llama 3.1 8B), with some room."""


def nearest(
    engine: Engine, machine: Machine, precision: str, batch: int, prompt: int, generate: int, weights: float
) -> Published | None:
    """The published run that is most like this one; ``weights``: elements of all parameters."""

    def apart(row: Published) -> float:
        other = next((one for one in table_machines() if one.name == row.device), None)
        far = 1.0
        if other is not None:
            far = abs(log(other.bytes_per_second / machine.bytes_per_second))
        sizes = (
            (row.prompt, prompt),
            (row.generate, generate),
            (row.batch or batch, batch),
            (SIZES.get(row.model, 7e9), weights),
        )
        return (
            2 * far + 0.5 * (product_of(row.device) != product_of(machine.name)) + 0.5 * (row.precision != precision)
            + (0.0 if row.batch else 1.0)
            + sum(abs(log(max(mine, 1) / max(its, 1))) for mine, its in sizes)
        )  # fmt: skip

    return min(engine.rows, key=apart, default=None)


SIZES = {"gpt-j-6b": 6.05e9, "Llama-2-7b-hf": 6.74e9, "Llama-3.1-8B": 8.03e9}
"""Parameters of the models that were measured."""


def nearest_words(row: Published | None) -> str:
    """ "H100 SXM5, Llama-3.1-8B in fp8, prompt 500, 2,000 generated, batch 64: 16,501 tokens/s"; "" without one."""
    if row is None:
        return ""
    batch = f"batch {row.batch:,}" if row.batch else "as many at once as fit"
    return f"{row.device}, {row.model} in {row.precision}, prompt {row.prompt:,}, {row.generate:,} generated, {batch}: {row.said}"


def words(engine: Engine) -> str:
    """The source of a prediction."""
    return f"{len(engine.rows)} published figures of TensorRT-LLM on {len(engine.devices)} devices (docs/prediction.md)"
