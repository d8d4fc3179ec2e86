"""Autocast by CUDA's lists on any device, against torch's own."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from perfctl.workloads.tracing import autocast
from perfctl.workloads.tracing.autocast import TracedAutocast
from perfctl.workloads.tracing.recorder import trace_step

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")

BF16, FP16 = torch.bfloat16, torch.float16
FREE = [
    "view",
    "t",
    "expand",
    "clone",
    "transpose",
    "unsqueeze",
    "squeeze",
    "detach",
    "slice",
    "select",
    "permute",
    "alias",
    "empty",
]


class Types(TorchDispatchMode):
    """(operator, types of all its tensors) of everything that computes."""

    def __init__(self):
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[str, ...]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        if (
            name.startswith("aten::")
            and name[6:] not in FREE
            and not name.startswith("aten::_unsafe_view")
        ):
            tensors = [
                value for value in tree_leaves((args, result)) if isinstance(value, torch.Tensor)
            ]
            self.seen.append((name, *(str(tensor.dtype) for tensor in tensors)))
        return result


@contextmanager
def cudas_own(dtype):
    """torch's autocast for CUDA, without a GPU: on fake tensors that say they are there."""
    torch.set_autocast_dtype("cuda", dtype)
    torch.set_autocast_enabled("cuda", True)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", False)


Case = Callable[[], tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]


def both(case, dtype):
    """What torch's own autocast runs for CUDA, and what ours runs on meta."""
    found = []
    for device in ("cuda", "meta"):
        with ExitStack() as stack:
            if device == "cuda":
                stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            with torch.device(device):
                function, inputs = case()
            if device == "meta":
                ours = stack.enter_context(TracedAutocast("meta", dtype))
            stack.enter_context(
                cudas_own(dtype) if device == "cuda" else ours.make_autocast_region()
            )
            with Types() as types:
                function(*inputs)
        found.append([row for row in types.seen if row[0] != "aten::device"])
    return found[0], found[1]


def network():
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Softmax(-1), nn.Linear(16, 16)
    )


def images():
    first = (
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.ConvTranspose2d(8, 4, 2),
        nn.Upsample(scale_factor=2),
    )
    return nn.Sequential(*first, nn.GroupNorm(2, 4), nn.GELU(), nn.AdaptiveAvgPool2d(1))


def twice():
    layer = nn.Linear(8, 8)
    return lambda x: layer(layer(x))


def functions(x, y):
    low = x @ y  # in the type of autocast
    fp32 = (
        torch.exp,
        torch.log,
        torch.rsqrt,
        torch.reciprocal,
        F.softplus,
        F.logsigmoid,
        F.normalize,
    )
    for function in (
        *fp32,
        torch.sum,
        torch.prod,
        torch.mean,
        torch.var,
        torch.norm,
        torch.linalg.norm,
    ):
        function(low)
    for loss in (
        F.mse_loss,
        F.l1_loss,
        F.smooth_l1_loss,
        F.huber_loss,
        F.binary_cross_entropy_with_logits,
    ):
        loss(low, y)
    (
        low.pow(2),
        low.cumsum(0),
        low.norm(dim=1),
        low.norm(2, 1, True),
        low.softmax(-1),
        low.log_softmax(-1),
        low + x,
    )
    (
        torch.logsumexp(low, 0),
        F.cosine_similarity(low, y),
        torch.cdist(low, y),
        torch.addcmul(low, x, y),
        torch.dot(x[0], low[0]),
    )
    (
        torch.cat([x, low]),
        torch.stack([x, low]),
        torch.einsum("ij,jk->ik", x, y),
        torch.tensordot(low, y, 1),
    )
    F.interpolate(low[None, None], scale_factor=2, mode="bilinear")


def cross_entropy(x):
    return F.cross_entropy(x @ x.t(), torch.zeros(8, dtype=torch.int64, device=x.device))


CASES: dict[str, Case] = {
    "linear, norm, softmax": lambda: (network(), (torch.empty(4, 8),)),
    "convolutions": lambda: (images(), (torch.empty(2, 3, 16, 16),)),
    "transformer layer": lambda: (
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0),
        (torch.empty(5, 2, 16),),
    ),
    "attention": lambda: (F.scaled_dot_product_attention, (torch.empty(2, 2, 8, 16),) * 3),
    "a layer used twice": lambda: (twice(), (torch.empty(4, 8),)),
    "cross entropy": lambda: (cross_entropy, (torch.empty(8, 8),)),
    "functions": lambda: (functions, (torch.empty(8, 8), torch.empty(8, 8))),
}


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("name", CASES)
def test_every_operator_has_the_types_that_torchs_autocast_gives_it_on_cuda(name, dtype):
    cudas, ours = both(CASES[name], dtype)
    assert ours == cudas
    assert any(str(dtype) in row for row in ours)


