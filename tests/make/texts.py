"""One report of each text format, as its tool prints it."""

from __future__ import annotations

import json
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data"
LONG = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Cluster '
    'Size","Section Name","Metric Name","Metric Unit","Metric Value"\n'
    '"0","1","app","host","gemm","1","7","(2, 1, 1)","Command line profiler '
    'metrics","inst_executed.sum","inst","5"\n'
)
WIDE = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Cluster '
    'Size","sm__inst.sum"\n'
    '"","","","","","","","","inst"\n"0","1","app","host","gemm","1","7","(2, 1, 1)","5"\n'
)
SUMS = (
    "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Warp "
    "Stalls,Name\n"
    "100.0,300,2,150.0,150.0,100,200,70.7,4,gemm\n"
)
TRACE = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem "
    "(MB),Bytes (MB),Throughput (MBps),SrcMemKd,DstMemKd,Device,Ctx,Strm,Name\n"
    "10,5,1,2,3,4,32,2,1,40,0.0,0.0,,,,,A100 (0),1,7,gemm\n\n"
)
CONSOLE = (
    "[7] a@127.0.0.1\n  gemm(int) (2, 3, 4)x(32, 2, 1), Context 1, Stream 7, Device 0, CC 8.0\n"
    "    Section: GPU Speed Of Light\n    ----------- ----------- ------------\n"
    "    Metric Name Metric Unit Metric Value\n    ----------- ----------- ------------\n"
    "    Duration        nsecond         5.00\n    ----------- ----------- ------------\n\n"
)
TABLE = (
    "Processing [r.sqlite] with [gpukernsum.py]... \n\n ** CUDA GPU Kernel Summary "
    "(gpukernsum):\n\n"
    " Time (%)  Total Time (ns)  Instances  Avg (ns)  Name     \n"
    " --------  ---------------  ---------  --------  ------\n"
    "     60.0              600          2     300.0  gemm\n\n"
)
ROWS = [
    {"Time (%)": 75.0, "Total Time (ns)": 300, "Instances": 2, "Avg (ns)": 150.0, "Name": "gemm"}
]
PAGE = (
    '"Process ID","Process Name","Host Name","Kernel Name","Block Size","Grid Size","Device '
    'Id","Invocations","Section Name","Metric Name","Metric Unit","Minimum","Maximum","Average"\n'
    '"7","a","h","gemm","(32, 1, 1)","(1, 1, 1)","0","2","SpeedOfLight","Duration","nsecond","1",'
    '"3","2"\n'
)
OP_TYPES = (DATA / "dlprof-synthetic" / "dlprof_op_type.csv").read_text()
SUMMARY = (DATA / "dlprof-synthetic" / "dlprof_summary.csv").read_text()
NVPROF = (DATA / "nvprof-synthetic" / "summary.txt").read_text()
NVPROF_TRACE = (DATA / "nvprof-synthetic" / "trace.csv").read_text()
NVPROF_CHILD = NVPROF_TRACE.partition("\n")[2]
"""Without the line that says that nvprof begins."""
ONCE = {
    "nsys stats CSV": SUMS.replace(",Warp Stalls", "").replace(",4,", ",") + "\n",
    "nsys stats text": TABLE,
    "nsys stats JSON": json.dumps(ROWS) + "\n\n",
    "nsys stats trace": TRACE,
    "ncu long CSV": LONG.replace('"Cluster Size",', "").replace('"(2, 1, 1)",', ""),
    "ncu raw CSV": WIDE.replace('"Cluster Size",', "")
    .replace('"(2, 1, 1)",', "")
    .replace(',"","inst"', ',"inst"'),
    "ncu summary CSV": PAGE,
    "ncu console text": CONSOLE,
    "DLProf table": OP_TYPES,
    "DLProf summary": SUMMARY,
    "nvprof summary": NVPROF,
    "nvprof trace": NVPROF_TRACE,
}
