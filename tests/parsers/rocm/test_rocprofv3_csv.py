"""CSV files of rocprofv3: synthetic ones written here, and real ones read a second time with
csv alone."""

from __future__ import annotations

import csv
from collections import Counter as Tally
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.orchestrator.actions.ingest import ingest
from perfctl.parsers import ReportError

TRACE = (
    "Kind",
    "Agent_Id",
    "Queue_Id",
    "Stream_Id",
    "Thread_Id",
    "Dispatch_Id",
    "Kernel_Id",
    "Kernel_Name",
    "Correlation_Id",
    "Start_Timestamp",
    "End_Timestamp",
    "LDS_Block_Size",
    "Scratch_Size",
    "VGPR_Count",
    "Accum_VGPR_Count",
    "SGPR_Count",
    "Workgroup_Size_X",
    "Workgroup_Size_Y",
    "Workgroup_Size_Z",
    "Grid_Size_X",
    "Grid_Size_Y",
    "Grid_Size_Z",
)
COUNTS = (
    "Correlation_Id",
    "Dispatch_Id",
    "Agent_Id",
    "Queue_Id",
    "Process_Id",
    "Thread_Id",
    "Grid_Size",
    "Kernel_Id",
    "Kernel_Name",
    "Workgroup_Size",
    "LDS_Block_Size",
    "Scratch_Size",
    "VGPR_Count",
    "Accum_VGPR_Count",
    "SGPR_Count",
    "Counter_Name",
    "Counter_Value",
    "Start_Timestamp",
    "End_Timestamp",
)
CALLS = (
    "Domain",
    "Function",
    "Process_Id",
    "Thread_Id",
    "Correlation_Id",
    "Start_Timestamp",
    "End_Timestamp",
)
COPIES = (
    "Kind",
    "Direction",
    "Source_Agent_Id",
    "Destination_Agent_Id",
    "Correlation_Id",
    "Start_Timestamp",
    "End_Timestamp",
)
AGENTS = (
    "Node_Id",
    "Logical_Node_Id",
    "Agent_Type",
    "Cu_Count",
    "Max_Engine_Clk_Fcompute",
    "Name",
    "Product_Name",
)


