"""perfctl slurm render study NAME: the commands of a study's parts as an array of jobs. Nothing
runs here."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from perfctl.orchestrator.launch.cluster import render as rendering
from perfctl.orchestrator.launch.sweep.study import SEEDS as STUDIES
from perfctl.orchestrator.launch.sweep.study import StudyParts

COMPLETE = {name: name for name in STUDIES} | {"inference": "inference --models resnet18"}
"""Study -> its name, with the options without which it is not complete."""


@pytest.fixture
def render(perfctl):
    """Calls perfctl slurm render study."""
    return lambda typed: perfctl(f"slurm render study {typed}")


@pytest.fixture
def parts_of(render, monkeypatch):
    """What an array is asked to hold for a study that is typed."""
    asked: list[StudyParts] = []
    make = rendering.render_study_job_scripts

    def remember(parts, *rest):
        asked.append(parts)
        return make(parts, *rest)  # type: ignore[arg-type]

    def find(typed):
        monkeypatch.setattr(rendering, "render_study_job_scripts", remember)
        name, _, rest = typed.partition(" ")
        assert render(f"{name} --dry-run {rest}").code == 0
        return asked.pop()

    return find


def options(words):
    """Option -> its value."""
    return {word: words[at + 1] for at, word in enumerate(words[:-1]) if word.startswith("--")}


def test_flops_has_a_part_for_each_sweep_and_each_shape(parts_of):
    found = parts_of("flops --conv2 32,128,5,1 --epochs 3 --hand conv2=1 --out st")
    sweeps = ("clock", "training", "profile", "counts")
    assert [label for label, _ in found.parts] == [
        f"{one}{tail}" for tail in ("", " 32,128,5,1") for one in sweeps
    ]
    typed = {"--conv2": "32,128,5,1", "--epochs": "3", "--out": "st"}
    for label, words in found.parts:
        assert words[:2] == ("study", "flops")
        assert options(words) == {**typed, "--part": label, "--device": "cuda"}
    gathered = {"--from": "st/perfctl-runs", "--hand": "conv2=1", "--device": "cuda"}
    assert options(found.finish) == {**typed, **gathered}


def test_flops_of_a_program_keeps_its_words_last(parts_of):
    Path("train.py").write_text("")
    program = "-- python train.py --batch-size {batch}"
    found = parts_of(f"flops --batches 2 {program}")
    assert found.parts
    assert all(
        shlex.join(words).endswith(program.replace("{batch}", "'{batch}'"))
        for _, words in found.parts
    )


def test_cost_is_shared_and_its_page_measures_nothing(parts_of):
    found = parts_of("cost --quick --budget 2m --threads 1")
    shards = [options(words) for _, words in found.parts]
    assert [one["--part"] for one in shards] == ["1/4", "2/4", "3/4", "4/4"]
    assert all((one["--budget"], one["--threads"]) == ("120s", "1") for one in shards)
    assert options(found.finish)["--from"] == "study-cost/perfctl-runs", "the gather job has no GPU"


@pytest.mark.parametrize("name", STUDIES)
def test_the_device_is_a_gpu_unless_it_is_named(name, parts_of):
    assert parts_of(COMPLETE[name]).device == "cuda"
    if name != "speedup":  # compares several
        found = parts_of(f"{COMPLETE[name]} --device cpu")
        assert found.device == "cpu"
        assert all(options(words)["--device"] == "cpu" for _, words in found.parts)


@pytest.mark.parametrize("name", STUDIES)
def test_every_part_stands_in_the_array_word_for_word_and_a_dry_run_writes_nothing(
    name, render, parts_of, tmp_path
):
    planned = render(f"{COMPLETE[name]} --dry-run").ok()
    assert "#SBATCH --array" in planned.out
    assert not list(tmp_path.iterdir())
    assert render(f"{COMPLETE[name]} --partition gpu").code == 0
    (array,) = Path().glob(f"study-{name}/slurm-study-{name}-*/array.sbatch")
    text = array.read_text().replace("\\\n", "")
    found = parts_of(COMPLETE[name])
    lines = re.findall(r"arguments=\((.*?)\) ;;", text)
    assert [shlex.split(line) for line in lines] == [list(words) for _, words in found.parts]
    assert f"#SBATCH --array=0-{len(found.parts) - 1} " in text
    assert shlex.join(found.finish) in (array.parent / "gather.sbatch").read_text()


def test_the_folder_of_a_study_keeps_its_request_and_takes_no_other(render, perfctl):
    typed = "flops --batches 4 --epochs 1 --out st"
    assert render(typed).code == 0
    before = Path("st/study.json").read_text()
    asked = json.loads(before)
    assert (asked["batches"], asked["epochs"]) == ([4], 1)
    for other in ("speedup --out st", f"{typed} --steps 3"):
        refused = render(other)
        assert refused.code == 2 and "st holds another study" in refused.err
    assert render(typed).code == 0
    Path("st/perfctl-runs").mkdir()
    assert perfctl("study flops --out st --from st/perfctl-runs").code == 1
    assert Path("st/study.json").read_text() == before


def test_without_a_name_the_four_studies_are_listed(render):
    listed = render("").ok()
    assert all(f"  {name} " in listed.out for name in STUDIES)
