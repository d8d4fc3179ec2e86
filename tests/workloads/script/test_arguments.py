"""The command line of a script under perfctl, and what ends a step; no torch, no process."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from perfctl.workloads.script.counting import PATIENCE, StepEndDetector
from perfctl.workloads.script.options import (
    ScriptCommand,
    is_script_command_line,
    parse_python_command,
    parse_script_options,
)
from perfctl.workloads.spec import SpecError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


@pytest.mark.parametrize(
    ("words", "kind", "target", "arguments", "flags"),
    [
        (["train.py", "-m", "x"], "script", "train.py", ("-m", "x"), ()),
        (["python", "train.py"], "script", "train.py", (), ()),
        (
            ["/venv/bin/python3.11", "-u", "-X", "dev", "-Werror", "train.py", "--", "-u"],
            "script",
            "train.py",
            ("--", "-u"),
            ("-u", "-X", "dev", "-Werror"),
        ),
        (["python", "-m", "pkg.train", "a"], "module", "pkg.train", ("a",), ()),
        (["-mpkg"], "module", "pkg", (), ()),
        (
            ["torchrun", "--nproc-per-node", "2", "train.py"],
            "torchrun",
            "",
            ("--nproc-per-node", "2", "train.py"),
            (),
        ),
        (["python", "-m", "torch.distributed.run", "train.py"], "torchrun", "", ("train.py",), ()),
        (["/x/accelerate", "launch", "train.py"], "accelerate", "", ("train.py",), ()),
    ],
)
def test_a_command_is_read_as_python_would_read_it(words, kind, target, arguments, flags):
    command = parse_python_command(words)
    assert command == ScriptCommand(kind, target, arguments, flags)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no script was given after --"),
        (["python"], "no script was given after --"),
        (["nope.py"], "script nope.py does not exist"),
        (["python", "-c", "1"], "put the code into a file"),
        (["python", "-"], "put the code into a file"),
        (["python", "-m"], "no module was given after -m"),
        (["accelerate", "config"], "accelerate launch train.py"),
        (["python", "-m", "torch.distributed.launch", "train.py"], "torchrun"),
        (["--step-marker", "often", "--", "train.py"], "got often"),
        (["--step-marker", "backward:X", "--", "train.py"], "got backward:X"),
        (["--window", "torch", "--", "train.py"], "needs `trace`"),
        (["--steps", "0", "--", "train.py"], "'0' is not a whole number of at least 1"),
        (["--under", "nsys", "--", "train.py"], "--under"),
        (["--under", '"nsys"', "--", "train.py"], "--under"),
        (["--under", "[1]", "--", "train.py"], "--under"),
    ],
)
def test_what_cannot_run_is_one_clear_line(words, says):
    with pytest.raises(SpecError) as caught:
        parse_script_options(words if "--" in words else ["--", *words])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_before_the_dashes_is_a_workload_and_help_is_help():
    assert is_script_command_line(["--", "train.py"])
    assert is_script_command_line(["--batch", "4", "--", "mnist_cnn"])
    assert not is_script_command_line(["mnist_cnn", "--batch", "4", "--"])
    assert not is_script_command_line(["--help", "--", "train.py"])


@pytest.mark.parametrize(
    ("words", "template"),
    [
        ("--batch-size 16 --epochs 16", "--batch-size {batch} --epochs 16"),
        ("--batch_size=16 --width=16", "--batch_size={batch} --width=16"),
        ("-b 16 16", "-b {batch} 16"),
        ("16 --lr 0.16", "{batch} --lr 0.16"),
        ("--epochs 3", "--epochs 3"),
        ("", None),
    ],
)
def test_the_variant_has_the_batch_size_put_back(words, template):
    assert (
        parse_script_options(
            ["--batch", "16", "--", "train.py", *words.split()]
        ).format_arguments_with_batch_placeholder()
        == template
    )


def test_each_rank_has_files_of_its_own_and_the_first_the_plain_names():
    options = parse_script_options(
        ["--window", "torch", "--trace", "out/t.json.gz", "--record", "r.json", "--", "train.py"]
    )
    first, second = map(options.add_rank_to_file_paths, (0, 1))
    here = Path.cwd()
    assert (first.trace, first.record) == (here / "out/t.json.gz", here / "r.json")
    assert (second.trace, second.record) == (here / "out/t.rank1.json.gz", here / "r.rank1.json")


def test_a_rank_starts_itself_under_its_profiler_with_files_of_its_own():
    own = ["--record", "r.json", "--under", '["nsys", "--output=a b/report{rank}"]', "--steps", "2"]
    options = parse_script_options([*own, "--", "train.py", "{rank}"])
    words = "-m perfctl.workloads --record r.json --steps 2 -- train.py {rank}"
    inner = (sys.executable, *words.split())
    assert options.build_rank_profiler_command(0) == ("nsys", "--output=a b/report", *inner)
    assert options.build_rank_profiler_command(1) == ("nsys", "--output=a b/report.rank1", *inner)


def steps_of(events, kind="auto", named=None, optimizers=0):
    """After which events a step ended. D, G: optimizers; m, n: models; b: a backward pass."""
    marker = StepEndDetector(kind, named, lambda: optimizers)
    ended = []
    for number, event in enumerate(events):
        if event.isupper():
            ends = marker.count_and_check_optimizer_step(ord(event), event)
        elif event == "b":
            ends = marker.count_and_check_backward_end()
        else:
            ends = marker.count_and_check_model_call(
                ord(event)
            ) | marker.count_and_check_module_call(event)
        if ends:
            ended.append(number)
    return ended


@pytest.mark.parametrize(
    ("events", "optimizers", "ended"),
    [
        ("mmDmD", 1, [2, 4]),
        ("DGDG", 2, [1, 3]),  # the one that steps last in a round
        ("DDDDDGDDDDDG", 2, [5, 11]),
        # the other one never steps
        ("D" * (PATIENCE + 3), 2, [PATIENCE, PATIENCE + 1, PATIENCE + 2]),
        ("mmm", 0, [1, 2]),  # the last model of a round
        ("mnmnmn", 0, [3, 5]),
        ("mbmbmmb", 0, [1, 3, 6]),  # trains without an optimizer
    ],
)
def test_the_last_of_a_round_ends_a_step(events, optimizers, ended):
    assert steps_of(events, optimizers=optimizers) == ended


def test_a_script_that_trains_without_an_optimizer_ends_its_steps_with_backward_passes():
    marker = StepEndDetector("auto", None, lambda: 0)
    for _ in range(3):
        marker.count_and_check_model_call(1)
    assert marker.count_and_check_backward_end()
    assert (marker.steps, marker.describe_step_end_rule()) == (1, "a backward pass")


def test_backward_passes_before_the_first_optimizer_was_made_are_no_steps():
    marker = StepEndDetector("auto", None, lambda: len(made))
    made: list[str] = []
    assert marker.count_and_check_backward_end()
    made.append("D")
    assert not marker.count_and_check_backward_end()
    assert marker.count_and_check_optimizer_step(7, "SGD")
    assert (marker.steps, marker.describe_step_end_rule()) == (1, "the optimizer's step")


def test_calls_before_the_first_optimizer_was_made_are_no_steps():
    made: list[str] = []
    marker = StepEndDetector("auto", None, lambda: len(made))
    for _ in range(2):
        marker.count_and_check_model_call(1)
    assert marker.steps > 0
    made.append("D")
    marker.count_and_check_model_call(1)
    assert (marker.count_and_check_optimizer_step(7, "SGD"), marker.steps) == (True, 1)


def test_the_marker_asked_for_overrides():
    assert steps_of("mbDmbD", "backward", optimizers=1) == [1, 4]
    assert steps_of("mbDmbD", "optimizer", "D", optimizers=2) == [2, 5]
    assert steps_of("mbGmbG", "optimizer", "D", optimizers=2) == []
    assert steps_of("mnmn", "forward", "n") == [1, 3]
    assert steps_of("mmm", "optimizer") == []


def test_steps_never_outnumber_the_events_of_what_ends_them():
    chance = random.Random(5)
    for _ in range(200):
        events = "".join(chance.choice("DGmnb") for _ in range(30))
        ended = steps_of(events, optimizers=2)
        assert all(events[number] in "DG" for number in ended)
        assert len({events[number] for number in ended}) <= 2


def test_a_recording_is_whole_when_what_ends_the_step_spoke_once():
    marker = StepEndDetector("auto", None, lambda: 0)
    marker.reset_event_counts()
    marker.count_and_check_model_call(1)
    assert marker.count_and_check_model_call(1)
    assert not marker.has_single_step
    marker.reset_event_counts()
    assert marker.count_and_check_model_call(1)
    assert marker.has_single_step
