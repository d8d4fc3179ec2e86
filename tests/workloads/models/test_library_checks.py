"""What transformers asks about values while a model runs, answered where tensors have none.
Stand-ins for the library."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import estimate_at
from perfctl.workloads.models.libraries import one_sequence


class Model:
    def warn_if_padding_and_no_attention_mask(self, tokens: Any, mask: Any) -> None:
        raise AssertionError("it looked at the tokens")


def test_checks_of_values_are_answered_during_a_forward_and_asked_again_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base: Any = ModuleType("transformers.modeling_utils")
    base.PreTrainedModel = Model
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", base)
    asks, data = torch.isfinite, torch.ones(2, 3, device="meta")
    with one_sequence():
        assert torch.isfinite(data).all()
        assert torch.isfinite(data).shape == (2, 3)
        assert not torch.isfinite(torch.tensor(float("inf")))
        Model().warn_if_padding_and_no_attention_mask(data, None)
    assert torch.isfinite is asks
    with pytest.raises(AssertionError):
        Model().warn_if_padding_and_no_attention_mask(data, None)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_real_encoder_that_looks_for_padding_runs_without_data() -> None:
    pytest.importorskip("transformers")
    name = (
        "hf:deberta-v2:num_hidden_layers=2,hidden_size=32,num_attention_heads=2,"
        "intermediate_size=64"
    )
    found = estimate_at(Request(name, seq=16), 3)
    weights = 2 * (4 * 32 * 32 + 2 * 32 * 64)
    scores = 2 * 16 * 16 * (32 + 32)
    assert (found.problem, found.forward.macs) == (None, 3 * (16 * weights + scores))
