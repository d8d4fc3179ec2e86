"""Arrays without a Slurm: what render writes, what the folders tell, what gather brings into
the store."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import sql


@pytest.fixture(autouse=True)
def _no_slurm(monkeypatch, tmp_path):
    """A machine without Slurm, and a home without perfctl.toml."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", "/nowhere")


def render(perfctl, recorded, options=""):
    perfctl(f"slurm render replay --recording {recorded / 'torch'} {options}").ok()
    return next(path for path in Path("perfctl-runs").iterdir() if path.name.startswith("slurm-"))


def run_task(folder, number, code=0):
    """What Slurm would do."""
    environment = {**os.environ, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["/bin/bash", folder / "array.sbatch", str(number)], env=environment, check=False
    )
    assert done.returncode == code


def rows(columns="profiler, batch_size, status"):
    return sql(f"SELECT {columns} FROM run ORDER BY profiler, batch_size")


def states(perfctl, folder):
    return [task["state"] for task in perfctl(f"slurm status {folder} --json").json["tasks"]]


def test_render_writes_plain_scripts_and_says_what_is_next(perfctl):
    said = perfctl(
        "slurm render nsys,ncu --batches 16,32 --layer conv2 --partition gpu",
    )
    folder = next(Path("perfctl-runs").glob("slurm-*"))
    assert said.code == 0
    assert f"Next: perfctl slurm submit {folder}" in said.out
    text = (folder / "array.sbatch").read_text()
    assert "#SBATCH --array=0-3 " in text
    assert "#SBATCH --partition=gpu " in text
    tasks = json.loads((folder / "tasks.json").read_text())["tasks"]
    assert [(one["number"], one["label"], one["runs"]["setting"]["batch"]) for one in tasks] == [
        (0, "nsys, batch 16", 16),
        (1, "nsys, batch 32", 32),
        (2, "ncu, batch 16", 16),
        (3, "ncu, batch 32", 32),
    ]
    assert all(
        ("--layer=conv2" in one["arguments"]) == (one["runs"]["profiler"] == "ncu") for one in tasks
    )
    lines = [line for line in text.splitlines() if "arguments=(" in line]
    assert [("--layer=conv2" in line) for line in lines] == [False, True], (
        "each profiler gets its own options only"
    )
    assert all("--device=cuda" in line for line in lines)


def test_a_sweep_on_one_machine_finds_what_an_array_made(perfctl, recorded):
    folder = render(perfctl, recorded, "--batches 16")
    run_task(folder, 0)
    said = perfctl(f"replay {recorded / 'torch'} --batches 16")
    assert "already complete, skipped" in said.err
    assert rows() == [("torch", 16, "ok")]


def test_a_script_that_was_edited_is_kept_unless_forced(perfctl, recorded):
    folder = render(perfctl, recorded)
    again = f"slurm render replay --recording {recorded / 'torch'}"
    assert perfctl(again).code == 0
    script = folder / "array.sbatch"
    script.write_text(script.read_text() + "# mine\n")
    perfctl(again).ends(2, "--force")
    assert script.read_text().endswith("# mine\n")
    assert perfctl(f"{again} --force").code == 0
    assert "# mine" not in script.read_text()


def test_a_dry_run_prints_both_scripts_and_writes_nothing(perfctl):
    said = perfctl("slurm render nsys --dry-run")
    assert said.out.count("#!/bin/bash") == 2
    assert [path.name for path in Path().iterdir()] == ["home"]


def test_submit_and_cancel_without_slurm_say_so(perfctl, recorded):
    folder = render(perfctl, recorded)
    for command in ("submit", "cancel"):
        perfctl(f"slurm {command} {folder}").ends(1, "squeue is not installed here")
    assert perfctl("slurm status home").code == 2


def test_status_without_slurm_tells_what_the_folders_tell(perfctl, recorded):
    folder = render(perfctl, recorded, "--batches 16,32,64,128")
    run_task(folder, 0)
    run_task(folder, 2, code=4)
    (folder / "task-3.state").write_text("2026-01-01T00:00:00Z started on n1 as 7, restart 0\n")
    assert states(perfctl, folder) == ["complete", "missing", "failed", "unknown"]
    said = perfctl(f"slurm status {folder}").ok()
    assert "squeue is not installed here: the status comes from the folders only" in said.err
    assert f"perfctl slurm submit {folder} --tasks 1,2" in said.out
    report = next(Path("perfctl-runs").glob("torch-*/b16/report.*"))
    report.write_bytes(report.read_bytes()[:100])
    assert states(perfctl, folder)[0] == "failed", (
        "a report that is shorter than it was is not whole"
    )


