"""A layer's ranges as ncu is told of them."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers import ncu
from perfctl.orchestrator.launch.profilers.ncu import Ncu


def test_a_layer_narrows_ncu_to_the_ranges_of_its_directions_and_of_the_layers_inside(make_request):
    argv = Ncu(metrics="fadd", layers=("conv2", "fc1")).commands(make_request("cuda"))[0].argv
    asked = [argv[number + 1] for number, word in enumerate(argv) if word == "--nvtx-include"]
    directions = ("forward", "grad_input", "grad_weight", "grad_bias", "backward", "recompute")
    for layer in ("conv2", "fc1"):
        assert {f"{layer}:{direction}/" for direction in directions} <= set(asked)
        assert f"regex:(.+[.])?{layer}([.].+)?:({'|'.join(directions)})/" in asked
    assert len(asked) == 2 * (len(directions) + 1)
    assert argv.index("--nvtx-include") < argv.index("/opt/python")


@pytest.mark.parametrize(
    ("name", "literal"),
    [
        ("layer1.0.conv1", "layer1.0.conv1"), ("a[0]", r"a\[0\]"), ("x@y,z", r"x\@y\,z"), ("m/n*+", r"m\/n\*\+"),
        ("b\\c", r"b\\c"),
    ],
)  # fmt: skip
def test_what_means_something_to_ncu_in_a_layers_name_is_escaped(name, literal):
    assert ncu.includes(name)[0] == f"{literal}:forward/"


@pytest.mark.parametrize(
    ("layer", "range_name", "matches"),
    [
        ("conv2", "conv2:grad_weight", True), ("conv2", "model.conv2:forward", True),
        ("conv2", "conv20:forward", False), ("conv2", "conv2:optimizer", False),
        ("layer1", "model.layer1.0.bn1:backward", True), ("layer1.0", "layer1.10.conv:forward", False),
        ("a[0]", "a[0].conv:forward", True), ("é.x", "é.x.y:forward", True),
    ],
)  # fmt: skip
def test_the_expression_for_inner_layers_finds_them_and_not_their_neighbours(layer, range_name, matches):
    expression = ncu.includes(layer)[-1].removeprefix("regex:").removesuffix("/")
    assert (re.fullmatch(expression, range_name) is not None) is matches


@pytest.mark.skipif(tools.find("ncu") is None, reason="ncu is not installed")
def test_the_installed_ncu_takes_the_expressions_of_hostile_names(tmp_path):
    layers = ("conv2", "a[0]", "x@y,z", "m/n*+", "b\\c", "[q]", "é", "a b", "$x", "(y|z)")
    options = [word for layer in layers for word in ncu.range_options((layer,))]
    argv = ["ncu", "--nvtx", *options, "--metrics", "smsp__inst_executed.sum", "true"]
    said = subprocess.run(
        argv, capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}, check=False
    )
    assert "Invalid configuration" not in said.stdout + said.stderr
    assert "No kernels were profiled" in said.stdout + said.stderr


@pytest.mark.parametrize("layer", ["", " ", "regex:x"])
def test_a_name_that_no_layer_can_have_is_refused(layer):
    with pytest.raises(UsageError, match="is not a layer name"):
        Ncu(layers=(layer,))
