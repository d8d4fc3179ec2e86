"""perfctl gate: a committed baseline, what fails it, and the templates for CI."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

import perfctl
from perfctl.orchestrator.compare.gate import (
    BETTER,
    NOT_JUDGED,
    SAME,
    TIME,
    WORSE,
    MeasuredQuantities,
    QuantityPlace,
    judge_against_baseline,
)
from perfctl.orchestrator.errors import PerfctlError

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests/data/recorded-cpu/torch"


@pytest.fixture(scope="module")
def baseline(tmp_path_factory):
    path = tmp_path_factory.mktemp("gate") / "perfctl-gate.json"
    perfctl.gate(path, update=True, runs=[str(RECORDED)], name="cnn")
    return path


def changed(baseline, to):
    """conv2 of batch 16 does 26 x 26 outputs less one side: 2 x 16 x 24 x 24 x 64 x 32 x 9 FLOPs,
    here half of that before."""
    flops = 2 * 16 * 24 * 24 * 64 * 32 * 9
    text = baseline.read_text()
    assert f'"flops": {flops},' in text
    to.write_text(text.replace(f'"flops": {flops},', f'"flops": {flops // 2},', 1))
    return to


def test_the_same_recording_passes_and_the_python_api_is_not_its_package(baseline):
    (found,) = perfctl.gate(baseline)
    assert not found.failed and not found.undecided and callable(perfctl.gate)


@pytest.mark.usefixtures("quick_sweeps")
def test_a_run_of_today_does_the_work_of_a_recording_of_another_day(
    baseline, tmp_path, monkeypatch
):
    """The recording is of 2026-11-20, of another machine and release of torch. A release may call
    other operators, and time is not held here; FLOPs, steps and parameters have to be the same."""
    monkeypatch.chdir(tmp_path)
    perfctl.sweep("torch", perfctl.SweepOptions(batches=(16, 32), steps=3, warmup=2, device="cpu"))
    held = json.loads(baseline.read_text())
    held["entries"][0]["subject"]["runs"] = "perfctl-runs"
    path = tmp_path / "perfctl-gate.json"
    path.write_text(json.dumps(held))
    (found,) = perfctl.gate(path)
    exact = [row for row in found.rows if row.quantity not in (TIME, "operations")]
    assert {row.quantity for row in exact} >= {"flops", "steps"} and len(exact) > 50
    assert [row for row in exact if row.result != SAME] == []


def test_a_second_update_of_the_same_recording_adds_no_session(baseline):
    before = baseline.read_text()
    perfctl.gate(baseline, update=True)
    assert baseline.read_text() == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"batch": 16', '"batch": [16]'),
        lambda text: text.replace('"layer": "conv1"', '"layer": 5'),
        lambda text: text.replace('"steps": 3', '"steps": NaN'),
        lambda text: text.replace('"steps": 3', '"steps": "3"'),
        lambda text: text.replace('"steps": 3', '"steps": 1' + "0" * 400),
        lambda text: text.replace('"version": 1', '"version": 2'),
        lambda text: text.replace('"runs":', '"code":'),
        lambda text: text[: len(text) // 2],
        lambda text: "[" * 100_000,
    ],
)
def test_a_damaged_baseline_is_one_error_that_names_it(baseline, tmp_path, damage):
    path = tmp_path / "hurt.json"
    text = baseline.read_text()
    path.write_text(damage(text))  # type: ignore[operator]
    assert path.read_text() != text
    with pytest.raises(PerfctlError, match=r"hurt\.json"):
        perfctl.gate(path)


def shell_of(name):
    """The script of a template."""
    found = yaml.safe_load((ROOT / "examples/ci" / name).read_text())
    if name == "action.yml":
        return str(found["runs"]["steps"][0]["run"])
    if name == "gitlab-ci.yml":
        return "\n".join(found["perfctl-gate"]["script"])
    return f'{found[0]["entry"]} "$BASELINE"'


@pytest.mark.parametrize("name", ["action.yml", "gitlab-ci.yml", "pre-commit-hooks.yaml"])
def test_a_template_is_red_and_names_the_layer(name, baseline, tmp_path):
    red = changed(baseline, tmp_path / "red.json")
    program = tmp_path / "bin/perfctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m perfctl "$@"\n')
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "BASELINE": str(red),
    }
    ran = subprocess.run(
        ["bash", "-c", shell_of(name)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 3, ran.stderr
    assert "batch 16, conv2 forward, flops" in ran.stderr
    if name != "pre-commit-hooks.yaml":
        suites = ElementTree.parse(tmp_path / "perfctl-gate.xml").getroot()
        assert [len(suite.findall("testcase/failure")) for suite in suites] == [1]
        assert [suite.get("failures") for suite in suites] == ["1"]
        assert len((tmp_path / "perfctl-gate.md").read_text().splitlines()) <= 30
    assert ("::error file=" in ran.stdout) == (name == "action.yml")


def test_what_a_trace_that_stopped_early_lacks_is_not_called_better():
    place = QuantityPlace(batch=8, direction="forward")
    whole = MeasuredQuantities({place: {"flops": 1000, "operations": 7}})
    part = MeasuredQuantities(
        {place: {"flops": 400, "operations": 9}}, problems=("batch 8: it stopped",)
    )
    assert [row.result for row in judge_against_baseline("net", whole, part, {}).rows] == [
        NOT_JUDGED,
        WORSE,
    ]
    assert [
        row.result
        for row in judge_against_baseline("net", whole, replace(part, problems=()), {}).rows
    ] == [
        BETTER,
        WORSE,
    ]


def test_the_baseline_holds_one_line_a_place(baseline):
    held = json.loads(baseline.read_text())["entries"][0]["places"]
    assert sum(line.startswith("    {") for line in baseline.read_text().splitlines()) == len(held)


NET = """
import torch

def factory():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, kernel_size={side}))
"""


def test_a_change_of_the_models_code_makes_the_build_red_from_any_folder(
    tmp_path, monkeypatch, request
):
    """3 x 3 weights become 5 x 5; the baseline finds the file beside itself, wherever the gate is
    called. The texts have different lengths, by which Python tells files of one second apart."""
    call = request.getfixturevalue("perfctl")
    (tmp_path / "net.py").write_text(NET.format(side=3))
    monkeypatch.chdir(tmp_path)
    asked = (
        "perfctl-gate.json --update --model net.py:factory --input 3x8x8 --batches 2 --mode infer"
    )
    assert call(f"gate {asked}").code == 0
    kept = json.loads((tmp_path / "perfctl-gate.json").read_text())
    assert [entry["subject"]["model"] for entry in kept["entries"]] == ["net.py:factory"]
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    assert call("gate ../perfctl-gate.json").code == 0
    (tmp_path / "net.py").write_text(NET.format(side="(5, 5)"))
    found = call("gate ../perfctl-gate.json")
    assert found.code == 3
    flops = [2 * 2 * 4 * (8 - side + 1) ** 2 * 3 * side**2 for side in (3, 5)]
    assert flops == [15552, 19200]
    assert "15,552" in found.out or "15.6" in found.out, found.out
