"""perfctl estimate from the command line's side."""

from __future__ import annotations

import json
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


def test_the_table_that_people_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "mnist_cnn", "--batch", "16"]) == 0
    out = capsys.readouterr().out
    for text in (
        "320",
        "18,496",
        "1,179,776",
        "1,290",
        "1,199,882",
        "191,879,168 and 380,643,328 MAC",
        "16x64x24x24",
        "not needed",
    ):
        assert text in out, text


def test_unet_and_lstm_are_known_and_are_what_they_are_by_hand(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {}
    for name in ("unet", "lstm"):
        assert run(["estimate", name, "--batch", "2", "--json"]) == 0
        found[name] = json.loads(capsys.readouterr().out)["batches"]["2"]
    assert found["unet"]["parameters"] == 31_037_763
    assert found["lstm"]["parameters"] == 2_372_618
    gates, length, hidden = 4 * 256, 100, 256
    layers = gates * (128 + hidden) + gates * (2 * hidden + hidden)
    assert found["lstm"]["forward"]["macs"] == 2 * (2 * length * layers + 2 * hidden * 10)


def test_a_sheet_and_a_check_of_the_studys_layer(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "estimate",
        "mnist_cnn",
        "--batch",
        "64",
        "--layer",
        "conv2",
        "--sheet",
        "--check",
        "141557760",
    ]
    assert run(arguments) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "(26 - 3 + 2x0)/1 + 1" in out
    assert (
        "Your 141,557,760 for conv2 could come from input 13x13 instead of 26x26 and 11x11 taken "
        "as 120 (141,557,760 MAC)." in out
    )


def test_a_hand_value_is_known_as_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = f"64 x 64 x 24 x 24 = {64 * 64 * 24 * 24:,} values x 4 B = {64 * 64 * 24 * 24 * 4:,} B"
    for layer, value, said in (
        (
            "conv2",
            f"{64 * 64 * 24 * 24 * 4} B",
            f"9,437,184 B is correct: output map, in bytes. {sizes}",
        ),
        (
            "conv2",
            f"{32 * 64 * 9 * 4 // 1024} KiB",
            "72 KiB is correct: weights, in bytes. 64 x 32 x 3 x 3 = 18,432 values x 4 B = 73,728 B.",
        ),
        ("relu1", f"{64 * 32 * 26 * 26 * 4} B", "5,537,792 B is correct: output map, in bytes."),
        ("relu1", "7 B", "Your 7 B for relu1 is not correct"),
    ):
        assert (
            run(["estimate", "mnist_cnn", "--batch", "64", "--layer", layer, "--check", value]) == 0
        )
        assert " ".join(capsys.readouterr().out.split()).startswith(said)


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "mnist_cnn", "--batches", "16,32", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (
        found["batches"]["32"]["forward"]["flops"] == 2 * found["batches"]["16"]["forward"]["flops"]
    )
    assert found["batches"]["16"]["memory"] is None


def test_memory_says_the_largest_batch_and_what_is_not_known(
    capsys: pytest.CaptureFixture[str], model_file: Path
) -> None:
    assert (
        run(
            [
                "estimate",
                f"{model_file}:mlp",
                "--input",
                "8",
                "--optimizer",
                "adam",
                "--memory",
                "2GiB",
            ]
        )
        == 0
    )
    out = " ".join(capsys.readouterr().out.split())
    assert "largest batch" in out
    assert "with 1.00 GiB left free for the CUDA context" in out
    assert "unknown: " in out
    assert "cuDNN workspace" in out


def test_a_file_and_integers_for_an_embedding(
    capsys: pytest.CaptureFixture[str], model_file: Path
) -> None:
    assert run(["estimate", f"{model_file}:words", "--input", "int64:5", "--batch", "2"]) == 0
    assert f"({2 * 5 * 6 * 3:,} and " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nothing"], 2, "unknown model"),
        (["mnist_cnn:conv3=1"], 2, "mnist_cnn has no parameter 'conv3'. It has conv2"),
        (["mnist_cnn:conv2=31,128,5,1"], 2, "mnist_cnn: conv2: '31,128,5,1' must begin with 32"),
        (["unet:base_width=0"], 2, "unet: base-width: '0' is not a whole number of at least 1"),
        (["{file}:missing", "--input", "8"], 2, "has no 'missing'"),
        (["{file}:broken", "--input", "8"], 1, "ValueError: no such thing"),
        (["{file}:number", "--input", "8"], 2, "not a torch.nn.Module"),
        (["{file}:words"], 2, "--input 3x224x224"),
        (["{file}:mlp", "--input", "8y"], 2, "'8y' is not a shape"),
        (["{file}:mlp", "--input", "int7:8"], 2, "'int7' is not a data type"),
        (
            ["{file}:mlp", "--input", "8", "--optimizer", "magic"],
            2,
            "invalid value 'magic' for --optimizer",
        ),
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
        (["{file}:mlp", "--input", "8", "--batches", "0"], 2, "must be at least 1"),
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


def test_a_model_that_stops_keeps_what_came_before(
    model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["estimate", f"{model_file}:Reads", "--input", "8"]) == 4
    printed = capsys.readouterr()
    assert f"({8 * 4:,} and " in printed.out
    assert "The output covers only the operations before the error" in printed.err


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


def test_a_sheet_and_its_check_are_one_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "estimate",
        "mnist_cnn",
        "--batches",
        "1,64",
        "--layer",
        "fc2",
        "--check",
        "1280",
        "--json",
    ]
    assert run(arguments) == 0
    found = json.loads(capsys.readouterr().out)["batches"]
    assert found["1"]["check"]["mistakes"] == []
    assert found["64"]["check"]["mistakes"] == ["batch of 64 left out"]
    assert {batch["check"]["quantity"] for batch in found.values()} == {"forward"}
    assert found["64"]["sections"][0]["title"] == "Shapes"


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


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--attention", "fast", "invalid value 'fast' for --attention"),
        ("--update", "quick", "invalid value 'quick' for --update"),
        ("--reserve", "some", "invalid value 'some' for --reserve"),
    ],
)
def test_an_unknown_kernel_or_reserve_is_refused(
    capsys: pytest.CaptureFixture[str], model_file: Path, flag: str, value: str, said: str
) -> None:
    assert (
        run(["estimate", f"{model_file}:mlp", "--input", "8", "--memory", "1GiB", flag, value]) == 2
    )
    assert said in capsys.readouterr().err
