"""Small traces of a server: one in which a graph is captured, one in which it is launched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.parsers.kineto_trace import Event, annotation, event, kernel, module, operation

STEP = "step[DECODE bs=8]"
MADE = ("embed", "gemm", "norm", "gemm", "norm")
"""Kernels of one graph, in the order of its launches."""
WHERE = ("Embedding_0", "Block_0.Linear_0", "Block_0", "Block_1.Linear_1", "Block_1")


def written(path: Path, *events: Event) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def capturing(
    path: Path, names: Sequence[str | None] = MADE, *, size: int = 8, nodes: bool = False
) -> Path:
    """A model of two blocks, Block_n of Linear_n and a norm of its own; launch n is at 20 +
    10 n."""
    modules = [
        module("Model_0", 15, 60),
        module("Embedding_0", 19, 5),
        module("Block_0", 29, 15),
        module("Linear_0", 29, 5),
        module("Block_1", 49, 15),
        module("Linear_1", 49, 5),
    ]
    product = [operation("aten::mm", 29, 4, 1), operation("aten::mm", 49, 4, 2)]
    for one in product:
        one["args"] |= {"Input Dims": [[8, 16], [16, 32]], "Input type": ["c10::BFloat16"] * 2}
    calls = [
        event(
            "cuda_runtime",
            "cudaLaunchKernel",
            20 + 10 * at,
            1,
            correlation=100 + at,
            kernel=name,
            graph_node_id=7 + at if nodes else None,
        )
        for at, name in enumerate(names)
    ]
    ends = [
        event("cuda_runtime", f"cudaStream{what}Capture", at, 1)
        for what, at in (("Begin", 12), ("End", 80))
    ]
    for number, one in enumerate(ends):
        one["args"]["correlation"] = 90 + number
    before = event("cuda_runtime", "cudaLaunchKernel", 5, 1, correlation=99, kernel="warm-up")
    return written(
        path, annotation(f"capture_{size}_FULL", 0, 90), before, *ends, *modules, *product, *calls
    )


def executing(
    path: Path, names: Sequence[str] = MADE, *, replays: int = 1, nodes: bool = False
) -> Path:
    events: list[Event] = []
    for number in range(replays):
        begin, join = 1000 * number, 50 + number
        events += [
            annotation(STEP, begin, 500),
            event("cuda_runtime", "cudaGraphLaunch", begin + 1, 1, correlation=join),
        ]
        for at, name in enumerate(names):
            events.append(
                kernel(
                    name,
                    begin + 10 + 20 * at,
                    10,
                    correlation=join,
                    graph_id=1 if nodes else None,
                    graph_node_id=7 + at if nodes else None,
                )
            )
    return written(path, *events)


def eager(
    path: Path, names: Sequence[str] = MADE, *, blocks: int = 1, width: int = 32, times: int = 1
) -> Path:
    """The same model without graphs: every kernel has a launch of its own, under its module."""
    modules = [
        module("Model_0", 15, 60),
        module("Embedding_0", 19, 5),
        module("Block_0", 29, 15),
        module("Linear_0", 29, 5),
        module("Block_1", 49, 15),
        module("Linear_1", 49, 5),
    ]
    events: list[Event] = [annotation(STEP, 0, 500)]
    for at, name in enumerate(names):
        events.append(
            event("cuda_runtime", "cudaLaunchKernel", 20 + 10 * at, 1, correlation=100 + at)
        )
        events.append(
            kernel(
                name,
                200 + 20 * at,
                10,
                correlation=100 + at,
                grid=[blocks, 1, 1],
                block=[width, 1, 1],
            )
        )
    return written(path, *events, *modules)
