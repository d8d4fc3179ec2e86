"""Published times of language models that generate text, with what each step does: rows of
published.csv with a prompt.

A server that batches as requests come is taken to hold as many sequences as its memory takes (95 %
of what the weights leave, at most 2,048); at two requests a second it holds as many as arrive while
one is answered.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from perfctl.orchestrator.counts.hardware.machines import Machine, find_device
from perfctl.orchestrator.predict import generation
from perfctl.orchestrator.predict.generation import GenerationStepWork

FILE = Path(__file__).resolve().parents[1] / "published.csv"
MAY_FIT = ("Apache-2.0", "BSD-3-Clause", "MIT")
ENGINE = "tensorrt-llm"
IN_USE, RESERVED, MOST = 0.95, 1.5e9, 2048
"""Share of the free memory that TensorRT-LLM's benchmarks give the cache, bytes beside it, and most
sequences at once."""
BETWEEN = 0.0075
"""Seconds between tokens by which the load of two requests a second is turned into sequences
at once."""


class Shape(NamedTuple):
    """Sizes of a decoder, from its config.json."""

    model: str
    layers: int
    width: int
    cached: int
    """Values of keys in a layer and token: heads of keys x their size."""
    inner: int
    """Columns of all products of the feed-forward part, added up: 3 x for gated ones, 2 x else."""
    vocabulary: int
    products: int
    """Products with weights in a layer."""

    @property
    def each(self) -> int:
        """Weights of the products of one layer."""
        return self.width * (2 * self.width + 2 * self.cached + self.inner)


SHAPES = {
    "hf:EleutherAI/gpt-j-6b": Shape("hf:gptj", 28, 4096, 4096, 2 * 16384, 50400, 6),
    "hf:meta-llama/Llama-2-7b-hf": Shape("hf:llama", 32, 4096, 4096, 3 * 11008, 32000, 7),
    "hf:meta-llama/Llama-3.1-8B": Shape(
        "hf:llama:num_key_value_heads=8,intermediate_size=14336,vocab_size=128256",
        32,
        4096,
        1024,
        3 * 14336,
        128256,
        7,
    ),
}
"""Model of published.csv -> its sizes, and the name by which perfctl builds it without
a download."""


def step(
    shape: Shape, batch: int, tokens: int, context: float, precision: str
) -> GenerationStepWork:
    """What a step does; ``tokens`` of each sequence go in, the last of which meets
    ``context`` tokens."""
    item, prefill = generation.get_bytes_per_layer_weight(precision), tokens > 1
    kept = batch * shape.layers * 2 * shape.cached * item
    return GenerationStepWork(
        prefill,
        batch,
        2.0 * batch * tokens * shape.layers * shape.each,
        float(shape.layers * shape.each * item),
        2.0 * batch * shape.width * shape.vocabulary,
        2.0 * shape.width * shape.vocabulary,
        2.0 * batch * shape.layers * 2 * shape.width * tokens * context,
        float(kept * (tokens if prefill else context)),
        shape.layers * shape.products + 1,
    )


@dataclass(frozen=True, slots=True)
class Row:
    """One published figure."""

    id: str
    engine: str
    may_fit: bool
    machine: Machine
    model: str
    precision: str
    batch: int
    stated: bool
    """The batch is the source's; else worked out."""
    prompt: int
    generate: int
    kind: str
    """first, next or run; see :class:`generation.Published`."""
    seconds: float
    said: str
    software: str

    @property
    def shape(self) -> Shape:
        return SHAPES[self.model]

    @property
    def behind_server(self) -> bool:
        """A time to the first token that includes the queue of a server."""
        return self.kind == "first" and not self.stated

    def steps(self) -> tuple[GenerationStepWork, GenerationStepWork]:
        """Prefill, and the mean step of decode."""
        one, work = self.shape, self.precision
        return (
            step(one, self.batch, self.prompt, self.prompt, work),
            step(one, self.batch, 1, self.prompt + self.generate / 2, work),
        )

    def predicted(self, costs: Mapping[str, float]) -> float:
        """Seconds, as the row counts them."""
        return self._sum(
            *(
                generation.predict_engine_step_seconds(costs, work, self.precision, self.machine)
                for work in self.steps()
            )
        )

    def floor(self) -> float:
        return self._sum(
            *(
                generation.compute_engine_step_floor_seconds(work, self.precision, self.machine)
                for work in self.steps()
            )
        )

    def _sum(self, first: float, following: float) -> float:
        whole = first + (self.generate - 1) * following
        return {"first": first, "next": following, "run": whole}[self.kind]

    @property
    def macs(self) -> float:
        prefill, decode = self.steps()
        amounts = (one.products + one.head + one.attention for one in (prefill, decode))
        return self._sum(*amounts) / 2


def rows() -> list[Row]:
    with FILE.open(encoding="utf-8", newline="") as file:
        return [
            _row(row)
            for row in csv.DictReader(file)
            if "prompt" in row["input"] and row["model"] in SHAPES
        ]


def _row(row: dict[str, str]) -> Row:
    prompt, generate = map(int, re.findall(r"\d+", row["input"]))
    machine, shape, value = (
        find_device(row["device"]).machine,
        SHAPES[row["model"]],
        float(row["value"]),
    )
    statistic = row["statistic"]
    kind = "first" if "first token" in statistic else "next" if "between" in statistic else "run"
    stated = bool(row["batch"])
    if stated:
        batch = int(row["batch"])
    elif kind == "run":
        batch = at_once(shape, row["precision"], machine, prompt + generate)
    else:
        batch = max(1, round(2 * generate * BETWEEN)) if kind == "next" else 1
    seconds = value / 1e3 if row["unit"] == "ms" else batch * generate / value
    unit = "ms" if row["unit"] == "ms" else "tokens/s"
    words = {"first": " to the first token", "next": " between tokens", "run": ""}[kind]
    return Row(
        row["id"],
        row["engine"],
        row["licence"] in MAY_FIT and row["engine"] == ENGINE,
        machine,
        row["model"],
        row["precision"],
        batch,
        stated,
        prompt,
        generate,
        kind,
        seconds,
        f"{value:,.4g} {unit}{words}" if value < 1000 else f"{value:,.0f} {unit}{words}",
        row["software"],
    )


def at_once(shape: Shape, precision: str, machine: Machine, tokens: int) -> int:
    """Sequences of ``tokens`` that the memory takes beside the weights."""
    item = generation.get_bytes_per_layer_weight(precision)
    weights = shape.layers * shape.each * item + 2 * shape.width * shape.vocabulary * 2
    room = IN_USE * ((machine.memory_bytes or 0.0) - weights - RESERVED)
    return max(1, min(MOST, int(room / (tokens * shape.layers * 2 * shape.cached * item))))
