"""Traces that nsys stats prints, a row a launch, copy, range or call."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from perfctl.parsers.nsys import stats
from perfctl.records.report import Copy, Kernel
from tests.make.nsys_stats import KERNELS, SUM, csv_table, operations, processing, read

TRACE = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem ({mem}),DymSMem "
    "({mem}),Bytes ({mem}),Throughput ({thru}),SrcMemKd,DstMemKd,Device,Ctx,{green}Strm,Name"
)


def trace(kernel: str, copy: str, mem: str = "MB", thru: str = "MBps", green: str = "") -> str:
    return TRACE.format(mem=mem, thru=thru, green=green) + "\n" + kernel + "\n" + copy + "\n\n"


OLD_TRACE = trace(
    '727260259,59808,126,23,2,1,32,4,2,18,0.002,0.000,None,None,None,None,Tesla T4 (1),1,7,"k(int, '
    'int)"',
    "670339055,25440,127,None,None,None,None,None,None,None,None,None,0.144,5669.471,"
    "Pageable,Device,Tesla T4 (1),1,13,[CUDA memcpy HtoD]",
)
NEW_TRACE = trace(
    '727260259,59808,126,23,2,1,32,4,2,18,1536,0,,,,,Tesla T4 (1),1,,7,"k(int, int)"',
    "670339055,25440,127,,,,,,,,,,144232,5669471698,Pageable,Device,Tesla T4 (1),1,,13,[CUDA "
    "memcpy Host-to-Device]",
    "B",
    "B/s",
    "GreenCtx,",
)


@pytest.mark.parametrize(
    ("text", "shared", "size"), [(OLD_TRACE, None, 144_000), (NEW_TRACE, (1536, 0), 144_232)]
)
def test_a_trace_gives_launches_and_copies(
    tmp_path: Path, text: str, shared: tuple[int, int] | None, size: int
) -> None:
    found = read(tmp_path, processing("gputrace") + text)
    kernel = Kernel(
        0,
        "k(int, int)",
        device_index=1,
        stream=7,
        grid_x=23,
        grid_y=2,
        grid_z=1,
        block_x=32,
        block_y=4,
        block_z=2,
        registers=18,
        static_shared_bytes=shared and shared[0],
        dynamic_shared_bytes=shared and shared[1],
        start_ns=727260259,
        duration_ns=59808,
    )
    for _ in range(2):  # as often as asked
        assert list(found.kernels) == [kernel]
        assert list(found.copies) == [Copy("HtoD", size, 670339055, 25440, None, 1, 13)]
    assert [(device.index, device.name) for device in found.devices] == [(1, "Tesla T4")]
    rounded = {"kernel.static_shared_bytes", "copy.bytes"}
    assert rounded & {gap.quantity for gap in found.gaps} == (set() if shared else rounded)


def test_a_copy_of_too_few_printed_digits_has_no_size(tmp_path: Path) -> None:
    found = read(tmp_path, processing("gputrace") + OLD_TRACE.replace(",0.144,", ",0.000,"))
    assert [copy.bytes for copy in found.copies] == [None]


def test_a_range_trace_gives_ranges_with_parents(tmp_path: Path) -> None:
    columns = (
        "Start (ns),End (ns),Duration (ns),DurChild (ns),DurNonChild "
        "(ns),Name,PID,TID,Lvl,NumChild,RangeId,ParentId,"
    )
    columns += "RangeStack,NameTree"
    rows = "100,900,800,500,300,perfctl:step:3,42,43,0,1,7,None,:7,perfctl:step:3\n"
    rows += "200,700,500,0,500,conv2:forward,42,43,1,0,9,7,:7:9,--conv2:forward"
    found = read(tmp_path, processing("nvtxpptrace") + columns + "\n" + rows + "\n\n")
    step, layer = found.ranges
    assert (
        step.number,
        step.start_ns,
        step.duration_ns,
        step.thread,
        step.depth,
        step.parent,
        step.step,
    ) == (
        0,
        100,
        800,
        43,
        0,
        None,
        3,
    )
    assert (layer.number, layer.parent, layer.depth, layer.layer, layer.direction) == (
        1,
        0,
        1,
        "conv2",
        "forward",
    )


def test_calls_of_an_api_trace_are_added_up_where_there_is_no_sum(tmp_path: Path) -> None:
    columns = "Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid,T-Pri,Thread Name"
    rows = "100,10,cudaFree,0,1,42,42,20,app\n200,30,cudaFree,0,2,42,42,20,app"
    found = read(tmp_path, processing("cudaapitrace") + columns + "\n" + rows + "\n\n")
    assert operations(found) == [("cudaFree", "cuda_api_trace", 2, 40, None)]


def test_sums_say_that_they_have_no_launches(tmp_path: Path) -> None:
    found = read(tmp_path, processing("gpukernsum") + csv_table(SUM, KERNELS))
    gaps = {gap.quantity: gap for gap in found.gaps}
    assert "cuda_gpu_trace" in gaps["kernel"].reason
    assert {"kernel", "copy", "range"} <= set(gaps)


def test_a_large_trace_is_read_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    line = OLD_TRACE.split("\n")[1] + "\n"
    with path.open("w") as file:
        file.write(OLD_TRACE.split("\n")[0] + "\n" + line * 8_000)
    tracemalloc.start()
    found = stats.parse(path)
    assert sum(1 for _ in found.kernels) == 8_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 2**20  # as records in a list they take twice as much
