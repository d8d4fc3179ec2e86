"""Makes the fit of servers that generate text, orchestrator/predict/engines.json, from
published.csv.

    python scripts/proof/accuracy/engines/publish_engines.py

Learned from rows of TensorRT-LLM whose licence allows it. Times to the first token behind a server
include its queue; they only judge. Costs are found by least squares of logarithms, each pulled
towards a guess that the hardware suggests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from engine_rows import Row, rows
from scipy.optimize import least_squares

from perfctl.orchestrator.predict.generation import COSTS, ENGINES_COVER, FILE, FORMAT
from perfctl.orchestrator.predict.published import strip_memory_size

GUESS = (1.5, 1.15, 1.0, 1.2, 1.2, 1.5e-5, 5e-6, 3e-6)
"""In the order of COSTS: two thirds of the peak; causal attention needs half of the square, at half
of the peak; 5/6 of the bandwidth; kernels of prefill are launched one by one, those of decode from
a graph; one sequence's sampling."""
PULL = (0.9, 3.0, 0.9, 1.5, 1.5, 0.6, 0.6, 0.6)
MARGIN = 1.2
"""Width for a new device over what the errors of left-out devices say: five devices say little
about the next one."""
SOURCES = (
    {
        "name": (
            "NVIDIA/TensorRT-LLM, docs/source/performance.md @ 138f96d45f90 and "
            "performance/perf-overview.md @ 258c7540c035"
        ),
        "licence": "Apache-2.0",
        "dates": "2023-12 to 2025",
        "what": (
            "time to the first token, time between tokens and generated tokens a second of GPT-J "
            "6B, Llama 2 7B and Llama 3.1 8B on A100, L40S, H100, H200 and GH200, TensorRT-LLM 0.5 "
            "to 0.17"
        ),
    },
)


def teaches(row: Row) -> bool:
    return row.may_fit and not row.behind_server


def learn(given: Sequence[Row]) -> dict[str, float]:
    """The costs."""
    guess, pull = np.log(GUESS), np.array(PULL)

    def missed(logarithms: np.ndarray) -> np.ndarray:
        costs = dict(zip(COSTS, np.exp(logarithms), strict=True))
        return np.concatenate(
            [
                [np.log(row.predicted(costs) / row.seconds) for row in given],
                pull * (logarithms - guess),
            ]
        )

    found = least_squares(missed, guess, loss="soft_l1", f_scale=0.15).x
    return {name: float(f"{cost:.4g}") for name, cost in zip(COSTS, np.exp(found), strict=True)}


def product(row: Row) -> str:
    return strip_memory_size(row.machine.name)


def chip(row: Row) -> str:
    """H100, H200 and GH200 have the same chip and other memories."""
    return "GH100" if row.machine.name.startswith(("H100", "H200", "GH200")) else product(row)


def left_out(every: Sequence[Row], key: Callable[[Row], str]) -> dict[str, float]:
    """Row -> seconds, by costs learned without the rows of the same ``key``."""
    found = {}
    for name in dict.fromkeys(map(key, every)):
        costs = learn([row for row in every if teaches(row) and key(row) != name])
        found |= {row.id: row.predicted(costs) for row in every if key(row) == name}
    return found


def half_width(given: Sequence[Row], predicted: dict[str, float], prefill: bool) -> float:
    """Half the 90 % interval, in logarithms; each device counts alike."""
    mine = [row for row in given if teaches(row) and (row.kind == "first") == prefill]
    missed = np.array([abs(np.log(predicted[row.id] / row.seconds)) for row in mine])
    weight = np.array([1.0 / sum(product(one) == product(row) for one in mine) for row in mine])
    order = np.argsort(missed)
    place = int(np.searchsorted(np.cumsum(weight[order]) / weight.sum(), ENGINES_COVER))
    return float(missed[order][min(place, len(order) - 1)])


class LeftOut(NamedTuple):
    """Row -> seconds, by costs learned without the rows of the same model, device or chip."""

    model: dict[str, float]
    device: dict[str, float]
    chip: dict[str, float]


def all_left_out(every: Sequence[Row]) -> LeftOut:
    return LeftOut(
        left_out(every, lambda row: row.model), left_out(every, product), left_out(every, chip)
    )


def spread_of(every: Sequence[Row], found: LeftOut) -> dict[str, float]:
    """Half the 90 % intervals that the errors of these rows give."""
    spread = {}
    for name, prefill in (("prefill", True), ("decode", False)):
        known, *others = (half_width(every, predicted, prefill) for predicted in found)
        new = max(known, *others)
        spread[f"known {name}"], spread[f"new {name}"] = round(known, 4), round(MARGIN * new, 4)
    return spread


def main() -> None:
    every = [row for row in rows() if row.engine == "tensorrt-llm"]
    taught = [row for row in every if teaches(row)]
    record = {
        "format": FORMAT,
        "costs": learn(taught),
        "spread": spread_of(every, all_left_out(every)),
        "sources": list(SOURCES),
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items()]
    published = [
        [
            row.machine.name,
            row.model.rpartition("/")[2],
            row.precision,
            row.batch if row.stated or row.kind == "next" else 0,
            row.prompt,
            row.generate,
            row.kind,
            float(f"{row.seconds:.4g}"),
            row.said,
        ]
        for row in taught
    ]
    table = ",\n".join(f"  {json.dumps(one)}" for one in published)
    FILE.write_text(
        "{\n" + ",\n".join(lines) + ',\n "rows": [\n' + table + "\n ]\n}\n", encoding="utf-8"
    )
    print(f"Wrote {FILE}: {len(taught)} rows; {record['costs']}; {record['spread']}")


if __name__ == "__main__":
    main()
