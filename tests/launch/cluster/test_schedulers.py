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
from perfctl.orchestrator.launch.cluster.script import array_script, gather_script
from tests.launch.cluster.test_slurm_script import FACTS, WORDS, check_shell, plan, script

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
    golden(f"{name}-array.sh", array_script(plan(), site, WORDS, IN_IMAGE))
    golden(f"{name}-gather.sh", gather_script(plan(), site, IN_IMAGE))


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
    assert re.search(r"perfctl nsys .*--batches 32 --no-store --scratch \S+ --grace 50", log)
    state = (folder / "task-1.state").read_text()
    assert "started on" in state and "ended with exit code 0" in state
    assert not list(tmp_path.rglob("pwned"))


def test_one_task_is_no_array_for_pbs_which_refuses_arrays_of_one() -> None:
    one = replace(plan(), tasks=plan().tasks[:1])
    assert "-J" not in array_script(one, Site(template="pbs"), WORDS, FACTS)
    assert set(PLAIN) <= set(array_script(plan(), Site(template="pbs"), WORDS, FACTS).splitlines())


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
    assert cluster_script.scheduler_facts(Site(template="pbs", mem="512"), "cpu") | {"site": None} == {
        "site": None, "gpus": 0, "minutes": None, "walltime": None, "memory": 512, "more": [],
    }  # fmt: skip


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
        array_script(plan(), site, WORDS, FACTS)
