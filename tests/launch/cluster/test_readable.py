"""What a person reads in a job script: the call that one task makes, what to change, and one line
for what is missing."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.cluster import status
from perfctl.orchestrator.launch.cluster.plan import (
    JobArrayPlan,
    SlurmSiteSettings,
    TaskSweepRuns,
    make_sweep_task,
    read_job_array_plan,
)
from perfctl.orchestrator.launch.cluster.render import ProfilerTaskCommand
from perfctl.orchestrator.launch.cluster.script import (
    choose_stop_before_seconds,
    compute_report_grace_seconds,
    parse_slurm_time_minutes,
    render_array_script,
    render_gather_script,
    render_shell_functions,
)
from perfctl.orchestrator.launch.sweep.folders import SweepSetting
from perfctl.version import __version__
from tests.launch.cluster.test_slurm_script import HOME, SETTING, directives, plan, run, script
from tests.launch.programs import write_program

CURRENT = replace(SETTING, version=__version__)
BATCHES = (16, 32, 64, 128, 256)
NCU = ProfilerTaskCommand(("ncu", "--device=cuda", "--sweep-name=ncu-mnist_cnn-bb962cfc"), ())


def ncu_plan():
    """perfctl slurm render ncu --batches 16,32,64,128,256 --image perfctl.sif"""
    runs = [
        TaskSweepRuns("ncu", SweepSetting(batch), "ncu-mnist_cnn-bb962cfc") for batch in BATCHES
    ]
    tasks = tuple(
        make_sweep_task(number, run, NCU.build_perfctl_arguments(run.setting))
        for number, run in enumerate(runs)
    )
    command = "perfctl slurm render ncu --batches 16,32,64,128,256 --image perfctl.sif"
    return JobArrayPlan(
        HOME / "perfctl-runs" / "slurm-mnist_cnn-26e5246c", "mnist_cnn", tasks, command, "login1"
    )


def test_the_golden_scripts_in_scripts_jobs_show_the_whole_call_and_a_line_for_each_batch(golden):
    site = SlurmSiteSettings(image="/home/ada/study/perfctl.sif")
    text = render_array_script(ncu_plan(), site, CURRENT)
    golden("scripts/jobs/array.sbatch", text)
    golden("scripts/jobs/gather.sbatch", render_gather_script(ncu_plan(), site, CURRENT))
    golden("scripts/jobs/job.sh", render_shell_functions(ncu_plan(), site, CURRENT))
    for number, batch in enumerate(BATCHES):
        assert f"    {number}) batch={batch} ;;\n" in text
    call = text[text.index('run "$container"') :]
    assert call.startswith('run "$container" exec --nv --cleanenv \\\n')
    assert "    python3 -m perfctl ncu --device=cuda " in call
    assert max(map(len, text.splitlines())) <= 150


@pytest.mark.parametrize(
    "asked", [{}, {"partition": "gpu", "account": "ab1234"}, {"sbatch": ("--account=x",)}]
)
def test_an_option_that_most_sites_want_is_set_or_stands_there_to_be_filled_in(asked):
    site = replace(SlurmSiteSettings(), **asked)  # type: ignore[arg-type]
    text = render_array_script(ncu_plan(), site, SETTING)
    on = {line.partition("=")[0] for line in directives(text)}
    off = {
        line.split()[1].partition("=")[0]
        for line in text.splitlines()
        if line.startswith("##SBATCH")
    }
    assert not on & off
    assert {"--partition", "--account", "--time", "--mem", "--cpus-per-task"} <= on | off
    assert "--account" in (on if asked else off)


def test_a_task_makes_the_call_that_the_plan_says(tmp_path):
    path = script(tmp_path, """bash -c 'printf "%s\\n" "$@" >said' x""")
    for task in plan(tmp_path).tasks:
        run(path, str(task.number))
        said = (tmp_path / "said").read_text().splitlines()
        at = said.index("--scratch")
        assert said[at + 2 : at + 4] == ["--grace", "225"]
        assert (*said[:at], *said[at + 4 :]) == task.arguments


def test_a_node_without_a_container_runtime_says_so_in_one_line(tmp_path):
    path = script(tmp_path, "perfctl", image="x.sif", before=("PATH=$PWD/bin",))
    (tmp_path / "bin").mkdir()
    for name in ("date", "tee", "rm"):
        (tmp_path / "bin" / name).symlink_to(f"/bin/{name}")
    (line,) = run(path, "0", code=1).splitlines()
    assert line.endswith("has neither apptainer nor singularity on its PATH: load its module")
    assert "ended with exit code 1" in (tmp_path / "task-0.state").read_text()


@pytest.mark.parametrize("edited", ["docker://x/y:1", '"$HOME"/x.sif', "'cut off"])
def test_an_image_that_is_not_there_is_said_before_anything_is_submitted(tmp_path, edited):
    made, image = plan(tmp_path), tmp_path / "my images" / "perfctl.sif"
    text = render_array_script(made, SlurmSiteSettings(image=str(image)), SETTING)
    made.array_script.write_text(text)
    with pytest.raises(
        UsageError, match=r"needs the image .*/my images/perfctl\.sif, which does not exist"
    ):
        status.raise_if_script_image_missing(made, made.array_script.read_text())
    image.parent.mkdir()
    image.touch()
    status.raise_if_script_image_missing(made, made.array_script.read_text())
    lines = [f"image={edited}" if line.startswith("image=") else line for line in text.splitlines()]
    assert f"image={edited}" in lines
    made.array_script.write_text("\n".join(lines))
    status.raise_if_script_image_missing(
        made, made.array_script.read_text()
    )  # only a node can tell


def test_a_task_of_other_parameters_names_their_values(tmp_path):
    settings = [SweepSetting(None, (("N", value), ("how", "a b"))) for value in ("256", "512")]
    runs = [TaskSweepRuns("ncu", setting, "ncu-x") for setting in settings]
    tasks = tuple(
        make_sweep_task(number, run, NCU.build_perfctl_arguments(run.setting))
        for number, run in enumerate(runs)
    )
    made = replace(plan(tmp_path), tasks=tasks)
    text = render_array_script(made, SlurmSiteSettings(), SETTING)
    assert "1) values=(--sweep N=512 --sweep 'how=a b') ;;" in text
    assert '"${values[@]}" --no-store' in text
    made.write_tasks_json()
    assert read_job_array_plan(tmp_path) == made


def test_the_list_of_tasks_of_another_version_is_refused(tmp_path):
    made = plan(tmp_path)
    made.write_tasks_json()
    assert read_job_array_plan(tmp_path) == made
    record = json.loads((tmp_path / "tasks.json").read_text())
    (tmp_path / "tasks.json").write_text(json.dumps(record | {"perfctl_slurm": 1}))
    with pytest.raises(UsageError, match=r"another version of perfctl wrote .*/tasks\.json"):
        read_job_array_plan(tmp_path)


def test_both_scripts_need_job_sh_alone(tmp_path):
    """What array.sbatch and gather.sbatch call is in it."""
    for site in (SlurmSiteSettings(image="x.sif", srun=True), SlurmSiteSettings()):
        (tmp_path / "job.sh").write_text(render_shell_functions(plan(), site, SETTING))
        listed = subprocess.run(
            ["bash", "-c", 'source "$1"; declare -F', "x", tmp_path / "job.sh"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        called = {"begin", "run", "fail"} | ({"pass_environment"} if site.image else set())
        called |= {"srun_step"} if site.srun else set()
        assert called <= set(listed)


# What surrounds the profiler in a job script: modules, cores of a step, the image's environment,


CUDA = (
    *("gcc/12", "cuda/12.4", "devel/CUDA/12.1", "cudnn/9", "nvhpc/24.5", "apptainer"),
    "PyTorch/2.6-CUDA-12.4",
)


def modules(text):
    return [line.split()[2] for line in text.splitlines() if line.startswith("module load")]


def test_the_gather_job_has_its_own_time_memory_cores_and_partition_and_asks_for_no_gpu():
    own = SlurmSiteSettings(
        partition="gpu",
        gather_partition="serial",
        time="02:00:00",
        gather_time="00:20:00",
        mem="64G",
        gather_mem="8G",
        cpus=16,
        gather_cpus=2,
        exclusive=True,
    )
    asked = directives(render_gather_script(plan(), own, SETTING))
    assert {"--partition=serial", "--time=00:20:00", "--mem=8G", "--cpus-per-task=2"} < set(asked)
    assert not any(line.startswith(("--gres", "--exclusive", "--array")) for line in asked)
    plain = directives(
        render_gather_script(
            plan(), SlurmSiteSettings(partition="gpu", time="02:00:00", mem="64G", cpus=16), SETTING
        )
    )
    assert {"--partition=gpu", "--time=02:00:00"} < set(plain), "what it has no word of its own for"
    assert not any(line.startswith(("--mem", "--cpus")) for line in plain)


def test_the_gather_job_loads_no_cuda_module_unless_it_is_told_to():
    site = SlurmSiteSettings(module=CUDA)
    assert modules(render_array_script(plan(), site, SETTING)) == list(CUDA)
    without = ["gcc/12", "apptainer", "PyTorch/2.6-CUDA-12.4"]
    assert modules(render_gather_script(plan(), site, SETTING)) == without
    stated = SlurmSiteSettings(module=CUDA, gather_module=("cuda/12.4",))
    assert modules(render_gather_script(plan(), stated, SETTING)) == ["cuda/12.4"]


def test_modules_are_loaded_in_a_login_shell_after_those_of_the_submitting_shell_are_gone():
    site = SlurmSiteSettings(module=("gcc/12",))
    for text in (
        render_array_script(plan(), site, SETTING),
        render_gather_script(plan(), site, SETTING),
    ):
        purges = [line for line in text.splitlines() if line.startswith("module")]
        assert purges[0].startswith("module purge ||")
        assert text.startswith("#!/bin/bash -l\n")
    for without in (SlurmSiteSettings(), SlurmSiteSettings(module=("x",), module_purge=False)):
        assert "module purge" not in render_array_script(plan(), without, SETTING)


def test_srun_gives_the_step_the_cores_of_the_job(tmp_path):
    """Since Slurm 22.05 srun no longer takes them over: the profiler would run on one core."""
    write_program(
        tmp_path / "srun", 'echo "srun $*"; while [[ $1 == --* ]]; do shift; done; exec "$@"'
    )
    path = script(tmp_path, "true", srun=True, cpus=8)
    for variables, cores in (
        ({"SLURM_CPUS_PER_TASK": "8", "SLURM_CPUS_ON_NODE": "64"}, 8),
        ({"SLURM_CPUS_ON_NODE": "64"}, 64),
        ({}, 1),
    ):
        printed = run(path, "0", PATH=f"{tmp_path}:/usr/bin:/bin", **variables)
        assert f"srun --ntasks=1 --nodes=1 --cpus-per-task={cores} bash" in printed


def test_an_image_gets_a_clean_environment_with_the_gpu_the_scratch_folders_and_what_the_user_sets_for_it(
    tmp_path,
):
    """The stand-in drops the environment as --cleanenv does, and gives what is set for images."""
    scratch = tmp_path / "scratch space"
    scratch.mkdir()
    write_program(
        tmp_path / "apptainer",
        'printf "%s\\n" "$@" >"$SHOWN/words"; env | sed -n "s/^APPTAINERENV_//p" | sort '
        '>"$SHOWN/inside"; env | grep "^[A-Z]*_BIND=" >"$SHOWN/bound"',
    )
    path = script(tmp_path, "perfctl", "cuda", image="x.sif")
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SHOWN": str(tmp_path),
        "SCRATCH": str(scratch),
        "LSCRATCH": "/nowhere",
        "APPTAINER_BIND": "/site",
        "CUDA_VISIBLE_DEVICES": "3",
        "LD_LIBRARY_PATH": "/host/lib",
        "PYTHONPATH": "/host",
        "CUDA_HOME": "/host/cuda",
        "WANDB_API_KEY": "secret",
        "HF_TOKEN": "secret",
        "SLURM_JWT": "secret",
        "OMP_NUM_THREADS": "4",
        "APPTAINERENV_OMP_NUM_THREADS": "2",
        "APPTAINERENV_DATA": "a b",
    }
    run(path, "0", **environment)
    inside = dict(line.split("=", 1) for line in (tmp_path / "inside").read_text().splitlines())
    own = Path(inside.pop("TMPDIR"))
    assert own.name.startswith("perfctl-")
    assert inside == {
        "CUDA_VISIBLE_DEVICES": "3",
        "SCRATCH": str(scratch),
        "LSCRATCH": "/nowhere",
        "OMP_NUM_THREADS": "2",
        "DATA": "a b",
        "PYTHONNOUSERSITE": "1",
    }
    bound = dict(line.split("=", 1) for line in (tmp_path / "bound").read_text().splitlines())
    assert bound == {"APPTAINER_BIND": f"/site,{scratch}", "SINGULARITY_BIND": str(scratch)}, (
        "beside what the site binds"
    )
    words = (tmp_path / "words").read_text().splitlines()
    assert words[:3] == ["exec", "--nv", "--cleanenv"]
    binds = [words[at + 1] for at, word in enumerate(words) if word == "--bind"]
    assert binds == [str(tmp_path.parent), str(own)]
    assert words[words.index("--pwd") + 1] == str(tmp_path)


def test_slow_writers_are_told_minutes_before_the_limit_and_never_at_the_start():
    assert choose_stop_before_seconds(None, "02:00:00", ["torch", "nsys"]) == 300
    assert choose_stop_before_seconds(None, "02:00:00", ["torch"]) == 60
    assert (
        choose_stop_before_seconds(None, None, ["ncu"])
        == choose_stop_before_seconds(None, "UNLIMITED", ["ncu"])
        == 300
    )
    assert choose_stop_before_seconds(None, "4", ["ncu"]) == 60, "a quarter of four minutes"
    assert choose_stop_before_seconds(200, "4", ["ncu"]) == 200
    with pytest.raises(
        UsageError, match="`stop_before`: 240 s is not shorter than the time limit of 240 s"
    ):
        choose_stop_before_seconds(240, "00:04:00", ["ncu"])
    for seconds in (3, 20, 60, 300, 3600):
        assert 3 <= compute_report_grace_seconds(seconds) <= max(seconds - 10, 3), (
            "the rest is for the export"
        )


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("30", 30),
        ("0:30", 1),
        ("90:00", 90),
        ("01:30:00", 90),
        ("2-00", 2880),
        ("1-02:03:04", 1564),
    ],
)
def test_time_limits_are_read_as_slurm_writes_them(time, expected):
    assert parse_slurm_time_minutes(time) == expected


def test_without_an_array_index_nothing_runs(tmp_path):
    assert "no array index" in run(script(tmp_path, "touch began"), "", code=1)
    assert not list(tmp_path.glob("task-*")) and not (tmp_path / "began").exists()
