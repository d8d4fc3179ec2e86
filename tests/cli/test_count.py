"""``perfctl count`` as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfctl.orchestrator.cli.main import run

CUBIN = Path(__file__).parents[1] / "data" / "sass" / "kernels.cubin"
K, GRID, BLOCK = 1000, 64 * 64, 16 * 16


@pytest.fixture(autouse=True)
def tools() -> None:
    pytest.importorskip("triton", reason="its wheel has nvdisasm")


def test_kernels_are_listed_with_their_resources(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["count", str(CUBIN)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].split() == ["arch", "registers", "shared", "B", "stack", "B", "kernel"]
    assert len(said) == 1 + CUBIN.with_name("kernels.cu").read_text(encoding="utf-8").count("__global__")
    assert all(line.startswith("sm_80") for line in said[1:])


def test_a_launch_is_shown_and_given_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["count", str(CUBIN), "--kernel", "product", "--grid", "64,64", "--block", "16,16", "--arg", f"5={K}"]
    assert run(words) == 0
    said = capsys.readouterr().out
    total = 2 * K * GRID * BLOCK
    assert f"FLOPs of the launch: {total:,}" in said
    assert "1 multiply-add = 2 FLOPs" in said
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["flops"] == {"low": 0, "least": total, "whole": total, "high": total, "at_least": False}
    (ffma,) = (one for one in found["instructions"] if one["instruction"] == "FFMA")
    assert (ffma["per"], ffma["path"], ffma["flops_of_one"], ffma["each"]["whole"]) == ("thread", "fp32", 2, K)
    assert [loop["name"] for loop in found["loops"]] == ["L0"]


def test_turns_can_be_stated(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["count", str(CUBIN), "--kernel", "steps", "--grid", "1", "--block", "32"]
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unknown"]
    assert run([*words, "--trip", "L0=36", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["flops"]["whole"] == 36 * 32
    assert found["loops"][0]["from"] == "given"
    assert found["unknown"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kernel", "\x1b[31mred"], r"holds no '\x1b[31mred'"), (["--kernel", "c"], "fits"),
        (["--grid", "1"], "Name it with --kernel"),
        (["--kernel", "steps", "--grid", "1,x"], "--grid: 'x' is not a whole number"),
        (["--kernel", "steps", "--grid", "1,1,1,1"], "more than three sides"), (["--kernel", "steps", "--shape", "1,2"], "--shape"),
        (["--kernel", "steps", "--trip", "L0"], "--trip: 'L0' has no value"), (["--arch", "volta"], "--arch: 'volta'"),
        (["--kernel", "steps", "--trip", "L5=2"], "--trip: there is no loop L5. Loops: L0"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_one_line_that_names_the_option(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["count", str(CUBIN), *words]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert "\x1b" not in err


def test_no_heavy_library_is_loaded() -> None:
    words = ["count", str(CUBIN), "--kernel", "nested"]
    code = f"from perfctl.orchestrator.cli.main import run; run({words!r}); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "triton", "pandas", "numpy", "matplotlib", "rich"} & set(done.stdout.split())
