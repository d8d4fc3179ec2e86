"""The Kineto parser on real traces, each against a count of its plain JSON made here."""

import gzip
import json
from functools import lru_cache

import pytest

from perfctl import parsers
from tests.sample import sample

TRACES = (
    "hta_alexnet_critical_path_2023.json.gz",
    "hta_cpu_only_rank-34.pt.trace.json.gz",
    "hta_large_integer.pt.trace.json.gz",
    "kineto2021_resnet50_nw0_worker0.1623143089861.pt.trace.json.gz",
    "tracelens_b200_eager_trace.json.gz",
    "tracelens_h100_Falconsai_vit.json.gz",
    "tracelens_mi210_gpu_only.json.gz",
)
SERVERS = (
    "llm/sglang_qwen3_decode/execution.json.gz",
    "llm/sglang_qwen3_decode/capture_bs_32_rank0.json.gz",
    "llm/sglang_qwen3_prefilldecode.json.gz",
    "llm/vllm_prefilldecode_piecewise/execution.json.gz",
)
OLD_RANGES = ("ProfilerStep", "enumerate(DataLoader)", "Optimizer.")
MODULE = "nn.Module: "
KERNELS = ("kernel", "Kernel")
COPIES = ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset")


@lru_cache(maxsize=1)
def load(path):
    data = path.read_bytes()
    data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    return json.loads(data, strict=False)  # type: ignore[no-any-return]


def events_of(path, *categories):
    """The events of a trace, of these categories if any are named."""
    events = ({"args": {}, **event} for event in load(path)["traceEvents"])
    return [event for event in events if not categories or event.get("cat") in categories]


def is_range(event):
    old = event.get("cat") == "Operator" and event["name"].startswith(OLD_RANGES)
    is_module = event.get("cat") == "python_function" and event["name"].startswith(MODULE)
    return event.get("cat") == "user_annotation" or old or is_module


def ns(microseconds):
    return round(microseconds * 1000)


@pytest.mark.parametrize("name", sample((*TRACES, *SERVERS), 4))
def test_every_kernel_copy_range_and_device_of_the_trace_is_there(name, reports):
    path = reports / "kineto" / name
    found, events = parsers.parse(path), events_of(path)
    kernels, copies = events_of(path, *KERNELS), events_of(path, *COPIES)
    ranges = [event for event in events if event.get("ph") == "X" and is_range(event)]
    assert [(k.name, k.duration_ns, k.grid_x, k.registers) for k in found.kernels] == [
        (
            kernel["name"],
            ns(kernel["dur"]),
            kernel["args"].get("grid", [None])[0],
            kernel["args"].get("registers per thread"),
        )
        for kernel in kernels
    ]
    assert [(c.bytes, c.duration_ns) for c in found.copies] == [
        (copy["args"]["bytes"], ns(copy["dur"])) for copy in copies
    ]
    assert [(r.name, r.duration_ns) for r in found.ranges] == [
        (event["name"], ns(event["dur"])) for event in ranges
    ]
    gpus = sorted((gpu.index, gpu.sm_count) for gpu in found.devices if gpu.kind == "gpu")
    listed = load(path).get("deviceProperties", ())
    assert gpus == [(gpu["id"], gpu.get("numSms")) for gpu in listed]
