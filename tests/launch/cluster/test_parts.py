"""A list of perfctl commands as an array, as a study will need it: one task each, and one command
that ends it."""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from perfctl.orchestrator.errors import PartlyDone, UsageError
from perfctl.orchestrator.ingest.gather import gather_runs_into_store
from perfctl.orchestrator.launch.cluster import render, status
from perfctl.orchestrator.launch.cluster.plan import (
    SlurmSiteSettings,
    read_job_array_plan,
)
from perfctl.orchestrator.launch.sweep.study import StudyParts

HOSTILE = ("torch", "--out", "a b", "it's", "$(touch pwned)", "`touch pwned`", "$HOME", "*", "")
PARTS = (
    ("torch at batch 16", ("torch", "--batches", "16", "--out", "study/runs")),
    ("names that a shell would obey\nrm -rf /", HOSTILE),
    ("infer", ("infer", "--batches", "1,2")),
    ("bench, which waits", ("bench",)),
)
FINISH = ("study", "flops", "--from", "study", "--title", "it's $HOME")
SAYS = """import json, os, sys
with open("said.jsonl", "a") as said:
    said.write(json.dumps(sys.argv[1:]) + "\\n")
sys.exit(int(os.environ.get("CODE_OF_" + sys.argv[1], 0)))
"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """A folder with a space in its name, on a machine without Slurm."""
    home = tmp_path / "my study"
    home.mkdir()
    (home / "says.py").write_text(SAYS)
    monkeypatch.chdir(home)
    monkeypatch.setenv("PATH", "/nowhere")


def rendered(runs_folder="", **site):
    site = {
        "perfctl": f"/usr/bin/env python3 {shlex.quote(str(Path('says.py').absolute()))}",
        **site,
    }
    study = StudyParts("flops", Path("study"), PARTS, FINISH, "cpu")
    command = "perfctl slurm render study"
    made = render.render_study_job_scripts(
        study, SlurmSiteSettings(**site), command, runs_folder=runs_folder
    )
    render.write_job_scripts(made)
    return read_job_array_plan(made.plan.folder)


def run(plan, file, *words, code=0, **environment):
    """What a node would do; the calls of perfctl that it made."""
    said = Path("said.jsonl")
    said.unlink(missing_ok=True)
    variables = {**os.environ, "PATH": "/usr/bin:/bin", **environment}
    done = subprocess.run(
        ["/bin/bash", file, *words], env=variables, check=False, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    return [json.loads(line) for line in said.read_text().splitlines()]


def states(plan):
    return [state.state for state in status.collect_array_status(plan).tasks]


def test_each_index_runs_the_words_of_its_part_as_they_are():
    plan = rendered()
    for number, (_, words) in enumerate(PARTS):
        assert run(plan, plan.array_script, str(number)) == [list(words)]
    assert not list(Path().rglob("pwned"))
    text = plan.array_script.read_text()
    assert (
        "    0)  # torch at batch 16\n        arguments=(torch --batches 16 --out study/runs) ;;\n"
        in text
    )
    assert "#SBATCH --array=0-3 " in text
    assert "study-flops in 4 parts" in text


def test_the_scripts_are_read_by_a_shell():
    plan = rendered(image="x y.sif", perfctl=None)
    for path in (plan.array_script, plan.gather_script, plan.functions_script):
        subprocess.run(["/bin/bash", "-n", path], check=True)


def test_a_part_is_whole_when_it_ended_with_0_and_its_exit_code_says_how_it_failed():
    plan = rendered()
    assert states(plan) == ["missing"] * 4
    run(plan, plan.array_script, "0")
    run(plan, plan.array_script, "1", code=4, CODE_OF_torch="4")
    run(plan, plan.array_script, "2", code=1, CODE_OF_infer="1")
    assert states(plan) == ["complete", "partial", "failed", "missing"]
    assert status.collect_array_status(plan).repeat == [1, 2, 3]
    run(plan, plan.array_script, "2")
    assert states(plan) == ["complete", "partial", "complete", "missing"]


def leave_runs(plan, number):
    """Leave the sweep of a study's part at two batch sizes; the folders of its runs."""
    task = plan.tasks[number]
    sweep = plan.folder.parent / plan.runs_folder / f"sweep-{number}"
    runs = [sweep / "b16", sweep / "b32"]
    for folder in runs:
        folder.mkdir(parents=True)
        (folder / "report.csv").write_text("1")
        record = {"perfctl_run": 1, "status": "ok", "artifact": "report.csv", "artifact_bytes": 1}
        (folder / "run.json").write_text(json.dumps(record))
    facts = {"command": shlex.join(["perfctl", *task.arguments]), "batches": [16, 32]}
    (sweep / "sweep.json").write_text(json.dumps(facts))
    return runs


