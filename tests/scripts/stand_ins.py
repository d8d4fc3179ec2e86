"""Stand-ins for ncu, nsys and nvidia-smi that behave as the documented tools do, on a machine
without a GPU.

ncu runs the program, on the CPU where it was told cuda, and "counts" what mnist_cnn's conv2
executes by its dimensions.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

UUID = f"GPU-{uuid.uuid4()}"
"""Of the GPU that nvidia-smi shows; another perfctl on this machine may hold that of
another test."""
RECORDED = (
    Path(__file__).resolve().parents[1] / "data" / "recorded-cpu" / "nsys" / "b16" / "report.sqlite"
)

_BEGIN = """#!{python} -SE
import json, os, shutil, subprocess, sys
words = sys.argv[1:]
def value(name):
    for at, word in enumerate(words):
        if word == name: return words[at + 1]
        if word.startswith(name + "="): return word.partition("=")[2]
def program():
    at = next(n for n, word in enumerate(words) if os.path.basename(word).startswith("python"))
    return ["cpu" if word == "cuda" and before == "--device" else word.replace("--device=cuda", "--device=cpu")
            for before, word in zip([""] + words[at:], words[at:])]
"""
_NCU = (
    _BEGIN
    + r"""
METRICS = ["smsp__sass_thread_inst_executed_op_%s_pred_on" % (w + o) for w in "fhd" for o in ("add", "mul", "fma")]
METRICS += ["sm__inst_executed_pipe_tensor", "gpu__time_duration", "dram__bytes_read", "dram__bytes_write",
            "sm__ops_path_tensor_src_fp16_dst_fp32", "sm__ops_path_tensor_src_tf32_dst_fp32"]
if "--version" in words:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 36398880) (public-release)")
elif "--help" in words:
    print("usage: ncu [options] [program] [program-arguments]\n  --metrics arg  Specify all metrics to be profiled")
elif "--list-chips" in words:
    print("gh100, gb100")
elif "--list-sections" in words:
    print("SpeedOfLight")
elif "--query-metrics" in words:
    print("Device NVIDIA H100 80GB HBM3 (GH100)\n" + "\n".join("%-60s %s" % (name, "# of it") for name in METRICS))
elif "--import" in words:
    kept = json.loads(open(words[words.index("--import") + 1], "rb").read()[4:])
    names = kept["metrics"]
    ranges = ["perfctl:window", "perfctl:step:0", "perfctl:phase:forward", "conv2:forward"]
    nvtx = '7  ' + "  ".join('""<default domain>:%s:none:none:none:none:none:none""' % name for name in ranges) + " "
    head = ["ID", "Process ID", "Process Name", "Host Name",
            "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
            "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg", "Kernel Name", "Context", "Stream",
            "Block Size", "Grid Size", "Device", "CC", "device__attribute_display_name", *names]
    units = [""] * 14 + ["ns" if "time" in name else "byte" if "bytes" in name else "inst" for name in names]
    def count(name):
        if "_ffma_" in name: return kept["batch"] * 64 * 24 * 24 * 32 * 9  # conv2's multiply-adds
        return 25000 if "time" in name else 4096 if "bytes" in name else 0
    row = ["0", "7", "python3", "127.0.0.1", nvtx, "", "implicit_convolve_sgemm", "1", "7", "(128, 1, 1)", "(64, 1, 1)", "0",
           "9.0", "NVIDIA H100 80GB HBM3", *(str(count(name)) for name in names)]
    with open(words[words.index("--log-file") + 1], "w") as out:
        out.writelines(",".join('"%s"' % cell for cell in line) + "\n" for line in (head, units, row))
else:
    run = program()
    print("==PROF== Connected to process 7 (%s)" % run[0], flush=True)
    code = subprocess.call(run)
    if code: sys.exit(code)
    batch = int(run[run.index("--batch") + 1])
    with open(value("--export").replace("%%", "%"), "wb") as out:
        kept = {"metrics": value("--metrics").split(","), "batch": batch, "by": os.uname().nodename}
        out.write(b"NVR\0" + json.dumps(kept).encode())
    print("==PROF== Report: " + value("--export"))
"""
)
_NSYS = (
    _BEGIN
    + r"""
if "--version" in words:
    print("NVIDIA Nsight Systems version 2025.3.1.90-253135822126v0")
elif "--help" in words:
    print("--cuda-graph-trace=  --trace=")
elif words[0] == "profile":
    code = subprocess.call(program())
    open(value("--output") + ".nsys-rep", "wb").write(b"nsys")
    sys.exit(code)
elif words[0] == "export":
    shutil.copyfile({recorded!r}, value("--output"))
"""
)
_SMI = (
    _BEGIN
    + r"""
KNOWN = dict(name="NVIDIA H100 80GB HBM3", driver_version="580.159.04", compute_cap="9.0", index="0",
             uuid="{uuid}")
KNOWN["memory.total"] = "81559 MiB"
if "--list-gpus" in words:
    print("GPU 0: %s (UUID: %s)" % (KNOWN["name"], KNOWN["uuid"]))
elif value("--query-gpu"):
    print(", ".join(KNOWN.get(field, "[N/A]") for field in value("--query-gpu").split(",")))
"""
)


def put(folder: Path) -> Path:
    """Fill ``folder`` with the three programs."""
    folder.mkdir()
    for name, text in (("ncu", _NCU), ("nsys", _NSYS), ("nvidia-smi", _SMI)):
        path = folder / name
        path.write_text(
            text.replace("{python}", sys.executable)
            .replace("{recorded!r}", repr(str(RECORDED)))
            .replace("{uuid}", UUID)
        )
        path.chmod(0o755)
    return folder
