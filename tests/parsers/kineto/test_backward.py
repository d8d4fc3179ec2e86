"""Layers and optimizers of an unedited script's operations, also in its backward passes."""

from __future__ import annotations

import re
from pathlib import Path

from perfctl.parsers import parse
from tests.forked import PERFCTL

GAN = Path(__file__).resolve().parents[2] / "data" / "scripts" / "gan.py"
OPTIONS = "--annotate record_function --window torch --trace t.json --steps 3 --warmup 2 --batch 16"
MAKES = re.compile("empty|fill_|full|ones_like|rand|normal_|uniform_|detach")
"""What makes the script's own data, and the gradient that a backward pass begins with."""


def test_operators_of_an_unedited_script_go_to_layers_and_optimizers(forks, tmp_path):
    words = ("--record", "r.json", "--", str(GAN), "--batch-size", "16")
    done = forks.run(tmp_path, *PERFCTL, *OPTIONS.split(), *words)
    assert done.returncode == 0, done.stderr
    found = list(parse(tmp_path / "t.json").operations)
    rest = {one.name for one in found if one.layer is None and one.direction != "optimizer"}
    assert [name for name in rest if not MAKES.search(name)] == []
    assert {one.layer for one in found} > {"netG.main.0", "netD.main.2", "BCELoss", None}