def test_gather_names_what_is_missing_in_the_store_and_on_the_page_and_a_later_whole_run_takes_its_place(
    perfctl, recorded
):
    folder = render(perfctl, recorded, "--batches 16,32")
    run_task(folder, 1)
    said = perfctl(f"slurm gather {folder}")
    assert said.code == 4 and "1 run is missing or incomplete" in said.err
    assert said.out.startswith("added 2 runs to perfctl.db; 0 already existed\n")
    assert rows() == [("torch", 16, "failed"), ("torch", 32, "ok")]
    assert "task 0 (replay, batch 16)" in rows("reason")[0][0]
    page = Path("perfctl-report.html").read_text(encoding="utf-8")
    assert "task 0 (replay, batch 16)" in page
    before = rows("id, batch_size, reason")
    assert perfctl(f"slurm gather {folder}").code == 4
    assert rows("id, batch_size, reason") == before
    run_task(folder, 0)
    assert perfctl(f"slurm gather {folder}").code == 0
    assert rows() == [("torch", 16, "ok"), ("torch", 32, "ok")]


def test_folders_copied_from_anywhere_are_gathered_and_none_twice(perfctl, recorded):
    folder = render(perfctl, recorded, "--batches 16,32")
    run_task(folder, 0)
    run_task(folder, 1)
    shutil.copytree("perfctl-runs", "copied")
    shutil.rmtree("perfctl-runs")
    sweep = next(Path("copied").glob("torch-*"))
    assert perfctl(f"slurm gather {sweep}").code == 0
    assert perfctl(f"slurm gather copied {sweep}").code == 0
    assert rows() == [("torch", 16, "ok"), ("torch", 32, "ok")]
    assert perfctl("slurm gather home").code == 2


def test_gather_stores_the_formulas_of_the_array(perfctl, recorded):
    folder = render(perfctl, recorded, "--batches 16,32 --expect 'conv1:*: flops=2*batch'")
    run_task(folder, 1)
    perfctl(f"slurm gather {folder}")
    assert sql("SELECT pattern, flops FROM expectation") == [("conv1:*", 2 * 32)]


def test_a_copy_that_lacks_its_report_is_named_and_does_not_stop_the_others(perfctl, recorded):
    folder = render(perfctl, recorded, "--batches 16,32")
    run_task(folder, 0)
    run_task(folder, 1)
    next(Path("perfctl-runs").glob("torch-*/b16/report.*")).unlink()
    assert perfctl(f"slurm gather {folder}").code == 4
    assert rows() == [("torch", 16, "failed"), ("torch", 32, "ok")]


def test_an_edited_script_is_not_taken_for_the_one_that_was_rendered(perfctl):
    Path("train.py").write_text("import torch\n")
    typed = "torch --batches 4 --device cpu"
    perfctl(f"slurm render {typed} -- train.py {{batch}}").ok()
    Path("train.py").write_text("import torch  # edited\n")
    name = next(Path("perfctl-runs").glob("torch-*")).name
    perfctl(f"{typed} --no-store --sweep-name {name} -- train.py {{batch}}").ends(
        2, "train.py was edited since"
    )


def many(recorded, count):
    """``count`` runs, each with a report and a batch size of its own; made from the beginning of
    one recording."""
    source = recorded / "torch" / "b16"
    record = json.loads((source / "run.json").read_text())
    own = json.loads((source / "workload.json").read_text())
    trace = json.loads(gzip.decompress((source / record["artifact"]).read_bytes()))
    short = json.dumps({**trace, "traceEvents": trace["traceEvents"][:400]}).encode()
    sweep = Path("perfctl-runs") / "torch-mnist_cnn-0123abcd"
    for batch in range(1, count + 1):
        folder = sweep / f"b{batch}"
        folder.mkdir(parents=True)
        packed = gzip.compress(short, compresslevel=1, mtime=batch)
        (folder / record["artifact"]).write_bytes(packed)
        (folder / "run.json").write_text(
            json.dumps({**record, "batch_size": batch, "artifact_bytes": len(packed)})
        )
        (folder / "workload.json").write_text(json.dumps({**own, "batch_size": batch}))
    return sweep


def test_gathers_at_the_same_time_fill_one_store_without_a_duplicate(perfctl, recorded):
    many(recorded, 6)
    # none of these ran: four rows that say so
    folder = render(perfctl, recorded, "--batches 16,32,64,128")
    argv = [sys.executable, "-m", "perfctl", "slurm", "gather", "perfctl-runs"]
    both = [
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    said = [(gathering.communicate()[0], gathering.returncode) for gathering in both]
    assert [code for _, code in said] == [4, 4], said
    missing = next(Path("perfctl-runs").glob("torch-mnist_cnn-*/sweep.json")).parent.name
    found = sql(
        "SELECT name, batch_size, status FROM run JOIN sweep ON sweep.id = sweep_id ORDER BY "
        "status DESC, batch_size"
    )
    whole = [("torch-mnist_cnn-0123abcd", batch, "ok") for batch in range(1, 7)]
    assert found == [*whole, *((missing, batch, "failed") for batch in (16, 32, 64, 128))], folder


def test_options_for_one_tool_are_not_given_to_two(perfctl):
    said = perfctl("slurm render nsys,ncu -b 16 --tool-args=--stats=true")
    assert (said.code, "--tool-args needs exactly one profiler, got nsys,ncu" in said.err) == (
        2,
        True,
    )
    said = perfctl(
        "slurm render ncu -b 16 '--tool-args=--import-source yes' --launches distinct --dry-run",
    )
    assert "--launches=distinct '--tool-args=--import-source yes'" in said.out
