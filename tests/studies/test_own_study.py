"""perfctl study FILE.toml: a study that the user describes."""

from pathlib import Path

import pytest

from perfctl.orchestrator.cli.main import run_command_line
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.sweep.study import (
    SEEDS,
    list_study_sweeps,
    read_study_definition,
    split_study_into_parts,
)
from tests.studies.asking import ask

RECORDED = Path(__file__).resolve().parents[1] / "data" / "recorded-cpu" / "torch"
OWN = """
line = "Kernel sizes of conv2."
title = "Kernel sizes of {network}"
[options]
batches = { default = "2,4" }
steps = {}
device = {}
seed = { default = 1, help = "Of the data." }
[quick]
batches = "2"
[each]
kernel = ["3", "5"]
[[sweeps]]
label = "kernel {kernel}"
profiler = "torch"
arguments = "--conv2 32,64,{kernel},1 --seed {seed}"
steps = 3
[[chapters]]
show = "flops.network"
title = "The networks"
text = ["Both."]
[[chapters]]
show = "report.operators"
title = "Operators"
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The file of a study, in the working folder."""
    monkeypatch.chdir(tmp_path)
    file = Path("kernels.toml")
    file.write_text(OWN)
    return file


def test_each_value_has_its_sweeps_and_a_typed_option_goes_before_the_files(own):
    first, second = list_study_sweeps(ask(str(own), Path("out"), quick=True, steps=7))
    assert (first.label, second.label) == ("kernel 3", "kernel 5")
    assert second.arguments == ("--conv2", "32,64,5,1", "--seed", "1")
    assert (second.options.batches, second.options.steps) == ((2,), 7)
    assert list_study_sweeps(ask(str(own), Path("out")))[0].options.steps == 3


def test_its_parts_are_commands_of_the_same_file(own):
    parts = split_study_into_parts(ask(str(own), Path("out"), seed=2))
    assert [words for _, words in parts.parts] == [
        ("study", "kernels.toml", "--out", "out", "--seed", "2", "--part", f"kernel {size}")
        for size in (3, 5)
    ]
    assert run_command_line(["slurm", "render", "study", "kernels.toml", "--dry-run"]) == 0


def test_its_page_has_the_chapters_of_the_file(own):
    assert run_command_line(["study", "kernels.toml", "--from", str(RECORDED)]) == 0
    summary = Path("study-kernels/summary.md").read_text()
    assert summary.startswith("# Kernel sizes of mnist\\_cnn\n")
    assert "## The networks\n\nBoth." in summary
    assert "1,199,882" in summary
    assert "aten::" in Path("study-kernels/study.html").read_text()


def test_a_file_that_does_not_exist_is_refused_without_a_python_error():
    with pytest.raises(UsageError) as refused:
        read_study_definition("missing.toml")
    assert str(refused.value) == "missing.toml: file not found. Check the path"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("line =", "lime =", "'lime' is not known"),
        ('label = "kernel {kernel}"', "", "'label' is missing"),
        ("--seed {seed}", "--seed {sead}", "'sead' is neither an option nor a variable"),
        ('["3", "5"]', '"kernels"', "'kernels' is not an option of the study"),
        ("report.operators", "reports.operators", "there is no chapter 'reports.operators'"),
        ("report.operators", "flops.networks", "there is no chapter 'flops.networks'"),
        ("report.operators", "report.parameters", "there is no chapter 'report.parameters'"),
        ("[quick]", "[quick", "cannot be read as a study"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_in_one_line(own, before, after, said, capsys):
    own.write_text(OWN.replace(before, after))
    assert run_command_line(["study", "kernels.toml"]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1
    assert not Path("study-kernels").exists()


@pytest.mark.parametrize("name", SEEDS)
def test_the_studies_of_perfctl_describe_all_their_options(name):
    assert all(field.option.help for field in read_study_definition(name).options.values())


def test_the_help_of_an_option_names_the_default_of_the_study():
    batches = read_study_definition("inference").options["batches"]
    assert (batches.default, batches.option.help) == (
        (1, 5, 10, 15, 20),
        "Batch sizes, one process each. Default: 1,5,10,15,20.",
    )
