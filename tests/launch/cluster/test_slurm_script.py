from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.cluster.plan import (
    JobArrayPlan,
    SlurmSiteSettings,
    TaskSweepRuns,
    fill_unset_settings_from_config,
    make_sweep_task,
)
from perfctl.orchestrator.launch.cluster.render import ProfilerTaskCommand
from perfctl.orchestrator.launch.cluster.script import (
    JobScriptContext,
    render_array_script,
    render_gather_script,
    render_shell_functions,
)
from perfctl.orchestrator.launch.sweep.folders import SweepSetting
from tests.launch.programs import write_program

HOME = Path("/home/ada/study")
OUTPUTS = (Path("perfctl.db"), Path("perfctl-report.html"))
SETTING = JobScriptContext("cuda", (), OUTPUTS, "1.2.3", HOME, "/home/ada/venv/bin/python")
SITES = {
    "plain": SlurmSiteSettings(partition="gpu", time="00:30:00"),
    "container": SlurmSiteSettings(
        account="ab1234",
        gres="gpu:a100:1",
        time="01:00:00",
        module=("gcc/12", "apptainer"),
        image="/images/perfctl.sif",
        bind=("/scratch/ada", "/data:/data:ro"),
        srun=True,
        array_limit=2,
        gather_partition="serial",
    ),
    "dcgm": SlurmSiteSettings(
        constraint="a100&hbm80g",
        qos="debug",
        exclusive=True,
        disable_dcgm=True,
        dcgm_pause=True,
        cpus=16,
        mem="64G",
        before=("source venv/bin/activate", "ulimit -c 0"),
        after=("nvidia-smi -q -d CLOCK",),
        stop_before=120,
        sbatch=("--mail-type=END", "#SBATCH --licenses=x"),
    ),
}
COMMANDS = {
    "nsys": ProfilerTaskCommand(
        ("nsys", "--device=cuda", "--sweep-name=nsys-train.py-1a2b3c4d"),
        ("python", "train.py", "{batch}"),
    ),
    "ncu": ProfilerTaskCommand(
        ("ncu", "--device=cuda", "--layer=conv2", "--sweep-name=ncu-train.py-5e6f7a8b"), ()
    ),
}
RUNS = (
    TaskSweepRuns("nsys", SweepSetting(16), "nsys-train.py-1a2b3c4d"),
    TaskSweepRuns("nsys", SweepSetting(32), "nsys-train.py-1a2b3c4d"),
    TaskSweepRuns("ncu", SweepSetting(16), "ncu-train.py-5e6f7a8b"),
)


def plan(
    folder=HOME / "perfctl-runs" / "slurm-train.py-9c0d1e2f",
    command="perfctl slurm render",
    commands=COMMANDS,
):
    runs = [run for run in RUNS if run.profiler in commands]
    tasks = tuple(
        make_sweep_task(number, run, commands[run.profiler].build_perfctl_arguments(run.setting))
        for number, run in enumerate(runs)
    )
    return JobArrayPlan(folder, "train.py", tasks, command, "login1")


def script(folder, perfctl, device="cpu", **site):
    """The script of an array whose folder this is, to run with a task's number; job.sh is that of
    the last one. ``perfctl``: shell words of its stand-in."""
    made, of_site = plan(folder), SlurmSiteSettings(perfctl=perfctl, **site)
    setting = replace(SETTING, cwd=folder, device=device)
    path = folder / f"array-{len(list(folder.glob('array-*')))}.sbatch"
    path.write_text(render_array_script(made, of_site, setting))
    made.functions_script.write_text(render_shell_functions(made, of_site, setting))
    return path


