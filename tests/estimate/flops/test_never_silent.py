"""What used to be a 0 that meant "unknown": compiled and scripted modules, complex numbers, odd
tensors, transforms."""

from math import lgamma

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.scan import scan
from torch.nn.attention import flex_attention
from torch.nn.parameter import is_lazy

from perfctl.orchestrator.estimate.session import estimate
from perfctl.orchestrator.outputs import convert_to_json
from perfctl.orchestrator.report.estimate import EstimateOutput, build_estimated_step_view

pytestmark = pytest.mark.filterwarnings(
    "ignore:CUDA initialization",
    "ignore:.torch.jit",
    "ignore::UserWarning",
    "ignore:.*torch.ao.quantization:DeprecationWarning",
)
LINEAR = 2 * 32 * 64
"""FLOPs of one row through Linear(32, 64)."""


def printed(estimated):
    """What the command says below its tables."""
    output = EstimateOutput("m", "train", {1: estimated}, None, ())
    return "\n".join(build_estimated_step_view(output, includes_operations_table=False).notes)


class Calls(nn.Module):
    """Its forward is ``function(weight, *inputs)``."""

    def __init__(self, function, *size, dtype=torch.float32):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(*size, dtype=dtype))

    def forward(self, *inputs):
        return self.function(self.weight, *inputs)


def found(model, *inputs, **options):
    one = estimate(model, inputs, **options)
    assert one.problem is None
    assert not one.forward.is_lower_bound
    return one


def linear():
    return nn.Linear(32, 64)


def in_place():
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
def test_a_compiled_or_scripted_linear_counts_as_the_plain_one(make, device):
    one = found(make(), torch.ones(1, 32), device=device)
    assert (one.forward.flops, one.backward.flops) == (LINEAR, LINEAR)


def test_integer_products_are_kept_apart():
    model = Calls(
        lambda w, x: torch._int_mm(x, torch.ones(32, 64, dtype=torch.int8, device=x.device)), 1
    )
    one = found(model, torch.ones(17, 32, dtype=torch.int8))
    assert (one.forward.flops, one.integer_macs) == (0, 17 * 32 * 64)
    assert "Integer GEMMs: 34,816 multiply-adds" in printed(one)
    assert (
        convert_to_json(EstimateOutput("m", "train", {1: one}, None, ()))["batches"][1][
            "integer_macs"
        ]
        == 17 * 32 * 64
    )


@pytest.mark.parametrize("device", ["meta", None])
def test_flex_attention_is_attention_on_every_device(device):
    model = Calls(lambda w, x: flex_attention.flex_attention(x * w, x, x), 1)
    one = found(model, torch.ones(2, 4, 10, 8), device=device)
    assert one.forward.macs == 2 * (2 * 4) * 10 * 10 * 8
    assert one.backward.macs == 2 * one.forward.macs


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_product_meets_the_stored_values_only(layout):
    model = Calls(lambda w, x: x @ w, 6, 3)
    one = found(model, torch.eye(6).to_sparse(layout=layout))
    assert (one.forward.macs, one.backward.macs) == (6 * 3, 6 * 3)
    assert one.data_dependent


def test_an_input_that_needs_a_gradient_may_lie_on_any_device():
    for device in ("cpu", "meta"):
        given = torch.ones(1, 32, requires_grad=True, device=device)
        one = found(linear(), given)
        assert (one.forward.flops, one.backward.flops) == (LINEAR, 2 * LINEAR)
        assert given.grad is None


class Hidden(torch.autograd.Function):
    @staticmethod
    def forward(context, data, weight):
        context.save_for_backward(data, weight)
        return data.new_zeros(data.shape[0], weight.shape[1])

    @staticmethod
    def backward(context, grad):
        return None, context.saved_tensors[0].t() @ grad


def test_a_forward_of_0_beside_a_backward_that_multiplies_is_a_lower_bound_and_named_everywhere():
    one = estimate(Calls(lambda w, x: Hidden.apply(x, w), 32, 64), (1, 32))
    assert (one.forward.macs, one.forward.is_lower_bound, one.backward.flops) == (0, True, LINEAR)
    assert one.forward.missing == (("forward of the model", 1),)
    text = printed(one)
    assert "Forward unknown, backward " in text and "≥ 0" not in text
    assert (
        "Not included: perfctl did not see the forward pass, but backward has 2,048 multiply-adds"
        in text
    )
    total = convert_to_json(EstimateOutput("m", "train", {1: one}, None, ()))["batches"][1][
        "forward"
    ]
    assert (total["is_lower_bound"], total["missing"]) == (True, [["forward of the model", 1]])


