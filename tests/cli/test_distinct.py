"""``ncu --launches distinct`` on an H100: what it left out has the counts of a full run, or the
ledger says that they are not known. The plan is rebuilt from the full run, as the recording
lacks it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.orchestrator.counts.kernels.replays import build_first_pass
from perfctl.records.report import Kernel, Range

RECORDINGS = Path(__file__).resolve().parent.parent / "data" / "h100"
ATTENTION = ("model.layers.1.self_attn", "backward")
Row = tuple[str, str]


def plain_step(own_ranges):
    """The plan that torch.profiler's trace of the same step gives. The sums of two gradients are of
    the layer whose node ran before them; ``own_ranges``: as if its range had enclosed them."""
    folder = RECORDINGS / "ncu-blocks" / "b8"
    numbers: dict[Row, int] = {}
    kernels: list[Kernel] = []
    for kernel in parsers.parse(folder / "report.csv").kernels:
        layer, direction, number = kernel.layer, kernel.direction, None
        if layer is not None and direction is not None:
            number = numbers.setdefault((layer, direction), len(numbers))
        elif "CUDAFunctor_add" in kernel.name and kernels[-1].direction == "grad_input":
            layer, direction = kernels[-1].layer, "grad_input"
            number = numbers[str(layer), direction] if own_ranges else None
        kernels.append(kernel._replace(layer=layer, direction=direction, range_number=number))
    ranges = [
        Range(number, "", None, 0, 1, 1, 0, None, layer=layer, direction=direction)
        for (layer, direction), number in numbers.items()
    ]
    ops = parsers.parse(folder / "workload.json").ops
    return json.dumps(build_first_pass(kernels, ops, ranges).as_json())


def ledger(perfctl, folder):
    store = f"{folder.parent.name}-{folder.name}.db"
    assert perfctl(f"replay {folder} --store {store} --out {store}-runs").code == 0
    rows = perfctl(f"ledger --store {store} --each --json").json["rows"]
    return {(row["layer"], row["direction"]): row for row in rows}


@pytest.fixture
def distinct(tmp_path):
    return shutil.copytree(RECORDINGS / "ncu-distinct", tmp_path / "with-plan" / "ncu-distinct")


def test_what_ncu_left_out_has_the_counts_of_the_run_that_counted_everything(perfctl, distinct):
    (distinct / "b8" / "launches.json").write_text(plain_step(own_ranges=False))
    whole, made = ledger(perfctl, RECORDINGS / "ncu-blocks"), ledger(perfctl, distinct)
    counts = [{key: row["executed_flops"] for key, row in rows.items()} for rows in (whole, made)]
    assert counts[0] == counts[1]
    assert counts[0][ATTENTION] == 4_976_220_160
    states = {row["executed_state"] for row in made.values() if row["executed_flops"] is not None}
    assert states == {"measured", "approximate"}


def test_what_is_not_taken_over_makes_a_lower_bound_that_says_why(perfctl, distinct):
    (distinct / "b8" / "launches.json").write_text(plain_step(own_ranges=True))
    whole, made = ledger(perfctl, RECORDINGS / "ncu-blocks"), ledger(perfctl, distinct)
    row = made[ATTENTION]
    assert row["executed_flops"] == 4_297_594_880 < whole[ATTENTION]["executed_flops"]
    assert row["executed_is_lower_bound"] is True
    why = "its 9 launches under ncu are not the 11 of the plain step"
    assert (
        row["executed_reason"].startswith("10 of 21 launches; ") and why in row["executed_reason"]
    )
    (verdict,) = (one for one in row["causes"] if one["rule"] == "counter not collected")
    assert "excluded launches (--nvtx-exclude of --launches distinct)" in verdict["sentence"]
