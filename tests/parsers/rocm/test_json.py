"""rocprofv3's JSON, written here by the layout that its documentation describes; no real file was
at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfctl import parsers
from perfctl.parsers import ReportError
from perfctl.records.report import Copy, Counter


def dispatch(number: int, kernel: int = 3) -> dict[str, Any]:
    info = {
        "agent_id": {"handle": 70},
        "queue_id": {"handle": 2},
        "kernel_id": kernel,
        "dispatch_id": number,
        "private_segment_size": 0,
        "group_segment_size": 2048,
        "workgroup_size": {"x": 256, "y": 1, "z": 1},
        "grid_size": {"x": 1000, "y": 2, "z": 1},
    }
    return {
        "dispatch_info": info,
        "start_timestamp": 100 * number,
        "end_timestamp": 100 * number + 30,
    }


def report(path: Path, **buffered: Any) -> Path:
    """Two launches, the second one counted, a copy and a call."""
    records = {
        "kernel_dispatch": [dispatch(1), dispatch(2)],
        "memory_copy": [
            {
                "kind": 1,
                "operation": 1,
                "start_timestamp": 5,
                "end_timestamp": 9,
                "bytes": 64,
                "dst_agent_id": {"handle": 70},
                "src_agent_id": {"handle": 60},
            }
        ],
        "hip_api": [{"kind": 2, "operation": 0, "start_timestamp": 50, "end_timestamp": 57}],
        **buffered,
    }
    values = [{"counter_id": {"handle": 9}, "value": value} for value in (10.0, 6.0)]
    process = {
        "metadata": {
            "pid": 1,
            "init_time": 10,
            "fini_time": 1010,
            "command": ["./train", "--token=secret"],
        },
        "agents": [
            {"id": {"handle": 60}, "type": 1, "node_id": 0, "name": "a CPU"},
            {
                "id": {"handle": 70},
                "type": 2,
                "node_id": 1,
                "name": "gfx942",
                "product_name": "AMD Instinct MI300X",
                "cu_count": 304,
            },
        ],
        "kernel_symbols": [
            {
                "kernel_id": 3,
                "kernel_name": "mul.kd",
                "formatted_kernel_name": "mul(int)",
                "arch_vgpr_count": 8,
                "accum_vgpr_count": 4,
                "group_segment_size": 512,
            }
        ],
        "counters": [{"id": {"handle": 9}, "name": "SQ_WAVES"}],
        "strings": {
            "buffer_records": [
                {"kind": "NONE", "operations": []},
                {"kind": "MEMORY_COPY", "operations": ["NONE", "MEMORY_COPY_HOST_TO_DEVICE"]},
                {"kind": "HIP_RUNTIME_API", "operations": ["hipFree"]},
            ]
        },
        "buffer_records": records,
        "callback_records": {
            "counter_collection": [{"dispatch_data": dispatch(2), "records": values}]
        },
    }
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [process]}))
    return path


def test_launches_counters_copies_and_calls_are_read_with_their_names(tmp_path: Path) -> None:
    found = parsers.parse(report(tmp_path / "r.json"))
    first, second = found.kernels
    assert (first.name, first.grid_x, first.grid_y, first.block_x) == (
        "mul(int)",
        -(-1000 // 256),
        2,
        256,
    )
    assert (first.registers, first.static_shared_bytes, first.dynamic_shared_bytes) == (
        8 + 4,
        512,
        2048 - 512,
    )
    assert (second.launch, second.start_ns, second.duration_ns, second.device_index) == (
        1,
        200,
        30,
        0,
    )
    assert list(found.counters) == [Counter(1, "SQ_WAVES", 10 + 6, None)], "instances are summed"
    assert list(found.copies) == [Copy("HtoD", 64, 5, 4, None, 0)]
    assert [(one.name, one.category, one.calls, one.cpu_ns) for one in found.operations] == [
        ("hipFree", "hip_api", 1, 7)
    ]
    (gpu,) = found.devices
    assert (gpu.name, gpu.compute_capability, gpu.sm_count, found.duration_ns) == (
        "AMD Instinct MI300X",
        "gfx942",
        304,
        1000,
    )


def test_records_without_a_reader_are_named_with_their_number(tmp_path: Path) -> None:
    found = parsers.parse(report(tmp_path / "r.json", scratch_memory=[{}, {}]))
    assert "2 records of scratch_memory are not read" in {gap.reason for gap in found.gaps}


@pytest.mark.parametrize("end", [30, 900, -3])
def test_a_cut_off_file_is_one_clear_error(end: int, tmp_path: Path) -> None:
    whole = report(tmp_path / "w.json").read_bytes()
    path = tmp_path / "r.json"
    path.write_bytes(whole[:end])
    with pytest.raises(ReportError, match="not complete JSON"):
        parsers.parse(path)
