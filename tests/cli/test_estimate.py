"""perfctl estimate from the command line's side."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.orchestrator.cli.main import run

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")

MODEL = """
import torch
from torch import nn

def mlp():
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))

def words():
    return nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 3))

def broken():
    raise ValueError("no such thing")

def number():
    return 3

class Trouble(Exception):
    pass

def trouble():
    raise Trouble("own class")

def leaves():
    raise SystemExit(3)

ready = nn.Linear(8, 2)

class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.image, self.out = nn.Embedding(10, 4), nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, x, t):
        return self.out(self.image(x).mean((2, 3)) + self.words(t).mean(1))

class Warns(nn.Module):
    def forward(self, x):
        import warnings
        warnings.warn("CUDA initialization: the driver is too old", UserWarning)
        return x

class Raises(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 4)

    def forward(self, x):
        self.first(x)
        raise Trouble("own class")

class Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 4), nn.Linear(4, 2)

    def forward(self, x):
        y = self.first(x)
        if y.sum().item() > 1e9:
            y = -y
        return self.second(y)

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 4)

    def forward(self, x):
        return torch.ops.perfctl_test.fused(self.first(x))

if not hasattr(torch.ops.perfctl_test, "fused"):
    torch.library.define("perfctl_test::fused", "(Tensor x) -> Tensor")
    torch.library.impl("perfctl_test::fused", "CPU", lambda x: x * 2)
