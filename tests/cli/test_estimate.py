"""perfctl estimate from the command line's side."""

from pathlib import Path

import pytest

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


@pytest.fixture
def estimate(perfctl):
    """Estimate what is typed, in a folder with the models above."""
    Path("models.py").write_text(MODEL)
    return lambda typed: perfctl("estimate", *typed.split())


@pytest.mark.parametrize(
    ("typed", "code", "refusal"),
    [
        ("nothing", 2, "unknown model"),
        ("mnist_cnn:conv3=1", 2, "mnist_cnn has no parameter 'conv3'. It has conv2"),
        ("unet:base_width=0", 2, "unet: base-width: '0' is not a whole number of at least 1"),
        ("models.py:missing --input 8", 2, "has no 'missing'"),
        ("models.py:broken --input 8", 1, "ValueError: no such thing"),
        ("models.py:number --input 8", 2, "not a torch.nn.Module"),
        ("models.py:words", 2, "--input 3x224x224"),
        ("models.py:mlp --input 8y", 2, "'8y' is not a shape"),
        ("models.py:mlp --input int7:8", 2, "'int7' is not a data type"),
        ("models.py:mlp --input 8 --memory lots", 2, "invalid value 'lots' for --memory"),
        ("models.py:mlp --input 8 --check 1", 2, "Set it with --layer. Available layers: 0, 1, 2"),
        ("models.py:mlp --input 8 --layer 9", 2, "It has: 0, 1, 2"),
        ("models.py:mlp --input 8 --layer 9 --json", 2, "It has: 0, 1, 2"),
        ("models.py:mlp --input 8 --layer 9 --sheet", 2, "Available layers: 0, 1, 2"),
        (
            "models.py:mlp --input 8 --memory 1GiB --attention fast",
            2,
            "invalid value 'fast' for --attention",
        ),
        (
            "models.py:mlp --input 8 --memory 1GiB --update quick",
            2,
            "invalid value 'quick' for --update",
        ),
        (
            "models.py:mlp --input 8 --memory 1GiB --reserve some",
            2,
            "invalid value 'some' for --reserve",
        ),
        ("models.py:mlp --input 8 --gpu sm", 2, "invalid value 'sm' for --gpu"),
        ("models.py:trouble --input 8", 1, "Trouble: own class"),
        ("models.py:leaves --input 8", 1, "SystemExit: 3"),
        ("models.py:Raises --input 8", 4, "the model: Trouble: own class"),
        ("models.py:Both --input 3x8x8", 4, "missing 1 required positional argument: 't'"),
        ("models.py:mlp --input 9", 4, "0: RuntimeError"),
        ("models.py:Reads --input 8", 4, "needs actual data"),
        ("models.py:Own --input 8", 4, "perfctl_test::fused"),
        ("no_such_package.models:net --input 8", 1, "cannot be imported"),
        ("no/such/file.py:net --input 8", 2, "does not exist"),
    ],
)
def test_bad_input_is_one_clear_line(estimate, typed, code, refusal):
    answer = estimate(typed)
    assert (answer.code, answer.err.count("\n")) == (code, 1)
    assert refusal in answer.err
    assert ("The output covers only the operations before the error" in answer.err) == (code == 4)


@pytest.mark.parametrize(
    ("typed", "parts"),
    [
        (
            "models.py:Reads --input 8 --device cpu",
            (f"({8 * 4 + 4 * 2:,} and ", "sizes depend on the data"),
        ),
        (
            "models.py:Own --input 8 --device cpu --mode infer",
            ("no formula for perfctl_test.fused (1 call)", "Forward at least 64 FLOP (32 MAC)"),
        ),
        (
            "models.py:Both --input 3x8x8 --input int64:5 --batch 2",
            (f"({2 * 6 * 6 * 4 * 27 + 2 * 4 * 2:,} and ",),
        ),
        ("models.py:ready --input 8", ("16 MAC",)),
        ("models.py:Warns --input 8", ()),
        ("models.py:mlp --input 8 --layer 2", ("Parameters 10 (", f"({4 * 2:,} and ")),
        ("models.py:mlp --input 8 --batch 3 --all", ("1 ReLU forward 1 0 12 12 48 48",)),
        (
            "models.py:mlp --input 8 --optimizer adam --memory 256MiB",
            (
                "GPU: compute capability 8.0, the default (set --gpu, for example h100)",
                "optimizer: Adam, foreach",
                "Not even one sample fits",
            ),
        ),
        (
            "models.py:mlp --input 8 --optimizer adam --memory 256MiB --gpu sm_90 "
            "--update for-loop --reserve 0",
            (
                f"workspace: cuBLAS, forward's thread, {32 * 2**20:,} B",
                f"workspace: cuBLAS, backward's thread, {32 * 2**20:,} B",
                "assumed: GPU: compute capability 9.0 assumed",
                "optimizer: Adam, for-loop",
                "with 0.00 GiB left free",
            ),
        ),
    ],
)
def test_an_estimate_of_a_model_of_the_users_prints_its_work_and_assumptions(
    estimate, typed, parts
):
    """What torch says about an old driver is silenced."""
    answer = estimate(typed)
    assert (answer.code, answer.err) == (0, "")
    text = " ".join(answer.out.split())
    assert [part for part in parts if part not in text] == []
