"""Operators whose work, or whose result, depends on values, and tensors that lie on another device
than the rest."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from perfctl.orchestrator.estimate.session import estimate

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Calls(nn.Module):
    """Its forward is ``function(weight, *inputs)``."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, *inputs):
        return self.function(self.weight, *inputs)


def products_run(given):
    """Matrix products that torch runs inside matrix_exp, by its profiler."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        torch.matrix_exp(given)
    return sum(event.input_shapes[0][0] for event in seen.events() if event.name == "aten::bmm")


@pytest.mark.parametrize(
    "norms", [[1e-9], [1e-3], [0.2], [2.0], [7.0], [100.0], [1e-5, 0.2, 5.0, 50.0]]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_matrix_exp_counts_the_products_that_torch_runs(norms, dtype):
    given = torch.stack([torch.full((6, 6), norm / 6, dtype=dtype) for norm in norms])
    one = estimate(Calls(lambda w, x: torch.matrix_exp(x)), given, device=None)
    assert one.forward.macs == products_run(given) * 6**3
    assert one.data_dependent == ("aten.linalg_matrix_exp",)


def test_matrix_exp_without_values_is_at_least_and_says_why():
    one = estimate(Calls(lambda w, x: torch.matrix_exp(x * w)), (6, 6))
    assert one.forward.missing == (("linalg_matrix_exp", 1),)
    (row,) = [call for call in one.calls if call.macs is None and call.direction == "forward"]
    assert "the number of its products depends on the values" in row.formula


def test_a_tensor_that_the_model_makes_on_the_cpu_may_meet_those_on_meta():
    def masked(weight, data):
        return (data * torch.arange(4.0)) @ data.mT * weight

    one = estimate(Calls(masked), torch.ones(3, 4))
    assert (one.problem, one.forward.macs) == (None, 3 * 4 * 3)


def test_a_jagged_tensor_that_stops_on_meta_runs_with_its_values():
    rows = torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(5, 8)], layout=torch.jagged)

    def attended(weight, data):
        heads = (data * weight).unflatten(-1, [2, 4]).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads)

    one = estimate(Calls(attended), rows)
    squares = 2 * (3**2 + 5**2)
    assert (one.problem, one.forward.macs, one.backward.macs) == (
        None,
        squares * (4 + 4),
        2 * squares * (4 + 4),
    )


def test_an_error_inside_attention_is_the_models():
    def wrong(weight, data):
        return F.scaled_dot_product_attention(data * weight, data, data.long())

    problem = estimate(Calls(wrong), torch.ones(1, 2, 3, 4), device=None).problem
    assert problem is not None and problem.startswith("the model: RuntimeError: ")


def test_a_question_about_values_still_stops_on_meta():
    one = estimate(Calls(lambda w, x: x * w if torch.equal(x, x + w) else x), torch.ones(3))
    assert one.problem is not None and one.forward.is_lower_bound
