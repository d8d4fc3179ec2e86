"""Small samples of dialects that no file under tests/data has; the fuzzer starts from them too."""

from __future__ import annotations

_STACK = (
    b"    NVTX Start/End Ranges:\n      <default domain>\n        <5,fc1:backward>\n\n"
    b"    NVTX Push/Pop Stack for Thread 42:\n     <default domain>\n        <0,perfctl:step:3>\n"
    b"        <1,conv2:forward>\n          Uint64: 42\n          RGB: 0xff00ff00\n"
    b"          REGISTERED: conv1:backward\n"
    b'        <2,odd <name>, "x">\n     cuBLAS\n        <0,cublasSgemm>\n\n'
)
MORE_SEEDS: dict[str, list[bytes]] = {
    "ncu_text": [
        (
            b"==PROF== Connected to process 7 (/bin/a)\n[7] a@127.0.0.1\n"
            b"  gemm(int) (2, 3, 4)x(32, 2, 1), Context 1, Stream 7, Device 0, CC 8.0\n"
            b"    Section: GPU Speed Of Light Throughput\n    ---------------- ----------- "
            b"------------\n"
            b"    Metric Name      Metric Unit Metric Value\n    ---------------- ----------- "
            b"------------\n"
            b"    DRAM Frequency   cycle/nsecond 1.21\n    Duration         usecond       "
            b"12,345.67\n"
            b"    ---------------- ----------- ------------\n    OPT   Some advice.\n"
        ),
        (
            b"  gemm(int), 2026-Jan-01 10:00:00, Context 1, Stream 7\n"
            b"    Section: Launch Statistics\n"
            b"    -------------- ------- -----\n    Block Size               64\n"
            b"    Grid Size                1.024\n"
        ),
        b"[42] app@127.0.0.1\n  gemm(int), 2023-Sep-06 05:40:14, Context 1, Stream 7\n"
        + _STACK
        + (
            b"    Section: Launch Statistics\n    -------------- ------- -----\n"
            b"    Block Size               64\n"
            b"    -------------- ------- -----\n\n"
        ),
        (
            b"[42] app@127.0.0.1\n  gemm(int) (64, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device "
            b"0, CC 8.0\n"
        )
        + _STACK
        + b"    Section: GPU Speed Of Light\n    ----------- ----------- ------------\n"
        b"    Metric Name Metric Unit Metric Value\n    ----------- ----------- ------------\n"
        b"    Duration        nsecond         5.00\n    ----------- ----------- ------------\n\n",
        b"[42] app@127.0.0.1\n  gemm(int), 2023-Sep-06 05:40:14, Context 1, Stream 7\n"
        + _STACK
        + (
            b"  Metric Name Metric Unit         Metric Value\n  ----------- ----------- "
            b"--------------------\n"
            b"  Duration        nsecond                 5.00\n\n"
        ),
    ],
    "nsys_stats": [
        (
            b"Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev "
            b"(ns),Name\n"
            b'60.0,600,2,300.0,300.0,200,400,141.4,"gemm(int, float)"\n'
            b"40.0,400,1,400.0,400.0,400,400,0.0,relu\n"
        ),
        (
            b"Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem "
            b"(MB),DymSMem (MB),Bytes (MB),Throughput "
            b"(MBps),SrcMemKd,DstMemKd,Device,Ctx,Strm,Name\n"
            b"10,5,1,2,3,4,32,2,1,40,0.001,0.0,,,,,A100 (0),1,7,gemm\n"
            b"20,5,2,,,,,,,,,,0.004,1.5,Pageable,Device,A100 (0),1,7,[CUDA memcpy HtoD]\n"
        ),
        (
            b"Processing [r.sqlite] with [gpukernsum.py]... \n\n ** CUDA GPU Kernel Summary "
            b"(gpukernsum):\n\n"
            b" Time (%)  Total Time (ns)  Instances  Avg (ns)  Name     \n"
            b" --------  ---------------  ---------  --------  ---------\n"
            b"     60.0              600          2     300.0  gemm(int)\n"
            b"     40.0              400          1     400.0  relu\n\n"
        ),
        (
            b"CUDA Memory Operation Statistics (by size in KiB):\n\n"
            b" Total,Operations,Average,Minimum,Maximum,Operation\n"
            b"4.0,1,4.0,4.0,4.0,[CUDA memcpy HtoD]\n"
        ),
        (
            b"Time (%)\tTotal Time (ns)\tInstances\tAvg (ns)\tMed (ns)\tMin (ns)\tMax (ns)\tStdDev "
            b"(ns)\tName\n"
            b"75.0\t300\t2\t150.0\t150.0\t100\t200\t70.7\tvoid gemm<float, (int)128>(const float "
            b"*)\n"
            b"25.0\t100\t1\t100.0\t100.0\t100\t100\t0.0\trelu\n\n"
        ),
        (
            b"Processing [r.sqlite] with [cuda_gpu_trace.py]... \n"
            b"Start (ns)\tDuration (ns)\tCorrId\tGrdX\tGrdY\tGrdZ\tBlkX\tBlkY\tBlkZ\tReg/"
            b"Trd\tStcSMem (MB)\tDymSMem (MB)\tBytes (MB)\tThroughput "
            b"(MBps)\tSrcMemKd\tDstMemKd\tDevice\tCtx\tStrm\tName\n"
            b"10\t5\t1\t2\t3\t4\t32\t2\t1\t40\t0.001\t0.0\t\t\t\t\tA100 (0)\t1\t7\tgemm\n"
        ),
        (
            b'[\n  {"Time (%)": 75.0, "Total Time (ns)": 300, "Instances": 2, "Avg (ns)": 150.0, '
            b'"Med (ns)": 150.0, "Min (ns)": 100, "Max (ns)": 200, "StdDev (ns)": 70.7, "Name": '
            b'"void gemm<float, (int)128>(const float *)"},\n'
            b'  {"Time (%)": 25.0, "Total Time (ns)": 100, "Instances": 1, "Avg (ns)": 100.0, "Med '
            b'(ns)": 100.0, "Min (ns)": 100, "Max (ns)": 100, "StdDev (ns)": 0.0, "Name": "relu"}\n'
            b"]\n\n"
        ),
        (
            b"Processing [r.sqlite] with [cuda_gpu_kern_sum.py]... \n"
            b'[{"Time (%)": 75.0, "Total Time (ns)": 300, "Instances": 2, "Avg (ns)": 150.0, '
            b'"Name": "gemm"}]\n\n'
            b"Processing [r.sqlite] with [nvtx_sum.py]... \n"
            b"SKIPPED: r.sqlite does not contain NV Tools Extension (NVTX) data.\n\n"
            b"Processing [r.sqlite] with [cuda_gpu_trace.py]... \n"
            b'[\n  {\n    "Start (ns)": 20,\n    "Duration (ns)": 5,\n    "CorrId": 2,\n'
            b'    "GrdX": null,\n'
            b'    "Bytes (MB)": 4.096,\n    "Throughput (MBps)": 1.5,\n'
            b'    "SrcMemKd": "Pageable",\n    "DstMemKd": "Device",\n'
            b'    "Device": "A100 (0)",\n    "Ctx": 1,\n    "Strm": 7,\n'
            b'    "Name": "[CUDA memcpy HtoD]"\n  }\n]\n\n'
        ),
    ],
    "rocm.csv": [
        (
            b'"Kind","Agent_Id","Queue_Id","Stream_Id","Dispatch_Id","Kernel_Name",'
            b'"Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size",'
            b'"VGPR_Count","Accum_VGPR_Count","Workgroup_Size_X","Workgroup_Size_Y",'
            b'"Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
            b'"KERNEL_DISPATCH","Agent 1","1","2","1","mul(int, '
            b'int)","5","100","140","512","0","8","0","64","1","1","640","1","1"\n'
        ),
        (
            b"Correlation_Id,Dispatch_Id,Agent_Id,Process_Id,Grid_Size,Kernel_Name,Workgroup_Size,"
            b"Counter_Name,Counter_Value,Start_Timestamp,End_Timestamp\n"
            b"1,1,Agent 1,7,1024,mul,256,FETCH_SIZE,10.625000,100,140\n"
        ),
        b"Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp\n"
        b"HIP_RUNTIME_API_EXT,hipGraphLaunch,7,7,5,90,95\nMARKER_CORE_API,step 1,7,7,6,80,99\n",
    ],
    "rocm.refused": [
        (
            b"Dispatch_ID,Kernel_Name,GPU_ID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Arch_VGPR,"
            b"Accum_VGPR,SQ_WAVES,TCC_HIT[0],TCC_HIT[1],Start_Timestamp,End_Timestamp\n"
            b"0,mul [clone .kd],2,1024,256,0,8,0,16,1,2,100.5,140.25\n"
        ),
        b"gpu_model,gpu_arch,cu_per_gpu,max_sclk,hbm_bw\nMI300X_A1,gfx942,304,2100,5324.8\n",
        (
            b'Kernel_Name,Count,Sum(ns),Mean(ns),Median(ns),Pct\n"mul(int, '
            b'int)",2,80.5,40.25,40.25,100\n'
        ),
        (
            b'"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n'
            b'"mul(int, int)",2,80,40,100.0\n'
        ),
        (
            b'{ "traceEvents":[{}\n,{"args":{"name":"GPU0"},"ph":"M","pid":6,'
            b'"name":"process_name"}\n,{"ph":"X","name":"mul","pid":"6","ts":"1","dur":"2",'
            b'"args":{"BeginNs":"1000","EndNs":"3000","dev-id":"0","Name":"mul","stream-id":"1"}}\n'
            b"]}"
        ),
    ],
    "rocm.json": [
        (
            b'{"rocprofiler-sdk-tool":[{"agents":[{"id":{"handle":7},"type":2,"node_id":1,'
            b'"name":"gfx942"}],"kernel_symbols":[{"kernel_id":3,"formatted_kernel_name":"mul"}],'
            b'"counters":[{"id":{"handle":9},"name":"SQ_WAVES"}],'
            b'"buffer_records":{"kernel_dispatch":[{"dispatch_info":{"kernel_id":3,"dispatch_id":1,'
            b'"agent_id":{"handle":7},"grid_size":{"x":64,"y":1,"z":1},"workgroup_size":{"x":64,'
            b'"y":1,"z":1}},"start_timestamp":1,"end_timestamp":5}]},"callback_records":{}}]}'
        ),
    ],
    "proton": [
        (
            b'[{"frame":{"name":"ROOT"},"metrics":{"count":0,"time '
            b'(ns)":0},"children":[{"frame":{"name":"a"},"metrics":{"flops16":9},'
            b'"children":[{"frame":{"name":"mul"},"metrics":{"count":1,"time '
            b'(ns)":5,"device_id":"0"},"children":[]}]}]},{"HIP":{"0":{"arch":"gfx942",'
            b'"num_sms":304,"clock_rate":2100000}}}]'
        ),
    ],
    "run_samples": [
        (
            b"# perfctl samples 1\n# gpu: NVML, driver 550.54.15\n# every_s: 0.05\n"
            b"at_ns,device_index,gpu_utilisation,memory_used_bytes,power_w,sm_clock_hz,"
            b"throttle_reasons,host_cpu\n"
            b"1000,1,0.5,10,70.5,1410000000,idle,\n1000,,,,,,,1.25\n"
            b"# missing energy_j: Not Supported\n# readings: 2\n"
        ),
    ],
    "units": [
        b"1.234,56 Mbyte",
        b"12,345.6 usecond",
        b"1e5 byte/second",
        b"3 inst/cycle",
        b"99.5 %",
        b"0,5 Ghz",
    ],
}
"""Parser -> samples."""
