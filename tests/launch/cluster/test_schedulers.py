"""PBS and LSF: rendered, never run. The tasks' part is bash, and that is run here."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.cluster import script as cluster_script
from perfctl.orchestrator.launch.cluster.plan import Site
from perfctl.orchestrator.launch.cluster.script import array_script, functions, gather_script
from tests.launch.cluster.test_slurm_script import FACTS, check_shell, plan, script
from tests.launch.programs import wait_until

SITE = Site(
    partition="gpuq", account="ab1234", time="00:30:00", gres="gpu:a100:2", mem="16G", cpus=8, array_limit=2,
    module=("apptainer",), image="/images/perfctl.sif", bind=("/data:/data:ro",), before=("ulimit -c 0",),
    after=("nvidia-smi -q -d CLOCK",), dcgm_pause=True, sbatch=("-m e",), template="pbs",
)  # fmt: skip
IN_IMAGE = {**FACTS, "perfctl": ["python3", "-m", "perfctl"]}
PLAIN = ["#PBS -l select=1:ngpus=1", "#PBS -J 0-2"]


@pytest.mark.parametrize("name", cluster_script.BUILT_IN)
def test_scripts_are_the_golden_ones(golden: Callable[[str, str], None], name: str) -> None:
    site = replace(SITE, template=name)
    golden(f"{name}-array.sh", array_script(plan(), site, IN_IMAGE))
    golden(f"{name}-gather.sh", gather_script(plan(), site, IN_IMAGE))
    golden(f"{name}-job.sh", functions(plan(), site, IN_IMAGE))


@pytest.mark.parametrize("name", cluster_script.BUILT_IN)
@pytest.mark.parametrize("site", [SITE, Site()])
def test_scripts_pass_shellcheck(name: str, site: Site, tmp_path: Path) -> None:
    check_shell(tmp_path, replace(site, template=name))


@pytest.mark.parametrize(
    ("name", "variable", "number"), [("pbs", "PBS_ARRAY_INDEX", "1"), ("lsf", "LSB_JOBINDEX", "2")]
)
def test_a_task_runs_its_own_batch_size_and_notes_how_it_went(
    tmp_path: Path, name: str, variable: str, number: str
) -> None:
    folder = tmp_path / "it's a $(touch pwned)"
    folder.mkdir()
    path = script(folder, Site(template=name), perfctl=["echo", "perfctl"], device="cpu")
    environment = {"PATH": "/usr/bin:/bin", variable: number}
    done = subprocess.run(["bash", path], check=False, cwd=tmp_path, env=environment)
    log = (folder / "task-1.log").read_text()
    assert done.returncode == 0, log
    assert re.search(r"perfctl nsys .*--batches 32 --no-store --scratch \S+ --grace 225", log)
    state = (folder / "task-1.state").read_text()
    assert "started on" in state and "ended with exit code 0" in state
    assert not list(tmp_path.rglob("pwned"))


def test_one_task_is_no_array_for_pbs_which_refuses_arrays_of_one() -> None:
    one = replace(plan(), tasks=plan().tasks[:1])
    assert "-J" not in array_script(one, Site(template="pbs"), FACTS)
    assert set(PLAIN) <= set(array_script(plan(), Site(template="pbs"), FACTS).splitlines())


@pytest.mark.parametrize(
    ("time", "minutes"),
    [("30", 30), ("0:30", 1), ("90:00", 90), ("01:30:00", 90), ("2-00", 2880), ("1-02:03:04", 1564)],
)
def test_time_limits_are_read_as_slurm_writes_them(time: str, minutes: int) -> None:
    made = cluster_script.scheduler_facts(Site(template="lsf", time=time), "cpu")
    assert made["minutes"] == minutes


def test_memory_and_gpus_are_told_in_plain_numbers() -> None:
    made = cluster_script.scheduler_facts(Site(template="pbs", mem="16G", gres="gpu:a100:4"), "cuda")
    assert (made["memory"], made["gpus"]) == (16 * 1024, 4)
    plain = cluster_script.scheduler_facts(Site(template="pbs", mem="512", gather_mem="2G"), "cpu")
    assert (plain["gpus"], plain["memory"], plain["gather_memory"], plain["minutes"]) == (0, 512, 2048, None)


@pytest.mark.parametrize(
    ("site", "said"),
    [
        (Site(template="pbs", srun=True), "`srun` works with Slurm only"),
        (Site(template="lsf", qos="x"), "`qos` works with Slurm only"),
        (Site(template="pbs", time="soon"), "'soon' is not a time limit"),
        (Site(template="lsf", mem="much"), "'much' is not a memory size"),
        (Site(template="pbs", partition="q\n#PBS -q other"), "line break"),
    ],
)
def test_what_only_slurm_knows_or_no_script_can_say_is_refused(site: Site, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        array_script(plan(), site, FACTS)


@pytest.mark.parametrize("name", [None, *cluster_script.BUILT_IN])
def test_without_an_array_index_nothing_runs(tmp_path: Path, name: str | None) -> None:
    path = script(tmp_path, Site(template=name), perfctl=["touch", "began"], device="cpu")
    for index in ({}, {"LSB_JOBINDEX": "0"}):  # what LSF sets outside of arrays
        environment = {"PATH": "/usr/bin:/bin", **index}
        done = subprocess.run(
            ["bash", path], check=False, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode != 0
        assert "no array index" in done.stderr
    assert not list(tmp_path.glob("task-*")) and not (tmp_path / "began").exists()


def test_pbs_stops_the_profiler_in_time_by_a_timer_of_its_own(tmp_path: Path) -> None:
    """A limit of one minute, of which 57 s are for the report: the timer ends its program after three seconds."""
    waits = 'trap "echo told; exit 143" TERM; while :; do sleep 0.05; done'
    site = Site(template="pbs", time="1", stop_before=57)
    path = script(tmp_path, site, perfctl=["bash", "-c", waits, "x"], device="cpu")
    environment = {"PATH": "/usr/bin:/bin", "PBS_ARRAY_INDEX": "0"}
    done = subprocess.run(["bash", path], check=False, cwd=tmp_path, env=environment, timeout=50)
    assert done.returncode == 143
    assert "told" in (tmp_path / "task-0.log").read_text()
    assert [line.partition(" ")[2] for line in (tmp_path / "task-0.state").read_text().splitlines()][1:] == [
        "told to stop", "ended with exit code 143",
    ]  # fmt: skip


def test_the_timer_asks_pbs_for_a_limit_that_the_script_does_not_name_and_goes_with_the_task(tmp_path: Path) -> None:
    qstat = tmp_path / "qstat"
    qstat.write_text("#!/bin/sh\necho 'Job Id: 7.host'\necho '    Resource_List.walltime = 01:02:03'\n")
    qstat.chmod(0o755)
    sleep = tmp_path / "sleep"
    sleep.write_text('#!/bin/sh\necho "$1 $$" >asked\nexec /bin/sleep "$1"\n')
    sleep.chmod(0o755)
    there = "while [[ ! -s asked ]]; do read -rt 0.05 <> <(:); done; true"
    path = script(tmp_path, Site(template="pbs"), perfctl=["bash", "-c", there, "x"], device="cpu")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PBS_ARRAY_INDEX": "0", "PBS_JOBID": "7"}
    subprocess.run(["bash", path], check=True, cwd=tmp_path, env=environment, timeout=50)
    seconds, process = (tmp_path / "asked").read_text().split()
    assert int(seconds) == 3600 + 2 * 60 + 3 - 300
    wait_until(lambda: not Path(f"/proc/{process}").exists(), "the timer to end with its task")


def test_lsf_warns_by_a_signal_that_no_other_process_of_the_job_minds() -> None:
    """LSF signals all processes of a job. URG is ignored by whoever does not ask for it; USR2 would end them."""
    text = array_script(plan(), Site(template="lsf", time="01:00:00"), FACTS)
    assert {"#BSUB -W 60", "#BSUB -wt 5", "#BSUB -wa URG"} < set(text.splitlines())
    assert "trap stop TERM USR1 USR2 URG\n" in functions(plan(), Site(template="lsf"), FACTS)
