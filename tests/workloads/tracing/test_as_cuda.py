"""What a GPU would run, told from meta tensors: kernels of attention, dropout, recurrent layers,
optimizers, and what they keep."""

import pytest
import torch
from torch import nn

from perfctl.orchestrator.estimate.memory import find_memory_peak
from perfctl.orchestrator.estimate.session import estimate, estimate_from_trace
from perfctl.records.paper import GpuChoices
from perfctl.workloads.tracing.as_cuda import (
    AttentionCall,
    choose_attention_kernel_and_reason,
    estimate_attention_backward_scratch_bytes,
)
from perfctl.workloads.tracing.recorder import trace_step

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")
A100, RTX3090, H100, V100 = (8, 0), (8, 6), (9, 0), (7, 0)
FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16


def tensor(*shape, dtype=FP32, grad=False):
    return torch.zeros(shape, dtype=dtype, device="meta", requires_grad=grad)


@pytest.mark.parametrize(
    ("gpu", "dtype", "size", "given", "kernel"),
    [
        (A100, FP32, 64, {}, "efficient"),
        (A100, FP16, 64, {}, "flash"),
        (A100, BF16, 64, {"causal": True}, "flash"),
        (H100, BF16, 64, {}, "cudnn"),
        (H100, FP32, 64, {}, "efficient"),
        (H100, BF16, 64, {"dropout": 0.1}, "flash"),
        (H100, BF16, 64, {"dropout": 0.125}, "cudnn"),
        (H100, BF16, 100, {}, "flash"),
        (V100, FP16, 64, {}, "efficient"),
        (V100, BF16, 64, {}, "math"),
        (V100, FP32, 33, {}, "efficient"),
        (A100, FP32, 33, {}, "math"),
        (A100, BF16, 64, {"mask": True}, "efficient"),
        (H100, BF16, 64, {"mask": True}, "cudnn"),
        (A100, BF16, 512, {}, "efficient"),
        (A100, BF16, 200, {}, "flash"),
        (RTX3090, BF16, 200, {}, "efficient"),
        (RTX3090, BF16, 256, {}, "flash"),
        (RTX3090, BF16, 256, {"dropout": 0.1}, "efficient"),
        (A100, torch.float64, 64, {}, "math"),
        (A100, BF16, 64, {"heads": 2}, "math"),
        (A100, BF16, 64, {"heads": 2, "grouped": True}, "flash"),
        (A100, BF16, 64, {"causal": True, "keys": 9}, "efficient"),
    ],
)
def test_the_kernel_of_attention_is_the_first_that_takes_the_tensors(
    gpu, dtype, size, given, kernel
):
    query = tensor(2, 4, 16, size, dtype=dtype, grad=True)
    key = tensor(2, given.get("heads", 4), given.get("keys", 16), size, dtype=dtype)
    mask = tensor(16, 16, dtype=dtype) if given.get("mask") else None
    rest = given.get("dropout", 0.0), given.get("causal", False), given.get("grouped", False)
    found, why = choose_attention_kernel_and_reason(
        GpuChoices(gpu), AttentionCall(query, key, key, mask, *rest)
    )
    assert found == kernel
    assert bool(why) == (kernel != ("cudnn" if gpu == H100 else "flash"))


@pytest.mark.parametrize(
    ("asked", "kernel"),
    [("flash", "math"), ("efficient", "efficient"), ("math", "math")],
)
def test_a_kernel_that_was_asked_for_gives_way_to_math_where_it_cannot_run(asked, kernel):
    query = tensor(1, 1, 8, 8)
    call = AttentionCall(query, query, query, None, 0.0, False, False)
    found, why = choose_attention_kernel_and_reason(GpuChoices(attention=asked), call)
    assert found == kernel
    assert why == ("as requested" if found == asked else "flash takes no fp32 here")


class Attention(nn.Module):
    """Queries, keys and values are parameters, so that nothing else is kept."""

    def __init__(self, dtype, *shape):
        super().__init__()
        self.parts = nn.ParameterList(tensor(*shape, dtype=dtype) for _ in range(3))

    def forward(self, scale):
        return nn.functional.scaled_dot_product_attention(*self.parts, is_causal=True)


def traced(model, given, gpu=None, **settings):
    found = trace_step(model, (given,), memory=True, gpu=gpu or GpuChoices(), **settings)
    assert found.problem is None and found.memory is not None
    return found.memory


def kept(found):
    return sum(one.bytes for one in found.allocations if one.category == "activation")


@pytest.mark.parametrize(("dtype", "width"), [(FP32, 4), (BF16, 2)])
def test_fused_attention_keeps_its_output_and_a_number_a_row_and_math_the_scores(dtype, width):
    shape = batch, heads, length, size = 2, 3, 96, 64
    output, rows, scores = (
        batch * heads * length * size,
        batch * heads * length,
        batch * heads * length * length,
    )
    found = traced(Attention(dtype, *shape), tensor(1))
    random = 8 + 8 if dtype == FP32 else 16 + 8  # seed and offset
    assert kept(found) == width * output + 4 * rows + random
    by_math = traced(Attention(dtype, *shape), tensor(1), GpuChoices(attention="math"))
    assert kept(by_math) >= width * output + width * scores
    assert found.assumed[0].startswith(
        "attention: efficient" if dtype == FP32 else "attention: flash"
    )