def test_a_module_whose_operators_cannot_be_seen_is_a_lower_bound():
    class Unseen(nn.Linear):
        def forward(self, data):
            with torch.utils._python_dispatch._disable_current_modes():
                return super().forward(data)

    one = estimate(nn.Sequential(Unseen(32, 64), nn.Linear(64, 2)), (1, 32))
    assert (one.forward.flops, one.forward.missing) == (2 * 64 * 2, (("module.Unseen", 1),))


def test_totals_of_a_trace_that_stopped_are_lower_bounds():
    def stops(weight, data):
        raise ValueError("no")

    one = estimate(nn.Sequential(linear(), Calls(stops, 1)), (1, 32))
    assert (str(one.forward), one.problem) == (
        "at least 2,048 MAC = 4,096 FLOP",
        "1: ValueError: no",
    )
    assert one.forward.missing == (("everything after 1, where the trace stopped", 1),)


def arrays(data):
    return np.asarray(data.detach())


def tensor_of(values):
    return torch.from_numpy(np.asarray(values, np.float32))


@pytest.mark.parametrize(
    ("function", "missing"),
    [
        pytest.param(
            lambda y: tensor_of(y.detach().cpu().numpy() @ np.ones((64, 8))),
            ("Tensor.numpy", "torch.from_numpy"),
            id="a product in NumPy",
        ),
        pytest.param(lambda y: (np.sin(arrays(y)), y)[1], ("Tensor.numpy",), id="np.asarray alone"),
        pytest.param(
            lambda y: torch.tensor([[2 * v for v in row] for row in y.tolist()]),
            ("Tensor.tolist",),
            id="a loop over tolist",
        ),
        pytest.param(lambda y: y * tensor_of(np.hanning(64)), ("torch.from_numpy",), id="a window"),
        pytest.param(
            lambda y: torch.tensor([lgamma(v.item()) for v in y[0] + 1]),
            ("torch.tensor",),
            id="a loop over item",
        ),
        pytest.param(lambda y: (y.mean().item(), y)[1], (), id="one number for a log"),
        pytest.param(lambda y: (repr(y), str(y.mean().tolist()), y)[2], (), id="printed"),
        pytest.param(lambda y: y * torch.tensor([0.5, 2.0] * 32), (), id="a constant"),
        pytest.param(
            lambda y: y.split(torch.tensor([32, 32]).tolist(), 1)[0], (), id="integer sizes"
        ),
    ],
)
def test_work_outside_of_torch_is_a_lower_bound_and_names_the_call(function, missing):
    model = Calls(lambda w, x: function(F.linear(x, w)), 64, 32)
    one = estimate(model, (4, 32), device=None)
    assert (one.problem, one.forward.flops) == (None, 4 * LINEAR)
    assert one.forward.missing == tuple((name, 1) for name in missing)
    assert all(f"perfctl did not read {name}" in printed(one) for name in missing)
    assert torch.Tensor.numpy is torch._C.TensorBase.numpy


def test_numpy_outside_of_a_module_is_no_work_of_the_model():
    def loss(output):
        output.detach().numpy()
        return output.sum()

    assert not estimate(linear(), (1, 32), device=None, loss=loss).forward.is_lower_bound


@pytest.mark.parametrize("device", ["meta", None])
@pytest.mark.parametrize(
    ("function", "rule", "shapes", "macs"),
    [
        (
            lambda q, k: torch.linalg.vecdot(q[:, :, None], k[:, None]),
            "bqd,bkd->bqk",
            ((2, 5, 7), (2, 3, 7)),
            2 * 5 * 3 * 7,
        ),
        (
            lambda q, k: torch.linalg.vecdot(y=k[:, :, None], x=q, dim=1),
            "bdq,bd->bq",
            ((2, 7, 5), (2, 7)),
            2 * 5 * 7,
        ),
        (
            lambda q, k: torch.linalg.vecdot(q, k),
            "bd,bd->b",
            ((4, 7), (4, 7)),
            4 * 7,
        ),
        (lambda q, k: torch.inner(q, k), "bqd,kd->bqk", ((2, 5, 7), (3, 7)), 2 * 5 * 3 * 7),
    ],
)
def test_products_of_vectors_count_as_the_einsum_of_the_same(function, rule, shapes, macs, device):
    def work(product):
        model = Calls(lambda w, q, k: product(q * w, k * w), 1)
        one = found(model, *(torch.ones(shape) for shape in shapes), device=device)
        return one.forward.macs, one.backward.macs

    assert work(function) == (macs, 2 * macs)
    assert work(lambda q, k: torch.einsum(rule, q, k)) == (macs, 2 * macs)


