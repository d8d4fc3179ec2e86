"""What used to be a 0 that meant "unknown": compiled and scripted modules, complex numbers, odd
tensors, transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import flex_attention

from perfctl.orchestrator.estimate.session import estimate
from perfctl.orchestrator.estimate.step import Estimate
from perfctl.orchestrator.outputs import to_json
from perfctl.orchestrator.report.estimate import EstimateOutput, estimate_view

pytestmark = pytest.mark.filterwarnings(
    "ignore:CUDA initialization", "ignore:.torch.jit", "ignore::UserWarning"
)
LINEAR = 2 * 32 * 64
"""FLOPs of one row through Linear(32, 64)."""


def printed(estimated: Estimate) -> str:
    """What the command says below its tables."""
    output = EstimateOutput("m", "train", {1: estimated}, None, ())
    return "\n".join(estimate_view(output, has_every_row=False).notes)


class Calls(nn.Module):
    """Its forward is ``function(weight, *inputs)``."""

    def __init__(
        self, function: Callable[..., Any], *size: int, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(*size, dtype=dtype))

    def forward(self, *inputs: Any) -> Any:
        return self.function(self.weight, *inputs)


def found(model: nn.Module, *inputs: Any, **options: Any) -> Estimate:
    one = estimate(model, inputs, **options)
    assert one.problem is None
    assert not one.forward.is_lower_bound
    return one


def linear() -> nn.Linear:
    return nn.Linear(32, 64)


def in_place() -> nn.Module:
    model = nn.Sequential(linear())
    model.compile(backend="aot_eager")
    return model


@pytest.mark.parametrize("device", ["meta", None])
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.jit.script(linear()),
        lambda: torch.jit.trace(linear(), torch.ones(1, 32)),
        lambda: torch.compile(linear(), backend="aot_eager"),
        lambda: torch.compile(linear(), backend="inductor"),
        in_place,
        lambda: nn.Sequential(torch.jit.script(linear())),
    ],
)
def test_a_compiled_or_scripted_linear_counts_as_the_plain_one(
    make: Callable[[], nn.Module], device: str | None
) -> None:
    one = found(make(), torch.ones(1, 32), device=device)
    assert (one.forward.flops, one.backward.flops) == (LINEAR, LINEAR)


def test_a_complex_product_is_four_real_ones_and_a_complex_output_has_a_backward() -> None:
    one = found(
        Calls(lambda w, x: x @ w, 32, 64, dtype=torch.complex64),
        torch.ones(4, 32, dtype=torch.complex64),
    )
    assert (one.forward.macs, one.backward.macs) == (4 * 4 * 32 * 64, 4 * 4 * 32 * 64)
    view = found(
        Calls(lambda w, x: torch.view_as_complex((x @ w).view(4, 32, 2)), 32, 64), torch.ones(4, 32)
    )
    assert (view.forward.macs, view.backward.macs) == (4 * 32 * 64, 4 * 32 * 64)


def test_a_distance_is_a_multiply_add_a_pair_and_coordinate_and_of_many_rows_a_product() -> None:
    few, many = (
        Calls(lambda w, x: torch.cdist(x, w), 5, 32),
        Calls(lambda w, x: torch.cdist(x, w), 40, 32),
    )
    assert found(few, torch.ones(4, 32)).forward.macs == 4 * 5 * 32
    assert found(many, torch.ones(30, 32)).forward.macs == 30 * 40 * (32 + 2)


def test_groups_of_a_product_add_up_to_all_rows() -> None:
    model = Calls(
        lambda w, x, ends: torch._grouped_mm(x, w, offs=ends), 4, 32, 64, dtype=torch.bfloat16
    )
    ends = torch.tensor([4, 8, 12, 16], dtype=torch.int32)
    one = found(model, torch.ones(16, 32, dtype=torch.bfloat16), ends)
    assert (one.forward.macs, one.backward.macs) == (16 * 32 * 64, 16 * 32 * 64)


def test_a_bilinear_layer_and_its_gradients() -> None:
    one = found(nn.Bilinear(5, 6, 7), torch.ones(3, 5), torch.ones(3, 6))
    assert (one.forward.macs, one.backward.macs) == (3 * 7 * 5 * 6 + 3 * 7 * 5, 3 * 7 * 5 * 6)


def test_an_stft_is_a_real_transform_of_every_frame() -> None:
    def spectrum(weight: Tensor, sound: Tensor) -> Tensor:
        window = torch.ones(64, device=sound.device)
        return torch.stft(
            sound * weight, 64, hop_length=16, window=window, return_complex=True
        ).abs()

    frames = 1 + 256 // 16
    assert (
        found(Calls(spectrum, 1), torch.ones(2, 256)).forward.flops == 2 * frames * 5 * 64 * 6 // 2
    )


def test_a_deformable_convolution_multiplies_as_a_plain_one() -> None:
    from torchvision.ops import deform_conv2d  # takes seconds to load

    def deformed(weight: Tensor, image: Tensor) -> Tensor:
        return deform_conv2d(image, torch.zeros(2, 18, 7, 7, device=image.device), weight)

    one = found(Calls(deformed, 12, 8, 3, 3), torch.ones(2, 8, 9, 9))
    assert (one.forward.macs, one.backward.macs) == (2 * 49 * 12 * 72, 2 * 2 * 49 * 12 * 72)


def test_integer_products_are_kept_apart() -> None:
    model = Calls(
        lambda w, x: torch._int_mm(x, torch.ones(32, 64, dtype=torch.int8, device=x.device)), 1
    )
    one = found(model, torch.ones(17, 32, dtype=torch.int8))
    assert (one.forward.flops, one.integer_macs) == (0, 17 * 32 * 64)
    assert "Integer GEMMs: 34,816 multiply-adds" in printed(one)
    assert (
        to_json(EstimateOutput("m", "train", {1: one}, None, ()))["batches"][1]["integer_macs"]
        == 17 * 32 * 64
    )


@pytest.mark.parametrize("device", ["meta", None])
def test_flex_attention_is_attention_on_every_device(device: str | None) -> None:
    model = Calls(lambda w, x: flex_attention.flex_attention(x * w, x, x), 1)
    one = found(model, torch.ones(2, 4, 10, 8), device=device)
    assert one.forward.macs == 2 * (2 * 4) * 10 * 10 * 8
    assert one.backward.macs == 2 * one.forward.macs


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_product_meets_the_stored_values_only(layout: torch.layout) -> None:
    model = Calls(lambda w, x: x @ w, 6, 3)
    one = found(model, torch.eye(6).to_sparse(layout=layout))
    assert (one.forward.macs, one.backward.macs) == (6 * 3, 6 * 3)
    assert one.data_dependent


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_counts_the_rows_that_it_holds(layout: torch.layout) -> None:
    rows = torch.nested.nested_tensor([torch.ones(3, 32), torch.ones(5, 32)], layout=layout)
    one = found(linear(), rows)
    assert (one.forward.flops, one.backward.flops) == (8 * LINEAR, 8 * LINEAR)


def test_a_product_with_a_tangent_of_zeros_is_no_work() -> None:
    model = Calls(
        lambda w, x: torch.func.jvp(lambda y: y @ w, (x,), (torch.ones_like(x),))[1], 32, 64
    )
    assert found(model, torch.ones(1, 32)).forward.flops == 2 * LINEAR


def test_ctc_counts_the_states_of_its_recursion() -> None:
    def loss(weight: Tensor, scores: Tensor) -> Tensor:
        labels = torch.ones(2, 5, dtype=torch.long, device=scores.device)
        return F.ctc_loss(scores * weight, labels, (10, 10), (5, 5))

    one = found(Calls(loss, 1), torch.zeros(10, 2, 7))
    rows = [call for call in one.calls if call.kind == "_ctc_loss" and call.direction == "forward"]
    assert [row.elementwise_flops for row in rows] == [13 * 2 * 10 * 11]


def test_an_input_that_needs_a_gradient_may_lie_on_any_device() -> None:
    for device in ("cpu", "meta"):
        given = torch.ones(1, 32, requires_grad=True, device=device)
        one = found(linear(), given)
        assert (one.forward.flops, one.backward.flops) == (LINEAR, 2 * LINEAR)
        assert given.grad is None


class Hidden(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, data: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(data, weight)
        return data.new_zeros(data.shape[0], weight.shape[1])

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Any:
        return None, context.saved_tensors[0].t() @ grad


def test_a_forward_of_0_beside_a_backward_that_multiplies_is_a_lower_bound_and_named_everywhere() -> (
    None
):
    one = estimate(Calls(lambda w, x: Hidden.apply(x, w), 32, 64), (1, 32))
    assert (one.forward.macs, one.forward.is_lower_bound, one.backward.flops) == (0, True, LINEAR)
    assert one.forward.missing == (("forward of the model", 1),)
    text = printed(one)
    assert "Forward at least 0 FLOP" in text
    assert (
        "Not included: perfctl did not see the forward pass, but backward has 2,048 multiply-adds"
        in text
    )
    total = to_json(EstimateOutput("m", "train", {1: one}, None, ()))["batches"][1]["forward"]
    assert (total["is_lower_bound"], total["missing"]) == (True, [["forward of the model", 1]])


def test_a_module_whose_operators_cannot_be_seen_is_a_lower_bound() -> None:
    class Unseen(nn.Linear):
        def forward(self, data: Tensor) -> Tensor:
            with torch.utils._python_dispatch._disable_current_modes():
                return super().forward(data)

    one = estimate(nn.Sequential(Unseen(32, 64), nn.Linear(64, 2)), (1, 32))
    assert (one.forward.flops, one.forward.missing) == (2 * 64 * 2, (("module.Unseen", 1),))


def test_totals_of_a_trace_that_stopped_are_lower_bounds() -> None:
    def stops(weight: Tensor, data: Tensor) -> Tensor:
        raise ValueError("no")

    one = estimate(nn.Sequential(linear(), Calls(stops, 1)), (1, 32))
    assert (str(one.forward), one.problem) == (
        "at least 2,048 MAC = 4,096 FLOP",
        "1: ValueError: no",
    )
    assert one.forward.missing == (("everything after 1, where the trace stopped", 1),)
