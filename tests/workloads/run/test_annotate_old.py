"""Layer ranges as torch 1.8 to 2.0 get them: no node has a number, and hooks cannot see a forward
that raised."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from torch import nn

from perfctl.workloads.run import annotate
from perfctl.workloads.tracing import composites, versions
from tests.workloads.autograd_truth import Seen
from tests.workloads.run.test_annotate_autograd import MODELS, PLANS, check, rooted

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization", "ignore:None of the inputs")


@pytest.fixture(autouse=True, scope="module")
def old():
    """What the versions lack is not used in this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(annotate, "HAS_NUMBERS", False)
        patch.setattr(composites, "HAS_ALWAYS", False)
        yield


@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("checkpointed")])
def test_each_node_runs_in_the_range_of_the_layer_that_made_it(name):
    torch.manual_seed(0)
    make, value = MODELS[name]
    assert check(make(), value()) == [("SumBackward0", None, None)]


@settings(max_examples=25)
@given(plan=PLANS)
def test_any_tree_of_modules_is_marked_as_autograd_has_it(plan):
    check(rooted(plan), torch.rand(2, 3))


def test_a_forward_that_raised_leaves_no_range_open_and_the_calls_as_they_were():
    class Broken(nn.Module):
        def forward(self, x):
            raise ValueError("broken")

    call, seen = nn.Module.__call__, Seen()
    model = nn.Sequential(nn.Linear(3, 3), Broken())
    with annotate.LayerRangeAnnotator(seen, model):
        assert nn.Module.__call__ is not call
        with pytest.raises(ValueError, match="broken"):
            model(torch.rand(2, 3))
        assert seen.open == []
    assert nn.Module.__call__ is call


def test_a_node_without_prehooks_gets_one_from_a_tensors_hooks():
    class Old:
        """A node of torch 1.8."""

        def __init__(self, node):
            self._register_hook_dict = node._register_hook_dict

    seen: list[str] = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    versions.register_prehook(Old(y.grad_fn), lambda gradient: seen.append("before"))
    y.grad_fn.register_hook(lambda *_: seen.append("after"))
    y.sum().backward()
    assert seen == ["before", "after"]
