"""Traces from ROCm: numbers of agents and of GPUs, and names of instruction sets. Synthetic but
for one."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from perfctl import parsers
from tests.make.kineto import kernel, launch, read

ROCM: dict[str, Any] = {"roctracer_version": 4.1, "hip_runtime_version": 70253211}


def gpu(number: int, minor: int = 4) -> dict[str, Any]:
    return {
        "id": number,
        "name": "AMD Instinct",
        "computeMajor": 9,
        "computeMinor": minor,
        "numSms": 304,
    }


def test_the_work_of_the_only_gpu_has_that_gpu_s_number(tmp_path: Path) -> None:
    found = read(
        tmp_path, launch(0, 1), kernel("k", 5, 2, 1, device=9), deviceProperties=[gpu(0)], **ROCM
    )
    assert [one.device_index for one in found.kernels] == [0]
    assert [device.index for device in found.devices] == [0]
    assert not [gap for gap in found.gaps if gap.quantity == "kernel.device_index"]


def test_among_several_gpus_the_agent_s_number_stays_and_is_named_ambiguous(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        launch(0, 1),
        kernel("k", 5, 2, 1, device=2),
        deviceProperties=[gpu(0), gpu(1)],
        **ROCM,
    )
    assert [one.device_index for one in found.kernels] == [2]
    (gap,) = (gap for gap in found.gaps if gap.quantity == "kernel.device_index")
    assert gap.state == "ambiguous"
    assert "(2)" in gap.reason


def test_numbers_of_cuda_s_devices_are_not_touched(tmp_path: Path) -> None:
    nvidia = {"id": 0, "name": "NVIDIA H100", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
    found = read(tmp_path, launch(0, 1), kernel("k", 5, 2, 1, device=1), deviceProperties=[nvidia])
    assert [one.device_index for one in found.kernels] == [1]
    assert [device.compute_capability for device in found.devices] == ["9.0"]


@pytest.mark.parametrize(("minor", "name"), [(4, "gfx942"), (5, "gfx950"), (0, None)])
def test_the_instruction_set_is_named_where_only_one_has_these_numbers(
    minor: int, name: str | None, tmp_path: Path
) -> None:
    found = read(
        tmp_path, launch(0, 1), kernel("k", 5, 2, 1), deviceProperties=[gpu(0, minor)], **ROCM
    )
    assert [device.compute_capability for device in found.devices] == [name]


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