def run(path, task, code=0, **environment):
    """Run a task as a node does, and return what it printed."""
    variables = {"PATH": "/usr/bin:/bin", **environment}
    done = subprocess.run(
        ["bash", path, *task.split()], capture_output=True, text=True, check=False, env=variables
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def check_shell(folder, site):
    """All three files pass bash -n, and shellcheck, where it is installed."""
    made = plan()
    texts = {
        "array": render_array_script(made, site, SETTING),
        "gather": render_gather_script(made, site, SETTING),
        "job": render_shell_functions(made, site, SETTING),
    }
    for name, text in texts.items():
        (folder / f"{name}.sh").write_text(text)
        subprocess.run(["bash", "-n", folder / f"{name}.sh"], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed here")
    words = ["shellcheck", "-e", "SC1091", *(folder / f"{name}.sh" for name in texts)]
    said = subprocess.run(words, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout


def wait_for(path, job):
    """Until the job has written the file."""
    while not path.exists() or (path.name == "pid" and not path.read_text()):
        assert job.poll() is None


def directives(text):
    """Options of sbatch, without the comments beside them."""
    lines = [
        line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")
    ]
    return [line.partition("  # ")[0].rstrip() for line in lines]


@pytest.mark.parametrize("style", SITES)
def test_scripts_of_a_site_are_the_golden_ones(golden, style):
    golden(f"slurm-{style}-array.sbatch", render_array_script(plan(), SITES[style], SETTING))
    golden(f"slurm-{style}-gather.sbatch", render_gather_script(plan(), SITES[style], SETTING))
    golden(f"slurm-{style}-job.sh", render_shell_functions(plan(), SITES[style], SETTING))


@pytest.mark.parametrize("style", SITES)
def test_scripts_pass_shellcheck(style, tmp_path):
    check_shell(tmp_path, SITES[style])


def test_a_task_gets_one_gpu_also_on_a_node_of_its_own_unless_the_site_says_otherwise_or_it_needs_none():
    for site in (SlurmSiteSettings(), SlurmSiteSettings(exclusive=True)):
        assert "--gres=gpu:1" in directives(render_array_script(plan(), site, SETTING))
    assert "--exclusive" in directives(
        render_array_script(plan(), SlurmSiteSettings(exclusive=True), SETTING)
    )
    for site, device in (
        (SlurmSiteSettings(sbatch=("--gpus-per-task=1",)), "cuda"),
        (SlurmSiteSettings(), "cpu"),
    ):
        text = render_array_script(plan(), site, replace(SETTING, device=device))
        assert not any(line.startswith("--gres") for line in directives(text))


def test_an_image_is_shown_the_script_and_the_store_wherever_they_lie():
    folders, outputs = (Path("/home/ada/code"),), (Path("/project/all.db"), Path("out/page.html"))
    setting = replace(SETTING, folders=folders, outputs=outputs)
    site = SlurmSiteSettings(image="perfctl.sif", bind=("/data:/data:ro",))
    texts = render_array_script(plan(), site, setting), render_gather_script(plan(), site, setting)
    both = {"--bind /home/ada/study", "--bind /data:/data:ro", "--pwd /home/ada/study"}
    assert [set(re.findall(r"--(?:bind|pwd) /\S+", text)) for text in texts] == [
        {"--bind /home/ada/code", *both},
        {"--bind /project", *both},
    ]
    with pytest.raises(UsageError, match="cannot be bound into an image"):
        render_array_script(plan(), site, replace(setting, cwd=Path("/home/a:b")))


def test_names_that_a_shell_would_obey_reach_the_program_as_they_are(tmp_path):
    hostile = ["a b", "it's", '"$(touch pwned)"', "`touch pwned`", "$HOME", "; touch pwned"]
    hostile += ["{{ 1 }}", "-n", "*"]
    folder = tmp_path / "it's a $(touch pwned) `x` 100%"
    folder.mkdir()
    echo = tmp_path / "say.py"
    echo.write_text("import json, sys; print(json.dumps(sys.argv[1:]))")
    site, setting = (
        SlurmSiteSettings(perfctl=f"python3 {echo}"),
        replace(SETTING, cwd=folder, device="cpu"),
    )
    commands = {"nsys": ProfilerTaskCommand(("nsys", *hostile), ("run", *hostile))}
    made = plan(folder, "x\nrm -rf /", commands)
    made.array_script.write_text(render_array_script(made, site, setting))
    made.functions_script.write_text(render_shell_functions(made, site, setting))
    printed = run(made.array_script, "1").splitlines()
    got = json.loads(next(line for line in printed if line.startswith("[")))
    at = got.index("--scratch") + 1
    assert got[:at] == ["nsys", *hostile, "--batches", "32", "--no-store", "--scratch"]
    assert got[at + 1 :] == ["--grace", "225", "--", "run", *hostile]
    assert not list(tmp_path.rglob("pwned"))
    assert "ended with exit code 0" in (folder / "task-1.state").read_text()


def test_a_task_takes_its_private_tmpdir_along_when_it_ends(tmp_path):
    shows = """bash -c 'echo "TMPDIR=$TMPDIR"; ls -ld "$TMPDIR"' x"""
    printed = run(script(tmp_path, shows, "cuda", after=("echo after >after.txt",)), "0")
    folder = Path(re.findall(r"TMPDIR=(.+)", printed)[0])
    assert folder.parent == Path("/tmp")
    assert "drwx------" in printed
    assert not folder.exists()
    assert (tmp_path / "after.txt").read_text() == "after\n"


def test_what_a_task_left_that_was_killed_outright_goes_with_the_next_one_on_that_node(tmp_path):
    node = tmp_path / "node"
    node.mkdir()
    environment = {"PATH": "/usr/bin:/bin", "SLURM_TMPDIR": str(node)}
    waits = script(tmp_path, "bash -c 'echo $$ >pid; exec sleep 600' x")
    following = script(tmp_path, """bash -c 'echo "$TMPDIR" >next' x""")
    with subprocess.Popen(["bash", waits, "0"], stdout=subprocess.DEVNULL, env=environment) as job:
        wait_for(tmp_path / "pid", job)
        (held,) = node.iterdir()
        run(following, "1", SLURM_TMPDIR=str(node))
        assert list(node.iterdir()) == [held], "that of a task which runs stays, the own one goes"
        job.kill()
        job.wait()
        process = int((tmp_path / "pid").read_text())
        os.kill(process, signal.SIGKILL)
        while _alive(process):
            time.sleep(0.01)
    assert list(node.iterdir()) == [held], "nobody was left to take it along"
    run(following, "1", SLURM_TMPDIR=str(node))
    assert list(node.iterdir()) == []
    assert (tmp_path / "next").read_text().startswith(f"{node}/perfctl-")


def _alive(process):
    """Does it run, and not only wait to be buried?"""
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def test_a_signal_before_perfctl_has_begun_ends_the_task_at_once(tmp_path):
    waits = "touch ready; while :; do sleep 0.05; done"
    path = script(tmp_path, "touch began", before=(waits,))
    with subprocess.Popen(["bash", path, "0"], stdout=subprocess.DEVNULL) as job:
        wait_for(tmp_path / "ready", job)
        job.terminate()
        assert job.wait(timeout=600.0) == 143
    assert not (tmp_path / "began").exists()
    assert (tmp_path / "task-0.state").read_text().endswith("ended with exit code 143\n")


SRUN = """trap 'kill -KILL "$step"; exit 137' TERM  # as srun 22.05 does
while [[ $1 == --* ]]; do shift; done
"$@" & step=$!
wait "$step"
"""


@pytest.mark.parametrize("srun", [False, True])
@pytest.mark.parametrize("number", ["USR1", "TERM"])
def test_a_signal_to_the_job_script_reaches_perfctl_and_the_lines_after_still_run(
    tmp_path, number, srun
):
    write_program(tmp_path / "srun", SRUN)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    waits = 'trap "echo told; exit 143" TERM; touch ready; while :; do sleep 0.05; done'
    path = script(tmp_path, f"bash -c '{waits}' x", "cuda", after=("echo resumed",), srun=srun)
    with subprocess.Popen(
        ["bash", path, "0"], stdout=subprocess.PIPE, text=True, env=environment
    ) as job:
        wait_for(tmp_path / "ready", job)
        job.send_signal(getattr(signal, f"SIG{number}"))
        said, _ = job.communicate(timeout=600.0)
    assert "told\n" in said
    assert "resumed\n" in said
    assert "told to stop" in (tmp_path / "task-0.state").read_text()


@pytest.mark.parametrize(
    ("site", "said"),
    [
        (SlurmSiteSettings(partition="a\nb"), "line break"),
        (SlurmSiteSettings(before=("x\ny",)), "line break"),
        (SlurmSiteSettings(sbatch=("--a\n--b",)), "line break"),
        (SlurmSiteSettings(account="a\\b"), "backslash"),
        (SlurmSiteSettings(template="no-such-file"), "no-such-file"),
    ],
)
def test_what_cannot_stand_in_a_job_script_is_refused(site, said):
    with pytest.raises(UsageError, match=said):
        render_array_script(plan(), site, SETTING)


def test_a_template_of_the_site_replaces_perfctls_and_is_quoted_all_the_same(tmp_path):
    own = tmp_path / "site.j2"
    own.write_text(
        "#!/bin/bash\n{% for line in directives %}#SBATCH {{ line | asis }}\n"
        "{% endfor %}echo {{ cwd }}\n"
    )
    site = SlurmSiteSettings(template=str(own), partition="x")
    text = render_array_script(plan(), site, replace(SETTING, cwd=Path("a b")))
    assert text.endswith("echo 'a b'\n")
    assert "--partition=x" in directives(text)
    own.write_text("{{ no_such_name }}")
    with pytest.raises(UsageError, match="no_such_name"):
        render_array_script(plan(), site, SETTING)


def config(folder, text):
    folder.mkdir(exist_ok=True)
    (folder / "perfctl.toml").write_text(text)
    return folder


def test_the_command_line_comes_before_the_working_folder_and_that_before_the_home(tmp_path):
    here = config(
        tmp_path / "here",
        '[slurm]\npartition = "here"\naccount = "here"\nmodule = "cuda"\ntemplate = "t.j2"\n',
    )
    home = config(
        tmp_path / "home", '[slurm]\naccount = "home"\nqos = "home"\narray-limit = 3\nsrun = true\n'
    )
    site = fill_unset_settings_from_config(
        SlurmSiteSettings(partition="typed", srun=False), (here, home)
    )
    assert site == SlurmSiteSettings(
        partition="typed",
        account="here",
        qos="home",
        array_limit=3,
        module=("cuda",),
        srun=False,
        template=str(here / "t.j2"),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[slurm]\npartitoin = "x"\n', "unknown key 'partitoin'"),
        ("[slurm]\npartition = 3\n", "must be a string"),
        ('[slurm]\nsrun = "yes"\n', "true or false"),
        ("[slurm]\nmodule = [1]\n", "a list of strings"),
        ("[slurm]\narray_limit = 0\n", "above 0"),
        ("slurm = 1\n", "must be a table"),
        ("[slurm\n", "perfctl.toml"),
    ],
)
def test_a_mistake_in_perfctl_toml_is_one_line(tmp_path, text, said):
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        fill_unset_settings_from_config(SlurmSiteSettings(), (config(tmp_path, text),))
    assert "\n" not in str(caught.value)


def test_every_line_of_options_is_read_by_a_shell_as_it_was_meant():
    site = SlurmSiteSettings(constraint="a b'c", sbatch=("--comment='x y'",))
    text = render_array_script(plan(), site, SETTING)
    lines: list[Any] = [shlex.split(line) for line in directives(text)]
    assert ["--constraint=a b'c"] in lines
    assert ["--comment=x y"] in lines
