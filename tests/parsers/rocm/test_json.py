"""rocprofv3's JSON, written here by the layout that its documentation describes; no real file was
at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfctl import parsers
from perfctl.parsers import ReportError


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


@pytest.mark.parametrize("end", [30, 900, -3])
def test_a_cut_off_file_is_one_clear_error(end: int, tmp_path: Path) -> None:
    whole = report(tmp_path / "w.json").read_bytes()
    path = tmp_path / "r.json"
    path.write_bytes(whole[:end])
    with pytest.raises(ReportError, match="not complete JSON"):
        parsers.parse(path)