def test_backward_of_fused_attention_takes_scratch_for_the_sums_of_gradients():
    batch, heads, length, size = 2, 3, 100, 40
    half, single = (tensor(batch, heads, length, size, dtype=dtype) for dtype in (BF16, FP32))
    flash = "aten._scaled_dot_product_flash_attention_backward"
    assert estimate_attention_backward_scratch_bytes(
        flash, (half,) * 4
    ) == 4 * batch * heads * 128 * (64 + 1)
    few = tensor(batch, 1, length, size, dtype=BF16)
    both = 2 * 2 * batch * heads * length * size
    assert (
        estimate_attention_backward_scratch_bytes(flash, (half, half, few, few))
        == 4 * batch * heads * 128 * (64 + 1) + both
    )
    efficient = "aten._scaled_dot_product_efficient_attention_backward"
    assert estimate_attention_backward_scratch_bytes(
        efficient, (half,) * 4
    ) == estimate_attention_backward_scratch_bytes(efficient, (single,) * 4)
    assert estimate_attention_backward_scratch_bytes(
        efficient, (half,) * 4
    ) == 4 * batch * heads * (length + 128 * 64)
    assert estimate_attention_backward_scratch_bytes("aten.mm", (half, half)) == 0


@pytest.mark.parametrize(
    ("optimizer", "update", "copies"),
    [
        ("sgd", "auto", 2),
        ("momentum", "auto", 3),
        ("adam", "auto", 5),
        ("adamw", "foreach", 5),
        ("adam", "fused", 4),
        ("momentum", "fused", 3),
        ("rmsprop", "auto", 4),
        ("rmsprop", "fused", 4),
        ("adadelta", "auto", 6),
    ],
)
def test_the_update_of_a_gpu_takes_so_many_copies_of_the_parameters_at_its_peak(
    optimizer, update, copies
):
    width, layers = 64, 12
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    found = find_memory_peak(
        traced(model, tensor(1, width), GpuChoices(update=update), optimizer=optimizer)
    )
    values = 4 * layers * width * width
    # the counters are on the GPU
    steps = 4 * layers if update == "fused" and optimizer == "adam" else 0
    assert (
        copies * values
        <= found.bytes - steps
        <= copies * values + 4 * width * (layers + 3) + 4 * width * width
    )


def test_the_loop_over_parameters_takes_no_copy_of_all_of_them():
    width, layers = 64, 12
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    found = find_memory_peak(
        traced(model, tensor(1, width), GpuChoices(update="for-loop"), optimizer="adam")
    ).bytes
    # Two of one layer, for its square roots, while Python still holds the layer before's; and
    # the input.
    assert found == 4 * (4 * layers + 3) * width * width + 4 * width


def test_dropout_keeps_a_byte_a_value_and_not_its_noise():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 1000, bias=False), nn.Dropout(0.5))
    assert kept(traced(model, tensor(3, 8))) == 3 * 1000 * (4 + 1)  # the output, and the mask
    own = trace_step(model, (tensor(3, 8),), memory=True).memory
    assert own is not None and kept(own) == 3 * 1000 * (4 + 4)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_count_the_same_with_memory_and_keep_less_than_their_products(kind):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = kind(16, 24, 2, bidirectional=True)

        def forward(self, given):
            return self.layer(given)[0]  # type: ignore[no-any-return]

    steps, batch = 30, 4
    with torch.device("meta"):
        model = Recurrent()
    given = tensor(steps, batch, 16)
    gates = {"LSTM": 6, "GRU": 5, "RNN": 2}[kind.__name__]
    found = trace_step(model, (given,), memory=True, gpu=GpuChoices())
    assert found.memory is not None and found.problem is None
    reserve = 4 * gates * 24 * 2 * 2 * steps * batch
    assert reserve in [
        one.bytes for one in found.memory.allocations if one.category == "activation"
    ]
    plain = estimate_from_trace(trace_step(model, (given,)))
    mine = estimate_from_trace(found)
    assert (mine.forward, mine.backward) == (plain.forward, plain.backward)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_asking_for_memory_changes_no_count(precision):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.drop = (
                nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True),
                nn.Dropout(0.2),
            )

        def forward(self, given):
            return nn.functional.dropout(self.drop(self.layer(given)), 0.3)

    with torch.device("meta"):
        model = Block()
    plain, with_memory = (
        estimate(model, (2, 8, 32), memory=memory, precision=precision) for memory in (False, True)
    )
    assert with_memory.memory is not None and plain.problem is None
    assert with_memory.ops == plain.ops
    assert with_memory.casts == plain.casts


def test_autocast_keeps_half_of_the_activations_and_a_cast_of_each_weight():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(256, 256, bias=False), nn.Linear(256, 256, bias=False))
    single, half = (
        trace_step(
            model, (tensor(64, 256),), memory=True, gpu=GpuChoices(), precision=precision
        ).memory
        for precision in ("fp32", "bf16")
    )
    assert single is not None and half is not None
    assert kept(single) == 4 * 2 * 64 * 256
    # The input's cast and both outputs; the second weight's cast, which the gradient of its input
    # needs, and the first's stays in autocast's cache until forward ends.
    assert kept(half) == 2 * 3 * 64 * 256 + 2 * 256 * 256