def written(path: Path, header: Sequence[str], *rows: Sequence[object]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([header, *rows])
    return path


def launch(number: int, agent: str = "Agent 3", call: int = 50) -> tuple[object, ...]:
    """A launch of 300 x 4 work-items in groups of 64 x 2."""
    return (
        "KERNEL_DISPATCH",
        agent,
        1,
        2,
        9,
        number,
        7,
        "mul(int, int)",
        call,
        1000 * number,
        1000 * number + 10 * number,
        512,
        8,
        24,
        4,
        16,
        64,
        2,
        1,
        300,
        4,
        1,
    )


def count(number: int, name: str, value: str, kernel: str = "mul(int, int)") -> tuple[object, ...]:
    start = 1000 * number
    return (
        50,
        number,
        "Agent 3",
        1,
        77,
        9,
        1200,
        7,
        kernel,
        128,
        0,
        0,
        24,
        4,
        16,
        name,
        value,
        start,
        start + 10,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What one process leaves: two launches by one hipGraphLaunch, counters of the first, a copy,
    two GPUs on nodes 2 and 3."""
    written(tmp_path / "77_kernel_trace.csv", TRACE, launch(1), launch(2))
    written(
        tmp_path / "77_counter_collection.csv",
        COUNTS,
        count(1, "SQ_WAVES", "19.000000"),
        count(1, "FETCH_SIZE", "1.5"),
    )
    written(
        tmp_path / "77_memory_copy_trace.csv",
        COPIES,
        ("MEMORY_COPY", "MEMORY_COPY_DEVICE_TO_HOST", "Agent 3", "Agent 0", 51, 5000, 5040),
    )
    written(
        tmp_path / "77_hip_api_trace.csv",
        CALLS,
        ("HIP_RUNTIME_API", "hipGraphLaunch", 77, 9, 50, 900, 930),
        ("HIP_RUNTIME_API", "hipFree", 77, 9, 52, 6000, 6007),
    )
    written(
        tmp_path / "77_agent_info.csv",
        AGENTS,
        (0, 0, "CPU", 0, 0, "a CPU", "a CPU"),
        (2, 1, "GPU", 104, 1700, "gfx90a", "AMD Instinct MI210"),
        (3, 2, "GPU", 104, 1700, "gfx90a", "AMD Instinct MI210"),
    )
    return tmp_path


def test_files_given_one_by_one_are_still_one_run_and_one_alone_is_read_alone(
    folder: Path, tmp_path: Path
) -> None:
    files = sorted(folder.glob("77_*.csv"))
    done = ingest(files, tmp_path / "store.db")
    assert [path.name for path, _ in done.taken] == ["77_kernel_trace.csv"]
    alone = parsers.parse(folder / "77_hip_api_trace.csv")
    assert [one.name for one in alone.operations] == ["hipGraphLaunch", "hipFree"]
    assert list(alone.kernels) == []


@pytest.mark.parametrize("end", [40, 500, -8])
def test_a_cut_off_file_is_one_clear_error_and_nothing_of_it_is_stored(
    end: int, tmp_path: Path
) -> None:
    whole = written(tmp_path / "w.csv", TRACE, launch(1), launch(2)).read_bytes()
    path = tmp_path / "77_kernel_trace.csv"
    path.write_bytes(whole[:end])
    with pytest.raises(ReportError):
        parsers.parse(path)
    done = ingest(path, tmp_path / "store.db")
    assert done.taken == ()
    assert len(done.failed) == 1
    assert "\n" not in done.failed[0]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(("phase", "launches"), [("decode", 144), ("prefill", 1128)])
def test_the_real_traces_agree_with_a_reading_of_their_rows(
    phase: str, launches: int, shared: Path
) -> None:
    folder = shared / "reports/rocm/rocprofv3/jimw567_llm"
    rows, calls = (
        rows_of(folder / f"{phase}_kernel_trace.csv"),
        rows_of(folder / f"{phase}_hip_api_trace.csv"),
    )
    report = parsers.parse(folder / f"{phase}_kernel_trace.csv")
    kernels = list(report.kernels)
    assert len(kernels) == len(rows) == launches
    assert [kernel.duration_ns for kernel in kernels] == [
        int(row["End_Timestamp"]) - int(row["Start_Timestamp"]) for row in rows
    ]
    assert Tally(kernel.name for kernel in kernels) == Tally(row["Kernel_Name"] for row in rows)
    for axis in "XYZ":
        groups = [getattr(kernel, f"grid_{axis.lower()}") for kernel in kernels]
        assert groups == [
            -(-int(row[f"Grid_Size_{axis}"]) // int(row[f"Workgroup_Size_{axis}"])) for row in rows
        ]
    assert {one.name: one.calls for one in report.operations} == Tally(
        row["Function"] for row in calls
    )
    assert sum(one.cpu_ns or 0 for one in report.operations) == sum(
        int(row["End_Timestamp"]) - int(row["Start_Timestamp"]) for row in calls
    )


@pytest.mark.parametrize("name", ["decode_fetch", "decode_stall", "prefill_fetch", "prefill_stall"])
def test_the_real_counters_agree_with_a_reading_of_their_rows(name: str, shared: Path) -> None:
    path = shared / f"reports/rocm/rocprofv3/jimw567_llm/{name}_counter_collection.csv"
    rows = rows_of(path)
    report = parsers.parse(path)
    kernels, counters = (
        list(report.kernels),
        [one for one in report.counters if one.name != "Scratch_Size"],
    )
    times = {
        row["Dispatch_Id"]: int(row["End_Timestamp"]) - int(row["Start_Timestamp"]) for row in rows
    }
    assert [kernel.duration_ns for kernel in kernels] == list(times.values()), (
        "once for each launch, not for each row"
    )
    scale = {"FETCH_SIZE": 1024}
    assert [(one.name, one.value) for one in counters] == [
        (row["Counter_Name"], float(row["Counter_Value"]) * scale.get(row["Counter_Name"], 1))
        for row in rows
    ]


def test_the_real_folder_holds_six_reports(shared: Path) -> None:
    folder = shared / "reports/rocm/rocprofv3/jimw567_llm"
    kinds = ("fetch_counter_collection", "kernel_trace", "stall_counter_collection")
    assert [path.stem for path in parsers.find(folder)] == [
        f"{phase}_{kind}" for phase in ("decode", "prefill") for kind in kinds
    ]
