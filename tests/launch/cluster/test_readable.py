"""What a person reads in a job script: the call that one task makes, what to change, and one line
for what is missing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.cluster import status
from perfctl.orchestrator.launch.cluster.plan import Plan, Site, SweepRuns, read_plan, sweep_task
from perfctl.orchestrator.launch.cluster.render import TaskCommand
from perfctl.orchestrator.launch.cluster.script import array_script, functions, gather_script
from perfctl.orchestrator.launch.sweep.folders import Setting
from perfctl.version import __version__
from tests.launch.cluster.test_slurm_script import HOME, SETTING, directives, plan, run, script

CURRENT = replace(SETTING, version=__version__)
BATCHES = (16, 32, 64, 128, 256)
NCU = TaskCommand(("ncu", "--device=cuda", "--sweep-name=ncu-mnist_cnn-bb962cfc"), ())


def ncu_plan() -> Plan:
    """perfctl slurm render ncu --batches 16,32,64,128,256 --image perfctl.sif"""
    runs = [SweepRuns("ncu", Setting(batch), "ncu-mnist_cnn-bb962cfc") for batch in BATCHES]
    tasks = tuple(
        sweep_task(number, run, NCU.words(run.setting)) for number, run in enumerate(runs)
    )
    command = "perfctl slurm render ncu --batches 16,32,64,128,256 --image perfctl.sif"
    return Plan(
        HOME / "perfctl-runs" / "slurm-mnist_cnn-26e5246c", "mnist_cnn", tasks, command, "login1"
    )


def test_the_golden_scripts_in_scripts_jobs_show_the_whole_call_and_a_line_for_each_batch(
    golden: Callable[[str, str], None],
) -> None:
    site = Site(image="/home/ada/study/perfctl.sif")
    text = array_script(ncu_plan(), site, CURRENT)
    golden("scripts/jobs/array.sbatch", text)
    golden("scripts/jobs/gather.sbatch", gather_script(ncu_plan(), site, CURRENT))
    golden("scripts/jobs/job.sh", functions(ncu_plan(), site, CURRENT))
    for number, batch in enumerate(BATCHES):
        assert f"    {number}) batch={batch} ;;\n" in text
    call = text[text.index('run "$container"') :]
    assert call.startswith('run "$container" exec --nv --cleanenv \\\n')
    assert "    python3 -m perfctl ncu --device=cuda " in call
    assert max(map(len, text.splitlines())) <= 150


@pytest.mark.parametrize(
    "asked", [{}, {"partition": "gpu", "account": "ab1234"}, {"sbatch": ("--account=x",)}]
)
def test_an_option_that_most_sites_want_is_set_or_stands_there_to_be_filled_in(
    asked: dict[str, object],
) -> None:
    site = replace(Site(), **asked)  # type: ignore[arg-type]
    text = array_script(ncu_plan(), site, SETTING)
    on = {line.partition("=")[0] for line in directives(text)}
    off = {
        line.split()[1].partition("=")[0]
        for line in text.splitlines()
        if line.startswith("##SBATCH")
    }
    assert not on & off
    assert {"--partition", "--account", "--time", "--mem", "--cpus-per-task"} <= on | off
    assert "--account" in (on if asked else off)


def test_a_task_makes_the_call_that_the_plan_says(tmp_path: Path) -> None:
    path = script(tmp_path, """bash -c 'printf "%s\\n" "$@" >said' x""")
    for task in plan(tmp_path).tasks:
        run(path, str(task.number))
        said = (tmp_path / "said").read_text().splitlines()
        at = said.index("--scratch")
        assert said[at + 2 : at + 4] == ["--grace", "225"]
        assert (*said[:at], *said[at + 4 :]) == task.arguments


def test_a_node_without_a_container_runtime_says_so_in_one_line(tmp_path: Path) -> None:
    path = script(tmp_path, "perfctl", image="x.sif", before=("PATH=$PWD/bin",))
    (tmp_path / "bin").mkdir()
    for name in ("date", "tee", "rm"):
        (tmp_path / "bin" / name).symlink_to(f"/bin/{name}")
    (line,) = run(path, "0", code=1).splitlines()
    assert line.endswith("has neither apptainer nor singularity on its PATH: load its module")
    assert "ended with exit code 1" in (tmp_path / "task-0.state").read_text()


@pytest.mark.parametrize("edited", ["docker://x/y:1", '"$HOME"/x.sif', "'cut off"])
def test_an_image_that_is_not_there_is_said_before_anything_is_submitted(
    tmp_path: Path, edited: str
) -> None:
    made, image = plan(tmp_path), tmp_path / "my images" / "perfctl.sif"
    text = array_script(made, Site(image=str(image)), SETTING)
    made.array.write_text(text)
    with pytest.raises(
        UsageError, match=r"needs the image .*/my images/perfctl\.sif, which does not exist"
    ):
        status.check_image(made, made.array.read_text())
    image.parent.mkdir()
    image.touch()
    status.check_image(made, made.array.read_text())
    lines = [f"image={edited}" if line.startswith("image=") else line for line in text.splitlines()]
    assert f"image={edited}" in lines
    made.array.write_text("\n".join(lines))
    status.check_image(made, made.array.read_text())  # only a node can tell


def test_a_task_of_other_parameters_names_their_values(tmp_path: Path) -> None:
    settings = [Setting(None, (("N", value), ("how", "a b"))) for value in ("256", "512")]
    runs = [SweepRuns("ncu", setting, "ncu-x") for setting in settings]
    tasks = tuple(
        sweep_task(number, run, NCU.words(run.setting)) for number, run in enumerate(runs)
    )
    made = replace(plan(tmp_path), tasks=tasks)
    text = array_script(made, Site(), SETTING)
    assert "1) values=(--sweep N=512 --sweep 'how=a b') ;;" in text
    assert '"${values[@]}" --no-store' in text
    made.write()
    assert read_plan(tmp_path) == made


def test_the_list_of_tasks_of_another_version_is_refused(tmp_path: Path) -> None:
    made = plan(tmp_path)
    made.write()
    assert read_plan(tmp_path) == made
    record = json.loads((tmp_path / "tasks.json").read_text())
    (tmp_path / "tasks.json").write_text(json.dumps(record | {"perfctl_slurm": 1}))
    with pytest.raises(UsageError, match=r"another version of perfctl wrote .*/tasks\.json"):
        read_plan(tmp_path)


def test_both_scripts_need_job_sh_alone(tmp_path: Path) -> None:
    """What array.sbatch and gather.sbatch call is in it."""
    for site in (Site(image="x.sif", srun=True), Site()):
        (tmp_path / "job.sh").write_text(functions(plan(), site, SETTING))
        listed = subprocess.run(
            ["bash", "-c", 'source "$1"; declare -F', "x", tmp_path / "job.sh"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        called = {"begin", "run", "fail"} | ({"pass_environment"} if site.image else set())
        called |= {"srun_step"} if site.srun else set()
        assert called <= set(listed)