def test_the_lists_are_those_of_torchs_header():
    header = Path(torch.__file__).with_name("include") / "ATen" / "autocast_mode.h"
    lists = dict(
        re.findall(
            r"#define AT_FORALL_(\w+)\(_\)(.*?)\n\n",
            header.read_text(encoding="utf-8") + "\n\n",
            re.S,
        )
    )
    names = {
        key: {name.replace(", ", ".") for name in re.findall(r"_\(([\w, ]+)\)", text)}
        for key, text in lists.items()
    }
    said = (autocast.LOWER, autocast.FLOAT32, autocast.FLOAT32_RESULT, autocast.WIDEST)
    for key, ours in zip(
        ("LOWER_PRECISION_FP", "FP32", "FP32_SET_OPT_DTYPE", "PROMOTE"), said, strict=True
    ):
        assert names[key] and names[key] <= set(ours.split()), key


def test_no_operator_that_torch_casts_on_cuda_is_left_out():
    lists = "LOWER FLOAT32 FLOAT32_RESULT WIDEST REFUSED"
    names = " ".join(getattr(autocast, name) for name in lists.split())
    ours = {f"aten::{name}" for name in names.split()}
    # nms gives no floats
    ours |= {f"torchvision::{name}" for name in ("nms", *autocast.IN_FLOAT32_AND_BACK.split())}
    key = torch._C.DispatchKey.AutocastCUDA
    cast = {
        name
        for name in torch._C._dispatch_get_all_op_names()
        if autocast._has_cuda_autocast_kernel(name)
    }
    assert key and cast - ours <= {"aten::_cudnn_rnn"}  # here lstm, gru and rnn as a whole


def test_results_and_gradients_equal_torchs_autocast_where_cpu_and_cuda_agree():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 6 * 6, 8),
        nn.ReLU(),
        nn.Linear(8, 3),
    )
    x, found = torch.randn(5, 1, 8, 8), []
    ours = TracedAutocast("cpu", BF16)
    for region in (torch.autocast("cpu", BF16), None):
        model.zero_grad()
        with entered_if(ours, region is None):
            with region or ours.make_autocast_region():
                output = model(x)
                loss = F.mse_loss(output, torch.ones(5, 3))
            loss.backward()
        found.append([output, loss, *(parameter.grad for parameter in model.parameters())])
    assert all(
        torch.equal(theirs, mine) and theirs.dtype == mine.dtype
        for theirs, mine in zip(*found, strict=True)
    )


@contextmanager
def entered_if(entered, wanted):
    with ExitStack() as stack:
        if wanted:
            stack.enter_context(entered)
        yield


def test_nothing_is_left_behind():
    before = torch.autocast.__init__
    trace_step(nn.Linear(8, 8).to("meta"), (torch.empty(4, 8, device="meta"),), precision="bf16")
    assert torch.autocast.__init__ is before and not torch.is_autocast_enabled("cuda")
    assert nn.Linear(8, 8).to("meta")(torch.empty(4, 8, device="meta")).dtype == torch.float32
    key = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::mm", key)


def test_fp8_products_of_whole_numbers_equal_those_of_float32():
    torch.manual_seed(0)
    layer = nn.Linear(16, 32)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randint(-1, 2, parameter.shape))
    x = torch.randint(-1, 2, (16, 16)).float().requires_grad_()
    ours = TracedAutocast("cpu", BF16, fp8=True)
    ours.in_linear = lambda: True
    found = []
    for fp8 in (False, True):
        layer.zero_grad()
        x.grad = None
        with entered_if(ours, fp8), ExitStack() as stack:
            if fp8:
                stack.enter_context(ours.make_autocast_region())
            output = layer(x).float()
            output.backward(torch.ones_like(output))
        found.append([output, x.grad, layer.weight.grad, layer.bias.grad])
    assert all(torch.equal(plain, low) for plain, low in zip(*found, strict=True))