def test_a_part_whose_run_folders_were_removed_is_not_complete():
    plan = rendered(runs_folder="perfctl-runs")
    run(plan, plan.array_script, "0")
    assert status.collect_array_status(plan).tasks[0].state == "missing"
    first, second = leave_runs(plan, 0)
    assert status.collect_array_status(plan).tasks[0].state == "complete"
    shutil.rmtree(second)
    state = status.collect_array_status(plan).tasks[0]
    assert (state.state, state.reason) == (
        "partial",
        "it ended, but run folders were removed or changed",
    )
    shutil.rmtree(first.parent)
    assert status.collect_array_status(plan).tasks[0].state == "missing"


def test_status_names_a_gather_job_that_failed():
    plan = rendered()
    assert status.collect_array_status(plan).gather is None
    run(plan, plan.gather_script, code=3, CODE_OF_study="3")
    assert status.collect_array_status(plan).gather == (
        f"the gather job failed with exit code 3; see {plan.get_log_path(None)}"
    )
    run(plan, plan.gather_script)
    assert status.collect_array_status(plan).gather == "the gather job is complete"
    plan.get_log_path(None).write_text("added 3 runs to perfctl.db\nWrote perfctl-report.html\n")
    assert status.collect_array_status(plan).gather == "the gather job wrote perfctl-report.html"


def test_gather_names_the_parts_that_are_missing_opens_no_store_and_says_what_makes_the_page():
    plan = rendered()
    run(plan, plan.array_script, "0")
    done = gather_runs_into_store([plan.folder], Path("perfctl.db"))
    assert not Path("perfctl.db").exists()
    assert done.finish == [FINISH]
    assert [line.partition(":")[0] for line in done.incomplete_parts] == [
        f"{task}" for task in plan.tasks[1:]
    ]
    with pytest.raises(PartlyDone, match="3 parts are missing or incomplete"):
        done.check()
    for number in range(1, 4):
        run(plan, plan.array_script, str(number))
    gather_runs_into_store([plan.folder], Path("perfctl.db")).check()


@pytest.mark.parametrize(
    ("codes", "code"), [({}, 0), ({"CODE_OF_slurm": "4"}, 4), ({"CODE_OF_study": "3"}, 3)]
)
def test_the_gather_job_names_what_is_missing_and_then_makes_the_page_of_what_there_is(codes, code):
    plan = rendered()
    assert run(plan, plan.gather_script, code=code, **codes) == [
        ["slurm", "gather", str(plan.folder)],
        list(FINISH),
    ]


def test_a_profiler_among_the_parts_gets_the_time_to_write_its_report():
    assert "--signal=B:USR1@60 " in rendered().array_script.read_text()
    parts = (("n", ("nsys",)), ("t", ("torch",)))
    made = render.render_study_job_scripts(
        StudyParts("x", Path("o"), parts, (), "cuda"), SlurmSiteSettings(), "c"
    )
    assert "--signal=B:USR1@300 " in "".join(made.texts.values())


@pytest.mark.parametrize("parts", [(), (("nothing", ()),)])
def test_a_study_without_commands_is_refused(parts):
    study = StudyParts("x", Path("study"), parts, FINISH, "cpu")
    with pytest.raises(UsageError, match="has no part, or a part without a command"):
        render.render_study_job_scripts(study, SlurmSiteSettings(), "c")