"""


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "models.py"
    path.write_text(MODEL)
    return path


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nothing"], 2, "unknown model"),
        (["mnist_cnn:conv3=1"], 2, "mnist_cnn has no parameter 'conv3'. It has conv2"),
        (["unet:base_width=0"], 2, "unet: base-width: '0' is not a whole number of at least 1"),
        (["{file}:missing", "--input", "8"], 2, "has no 'missing'"),
        (["{file}:broken", "--input", "8"], 1, "ValueError: no such thing"),
        (["{file}:number", "--input", "8"], 2, "not a torch.nn.Module"),
        (["{file}:words"], 2, "--input 3x224x224"),
        (["{file}:mlp", "--input", "8y"], 2, "'8y' is not a shape"),
        (["{file}:mlp", "--input", "int7:8"], 2, "'int7' is not a data type"),
        (
            ["{file}:mlp", "--input", "8", "--memory", "lots"],
            2,
            "invalid value 'lots' for --memory",
        ),
        (
            ["{file}:mlp", "--input", "8", "--check", "1"],
            2,
            "Set it with --layer. Available layers: 0, 1, 2",
        ),
        (["{file}:mlp", "--input", "8", "--layer", "9"], 2, "It has: 0, 1, 2"),
        (["{file}:mlp", "--input", "8", "--layer", "9", "--json"], 2, "It has: 0, 1, 2"),
        (
            ["{file}:mlp", "--input", "8", "--memory", "1GiB", "--attention", "fast"],
            2,
            "invalid value 'fast' for --attention",
        ),
        (
            ["{file}:mlp", "--input", "8", "--memory", "1GiB", "--update", "quick"],
            2,
            "invalid value 'quick' for --update",
        ),
        (
            ["{file}:mlp", "--input", "8", "--memory", "1GiB", "--reserve", "some"],
            2,
            "invalid value 'some' for --reserve",
        ),
        (["{file}:mlp", "--input", "8", "--gpu", "sm"], 2, "invalid value 'sm' for --gpu"),
        (["{file}:trouble", "--input", "8"], 1, "Trouble: own class"),
        (["{file}:leaves", "--input", "8"], 1, "SystemExit: 3"),
        (["{file}:Raises", "--input", "8"], 4, "the model: Trouble: own class"),
        (["{file}:Both", "--input", "3x8x8"], 4, "missing 1 required positional argument: 't'"),
        (["{file}:mlp", "--input", "8", "--layer", "9", "--sheet"], 2, "Layers: 0, 1, 2"),
        (["{file}:mlp", "--input", "9"], 4, "0: RuntimeError"),
        (["{file}:Reads", "--input", "8"], 4, "needs actual data"),
        (["{file}:Own", "--input", "8"], 4, "perfctl_test::fused"),
        (["no_such_package.models:net", "--input", "8"], 1, "cannot be imported"),
        (["no/such/file.py:net", "--input", "8"], 2, "does not exist"),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str], code: int, said: str, model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(["estimate", *(text.replace("{file}", str(model_file)) for text in arguments)]) == code
    )
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 1
    assert said in errors[0]


def test_a_model_that_reads_its_data_runs_on_the_cpu(
    model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["estimate", f"{model_file}:Reads", "--input", "8", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert f"({8 * 4 + 4 * 2:,} and " in out
    assert "sizes depend on the data" in out


def test_an_operator_without_a_formula_is_listed(
    model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(["estimate", f"{model_file}:Own", "--input", "8", "--device", "cpu", "--mode", "infer"])
        == 0
    )
    out = capsys.readouterr().out
    assert "no formula for perfctl_test.fused (1 call)" in out
    assert "Forward at least 64 FLOP (32 MAC)" in out


def test_several_inputs_of_several_types(
    capsys: pytest.CaptureFixture[str], model_file: Path
) -> None:
    arguments = [
        "estimate",
        f"{model_file}:Both",
        "--input",
        "3x8x8",
        "--input",
        "int64:5",
        "--batch",
        "2",
    ]
    assert run(arguments) == 0
    assert f"({2 * 6 * 6 * 4 * 27 + 2 * 4 * 2:,} and " in capsys.readouterr().out


def test_a_model_that_is_there_already_is_taken_as_it_is(
    capsys: pytest.CaptureFixture[str], model_file: Path
) -> None:
    assert run(["estimate", f"{model_file}:ready", "--input", "8"]) == 0
    assert "16 MAC" in capsys.readouterr().out


def test_only_torchs_word_about_an_old_driver_is_silenced(
    capsys: pytest.CaptureFixture[str], model_file: Path
) -> None:
    assert run(["estimate", f"{model_file}:Warns", "--input", "8"]) == 0
    assert capsys.readouterr().err == ""


def test_a_layer_that_holds_others_shows_them_alone(
    capsys: pytest.CaptureFixture[str], model_file: Path
) -> None:
    assert run(["estimate", f"{model_file}:mlp", "--input", "8", "--layer", "2"]) == 0
    out = capsys.readouterr().out
    assert "Parameters 10 (" in out
    assert f"({4 * 2:,} and " in out


def test_every_operation_has_a_row_with_bytes_when_asked(
    capsys: pytest.CaptureFixture[str], model_file: Path
) -> None:
    assert run(["estimate", f"{model_file}:mlp", "--input", "8", "--batch", "3", "--all"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["1", "ReLU", "forward", "1", "0", "12", "12", "48", "48"] in rows


def test_the_gpu_decides_the_workspace_and_every_assumption_has_a_line(
    capsys: pytest.CaptureFixture[str], model_file: Path
) -> None:
    arguments = [
        "estimate",
        f"{model_file}:mlp",
        "--input",
        "8",
        "--optimizer",
        "adam",
        "--memory",
        "256MiB",
    ]
    assert run([*arguments, "--gpu", "sm_90", "--update", "for-loop", "--reserve", "0"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"workspace: cuBLAS, forward's thread, {32 * 2**20:,} B" in out
    assert f"workspace: cuBLAS, backward's thread, {32 * 2**20:,} B" in out
    assert "assumed: GPU: compute capability 9.0 assumed" in out
    assert "optimizer: Adam, for-loop" in out
    assert "with 0.00 GiB left free" in out
    assert run(arguments) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "GPU: compute capability 8.0, the default (set --gpu, for example h100)" in out
    assert "optimizer: Adam, foreach" in out
    assert "Not even one sample fits" in out