@pytest.mark.parametrize(
    ("function", "products", "name"),
    [
        (
            lambda w, x: torch.cond(x.sum() > 0, lambda v: v @ w @ w, lambda v: v @ w, (x,)),
            2,
            "cond",
        ),
        (
            lambda w, x: scan(lambda c, v: (c @ w + v, c.clone()), x, torch.stack([x] * 5))[0],
            5,
            "scan",
        ),
    ],
)
def test_control_flow_operators_are_counted_and_their_gradients_are_named(function, products, name):
    model, data = Calls(function, 16, 16), torch.ones(4, 16)
    infer = estimate(model, data, device=None, mode="infer")
    train = estimate(model, data, device=None)
    assert infer.forward.macs == train.forward.macs == products * 4 * 16 * 16
    assert (infer.problem, infer.forward.is_lower_bound) == (None, False)
    assert train.backward.missing == ((f"higher_order.{name}", 1),)


def quantized(*layers):
    return torch.ao.quantization.quantize_dynamic(
        nn.Sequential(*layers), {nn.Linear, nn.LSTM}, dtype=torch.qint8
    )


@pytest.mark.parametrize(
    ("layers", "parameters"),
    [
        ((nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)), {"0": 65 * 128, "2": 129 * 10}),
        ((nn.Linear(64, 8, bias=False),), {"0": 64 * 8}),
        ((nn.LSTM(64, 16, 2),), {"0": 4 * 16 * (64 + 16 + 2) + 4 * 16 * (16 + 16 + 2)}),
    ],
)
def test_packed_parameters_of_quantized_layers_count(layers, parameters):
    one = estimate(quantized(*layers), (4, 5, 64), mode="infer", memory=True)
    counts = {module.path: module.parameters for module in one.modules if module.parameters}
    assert (one.parameters, counts) == (sum(parameters.values()), parameters)
    assert one.memory is not None
    assert one.memory.parameters == sum(module.parameter_bytes for module in one.modules)
    assert f"Parameters {one.parameters:,} (" in printed(one)


@pytest.mark.parametrize("device", ["meta", None])
@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        (
            lambda: (nn.LazyConv2d(8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)),
            8 * (3 * 9 + 1) + 10 * (8 * 14 * 14 + 1),
        ),
        (lambda: (nn.LazyBatchNorm2d(), nn.LazyConvTranspose2d(4, 2)), 2 * 3 + 3 * 4 * 4 + 4),
    ],
)
def test_lazy_layers_take_their_shapes_from_the_input(make, parameters, device):
    model = nn.Sequential(*make())
    one = found(model, torch.ones(4, 3, 16, 16), device=device, optimizer="adam", memory=True)
    assert (one.parameters, one.uninitialized) == (parameters, ())
    assert one.memory is not None
    assert one.memory.parameters == 4 * parameters
    assert any(map(is_lazy, model.parameters()))


def test_parameters_of_a_lazy_layer_that_did_not_run_are_named():
    model = nn.Sequential(nn.LazyLinear(8), nn.Linear(7, 3), nn.LazyLinear(10))
    one = estimate(model, (4, 32))
    assert (one.parameters, one.uninitialized) == (8 * 33 + 3 * 8, ("2.weight", "2.bias"))
    assert one.problem is not None
    assert one.problem.startswith("1: RuntimeError")
    assert "Parameters at least 288 (" in printed(one)
    assert "2.weight, 2.bias" in printed(one)
    json = convert_to_json(EstimateOutput("m", "train", {1: one}, None, ()))["batches"][1]
    assert json["uninitialized"] == ["2.weight", "2.bias"]
