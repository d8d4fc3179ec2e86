"""Copies of whole tensors, which are no operation on paper."""

import pytest

from perfctl.orchestrator.commands.gate import gate
from perfctl.orchestrator.compare.gate import WORSE

pytest.importorskip("torch")
BATCH, WIDTH = 4, 8
NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear({width}, {width}), nn.Linear({width}, {width})

    def forward(self, value):
        return self.second(self.first(value){more})
"""


def test_a_clone_is_worse_by_the_bytes_of_its_tensor(tmp_path):
    file, baseline = tmp_path / "net.py", tmp_path / "gate.json"
    file.write_text(NET.format(width=WIDTH, more=""))
    model = {"models": ["net.py:Net"], "inputs": [str(WIDTH)], "batches": (BATCH,), "name": "net"}
    gate(baseline, update=True, **model)
    assert not any(outcome.select_rows_with_results(WORSE) for outcome in gate(baseline))
    file.write_text(NET.format(width=WIDTH, more=".clone()"))
    worse = {
        (row.key.layer, row.key.direction, row.quantity): (row.before, row.after)
        for outcome in gate(baseline)
        for row in outcome.select_rows_with_results(WORSE)
    }
    assert worse["", "forward", "copied_bytes"] == (0, BATCH * WIDTH * 4)
