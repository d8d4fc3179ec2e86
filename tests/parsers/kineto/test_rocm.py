"""Traces from ROCm: numbers of agents and of GPUs, and names of instruction sets. Synthetic but
for one."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from perfctl import parsers


@pytest.mark.parametrize(
    "name",
    [
        "tracelens_mi210_gpu_only.json.gz",
        "llm/sglang_qwen3_decode/execution.json.gz",
        "llm/sglang_qwen3_decode/capture_bs_32_rank0.json.gz",
        "llm/sglang_qwen3_prefilldecode.json.gz",
        "llm/vllm_prefilldecode_piecewise/execution.json.gz",
    ],
)
def test_kernels_and_copies_of_real_traces_agree_with_a_reading_of_their_events(
    name: str, shared: Path
) -> None:
    path = shared / "reports/kineto" / name
    with gzip.open(path) as file:
        trace = json.load(file)
    events = [
        one
        for one in trace["traceEvents"]
        if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    kernels = [one for one in events if one["cat"] == "kernel"]
    found = parsers.parse(path)
    mine = list(found.kernels)
    assert Counter(one.name for one in mine) == Counter(one["name"] for one in kernels)
    assert sum(one.duration_ns or 0 for one in mine) == round(
        sum(round(one["dur"] * 1000) for one in kernels)
    )
    grids = Counter(tuple(one["args"].get("grid") or [None] * 3) for one in kernels)
    assert Counter((one.grid_x, one.grid_y, one.grid_z) for one in mine) == grids
    copies = Counter(
        (one["args"].get("kind"), one["args"].get("bytes"))
        for one in events
        if one["cat"] != "kernel"
    )
    assert Counter((one.kind, one.bytes) for one in found.copies) == copies
    assert [
        (one.index, one.sm_count) for one in sorted(found.devices, key=lambda one: one.index)
    ] == [(one["id"], one["numSms"]) for one in trace["deviceProperties"]]
