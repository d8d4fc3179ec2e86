"""ncu replays one of the layers that repeat one another: a sweep from the plain step to the store
and the ledger. ncu is played by a program that filters launches by NVTX as its manual says, and
counts what the shapes of the layers imply."""

import json
import os
import sys
from dataclasses import asdict

import pytest

from perfctl.orchestrator.cli.main import run_command_line
from perfctl.orchestrator.commands.profile import sweep
from perfctl.orchestrator.counts.kernels.replays import build_first_pass
from perfctl.orchestrator.errors import RunFailed
from perfctl.orchestrator.ingest import sweep as sweeps
from perfctl.orchestrator.launch.machine import devices, tools
from perfctl.orchestrator.launch.profilers.ncu import Ncu
from perfctl.orchestrator.launch.profilers.replay import Replay
from perfctl.orchestrator.launch.sweep.options import SweepOptions
from perfctl.orchestrator.launch.sweep.plan import plan_sweep
from tests.counts.kernels.test_repeats import OPS, RANGES, STEP
from tests.make.stored import rows

FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
DEPTH = {
    "block.0.up": 257,
    "block.1.up": 257,
    "block.2.down": 1025,
    "block.3.bare": 256,
    "block.4.wide": 257,
}
"""Multiply-adds for each of the 64 x 256 outputs; the bias is one more."""
STEP_ROW = {
    "number": 0,
    "phase": "step",
    "start_ns": 0,
    "duration_ns": 1_000_000,
    "loss": None,
    "accuracy": None,
}
RECORD = {
    "perfctl_workload_record": 1,
    "status": "ok",
    "batch_size": 4,
    "workload": "mnist_cnn",
    "steps": [STEP_ROW],
    "memory": [],
    "ops": [asdict(op) for op in OPS],
    "gaps": [],
    "environment": {},
    "mode": "train",
    "precision": "fp32",
    "started_at": None,
    "duration_ns": None,
}
NCU = f"""#!{sys.executable}
import re, sys
from pathlib import Path

def values(option):
    return [sys.argv[at + 1] for at, word in enumerate(sys.argv) if word == option]

LAUNCHES = {[(k.layer, k.name, k.grid_x) for k in STEP] + [("block.9", "ncclDevKernel_AllReduce", 1)]!r}
DEPTH = {DEPTH!r}
if "--import" in sys.argv:
    metrics, *kept = Path(values("--import")[0]).read_text().splitlines()[1:]
    metrics = metrics.split(",")
    head = '"ID","Process ID","Process Name","thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",'
    head += '"Kernel Name","Grid Size","Block Size","CC",' + ",".join(f'"{{name}}"' for name in metrics)
    rows = [head, '"","","","","","","",""' + ',"inst"' * len(metrics)]
    for number, line in enumerate(kept):
        layer, name, grid = line.split(" ")
        inner = '7  ""<default domain>:block:forward:none:none:none:none:none:none""  '
        inner += f'""<default domain>:{{layer}}:forward:none:none:none:none:none:none"" '
        count = 64 * 256 * DEPTH[layer]
        rows.append(f'"{{number}}","7","python","{{inner}}","{{name}}","({{grid}}, 1, 1)","(64, 1, 1)","8.0"')
        rows[-1] += "".join(f',"{{count if name == "{FFMA}" else 0}}"' for name in metrics)
    Path(values("--log-file")[0]).write_text("\\n".join(rows) + "\\n")
    sys.exit(0)
without = [re.sub(r"\\\\\\\\(.)", r"\\\\1", text) for text in values("--nvtx-exclude")]
(wanted,) = values("--kernel-name")
kept = [
    f"{{layer}} {{name}} {{grid}}" for layer, name, grid in LAUNCHES
    if re.search(wanted.removeprefix("regex:"), name) and f"{{layer}}:forward]" not in without
]
Path(values("--export")[0]).write_bytes(b"NVR\\0\\n" + "\\n".join([*values("--metrics"), *kept]).encode())
record = sys.argv[sys.argv.index("--record") + 1]
Path(record).write_text({json.dumps(RECORD)!r})
"""


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A machine with a driver, a torch and an ncu, all pretended."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "ncu"
    program.write_text(NCU)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(tools, "has_gpu_driver", lambda: True)
    monkeypatch.setattr(tools, "is_package_importable", lambda name: True)
    monkeypatch.setattr(devices, "SHARED", tmp_path / "locks")
    monkeypatch.chdir(tmp_path)
    plain = sweeps.PlainStep(tuple(STEP), build_first_pass(STEP, OPS, RANGES))
    monkeypatch.setattr(sweeps, "run_step_without_ncu", lambda *anything: plain)
    return tmp_path


