"""perfctl slurm render study NAME: the commands of a study's parts as an array of jobs. Nothing
runs here."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from perfctl.orchestrator.cli.main import run
from perfctl.orchestrator.launch.cluster import render as rendering
from perfctl.orchestrator.launch.sweep.study import SEEDS as STUDIES
from perfctl.orchestrator.launch.sweep.study import StudyParts

Call = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def render(capsys: pytest.CaptureFixture[str]) -> Call:
    """(exit code, what was printed) of perfctl slurm render WORDS."""

    def call(*words: str) -> tuple[int, str]:
        code = run(["slurm", "render", *words])
        said = capsys.readouterr()
        return code, said.out + said.err

    return call


def parts_of(words: Sequence[str], program: Sequence[str] = ()) -> StudyParts:
    """What an array is asked to hold for a study that these words name."""
    asked = []
    make = rendering.render_parts
    after = ("--", *program) if program else ()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            rendering, "render_parts", lambda one, *rest: make(asked.append(one) or one, *rest)
        )
        assert run(["slurm", "render", "study", *words, "--dry-run", *after]) == 0
    return asked[0]


MORE = {"inference": ("--models", "resnet18")}
"""Words without which a study is not complete."""


def options(words: Sequence[str]) -> dict[str, str]:
    """Option -> its value."""
    return {word: words[at + 1] for at, word in enumerate(words[:-1]) if word.startswith("--")}


def test_flops_has_a_part_for_each_sweep_and_each_shape() -> None:
    found = parts_of(
        ["flops", "--conv2", "32,128,5,1", "--epochs", "3", "--hand", "conv2=1", "--out", "st"]
    )
    sweeps = ("clock", "training", "profile", "counts")
    assert [label for label, _ in found.parts] == [
        f"{one}{tail}" for tail in ("", " 32,128,5,1") for one in sweeps
    ]
    for label, words in found.parts:
        said = options(words)
        assert words[:2] == ("study", "flops")
        assert (said["--part"], said["--conv2"], said["--epochs"], said["--out"]) == (
            label,
            "32,128,5,1",
            "3",
            "st",
        )
    said = options(found.finish)
    assert (said["--from"], said["--out"], said["--hand"]) == ("st/perfctl-runs", "st", "conv2=1")
    assert (said["--epochs"], said["--conv2"]) == ("3", "32,128,5,1")


def test_flops_of_a_program_keeps_its_words_last() -> None:
    Path("train.py").write_text("")
    found = parts_of(["flops", "--batches", "2"], ["python", "train.py", "--batch-size", "{batch}"])
    assert found.parts
    assert all(
        words[-5:] == ("--", "python", "train.py", "--batch-size", "{batch}")
        for _, words in found.parts
    )


def test_inference_has_two_parts_a_model_and_none_writes_the_store_of_another() -> None:
    found = parts_of(
        ["inference", "--models", "resnet18,vgg11", "--batches", "1,20", "--profiler", "torch"]
    )
    assert [label for label, _ in found.parts] == [
        f"{m} {how}" for m in ("resnet18", "vgg11") for how in ("timed", "under torch")
    ]
    assert all(
        words[:2] == ("study", "inference") and options(words)["--batches"] == "1,20"
        for _, words in found.parts
    )
    assert found.finish == (
        "study",
        "inference",
        "--out",
        "study-inference",
        "--models",
        "resnet18,vgg11",
        "--batches",
        "1,20",
        "--profiler",
        "torch",
        "--device",
        "cuda",
        "--from",
        "study-inference/perfctl-runs",
    )


def test_speedup_has_a_part_for_each_network_on_each_device() -> None:
    found = parts_of(["speedup", "--devices", "cpu,cuda,cuda:bf16", "--unet", "--base-width 8"])
    wanted = [(net, device) for net in ("unet", "lstm") for device in ("cpu", "cuda", "cuda:bf16")]
    assert [label for label, _ in found.parts] == [f"{net} on {device}" for net, device in wanted]
    assert all(
        (options(words)["--part"], options(words)["--devices"]) == (label, "cpu,cuda,cuda:bf16")
        for label, words in found.parts
    )
    assert options(found.finish)["--from"] == "study-speedup/perfctl-runs"
    assert found.device == "cuda"


def test_cost_is_shared_and_its_page_measures_nothing() -> None:
    found = parts_of(["cost", "--quick", "--budget", "2m", "--threads", "1"])
    shards = [options(words) for _, words in found.parts]
    assert [one["--part"] for one in shards] == ["1/4", "2/4", "3/4", "4/4"]
    assert all((one["--budget"], one["--threads"]) == ("120s", "1") for one in shards)
    assert options(found.finish)["--from"] == "study-cost/perfctl-runs", "the gather job has no GPU"


@pytest.mark.parametrize("name", STUDIES)
def test_the_device_is_a_gpu_unless_it_is_named(name: str) -> None:
    words = [name, *MORE.get(name, ())]
    assert parts_of(words).device == "cuda"
    if name != "speedup":  # compares several
        found = parts_of([*words, "--device", "cpu"])
        assert found.device == "cpu"
        assert all(options(words)["--device"] == "cpu" for _, words in found.parts)


@pytest.mark.parametrize("name", STUDIES)
def test_every_part_stands_in_the_array_word_for_word(name: str, render: Call) -> None:
    assert render("study", name, *MORE.get(name, ()), "--partition", "gpu")[0] == 0
    (array,) = Path().glob(f"study-{name}/slurm-study-{name}-*/array.sbatch")
    text = array.read_text().replace("\\\n", "")
    found = parts_of([name, *MORE.get(name, ())])
    lines = re.findall(r"arguments=\((.*?)\) ;;", text)
    assert [shlex.split(line) for line in lines] == [list(words) for _, words in found.parts]
    assert f"#SBATCH --array=0-{len(found.parts) - 1} " in text
    assert shlex.join(found.finish) in (array.parent / "gather.sbatch").read_text()


@pytest.mark.parametrize("name", STUDIES)
def test_a_dry_run_prints_the_scripts_and_writes_nothing(
    name: str, render: Call, tmp_path: Path
) -> None:
    code, said = render("study", name, *MORE.get(name, ()), "--dry-run")
    assert code == 0
    assert "#SBATCH --array" in said
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_study_keeps_its_request_and_takes_no_other(render: Call) -> None:
    words = ("study", "flops", "--batches", "4", "--epochs", "1", "--out", "st")
    assert render(*words)[0] == 0
    before = Path("st/study.json").read_text()
    asked = json.loads(before)
    assert (asked["batches"], asked["epochs"]) == ([4], 1)
    for other in (("study", "speedup", "--out", "st"), (*words, "--steps", "3")):
        code, printed = render(*other)
        assert code == 2
        assert "st holds another study" in printed
    assert render(*words)[0] == 0
    Path("st/perfctl-runs").mkdir()
    assert run(["study", "flops", "--out", "st", "--from", "st/perfctl-runs"]) == 1
    assert Path("st/study.json").read_text() == before


def test_without_a_name_the_four_studies_are_listed(render: Call) -> None:
    code, printed = render("study")
    assert code == 0
    assert all(f"  {name} " in printed for name in STUDIES)
