"""A trace that perfctl torch writes, read by HTA (HolisticTraceAnalysis) in whatever Python
has it."""

import gzip
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

READING = """
import json, sys, warnings
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_files={0: sys.argv[1]}).t
frame = found.get_trace(0)
names = found.symbol_table.sym_table
spent = frame.assign(named=[names[number] for number in frame["name"]]).groupby("named")["dur"].sum()
print("READ " + json.dumps({"rows": len(frame), "us": {str(name): float(us) for name, us in spent.items()}}))
"""


@pytest.mark.usefixtures("quick_sweeps")
def test_hta_reads_a_trace_and_finds_the_same_times(perfctl, tmp_path):
    perfctl(
        "torch --workload lstm --batches 4 --hidden 4 --length 6 --samples 16 --threads 1 --steps 3 --warmup 2 --out runs --sweep-name small",
    ).ok()
    (trace,) = Path("runs").rglob("*.pt.trace.json.gz")
    with gzip.open(trace, "rt", encoding="utf-8") as opened:
        content = json.load(opened)
    assert content["distributedInfo"]["rank"] == 0, "HTA asks for a rank"

    python = os.environ.get("PERFCTL_HTA_PYTHON") or (
        sys.executable if importlib.util.find_spec("hta") else None
    )
    if python is None:
        pytest.skip(
            "HTA is not installed: set PERFCTL_HTA_PYTHON to a Python with HolisticTraceAnalysis"
        )
    told = subprocess.run(
        [python, "-c", READING, str(trace.resolve())],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert "does not have the rank" not in told.stdout + told.stderr
    (line,) = (line for line in told.stdout.splitlines() if line.startswith("READ "))
    read = json.loads(line.removeprefix("READ "))
    spent = sum(
        event["dur"] for event in content["traceEvents"] if event.get("name") == "aten::linear"
    )
    calls = sum(event.get("name") == "aten::linear" for event in content["traceEvents"])
    assert calls > 0
    assert read["us"]["aten::linear"] == pytest.approx(spent, abs=2 * calls), (
        "HTA rounds to whole microseconds"
    )
