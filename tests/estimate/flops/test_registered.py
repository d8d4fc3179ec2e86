"""Operators and kernels that the user registers count; without that, the total is a lower bound."""

import pytest

from perfctl import register_flops
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.flops import engine, registered
from perfctl.records.paper import OpShape

SHAPES = ((8, 64), (64, 32))
OP = OpShape("m", "", "mylib.mm", "forward", SHAPES, ((8, 32),), ("float32",) * 3, calls=2)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """What a test registers is gone after it."""
    for owner, name in ((engine, "TABLE"), (registered, "KERNELS"), (registered, "LOADED")):
        monkeypatch.setattr(owner, name, dict(getattr(owner, name)))
    yield


@pytest.mark.parametrize("each", [2, 3])
def test_a_registered_operator_is_no_lower_bound(each):
    (unknown,) = engine.build_layer_calls_with_flops([OP])
    assert unknown.macs is None
    register_flops("mylib::mm", lambda inputs, outputs: each * inputs[0][0] * outputs[0][1])
    (call,) = engine.build_layer_calls_with_flops([OP])
    products = 8 * 32 * OP.calls
    flops = call.flops or 0
    assert flops + (call.elementwise_flops or 0) == each * products
    assert (call.read_bytes, call.write_bytes) == (
        OP.calls * 4 * (8 * 64 + 64 * 32),
        OP.calls * 4 * 8 * 32,
    )


def test_an_odd_result_loses_no_flop():
    register_flops("mylib::mm", lambda inputs, outputs: 35)
    calls = engine.build_layer_calls_with_flops([OP])
    assert (calls[0].flops, calls[0].elementwise_flops) == (35 * OP.calls, 0)
    assert engine.sum_layer_call_work(calls, ("forward",)).flops == 35 * OP.calls


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda inputs, outputs: inputs[7], "IndexError"),
        (lambda inputs, outputs: -1, "gives -1 FLOP"),
        (lambda inputs, outputs: None, "TypeError"),
    ],
)
def test_a_function_that_fails_is_named(function, reason):
    register_flops("mylib::mm", function)
    with pytest.raises(UsageError, match=f"formula of 'mylib::mm'.*{reason}"):
        engine.build_layer_calls_with_flops([OP])


def test_a_kernel_is_counted_by_the_parameters_that_its_function_names():
    register_flops("mm_kernel", lambda N: 2 * N**3)
    numbers = {"N": 256, "batch": 4}
    assert registered.compute_registered_kernel_flops("mm_kernel", numbers) == 2 * 256**3  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"'mm_kernel' needs N \(known: none\)"):
        registered.compute_registered_kernel_flops("mm_kernel", {})


def test_a_file_is_executed_once_and_its_error_is_one_line(tmp_path):
    path = tmp_path / "formulas.py"
    path.write_text('import perfctl\nperfctl.register_flops("mylib::mm", lambda i, o: 2)\n')
    registered.execute_formula_file_once(path)
    path.write_text("1/0")
    registered.execute_formula_file_once(path)
    assert engine.build_layer_calls_with_flops([OP])[0].flops == 2 * OP.calls
    other = tmp_path / "bad.py"
    other.write_text("1/0")
    with pytest.raises(UsageError, match=r"`formulas` .*bad\.py: ZeroDivisionError"):
        registered.execute_formula_file_once(other)


def test_a_registered_autograd_function_counts_instead_of_what_runs_in_it():
    torch = pytest.importorskip("torch")
    from perfctl import estimate

    class Mul(torch.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            return grad @ w.t(), x.t() @ grad

    class Net(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(8, 4))

        def forward(self, x):
            return Mul.apply(x, self.w)

    visible = estimate(Net(), (2, 8))
    assert (visible.forward.macs, visible.backward.macs) == (2 * 8 * 4, 2 * 2 * 8 * 4)
    register_flops("Mul", lambda inputs, outputs: 100 * inputs[0][0])
    register_flops("MulBackward", lambda inputs, outputs: 30 * inputs[0][0])
    counted = estimate(Net(), (2, 8))
    assert (counted.forward.flops, counted.backward.flops) == (100 * 2, 30 * 2)


def test_what_an_autograd_function_does_outside_of_torch_has_its_name():
    torch = pytest.importorskip("torch")
    from perfctl import estimate

    class Outside(torch.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(ctx, x):
            return torch.from_numpy(x.detach().numpy() * 2)

    class Net(torch.nn.Module):  # type: ignore[name-defined,misc]
        def forward(self, x):
            return Outside.apply(x)

    given = torch.ones(2, 8)
    found = estimate(Net(), given, mode="infer", device="cpu")
    assert {name for name, _ in found.forward.missing} == {"autograd.Outside"}
    register_flops("autograd::Outside", lambda inputs, outputs: 7)
    assert estimate(Net(), given, mode="infer", device="cpu").forward.missing == ()


def test_a_stored_apply_and_each_gradient_of_a_function_count_too():
    torch = pytest.importorskip("torch")
    from perfctl.orchestrator.estimate.flops.engine import (
        build_layer_calls_with_flops,
        select_countable_operations,
    )
    from perfctl.workloads.tracing.watch import Recorder

    class Scale(torch.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(x, w):
            return x * w

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            return grad * w, grad * x

    scale, own = Scale.apply, dict(vars(Scale))
    weight = torch.nn.Parameter(torch.ones(2, 8))
    register_flops("Scale", lambda inputs, outputs: 100 * inputs[0][0])
    register_flops("ScaleBackward", lambda inputs, outputs: 30 * inputs[0][0])
    with Recorder(None) as recorder:
        scale(torch.ones(2, 8), weight).backward(torch.ones(2, 8))
        scale(torch.ones(2, 8, requires_grad=True), weight).backward(torch.ones(2, 8))
    assert dict(vars(Scale)) == own
    calls = build_layer_calls_with_flops(select_countable_operations(recorder.ops))
    counted = {(call.direction, call.calls): call.flops for call in calls if call.flops}
    assert counted == {("forward", 2): 400, ("grad_weight", 1): 60, ("backward", 1): 60}