def counted(store):
    """layer -> (FFMA, section) of each launch."""
    query = (
        "SELECT kernel.layer, counter.value, counter.section FROM counter JOIN kernel ON "
        f"kernel.id = counter.kernel_id WHERE counter.name = '{FFMA}'"
    )
    return {layer: (value, section) for layer, value, section in rows(store, query)}


def test_a_layer_that_repeats_another_is_not_replayed_and_its_count_is_marked(node):
    done = sweep(Ncu(metrics=FFMA, launches="distinct"), SweepOptions(batches=(4,), device="cuda"))
    assert [run.status for run in done.runs] == ["ok"], done.runs
    assert done.store is not None
    found = counted(done.store)
    assert {layer: value for layer, (value, _) in found.items()} == {
        layer: 64 * 256 * each for layer, each in DEPTH.items()
    }
    assert [layer for layer, (_, section) in found.items() if section == "extrapolated"] == [
        "block.1.up"
    ]
    argv = json.loads((done.runs[0].folder / "run.json").read_text())["commands"][0]
    assert argv[argv.index("--nvtx-exclude") + 1] == "block.1.up:forward]"
    assert argv.count("--nvtx-exclude") == 1
    assert argv[argv.index("--steps") + 1] == "1"
    said = dict(rows(done.store, "SELECT key, value FROM environment WHERE key LIKE 'ncu:%'"))
    assert said["ncu:extrapolated"].startswith("1 of 5 launches were not replayed")
    assert (said["ncu:metrics"], said["ncu:metrics_chosen"]) == (FFMA, "set by the user")


def test_of_several_ranks_only_the_first_is_counted_and_the_others_say_so(node, capsys):
    """The folder of a launcher's run: rank 0 has a report, rank 1 the record of a program that ran
    as usual."""
    done = sweep(Ncu(), SweepOptions(batches=(4,), device="cuda"))
    folder = done.runs[0].folder
    record = json.loads((folder / "run.json").read_text())
    record["commands"][0] += ["--under", "[]", "--under-rank", "0"]
    record["environment"]["ncu:not_replayed"] = "nccl"
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "workload.rank1.json").write_text((folder / "workload.json").read_text())
    store = node / "ranks.db"
    assert run_command_line(["ingest", str(folder), "--store", str(store)]) == 0
    assert "run 1" in capsys.readouterr().out
    assert rows(store, "SELECT status, variant FROM run ORDER BY id") == [
        ("ok", "rank 0 of 2"),
        ("ok", "rank 1 of 2"),
    ]
    gaps = rows(store, "SELECT run_id, quantity, state, reason FROM gap ORDER BY run_id")
    of_collectives = [row[:3] for row in gaps if "their replay would never end" in row[3]]
    of_rank_1 = [row[:3] for row in gaps if "only rank 0 ran under ncu" in row[3]]
    assert of_collectives == [(1, "collective", "not_collected")]
    assert of_rank_1 == [(2, "kernel", "not_collected")]


def test_a_plain_step_whose_report_is_damaged_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tools, "has_gpu_driver", lambda: True)
    batch = tmp_path / "recorded" / "b16"
    batch.mkdir(parents=True)
    (batch / "report.pt.trace.json").write_text(
        '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "ca'
    )
    (batch / "run.json").write_text(
        '{"profiler": "torch", "workload": "mnist_cnn", "device": "cuda", "batch_size": 16, '
        '"status": "ok", "artifact": "report.pt.trace.json"}'
    )
    with pytest.raises(RunFailed, match=r"step without ncu.*report\.pt\.trace\.json"):
        asked = SweepOptions(batches=(16,), device="cuda")
        plain = plan_sweep(Replay(tmp_path / "recorded"), asked)
        sweeps.estimate_ncu_replay_cost(plan_sweep(Ncu(), asked), plain)
